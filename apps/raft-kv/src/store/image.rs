//! The whole state as bytes: the contents of a snapshot.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::making::{Making, SLICE};
use super::{About, Changes, Identity, Membership, SESSION_WINDOW, Store};
use crate::command::{MAX_KEY, MAX_URI, MAX_VALUE};
use crate::wire::MAX_MEMBERS;

/// Bytes that are no image of a store.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the snapshot is malformed ({0}); remove this node, and add it again with an empty directory"
)]
pub struct ImageError(pub(crate) Cow<'static, str>);

fn wrong(part: impl Into<Cow<'static, str>>) -> ImageError {
    ImageError(part.into())
}

/// Largest encoding of a number.
const NUMBER: usize = 10;
/// Largest encoding of everything before the sessions: 11 numbers, and each member with its address.
const MAX_HEAD: usize = 11 * NUMBER + MAX_MEMBERS * (3 * NUMBER + MAX_URI);
/// Largest encoding of a session with its number.
const MAX_SESSION: usize = 5 * NUMBER + SESSION_WINDOW as usize * (2 * NUMBER + 1);
/// Largest encoding of a key with its value.
const MAX_ENTRY: usize = 2 * NUMBER + MAX_KEY + MAX_VALUE;

/// An encoded store with the position in the log that it has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    /// Index and term of the last entry in it.
    pub at: (u64, u64),
    /// The members after this entry.
    pub membership: Membership,
    /// The encoding.
    pub bytes: std::sync::Arc<Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
struct Head {
    version: u32,
    applied: (u64, u64),
    now_ms: u64,
    identity: Identity,
    membership: Membership,
    addresses: BTreeMap<u64, String>,
    sessions: u64,
    keys: u64,
}

const VERSION: u32 = 3;

fn complete(making: Making<About>) -> Image {
    let ((at, membership), bytes) = making.end();
    Image { at, membership, bytes: bytes.into() }
}

impl Store {
    /// Encodes the store in one go. See [`Store::begin_image`].
    pub fn image(&self) -> Image {
        let mut making = self.making();
        while !making.advance(&self.entries, usize::MAX) {}
        complete(making)
    }

    /// Begins an image of this state, in place of one that is not complete. Costs a pointer for
    /// each session, and encodes none of them and no entry.
    pub fn begin_image(&mut self) {
        self.making = Some(Box::new(self.making()));
    }

    /// Adds a slice of 256 KiB and one session or entry at most to the image that was begun. Returns
    /// the image when it is complete: the state at its begin.
    pub fn continue_image(&mut self) -> Option<Image> {
        let making = self.making.as_mut()?;
        if making.advance(&self.entries, SLICE) {
            return self.making.take().map(|making| complete(*making));
        }
        None
    }

    /// Returns whether an image was begun that is not complete.
    pub fn makes_image(&self) -> bool {
        self.making.is_some()
    }

    pub(super) fn making(&self) -> Making<About> {
        let size = self.bytes as usize + 8 * self.entries.len() + 256;
        let about = (self.applied, self.membership.clone());
        Making::begin(about, &self.head(), self.sessions.freeze(), size)
    }

    /// Encodes everything but the sessions and the entries.
    fn head(&self) -> Vec<u8> {
        let head = Head {
            version: VERSION,
            applied: self.applied,
            now_ms: self.now_ms,
            identity: self.identity,
            membership: self.membership.clone(),
            addresses: self.addresses.clone(),
            sessions: self.sessions.len() as u64,
            keys: self.entries.len() as u64,
        };
        postcard::to_stdvec(&head).expect("an image is data")
    }

    /// An image that claims another position, for a planted bug.
    pub(crate) fn image_at(&self, at: (u64, u64)) -> Image {
        Store { applied: at, ..self.clone() }.image()
    }

    /// Decodes an image in one go. It takes memory in proportion to the bytes.
    ///
    /// # Errors
    /// The bytes are no image, or exceed a limit.
    pub fn from_image(bytes: &[u8]) -> Result<Store, ImageError> {
        let mut decoder = Decoder::default();
        decoder.advance(bytes)?;
        decoder.end(bytes)
    }
}

/// Decodes an image whose bytes come in parts, so that each part costs its own bytes, and the last one no
/// more than the others. Bytes that are not complete are decoded again when there are twice as many, and
/// refused when there are more than the largest head, session or entry has: the work is proportional to
/// the bytes, however they are cut.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    store: Store,
    /// Place of the first byte that is not decoded.
    at: usize,
    /// Bytes of the image up to now.
    len: usize,
    /// Bytes from the place on that are needed for another attempt.
    wanted: usize,
    /// Bytes that were read in vain, as the part that they begin was not complete.
    #[cfg(test)]
    pub(super) repeated: usize,
    has_head: bool,
    /// Sessions and keys that are not decoded.
    sessions: u64,
    keys: u64,
}

