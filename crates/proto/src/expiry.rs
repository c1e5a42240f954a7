//! Deadlines: when loss is suspected, and what follows (`[eRPC §5.3]`, E57, E59).
//!
//! The timers ([`crate::timers`]) say which slots and sessions are to be looked at; what is to be
//! done is seen there. A small RPC costs them one entry, or none: its slot is looked at once, when
//! its call is over as a rule, and again only while something is to be waited for. Slots that have
//! gone quiet tell the server at last that their response has arrived (F6).

use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::error::CallError;
use crate::loss::Recovery;
use crate::mutant::{self, Mutant};
use crate::path::PROBES;
use crate::session::{ClientSession, Session, SessionId, SessionState};
use crate::slot::ClientSlot;
use crate::timers::{Due, IDLE, QUEUE, Timed};
use crate::tx::TxItem;

/// So many looks at most in one [`Endpoint::on_deadline`], some 100 us of work; what else is due
/// comes in the next pass of the event loop, after the packets that have arrived meanwhile.
const LOOKS: usize = 4096;

/// A slot that has gone quiet acknowledges its response after `Config::rto_min_ns`. Where fewer
/// calls than this come between two such packets, they are waste: a session that is used now and
/// then, like one of 20,000, would pay one for each call. The slot then waits twice as long, again
/// and again, up to [`ACK_WAIT_MAX_NS`]; if the response is of several packets and so holds memory
/// of its own, it does not wait.
const CALLS_PER_ACK: u32 = 8;

/// The longest such wait, ns. It is looked at as often, so a response may be acknowledged after twice
/// that: less than half of what a server waits that shuts down.
const ACK_WAIT_MAX_NS: u64 = 200_000_000;

enum Verdict {
    Again(u64),
    /// A slot without a call that was used since its last look.
    InUse(u64),
    Nothing,
    Shrink,
    Acknowledge,
    TimedOut,
    Expired,
    CancelAgain,
    QueueExpired,
    Silent,
}

impl<C> Endpoint<C> {
    /// When [`Endpoint::on_deadline`] is next due; `None` when no time-out is pending. Frames that
    /// wait to be transmitted are due at once: 0. When there was no memory to make them, the next
    /// attempt is due after `Config::rto_min_ns`, so that an exhausted arena is no busy loop.
    #[inline]
    pub fn next_deadline(&self) -> Option<u64> {
        if !self.outbox.done.is_empty() || self.wants_transmit() {
            return Some(0);
        }
        let mut due_ns = self.timers.next_ns().min(self.tail_loss.due_ns);
        if self.has_unsent() {
            due_ns = due_ns.min(self.tx.retry_ns());
        }
        (due_ns != u64::MAX).then_some(due_ns)
    }

    /// Suspects loss where it is due. Call it only after everything received was handled: a
    /// response that waits in the receive queue is no loss.
    #[inline]
    pub fn on_deadline(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        if now_ns >= self.tx.retry_ns() {
            self.tx.retry_now();
        }
        if now_ns >= self.tail_loss.due_ns {
            self.on_tail_loss();
        }
        if now_ns >= self.timers.next_ns() {
            self.look_around(now_ns);
        }
    }

    #[cold]
    fn look_around(&mut self, now_ns: u64) {
        let mut left = LOOKS;
        while left > 0 {
            if let Some(entry) = self.timers.first_due(now_ns)
                && (entry.is_cancelled() || self.pass_by(entry))
            {
                self.timers.drop_first();
                // What was forgotten costs nothing and must not keep the others waiting.
                left -= usize::from(!entry.is_cancelled());
                continue;
            }
            let Some((look, entry)) = self.timers.pop(now_ns) else { break };
            self.fetch_for_looks();
            left = left.saturating_sub(1 + self.look_at(look, entry, now_ns));
        }
        if self.timers.overgrown() {
            let sessions = &self.sessions;
            self.timers.sift(|entry| is_needed(sessions, entry));
        }
        if self.timers.next_ns() == u64::MAX {
            self.timers.trim();
            self.boards.trim();
        }
    }

