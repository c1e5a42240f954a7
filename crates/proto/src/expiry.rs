//! Timer expiry: loss timeouts of slots, deadlines of calls, delayed acknowledgements (`[eRPC
//! §5.3]`, E57, E59).
//!
//! The timers ([`crate::timers`]) name slots and sessions to check; on expiry the state decides
//! what is due. A small RPC costs one timer entry, or none: its slot is checked once, usually after
//! its call has ended, and again only while something is pending. Slots that are not used again
//! acknowledge their last response (ADR 6).

use crate::budget::NO_MESSAGE;
use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::error::CallError;
use crate::loss::Recovery;
use crate::mutant::{self, Mutant};
use crate::path::{PROBES, Path};
use crate::session::{ClientSession, Session, SessionId, SessionState};
use crate::slot::ClientSlot;
use crate::timers::{Due, HELD, IDLE, MESSAGES, QUEUE, SWEEP, TimerEntry};
use crate::tx::TxItem;

/// Most timers handled in one [`Endpoint::on_deadline`], about 100 us of work; the rest follows in
/// the next pass of the event loop, after newly received packets.
const MAX_EXPIRIES: usize = 4096;

/// A quiet slot acknowledges its response after `Config::rto_min_ns`. If fewer calls than this
/// occur between two acknowledgements, they are wasteful: a rarely used session, like one of
/// 20,000, would send one per call. The slot then doubles its delay, repeatedly, up to
/// [`ACK_WAIT_MAX_NS`]. There is no delay if the response has several packets and so holds memory
/// of its own.
const CALLS_PER_ACK: u32 = 8;

/// The longest delay, ns. It is checked at this interval, so an acknowledgement may take twice as
/// long: less than half of the time that a server waits at shutdown.
const ACK_WAIT_MAX_NS: u64 = 200_000_000;

/// The action that is due for a slot or a session.
pub(crate) enum Verdict {
    Rearm(u64),
    /// A slot without a call that was used since its last check.
    InUse(u64),
    Nothing,
    Shrink,
    Acknowledge,
    TimedOut,
    Expired,
    CancelAgain,
    QueueExpired,
    MessagesDue,
    Silent,
}

impl<C> Endpoint<C> {
    /// When [`Endpoint::on_deadline`] is next due; `None` when no timer is set. 0, that is at once,
    /// if packets are queued. If there was no memory to build frames, the next attempt is due after
    /// `Config::rto_min_ns`, which avoids a busy loop.
    #[inline]
    pub fn next_deadline(&self) -> Option<u64> {
        if !self.outbox.done.is_empty() || self.wants_transmit() {
            return Some(0);
        }
        let mut due_ns = self.io.timers.next_ns().min(self.io.tail_loss.due_ns);
        due_ns = due_ns.min(self.io.peers.wheel.next_ns());
        if self.has_unsent() {
            due_ns = due_ns.min(self.io.tx.retry_ns());
        }
        (due_ns != u64::MAX).then_some(due_ns)
    }

    /// Handles expired timers. Call it only after all received frames were handled: a response in
    /// the receive queue is not lost.
    #[inline]
    pub fn on_deadline(&mut self, now_ns: u64) {
        self.io.now_ns = now_ns;
        if now_ns >= self.io.tx.retry_ns() {
            self.io.tx.retry_now();
        }
        if now_ns >= self.io.tail_loss.due_ns {
            self.on_tail_loss();
        }
        if now_ns >= self.io.peers.wheel.next_ns() {
            self.on_wheel();
        }
        if now_ns >= self.io.timers.next_ns() {
            self.expire_timers(now_ns);
        }
    }

