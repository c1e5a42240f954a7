//! The invariants of a client slot.

use super::{ClientSlot, Single};

impl<C> ClientSlot<C> {
    /// Checks the invariants; for debug builds and simulations.
    pub(crate) fn check(&self) {
        assert!(!self.active || !(self.quarantined || self.queued_ahead));
        if self.active {
            assert!(self.req_acked <= self.req_sent && self.req_sent <= self.req_packets);
            assert!(
                self.resp_rcvd <= self.resp_requested && self.resp_requested <= self.resp_packets
            );
            assert!(self.resp_rcvd == 0 || self.req_acked == self.req_packets, "invariant 2");
            let idle = self.board.as_ref().map_or((0, 0), |b| b.idle_and_lost());
            let idle = (idle.0 + u32::from(self.parked), idle.1);
            assert_eq!((self.idle, self.lost), idle, "invariant 4");
            self.board.iter().for_each(|board| board.check());
        } else {
            assert!(self.board.is_none());
            assert_eq!(self.single, Single::No);
            assert_eq!((self.in_flight(), self.expires_ns), (0, u64::MAX));
            assert!(self.req.is_none() && self.cont.is_none() && self.went_back == 0);
            assert!(!self.parked);
            assert_eq!((self.resp_packets, self.resp_rcvd), (0, 0), "counts of a free slot");
            assert_eq!((self.resp_requested, self.resp_high), (0, 0), "counts of a free slot");
        }
        let asked = (self.req_packets, self.resp_high, self.resp_packets);
        let sent = (self.req_acked, self.req_sent, self.req_high, self.queued);
        match self.single {
            Single::No => {}
            Single::Unsent => assert_eq!((asked, self.req_high), ((1, 0, 0), 0)),
            Single::Sent => assert_eq!((asked, sent), ((1, 0, 0), (0, 1, 1, false))),
        }
    }

    /// Returns whether the timers cover this slot with a call by the time at which it has to be
    /// checked.
    pub(crate) fn is_timed(&self) -> bool {
        let waits_until = match self.single {
            // A timeout after its transmission: as long as that of the path at that time.
            Single::Sent => u64::MAX - 1,
            _ if self.in_flight() > 0 || self.parked => self.deadline_ns,
            _ => u64::MAX,
        };
        self.tracked || self.timer_ns <= self.expires_ns.min(waits_until)
    }
}
