//! Limits of values that codecs of serde read: nesting, numbers of elements, and heap. They are counted
//! where lists and maps begin, so that types without them cost nothing.

use std::any::Any;

use serde::de::{DeserializeOwned, DeserializeSeed, MapAccess, SeqAccess};
use serde::{Deserialize, Deserializer};

use super::byte_list::ByteString;
use super::fault::{Cause, Fault, MAX_LEVELS, Result};
use super::heap::Heap;
use crate::error::service::DecodeError;

/// Stack that a value may use while it is read. Threads have at least 2 MiB by default.
const STACK: usize = 1 << 20;
/// Levels of nesting before the stack is measured.
const SHALLOW: u32 = 16;
/// Size from which a value is counted where it is read, since it may have a box of its own. Smaller
/// ones are counted as elements of their list only.
const BOXED: usize = 64;

/// Counters of a value that is read.
pub(super) struct Limits<'h> {
    /// Levels of nesting that are left.
    levels: u32,
    heap: Heap<'h>,
}

impl<'h> Limits<'h> {
    #[inline]
    pub(super) fn new(heap: Heap<'h>) -> Self {
        Limits { levels: MAX_LEVELS, heap }
    }
}

/// A deserializer with limits.
pub(super) trait Limited<'h> {
    fn limits(&mut self) -> &mut Limits<'h>;

    /// Bytes that were not read.
    fn left(&self) -> usize;

    /// Reads what is one level deeper.
    #[inline]
    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let Some(levels) = self.limits().levels.checked_sub(1) else {
            return Err(Cause::Depth.into());
        };
        if levels < MAX_LEVELS - SHALLOW {
            check_stack(std::ptr::from_ref(self).addr())?;
        }
        self.limits().levels = levels;
        let value = read(self)?;
        self.limits().levels = levels + 1;
        Ok(value)
    }

    /// Counts the heap of a list.
    #[inline]
    fn charge(&mut self, elements: usize, size: usize) -> Result<()> {
        let bytes = elements.saturating_mul(size);
        self.limits().heap.charge(bytes).map_err(|e| Cause::Heap(e).into())
    }

    /// Counts the heap of a value that may have a box of its own.
    #[inline]
    fn charge_box<T>(&mut self) -> Result<()> {
        if size_of::<T>() > BOXED { self.charge(1, size_of::<T>()) } else { Ok(()) }
    }
}

/// Checks the stack between a reader, which is at the beginning of the stack that the value uses, and
/// here.
fn check_stack(reader: usize) -> Result<()> {
    let here = 0_u8;
    let used = reader.abs_diff(std::ptr::from_ref(&here).addr());
    if used > STACK { Err(Cause::Depth.into()) } else { Ok(()) }
}

/// Reads a message that is one value. A `Vec<u8>` is read as a byte string.
#[inline]
pub(super) fn read_message<'de, 'h, R, T>(
    mut reader: R,
    codec: &'static str,
) -> std::result::Result<T, DecodeError>
where
    R: Limited<'h>,
    for<'r> &'r mut R: Deserializer<'de, Error = Fault>,
    T: DeserializeOwned + 'static,
{
    let mut bytes = None::<T>;
    // Known when it is compiled.
    if let Some(bytes) = (&mut bytes as &mut dyn Any).downcast_mut::<Option<Vec<u8>>>() {
        *bytes = Some(read_whole::<R, ByteString>(&mut reader, codec)?.0);
    }
    match bytes {
        Some(bytes) => Ok(bytes),
        None => read_whole(&mut reader, codec),
    }
}

#[inline]
fn read_whole<'de, 'h, R, T>(
    reader: &mut R,
    codec: &'static str,
) -> std::result::Result<T, DecodeError>
where
    R: Limited<'h>,
    for<'r> &'r mut R: Deserializer<'de, Error = Fault>,
    T: Deserialize<'de>,
{
    match (T::deserialize(&mut *reader), reader.left()) {
        (Ok(value), 0) => Ok(value),
        (Ok(_), left) => Err(DecodeError::Trailing { left }),
        (Err(fault), _) => Err(fault.decode(codec)),
    }
}

/// Elements of a list.
pub(super) struct Elements<'a, R> {
    reader: &'a mut R,
    pub(super) left: usize,
    /// The heap of all elements is counted.
    charged: bool,
}

impl<'a, R> Elements<'a, R> {
    #[inline]
    pub(super) fn new(reader: &'a mut R, left: usize) -> Self {
        Elements { reader, left, charged: false }
    }
}

impl<'de, 'h, R: Limited<'h>> SeqAccess<'de> for Elements<'_, R>
where
    for<'r> &'r mut R: Deserializer<'de, Error = Fault>,
{
    type Error = Fault;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        // Known when it is compiled. There are as many bytes, and they are of no use to an attacker.
        if std::any::type_name::<S::Value>() == "u8" {
            self.left = left;
            return seed.deserialize(&mut *self.reader).map(Some);
        }
        if !self.charged {
            self.charged = true;
            self.reader.charge(self.left, size_of::<S::Value>())?;
        }
        self.left = left;
        let before = self.reader.left();
        let value = seed.deserialize(&mut *self.reader)?;
        if self.reader.left() == before {
            return Err(Cause::Elements.into());
        }
        Ok(Some(value))
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// Entries of a map.
pub(super) struct Entries<'a, R> {
    reader: &'a mut R,
    pub(super) left: usize,
    /// The heap of all keys, and of all values, is counted.
    charged: (bool, bool),
    /// Bytes that were left at the entry's beginning.
    before: usize,
}

impl<'a, 'h, R: Limited<'h>> Entries<'a, R> {
    #[inline]
    pub(super) fn new(reader: &'a mut R, left: usize) -> Self {
        let before = reader.left();
        Entries { reader, left, charged: (false, false), before }
    }
}

impl<'de, 'h, R: Limited<'h>> MapAccess<'de> for Entries<'_, R>
where
    for<'r> &'r mut R: Deserializer<'de, Error = Fault>,
{
    type Error = Fault;

    #[inline]
    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        if self.left == 0 {
            return Ok(None);
        }
        if !self.charged.0 {
            self.charged.0 = true;
            self.reader.charge(self.left, size_of::<S::Value>())?;
        }
        self.before = self.reader.left();
        seed.deserialize(&mut *self.reader).map(Some)
    }

    #[inline]
    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value> {
        if !self.charged.1 {
            self.charged.1 = true;
            self.reader.charge(self.left, size_of::<S::Value>())?;
        }
        let value = seed.deserialize(&mut *self.reader)?;
        self.left = self.left.saturating_sub(1);
        if self.reader.left() == self.before {
            return Err(Cause::Elements.into());
        }
        Ok(value)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}