    #[cold]
    fn expire_timers(&mut self, now_ns: u64) {
        let due_ns = self.io.timers.next_ns();
        self.io.timers.pause.on_timers(due_ns, now_ns, self.io.cfg.datapath_timeout_ns);
        let mut left = MAX_EXPIRIES;
        while left > 0 {
            if let Some(entry) = self.io.timers.first_due(now_ns)
                && (entry.is_cancelled() || self.expire_free_slot(entry))
            {
                self.io.timers.drop_first();
                // Cancelled timers cost nothing and must not delay the others.
                left -= usize::from(!entry.is_cancelled());
                continue;
            }
            let Some((queue, entry)) = self.io.timers.pop(now_ns) else { break };
            self.prefetch_expiries();
            left = left.saturating_sub(1 + self.expire_entry(queue, entry, now_ns));
        }
        if self.io.timers.overgrown() {
            let (sessions, sweep_ns) = (&self.sessions, self.budget.memory_watch().due_ns);
            let held_ns = self.io.peers.held.due_ns;
            self.io.timers.sift(|entry| match entry.slot {
                SWEEP => entry.due_ns == sweep_ns,
                HELD => entry.due_ns == held_ns,
                _ => is_needed(sessions, entry),
            });
        }
        if self.io.timers.next_ns() == u64::MAX {
            self.io.timers.trim();
            self.io.boards.trim();
        }
    }

    /// Expiry of the first timer of a slot without a call, the usual case: done when no
    /// acknowledgement is pending, or a later timer expires before it is due. With many rarely used
    /// sessions this happens once per call. `false`: the full check is needed, and nothing was
    /// done.
    #[inline]
    fn expire_free_slot(&mut self, entry: TimerEntry) -> bool {
        let Some(Session::Client(s)) = self.sessions.get_mut(entry.session as usize) else {
            return false;
        };
        let dpp = s.agreed.data_per_packet;
        if s.generation != entry.generation {
            return false;
        }
        let Some(slot) = s.slots.get_mut(usize::from(entry.slot)) else { return false };
        if slot.active || slot.quarantined {
            return false;
        }
        let done = needs_no_timer(&self.io.cfg, slot, dpp);
        slot.tracked &= !done;
        done
    }

    /// With many sessions, cancels the first timer of a slot whose call has ended with a response
    /// of one packet, if its expiry would do nothing.
    #[inline(never)]
    pub(crate) fn cancel_first_timer(&mut self, session: u32, slot_no: u8) {
        let Some(slot) = self.sessions.client_slot_mut(session, slot_no) else { return };
        if needs_no_timer(&self.io.cfg, slot, u16::MAX) {
            slot.tracked = !self.io.timers.cancel_first(slot.first_timer, session);
        }
    }

    /// Handles one expired timer; returns its cost beyond one check.
    fn expire_entry(&mut self, queue: Due, entry: TimerEntry, now_ns: u64) -> usize {
        let TimerEntry { session, slot, .. } = entry;
        if slot == SWEEP {
            self.sweep_requests(entry.due_ns);
            return 0;
        }
        if slot == HELD {
            self.on_pause_end(entry.due_ns);
            return 0;
        }
        if !self.take_timer(queue, entry) {
            return 0;
        }
        match self.judge(entry, now_ns) {
            Verdict::Nothing => {}
            Verdict::Rearm(due_ns) => self.rearm(entry, due_ns),
            Verdict::InUse(due_ns) => self.rearm_quiet(entry, due_ns),
            Verdict::Shrink => self.shrink(session),
            Verdict::Acknowledge => self.acknowledge(session, slot),
            Verdict::TimedOut => self.on_timeout(session, slot, now_ns),
            Verdict::Expired => self.end_early(session, slot, CallError::DeadlineExceeded),
            Verdict::CancelAgain => self.cancel_again(session, slot, now_ns),
            Verdict::QueueExpired => {
                let waiting = self.sessions.client_mut(session).map_or(0, |s| s.queue.len());
                self.expire_queue(session, now_ns);
                self.time_queue(session, u64::MAX); // for the remaining calls
                return waiting;
            }
            Verdict::MessagesDue => self.on_messages_due(session, now_ns),
            Verdict::Silent => self.give_up_peer(session),
        }
        0
    }

    /// Records that a timer has left the queues. `false`: it is obsolete.
    fn take_timer(&mut self, queue: Due, entry: TimerEntry) -> bool {
        if queue == Due::Later && !is_needed(&self.sessions, &entry) {
            return false;
        }
        let Some(s) = self.sessions.client_mut(entry.session) else { return false };
        if s.generation != entry.generation {
            return false;
        }
        match (entry.slot, queue) {
            (QUEUE, _) => s.queue_times.timer_ns = u64::MAX,
            (IDLE, _) => s.idle_timed = false,
            (MESSAGES, _) => {
                if let Some(outgoing) = &mut s.outgoing {
                    outgoing.timer_ns = u64::MAX;
                }
            }
            (slot, queue) => {
                let Some(slot) = s.slots.get_mut(usize::from(slot)) else { return false };
                match queue {
                    Due::First => slot.tracked = false,
                    Due::Later => slot.timer_ns = u64::MAX,
                }
            }
        }
        true
    }

