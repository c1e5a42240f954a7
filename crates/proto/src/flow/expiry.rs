//! Expired timers of a client session: the state decides what is due.

use super::ClientFlow;
use crate::budget::NO_MESSAGE;
use crate::config::Config;
use crate::error::CallError;
use crate::io::Io;
use crate::loss::Recovery;
use crate::mutant::{self, Mutant};
use crate::path::PROBES;
use crate::session::{ClientSession, SessionState};
use crate::slot::ClientSlot;
use crate::timers::{Due, Expiry, TimerEntry, TimerKind};
use crate::tx::TxItem;

/// A quiet slot acknowledges its response after `Config::rto_min_ns`. If fewer calls than this
/// occur between two acknowledgements, they are wasteful: a rarely used session, like one of
/// 20,000, would send one per call. The slot then doubles its delay, repeatedly, up to
/// [`ACK_WAIT_MAX_NS`]. There is no delay if the response has several packets and so holds memory
/// of its own.
const CALLS_PER_ACK: u32 = 8;

/// The longest delay, ns. It is checked at this interval, so an acknowledgement may take twice as
/// long: less than half of the time that a server waits at shutdown.
const ACK_WAIT_MAX_NS: u64 = 200_000_000;

/// The action that is due for a slot.
enum Verdict {
    Rearm(u64),
    /// A slot without a call that was used since its last check.
    InUse(u64),
    Nothing,
    Acknowledge,
    TimedOut,
    Expired,
    CancelAgain,
    Silent,
}

/// With many sessions, cancels the first timer of a slot of `session` whose call has ended with a
/// response of one packet, if its expiry would do nothing.
#[inline(never)]
pub(crate) fn cancel_first_timer<C>(io: &mut Io, slot: &mut ClientSlot<C>, session: u32) {
    if needs_no_timer(&io.cfg, slot, u16::MAX) {
        slot.tracked = !io.timers.cancel_first(slot.first_timer, session);
    }
}

