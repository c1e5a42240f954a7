//! The retransmission scoreboard of one message with [`Recovery::Selective`]. It tracks the packets
//! of the request, then those of the response. A requested response packet counts as "sent".
//!
//! # States of a packet
//! ```text
//! sent -> arrived
//!   |-> lost -> sent again -> arrived
//!       |-> arrived (it was only late)    |-> lost ...
//! ```
//! A packet is lost when another packet, sent more than a reordering window later, has arrived. The
//! rule applies to retransmissions as well, so a second loss is detected as fast as the first.
//! First transmissions are in order of index, retransmissions have a list in order of time: nothing
//! is searched, and each transmission is checked once.
//!
//! # Invariants
//! 1. `entries` are the packets from `base`, the first one that has not arrived, to the newest one
//!    sent. The first entry has not arrived, except within an update.
//! 2. `arrived` and `lost` count the entries in these states; all others are in flight.
//! 3. Every lost entry is in `resend`. Other packets in `resend` are skipped.
//!
//! [`Recovery::Selective`]: super::Recovery::Selective

use std::collections::VecDeque;

use super::{AckInfo, LossFeedback, Nack};
use crate::wire::MAX_HOLES;

/// State of an entry: its two low bits.
const SENT: u64 = 0;
const ARRIVED: u64 = 1;
const LOST: u64 = 2;
/// Has arrived, but keeps its credit: the last packet of a request.
const UNRETURNED: u64 = 3;
const STATE: u64 = 3;
/// Was retransmitted.
const RETRANSMITTED: u64 = 4;
/// Was marked lost by a timeout or a probe.
const TIMED_OUT: u64 = 8;
/// Above the flags: time of the last transmission, ns.
const TIME_SHIFT: u32 = 4;

/// Capacity, in packets, that an unused scoreboard keeps.
const KEEP: usize = 1024;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    base: u32,
    entries: VecDeque<u64>,
    /// First transmissions of packets before this one have been checked for loss.
    judged: u32,
    /// Retransmissions that have not been checked, oldest first: packet and time.
    retransmitted: VecDeque<(u32, u64)>,
    /// Lost packets, in the order in which they are to be retransmitted.
    resend: VecDeque<u32>,
    /// Send time of the newest packet that has arrived, ns.
    newest_ns: u64,
    /// The same before the current frame. A frame may acknowledge many packets without
    /// their order of arrival.
    known_ns: u64,
    arrived: u32,
    lost: u32,
}

impl Scoreboard {
    pub(crate) fn new(base: u32) -> Self {
        Scoreboard { base, judged: base, ..Scoreboard::default() }
    }

    /// Starts a message of which `base` packets have arrived and no others were sent.
    pub(crate) fn begin(&mut self, base: u32) {
        self.entries.clear();
        self.retransmitted.clear();
        self.resend.clear();
        self.entries.shrink_to(KEEP);
        self.retransmitted.shrink_to(KEEP);
        self.resend.shrink_to(KEEP);
        (self.base, self.judged) = (base, base);
        (self.arrived, self.lost) = (0, 0);
        (self.newest_ns, self.known_ns) = (0, 0);
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * 8
            + self.retransmitted.capacity() * 16
            + self.resend.capacity() * 4
    }

    pub(crate) fn lost(&self) -> u32 {
        self.lost
    }

    pub(crate) fn arrived_count(&self) -> u32 {
        self.arrived
    }

    fn entry(&mut self, index: u32) -> Option<&mut u64> {
        self.entries.get_mut(index.checked_sub(self.base)? as usize)
    }

    /// Records a transmission: of the next new packet, or of a lost one.
    #[inline]
    pub(crate) fn sent(&mut self, index: u32, now_ns: u64) {
        let at = index.wrapping_sub(self.base) as usize;
        if at == self.entries.len() {
            self.entries.push_back(now_ns << TIME_SHIFT);
            return;
        }
        let Some(entry) = self.entries.get_mut(at).filter(|e| **e & STATE == LOST) else { return };
        *entry = now_ns << TIME_SHIFT | *entry & TIMED_OUT | RETRANSMITTED | SENT;
        self.lost -= 1;
        self.retransmitted.push_back((index, now_ns));
    }