    fn rearm(&mut self, entry: TimerEntry, due_ns: u64) {
        let session = entry.session;
        match entry.slot {
            QUEUE => self.time_queue(session, due_ns),
            IDLE => {
                let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else {
                    return;
                };
                s.watch_idle(&mut self.io.timers, &self.io.cfg, session, due_ns);
            }
            MESSAGES => self.rearm_messages(session, due_ns),
            slot => self.arm_slot(session, slot, due_ns),
        }
    }

    /// A free slot was used since its last check: sets its next timer later, so that slots in use
    /// cost less than one check per call.
    fn rearm_quiet(&mut self, entry: TimerEntry, due_ns: u64) {
        let TimerEntry { session, slot, .. } = entry;
        let most_ns = ack_wait_most_ns(&self.io.cfg);
        if let Some(Session::Client(s)) = self.sessions.get_mut(session as usize)
            && let Some(slot) = s.slots.get_mut(usize::from(slot))
        {
            slot.double_ack_wait();
            let wait_ns = ack_wait_ns(&self.io.cfg, slot, s.agreed.data_per_packet);
            if wait_ns == most_ns && slot.timer_ns == u64::MAX {
                // With equal delays the queue needs no sorting.
                slot.timer_ns = self.io.now_ns.saturating_add(most_ns);
                self.io.timers.arm_quiet(TimerEntry { due_ns: slot.timer_ns, ..entry });
                return;
            }
        }
        self.arm_slot(session, slot, due_ns);
    }

