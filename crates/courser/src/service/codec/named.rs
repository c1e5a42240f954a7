//! serde types by MessagePack, with the names of their fields.

mod marker;
mod read;
mod write;

use serde::Serialize;
use serde::de::DeserializeOwned;

use self::read::Reader;
use self::write::Encoder;
use super::limits::read_message;
use super::{Codec, Decode, Encode, Payload};
use crate::error::service::{DecodeError, EncodeError};
use crate::service::writer::Writer;
use crate::shape::{Difference, Shape};

/// Types that implement serde's traits, by [MessagePack](https://msgpack.org) with the names of fields
/// and variants, so that types may change while programs of both versions run. The default codec.
///
/// | change of a type | |
/// | --- | --- |
/// | fields or variants in another order | works |
/// | a new field with `#[serde(default)]`, or an `Option` | works; old readers skip it |
/// | a new field without a default | old readers skip it; methods whose new end reads it are refused (`ShapeMismatch`) |
/// | a field removed | works if the old type has a default for it; else methods whose old end reads it are refused |
/// | a field renamed, with an `alias` of the old name | new readers read old values |
/// | a new variant | old readers refuse it: an error of decoding that names it |
/// | an integer with more bits, a `T` to an `Option<T>` | new readers read old values |
///
/// Types that differ in any other way are not read as wrong values: [`Shape::reads`] is the rule by
/// which both ends compare them, and values state their types.
///
/// ```
/// use courser::service::{Named, Shape, round_trip};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Old {
///     id: u32,
/// }
///
/// /// The type of a later version.
/// #[derive(Serialize, Deserialize, PartialEq, Debug)]
/// struct New {
///     id: u64,
///     #[serde(default)]
///     tags: Vec<String>,
/// }
///
/// // Programs of both versions read each other's values, unless a number would not fit.
/// assert!(Shape::of::<New>().reads(&Shape::of::<Old>()).is_ok());
/// let new = New { id: 1, tags: vec![] };
/// assert_eq!(round_trip::<Named, _>(&new)?, new);
/// # Ok::<_, courser::service::RoundTripError>(())
/// ```
///
/// # Encoding
/// A struct is a map with the names of its fields, a variant without content its name, another variant
/// a map of its name and its content, a tuple an array, `()` and `None` are nil, and `Some` is the value.
/// Integers are as short as they can be; those of 128 bits that do not fit 64 are 16 bytes, the highest
/// first. This is the encoding of rmp-serde with names (`to_vec_named`), except of byte strings within
/// other types, and of 128 bits. `Some(None)` and `Some(())` have a byte 0xC1 first, which MessagePack
/// leaves free: others refuse it.
///
/// # Byte strings
/// As for [`Postcard`](super::Postcard), a `Vec<u8>` is written at once, as a byte string, and read at
/// once if it is a parameter, a result or an item, and byte by byte within other types, without
/// `serde_bytes`.
///
/// # Cost
/// A small call takes about 1.27 times the instructions of one with [`Postcard`](super::Postcard), and
/// each struct has the names of its fields as bytes: a long list of small structs has several times the
/// bytes. Services whose types never change, or change at both ends at once, may choose `Postcard`.
///
/// # Limits
/// They are those of [`Postcard`](super::Postcard), where structs are levels too: 128 levels and 1 MiB of stack
/// ([`DecodeError::TooDeep`]), a byte for each element ([`DecodeError::Elements`]), 4 MiB of heap and 64
/// bytes for each byte of the message ([`DecodeError::HeapLimit`]). Fields without a place in the type
/// are skipped without heap or stack.
///
/// # Types that are not sent
/// serde's attributes work, also `skip_serializing_if` (with `default`), `untagged` and `tag`. An error
/// of encoding are maps and lists without their length, so also `flatten`.
#[derive(Clone, Copy, Debug)]
pub struct Named;

impl Codec for Named {
    const NAME: &'static str = "messagepack";

    fn reads(reader: &Shape, writer: &Shape) -> Result<(), Difference> {
        reader.reads(writer)
    }
}

impl<T: Serialize + ?Sized> Encode<T> for Named {
    #[inline]
    fn encode(value: &T, out: &mut Writer<'_>) -> Result<(), EncodeError> {
        match value.serialize(&mut Encoder::new(out)) {
            Ok(()) => Ok(()),
            Err(fault) => Err(out.reason(fault.encode(Self::NAME))),
        }
    }
}

impl<T: DeserializeOwned + 'static> Decode<T> for Named {
    #[inline]
    fn decode(from: Payload<'_>) -> Result<T, DecodeError> {
        read_message(Reader::new(from.bytes(), from.heap()), Self::NAME)
    }

    fn shape() -> Shape {
        Shape::of::<T>()
    }
}

no_error!(Named);
