//! Going back on a NACK at a client slot: [`Recovery::GoBackNNack`](crate::Recovery::GoBackNNack).
//!
//! A slot goes back at most once to each packet of a message, in ascending order, so that repeated or
//! forged NACKs cause no more retransmissions than the message has packets.

use super::{ClientSlot, Single};
use crate::stats::RxDrop;
use crate::wire::Holes;

impl<C> ClientSlot<C> {
    /// Handles a NACK for the packets of the request from its first hole on; returns the freed
    /// credits.
    pub(crate) fn on_gap_nack(
        &mut self,
        count: u32,
        high: u32,
        holes: Holes<'_>,
    ) -> Result<u32, RxDrop> {
        if high > self.req_high || high > self.req_packets || count >= self.req_packets {
            return Err(RxDrop::Inconsistent);
        }
        let missing = holes.iter().last().ok_or(RxDrop::Inconsistent)?.first;
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
