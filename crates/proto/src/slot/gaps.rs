//! State of a server slot while packets are missing: the packets that arrived out of order, and
//! several requested parts of the response (ADR 3).

use smallvec::SmallVec;

use crate::loss::{Arrived, Hole, Pools, Receiver, is_kept};
use crate::stats::RxDrop;
use crate::wire::HOLES_REACH;

/// The packets of a request that arrived out of order.
#[derive(Debug)]
enum Tracker {
    Selective(Arrived),
    Melo(Receiver),
}

/// Parts that are stored without an allocation of their own: a client with a small window requests
/// the packets of a response in many parts.
const PARTS: usize = 6;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    /// Tracks the packets of a request that is arriving with missing ones.
    tracker: Option<Tracker>,
    /// Requested parts of the response, after the one that is being sent.
    parts: SmallVec<[(u32, u32); PARTS]>,
}

impl Gaps {
    /// Records an out-of-order packet of a request of `packets` packets, of which those before
    /// `count` have arrived.
    /// # Errors
    /// It is a duplicate, or cannot be tracked.
    pub(crate) fn insert(
        &mut self,
        index: u32,
        count: u32,
        packets: u32,
        pools: Option<&Pools>,
    ) -> Result<(), RxDrop> {
        if index - count >= HOLES_REACH {
            return Err(RxDrop::OutOfOrder);
        }
        let tracker = self.tracker.get_or_insert_with(|| match pools {
            Some(pools) => Tracker::Melo(Receiver::new(count, &pools.rx)),
            None => Tracker::Selective(Arrived::new(count, packets)),
        });
        match tracker {
            Tracker::Selective(arrived) => {
                if arrived.insert(index) {
                    Ok(())
                } else {
                    Err(RxDrop::Duplicate)
                }
            }
            Tracker::Melo(receiver) => is_kept(receiver.on_packet(index)),
        }
    }

    /// The next packet in order has arrived; returns the number in order.
    pub(crate) fn advance(&mut self, count: u32) -> u32 {
        match &mut self.tracker {
            None => count + 1,
            Some(Tracker::Selective(arrived)) => {
                arrived.insert(count);
                arrived.in_order(count)
            }
            Some(Tracker::Melo(receiver)) => {
                receiver.on_packet(count);
                receiver.rcv_nxt()
            }
        }
    }

    /// Returns whether no packet beyond the first `count` has arrived, and the next one need not be
    /// recorded here: the bitmap keeps only packets that arrive early, MELO's receiver all of them.
    #[inline]
    pub(crate) fn is_in_order(&self, count: u32) -> bool {
        match &self.tracker {
            None => true,
            Some(Tracker::Selective(arrived)) => arrived.high() <= count,
            Some(Tracker::Melo(_)) => false,
        }
    }

    /// One past the newest packet that has arrived, if that is beyond `count`.
    pub(crate) fn high(&self, count: u32) -> Option<u32> {
        let high = match self.tracker.as_ref()? {
            Tracker::Selective(arrived) => arrived.high(),
            Tracker::Melo(receiver) => receiver.rcv_high(),
        };
        (high > count).then_some(high)
    }

    /// The missing packets, most recent first: all of them, or the three that MELO tracks.
    pub(crate) fn holes(&self, count: u32) -> impl Iterator<Item = Hole> + '_ {
        let (all, tracked) = match &self.tracker {
            Some(Tracker::Selective(arrived)) => (Some(arrived.holes(count)), None),
            Some(Tracker::Melo(receiver)) => (None, Some(receiver.holes())),
            None => (None, None),
        };
        all.into_iter().flatten().chain(tracked.into_iter().flatten())
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let tracked = match &self.tracker {
            Some(Tracker::Selective(arrived)) => arrived.heap_bytes(),
            Some(Tracker::Melo(_)) | None => 0,
        };
        let parts = if self.parts.spilled() { self.parts.capacity() } else { 0 };
        size_of::<Gaps>() + tracked + parts * size_of::<(u32, u32)>()
    }

    /// Discards the state of an earlier or answered request.
    pub(crate) fn forget(&mut self) {
        self.tracker = None;
        self.parts.clear();
    }

    /// Adds a requested part, while `due` packets are to be sent. At most `limit` packets are owed
    /// in total: an honest client has a credit for each.
    pub(crate) fn request_part(&mut self, first: u32, end: u32, due: u32, limit: u32) {
        let owed: u32 = self.parts.iter().map(|(first, end)| end - first).sum();
        if owed + due + (end - first) <= limit {
            self.parts.push((first, end));
        }
    }

    /// Returns whether these packets are in a requested part.
    pub(crate) fn owes_part(&self, first: u32, end: u32) -> bool {
        self.parts.iter().any(|part| first >= part.0 && end <= part.1)
    }

    /// The part to send next.
    pub(crate) fn next_part(&mut self) -> Option<(u32, u32)> {
        (!self.parts.is_empty()).then(|| self.parts.remove(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_in_order_again_when_its_gap_is_filled() {
        let mut gaps = Gaps::default();
        assert!(gaps.is_in_order(2));
        // Packets 2 and 5 of 9 are missing.
        for index in [3, 4, 6] {
            assert!(gaps.insert(index, 2, 9, None).is_ok());
        }
        assert_eq!((gaps.advance(2), gaps.is_in_order(5)), (5, false));
        assert_eq!((gaps.advance(5), gaps.is_in_order(7)), (7, true));
        assert_eq!((gaps.advance(7), gaps.high(8)), (8, None));
    }

    #[test]
    fn a_second_gap_is_found_after_packets_that_were_not_recorded() {
        let mut gaps = Gaps::default();
        assert!(gaps.insert(2, 1, 200, None).is_ok());
        assert_eq!(gaps.advance(1), 3);
        // Packets 3 to 99 arrive in order.
        assert!(gaps.is_in_order(100));
        assert!(gaps.insert(101, 100, 200, None).is_ok() && !gaps.is_in_order(100));
        assert_eq!(gaps.holes(100).map(|h| (h.first, h.len)).collect::<Vec<_>>(), [(100, 1)]);
        assert_eq!((gaps.advance(100), gaps.is_in_order(102)), (102, true));
    }
}
