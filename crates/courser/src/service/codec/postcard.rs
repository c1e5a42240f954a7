//! serde types by postcard.

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
use crate::shape::Shape;

/// Types that implement serde's traits, by [postcard](https://postcard.jamesmunns.com): compact,
/// with integers of variable length, and without names: both ends have the same types. A call takes
/// fewer instructions and bytes than with [`Named`](super::Named), the default codec.
///
/// ```
/// /// Types that do not change, in few bytes.
/// #[courser::service(codec = Postcard)]
/// trait Points {
///     async fn length(&self, x: i32, y: i32) -> f64;
/// }
///
/// struct Plane;
///
/// impl Points for Plane {
///     async fn length(&self, x: i32, y: i32) -> f64 {
///         f64::from(x).hypot(y.into())
///     }
/// }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = courser::Server::bind("udp://127.0.0.1:0")?.add_service(PointsServer::new(Plane))?;
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
///
/// assert_eq!(PointsClient::connect(&uri).await?.length(3, 4).await?, 5.0);
/// # Ok(()) }) }
/// ```
///
/// # Byte strings
/// A `Vec<u8>` that is a parameter, a result or an item is copied at once, as is a field with
/// `#[serde(with = "serde_bytes")]` and a `serde_bytes::ByteBuf`. Within other types it is written
/// at once and read byte by byte, which takes about two nanoseconds for each. All have the same
/// encoding.
///
/// # Limits
/// Limits on a value that is read from a message:
///
/// - Lists, maps, options and enums may be nested up to 128 levels, and use up to 1 MiB of stack:
///   [`DecodeError::TooDeep`].
/// - A list or map has no more elements than bytes follow, and each element has a byte:
///   [`DecodeError::Elements`]. So a `Vec<()>` is empty, or refused at both ends.
/// - The value uses up to 4 MiB of heap and 64 bytes for each byte of the message, counted by the
///   sizes of elements and boxes: [`DecodeError::HeapLimit`]. Large variants of enums in long lists
///   belong in a `Box`.
///
/// # Types that are not read back
/// Fields and variants are sent without names, in their order. serde's attributes that need names,
/// or that differ between both directions, end as follows.
///
/// | attribute | |
/// | --- | --- |
/// | `rename`, `rename_all`, `alias`, `default`, `transparent`, `skip`, `with` of both directions | works; names have no meaning, a field with `skip` gets its default, and variants with `skip` are the last |
/// | `skip_serializing_if` | error of encoding when the field would be left out |
/// | `flatten` | error of encoding |
/// | `untagged`, `tag` (internally or adjacently tagged) | error of decoding, for each value |
/// | `deserialize_any`: types of any form, such as `serde_json::Value` | error of decoding |
/// | iterators without a length (`collect_seq` of a filter) | error of encoding |
/// | `skip_serializing` or `skip_deserializing` alone, `serialize_with` without its inverse, `skip` on a variant that is not the last (serde writes the place among all variants, and reads it among the others) | **not found**: the value may be read as another one. Test such types with [`super::round_trip`] |
#[derive(Clone, Copy, Debug)]
pub struct Postcard;

impl Codec for Postcard {
    const NAME: &'static str = "postcard";
}

impl<T: Serialize + ?Sized> Encode<T> for Postcard {
    #[inline]
    fn encode(value: &T, out: &mut Writer<'_>) -> Result<(), EncodeError> {
        match value.serialize(&mut Encoder::new(out)) {
            Ok(()) => Ok(()),
            Err(fault) => Err(out.reason(fault.encode(Self::NAME))),
        }
    }
}

impl<T: DeserializeOwned + 'static> Decode<T> for Postcard {
    #[inline]
    fn decode(from: Payload<'_>) -> Result<T, DecodeError> {
        read_message(Reader::new(from.bytes(), from.heap()), Self::NAME)
    }

    fn shape() -> Shape {
        Shape::of::<T>()
    }
}

no_error!(Postcard);
