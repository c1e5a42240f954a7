//! Why a value is not read or written.

use std::borrow::Cow;
use std::fmt::{self, Display, Write};

use serde::{de, ser};

use crate::error::service::{DecodeError, EncodeError};

/// Levels of lists, maps, options and enums within each other.
pub(super) const MAX_LEVELS: u32 = 128;

/// Bytes of the words of a type.
const MAX_WORDS: usize = 300;

pub(super) type Result<T> = std::result::Result<T, Fault>;

/// An error of the reader or the writer: one word, since every value is returned beside it.
#[derive(Debug)]
pub(super) struct Fault(Box<Cause>);

/// The cause of an error.
#[derive(Debug)]
#[cfg_attr(not(feature = "named"), allow(dead_code))] // some are causes of `Named` only
pub(super) enum Cause {
    Postcard(postcard::Error),
    /// The message has no room.
    Room,
    /// The message ends within a value.
    End,
    /// Another type was sent than is read.
    Type {
        sent: &'static str,
        read: &'static str,
    },
    /// An integer is outside of its type.
    Range {
        sent: i128,
        read: &'static str,
    },
    /// A text that is no UTF-8.
    Utf8,
    /// A form that no type has.
    Extension,
    /// The type did not read all that belongs to it.
    Unread,
    /// More than [`MAX_LEVELS`], or too much stack.
    Depth,
    /// More elements than bytes.
    Elements,
    /// The limit of heap for the value is reached.
    Heap(DecodeError),
    /// The type needs the names of fields, which postcard does not have.
    Names,
    /// A field is not written that is read.
    Skipped(&'static str),
    /// A map or list without its length.
    Unknown,
    /// Elements in another number than was stated.
    Miscounted,
    /// The type's own words.
    Custom(Box<str>),
}

/// Text that is cut at some length: the words of a type may repeat a whole string of the message.
struct Cut(String);

impl fmt::Write for Cut {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if self.0.len() >= MAX_WORDS {
                return Err(fmt::Error);
            }
            self.0.push(c);
        }
        Ok(())
    }
}

impl Fault {
    fn custom(words: &dyn Display) -> Self {
        let mut text = Cut(String::new());
        let _ = write!(text, "{words}"); // an error is the end of the room
        Cause::Custom(text.0.into()).into()
    }

    pub(super) fn decode(self, codec: &'static str) -> DecodeError {
        let detail = match *self.0 {
            Cause::Depth => return DecodeError::TooDeep { levels: MAX_LEVELS },
            Cause::Elements => return DecodeError::Elements,
            Cause::Heap(e) => return e,
            Cause::Postcard(e) => Cow::Owned(e.to_string()),
            Cause::Custom(words) => Cow::Owned(words.into()),
            Cause::Type { sent, read } => Cow::Owned(format!("{sent} was sent for {read}")),
            Cause::Range { sent, read } => Cow::Owned(format!("{sent} was sent for {read}")),
            other => Cow::Borrowed(other.words()),
        };
        DecodeError::Codec { codec, detail }
    }

    pub(super) fn encode(self, codec: &'static str) -> EncodeError {
        let detail = match *self.0 {
            Cause::Depth => return EncodeError::TooDeep { levels: MAX_LEVELS },
            Cause::Postcard(e) => Cow::Owned(e.to_string()),
            Cause::Custom(words) => Cow::Owned(words.into()),
            Cause::Skipped(field) => Cow::Owned(format!(
                "the field `{field}` would be left out (`skip_serializing_if`), and could not be \
                 read back"
            )),
            other => Cow::Borrowed(other.words()),
        };
        EncodeError::Codec { codec, detail }
    }
}

impl Cause {
    fn words(&self) -> &'static str {
        match self {
            Cause::Elements => "elements without bytes, such as those of `Vec<()>`",
            Cause::Names => {
                "the type is read by names of fields or tags (`untagged`, `tag`, `flatten`, \
                 `deserialize_any`), which are not sent"
            }
            Cause::Unknown => {
                "a map or list without its length (`flatten`, or an iterator) could not be read back"
            }
            Cause::Room => "no room",
            Cause::End => "the message ends within a value",
            Cause::Utf8 => "a text that is no UTF-8",
            Cause::Extension => "a form of MessagePack that is not used",
            Cause::Unread => "the type left a part of its value",
            Cause::Miscounted => "the type states a wrong number of elements",
            _ => "it is out of its limits",
        }
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Cause::Postcard(e) => e.fmt(f),
            Cause::Custom(words) => f.write_str(words),
            other => f.write_str(other.words()),
        }
    }
}

impl std::error::Error for Fault {}

impl From<Cause> for Fault {
    fn from(cause: Cause) -> Self {
        Fault(Box::new(cause))
    }
}

impl From<postcard::Error> for Fault {
    fn from(e: postcard::Error) -> Self {
        Cause::Postcard(e).into()
    }
}

impl de::Error for Fault {
    fn custom<T: Display>(words: T) -> Self {
        Fault::custom(&words)
    }
}

impl ser::Error for Fault {
    fn custom<T: Display>(words: T) -> Self {
        Fault::custom(&words)
    }
}
