//! Packet access to message buffers, for the protocol and for transports.

use std::ops::Range;

use super::{HEADER_ROOM, MsgBuf, TxSeg, Unshared};

/// The operations of the protocol and of transports on a [`MsgBuf`]: writing packet headers and
/// taking counted references for transmit queues. It is a separate trait, so that applications, for
/// which the `courser` crate re-exports `MsgBuf`, see only the other methods.
pub trait PacketAccess: Sized {
    /// [`crate::prefetch`] of the first data bytes and of the buffer's record.
    fn prefetch(&self);

    /// The header room of packet `index`, for writing. A shorter header is placed at its end.
    ///
    /// `None` when the buffer has no such packet at its arena's `data_per_packet`, or when a
    /// transmit queue may still read that header: while the buffer is shared, only headers above
    /// the highest one exposed so far can be written.
    fn header_mut(&mut self, index: u32) -> Option<&mut [u8; HEADER_ROOM]>;

    /// The first packet as one piece: the last `header_len` bytes of header room 0 and
    /// `data[..data_len]` directly behind them (E20).
    ///
    /// # Panics
    ///
    /// When `header_len` is above [`HEADER_ROOM`] or `data_len` above `len()`.
    fn first_seg(&mut self, header_len: usize, data_len: usize) -> TxSeg;

    /// A piece of the data. `None` when the range is not within `0..len()`.
    fn data_seg(&self, range: Range<usize>) -> Option<TxSeg>;

    /// Packet `index` in two pieces: the last `header_len` bytes of its header room (E21), and
    /// `range` of the data. Costs at most one locked instruction, only while the buffer is shared
    /// already. `None`, without a change, when the buffer has no such packet, `header_len` is above
    /// [`HEADER_ROOM`], or the range is not within `0..len()`.
    fn packet_segs(
        &mut self,
        index: u32,
        header_len: usize,
        range: Range<usize>,
    ) -> Option<(TxSeg, TxSeg)>;

    /// Converts the buffer to one that cannot be shared.
    ///
    /// # Errors
    /// The buffer itself: a [`TxSeg`] of it is alive.
    fn try_unshare(self) -> Result<Unshared, MsgBuf>;
}