    /// The first look at a slot whose call is over, as it is for nearly every call: all is done
    /// when nothing is owed, or a later look will come before the acknowledgement is due. With many
    /// sessions, each used now and then, this is a look for each call. `false`: it has to be
    /// looked at properly, and nothing was done.
    #[inline]
    fn pass_by(&mut self, entry: Timed) -> bool {
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
        let done = needs_no_look(&self.cfg, slot, dpp);
        slot.tracked &= !done;
        done
    }

    /// With many sessions, cancels the first timer of a slot whose call has ended with a response of one
    /// packet, if expiring it would do nothing.
    #[inline(never)]
    pub(crate) fn cancel_first_timer(&mut self, session: u32, slot_no: u8) {
        let Some(slot) = self.sessions.client_slot_mut(session, slot_no) else { return };
        if needs_no_look(&self.cfg, slot, u16::MAX) {
            slot.tracked = !self.timers.cancel_first(slot.first_timer, session);
        }
    }

    /// Does what is due at one place; gives what it cost beyond one look.
    fn look_at(&mut self, look: Due, entry: Timed, now_ns: u64) -> usize {
        let Timed { session, slot, .. } = entry;
        if !self.take_timer(look, entry) {
            return 0;
        }
        match self.judge(entry, now_ns) {
            Verdict::Nothing => {}
            Verdict::Again(due_ns) => self.look_again(entry, due_ns),
            Verdict::InUse(due_ns) => self.look_less(entry, due_ns),
            Verdict::Shrink => self.shrink(session),
            Verdict::Acknowledge => self.acknowledge(session, slot),
            Verdict::TimedOut => self.on_timeout(session, slot, now_ns),
            Verdict::Expired => self.end_early(session, slot, CallError::DeadlineExceeded),
            Verdict::CancelAgain => self.cancel_again(session, slot, now_ns),
            Verdict::QueueExpired => {
                let waiting = self.sessions.client_mut(session).map_or(0, |s| s.queue.len());
                self.expire_queue(session, now_ns);
                self.time_queue(session, u64::MAX); // those that are left
                return waiting;
            }
            Verdict::Silent => self.give_up_peer(session),
        }
        0
    }

    /// The timers have this entry no more. `false`: nobody needs it.
    fn take_timer(&mut self, look: Due, entry: Timed) -> bool {
        if look == Due::Later && !is_needed(&self.sessions, &entry) {
            return false;
        }
        let Some(s) = self.sessions.client_mut(entry.session) else { return false };
        if s.generation != entry.generation {
            return false;
        }
        match (entry.slot, look) {
            (QUEUE, _) => s.queue_times.timer_ns = u64::MAX,
            (IDLE, _) => s.idle_timed = false,
            (slot, look) => {
                let Some(slot) = s.slots.get_mut(usize::from(slot)) else { return false };
                match look {
                    Due::First => slot.tracked = false,
                    Due::Later => slot.timer_ns = u64::MAX,
                }
            }
        }
        true
    }

    fn look_again(&mut self, entry: Timed, due_ns: u64) {
        let session = entry.session;
        match entry.slot {
            QUEUE => self.time_queue(session, due_ns),
            IDLE => {
                let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else {
                    return;
                };
                s.watch_idle(&mut self.timers, &self.cfg, session, due_ns);
            }
            slot => self.arm_slot(session, slot, due_ns),
        }
    }

    /// A later look found that a free slot was used meanwhile: the next one comes later, so that
    /// slots in use cost less than a look for each call.
    fn look_less(&mut self, entry: Timed, due_ns: u64) {
        let Timed { session, slot, .. } = entry;
        let most_ns = ack_wait_most_ns(&self.cfg);
        if let Some(Session::Client(s)) = self.sessions.get_mut(session as usize)
            && let Some(slot) = s.slots.get_mut(usize::from(slot))
        {
            slot.double_ack_wait();
            let wait_ns = ack_wait_ns(&self.cfg, slot, s.agreed.data_per_packet);
            if wait_ns == most_ns && slot.timer_ns == u64::MAX {
                // With the same delay for all they need no sorting.
                slot.timer_ns = self.now_ns.saturating_add(most_ns);
                self.timers.arm_quiet(Timed { due_ns: slot.timer_ns, ..entry });
                return;
            }
        }
        self.arm_slot(session, slot, due_ns);
    }

