//! Message buffers and the counted references that transmit queues hold to parts of them.
//!
//! Step 1 and step 7 of a packet's path. Layout and ownership are described at the top of the
//! crate (`[eRPC §4.2.1]`, E19-E21, E24, E27).
//!
//! Invariants:
//! 1. One [`MsgBuf`] and any number of [`TxSeg`]s hold references to a buffer; the drop of the
//!    last one frees it.
//! 2. Data is written only while the `MsgBuf` holds the only reference.
//! 3. Header room is written only while no `TxSeg` covers it: the buffer is not shared, or that
//!    header was not exposed since the buffer was last seen unshared.

mod packets;
mod seg;
mod unshared;

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

use crate::arena::{Inner, MAX_HEADROOM};
use crate::chunk::{Chunk, FRONT};

pub use packets::PacketAccess;
pub use seg::TxSeg;
pub(crate) use seg::drop_segs;
pub use unshared::Unshared;

/// Bytes for headers before the data of every packet: a frame header of up to 32 bytes and a
/// packet header of 16 (ADR 1, E45).
pub const HEADER_ROOM: usize = 48;

const _: () = assert!(MAX_HEADROOM + HEADER_ROOM <= FRONT);

/// A message: contiguous data with room for packet headers around it.
///
/// Dereferences to its data. Allocated by [`Arena::alloc`](crate::Arena::alloc); may be filled and
/// dropped on any thread, and returns to its arena when it and all its [`TxSeg`]s are dropped.
pub struct MsgBuf {
    data: NonNull<u8>,
    chunk: NonNull<Chunk>,
}

// Two words are passed in registers. A longer struct would be stored word by word and loaded two
// words at a time, and such a load must wait until the stores are in the cache (no store
// forwarding).
const _: () = assert!(size_of::<Option<MsgBuf>>() == 2 * size_of::<usize>());

// SAFETY: a `MsgBuf` owns its data like a `Box<[u8]>`; reference counts and free lists are atomic.
// Test: `buffers_come_back_from_other_threads`, also under miri.
unsafe impl Send for MsgBuf {}
// SAFETY: `&MsgBuf` allows reading the data and its length, which only `&mut MsgBuf` changes, and
// taking counted references: all safe from many threads at once. Test:
// `buffers_come_back_from_other_threads`.
unsafe impl Sync for MsgBuf {}

/// Why a buffer cannot have a length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetLenError {
    /// The length is above the capacity of the buffer.
    #[error("{asked} bytes do not fit a message buffer of {capacity}; allocate a larger one")]
    Capacity {
        /// Requested length, bytes.
        asked: usize,
        /// Data capacity of the buffer, bytes.
        capacity: usize,
    },
    /// A transmit queue still reads the data, so that no bytes can be cleared.
    #[error("a message buffer that is being sent cannot grow; wait until its call has ended")]
    Shared,
}

impl MsgBuf {
    /// Takes ownership of a claimed buffer.
    ///
    /// # Safety
    /// The caller holds the only reference to `chunk` and passes it on; `len` is at most the
    /// chunk's capacity.
    #[inline]
    pub(crate) unsafe fn from_chunk(chunk: NonNull<Chunk>, len: u32) -> Self {
        // SAFETY: a claimed record is alive. Test: `positions_are_exact` under miri.
        let record = unsafe { chunk.as_ref() };
        record.len.set(len);
        record.exposed.set(0);
        MsgBuf { data: record.data, chunk }
    }

    #[inline]
    fn chunk(&self) -> &Chunk {
        // SAFETY: this holds a reference, so the record is alive. Only its atomics change, and
        // `len` and `exposed`, which only the one `MsgBuf` accesses, and sets through `&mut self`.
        // Test: `every_drop_order` under miri.
        unsafe { self.chunk.as_ref() }
    }

    /// Number of data bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.chunk().len.get() as usize
    }

    /// Returns whether there are no data bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Data capacity: at least the length requested at allocation.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.chunk().capacity as usize
    }

    /// Shortens the data to `len` bytes, without a copy. Does nothing when it is not longer.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.chunk().len.set(len as u32);
        }
    }

    /// Sets the number of data bytes, up to the capacity. New bytes are 0.
    #[inline]
    pub fn set_len(&mut self, len: usize) -> Result<(), SetLenError> {
        let had = self.len();
        if len > had && self.is_shared() {
            return Err(SetLenError::Shared);
        }
        self.set_len_recycled(len)?;
        if let Some(new) = self.get_mut().and_then(|data| data.get_mut(had..)) {
            new.fill(0);
        }
        Ok(())
    }

    /// Sets the number of data bytes, up to the capacity. New bytes have the contents of an earlier
    /// use of the memory, so a message that is not overwritten in full **reveals parts of earlier
    /// messages**.
    #[inline]
    pub fn set_len_recycled(&mut self, len: usize) -> Result<(), SetLenError> {
        let capacity = self.capacity();
        if len > capacity {
            return Err(SetLenError::Capacity { asked: len, capacity });
        }
        self.chunk().len.set(len as u32);
        Ok(())
    }

    /// Returns whether a [`TxSeg`] of this buffer is alive, so that the data must not change (E24).
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.chunk().is_shared()
    }

    /// The data for writing, or `None` while a transmit queue may still read it. Costs one load.
    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        if self.is_shared() {
            return None;
        }
        self.chunk().exposed.set(0);
        // SAFETY: invariant 2: no `TxSeg` exists, and none can be created while `self` is borrowed.
        // `len` is within the capacity; the memory is initialised. Test: proptest
        // `random_use_agrees_with_the_model` under miri.
        Some(unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len()) })
    }

    /// Distance from the first data byte to the end of the header room of packet `index`: 0 for
    /// the first, which is before the data, else behind the data. `None` when there is none.
    #[inline]
    fn header_end(&self, index: u32) -> Option<usize> {
        let chunk = self.chunk();
        match index {
            0 => Some(0),
            k if k <= chunk.slots => {
                Some(chunk.capacity as usize + k as usize * chunk.slot_size as usize)
            }
            _ => None,
        }
    }

    /// Where a piece of the data begins.
    #[inline]
    fn data_place(&self, range: &Range<usize>) -> Option<NonNull<u8>> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        // SAFETY: within the data, or at its end. Test: `positions_are_exact`.
        Some(unsafe { self.data.add(range.start) })
    }

    /// Marks headers below `end` as possibly covered by a `TxSeg`.
    #[inline]
    fn expose(&mut self, end: u32) {
        let exposed = &self.chunk().exposed;
        exposed.set(exposed.get().max(end));
    }
}

