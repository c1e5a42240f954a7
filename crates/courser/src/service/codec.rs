//! Codecs: how values become bytes.

mod bytes;
#[cfg(feature = "postcard")]
mod postcard;
#[cfg(feature = "prost")]
mod prost;
#[cfg(feature = "rkyv")]
mod rkyv;

use courser_buf::{AllocError, MsgBuf};

use super::error::{DecodeError, EncodeError};
use super::writer::{Memory, Writer};

pub use self::bytes::Bytes;
#[cfg(feature = "postcard")]
pub use self::postcard::Postcard;
#[cfg(feature = "prost")]
pub use self::prost::Prost;
#[cfg(feature = "rkyv")]
pub use self::rkyv::{Rkyv, View};

/// A codec: a marker type that implements [`Encode`] and [`Decode`] for the types that it supports.
///
/// A codec of your own implements both for `()`, [`super::NoError`], and the types of your
/// services, and is named by `#[service(codec = path)]`. Methods with several parameters encode a
/// tuple.
pub trait Codec: 'static {
    /// The name, part of the fingerprint of services.
    const NAME: &'static str;
}

/// Encodes values of type `T`.
#[diagnostic::on_unimplemented(
    message = "the codec `{Self}` cannot encode `{T}`",
    note = "Postcard encodes types with serde's `Serialize`, Prost single messages, Rkyv types with \
            `Archive` and `Serialize`, Bytes `Vec<u8>`, `String`, `MsgBuf` and arrays of bytes"
)]
pub trait Encode<T: ?Sized>: Codec {
    /// Writes the value.
    ///
    /// # Errors
    /// The codec refuses the value, or the writer has no room.
    fn encode(value: &T, out: &mut Writer<'_>) -> Result<(), EncodeError>;
}

/// Decodes values of type `T`.
#[diagnostic::on_unimplemented(
    message = "the codec `{Self}` cannot decode `{T}`",
    note = "Postcard decodes types with serde's `DeserializeOwned`, Prost single messages, Rkyv types \
            with `Archive` and `Deserialize` or a `View<T>`, Bytes `Vec<u8>`, `String`, `MsgBuf` and \
            arrays of bytes"
)]
pub trait Decode<T>: Codec {
    /// Reads a value from all bytes of the payload.
    ///
    /// # Errors
    /// The bytes are no value of this type. Bytes come from the network: this must not panic, and
    /// allocate no more than a multiple of their number.
    fn decode(from: Payload<'_>) -> Result<T, DecodeError>;
}

/// The bytes of a value: borrowed from a received packet or batch, or a message of their own.
#[derive(Debug)]
pub struct Payload<'a>(Inner<'a>);

enum Inner<'a> {
    Borrowed(&'a [u8], &'a dyn Memory),
    Owned(MsgBuf),
}

impl std::fmt::Debug for Inner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self {
            Inner::Borrowed(..) => "Borrowed",
            Inner::Owned(_) => "Owned",
        };
        f.debug_tuple(name).field(&self.bytes().len()).finish()
    }
}

impl Inner<'_> {
    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Inner::Borrowed(bytes, _) => bytes,
            Inner::Owned(message) => message,
        }
    }
}

impl<'a> Payload<'a> {
    /// Borrowed bytes, and memory for a copy of them.
    #[inline]
    pub fn borrowed(bytes: &'a [u8], memory: &'a dyn Memory) -> Self {
        Payload(Inner::Borrowed(bytes, memory))
    }

    /// A whole message.
    #[inline]
    pub fn owned(message: MsgBuf) -> Self {
        Payload(Inner::Owned(message))
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The bytes in a message, which begins at a multiple of 64. Copies borrowed bytes.
    ///
    /// # Errors
    /// No memory for the copy.
    pub fn take(self) -> Result<MsgBuf, AllocError> {
        match self.0 {
            Inner::Owned(message) => Ok(message),
            Inner::Borrowed(bytes, memory) => {
                let mut message = memory.alloc(bytes.len())?;
                message.copy_from_slice(bytes);
                Ok(message)
            }
        }
    }

    /// Shortens to the first `len` bytes.
    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        match &mut self.0 {
            Inner::Borrowed(bytes, _) => *bytes = bytes.get(..len).unwrap_or(bytes),
            Inner::Owned(message) => message.truncate(len),
        }
    }
}