    /// Sees that a client slot is looked at when `due_ns` has come, or before: when its call expires.
    pub(crate) fn arm_slot(&mut self, session: u32, slot_no: u8, due_ns: u64) {
        let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else { return };
        let generation = s.generation;
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return };
        let due_ns = due_ns.min(slot.expires_ns);
        if due_ns < slot.timer_ns {
            let entry = Timed { due_ns, session, generation, slot: slot_no };
            slot.timer_ns = self.timers.arm_later(entry);
        }
    }

    fn judge(&self, entry: Timed, now_ns: u64) -> Verdict {
        let Some(Session::Client(s)) = self.sessions.get(entry.session as usize) else {
            return Verdict::Nothing;
        };
        if s.has_failed() {
            return Verdict::Nothing;
        }
        if entry.slot == QUEUE {
            return match s.queue_times.expires_ns {
                u64::MAX => Verdict::Nothing,
                due_ns if now_ns < due_ns => Verdict::Again(due_ns),
                _ => Verdict::QueueExpired,
            };
        }
        if s.state != SessionState::Connected || s.slots.are_asleep() {
            return Verdict::Nothing;
        }
        if entry.slot == IDLE {
            return match self.idle_due_ns(s, now_ns) {
                due_ns if due_ns <= now_ns => Verdict::Shrink,
                due_ns => Verdict::Again(due_ns),
            };
        }
        let Some(slot) = s.slots.get(usize::from(entry.slot)) else { return Verdict::Nothing };
        if !slot.active && !slot.quarantined {
            if !slot.ack_owed {
                return Verdict::Nothing;
            }
            let wait_ns = ack_wait_ns(&self.cfg, slot, s.agreed.data_per_packet);
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
            return if waits { Verdict::Again(due_ns) } else { Verdict::Nothing };
        }
        let Some(peer) = self.peers.at(s.peer) else { return Verdict::Silent };
        if slot.retries > 0 && (slot.in_flight() > 0 || slot.quarantined) {
            let timeout_ns = self.cfg.datapath_timeout_ns;
            let started_ns = self.tx.left_ns(slot.started_ns);
            let silent_ns = now_ns.saturating_sub(peer.path.last_heard_ns().max(started_ns));
            // Other packets of the peer arrive and none for this slot: it may be that large
            // packets do not pass any more.
            let stuck_ns = now_ns.saturating_sub(slot.heard_ns.max(started_ns));
            if silent_ns >= timeout_ns || stuck_ns / 2 >= timeout_ns {
                return Verdict::Silent;
            }
        }
        if slot.quarantined { Verdict::CancelAgain } else { Verdict::TimedOut }
    }

    /// When loss is to be suspected of a slot; `u64::MAX`: there is nothing to wait for.
    fn due_ns(&self, s: &ClientSession<C>, slot: &ClientSlot<C>, now_ns: u64) -> u64 {
        if !slot.is_single_sent() {
            return slot.deadline_ns;
        }
        let Some(peer) = self.peers.at(s.peer) else { return slot.deadline_ns };
        let timeout_ns = peer.path.timeout_ns(s.agreed.recovery, slot.retries, &self.cfg);
        match slot.started_ns.saturating_add(timeout_ns) {
            due_ns if now_ns < due_ns => due_ns,
            _ => self.tx.left_ns(slot.started_ns).saturating_add(timeout_ns),
        }
    }

    /// The datapath to a session's peer is dead (F13): ends every client session with that peer,
    /// because they all share it.
    fn give_up_peer(&mut self, session: u32) {
        let Some(peer) = self.sessions.client_mut(session).map(|s| s.peer) else { return };
        for index in 0..self.sessions.len() as u32 {
            let Some(s) = self.sessions.client_mut(index) else { continue };
            if s.peer == peer && s.state == SessionState::Connected {
                let id = SessionId { index, generation: s.generation };
                self.fail_session(index, CallError::DatapathSilent);
                self.outbox.failed.push_back(id);
            }
        }
    }

    /// The next client session that failed because its peer's datapath is silent. Its calls have
    /// ended; what is left of it is freed by [`Endpoint::close`], which also says what to tell the
    /// server.
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
        self.tx.push(TxItem::Ack { session, req_num });
    }

    /// Nothing was heard in time. Selective recovery probes for the end of the message first.
    /// Otherwise all that is on its way is lost: reclaim the credits, send it again; with go-back-N
    /// from where the server is known to be.
    fn on_timeout(&mut self, session: u32, slot_no: u8, now_ns: u64) {
        let Some(s) = self.sessions.client_mut(session) else { return };
        let slot = &mut s.slots[usize::from(slot_no)];
        let has_part = slot.in_order() > 0;
        if slot.in_flight() == 0 || has_part && mutant::is_on(Mutant::RfrNotRepeated) {
            // Nothing can be lost: the slot waits for credits that other slots hold.
            return self.extend_deadline(session, slot_no, now_ns);
        }
        let probes = s.agreed.recovery == Recovery::Selective && slot.retries < PROBES;
        let credits = if probes { slot.probe() } else { slot.roll_back() };
        let units = credits * slot.units();
        slot.retry(now_ns);
        if !mutant::is_on(Mutant::CreditsLostInRollback) {
            s.credits.release(credits);
        }
        if probes {
            self.stats.probes += 1;
        } else {
            s.counters.rollbacks = s.counters.rollbacks.wrapping_add(1);
            self.stats.rollbacks += 1;
        }
        let peer = s.peer;
        if !mutant::is_on(Mutant::PoolForgotten) {
            self.release_room(peer, units);
        }
        self.extend_deadline(session, slot_no, now_ns);
        self.wake_in_turn(session, slot_no);
    }

    /// Puts a slot's deadline one timeout ahead, and sees that it is looked at by then.
    #[inline]
    pub(crate) fn extend_deadline(&mut self, session: u32, slot_no: u8, now_ns: u64) {
        let Some(s) = self.sessions.client_mut(session) else { return };
        let Some(peer) = self.peers.at(s.peer) else { return };
        let slot = &mut s.slots[usize::from(slot_no)];
        slot.deadline_ns =
            now_ns + peer.path.timeout_ns(s.agreed.recovery, slot.retries, &self.cfg);
        // The first look is never later than a timeout from now.
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
            self.tx.push_granted(TxItem::Client { session, slot: slot_no, req_num });
        }
    }

    /// Queues the slots that waited for credits, when there are some again; the one behind
    /// `after` first, and so in turn.
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

    /// A slot got credits back: the slots that waited for some come first, then the slot itself.
    /// Else a large message would keep all credits of its session to itself until its end (E31).
    #[inline]
    pub(crate) fn wake_in_turn(&mut self, session: u32, slot_no: u8) {
        self.wake_stalled(session, slot_no);
        self.wake_slot(session, slot_no);
    }
}

