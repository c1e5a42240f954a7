//! What a client knows of the packets of one message that it has sent or asked for, with
//! [`Recovery::Melo`]. For a request it is MELO's sender; for a response it is the receiver, whose
//! NACK is to ask again, and which needs no map of what it knows itself (F3).
//!
//! [`Recovery::Melo`]: super::Recovery::Melo

use super::melo::{Arrival, HOLES, Hole};
use super::pooled::{Pools, Receiver, Sender};
use super::resend::Resend;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct MeloBoard {
    request: Sender,
    response: Receiver,
    /// Of a request: its last packet, which only the response acknowledges.
    last: u32,
    /// Packets that have arrived out of order.
    arrived: u32,
    /// Packets that were found lost and were not sent again yet. None of them is known to have
    /// arrived.
    resend: Resend,
}

impl MeloBoard {
    /// For a request of so many packets, of which none was sent, or, if `in_order` is not 0, for a
    /// response of which so many have arrived.
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

    /// A packet is sent: if it was lost, it is so no more.
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

    /// A NACK of the request; `false`: no receiver sends that.
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
        // Found lost before, and arrived after all.
        self.resend.retain(|index| !self.request.is_received(index));
        while let Some(hole) = self.request.next_lost() {
            self.resend.push(hole);
        }
        true
    }

    /// A packet of the response has arrived: how many are in order then.
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

    /// The first hole was not filled in time: all that is missing is sent again, from the front
    /// (M15). What is behind the newest packet known to have arrived may still be on its way; if the
    /// timeout comes `again`, or nothing is known to be missing, that is sent again as well: from the
    /// packet on that it gives.
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
