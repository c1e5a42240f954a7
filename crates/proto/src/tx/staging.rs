//! Staging buffers: frames are assembled in them.
//!
//! They are used in rotation: the buffer used longest ago is the first that the transport releases.
//! With a transport that keeps no frames, the first buffers are always free, and they are in the
//! cache.

use courser_buf::{Arena, MsgBuf, PacketAccess, Unshared};

/// Limit of the bytes that the transport may reference at once; beyond it, the batch waits until
/// the transport releases a buffer. Enough for the queues of a kernel or a NIC.
const MAX_BYTES: usize = 8 << 20;
/// Minimum number of buffers, whatever the size of frames.
const MIN_BUFFERS: usize = 128;
/// Buffers checked for one that the transport has released. More than one, since a transport may
/// keep a single frame for long while it releases later ones.
const PROBES: usize = 4;

/// The place of a buffer; empty while the buffer is being filled.
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
    /// True if the transport still used a buffer in this rotation.
    in_use: bool,
    /// The arena is exhausted, and the transport holds every buffer.
    pub(super) starved: bool,
    frame_bytes: usize,
}

impl Staging {
    /// For frames of at most `frame_bytes` bytes.
    pub(super) fn new(frame_bytes: usize) -> Self {
        Staging { places: Vec::new(), next: 0, in_use: false, starved: false, frame_bytes }
    }

    /// Takes an unreferenced buffer from its place, and returns the index of the place; adds a
    /// buffer if the limits allow.
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
                // A rotation in which every buffer was free ends the precaution.
                (self.next, self.in_use) = (0, false);
            }
            let at = self.next;
            self.next += 1;
            if is_free(&self.places[at]) {
                return Some(at);
            }
            self.in_use |= self.places[at].is_some();
        }
        let limit = (MAX_BYTES / self.frame_bytes.max(1)).max(MIN_BUFFERS);
        if self.places.len() < limit
            && let Some(fresh) = self.add(arena)
        {
            return Some(fresh);
        }
        // Rare enough for a linear search.
        let free = self.places.iter().position(is_free);
        self.starved |= free.is_none();
        free
    }

    /// Adds a buffer and returns its index. Done in advance, so that an arena that is exhausted
    /// later slows sending but does not stop it.
    pub(super) fn add(&mut self, arena: &Arena) -> Option<usize> {
        let buf = arena.alloc(self.frame_bytes).ok()?;
        self.places.push(Some(buf));
        self.next = self.places.len();
        Some(self.next - 1)
    }

    /// Returns a buffer to its place, from where it is sent.
    #[inline]
    pub(super) fn put_back(&mut self, at: usize, buf: Unshared) -> &mut MsgBuf {
        self.places[at].insert(buf.into_msg())
    }

    /// Ends a batch.
    #[inline]
    pub(super) fn rest(&mut self) {
        if !self.in_use {
            self.next = 0;
        }
    }

    /// Data bytes of the buffers in their places.
    pub(super) fn bytes(&self) -> usize {
        self.places.iter().flatten().map(MsgBuf::capacity).sum::<usize>()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }
}
