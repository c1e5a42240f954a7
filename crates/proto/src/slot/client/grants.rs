//! Credit returns and grants at a client slot (E42, ADR 4, ADR 35).

use super::{ClientSlot, Single};
use crate::budget::Grant;
#[allow(unused_imports)] // for the documentation
use crate::budget::NO_MESSAGE;
use crate::loss::{AckInfo, LossFeedback, Nack};
use crate::stats::RxDrop;
use crate::wire::Holes;

impl<C> ClientSlot<C> {
    /// Handles a credit return for `count` packets; returns the freed credits.
    pub(crate) fn on_credit_return(
        &mut self,
        count: u32,
        in_progress: bool,
        grant: Grant,
        ack: AckInfo,
        feedback: &mut LossFeedback,
    ) -> Result<u32, RxDrop> {
        if count > self.req_high || count >= self.req_packets {
            return Err(RxDrop::Inconsistent);
        }
        if self.resp_rcvd > 0 {
            return Err(RxDrop::Duplicate);
        }
        if in_progress {
            // Progress even without new credits: with its handler (ADR 5), or waiting for a grant.
            let is_whole = count + 1 == self.req_packets;
            if !is_whole && (grant.packets().is_none() || count >= self.req_high) {
                return Err(RxDrop::Inconsistent);
            }
            if count < self.req_acked {
                return Err(RxDrop::Duplicate); // late
            }
        } else if count < self.req_acked || count == self.req_acked && !self.is_more(grant) {
            return Err(RxDrop::Duplicate);
        }
        self.take_grant(grant);
        let before = self.in_flight();
        self.single = Single::No;
        self.acknowledge(count);
        if let Some(board) = &mut self.board {
            let in_order = board.in_order(count, ack, feedback);
            self.req_acked = in_order.max(count).min(self.req_packets - 1);
            self.take_counts();
        }
        // A server that acknowledges all that it has granted owes no further credit return, so no
        // grant would follow. Only a faulty one does that, or a flipped bit in the grant.
        self.granted = self.granted.max(self.req_acked + 1);
        if in_progress && self.has_only_last_in_flight() {
            (self.parked, self.idle) = (true, self.idle + 1);
        }
        Ok(before.saturating_sub(self.in_flight()))
    }

    /// Handles a negative acknowledgement; returns the freed credits. It may be older than an
    /// earlier one: arrivals are never revoked.
    pub(crate) fn on_nack(
        &mut self,
        count: u32,
        high: u32,
        holes: Holes<'_>,
        ack: AckInfo,
        feedback: &mut LossFeedback,
    ) -> Result<u32, RxDrop> {
        if high > self.req_high || high > self.req_packets || count >= self.req_packets {
            return Err(RxDrop::Inconsistent);
        }
        if self.resp_rcvd > 0 {
            return Err(RxDrop::Duplicate);
        }
        let before = self.in_flight();
        let last = self.req_packets - 1;
        let board = self.board.as_mut().ok_or(RxDrop::Inconsistent)?;
        let mut news = false;
        // After a timeout that has rolled back, the server may be ahead of the retransmissions:
        // then only the count in order applies.
        let in_order = if high <= self.req_sent {
            let nack = Nack { count, high, holes, last };
            let (in_order, is_news) = board.on_nack(nack, ack, feedback)?;
            news = is_news;
            in_order
        } else {
            board.in_order(count, ack, feedback)
        };
        self.acknowledge(count.max(in_order).min(last));
        self.take_counts();
        let credits = before.saturating_sub(self.in_flight());
        if news || credits > 0 { Ok(credits) } else { Err(RxDrop::Duplicate) }
    }

    /// Returns whether the request is with its handler, and holds no credit: the server has stated
    /// it. The response may take long, and what is on no wire must not keep others from sending.
    pub(crate) fn is_parked(&self) -> bool {
        self.parked
    }

    /// The last packet is to be sent again.
    pub(super) fn unpark(&mut self) {
        self.idle -= u32::from(std::mem::take(&mut self.parked));
    }

    /// Returns whether a grant allows more than the slot may send.
    fn is_more(&self, grant: Grant) -> bool {
        grant.packets().unwrap_or(u32::MAX) > self.granted
    }

    /// Takes a grant for the request. It never falls below what was sent.
    fn take_grant(&mut self, grant: Grant) {
        self.granted = match grant.packets() {
            None => u32::MAX,
            Some(packets) if self.granted == u32::MAX => packets.max(self.req_high),
            Some(packets) => packets.max(self.granted),
        };
    }

    /// Returns whether all packets of the request that the server has granted were sent.
    pub(crate) fn awaits_grant(&self) -> bool {
        self.granted <= self.req_sent && self.req_sent < self.req_packets
    }

    /// Returns whether all was sent, and only the last packet is not acknowledged: the
    /// response does that.
    pub(crate) fn has_only_last_in_flight(&self) -> bool {
        self.resp_rcvd == 0 && self.req_sent == self.req_packets && self.in_flight() == 1
    }

    /// A request of several packets begins: `packets` of it may be sent before the server answers.
    pub(crate) fn limit_unscheduled(&mut self, packets: u32) {
        if self.req_high == 0 && self.req_packets > 1 && !self.is_held() {
            self.granted = packets;
        }
    }

    /// Sends nothing of a request of several packets that was not sent yet.
    pub(crate) fn hold(&mut self) {
        debug_assert!(self.has_several_packets() && self.req_high == 0);
        self.granted = 0;
    }

    /// Returns whether the slot is held back.
    pub(crate) fn is_held(&self) -> bool {
        self.active && self.has_several_packets() && self.req_high == 0 && self.granted == 0
    }

    /// The request may be sent.
    pub(crate) fn end_hold(&mut self) {
        self.granted = u32::MAX;
    }

    /// Returns whether the request has several packets.
    pub(crate) fn has_several_packets(&self) -> bool {
        self.req_packets > 1
    }

    /// Sets the packets of the response that this endpoint's budget allows.
    pub(crate) fn grant_response(&mut self, packets: u32) {
        self.granted = packets;
    }

    /// Number of the response in this endpoint's budget, or [`NO_MESSAGE`].
    pub(crate) fn message(&self) -> u32 {
        self.message
    }

    /// Replaces the number of the response in the budget; returns the one before.
    pub(crate) fn set_message(&mut self, message: u32) -> u32 {
        std::mem::replace(&mut self.message, message)
    }

    /// Returns whether its path counts this slot as one that awaits a grant.
    pub(crate) fn is_awaiting(&self) -> bool {
        self.awaiting
    }

    /// Updates that, from the slot's state. Returns whether it has changed.
    pub(crate) fn update_awaiting(&mut self) -> bool {
        let awaits = self.active && self.awaits_grant() && self.in_flight() > 0;
        std::mem::replace(&mut self.awaiting, awaits) != awaits
    }
}
