//! rkyv: values that are read in place.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::sync::OnceLock;

use courser_buf::{Arena, MsgBuf, MsgView};
use rkyv::api::access_with_context;
use rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator, to_bytes_in_with_alloc};
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor::Error;
use rkyv::ser::allocator::{Arena as Scratch, ArenaHandle};
use rkyv::ser::{Positional, Writer as RkyvWriter};
use rkyv::validation::Validator;
use rkyv::validation::archive::ArchiveValidator;
use rkyv::validation::shared::SharedValidator;
use rkyv::{Archive, Deserialize, Portable, Serialize};

use super::{Codec, Decode, Encode, Payload};
use crate::error::service::{DecodeError, EncodeError};
use crate::service::writer::{Memory, WriteError, Writer};
use crate::shape::Shape;

/// [rkyv](https://docs.rs/rkyv): values whose encoded form is read in place, after one check.
///
/// A parameter or a result of type `T` is encoded straight into the message, and deserialized at
/// the other end. A [`View<T>`] is read in place there: the client passes a `&T`, and the handler
/// gets the view. A method has one parameter, or several that are not views.
///
/// **Alignment**: a message begins at a multiple of 64 bytes, so archived types of an alignment of
/// up to 64 are read in place. Messages of one packet are copied once, larger ones are not copied.
///
/// ```
/// use courser::service::{Rkyv, View};
///
/// #[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
/// pub struct Page {
///     words: Vec<String>,
/// }
///
/// #[courser::service(codec = Rkyv)]
/// trait Pages {
///     /// The client passes a `&Page`.
///     async fn count(&self, page: View<Page>) -> u64;
/// }
///
/// struct Reader;
///
/// impl Pages for Reader {
///     async fn count(&self, page: View<Page>) -> u64 {
///         // Read in the message, without a copy.
///         page.words.iter().filter(|word| word.len() > 3).count() as u64
///     }
/// }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = courser::Server::bind("udp://127.0.0.1:0")?.add_service(PagesServer::new(Reader))?;
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
///
/// let page = Page { words: vec!["two".to_owned(), "words".to_owned()] };
/// assert_eq!(PagesClient::connect(&uri).await?.count(&page).await?, 1);
/// # Ok(()) }) }
/// ```
///
/// # Types that change
/// Both ends compare the name of a type, and the size and alignment of its archived form, but not its
/// fields: rkyv does not tell them. A field that was renamed, moved, or has another type of the same
/// size is **not found**, and is read as another value. Give a type that changes another name.
///
/// # Limits
/// Values with more than 128 levels of pointers are refused. For a value that is deserialized a server
/// counts four bytes of heap for each byte received; a view uses none. The elements of a list lie in
/// the message, except those without bytes: do not use lists of them with strangers, since they may
/// have four billion elements.
#[derive(Clone, Copy, Debug)]
pub struct Rkyv;

impl Codec for Rkyv {
    const NAME: &'static str = "rkyv 0.8";
}

/// Levels of pointers in a value, which use the stack when they are checked.
const MAX_DEPTH: NonZeroUsize = NonZeroUsize::new(128).expect("128 is not 0");

/// Bytes of heap that are counted for each byte of a value that is deserialized.
const HEAP_PER_BYTE: usize = 4;

/// A message, checked once and read in place as an archived `T`. Dereferences to
/// `rkyv::Archived<T>`.
///
/// ```
/// use courser::service::View;
///
/// #[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
/// struct Point {
///     x: u32,
///     y: u32,
/// }
///
/// let view = View::of(&Point { x: 3, y: 4 })?;
/// assert_eq!((view.x.to_native(), view.y.to_native()), (3, 4));
/// # Ok::<_, courser::service::EncodeError>(())
/// ```
pub struct View<T: Archive<Archived: 'static>>(MsgView<T::Archived>);

impl<T: Archive<Archived: 'static>> View<T> {
    /// Encodes a value, for handlers that return a view. Returning the value itself saves a copy.
    ///
    /// # Errors
    /// rkyv cannot encode the value, or there is no memory.
    pub fn new(value: &T, memory: &dyn Memory) -> Result<Self, EncodeError>
    where
        Rkyv: Encode<T>,
        T::Archived: Checked,
    {
        let message = crate::service::writer::message(memory, |out| Rkyv::encode(value, out))?;
        let view = MsgView::new(message, access::<T::Archived>);
        view.map(View).map_err(|e| EncodeError::Codec {
            codec: Rkyv::NAME,
            detail: Cow::Owned(e.to_string()),
        })
    }

    /// [`View::new`] in memory that the process shares, at most 1 GiB.
    ///
    /// # Errors
    /// As [`View::new`].
    pub fn of(value: &T) -> Result<Self, EncodeError>
    where
        Rkyv: Encode<T>,
        T::Archived: Checked,
    {
        static SHARED: OnceLock<Arena> = OnceLock::new();
        Self::new(value, SHARED.get_or_init(Arena::heap))
    }

    /// The message.
    pub fn into_message(self) -> MsgBuf {
        self.0.into_message()
    }
}

