//! Protocol Buffers by prost.

use std::borrow::Cow;

use prost::Message;

use super::{Codec, Decode, Encode, Payload};
use crate::error::service::{DecodeError, EncodeError};
use crate::service::writer::Writer;
use crate::shape::{Difference, Shape};

/// Messages of Protocol Buffers, by [prost](https://docs.rs/prost). A method has at most one
/// parameter, and its error is a message too. Unknown fields are skipped, so that messages can get
/// new ones.
///
/// # Limits
/// Messages may be nested up to 100 levels, which is prost's limit. An element of a list of messages has
/// two bytes or more and takes the size of its type on the heap, up to three times that while the list
/// grows; an entry of a map takes its size and that of a node. prost allocates on its own, and the codec
/// does not see these sizes: a server counts four bytes of heap for each byte received. So the heap of a
/// value is within the 64 bytes for each byte that [`super::Postcard`](crate::service::Postcard) has if
/// no type in a list or map is larger than 128 bytes. Larger ones belong in a `boxed` field of a small
/// message if strangers call: a list of messages of 1 KiB takes 512 bytes for each byte received, 4 GiB
/// for a request of 8 MiB. Or lower [`crate::Config::max_msg_size`].
#[derive(Clone, Copy, Debug)]
pub struct Prost;

/// Bytes of heap that are counted for each byte of a message.
const HEAP_PER_BYTE: usize = 4;

impl Codec for Prost {
    const NAME: &'static str = "protobuf";

    /// All messages are read: their fields are found by number, which shapes do not have. A number must
    /// keep its type, as Protocol Buffers ask.
    fn reads(_: &Shape, _: &Shape) -> Result<(), Difference> {
        Ok(())
    }
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
        from.reserve_heap(from.bytes().len().saturating_mul(HEAP_PER_BYTE))?;
        T::decode(from.bytes()).map_err(|e| DecodeError::Codec {
            codec: Self::NAME,
            detail: Cow::Owned(e.to_string()),
        })
    }
}

no_error!(Prost);
