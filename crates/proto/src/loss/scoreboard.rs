//! What a client knows of the packets of one message that it has sent or asked for, with
//! [`Recovery::Selective`]: request packets first, then those of the response. Here both are "sent".
//!
//! # States of a packet
//! ```text
//! sent -> arrived
//!   |-> lost -> sent again -> arrived
//!         |-> arrived (it was only late)    |-> lost ...
//! ```
//! A packet is lost when another that was sent a reorder window later has arrived: that holds for
//! retransmissions as well, so that one which is lost again is found as fast. Packets are sent in the
//! order of their index the first time, and retransmissions have a list of their own in the order of
//! time: nothing is searched, each transmission is judged once.
//!
//! # Invariants
//! 1. `entries` are the packets from `base`, the first one that has not arrived, to the newest that
//!    was sent; but for a moment the first of them has not arrived.
//! 2. `arrived` and `lost` count the entries in these states; all others are on their way.
//! 3. Every lost entry is in `resend`. What else is there is passed over.
//!
//! [`Recovery::Selective`]: super::Recovery::Selective

use std::collections::VecDeque;

use super::{Heard, Nack, Seen};
use crate::wire::MAX_HOLES;

/// State of an entry: its two low bits.
const SENT: u64 = 0;
const ARRIVED: u64 = 1;
const LOST: u64 = 2;
/// It has arrived, and keeps its credit: the last packet of a request.
const HELD: u64 = 3;
const STATE: u64 = 3;
/// It was sent more than once.
const AGAIN: u64 = 4;
/// It was found lost, or probed for, because nothing was heard for long.
const TIMED: u64 = 8;
/// Above the flags: when it was sent last, ns.
const TIME_SHIFT: u32 = 4;

/// A board that waits for its next message keeps room for so many packets.
const KEEP: usize = 1024;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    base: u32,
    entries: VecDeque<u64>,
    /// First transmissions of packets before this one were judged.
    judged: u32,
    /// Retransmissions that were not judged, oldest first: packet and time.
    again: VecDeque<(u32, u64)>,
    /// Lost packets, in the order in which they are sent again.
    resend: VecDeque<u32>,
    /// When the newest packet that has arrived was sent, ns.
    newest_ns: u64,
    /// The same before the frame at hand, which may tell of many packets: in which order these have
    /// arrived it does not say.
    known_ns: u64,
    arrived: u32,
    lost: u32,
}

impl Scoreboard {
    pub(crate) fn new(base: u32) -> Self {
        Scoreboard { base, judged: base, ..Scoreboard::default() }
    }

