//! The whole state as bytes: the contents of a snapshot.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::making::{Making, SLICE};
use super::{About, Changes, Identity, Membership, Store};
use crate::command::{MAX_KEY, MAX_URI, MAX_VALUE};
use crate::wire::MAX_MEMBERS;

/// Bytes that are no image of a store.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the snapshot is malformed ({0}); remove this node, and add it again with an empty directory"
)]
pub struct ImageError(pub(crate) &'static str);

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

    /// Adds a slice of 256 KiB and one session or entry at most to the image that was begun. Returns the image
    /// when it is complete: the state at its begin.
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

    /// Decodes an image. It takes memory in proportion to the bytes.
    ///
    /// # Errors
    /// The bytes are no image, or exceed a limit.
    pub fn from_image(bytes: &[u8]) -> Result<Store, ImageError> {
        let malformed = |_| ImageError("its encoding");
        let (head, mut rest) = postcard::take_from_bytes::<Head>(bytes).map_err(malformed)?;
        check(&head)?;
        let mut store = Store {
            applied: head.applied,
            now_ms: head.now_ms,
            identity: head.identity,
            membership: head.membership,
            addresses: head.addresses,
            changes: Changes::after(head.applied.0),
            ..Store::default()
        };
        for _ in 0..head.sessions {
            rest = store.sessions.decode(rest).ok_or(ImageError("its sessions"))?;
        }
        let mut last: Option<Vec<u8>> = None;
        for _ in 0..head.keys {
            let ((key, value), after) =
                postcard::take_from_bytes::<(ByteBuf, ByteBuf)>(rest).map_err(malformed)?;
            rest = after;
            let (key, value) = (key.into_vec(), value.into_vec());
            if key.len() > MAX_KEY || value.len() > MAX_VALUE || last.as_ref() >= Some(&key) {
                return Err(ImageError("its keys"));
            }
            store.bytes += (key.len() + value.len()) as u64;
            last = Some(key.clone());
            store.entries.insert(key, value);
        }
        if rest.is_empty() { Ok(store) } else { Err(ImageError("bytes behind its end")) }
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
        return Err(ImageError("its version"));
    }
    if voters.is_empty() || count > MAX_MEMBERS || ids.len() < count || ids.contains(&0) {
        return Err(ImageError("its members"));
    }
    if !known || !short {
        return Err(ImageError("its addresses"));
    }
    Ok(())
}