impl<C> ClientFlow<'_, C> {
    /// A timer of the session has left its queue.
    pub(crate) fn on_expiry(&mut self, queue: Due, entry: TimerEntry) -> Expiry {
        if self.s.generation != entry.generation
            || queue == Due::Later && !is_needed(self.s, &entry)
        {
            return Expiry::Done; // obsolete
        }
        match entry.kind {
            TimerKind::Slot(slot_no) => self.on_slot_expiry(slot_no, queue, entry),
            TimerKind::Queue => self.on_queue_expiry(),
            TimerKind::Idle => self.on_idle_expiry(),
            TimerKind::Messages if self.s.has_failed() => Expiry::Done,
            TimerKind::Messages => self.on_messages_expiry(),
            // These timers are the endpoint's.
            TimerKind::Sweep | TimerKind::Held | TimerKind::Host => Expiry::Done,
        }
    }

    fn on_queue_expiry(&mut self) -> Expiry {
        let times = &mut self.s.queue_times;
        times.timer_ns = u64::MAX;
        let (due_ns, waiting) = (times.expires_ns, self.s.queue.len());
        if self.s.has_failed() || due_ns == u64::MAX {
            return Expiry::Done;
        }
        if self.io.now_ns >= due_ns {
            self.expire_queue();
            self.time_queue(u64::MAX); // for the remaining calls
            return Expiry::Walked(waiting);
        }
        self.time_queue(due_ns);
        Expiry::Done
    }

    fn on_idle_expiry(&mut self) -> Expiry {
        let (s, io) = (&mut *self.s, &mut *self.io);
        s.idle_timed = false;
        if s.state != SessionState::Connected || s.slots.are_asleep() {
            return Expiry::Done;
        }
        let due_ns = s.idle_due_ns(&io.cfg, io.now_ns);
        if due_ns <= io.now_ns {
            return Expiry::Idle;
        }
        s.watch_idle(&mut io.timers, &io.cfg, self.index, due_ns);
        Expiry::Done
    }

    fn on_slot_expiry(&mut self, slot_no: u8, queue: Due, entry: TimerEntry) -> Expiry {
        let Some(slot) = self.s.slots.get_mut(usize::from(slot_no)) else { return Expiry::Done };
        match queue {
            Due::First => slot.tracked = false,
            Due::Later => slot.timer_ns = u64::MAX,
        }
        if self.s.state != SessionState::Connected {
            return Expiry::Done;
        }
        match self.judge(&self.s.slots[usize::from(slot_no)]) {
            Verdict::Nothing => {}
            Verdict::Rearm(due_ns) => self.arm_slot(slot_no, due_ns),
            Verdict::InUse(due_ns) => self.rearm_quiet(slot_no, entry, due_ns),
            Verdict::Acknowledge => self.acknowledge(slot_no),
            Verdict::TimedOut => self.on_timeout(slot_no),
            Verdict::Expired => self.end_early(slot_no, CallError::DeadlineExceeded),
            Verdict::CancelAgain => self.cancel_again(slot_no),
            Verdict::Silent => return Expiry::Silent,
        }
        Expiry::Done
    }

    /// A free slot was used since its last check: sets its next timer later, so that slots in use
    /// cost less than one check per call.
    fn rearm_quiet(&mut self, slot_no: u8, entry: TimerEntry, due_ns: u64) {
        let most_ns = ack_wait_most_ns(&self.io.cfg);
        if let Some(slot) = self.s.slots.get_mut(usize::from(slot_no)) {
            slot.double_ack_wait();
            let wait_ns = ack_wait_ns(&self.io.cfg, slot, self.s.agreed.data_per_packet);
            if wait_ns == most_ns && slot.timer_ns == u64::MAX {
                // With equal delays the queue needs no sorting.
                slot.timer_ns = self.io.now_ns.saturating_add(most_ns);
                self.io.timers.arm_quiet(TimerEntry { due_ns: slot.timer_ns, ..entry });
                return;
            }
        }
        self.arm_slot(slot_no, due_ns);
    }

    /// The action that is due for a slot.
    fn judge(&self, slot: &ClientSlot<C>) -> Verdict {
        let (s, now_ns) = (&*self.s, self.io.now_ns);
        if !slot.active && !slot.quarantined {
            if !slot.ack_owed {
                return Verdict::Nothing;
            }
            let wait_ns = ack_wait_ns(&self.io.cfg, slot, s.agreed.data_per_packet);
            return match slot.deadline_ns.saturating_add(wait_ns) {
                due_ns if due_ns <= now_ns => Verdict::Acknowledge,
                due_ns => Verdict::InUse(due_ns),
            };
        }
        if now_ns >= slot.expires_ns {
            return Verdict::Expired;
        }
        let due_ns = self.due_ns(slot).min(slot.expires_ns);
        if now_ns < due_ns {
            let waits = due_ns != u64::MAX;
            return if waits { Verdict::Rearm(due_ns) } else { Verdict::Nothing };
        }
        if slot.retries > 0 && (slot.in_flight() > 0 || slot.quarantined) {
            let timeout_ns = self.io.cfg.datapath_timeout_ns;
            let started_ns = self.io.tx.left_ns(slot.started_ns);
            let silent_ns = now_ns.saturating_sub(self.peer.path.last_rx_ns().max(started_ns));
            // Other packets of the peer arrive but none for this slot: large packets may no longer
            // pass the path.
            let stuck_ns = now_ns.saturating_sub(slot.last_rx_ns.max(started_ns));
            let is_silent = silent_ns >= timeout_ns || stuck_ns / 2 >= timeout_ns;
            if is_silent && !self.io.timers.pause.excuses(now_ns) {
                return Verdict::Silent;
            }
        }
        if slot.quarantined { Verdict::CancelAgain } else { Verdict::TimedOut }
    }

    /// When loss of a slot's packets is suspected; `u64::MAX`: nothing is pending.
    fn due_ns(&self, slot: &ClientSlot<C>) -> u64 {
        let (s, now_ns) = (&*self.s, self.io.now_ns);
        if !slot.is_single_sent() {
            return slot.deadline_ns;
        }
        let timeout_ns = self.peer.path.timeout_ns(s.agreed.recovery, slot.retries, &self.io.cfg);
        match slot.started_ns.saturating_add(timeout_ns) {
            due_ns if now_ns < due_ns => due_ns,
            _ => self.io.tx.left_ns(slot.started_ns).saturating_add(timeout_ns),
        }
    }

    /// Acknowledges the last response of a quiet slot.
    fn acknowledge(&mut self, slot_no: u8) {
        let step = self.s.slots.count();
        let Some(slot) = self.s.slots.get_mut(usize::from(slot_no)) else { return };
        let req_num = slot.req_num;
        if slot.acknowledge_response(step) < CALLS_PER_ACK {
            slot.double_ack_wait();
        }
        self.io.tx.push(TxItem::Ack { session: self.index, req_num });
    }

    /// A loss timeout. Selective recovery first probes the end of the message. Otherwise all
    /// packets in flight are lost: reclaims their credits and sends them again; with go-back-N from
    /// the last acknowledged packet on.
    fn on_timeout(&mut self, slot_no: u8) {
        let (s, io) = (&mut *self.s, &mut *self.io);
        let slot = &mut s.slots[usize::from(slot_no)];
        let has_part = slot.in_order() > 0;
        if slot.in_flight() == 0 && slot.message() != NO_MESSAGE {
            // The response waits for this endpoint's own budget.
            self.admission.effects.silent = true;
            return self.extend_deadline(slot_no);
        }
        let parked = slot.is_parked();
        if slot.in_flight() == 0 && !parked || has_part && mutant::is_on(Mutant::RfrNotRepeated) {
            // Nothing is in flight: the slot waits for credits that other slots hold.
            return self.extend_deadline(slot_no);
        }
        let awaited = slot.awaits_grant();
        let only_last = slot.has_only_last_in_flight() || parked;
        let probes = s.agreed.recovery == Recovery::Selective && slot.retries < PROBES;
        let credits = match s.agreed.recovery {
            _ if probes => slot.probe(),
            Recovery::GoBackZero => slot.restart(io.now_ns),
            _ => slot.roll_back(),
        };
        let units = credits * slot.units();
        slot.retry(io.now_ns);
        if !mutant::is_on(Mutant::CreditsLostInRollback) {
            s.credits.release(credits);
        }
        if probes {
            io.stats.probes += 1;
        } else {
            s.on_rollback();
            io.stats.rollbacks += 1;
        }
        self.note_awaiting(slot_no);
        // A request that waits for a grant probes for it; nothing need be lost. Nor when a handler
        // takes long, or the thread of the server does not run: the answer shows which.
        if !probes && !awaited && !only_last {
            self.io.on_congestion_timeout(self.peer);
        }
        if !mutant::is_on(Mutant::PoolForgotten) {
            self.io.release_room(self.peer, units);
        }
        self.extend_deadline(slot_no);
        self.wake_in_turn(slot_no);
    }
}

