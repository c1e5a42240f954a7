//! MELO: selective retransmission in constant memory `[MELO §3]` (M1-M20).
//!
//! Y. Lu et al., *Memory Efficient Loss Recovery for Hardware-based Transport in Datacenter*,
//! APNet 2017. Selective retransmission needs a record of the packets that have arrived. A bitmap
//! per connection would dominate the connection state; but the packets in flight to a host are
//! bounded by bandwidth x RTT, whatever the number of connections. So the connections share the
//! bits:
//!
//! - [`pool`]: `BitsPool`, the bits of one side in blocks, with a stack of free blocks;
//! - `chain`: a connection's bitmap, a linked list of blocks, accessed at its front and end;
//! - [`reorder`]: [`Reorder`], the receiver's state of a connection, and the content of a NACK;
//! - [`sender`]: [`SenderMap`], the same bitmap, rebuilt by the sender from NACKs.
//!
//! Data and metadata are separate (M1): no access to packet data here. A connection of the paper is
//! one message in flight here, and a PSN is a packet index (ADR 2). The modules are pure data
//! structures: no clock, no I/O, no allocation after creation except in [`Reorder::swap_out`].
//! Input from a peer is checked.
//!
//! Repair of a loss: a packet above RCV.HIGH leaves a hole, and the receiver immediately sends a
//! NACK with its three most recent holes (M11, M12). The sender marks the received packets and
//! retransmits the holes, each once and in order (M13, M14). They arrive in order, each at the
//! front of the receiver's bitmap. If one is lost again, those after it may need blocks in the
//! middle and are dropped, and the sender's timeout restarts from the front (M10, M15). When the
//! pool is exhausted, packets that need a block are dropped likewise (M16). A packet at RCV.NXT
//! never needs one, so resending from the front always makes progress.

mod chain;
pub(crate) mod pool;
pub(crate) mod reorder;
pub(crate) mod sender;

#[cfg(test)]
mod tests;

pub(crate) use reorder::{Arrival, Reorder};
pub(crate) use sender::SenderMap;

/// Most holes in a NACK, and most that a receiver tracks (M12).
pub(crate) const HOLES: usize = 3;

/// Highest PSN: one past it still fits three bytes. More than the 2^20 packets of a message.
pub(crate) const MAX_PSN: u32 = (1 << 24) - 2;

// The start of a tracked hole is stored modulo 2^16, relative to RCV.NXT. No bitmap is longer: a
// packet more than 65,535 ahead of RCV.NXT needs more blocks than exist and is rejected.
const _: () = assert!(pool::MAX_BITS <= u16::MAX as u32);

/// A run of missing packets between received ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)] // an example includes the module without its exports
pub struct Hole {
    /// First missing packet.
    pub first: u32,
    /// Number of missing packets, at least 1.
    pub len: u32,
}
