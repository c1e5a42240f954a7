//! Input and output of the scoreboards: the received acknowledgement, and the feedback on the path.

use crate::wire::Holes;

/// Timing of the current frame, needed to match it with the transmissions that it acknowledges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckInfo {
    pub(crate) now_ns: u64,
    /// The shortest time after which a packet can cause this frame.
    pub(crate) round_trip_ns: u64,
    /// The reordering window.
    pub(crate) window_ns: u64,
}

/// Evidence of acknowledgements about the path. Counts saturate at 65,535, more than are ever in
/// flight. Two words, since the hot path compares it with the empty value for every packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LossFeedback {
    /// Largest time by which a packet arrived after one that was sent later, ns.
    pub(crate) late_ns: u64,
    /// Packets found lost.
    pub(crate) lost: u16,
    /// Retransmissions whose first copy has arrived.
    pub(crate) spurious: u16,
    /// Spurious retransmissions caused by a reordering window that was too short.
    pub(crate) early: u16,
    /// Retransmissions that were necessary.
    pub(crate) useful: u16,
}

const _: () = assert!(size_of::<LossFeedback>() == 16, "two words to compare");

impl LossFeedback {
    pub(crate) fn add_lost(&mut self, count: u32) {
        self.lost = self.lost.saturating_add(u16::try_from(count).unwrap_or(u16::MAX));
    }
}

/// The content of a negative acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nack<'f> {
    /// Number of packets received in order.
    pub(crate) count: u32,
    /// One past the newest packet received.
    pub(crate) high: u32,
    pub(crate) holes: Holes<'f>,
    /// The last packet of the request: it keeps its credit until the response arrives.
    pub(crate) last: u32,
}
