//! Codecs: how values become bytes.

/// Implements a codec for the error of methods without one, which has no values.
macro_rules! no_error {
    ($codec:ident) => {
        impl Encode<crate::service::NoError> for $codec {
            fn encode(
                value: &crate::service::NoError,
                _: &mut Writer<'_>,
            ) -> Result<(), EncodeError> {
                match *value {}
            }
        }

        impl Decode<crate::service::NoError> for $codec {
            fn decode(_: Payload<'_>) -> Result<crate::service::NoError, DecodeError> {
                Err(DecodeError::Form("an error of a method without errors"))
            }

            fn shape() -> Shape {
                Shape::never()
            }
        }
    };
}

#[cfg(feature = "postcard")]
mod byte_list;
mod bytes;
#[cfg(feature = "postcard")]
mod fault;
mod heap;
#[cfg(feature = "postcard")]
mod limits;
#[cfg(feature = "named")]
mod named;
#[cfg(feature = "postcard")]
mod postcard;
#[cfg(feature = "prost")]
mod prost;
#[cfg(feature = "rkyv")]
mod rkyv;

use courser_buf::{AllocError, Arena, MsgBuf};

use super::load::Charge;
use super::writer::{Memory, Writer};
use crate::error::service::{DecodeError, EncodeError};
use crate::shape::method::{MethodKind, MethodShape};
use crate::shape::{Difference, Shape};

#[cfg(feature = "postcard")]
pub use self::byte_list::ByteString;
pub use self::bytes::Bytes;
pub(crate) use self::heap::Heap;
#[cfg(feature = "named")]
pub use self::named::Named;
#[cfg(feature = "postcard")]
pub use self::postcard::Postcard;
#[cfg(feature = "prost")]
pub use self::prost::{Fields, Prost};
#[cfg(feature = "rkyv")]
pub use self::rkyv::{Rkyv, View};

/// A codec: a marker type that implements [`Encode`] and [`Decode`] for the types that it supports.
///
/// A codec of your own implements both for `()`, [`super::NoError`], and the types of your
/// services, and is named by `#[service(codec = path)]`. Methods with several parameters encode a
/// tuple.
///
/// ```
/// use courser::service::{Codec, Decode, DecodeError, Encode, EncodeError, NoError, Payload, Writer};
///
/// /// Whole numbers as 8 bytes.
/// struct Fixed;
///
/// impl Codec for Fixed {
///     const NAME: &'static str = "fixed";
/// }
///
/// impl Encode<u64> for Fixed {
///     fn encode(value: &u64, out: &mut Writer<'_>) -> Result<(), EncodeError> {
///         // The writer has the reason, if there is no room.
///         let _ = out.extend(&value.to_le_bytes());
///         Ok(())
///     }
/// }
///
/// impl Decode<u64> for Fixed {
///     fn decode(from: Payload<'_>) -> Result<u64, DecodeError> {
///         let bytes = from.bytes().try_into().map_err(|_| DecodeError::Form("not 8 bytes"))?;
///         Ok(u64::from_le_bytes(bytes))
///     }
/// }
///
/// // Methods without an error of their own have this one.
/// impl Encode<NoError> for Fixed {
///     fn encode(value: &NoError, _: &mut Writer<'_>) -> Result<(), EncodeError> {
///         match *value {}
///     }
/// }
///
/// impl Decode<NoError> for Fixed {
///     fn decode(_: Payload<'_>) -> Result<NoError, DecodeError> {
///         Err(DecodeError::Form("an error of a method without errors"))
///     }
/// }
///
/// #[courser::service(codec = Fixed)]
/// trait Numbers {
///     async fn double(&self, n: u64) -> u64;
/// }
/// # struct Doubles;
/// # impl Numbers for Doubles { async fn double(&self, n: u64) -> u64 { n.wrapping_mul(2) } }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = courser::Server::bind("udp://127.0.0.1:0")?.add_service(NumbersServer::new(Doubles))?;
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
///
/// let numbers = NumbersClient::connect(&uri).await?;
/// assert_eq!(numbers.double(21).await?, 42);
/// # Ok(()) }) }
/// ```
pub trait Codec: 'static {
    /// The name, part of the fingerprint of services.
    const NAME: &'static str;

    /// Returns whether a reader with the first shape reads what a writer with the second one has
    /// written: as the same value, or as an error of decoding. By default only if the shapes are the
    /// same.
    ///
    /// # Errors
    /// The first difference.
    fn reads(reader: &Shape, writer: &Shape) -> Result<(), Difference> {
        reader.same(writer)
    }
}

