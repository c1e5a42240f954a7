//! serde types by postcard.

use std::borrow::Cow;

use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Codec, Decode, Encode, Payload};
use crate::service::error::{DecodeError, EncodeError, NoError};
use crate::service::writer::Writer;

/// Types that implement serde's traits, by [postcard](https://postcard.jamesmunns.com): compact,
/// with integers of variable length. The default codec.
///
/// A `Vec<u8>` is encoded byte by byte; `serde_bytes` or the codec [`super::Bytes`] copy it at
/// once. postcard has no limit of depth: a type that contains itself can be nested as deep as a
/// message is long, which overflows the stack. A sequence of values without bytes, such as `Vec<()>`,
/// can state any length, which then takes as long to read. Give such types a limit, or do not accept
/// them from strangers.
#[derive(Clone, Copy, Debug)]
pub struct Postcard;

impl Codec for Postcard {
    const NAME: &'static str = "postcard";
}

/// Writes what postcard serializes.
struct Out<'a, 'w>(&'a mut Writer<'w>);

impl Flavor for Out<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte).map_err(|_| postcard::Error::SerializeBufferFull)
    }

    #[inline(always)]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend(bytes).map_err(|_| postcard::Error::SerializeBufferFull)
    }

    #[inline]
    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

impl<T: Serialize + ?Sized> Encode<T> for Postcard {
    #[inline]
    fn encode(value: &T, out: &mut Writer<'_>) -> Result<(), EncodeError> {
        match postcard::serialize_with_flavor(value, Out(out)) {
            Ok(()) => Ok(()),
            Err(e) => Err(refused(&e, out)),
        }
    }
}

impl<T: DeserializeOwned> Decode<T> for Postcard {
    #[inline]
    fn decode(from: Payload<'_>) -> Result<T, DecodeError> {
        match postcard::take_from_bytes(from.bytes()) {
            Ok((value, [])) => Ok(value),
            Ok((_, left)) => Err(DecodeError::Trailing { left: left.len() }),
            Err(e) => Err(error(&e)),
        }
    }
}

#[cold]
fn refused(e: &postcard::Error, out: &mut Writer<'_>) -> EncodeError {
    let detail = Cow::Owned(e.to_string());
    out.reason(EncodeError::Codec { codec: Postcard::NAME, detail })
}

#[cold]
fn error(e: &postcard::Error) -> DecodeError {
    DecodeError::Codec { codec: Postcard::NAME, detail: Cow::Owned(e.to_string()) }
}

impl Encode<NoError> for Postcard {
    fn encode(value: &NoError, _: &mut Writer<'_>) -> Result<(), EncodeError> {
        match *value {}
    }
}

impl Decode<NoError> for Postcard {
    fn decode(_: Payload<'_>) -> Result<NoError, DecodeError> {
        Err(DecodeError::Form("an error of a method without errors"))
    }
}
