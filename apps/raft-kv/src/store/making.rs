//! An image that is made in slices while the store is written, so that the event loop is not blocked for
//! the time that all keys take. Values that a write replaces before they are in the image are kept until
//! they are: at most those of the state at the begin.
//!
//! Invariant: keys up to the last one are in the bytes. For each key behind it, `old` has the value at the
//! begin if a write has changed it since, and the store has it otherwise.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;

use serde_bytes::Bytes;

use super::sessions::Frozen;

/// Bytes of a slice, after which it ends with its session or entry. Each of them counts [`ENTRY`]
/// more than it has.
pub(super) const SLICE: usize = 256 << 10;
/// Bytes that encoding a session or an entry counts as, besides its own.
const ENTRY: usize = 64;

/// An image that is not complete, with what it is about.
#[derive(Clone, Debug)]
pub(super) struct Making<T> {
    about: T,
    sessions: Frozen,
    pub(super) bytes: Vec<u8>,
    last: Option<Vec<u8>>,
    old: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl<T> Making<T> {
    /// Begins with the bytes before sessions and entries. The entries take `size` bytes or so.
    pub(super) fn begin(about: T, head: &[u8], sessions: Frozen, size: usize) -> Making<T> {
        let mut bytes = Vec::with_capacity(head.len() + size);
        bytes.extend_from_slice(head);
        Making { about, sessions, bytes, last: None, old: BTreeMap::new() }
    }

    /// A write replaces this value, or stores one under a key that has none.
    pub(super) fn keep(&mut self, key: &[u8], value: Option<&Vec<u8>>) {
        let is_done = self.last.as_ref().is_some_and(|last| key <= &last[..]);
        if !is_done && !self.old.contains_key(key) {
            self.old.insert(key.to_vec(), value.cloned());
        }
    }

    /// Adds the next sessions and entries, about `budget` bytes of them. Returns whether the image is
    /// complete.
    pub(super) fn advance(&mut self, entries: &BTreeMap<Vec<u8>, Vec<u8>>, budget: usize) -> bool {
        let mut left = budget;
        while let Some(session) = self.sessions.encode_next() {
            self.bytes.extend_from_slice(&session);
            left = left.saturating_sub(ENTRY + session.len());
            if left == 0 {
                return false;
            }
        }
        let begin = self.last.take().map_or(Bound::Unbounded, Bound::Excluded);
        let mut present = entries.range((begin, Bound::Unbounded)).peekable();
        loop {
            let next = present.peek().map(|(key, _)| *key);
            let is_old =
                self.old.keys().next().is_some_and(|old| next.is_none_or(|key| old <= key));
            let (key, value) = if is_old {
                let Some((key, value)) = self.old.pop_first() else { return true };
                let _ = present.next_if(|(present, _)| **present == key);
                (Cow::Owned(key), value.map(Cow::Owned))
            } else {
                let Some((key, value)) = present.next() else { return true };
                (Cow::Borrowed(key), Some(Cow::Borrowed(value)))
            };
            left = left.saturating_sub(ENTRY + key.len());
            if let Some(value) = value {
                self.write(&key, &value);
                left = left.saturating_sub(value.len());
            }
            if left == 0 {
                self.last = Some(key.into_owned());
                return false;
            }
        }
    }

    fn write(&mut self, key: &[u8], value: &[u8]) {
        let entry = postcard::to_stdvec(&(Bytes::new(key), Bytes::new(value)));
        self.bytes.extend_from_slice(&entry.expect("an image is data"));
    }

    /// The bytes of a complete image.
    pub(super) fn end(self) -> (T, Vec<u8>) {
        (self.about, self.bytes)
    }
}
