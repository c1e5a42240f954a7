//! Protocol Buffers by prost.

use std::borrow::Cow;

use prost::Message;

use super::{Codec, Decode, Encode, Payload};
use crate::service::error::{DecodeError, EncodeError, NoError};
use crate::service::writer::Writer;

/// Messages of Protocol Buffers, by [prost](https://docs.rs/prost). A method has at most one
/// parameter, and its error is a message too. Unknown fields are skipped, so that messages can get
/// new ones.
#[derive(Clone, Copy, Debug)]
pub struct Prost;

impl Codec for Prost {
    const NAME: &'static str = "protobuf";
}

impl<T: Message> Encode<T> for Prost {
    fn encode(value: &T, out: &mut Writer<'_>) -> Result<(), EncodeError> {
        let refused = |detail| EncodeError::Codec { codec: Self::NAME, detail };
        let len = value.encoded_len();
        match out.reserve(len) {
            Err(_) => Err(out.reason(refused(Cow::Borrowed("no room")))),
            Ok(mut place) => {
                value.encode(&mut place).map_err(|e| refused(Cow::Owned(e.to_string())))?;
                // Bytes that were not overwritten would be those of earlier messages.
                place.fill(0);
                Ok(())
            }
        }
    }
}

impl<T: Message + Default> Decode<T> for Prost {
    fn decode(from: Payload<'_>) -> Result<T, DecodeError> {
        T::decode(from.bytes()).map_err(|e| DecodeError::Codec {
            codec: Self::NAME,
            detail: Cow::Owned(e.to_string()),
        })
    }
}

impl Encode<NoError> for Prost {
    fn encode(value: &NoError, _: &mut Writer<'_>) -> Result<(), EncodeError> {
        match *value {}
    }
}

impl Decode<NoError> for Prost {
    fn decode(_: Payload<'_>) -> Result<NoError, DecodeError> {
        Err(DecodeError::Form("an error of a method without errors"))
    }
}