/// Whether a first look at a free slot would find nothing to do: nothing is owed, or a later look
/// comes before the acknowledgement is due.
#[inline]
fn needs_no_look<C>(cfg: &Config, slot: &ClientSlot<C>, data_per_packet: u16) -> bool {
    let wait_ns = ack_wait_ns(cfg, slot, data_per_packet);
    !slot.ack_owed || slot.timer_ns <= slot.deadline_ns.saturating_add(wait_ns)
}

/// How long a slot is quiet before the server is told that its response has arrived.
#[inline]
fn ack_wait_ns<C>(cfg: &Config, slot: &ClientSlot<C>, data_per_packet: u16) -> u64 {
    slot.ack_wait_ns(data_per_packet, cfg.rto_min_ns, ack_wait_most_ns(cfg))
}

/// The longest of these waits.
fn ack_wait_most_ns(cfg: &Config) -> u64 {
    ACK_WAIT_MAX_NS.min(cfg.idle_after_ns / 2).max(cfg.rto_min_ns)
}

/// Whether an entry of the timers' later looks is still the one of its place.
fn is_needed<C>(sessions: &[Session<C>], entry: &Timed) -> bool {
    let Some(Session::Client(s)) = sessions.get(entry.session as usize) else { return false };
    s.generation == entry.generation
        && match entry.slot {
            QUEUE => s.queue_times.timer_ns == entry.due_ns,
            IDLE => s.idle_timed,
            slot => s.slots.get(usize::from(slot)).is_some_and(|s| s.timer_ns == entry.due_ns),
        }
}
