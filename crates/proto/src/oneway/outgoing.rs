//! The one-way messages of a client session that the server has not acknowledged, oldest first:
//! those that were sent, then those that wait.
//!
//! # Invariants
//! 1. Entry `i` has the number `first + i`. The first `sent` entries were sent at least once, at most
//!    [`WINDOW`].
//! 2. `credits` in flight are the entries in flight, and `units` their units in the peer's pool.
//! 3. While an entry is in flight, a timer is set that expires no later than it is due.

use std::collections::VecDeque;

use courser_buf::MsgBuf;

use super::WINDOW;
use crate::credits::SessionCredits;
use crate::mutant::{self, Mutant};
use crate::stats::RxDrop;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Delivery {
    Waiting,
    InFlight,
    Lost,
    Arrived,
}

/// A message.
#[derive(Debug)]
pub(crate) struct Unacknowledged {
    pub(crate) msg: MsgBuf,
    pub(crate) msg_type: u16,
    state: Delivery,
    /// It was sent more than once: which of them an acknowledgement is for is not known.
    resent: bool,
    /// Its units in the peer's pool, while it is in flight.
    units: u16,
    sent_ns: u64,
    /// `u64::MAX`: no deadline.
    pub(crate) expires_ns: u64,
}

impl Unacknowledged {
    pub(crate) fn new(msg: MsgBuf, msg_type: u16, expires_ns: u64) -> Self {
        let (state, resent) = (Delivery::Waiting, false);
        Unacknowledged { msg, msg_type, state, resent, units: 0, sent_ns: 0, expires_ns }
    }

    /// It was sent, for which `units` were taken. Returns whether it was sent before.
    #[inline(always)]
    pub(crate) fn on_sent(&mut self, units: u16, now_ns: u64) -> bool {
        let again = self.state == Delivery::Lost;
        self.resent |= again;
        (self.state, self.units, self.sent_ns) = (Delivery::InFlight, units, now_ns);
        again
    }
}

/// Messages from the first unacknowledged one on whose arrival an acknowledgement states.
const NAMED: usize = 1 + u64::BITS as usize;

/// Messages that are no longer in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Freed {
    /// Messages that have arrived, as is known now.
    pub(super) arrived: u32,
    /// Messages that are lost.
    pub(super) lost: u32,
    /// Units of the peer's pool that were theirs.
    pub(super) units: u32,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Outgoing {
    entries: VecDeque<Unacknowledged>,
    first: u32,
    sent: u32,
    lost: u32,
    units: u32,
    pub(crate) credits: SessionCredits,
    /// When the newest message that has arrived was sent, and its round trip, ns.
    newest_ns: u64,
    round_trip_ns: u64,
    /// Bit per slot of the session whose call carries a message of several packets.
    pub(crate) slots: u32,
    /// The transmit queue has an item for it.
    pub(crate) queued: bool,
    /// It waits for room in the peer's pool.
    pub(crate) stalled: bool,
    /// Its turn comes before that of the session's calls.
    pub(crate) before_calls: bool,
    /// Timeouts in a row.
    pub(crate) retries: u8,
    /// When something is to be done about messages in flight, and the timer, ns.
    pub(crate) due_ns: u64,
    pub(crate) timer_ns: u64,
    /// Since when messages are in flight without an answer, ns.
    pub(crate) waits_since_ns: u64,
}

impl Outgoing {
    pub(crate) fn new(first: u32) -> Self {
        Outgoing {
            entries: VecDeque::new(),
            first,
            sent: 0,
            lost: 0,
            units: 0,
            credits: SessionCredits::default(),
            newest_ns: 0,
            round_trip_ns: 0,
            slots: 0,
            queued: false,
            stalled: false,
            before_calls: false,
            retries: 0,
            due_ns: u64::MAX,
            timer_ns: u64::MAX,
            waits_since_ns: 0,
        }
    }

    /// For a session whose first message has this number, and with C = `credits`.
    pub(crate) fn begun(first: u32, credits: u32) -> Box<Outgoing> {
        let mut new = Outgoing::new(first);
        new.begin(first, credits);
        Box::new(new)
    }

    /// The call on a slot has ended: whether it carried a message.
    pub(crate) fn take_slot(&mut self, slot_no: u8) -> bool {
        let bit = 1 << slot_no;
        let carried = self.slots & bit != 0;
        self.slots &= !bit;
        carried
    }