    /// Fast path: the packets before `count` have arrived, all were sent once and in order, and no
    /// later packet has arrived. So none is lost, and there is no feedback. (A request's last
    /// packet is never among them: the response acknowledges it.) `false`: the fast path does not
    /// apply, and nothing was changed.
    #[inline]
    pub(crate) fn arrive_in_order(&mut self, count: u32) -> bool {
        let last = count.wrapping_sub(self.base).wrapping_sub(1) as usize;
        let Some(&newest) = self.entries.get(last) else { return false };
        let newest_ns = newest >> TIME_SHIFT;
        let in_order = self.arrived == 0 && self.lost == 0 && self.retransmitted.is_empty();
        if !in_order || newest_ns < self.newest_ns {
            return false;
        }
        (self.newest_ns, self.known_ns) = (newest_ns, newest_ns);
        if last == 0 {
            self.entries.pop_front();
        } else {
            self.entries.drain(..=last);
        }
        self.base = count;
        self.judged = self.judged.max(count);
        true
    }

    /// Returns whether a packet is the first one that has not arrived.
    #[inline]
    pub(crate) fn is_next(&self, index: u32) -> bool {
        index == self.base
    }

    /// All packets before `count` have arrived.
    pub(crate) fn in_order(&mut self, count: u32, ack: AckInfo, feedback: &mut LossFeedback) {
        while self.base < count {
            let Some(&entry) = self.entries.front() else { break };
            self.take(entry, ack, feedback);
            self.entries.pop_front();
            self.base += 1;
            self.arrived -= u32::from(entry & STATE == ARRIVED);
        }
        self.base = self.base.max(count);
        self.judged = self.judged.max(self.base);
    }

    /// A packet has arrived; `false`: it was already recorded.
    pub(crate) fn arrived(
        &mut self,
        index: u32,
        ack: AckInfo,
        feedback: &mut LossFeedback,
    ) -> bool {
        let Some(&mut entry) = self.entry(index) else { return false };
        if entry & STATE == ARRIVED {
            return false;
        }
        self.take(entry, ack, feedback);
        self.arrived += 1;
        if let Some(e) = self.entry(index) {
            *e = *e & !STATE | ARRIVED;
        }
        true
    }

    /// Takes a negative acknowledgement in any order of arrival; `true`: it acknowledged new
    /// packets.
    pub(crate) fn on_nack(
        &mut self,
        nack: Nack<'_>,
        ack: AckInfo,
        feedback: &mut LossFeedback,
    ) -> bool {
        let Nack { count, high, holes, last } = nack;
        let mut news = false;
        let mut next = if holes.len() < MAX_HOLES { count.max(self.base) } else { high };
        for hole in holes.iter().rev() {
            for index in next..hole.first.min(last) {
                news |= self.arrived(index, ack, feedback);
            }
            next = hole.first + hole.len;
        }
        for index in next..high.min(last) {
            news |= self.arrived(index, ack, feedback);
        }
        if high > last {
            self.keep_unreturned(last, ack);
        }
        news
    }

    /// A packet has arrived whose credit is not returned yet. It is not lost, and its send time
    /// counts.
    fn keep_unreturned(&mut self, index: u32, ack: AckInfo) {
        let Some(entry) = self.entry(index).filter(|e| **e & STATE == SENT) else { return };
        let sent_ns = *entry >> TIME_SHIFT;
        *entry |= UNRETURNED;
        if ack.now_ns.saturating_sub(sent_ns) >= ack.round_trip_ns {
            self.newest_ns = self.newest_ns.max(sent_ns);
        }
    }

    /// Ends the processing of a frame: detects lost packets and returns the number of packets in
    /// order.
    pub(crate) fn conclude(&mut self, ack: AckInfo, feedback: &mut LossFeedback) -> u32 {
        let in_order = self.advance();
        feedback.add_lost(self.judge(ack.window_ns));
        in_order
    }

    /// Moves `base` past the packets that have arrived, and returns it.
    pub(crate) fn advance(&mut self) -> u32 {
        while self.entries.front().is_some_and(|e| e & STATE == ARRIVED) {
            self.entries.pop_front();
            self.base += 1;
            self.arrived -= 1;
        }
        self.judged = self.judged.max(self.base);
        self.base
    }

