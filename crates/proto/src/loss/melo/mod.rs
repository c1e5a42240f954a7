//! MELO: selective retransmission in constant memory `[MELO §3]` (M1-M20).
//!
//! Y. Lu et al., *Memory Efficient Loss Recovery for Hardware-based Transport in Datacenter*,
//! APNet 2017. Selective retransmission needs to know which packets have arrived. A bitmap for each
//! connection would cost most of a connection's state; but the packets in flight to a host are
//! bounded by bandwidth x RTT, however many connections share it. So the bits are shared, too:
//!
//! - [`pool`]: `BitsPool`, the bits of one side in blocks of eight, with its stack of free blocks;
//! - `chain`: a connection's bitmap, a linked list of blocks, touched at its front and its end;
//! - [`reorder`]: [`Reorder`], what a receiver keeps of each connection, and what a NACK says;
//! - [`sender`]: [`SenderMap`], the same bitmap rebuilt by the sender from NACKs.
//!
//! Data and metadata are apart (M1): nothing here knows where a packet's bytes are. A connection of
//! the paper is here one message in flight, and a PSN is a packet's index in it (F2). The modules
//! are data structures only: no clock, no I/O, no allocation after their creation but for
//! [`Reorder::swap_out`], and what they are told by a peer is checked.
//!
//! How a loss is repaired: a packet above RCV.HIGH leaves a hole, and the receiver sends a NACK at
//! once, with its three most recent holes (M11, M12). The sender marks what the NACK says was
//! received and retransmits the holes, each once and in order (M13, M14). They arrive in order, each
//! at the front of the receiver's bitmap. When one is lost again, those behind it may need blocks in
//! the middle and are dropped, and the sender's timeout starts over from the front (M10, M15). When
//! the pool is exhausted, what would need a block is dropped in the same way (M16); a packet at
//! RCV.NXT never needs one, so that resending from the front always makes progress.

mod chain;
pub(crate) mod pool;
pub(crate) mod reorder;
pub(crate) mod sender;

#[cfg(test)]
mod tests;

pub(crate) use pool::MeloPool;
pub(crate) use reorder::{Arrival, Reorder};
pub(crate) use sender::SenderMap;

/// Holes that a NACK carries at most, and that a receiver tracks (M12).
pub(crate) const HOLES: usize = 3;

/// Highest PSN: one past it still fits three bytes. More than the 2^20 packets of a message.
pub(crate) const MAX_PSN: u32 = (1 << 24) - 2;

// A tracked hole's start is kept modulo 2^16, from RCV.NXT on. No bitmap reaches so far: a packet
// that is more than 65,535 ahead of RCV.NXT needs more blocks than there are, and is refused.
const _: () = assert!((u8::MAX as u32) * pool::BLOCK_BITS <= u16::MAX as u32);

/// Packets that are missing, one after the other, between packets that are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)] // an example has the module without what exports it
pub struct Hole {
    /// The first of them.
    pub first: u32,
    /// How many; at least 1.
    pub len: u32,
}
