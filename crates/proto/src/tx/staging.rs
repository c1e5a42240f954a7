//! Buffers that frames are copied together in.
//!
//! They are used in turn: what was used longest ago is the first that the transport lets go of. One
//! that keeps no frames always finds the first ones free, which are the ones in the cache.

use courser_buf::{Arena, MsgBuf, PacketAccess, Unshared};

/// Bytes of buffers that the transport may reference at once; beyond, the stage waits for the
/// transport to let go. Enough for any number of frames that a kernel or a NIC queues.
const MOST_BYTES: usize = 8 << 20;
/// However large frames are, some fit.
const MOST_AT_LEAST: usize = 128;
/// Buffers that are looked at to find one that the transport has let go. More than one, because
/// a transport may keep a single frame for long while later ones come back.
const PROBES: usize = 4;

/// The place of a buffer; empty while that is being filled.
type Place = Option<MsgBuf>;

#[inline]
fn is_free(place: &Place) -> bool {
    place.as_ref().is_some_and(|buf| !buf.is_shared())
}

/// Takes the buffer from its place, if it [`is_free`].
#[inline]
fn take_free(place: &mut Place) -> Option<Unshared> {
    match place.take()?.try_unshare() {
        Ok(buf) => Some(buf),
        Err(shared) => {
            *place = Some(shared);
            None
        }
    }
}

#[derive(Debug)]
pub(super) struct Staging {
    places: Vec<Place>,
    next: usize,
    /// The transport was seen to keep a frame since the turn began.
    held: bool,
    /// The arena is exhausted, and the transport holds every buffer.
    pub(super) starved: bool,
    frame_bytes: usize,
}

impl Staging {
    /// For frames of so many bytes.
    pub(super) fn new(frame_bytes: usize) -> Self {
        Staging { places: Vec::new(), next: 0, held: false, starved: false, frame_bytes }
    }

    /// Takes a buffer that nobody references from its place, and gives the place, if there may be one
    /// more.
    #[inline]
    pub(super) fn take(&mut self, arena: &Arena) -> Option<(usize, Unshared)> {
        let at = self.next;
        match self.places.get_mut(at).and_then(take_free) {
            Some(buf) => {
                self.next = at + 1;
                Some((at, buf))
            }
            None => {
                let at = self.search(arena)?;
                Some((at, take_free(self.places.get_mut(at)?)?))
            }
        }
    }

    #[cold]
    fn search(&mut self, arena: &Arena) -> Option<usize> {
        for _ in 0..self.places.len().min(PROBES) {
            if self.next >= self.places.len() {
                // A turn in which every buffer was found free ends the precaution.
                (self.next, self.held) = (0, false);
            }
            let at = self.next;
            self.next += 1;
            if is_free(&self.places[at]) {
                return Some(at);
            }
            self.held |= self.places[at].is_some();
        }
        let limit = (MOST_BYTES / self.frame_bytes.max(1)).max(MOST_AT_LEAST);
        if self.places.len() < limit
            && let Some(fresh) = self.add(arena)
        {
            return Some(fresh);
        }
        // Rare enough to look at them all.
        let free = self.places.iter().position(is_free);
        self.starved |= free.is_none();
        free
    }

    /// Adds a buffer, and gives its place. Done in advance, it keeps an arena that is exhausted later
    /// from stopping what it makes slow.
    pub(super) fn add(&mut self, arena: &Arena) -> Option<usize> {
        let buf = arena.alloc(self.frame_bytes).ok()?;
        self.places.push(Some(buf));
        self.next = self.places.len();
        Some(self.next - 1)
    }

    /// Puts a buffer back to its place, from where it is sent.
    #[inline]
    pub(super) fn put_back(&mut self, at: usize, buf: Unshared) -> &mut MsgBuf {
        self.places[at].insert(buf.into_msg())
    }

    /// A stage has ended.
    #[inline(always)]
    pub(super) fn rest(&mut self) {
        if !self.held {
            self.next = 0;
        }
    }

    /// Data bytes of those in their places.
    pub(super) fn bytes(&self) -> usize {
        self.places.iter().flatten().map(MsgBuf::capacity).sum()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }
}
