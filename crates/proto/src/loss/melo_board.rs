//! What a client knows of the packets of one message that it has sent or asked for, with
//! [`Recovery::Melo`]. For a request it is MELO's sender; for a response it is the receiver, whose
//! NACK is to ask again, and which needs no map of what it knows itself (F3).
//!
//! [`Recovery::Melo`]: super::Recovery::Melo

use std::collections::VecDeque;

use super::melo::{Arrival, HOLES, Hole};
use super::pooled::{Pools, Receiver, Sender};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct MeloBoard {
    request: Sender,
    response: Receiver,
    /// Of a request: its last packet, which only the response acknowledges.
    last: u32,
    /// Packets that have arrived out of order.
    arrived: u32,
    /// Packets that were found lost and were not sent again yet, in order, and how many.
    resend: VecDeque<Hole>,
    lost: u32,
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
            resend: VecDeque::new(),
            lost: 0,
        }
    }

    /// The first packet of the response has arrived.
    pub(crate) fn begin_response(&mut self) {
        self.request.release();
        self.resend.clear();
        (self.arrived, self.lost) = (0, 0);
        self.response.on_packet(0);
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.resend.capacity() * size_of::<Hole>()
    }

    pub(crate) fn lost(&self) -> u32 {
        self.lost
    }

    pub(crate) fn arrived(&self) -> u32 {
        self.arrived
    }

    /// A packet is sent: if it was lost, it is so no more.
    pub(crate) fn sent(&mut self, index: u32) {
        let Some(run) = self.resend.front_mut().filter(|run| run.first == index) else { return };
        (run.first, run.len) = (run.first + 1, run.len - 1);
        self.lost -= 1;
        if run.len == 0 {
            self.resend.pop_front();
        }
    }

    pub(crate) fn next_lost(&self) -> Option<Hole> {
        self.resend.front().copied()
    }

    /// Packets below `count` need not be sent again.
    fn trim(&mut self, count: u32) {
        while let Some(run) = self.resend.front_mut().filter(|run| run.first < count) {
            let below = run.len.min(count - run.first);
            (run.first, run.len) = (run.first + below, run.len - below);
            self.lost -= below;
            if run.len > 0 {
                break;
            }
            self.resend.pop_front();
        }
    }

    /// Of `sent` packets that are not in order, some have arrived, and others are lost. Where packets
    /// overtake each other one may be in both counts: found lost, arrived after all, and not sent
    /// again yet. Then the first of the lost ones are not.
    pub(crate) fn settle(&mut self, sent: u32) {
        let mut excess = (self.arrived + self.lost).saturating_sub(sent).min(self.lost);
        self.lost -= excess;
        while let Some(run) = self.resend.front_mut().filter(|_| excess > 0) {
            let part = run.len.min(excess);
            (run.first, run.len) = (run.first + part, run.len - part);
            excess -= part;
            if run.len > 0 {
                break;
            }
            self.resend.pop_front();
        }
    }

    /// A packet has arrived: if it was found lost, it is not sent again.
    fn found(&mut self, index: u32) {
        for run in std::mem::take(&mut self.resend) {
            for lost in run.first..run.first + run.len {
                if lost == index {
                    self.lost -= 1;
                } else {
                    self.resend_later(lost);
                }
            }
        }
    }

    /// Adds a packet to those that are to be sent again, which are in order.
    fn resend_later(&mut self, index: u32) {
        match self.resend.back_mut() {
            Some(run) if run.first + run.len == index => run.len += 1,
            _ => self.resend.push_back(Hole { first: index, len: 1 }),
        }
    }

    fn add_lost(&mut self, hole: Hole) {
        self.lost += hole.len;
        self.resend.push_back(hole);
    }

    /// The request's packets below `count` have arrived.
    pub(crate) fn in_order(&mut self, count: u32) {
        self.request.on_ack(count);
        self.arrived = self.request.known_before(self.last);
        self.trim(count);
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
        for run in std::mem::take(&mut self.resend) {
            for index in run.first..run.first + run.len {
                if self.request.is_received(index) {
                    self.lost -= 1;
                } else {
                    self.resend_later(index);
                }
            }
        }
        while let Some(hole) = self.request.next_lost() {
            self.add_lost(hole);
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
                self.trim(now);
            }
            Arrival::OutOfOrder { new_hole } => {
                self.arrived += 1;
                self.found(index);
                let hole = if new_hole { self.response.holes().next() } else { None };
                if let Some(hole) = hole {
                    self.add_lost(hole);
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
        self.lost = 0;
        let high = if is_response {
            for index in self.response.all_missing() {
                self.lost += 1;
                self.resend_later(index);
            }
            self.response.rcv_high()
        } else {
            let high = self.request.restart();
            while let Some(hole) = self.request.next_lost() {
                self.add_lost(hole);
            }
            self.arrived = self.request.known_before(self.last);
            high
        };
        (again || self.lost == 0).then_some(high)
    }
}

#[cfg(test)]
mod tests;