/// A value and the bytes behind it; `None`: it is not complete.
fn take<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<Option<(T, &'a [u8])>, ImageError> {
    match postcard::take_from_bytes(bytes) {
        Ok(taken) => Ok(Some(taken)),
        Err(postcard::Error::DeserializeUnexpectedEnd) => Ok(None),
        Err(_) => Err(wrong("its encoding")),
    }
}

impl Decoder {
    /// Decodes everything that is complete in the bytes of the image up to now: those of the last call, and
    /// more.
    ///
    /// # Errors
    /// The bytes are no image, or exceed a limit.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        self.len = bytes.len();
        let mut rest = bytes.get(self.at..).unwrap_or_default();
        while rest.len() >= self.wanted {
            let (part, limit) = self.largest();
            let Some(after) = self.next(rest)? else {
                if rest.len() > limit {
                    return Err(wrong(format!("{part} of more than {limit} bytes")));
                }
                #[cfg(test)]
                {
                    self.repeated += rest.len();
                }
                self.wanted = (2 * rest.len()).clamp(1, limit + 1);
                return Ok(());
            };
            self.at += rest.len() - after.len();
            self.wanted = 0;
            rest = after;
        }
        Ok(())
    }

    /// The kind of the next part, and its largest encoding.
    fn largest(&self) -> (&'static str, usize) {
        match self.has_head {
            false => ("a head", MAX_HEAD),
            true if self.sessions > 0 => ("a session", MAX_SESSION),
            true => ("an entry", MAX_ENTRY),
        }
    }

    /// Place of the first byte that is not decoded.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The store of an image whose bytes are complete.
    ///
    /// # Errors
    /// Bytes are missing, or there are more than [`Decoder::advance`] had.
    pub fn end(mut self, bytes: &[u8]) -> Result<Store, ImageError> {
        if self.len != bytes.len() {
            return Err(wrong("its length"));
        }
        self.wanted = 0;
        self.advance(bytes)?;
        if !self.has_head || self.sessions > 0 || self.keys > 0 {
            return Err(wrong("its encoding"));
        }
        Ok(self.store)
    }

    /// Decodes the next part. Returns the bytes behind it. `None`: it is not complete, or was the last.
    fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, ImageError> {
        if !self.has_head {
            let Some((head, rest)) = take::<Head>(bytes)? else { return Ok(None) };
            check(&head)?;
            (self.has_head, self.sessions, self.keys) = (true, head.sessions, head.keys);
            self.store = Store {
                applied: head.applied,
                now_ms: head.now_ms,
                identity: head.identity,
                membership: head.membership,
                addresses: head.addresses,
                changes: Changes::after(head.applied.0),
                ..Store::default()
            };
            return Ok(Some(rest));
        }
        if self.sessions > 0 {
            let Some(((number, session), rest)) = take(bytes)? else { return Ok(None) };
            if !self.store.sessions.restore(number, session) {
                return Err(wrong("its sessions"));
            }
            self.sessions -= 1;
            return Ok(Some(rest));
        }
        if self.keys == 0 {
            return if bytes.is_empty() { Ok(None) } else { Err(wrong("bytes behind its end")) };
        }
        let Some(((key, value), rest)) = take::<(ByteBuf, ByteBuf)>(bytes)? else {
            return Ok(None);
        };
        self.keys -= 1;
        let (key, value) = (key.into_vec(), value.into_vec());
        let last = self.store.entries.last_key_value().map(|(last, _)| last);
        if key.len() > MAX_KEY || value.len() > MAX_VALUE || last >= Some(&key) {
            return Err(wrong("its keys"));
        }
        self.store.bytes += (key.len() + value.len()) as u64;
        self.store.entries.insert(key, value);
        Ok(Some(rest))
    }
}

fn check(head: &Head) -> Result<(), ImageError> {
    let Membership { voters, learners } = &head.membership;
    let mut ids: Vec<u64> = voters.iter().chain(learners).copied().collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    let known = head.addresses.keys().all(|id| ids.contains(id));
    let short = head.addresses.values().all(|uri| uri.len() <= MAX_URI);
    if head.version != VERSION {
        return Err(wrong("its version"));
    }
    if voters.is_empty() || count > MAX_MEMBERS || ids.len() < count || ids.contains(&0) {
        return Err(wrong("its members"));
    }
    if !known || !short {
        return Err(wrong("its addresses"));
    }
    Ok(())
}
