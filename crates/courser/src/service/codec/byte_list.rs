//! Lists of bytes, which are written and read at once.

use std::fmt;

use postcard::Serializer as Scalars;
use postcard::ser_flavors::Flavor;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::fault::{Cause, Result};

/// Place of a single byte.
struct Slot<'a>(&'a mut u8);

impl Flavor for Slot<'_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        *self.0 = byte;
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Returns whether the items of a list are bytes. Known when it is compiled.
#[inline]
pub(super) fn is_byte<T>() -> bool {
    matches!(std::any::type_name::<T>(), "&u8" | "u8")
}

/// The number of items, if they state it.
#[inline]
pub(super) fn exact_len(items: &impl Iterator) -> Option<usize> {
    match items.size_hint() {
        (least, Some(most)) if least == most => Some(least),
        _ => None,
    }
}

/// Writes a list of bytes at once.
pub(super) fn bytes<I: Iterator<Item: Serialize>>(
    mut bytes: I,
    len: usize,
    mut write: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut left = len;
    let mut chunk = [0; 256];
    while left > 0 {
        let part = &mut chunk[..left.min(256)];
        for place in part.iter_mut() {
            let byte = bytes.next().ok_or(Cause::Miscounted)?;
            byte.serialize(&mut Scalars { output: Slot(place) })?;
        }
        write(part)?;
        left -= part.len();
    }
    if bytes.next().is_some() { Err(Cause::Miscounted.into()) } else { Ok(()) }
}

/// A `Vec<u8>` among the arguments of a method.
#[doc(hidden)]
#[derive(Debug)]
pub struct ByteString(pub Vec<u8>);

impl<'de> Deserialize<'de> for ByteString {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_bytes(ByteStringVisitor)
    }
}

/// Reads bytes, or a list of integers: a list of newtypes of bytes is written as one.
struct ByteStringVisitor;

impl<'de> Visitor<'de> for ByteStringVisitor {
    type Value = ByteString;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    #[inline]
    fn visit_bytes<E>(self, bytes: &[u8]) -> std::result::Result<ByteString, E> {
        Ok(ByteString(bytes.to_vec()))
    }

    fn visit_seq<A: SeqAccess<'de>>(
        self,
        mut from: A,
    ) -> std::result::Result<ByteString, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = from.next_element()? {
            bytes.push(byte);
        }
        Ok(ByteString(bytes))
    }
}
