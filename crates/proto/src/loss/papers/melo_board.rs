//! The scoreboard of one message of a client slot with [`Recovery::Melo`]. For a request it is
//! MELO's sender state. For a response it is MELO's receiver state: the client itself requests the
//! missing packets, so no bitmap of a sender is needed (ADR 3).
//!
//! [`Recovery::Melo`]: crate::Recovery::Melo

use super::melo::{Arrival, HOLES, Hole};
use super::pooled::{Pools, Receiver, Sender};
use crate::loss::resend::Resend;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct MeloBoard {
    request: Sender,
    response: Receiver,
    /// The last packet of a request, which only the response acknowledges.
    last: u32,
    /// Packets that arrived out of order.
    arrived: u32,
    /// Lost packets that were not retransmitted yet. None of them is known to have arrived.
    resend: Resend,
}

impl MeloBoard {
    /// For a request of `req_packets` packets, none of them sent; or, if `in_order` is not 0, for a
    /// response with `in_order` packets received.
    pub(crate) fn new(pools: &Pools, req_packets: u32, in_order: u32) -> Self {
        MeloBoard {
            request: Sender::new(&pools.tx),
            response: Receiver::new(in_order, &pools.rx),
            last: req_packets - 1,
            arrived: 0,
            resend: Resend::default(),
        }
    }

    /// The first packet of the response has arrived.
    pub(crate) fn begin_response(&mut self) {
        self.request.release();
        self.resend.clear();
        self.arrived = 0;
        self.response.on_packet(0);
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.resend.heap_bytes()
    }

    pub(crate) fn lost(&self) -> u32 {
        self.resend.count()
    }

    pub(crate) fn arrived(&self) -> u32 {
        self.arrived
    }

    /// Records a transmission; a lost packet is in flight again.
    pub(crate) fn sent(&mut self, index: u32) {
        self.resend.sent(index);
    }

    pub(crate) fn next_lost(&self) -> Option<Hole> {
        self.resend.next()
    }

    /// The request's packets below `count` have arrived.
    pub(crate) fn in_order(&mut self, count: u32) {
        self.request.on_ack(count);
        self.arrived = self.request.known_before(self.last);
        self.resend.trim(count);
    }

    /// Takes a NACK of the request; `false`: no receiver sends this content.
    pub(crate) fn on_nack(
        &mut self,
        count: u32,
        high: u32,
        holes: impl Iterator<Item = Hole>,
    ) -> bool {
        let mut told = [Hole { first: 0, len: 0 }; HOLES];
        let told = {
            let most = told.iter_mut().zip(holes).map(|(out, hole)| *out = hole).count();
            told.get(..most).unwrap_or_default()
        };
        if !self.request.on_nack(count, high, told) {
            return false;
        }
        self.in_order(count);
        // Found lost before, but has arrived.
        self.resend.retain(|index| !self.request.is_received(index));
        while let Some(hole) = self.request.next_lost() {
            self.resend.push(hole);
        }
        true
    }

    /// Records a response packet; returns the number of packets in order.
    pub(crate) fn on_response(&mut self, index: u32) -> (Arrival, u32) {
        let before = self.response.rcv_nxt();
        let arrival = self.response.on_packet(index);
        let now = self.response.rcv_nxt();
        match arrival {
            Arrival::InOrder => {
                self.arrived -= now - before - 1;
                self.resend.trim(now);
            }
            Arrival::OutOfOrder { new_hole } => {
                self.arrived += 1;
                self.resend.remove(index);
                let hole = if new_hole { self.response.holes().next() } else { None };
                if let Some(hole) = hole {
                    self.resend.push(hole);
                }
            }
            Arrival::Duplicate | Arrival::Middle | Arrival::NoBits => {}
        }
        (arrival, now)
    }

    /// A timeout: all missing packets are sent again, from the front (M15). Packets beyond the
    /// newest one received may still be in flight. After a repeated timeout (`again`), or if
    /// nothing is known to be missing, they are sent again too, from the returned packet on.
    pub(crate) fn time_out(&mut self, is_response: bool, again: bool) -> Option<u32> {
        self.resend.clear();
        let high = if is_response {
            for index in self.response.all_missing() {
                self.resend.push(Hole { first: index, len: 1 });
            }
            self.response.rcv_high()
        } else {
            let high = self.request.restart();
            while let Some(hole) = self.request.next_lost() {
                self.resend.push(hole);
            }
            self.arrived = self.request.known_before(self.last);
            high
        };
        (again || self.lost() == 0).then_some(high)
    }
}

#[cfg(test)]
mod tests;
