//! The counted references that transmit queues hold to parts of message buffers.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

#[cfg(doc)]
use super::MsgBuf;
use crate::arena::Inner;
use crate::chunk::Chunk;

/// A counted reference to bytes of a [`MsgBuf`], held by a transmit queue.
///
/// While it exists, the bytes do not change and the memory is not reused (E24, E27).
pub struct TxSeg {
    ptr: NonNull<u8>,
    chunk: NonNull<Chunk>,
    len: u32,
    headroom: u32,
}

const _: () = assert!(size_of::<TxSeg>() == 24 || size_of::<usize>() != 8);

// SAFETY: the bytes are read-only while a `TxSeg` exists, and the count is atomic.
// Test: `buffers_come_back_from_other_threads`, also under miri.
unsafe impl Send for TxSeg {}
// SAFETY: as above. Test: the same.
unsafe impl Sync for TxSeg {}

impl TxSeg {
    /// # Safety
    /// The caller has counted a reference to `chunk` and passes it on. `len` bytes at `ptr` are
    /// data or exposed header room of that buffer, and `headroom` bytes before them are neither
    /// data nor another packet's header room.
    #[inline]
    pub(super) unsafe fn new(
        ptr: NonNull<u8>,
        len: usize,
        headroom: usize,
        chunk: NonNull<Chunk>,
    ) -> Self {
        TxSeg { ptr, chunk, len: len as u32, headroom: headroom as u32 }
    }

    #[inline]
    fn chunk(&self) -> &Chunk {
        // SAFETY: this holds a reference, so the record is alive. Test: `every_drop_order`.
        unsafe { self.chunk.as_ref() }
    }

    /// First byte.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes directly before this piece ([`as_ptr`](Self::as_ptr)) that a transport may use for
    /// lower-layer headers: at least the arena's headroom before a header, 0 before data. Clones
    /// and further pieces of the same header share them.
    #[inline]
    pub fn headroom(&self) -> usize {
        self.headroom as usize
    }
}

/// Drops pieces. Consecutive pieces of one buffer are released together, with two locked
/// instructions in total.
#[inline]
pub(crate) fn drop_segs(segs: impl IntoIterator<Item = TxSeg>) {
    let mut held: Option<TxSeg> = None;
    let mut more = 0;
    for seg in segs {
        match &held {
            Some(one) if one.chunk == seg.chunk => {
                more += 1;
                std::mem::forget(seg); // counted
            }
            _ => {
                drop_with(held.replace(seg), more);
                more = 0;
            }
        }
    }
    drop_with(held, more);
}

/// Drops a piece and releases `more` further references to its buffer.
#[inline]
fn drop_with(seg: Option<TxSeg>, more: u32) {
    if let Some(seg) = seg
        && more > 0
    {
        seg.chunk().release_some(more);
    }
}

impl AsRef<[u8]> for TxSeg {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Deref for TxSeg {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: initialised bytes of a buffer that this keeps alive and unwritten (invariants 2
        // and 3). Test: `random_use_agrees_with_the_model` under miri.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len()) }
    }
}

impl Clone for TxSeg {
    #[inline]
    fn clone(&self) -> Self {
        self.chunk().retain(1);
        TxSeg { ..*self }
    }
}

impl Drop for TxSeg {
    #[inline]
    fn drop(&mut self) {
        if self.chunk().release() {
            // SAFETY: that was the last reference. Test: `every_drop_order`.
            unsafe { Inner::recycle(self.chunk) }
        }
    }
}

impl fmt::Debug for TxSeg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxSeg").field("len", &self.len).field("headroom", &self.headroom).finish()
    }
}
