//! Plain bytes.

use std::borrow::Cow;

use courser_buf::MsgBuf;

use super::{Codec, Decode, Encode, Payload};
use crate::error::service::{DecodeError, EncodeError};
use crate::service::writer::Writer;
use crate::shape::Shape;

/// Plain bytes: a method has at most one parameter. `Vec<u8>`, [`MsgBuf`], `String`, `[u8; N]`,
/// `()`.
///
/// A [`MsgBuf`] takes over a received message of several packets without a copy; sending one
/// copies.
///
/// ```
/// /// Bytes as they are.
/// #[courser::service(codec = Bytes)]
/// trait Blobs {
///     async fn reversed(&self, blob: Vec<u8>) -> Vec<u8>;
/// }
///
/// struct Memory;
///
/// impl Blobs for Memory {
///     async fn reversed(&self, mut blob: Vec<u8>) -> Vec<u8> {
///         blob.reverse();
///         blob
///     }
/// }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = courser::Server::bind("udp://127.0.0.1:0")?.add_service(BlobsServer::new(Memory))?;
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
///
/// assert_eq!(BlobsClient::connect(&uri).await?.reversed(vec![1, 2, 3]).await?, [3, 2, 1]);
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Bytes;

impl Codec for Bytes {
    const NAME: &'static str = "bytes";
}

#[inline]
fn write(bytes: &[u8], out: &mut Writer<'_>) -> Result<(), EncodeError> {
    match out.extend(bytes) {
        Ok(()) => Ok(()),
        Err(_) => Err(no_room(out)),
    }
}

fn no_room(out: &mut Writer<'_>) -> EncodeError {
    out.reason(EncodeError::Codec { codec: Bytes::NAME, detail: Cow::Borrowed("no room") })
}

/// The shape of all types: any bytes.
fn plain() -> Shape {
    Shape::opaque(Bytes::NAME)
}

fn invalid(detail: &'static str) -> DecodeError {
    DecodeError::Codec { codec: Bytes::NAME, detail: Cow::Borrowed(detail) }
}

impl Encode<[u8]> for Bytes {
    #[inline]
    fn encode(value: &[u8], out: &mut Writer<'_>) -> Result<(), EncodeError> {
        write(value, out)
    }
}

impl Encode<Vec<u8>> for Bytes {
    #[inline]
    fn encode(value: &Vec<u8>, out: &mut Writer<'_>) -> Result<(), EncodeError> {
        write(value, out)
    }
}

impl Decode<Vec<u8>> for Bytes {
    #[inline]
    fn decode(from: Payload<'_>) -> Result<Vec<u8>, DecodeError> {
        Ok(from.bytes().to_vec())
    }

    fn shape() -> Shape {
        plain()
    }
}

impl Encode<MsgBuf> for Bytes {
    #[inline]
    fn encode(value: &MsgBuf, out: &mut Writer<'_>) -> Result<(), EncodeError> {
        write(value, out)
    }
}

impl Decode<MsgBuf> for Bytes {
    #[inline]
    fn decode(from: Payload<'_>) -> Result<MsgBuf, DecodeError> {
        Ok(from.take()?)
    }

    fn shape() -> Shape {
        plain()
    }
}

impl Encode<String> for Bytes {
    fn encode(value: &String, out: &mut Writer<'_>) -> Result<(), EncodeError> {
        write(value.as_bytes(), out)
    }
}

impl Decode<String> for Bytes {
    fn decode(from: Payload<'_>) -> Result<String, DecodeError> {
        let text =
            std::str::from_utf8(from.bytes()).map_err(|_| invalid("text that is no UTF-8"))?;
        Ok(text.to_owned())
    }

    fn shape() -> Shape {
        plain()
    }
}

impl<const N: usize> Encode<[u8; N]> for Bytes {
    #[inline]
    fn encode(value: &[u8; N], out: &mut Writer<'_>) -> Result<(), EncodeError> {
        write(value, out)
    }
}

impl<const N: usize> Decode<[u8; N]> for Bytes {
    #[inline]
    fn decode(from: Payload<'_>) -> Result<[u8; N], DecodeError> {
        from.bytes().try_into().map_err(|_| invalid("an array of another length"))
    }

    fn shape() -> Shape {
        plain()
    }
}

impl Encode<()> for Bytes {
    fn encode((): &(), _: &mut Writer<'_>) -> Result<(), EncodeError> {
        Ok(())
    }
}

impl Decode<()> for Bytes {
    fn decode(from: Payload<'_>) -> Result<(), DecodeError> {
        match from.bytes() {
            [] => Ok(()),
            left => Err(DecodeError::Trailing { left: left.len() }),
        }
    }

    fn shape() -> Shape {
        plain()
    }
}

no_error!(Bytes);
