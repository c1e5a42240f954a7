//! Protocol Buffers by prost.

mod fields;

use std::borrow::Cow;

use prost::Message;

pub use self::fields::Fields;
use super::{Codec, Decode, Encode, Payload};
use crate::error::service::{DecodeError, EncodeError};
use crate::service::writer::Writer;
use crate::shape::{Difference, Shape};

/// Messages of Protocol Buffers, by [prost](https://docs.rs/prost): the parameters of a method, its
/// result, its error and its items. Unknown fields are skipped, so that messages can get new ones. The
/// crate `courser-build` generates services from `.proto` files.
///
/// # Parameters
/// A lone parameter is the message itself, as in gRPC. Two to twelve parameters are the fields 1, 2 and
/// so on of a message without a name. A method without parameters sends an empty message, as does one
/// that returns `()`.
///
/// Numbers and texts are messages too: prost implements the trait for `bool`, `u32`, `u64`, `i32`, `i64`,
/// `f32`, `f64`, `String` and `Vec<u8>` as those of `google/protobuf/wrappers.proto`.
///
/// ```
/// # use courser::service::Service;
/// #[courser::service(codec = Prost)]
/// trait Texts {
///     async fn repeat(&self, text: String, times: u32) -> String;
/// }
/// ```
///
/// # Changes
/// A method without parameters may get some, and one with two or more may get others at the end: a
/// program that does not have them skips them, and one that does not get them has their defaults. A lone
/// parameter has another form than the first of two, so a second one is a
/// [`ShapeMismatch`](crate::service::RpcError::ShapeMismatch); add a field to its message instead. So is
/// a number or a text of another type, unless it is an integer with all values of the old one.
///
/// Services that `courser-build` generates have the fields of their messages in the shapes of their methods,
/// from the descriptors: a field that keeps its number and gets another type is a `ShapeMismatch` of the
/// methods that use it, unless all values are read as they were. Messages of services that are written as
/// traits are compared by nothing, also with those of a generated service: there a number must keep its type,
/// as Protocol Buffers ask.
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

    /// Any message is read as any other if the fields of one of them are not known. Otherwise a field with
    /// one number at both ends has one type, or a wider one at the reader. Several parameters are read as more or fewer, or as none.
    fn reads(reader: &Shape, writer: &Shape) -> Result<(), Difference> {
        reader.reads_messages(writer)
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

    fn shape() -> Shape {
        Shape::of_message::<T>()
    }
}

no_error!(Prost);