    /// Ensures a timer for a client slot no later than `due_ns`, or the deadline of its call.
    pub(crate) fn arm_slot(&mut self, session: u32, slot_no: u8, due_ns: u64) {
        let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else { return };
        let generation = s.generation;
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return };
        let due_ns = due_ns.min(slot.expires_ns);
        if due_ns < slot.timer_ns {
            let entry = TimerEntry { due_ns, session, generation, slot: slot_no };
            slot.timer_ns = self.io.timers.arm_later(entry);
        }
    }

    fn judge(&self, entry: TimerEntry, now_ns: u64) -> Verdict {
        let Some(Session::Client(s)) = self.sessions.get(entry.session as usize) else {
            return Verdict::Nothing;
        };
        if s.has_failed() {
            return Verdict::Nothing;
        }
        if entry.slot == QUEUE {
            return match s.queue_times.expires_ns {
                u64::MAX => Verdict::Nothing,
                due_ns if now_ns < due_ns => Verdict::Rearm(due_ns),
                _ => Verdict::QueueExpired,
            };
        }
        if entry.slot == MESSAGES {
            return self.judge_messages(s, now_ns);
        }
        if s.state != SessionState::Connected || s.slots.are_asleep() {
            return Verdict::Nothing;
        }
        if entry.slot == IDLE {
            return match self.idle_due_ns(s, now_ns) {
                due_ns if due_ns <= now_ns => Verdict::Shrink,
                due_ns => Verdict::Rearm(due_ns),
            };
        }
        let Some(slot) = s.slots.get(usize::from(entry.slot)) else { return Verdict::Nothing };
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
        let due_ns = self.due_ns(s, slot, now_ns).min(slot.expires_ns);
        if now_ns < due_ns {
            let waits = due_ns != u64::MAX;
            return if waits { Verdict::Rearm(due_ns) } else { Verdict::Nothing };
        }
        let Some(peer) = self.io.peers.at(s.peer) else { return Verdict::Silent };
        if slot.retries > 0 && (slot.in_flight() > 0 || slot.quarantined) {
            let timeout_ns = self.io.cfg.datapath_timeout_ns;
            let started_ns = self.io.tx.left_ns(slot.started_ns);
            let silent_ns = now_ns.saturating_sub(peer.path.last_rx_ns().max(started_ns));
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
    fn due_ns(&self, s: &ClientSession<C>, slot: &ClientSlot<C>, now_ns: u64) -> u64 {
        if !slot.is_single_sent() {
            return slot.deadline_ns;
        }
        let Some(peer) = self.io.peers.at(s.peer) else { return slot.deadline_ns };
        let timeout_ns = peer.path.timeout_ns(s.agreed.recovery, slot.retries, &self.io.cfg);
        match slot.started_ns.saturating_add(timeout_ns) {
            due_ns if now_ns < due_ns => due_ns,
            _ => self.io.tx.left_ns(slot.started_ns).saturating_add(timeout_ns),
        }
    }

    /// The datapath to a session's peer is dead (ADR 13): ends every client session with that peer,
    /// since they share the path.
    fn give_up_peer(&mut self, session: u32) {
        let Some(peer) = self.sessions.client_mut(session).map(|s| s.peer) else { return };
        for index in 0..self.sessions.len() as u32 {
            let Some(s) = self.sessions.client_mut(index) else { continue };
            if s.peer == peer && s.state == SessionState::Connected {
                let id = SessionId { index, generation: s.generation };
                self.fail_session(index, CallError::DatapathSilent);
                self.outbox.failed.push_back(id);
                self.outbox.has_news = true;
            }
        }
    }

    /// The next client session that failed because its peer's datapath is silent. Its calls have
    /// ended; [`Endpoint::close`] frees the rest, and returns the notice for the server.
    #[inline]
    pub fn poll_failed(&mut self) -> Option<SessionId> {
        while let Some(id) = self.outbox.failed.pop_front() {
            if self.is_live_entry(id) {
                return Some(id);
            }
        }
        None
    }

    fn is_live_entry(&self, id: SessionId) -> bool {
        let entry = self.sessions.get(id.index as usize);
        matches!(entry, Some(Session::Client(s)) if s.generation == id.generation)
    }

    fn acknowledge(&mut self, session: u32, slot_no: u8) {
        let Some(s) = self.sessions.client_mut(session) else { return };
        let step = s.slots.count();
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return };
        let req_num = slot.req_num;
        if slot.acknowledge_response(step) < CALLS_PER_ACK {
            slot.double_ack_wait();
        }
        self.io.tx.push(TxItem::Ack { session, req_num });
    }

    /// A loss timeout. Selective recovery first probes the end of the message. Otherwise all
    /// packets in flight are lost: reclaims their credits and sends them again; with go-back-N from
    /// the last acknowledged packet on.
    fn on_timeout(&mut self, session: u32, slot_no: u8, now_ns: u64) {
        let Some(s) = self.sessions.client_mut(session) else { return };
        let slot = &mut s.slots[usize::from(slot_no)];
        let has_part = slot.in_order() > 0;
        if slot.in_flight() == 0 && slot.message() != NO_MESSAGE {
            self.reclaim_grants(); // the response waits for this endpoint's own budget
            return self.extend_deadline(session, slot_no, now_ns);
        }
        let parked = slot.is_parked();
        if slot.in_flight() == 0 && !parked || has_part && mutant::is_on(Mutant::RfrNotRepeated) {
            // Nothing is in flight: the slot waits for credits that other slots hold.
            return self.extend_deadline(session, slot_no, now_ns);
        }
        let awaited = slot.awaits_grant();
        let only_last = slot.has_only_last_in_flight() || parked;
        let probes = s.agreed.recovery == Recovery::Selective && slot.retries < PROBES;
        let credits = if probes { slot.probe() } else { slot.roll_back() };
        let units = credits * slot.units();
        slot.retry(now_ns);
        if !mutant::is_on(Mutant::CreditsLostInRollback) {
            s.credits.release(credits);
        }
        if probes {
            self.io.stats.probes += 1;
        } else {
            s.on_rollback();
            self.io.stats.rollbacks += 1;
        }
        let peer = s.peer;
        self.note_awaiting(session, slot_no);
        // A request that waits for a grant probes for it; nothing need be lost. Nor when a handler
        // takes long, or the thread of the server does not run: the answer shows which.
        if !probes && !awaited && !only_last {
            self.on_congestion_timeout(peer);
        }
        if !mutant::is_on(Mutant::PoolForgotten) {
            self.release_room(peer, units);
        }
        self.extend_deadline(session, slot_no, now_ns);
        self.wake_in_turn(session, slot_no);
    }

    /// Sets a slot's deadline one timeout ahead, and ensures a timer for it.
    #[inline]
    pub(crate) fn extend_deadline(&mut self, session: u32, slot_no: u8, now_ns: u64) {
        let Some(s) = self.sessions.client_mut(session) else { return };
        let Some(peer) = self.io.peers.at(s.peer) else { return };
        let slot = &mut s.slots[usize::from(slot_no)];
        slot.deadline_ns =
            now_ns + slot_timeout_ns(&peer.path, slot, s.agreed.recovery, &self.io.cfg);
        // The first timer is never later than a timeout from now.
        let exact = !slot.tracked || s.agreed.recovery == Recovery::Selective;
        if exact && slot.deadline_ns.min(slot.expires_ns) < slot.timer_ns {
            let due_ns = slot.deadline_ns;
            self.arm_slot(session, slot_no, due_ns);
        }
    }

    /// Queues a slot for transmission if it has something to send and is not queued yet.
    #[inline]
    pub(crate) fn wake_slot(&mut self, session: u32, slot_no: u8) {
        let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else { return };
        let slot = &mut s.slots[usize::from(slot_no)];
        if slot.active && !slot.queued && slot.sendable() > 0 {
            slot.queued = true;
            s.stalled &= !(1 << slot_no);
            let req_num = slot.req_num;
            self.io.tx.push_granted(TxItem::Client { session, slot: slot_no, req_num });
        }
    }

    /// Queues the slots that wait for credits when there are some; round robin, starting after slot
    /// `after`.
    #[inline]
    pub(crate) fn wake_stalled(&mut self, session: u32, after: u8) {
        let Some(Session::Client(s)) = self.sessions.get(session as usize) else { return };
        if s.stalled == 0 || s.credits.left() == 0 || s.waits_for_room {
            return;
        }
        self.wake_each(session, after);
    }

    #[inline(never)] // small RPCs rarely wait for credits
    fn wake_each(&mut self, session: u32, after: u8) {
        let Some(Session::Client(s)) = self.sessions.get(session as usize) else { return };
        let first = (u32::from(after) + 1) % 32;
        let mut stalled = s.stalled.rotate_right(first);
        while stalled != 0 {
            let slot_no = (stalled.trailing_zeros() + first) % 32;
            stalled &= stalled - 1;
            self.wake_slot(session, slot_no as u8);
        }
    }

    /// Credits of a slot have returned: queues the slots that wait for credits, then the slot
    /// itself. Otherwise a large message would keep all credits of its session until its end (E31).
    #[inline]
    pub(crate) fn wake_in_turn(&mut self, session: u32, slot_no: u8) {
        self.wake_stalled(session, slot_no);
        self.wake_slot(session, slot_no);
    }
}

