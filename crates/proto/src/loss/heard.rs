//! What a frame tells a client of the packets that it answers, and what that shows of the path.

use crate::wire::Holes;

/// The frame at hand, as far as it tells when what it answers was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    pub(crate) now_ns: u64,
    /// The shortest time that a packet can be under way to cause this frame.
    pub(crate) round_trip_ns: u64,
    /// The reorder window.
    pub(crate) window_ns: u64,
}

/// What an arrival has shown of the path. Counts end at 65,535: more packets than that are never on
/// their way at a time, and every packet that arrives is asked whether there is anything here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Seen {
    /// The most that a packet was later than one that was sent after it, ns.
    pub(crate) late_ns: u64,
    /// Packets that were found lost.
    pub(crate) lost: u16,
    /// Packets that were sent again, and whose first copy has arrived.
    pub(crate) spurious: u16,
    /// Of these, packets that the reorder window was too short for.
    pub(crate) hasty: u16,
    /// Retransmissions that were needed.
    pub(crate) useful: u16,
}

const _: () = assert!(size_of::<Seen>() == 16, "two words to compare");

impl Seen {
    pub(crate) fn add_lost(&mut self, count: u32) {
        self.lost = self.lost.saturating_add(u16::try_from(count).unwrap_or(u16::MAX));
    }
}

/// What a negative acknowledgement says, besides how many packets have arrived in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nack<'f> {
    /// Packets that have arrived in order.
    pub(crate) count: u32,
    /// One past the newest packet that has arrived.
    pub(crate) high: u32,
    pub(crate) holes: Holes<'f>,
    /// The last packet of the request: it keeps its credit until the response comes.
    pub(crate) last: u32,
}
