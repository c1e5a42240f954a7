//! Going back on a NACK at a client slot: [`Recovery::GoBackNNack`](crate::Recovery::GoBackNNack) and
//! [`Recovery::GoBackZero`](crate::Recovery::GoBackZero).
//!
//! Except with the latter, a slot goes back at most once to each packet of a message, in ascending
//! order, so that repeated or forged NACKs cause no more retransmissions than the message has packets.

use super::{ClientSlot, Single};
use crate::stats::RxDrop;
use crate::wire::Holes;

impl<C> ClientSlot<C> {
    /// Handles a NACK for the packets of the request from its first hole on, or for all of them
    /// (`from_first`); returns the freed credits.
    pub(crate) fn on_gap_nack(
        &mut self,
        count: u32,
        high: u32,
        holes: Holes<'_>,
        from_first: bool,
    ) -> Result<u32, RxDrop> {
        if high > self.req_high || high > self.req_packets || count >= self.req_packets {
            return Err(RxDrop::Inconsistent);
        }
        let missing = holes.iter().last().ok_or(RxDrop::Inconsistent)?.first;
        if from_first && self.resp_rcvd == 0 && !self.parked && missing < self.req_sent {
            return Ok(self.restart_request());
        }
        // Packets that were rolled back are sent again in any case.
        let is_in_flight = (self.req_acked..self.req_sent).contains(&missing);
        if self.resp_rcvd > 0 || self.parked || !is_in_flight || self.went_back > missing {
            return Err(RxDrop::Duplicate);
        }
        let before = self.in_flight();
        self.single = Single::No;
        self.acknowledge(count);
        self.went_back = missing + 1;
        self.req_sent = missing;
        Ok(before - self.in_flight())
    }

    /// Sends the request from its first packet again; returns the freed credits.
    fn restart_request(&mut self) -> u32 {
        let credits = self.in_flight();
        self.single = Single::No;
        (self.req_acked, self.req_sent) = (0, 0);
        credits
    }

    /// A timeout with go-back-0: the request is sent from its first packet again, but from the first
    /// unacknowledged one while the server is known to have the others. Returns the freed credits.
    ///
    /// A duplicate of the first packet makes the server begin again without the client's knowledge.
    /// So acknowledgements of all packets but the last prove nothing once a retransmission of the
    /// last one has no answer either.
    pub(crate) fn restart(&mut self, now_ns: u64) -> u32 {
        let only_last = self.req_acked + 1 == self.req_packets && self.retries == 0;
        // The server has stated that it keeps what has arrived.
        let is_kept = self.parked || self.awaits_grant() && self.was_answered(now_ns);
        if self.resp_packets > 0 || only_last || is_kept {
            return self.roll_back();
        }
        self.restart_request()
    }

    /// Returns whether a packet of the server for this request has arrived since the last transmission.
    fn was_answered(&self, now_ns: u64) -> bool {
        let silent_ns = now_ns.saturating_sub(self.last_rx_ns);
        silent_ns < u64::from(self.age_of_retry(now_ns))
    }

    /// A packet of the response has arrived behind a gap: all packets from the first missing one on
    /// are to be requested again. Returns the freed credits; `None`: they were already.
    pub(crate) fn go_back_in_response(&mut self) -> Option<u32> {
        let is_in_flight = self.resp_rcvd > 0 && self.resp_requested > self.resp_rcvd;
        if !is_in_flight || self.went_back > self.resp_rcvd {
            return None;
        }
        let before = self.in_flight();
        self.went_back = self.resp_rcvd + 1;
        self.resp_requested = self.resp_rcvd;
        Some(before - self.in_flight())
    }
}