    /// Begins with a message of which `base` packets have arrived and nothing else was sent.
    pub(crate) fn begin(&mut self, base: u32) {
        self.entries.clear();
        self.again.clear();
        self.resend.clear();
        self.entries.shrink_to(KEEP);
        self.again.shrink_to(KEEP);
        self.resend.shrink_to(KEEP);
        (self.base, self.judged) = (base, base);
        (self.arrived, self.lost) = (0, 0);
        (self.newest_ns, self.known_ns) = (0, 0);
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * 8 + self.again.capacity() * 16 + self.resend.capacity() * 4
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

    /// A packet is sent: the next one for the first time, or a lost one.
    #[inline]
    pub(crate) fn sent(&mut self, index: u32, now_ns: u64) {
        let at = index.wrapping_sub(self.base) as usize;
        if at == self.entries.len() {
            self.entries.push_back(now_ns << TIME_SHIFT);
            return;
        }
        let Some(entry) = self.entries.get_mut(at).filter(|e| **e & STATE == LOST) else { return };
        *entry = now_ns << TIME_SHIFT | *entry & TIMED | AGAIN | SENT;
        self.lost -= 1;
        self.again.push_back((index, now_ns));
    }

    /// The packets before `count` have arrived, as nearly always: all were sent once, one after the
    /// other, and none after them has arrived. So none is lost, and there is nothing to be learnt. (A
    /// request's last packet, which may be there already, is never among them: the response tells.)
    /// `false`: it may be otherwise, and nothing was done.
    #[inline]
    pub(crate) fn arrive_in_order(&mut self, count: u32) -> bool {
        let last = count.wrapping_sub(self.base).wrapping_sub(1) as usize;
        let Some(&newest) = self.entries.get(last) else { return false };
        let newest_ns = newest >> TIME_SHIFT;
        let in_order = self.arrived == 0 && self.lost == 0 && self.again.is_empty();
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

    /// Whether a packet is the first one that has not arrived.
    #[inline]
    pub(crate) fn is_next(&self, index: u32) -> bool {
        index == self.base
    }

    /// All packets before `count` have arrived.
    pub(crate) fn in_order(&mut self, count: u32, heard: Heard, seen: &mut Seen) {
        while self.base < count {
            let Some(&entry) = self.entries.front() else { break };
            self.take(entry, heard, seen);
            self.entries.pop_front();
            self.base += 1;
            self.arrived -= u32::from(entry & STATE == ARRIVED);
        }
        self.base = self.base.max(count);
        self.judged = self.judged.max(self.base);
    }

    /// A packet has arrived; `false`: that was known.
    pub(crate) fn arrived(&mut self, index: u32, heard: Heard, seen: &mut Seen) -> bool {
        let Some(&mut entry) = self.entry(index) else { return false };
        if entry & STATE == ARRIVED {
            return false;
        }
        self.take(entry, heard, seen);
        self.arrived += 1;
        if let Some(e) = self.entry(index) {
            *e = *e & !STATE | ARRIVED;
        }
        true
    }

    /// Takes what a negative acknowledgement says, whichever came before it; `true`: it was news.
    pub(crate) fn on_nack(&mut self, nack: Nack<'_>, heard: Heard, seen: &mut Seen) -> bool {
        let Nack { count, high, holes, last } = nack;
        let mut news = false;
        let mut next = if holes.len() < MAX_HOLES { count.max(self.base) } else { high };
        for hole in holes.iter().rev() {
            for index in next..hole.first.min(last) {
                news |= self.arrived(index, heard, seen);
            }
            next = hole.first + hole.len;
        }
        for index in next..high.min(last) {
            news |= self.arrived(index, heard, seen);
        }
        if high > last {
            self.glimpsed(last, heard);
        }
        news
    }

    /// A packet has arrived whose credit does not come back yet: its time counts, and it is not lost.
    fn glimpsed(&mut self, index: u32, heard: Heard) {
        let Some(entry) = self.entry(index).filter(|e| **e & STATE == SENT) else { return };
        let sent_ns = *entry >> TIME_SHIFT;
        *entry |= HELD;
        if heard.now_ns.saturating_sub(sent_ns) >= heard.round_trip_ns {
            self.newest_ns = self.newest_ns.max(sent_ns);
        }
    }

    /// When all that the frame at hand tells is taken: gives how many packets are in order, and
    /// finds those that are lost now.
    pub(crate) fn conclude(&mut self, heard: Heard, seen: &mut Seen) -> u32 {
        let in_order = self.advance();
        seen.add_lost(self.judge(heard.window_ns));
        in_order
    }

    /// Moves `base` over what has arrived, and gives it.
    pub(crate) fn advance(&mut self) -> u32 {
        while self.entries.front().is_some_and(|e| e & STATE == ARRIVED) {
            self.entries.pop_front();
            self.base += 1;
            self.arrived -= 1;
        }
        self.judged = self.judged.max(self.base);
        self.base
    }

    /// An entry that has not arrived before does now.
    fn take(&mut self, entry: u64, heard: Heard, seen: &mut Seen) {
        let sent_ns = entry >> TIME_SHIFT;
        match entry & STATE {
            ARRIVED => return,
            LOST => {
                self.lost -= 1;
                // It was late by more than the window.
                seen.late_ns = seen.late_ns.max(self.known_ns.saturating_sub(sent_ns));
                return;
            }
            _ => {}
        }
        if entry & AGAIN == 0 {
            seen.late_ns = seen.late_ns.max(self.known_ns.saturating_sub(sent_ns));
        } else if heard.now_ns.saturating_sub(sent_ns) < heard.round_trip_ns {
            // The answer is to an earlier copy.
            seen.spurious = seen.spurious.saturating_add(1);
            seen.hasty = seen.hasty.saturating_add(u16::from(entry & TIMED == 0));
            return;
        } else {
            seen.useful = seen.useful.saturating_add(1);
        }
        self.newest_ns = self.newest_ns.max(sent_ns);
    }

    /// An entry that is on its way, or may be, is lost.
    fn lose(&mut self, at: usize, how: u64) {
        let Some(entry) = self.entries.get_mut(at) else { return };
        *entry = *entry & !(STATE | TIMED) | how | LOST;
        self.lost += 1;
        self.resend.push_back(self.base + at as u32);
    }

    /// Finds the packets that are lost now; gives how many.
    pub(crate) fn judge(&mut self, window_ns: u64) -> u32 {
        let before = self.lost;
        self.known_ns = self.newest_ns;
        let newest_ns = self.newest_ns;
        let late = |sent_ns: u64| sent_ns + window_ns < newest_ns;
        loop {
            let at = (self.judged - self.base) as usize;
            let Some(entry) = self.entries.get(at) else { break };
            if entry & (STATE | AGAIN) == SENT {
                if !late(entry >> TIME_SHIFT) {
                    break;
                }
                self.lose(at, 0);
            }
            self.judged += 1;
        }
        while let Some(&(index, sent_ns)) = self.again.front() {
            if !late(sent_ns) {
                break;
            }
            self.again.pop_front();
            let at = index.wrapping_sub(self.base) as usize;
            let on_its_way = |e: &&u64| **e & STATE == SENT && **e >> TIME_SHIFT == sent_ns;
            if self.entries.get(at).filter(on_its_way).is_some() {
                self.lose(at, 0);
            }
        }
        self.lost - before
    }

    /// The lost packets that are to be sent next: the first, and how many in a row, at most `most`.
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

    /// Nothing was heard for a time in which the end of the message should have been: its newest
    /// packet that is on its way is sent again, so that its arrival tells of all others. `false`:
    /// there is none.
    pub(crate) fn probe(&mut self) -> bool {
        let newest = |state| self.entries.iter().rposition(|e| e & STATE == state);
        let Some(at) = newest(SENT).or_else(|| newest(HELD)) else { return false };
        self.lose(at, TIMED);
        true
    }

    /// Everything that is on its way is lost.
    pub(crate) fn time_out(&mut self) {
        self.resend.clear();
        self.again.clear();
        for (index, entry) in (self.base..).zip(&mut self.entries) {
            if *entry & STATE != ARRIVED {
                self.lost += u32::from(*entry & STATE != LOST);
                *entry = *entry & !STATE | TIMED | LOST;
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