/// Returns whether the first timer of a free slot has nothing to do: no acknowledgement is pending,
/// or a later timer expires before it is due.
#[inline]
pub(crate) fn needs_no_timer<C>(cfg: &Config, slot: &ClientSlot<C>, data_per_packet: u16) -> bool {
    let wait_ns = ack_wait_ns(cfg, slot, data_per_packet);
    !slot.ack_owed || slot.timer_ns <= slot.deadline_ns.saturating_add(wait_ns)
}

/// Delay from the end of a call to the acknowledgement of its response.
#[inline]
fn ack_wait_ns<C>(cfg: &Config, slot: &ClientSlot<C>, data_per_packet: u16) -> u64 {
    slot.ack_wait_ns(data_per_packet, cfg.rto_min_ns, ack_wait_most_ns(cfg))
}

/// The longest of these delays.
fn ack_wait_most_ns(cfg: &Config) -> u64 {
    ACK_WAIT_MAX_NS.min(cfg.idle_after_ns / 2).max(cfg.rto_min_ns)
}

/// Returns whether a later timer is still the current one of its slot or session.
pub(crate) fn is_needed<C>(s: &ClientSession<C>, entry: &TimerEntry) -> bool {
    s.generation == entry.generation
        && match entry.kind {
            TimerKind::Slot(slot) => {
                s.slots.get(usize::from(slot)).is_some_and(|s| s.timer_ns == entry.due_ns)
            }
            TimerKind::Queue => s.queue_times.timer_ns == entry.due_ns,
            TimerKind::Idle => s.idle_timed,
            TimerKind::Messages => s.outgoing.as_ref().is_some_and(|o| o.timer_ns == entry.due_ns),
            TimerKind::Sweep | TimerKind::Held | TimerKind::Host => false,
        }
}