/// Time without an answer after which loss of a slot's packets is suspected.
pub(crate) fn slot_timeout_ns<C>(
    path: &Path,
    slot: &ClientSlot<C>,
    recovery: Recovery,
    cfg: &Config,
) -> u64 {
    if slot.awaits_grant() {
        return path.grant_timeout_ns(recovery, slot.retries, cfg);
    }
    path.timeout_ns(recovery, slot.retries, cfg)
}

/// Returns whether the first timer of a free slot has nothing to do: no acknowledgement is pending,
/// or a later timer expires before it is due.
#[inline]
fn needs_no_timer<C>(cfg: &Config, slot: &ClientSlot<C>, data_per_packet: u16) -> bool {
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
fn is_needed<C>(sessions: &[Session<C>], entry: &TimerEntry) -> bool {
    let Some(Session::Client(s)) = sessions.get(entry.session as usize) else { return false };
    s.generation == entry.generation
        && match entry.slot {
            QUEUE => s.queue_times.timer_ns == entry.due_ns,
            IDLE => s.idle_timed,
            MESSAGES => s.outgoing.as_ref().is_some_and(|o| o.timer_ns == entry.due_ns),
            slot => s.slots.get(usize::from(slot)).is_some_and(|s| s.timer_ns == entry.due_ns),
        }
}