impl PacketAccess for MsgBuf {
    #[inline]
    fn prefetch(&self) {
        crate::prefetch(self.chunk());
        // Not through the slice, whose length is in the record that is being prefetched.
        // SAFETY: FRONT bytes before `data` are memory of the buffer, and so is the byte at it,
        // which is initialised. Test: `positions_are_exact`.
        crate::prefetch(unsafe { self.data.as_ref() });
    }

    #[inline]
    fn header_mut(&mut self, index: u32) -> Option<&mut [u8; HEADER_ROOM]> {
        let end = self.header_end(index)?;
        if index < self.chunk().exposed.get() {
            if self.is_shared() {
                return None;
            }
            self.chunk().exposed.set(0);
        }
        // SAFETY: the room lies within the chunk: FRONT bytes before the data, or one of its slots
        // behind. No `TxSeg` covers it (invariant 3), data pieces never reach header rooms, and
        // `self` is borrowed. Tests: `positions_are_exact`, `headers_are_not_written_while_sent`.
        Some(unsafe { &mut *self.data.as_ptr().add(end).sub(HEADER_ROOM).cast() })
    }

    #[inline]
    fn first_seg(&mut self, header_len: usize, data_len: usize) -> TxSeg {
        assert!(
            header_len <= HEADER_ROOM && data_len <= self.len(),
            "first_seg({header_len}, {data_len}) of a buffer of {} bytes",
            self.len()
        );
        self.expose(1);
        self.chunk().retain_mut(1);
        // SAFETY: the reference is counted. FRONT bytes precede the data and `data_len` is within
        // it. The header is marked exposed. Test: `positions_are_exact`.
        unsafe {
            let start = self.data.sub(header_len);
            TxSeg::new(start, header_len + data_len, FRONT - header_len, self.chunk)
        }
    }

    #[inline]
    fn data_seg(&self, range: Range<usize>) -> Option<TxSeg> {
        let start = self.data_place(&range)?;
        self.chunk().retain(1);
        // SAFETY: the reference is counted, and the range lies within the data.
        // Test: `positions_are_exact`.
        Some(unsafe { TxSeg::new(start, range.len(), 0, self.chunk) })
    }

    #[inline]
    fn packet_segs(
        &mut self,
        index: u32,
        header_len: usize,
        range: Range<usize>,
    ) -> Option<(TxSeg, TxSeg)> {
        let data = self.data_place(&range)?;
        let end = self.header_end(index)?;
        if header_len > HEADER_ROOM {
            return None;
        }
        let room = if index == 0 { FRONT } else { self.chunk().slot_size as usize };
        self.expose(index + 1);
        self.chunk().retain_mut(2);
        // SAFETY: both references are counted; the bytes lie within the header room of `index`,
        // which is marked exposed, and within the data. Test: `positions_are_exact`.
        Some(unsafe {
            let start = self.data.add(end).sub(header_len);
            let header = TxSeg::new(start, header_len, room - header_len, self.chunk);
            (header, TxSeg::new(data, range.len(), 0, self.chunk))
        })
    }

    #[inline]
    fn try_unshare(self) -> Result<Unshared, MsgBuf> {
        Unshared::new(self)
    }
}

impl Deref for MsgBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes, which change only through `&mut self` (invariant 2).
        // Test: `random_use_agrees_with_the_model` under miri.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len()) }
    }
}

impl DerefMut for MsgBuf {
    /// # Panics
    ///
    /// While the buffer [is shared](MsgBuf::is_shared): a transmit queue still reads the data.
    /// [`get_mut`](MsgBuf::get_mut) returns `None` instead.
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match self.get_mut() {
            Some(data) => data,
            None => written_while_sent(),
        }
    }
}

fn written_while_sent() -> ! {
    panic!("a message buffer was written while a transmit queue still holds parts of it");
}

impl Drop for MsgBuf {
    #[inline]
    fn drop(&mut self) {
        if self.chunk().release() {
            // SAFETY: that was the last reference. Test: `every_drop_order`.
            unsafe { Inner::recycle(self.chunk) }
        }
    }
}

impl fmt::Debug for MsgBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MsgBuf")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .field("shared", &self.is_shared())
            .finish()
    }
}

#[cfg(test)]
mod tests;