/// Encodes values of type `T`.
///
/// ```
/// use courser::service::{Encode, EncodeError, Postcard, Writer};
///
/// struct Celsius(f64);
///
/// /// A codec that has no degrees uses those of another one.
/// struct Degrees;
///
/// impl courser::service::Codec for Degrees {
///     const NAME: &'static str = "degrees";
/// }
///
/// impl Encode<Celsius> for Degrees {
///     fn encode(value: &Celsius, out: &mut Writer<'_>) -> Result<(), EncodeError> {
///         <Postcard as Encode<f64>>::encode(&value.0, out)
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "the codec `{Self}` cannot encode `{T}`",
    note = "Postcard and Named encode types with serde's `Serialize`, Prost messages, Rkyv types with \
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
///
/// ```
/// use courser::service::{Decode, DecodeError, Payload, Postcard};
///
/// struct Celsius(f64);
///
/// struct Degrees;
///
/// impl courser::service::Codec for Degrees {
///     const NAME: &'static str = "degrees";
/// }
///
/// impl Decode<Celsius> for Degrees {
///     fn decode(from: Payload<'_>) -> Result<Celsius, DecodeError> {
///         // Bytes come from the network: values that have no meaning are refused here.
///         match <Postcard as Decode<f64>>::decode(from)? {
///             degrees if degrees >= -273.15 => Ok(Celsius(degrees)),
///             _ => Err(DecodeError::Form("below the absolute zero")),
///         }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "the codec `{Self}` cannot decode `{T}`",
    note = "Postcard and Named decode types with serde's `DeserializeOwned`, Prost messages, Rkyv types \
            with `Archive` and `Deserialize` or a `View<T>`, Bytes `Vec<u8>`, `String`, `MsgBuf` and \
            arrays of bytes"
)]
pub trait Decode<T>: Codec {
    /// Reads a value from all bytes of the payload.
    ///
    /// # Errors
    /// The bytes are no value of this type. Bytes come from the network: this must not panic,
    /// overflow the stack, take longer than their number explains, or allocate more than a multiple
    /// of it ([`Payload::reserve_heap`]).
    fn decode(from: Payload<'_>) -> Result<T, DecodeError>;

    /// The form of a value on the network, by which both ends compare their types. By default it is the
    /// last segment of the type's name, so that fields are not compared.
    fn shape() -> Shape {
        Shape::named::<T>()
    }
}

/// The shape of a method of this kind with these arguments, items of the client, value or items of the
/// server, and application error.
#[doc(hidden)]
pub fn method_shape<K, A, S, T, E>(kind: MethodKind) -> MethodShape
where
    K: Decode<A> + Decode<S> + Decode<T> + Decode<E>,
{
    method_shape_of_parts::<K, A, S, T, E>(kind, &[], &[None])
}

/// As [`method_shape`], with several arguments that have these names and shapes, if all are known.
#[doc(hidden)]
pub fn method_shape_of_parts<K, A, S, T, E>(
    kind: MethodKind,
    names: &[&str],
    arguments: &[Option<Shape>],
) -> MethodShape
where
    K: Decode<A> + Decode<S> + Decode<T> + Decode<E>,
{
    let arguments: Option<Vec<Shape>> = arguments.iter().cloned().collect();
    let parts = [
        arguments.map_or_else(<K as Decode<A>>::shape, Shape::tuple),
        <K as Decode<S>>::shape(),
        <K as Decode<T>>::shape(),
        <K as Decode<E>>::shape(),
    ];
    MethodShape::with_parameters(kind, names, parts)
}

/// One of several arguments. Its shape is known if the codec reads it alone.
#[doc(hidden)]
#[derive(Debug)]
pub struct PartShape<K, A>(std::marker::PhantomData<(K, A)>);

impl<K: Decode<A>, A> PartShape<K, A> {
    /// The shape.
    pub fn shape() -> Option<Shape> {
        Some(<K as Decode<A>>::shape())
    }
}

/// The shape of an argument which the codec reads in a tuple only.
#[doc(hidden)]
pub trait AnyPart {
    /// None.
    fn shape() -> Option<Shape> {
        None
    }
}

impl<K, A> AnyPart for PartShape<K, A> {}

/// Encodes a value, decodes it, and encodes the result: the bytes are the same if the type is read
/// as it is written. For tests of types whose two directions are written by hand, or have different
/// attributes. Maps and sets without an order may differ in theirs.
///
/// ```
/// use courser::service::{Postcard, round_trip};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Half {
///     #[serde(skip_serializing)]
///     unsent: u8,
///     sent: u8,
/// }
/// # #[cfg(feature = "postcard")]
/// assert!(round_trip::<Postcard, _>(&Half { unsent: 1, sent: 2 }).is_err());
/// ```
///
/// # Errors
/// The value is not encoded, or not decoded, or the bytes differ.
pub fn round_trip<K: Encode<T> + Decode<T>, T>(value: &T) -> Result<T, RoundTripError> {
    let arena = Arena::heap();
    let first = super::writer::encode::<K, T>(value, &arena)?;
    let decoded = K::decode(Payload::borrowed(&first, &arena))?;
    let second = super::writer::encode::<K, T>(&decoded, &arena)?;
    if first[..] == second[..] { Ok(decoded) } else { Err(RoundTripError::Differs) }
}

/// A value does not survive encoding and decoding.
///
/// ```
/// use courser::service::{Postcard, RoundTripError, round_trip};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Debug)]
/// struct Half {
///     #[serde(skip_serializing)]
///     unsent: u8,
///     sent: u8,
/// }
///
/// let error = round_trip::<Postcard, _>(&Half { unsent: 1, sent: 2 }).unwrap_err();
/// assert!(matches!(error, RoundTripError::Decode(_)));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoundTripError {
    /// It is not encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// It is not decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// It becomes another value.
    #[error(
        "the decoded value has other bytes; use attributes and functions that fit each other in \
         both directions"
    )]
    Differs,
}