impl<T: Archive<Archived: 'static>> Deref for View<T> {
    type Target = T::Archived;

    #[inline]
    fn deref(&self) -> &T::Archived {
        &self.0
    }
}

impl<T: Archive<Archived: fmt::Debug + 'static>> fmt::Debug for View<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Archived types whose bytes rkyv can check.
#[doc(hidden)]
pub trait Checked: Portable + for<'a> CheckBytes<HighValidator<'a, Error>> {}

impl<T: Portable + for<'a> CheckBytes<HighValidator<'a, Error>>> Checked for T {}

fn access<T: Checked>(bytes: &[u8]) -> Result<&T, Error> {
    let archive = ArchiveValidator::with_max_depth(bytes, Some(MAX_DEPTH));
    access_with_context::<T, _, Error>(bytes, &mut Validator::new(archive, SharedValidator::new()))
}

fn refused(e: &Error) -> DecodeError {
    DecodeError::Codec { codec: Rkyv::NAME, detail: Cow::Owned(e.to_string()) }
}

/// Where rkyv writes: positions count from the beginning of the value.
#[doc(hidden)]
pub struct Out<'a> {
    writer: &'a mut dyn Append,
    begin: usize,
}

trait Append {
    fn append(&mut self, bytes: &[u8]) -> Result<(), WriteError>;
    fn position(&self) -> usize;
}

impl Append for Writer<'_> {
    fn append(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.extend(bytes)
    }
    fn position(&self) -> usize {
        Writer::position(self)
    }
}

impl Positional for Out<'_> {
    fn pos(&self) -> usize {
        self.writer.position() - self.begin
    }
}

impl RkyvWriter<Error> for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.writer.append(bytes).map_err(|_| rkyv::rancor::Source::new(NoRoom))
    }
}

#[derive(Debug)]
struct NoRoom;

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no room")
    }
}

impl std::error::Error for NoRoom {}

impl<T> Encode<T> for Rkyv
where
    T: for<'a, 'b> Serialize<HighSerializer<Out<'a>, ArenaHandle<'b>, Error>>,
{
    fn encode(value: &T, out: &mut Writer<'_>) -> Result<(), EncodeError> {
        let mut scratch = Scratch::new();
        let begin = Writer::position(out);
        let to = Out { writer: out, begin };
        let encoded = to_bytes_in_with_alloc::<_, _, Error>(value, to, scratch.acquire());
        encoded.map(|_| ()).map_err(|e| {
            let detail = Cow::Owned(e.to_string());
            out.reason(EncodeError::Codec { codec: Self::NAME, detail })
        })
    }
}

impl<T> Decode<T> for Rkyv
where
    T: Archive,
    T::Archived: Checked + Deserialize<T, HighDeserializer<Error>>,
{
    fn decode(from: Payload<'_>) -> Result<T, DecodeError> {
        from.reserve_heap(from.bytes().len().saturating_mul(HEAP_PER_BYTE))?;
        let aligned = from.bytes().as_ptr().addr().is_multiple_of(align_of::<T::Archived>());
        if aligned {
            return read(from.bytes());
        }
        read(&from.take()?)
    }

    fn shape() -> Shape {
        archived::<T>()
    }
}

/// The shape of a type, which is also that of its view.
fn archived<T: Archive>() -> Shape {
    let (name, size) = (Shape::named::<T>(), size_of::<T::Archived>());
    Shape::opaque(&format!("{name} ({size} bytes, aligned to {})", align_of::<T::Archived>()))
}

fn read<T>(bytes: &[u8]) -> Result<T, DecodeError>
where
    T: Archive,
    T::Archived: Checked + Deserialize<T, HighDeserializer<Error>>,
{
    let archived = access::<T::Archived>(bytes).map_err(|e| refused(&e))?;
    rkyv::deserialize::<T, Error>(archived).map_err(|e| refused(&e))
}

impl<T: Archive<Archived: 'static>> Encode<View<T>> for Rkyv {
    fn encode(value: &View<T>, out: &mut Writer<'_>) -> Result<(), EncodeError> {
        let bytes = value.0.message();
        out.extend(bytes).map_err(|_| {
            out.reason(EncodeError::Codec { codec: Self::NAME, detail: Cow::Borrowed("no room") })
        })
    }
}

impl<T: Archive<Archived: Checked + 'static>> Decode<View<T>> for Rkyv {
    fn decode(from: Payload<'_>) -> Result<View<T>, DecodeError> {
        let view = MsgView::new(from.take()?, access::<T::Archived>);
        view.map(View).map_err(|e| refused(&e))
    }

    fn shape() -> Shape {
        archived::<T>()
    }
}

no_error!(Rkyv);