    /// Messages that were not acknowledged.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Messages of which no acknowledgement says that they have arrived.
    pub(super) fn not_arrived(&self) -> u64 {
        self.entries.iter().filter(|entry| entry.state != Delivery::Arrived).count() as u64
    }

    /// Units of the peer's pool in flight.
    pub(crate) fn units(&self) -> u32 {
        self.units
    }

    /// Sets the number of the first message, agreed at connect, and C of the session.
    pub(crate) fn begin(&mut self, first: u32, credits: u32) {
        debug_assert_eq!(self.sent, 0);
        (self.first, self.credits) = (first, SessionCredits::new(credits));
    }

    #[inline(always)]
    pub(super) fn push(&mut self, message: Unacknowledged) {
        self.entries.push_back(message);
    }

    /// Returns whether a message can be sent, as far as the session is concerned.
    pub(super) fn can_send(&self) -> bool {
        self.credits.left() > 0
            && (self.lost > 0 || self.sent < WINDOW.min(self.entries.len() as u32))
    }

    /// The next message to send, and its number: a lost one first. Messages whose deadline has passed
    /// before they were sent are removed, and counted in `expired`.
    #[inline(always)]
    pub(crate) fn next(
        &mut self,
        now_ns: u64,
        expired: &mut u64,
    ) -> Option<(u32, &mut Unacknowledged)> {
        let at = if self.lost > 0 {
            self.entries.iter().position(|entry| entry.state == Delivery::Lost)?
        } else {
            let sent = self.sent as usize;
            if self.entries.get(sent)?.expires_ns <= now_ns {
                *expired += self.drop_expired(now_ns);
                self.entries.get(sent)?;
            }
            if mutant::is_on(Mutant::NewestMessageFirst) {
                let newest = self.entries.len() - 1;
                self.entries.swap(self.sent as usize, newest);
            }
            self.sent as usize
        };
        if at >= WINDOW as usize {
            return None;
        }
        Some((self.first.wrapping_add(at as u32), self.entries.get_mut(at)?))
    }

    /// A message was sent, for which credits and `units` were taken; `again`: see
    /// [`Unacknowledged::on_sent`].
    #[inline(always)]
    pub(crate) fn on_sent(&mut self, units: u16, again: bool) {
        self.units += u32::from(units);
        self.lost -= u32::from(again);
        self.sent += u32::from(!again);
    }

    /// An acknowledgement: all messages before `next` have arrived, and of the 64 after it those of
    /// `later`.
    /// # Errors
    /// It is older than another, or names messages that were not sent.
    pub(super) fn on_ack(&mut self, next: u32, later: u64, now_ns: u64) -> Result<Freed, RxDrop> {
        let ahead = next.wrapping_sub(self.first);
        if ahead >= 1 << 31 {
            return Err(RxDrop::Stale);
        }
        let behind = if later == 0 { 0 } else { 65 - later.leading_zeros() };
        if ahead > self.sent || ahead + behind > self.sent {
            return Err(RxDrop::Inconsistent);
        }
        let mut freed = Freed::default();
        let (mut in_flight, mut newest_ns) = (0, self.newest_ns);
        for entry in self.entries.drain(..ahead as usize) {
            let flies = u32::from(entry.state == Delivery::InFlight);
            in_flight += flies;
            freed.units += flies * u32::from(entry.units);
            freed.arrived += u32::from(entry.state != Delivery::Arrived);
            self.lost -= u32::from(entry.state == Delivery::Lost);
            newest_ns = newest_ns.max(u64::from(flies) * u64::from(!entry.resent) * entry.sent_ns);
        }
        if newest_ns > self.newest_ns {
            (self.newest_ns, self.round_trip_ns) = (newest_ns, now_ns.saturating_sub(newest_ns));
        }
        self.credits.release(in_flight);
        self.units -= freed.units;
        self.sent -= ahead;
        self.first = next;
        let mut rest = later;
        while rest != 0 {
            let at = 1 + rest.trailing_zeros();
            rest &= rest - 1;
            self.arrived(at as usize, &mut freed, now_ns);
        }
        Ok(freed)
    }

