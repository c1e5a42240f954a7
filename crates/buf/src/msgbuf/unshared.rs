//! Message buffers that are written piecewise.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::MsgBuf;

/// A [`MsgBuf`] without [`TxSeg`](crate::TxSeg)s, of which none can be created.
///
/// The reference count is checked once, by
/// [`PacketAccess::try_unshare`](super::PacketAccess::try_unshare), and not at every write.
pub struct Unshared {
    /// Invariant: holds the only reference to its buffer, and no other is created.
    msg: MsgBuf,
    /// At most the data bytes of `msg`.
    len: u32,
}

impl Unshared {
    /// Converts a buffer that no transmit queue references. The error returns the buffer unchanged.
    #[inline]
    pub(super) fn new(mut msg: MsgBuf) -> Result<Unshared, MsgBuf> {
        match msg.get_mut() {
            Some(data) => Ok(Unshared { len: data.len() as u32, msg }),
            None => Err(msg),
        }
    }

    /// Shortens the writable part to `len` bytes. Does nothing when it is not longer.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        if len < self.len as usize {
            self.len = len as u32;
        }
    }

    /// Makes the writable part `len` bytes long, or all of the buffer's data if that is shorter.
    #[inline]
    pub fn resize(&mut self, len: usize) {
        self.len = len.min(self.msg.len()) as u32;
    }

    /// Makes the writable part longer again, up to `len` bytes of the buffer's data.
    #[inline]
    pub fn lengthen(&mut self, len: usize) {
        self.len = self.len.max(len.min(self.msg.len()) as u32);
    }

    /// Converts back to a buffer with all of its data, for sending.
    #[inline]
    pub fn into_msg(self) -> MsgBuf {
        self.msg
    }

    /// Data capacity.
    pub fn capacity(&self) -> usize {
        self.msg.capacity()
    }
}

impl Deref for Unshared {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: as many initialised bytes of a buffer that this owns. Test:
        // `an_unshared_buffer_is_written_and_sent`, also under miri.
        unsafe { std::slice::from_raw_parts(self.msg.data.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for Unshared {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and no `TxSeg` exists: none did when this was made, and they come from
        // the `MsgBuf` alone, which no other code can access. Test: the same.
        unsafe { std::slice::from_raw_parts_mut(self.msg.data.as_ptr(), self.len as usize) }
    }
}

impl fmt::Debug for Unshared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unshared").field("len", &self.len).field("msg", &self.msg).finish()
    }
}