    /// Records that an entry has arrived.
    fn take(&mut self, entry: u64, ack: AckInfo, feedback: &mut LossFeedback) {
        let sent_ns = entry >> TIME_SHIFT;
        match entry & STATE {
            ARRIVED => return,
            LOST => {
                self.lost -= 1;
                // It was late by more than the window.
                feedback.late_ns = feedback.late_ns.max(self.known_ns.saturating_sub(sent_ns));
                return;
            }
            _ => {}
        }
        if entry & RETRANSMITTED == 0 {
            feedback.late_ns = feedback.late_ns.max(self.known_ns.saturating_sub(sent_ns));
        } else if ack.now_ns.saturating_sub(sent_ns) < ack.round_trip_ns {
            // The acknowledgement is of an earlier copy.
            feedback.spurious = feedback.spurious.saturating_add(1);
            feedback.early = feedback.early.saturating_add(u16::from(entry & TIMED_OUT == 0));
            return;
        } else {
            feedback.useful = feedback.useful.saturating_add(1);
        }
        self.newest_ns = self.newest_ns.max(sent_ns);
    }

    /// Marks an entry that was in flight as lost.
    fn lose(&mut self, at: usize, how: u64) {
        let Some(entry) = self.entries.get_mut(at) else { return };
        *entry = *entry & !(STATE | TIMED_OUT) | how | LOST;
        self.lost += 1;
        self.resend.push_back(self.base + at as u32);
    }

    /// Detects lost packets; returns how many.
    pub(crate) fn judge(&mut self, window_ns: u64) -> u32 {
        let before = self.lost;
        self.known_ns = self.newest_ns;
        let newest_ns = self.newest_ns;
        let late = |sent_ns: u64| sent_ns + window_ns < newest_ns;
        loop {
            let at = (self.judged - self.base) as usize;
            let Some(entry) = self.entries.get(at) else { break };
            if entry & (STATE | RETRANSMITTED) == SENT {
                if !late(entry >> TIME_SHIFT) {
                    break;
                }
                self.lose(at, 0);
            }
            self.judged += 1;
        }
        while let Some(&(index, sent_ns)) = self.retransmitted.front() {
            if !late(sent_ns) {
                break;
            }
            self.retransmitted.pop_front();
            let at = index.wrapping_sub(self.base) as usize;
            let on_its_way = |e: &&u64| **e & STATE == SENT && **e >> TIME_SHIFT == sent_ns;
            if self.entries.get(at).filter(on_its_way).is_some() {
                self.lose(at, 0);
            }
        }
        self.lost - before
    }

    /// The lost packets to send next: the first, and the length of the run, at most `most`.
    pub(crate) fn next_lost(&mut self, most: u32) -> Option<(u32, u32)> {
        let is_lost = |e: Option<&mut u64>| e.is_some_and(|e| *e & STATE == LOST);
        debug_assert!(most > 0);
        while let Some(&first) = self.resend.front() {
            let run = (first..first + most).take_while(|&index| is_lost(self.entry(index))).count();
            if run > 0 {
                return Some((first, run as u32));
            }
            self.resend.pop_front();
        }
        None
    }

    /// Tail-loss probe: marks the newest packet in flight for retransmission, so that its
    /// acknowledgement shows the state of all others. `false`: no packet is in flight.
    pub(crate) fn probe(&mut self) -> bool {
        let newest = |state| self.entries.iter().rposition(|e| e & STATE == state);
        let Some(at) = newest(SENT).or_else(|| newest(UNRETURNED)) else { return false };
        self.lose(at, TIMED_OUT);
        true
    }

    /// Marks every packet in flight as lost.
    pub(crate) fn time_out(&mut self) {
        self.resend.clear();
        self.retransmitted.clear();
        for (index, entry) in (self.base..).zip(&mut self.entries) {
            if *entry & STATE != ARRIVED {
                self.lost += u32::from(*entry & STATE != LOST);
                *entry = *entry & !STATE | TIMED_OUT | LOST;
                self.resend.push_back(index);
            }
        }
        self.judged = self.base + self.entries.len() as u32;
    }

    /// Checks the invariants.
    pub(crate) fn check(&self) {
        let count = |state| self.entries.iter().filter(|e| **e & STATE == state).count() as u32;
        assert_eq!((self.arrived, self.lost), (count(ARRIVED), count(LOST)), "invariant 2");
        assert!(self.base <= self.judged && self.judged <= self.base + self.entries.len() as u32);
        let front = self.entries.front();
        assert!(front.is_none_or(|e| e & STATE != ARRIVED), "invariant 1");
        for (index, entry) in (self.base..).zip(&self.entries) {
            let is_lost = entry & STATE == LOST;
            assert!(!is_lost || self.resend.contains(&index), "invariant 3: {index}");
        }
    }
}

#[cfg(test)]
#[path = "scoreboard/frames.rs"]
mod frames;
#[cfg(test)]
#[path = "scoreboard/tests.rs"] // also where an example uses this file
mod tests;