    fn arrived(&mut self, at: usize, freed: &mut Freed, now_ns: u64) {
        let Some(entry) = self.entries.get_mut(at) else { return };
        match std::mem::replace(&mut entry.state, Delivery::Arrived) {
            Delivery::InFlight => {
                if entry.sent_ns >= self.newest_ns && !entry.resent {
                    self.newest_ns = entry.sent_ns;
                    self.round_trip_ns = now_ns.saturating_sub(entry.sent_ns);
                }
                let units = u32::from(entry.units);
                self.credits.release(1);
                self.units -= units;
                freed.units += units;
            }
            Delivery::Lost => self.lost -= 1,
            Delivery::Waiting | Delivery::Arrived => return,
        }
        freed.arrived += 1;
    }

    /// Messages in flight count as lost when one that was sent later has arrived, and they are more
    /// than `window_ns` later than it was (RACK, RFC 8985). Of those behind the ones that an
    /// acknowledgement names nothing is known. Returns when the next one would be lost.
    pub(super) fn find_lost(&mut self, window_ns: u64, now_ns: u64, freed: &mut Freed) -> u64 {
        let sent = (self.sent as usize).min(NAMED);
        let is_newest =
            |e: &Unacknowledged| e.state == Delivery::Arrived && e.sent_ns == self.newest_ns;
        let newest = self.entries.iter().take(sent).rposition(is_newest).unwrap_or(0);
        let (newest_ns, wait_ns) = (self.newest_ns, self.round_trip_ns + window_ns);
        let mut next_ns = u64::MAX;
        for at in 0..sent {
            let Some(entry) = self.entries.get(at) else { break };
            let earlier = entry.sent_ns < newest_ns || entry.sent_ns == newest_ns && at < newest;
            if entry.state != Delivery::InFlight || !earlier {
                continue;
            }
            match entry.sent_ns.saturating_add(wait_ns) {
                lost_ns if lost_ns <= now_ns => self.lose(at, freed),
                lost_ns => next_ns = next_ns.min(lost_ns),
            }
        }
        next_ns
    }

    /// Removes messages that wait and whose deadline has passed; returns their number.
    #[cold]
    pub(super) fn drop_expired(&mut self, now_ns: u64) -> u64 {
        let before = self.entries.len();
        self.entries.retain(|e| e.state != Delivery::Waiting || e.expires_ns > now_ns);
        (before - self.entries.len()) as u64
    }

    /// Nothing was heard of the messages in flight: the oldest, or `all`, count as lost.
    pub(super) fn time_out(&mut self, all: bool, freed: &mut Freed) {
        for at in 0..self.sent as usize {
            if self.entries.get(at).is_some_and(|entry| entry.state == Delivery::InFlight) {
                self.lose(at, freed);
                if !all {
                    return;
                }
            }
        }
    }

    fn lose(&mut self, at: usize, freed: &mut Freed) {
        let Some(entry) = self.entries.get_mut(at) else { return };
        entry.state = Delivery::Lost;
        let units = u32::from(entry.units);
        self.credits.release(1);
        self.units -= units;
        self.lost += 1;
        freed.units += units;
        freed.lost += 1;
    }

    /// Returns whether a message in front of one that has arrived is missing.
    pub(super) fn has_gap(&self) -> bool {
        self.entries.iter().take(self.sent as usize).any(|entry| entry.state == Delivery::Arrived)
    }

    /// Checks the invariants; for debug builds and simulations.
    pub(crate) fn check(&self) {
        let sent = self.sent as usize;
        assert!(sent <= self.entries.len() && self.sent <= WINDOW, "invariant 1");
        let count = |state| self.entries.iter().filter(|entry| entry.state == state).count();
        assert_eq!(count(Delivery::Waiting), self.entries.len() - sent, "invariant 1");
        assert_eq!(count(Delivery::Lost), self.lost as usize);
        let flies = |entry: &&Unacknowledged| entry.state == Delivery::InFlight;
        let units: u32 = self.entries.iter().filter(flies).map(|e| u32::from(e.units)).sum();
        assert_eq!(count(Delivery::InFlight), self.credits.in_flight() as usize, "invariant 2");
        assert_eq!(units, self.units, "invariant 2");
        assert!(self.units == 0 || self.timer_ns <= self.due_ns, "invariant 3");
    }
}