/// The bytes of a value: borrowed from a received packet or batch, or a message of their own.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::service::{Decode, Payload, Postcard};
///
/// // A message in memory of an endpoint, as a codec gets it.
/// let client = courser::Client::connect(&uri).await?;
/// let mut message = client.alloc(1)?;
/// message[0] = 7;
/// let payload = Payload::owned(message);
/// assert_eq!(payload.bytes(), [7]);
/// let number: u8 = Postcard::decode(payload)?;
/// assert_eq!(number, 7);
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
pub struct Payload<'a> {
    inner: Inner<'a>,
    /// The account of the heap that its value uses, at servers.
    charge: Option<&'a Charge<'a>>,
}

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
        Payload { inner: Inner::Borrowed(bytes, memory), charge: None }
    }

    /// A whole message.
    #[inline]
    pub fn owned(message: MsgBuf) -> Self {
        Payload { inner: Inner::Owned(message), charge: None }
    }

    /// Counts the heap of the value at a server.
    pub(crate) fn charged_to(&mut self, charge: &'a Charge<'a>) {
        self.charge = Some(charge);
    }

    /// Returns whether the heap of the value is counted.
    pub(crate) fn is_charged(&self) -> bool {
        self.charge.is_some()
    }

    /// Bytes of the heap that the value may use.
    #[inline]
    pub(crate) fn heap(&self) -> Heap<'a> {
        Heap::new(self.bytes().len(), self.charge)
    }

    /// Counts heap that the decoded value will use, for codecs that cannot bound it otherwise: at
    /// most 4 MiB and 64 bytes for each byte of the message. Call it once, before it is allocated.
    ///
    /// # Errors
    /// It is above the limit of a message, or the values that the server holds are above theirs.
    pub fn reserve_heap(&self, bytes: usize) -> Result<(), DecodeError> {
        self.heap().charge(bytes)
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.inner.bytes()
    }

    /// The bytes in a message, which begins at a multiple of 64. Copies borrowed bytes.
    ///
    /// # Errors
    /// No memory for the copy.
    pub fn take(self) -> Result<MsgBuf, AllocError> {
        match self.inner {
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
        match &mut self.inner {
            Inner::Borrowed(bytes, _) => *bytes = bytes.get(..len).unwrap_or(bytes),
            Inner::Owned(message) => message.truncate(len),
        }
    }
}
