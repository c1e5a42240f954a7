//! Timer expiry: loss timeouts of slots, deadlines of calls, delayed acknowledgements (`[eRPC
//! §5.3]`, E57, E59).
//!
//! The timers ([`crate::timers`]) name slots and sessions to check; on expiry the state decides
//! what is due. A small RPC costs one timer entry, or none: its slot is checked once, usually after
//! its call has ended, and again only while something is pending. Slots that are not used again
//! acknowledge their last response (ADR 6).

use crate::endpoint::Endpoint;
use crate::error::CallError;
use crate::flow::{is_needed, needs_no_timer};
use crate::session::{Cause, Session, SessionId, SessionState};
use crate::timers::{Due, Expiry, TimerEntry, TimerKind};

/// Most timers handled in one [`Endpoint::on_deadline`], about 100 us of work; the rest follows in
/// the next pass of the event loop, after newly received packets.
const MAX_EXPIRIES: usize = 4096;

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
        due_ns = due_ns.min(self.io.wheel.next_ns());
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
        if self.io.tx.retry_ns() != 0 && now_ns >= self.io.tx.retry_ns() {
            self.io.tx.retry_now();
        }
        if now_ns >= self.io.tail_loss.due_ns {
            self.on_tail_loss();
        }
        if now_ns >= self.io.wheel.next_ns() {
            self.io.on_wheel(&mut self.peers);
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
            left = left.saturating_sub(1 + self.expire_entry(queue, entry));
        }
        if self.io.timers.overgrown() {
            let (sessions, sweep_ns) =
                (&self.sessions, self.admission.budget.memory_watch().due_ns);
            let (held_ns, host_ns) = (self.io.held.due_ns, self.io.tx.host.due_ns());
            self.io.timers.sift(|entry| match entry.kind {
                TimerKind::Sweep => entry.due_ns == sweep_ns,
                TimerKind::Held => entry.due_ns == held_ns,
                TimerKind::Host => entry.due_ns == host_ns,
                _ => sessions.client(entry.session).is_some_and(|s| is_needed(s, entry)),
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
        let TimerKind::Slot(slot_no) = entry.kind else { return false };
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return false };
        if slot.active || slot.quarantined {
            return false;
        }
        let done = needs_no_timer(&self.io.cfg, slot, dpp);
        slot.tracked &= !done;
        done
    }

    /// Handles one expired timer; returns its cost beyond one check.
    fn expire_entry(&mut self, queue: Due, entry: TimerEntry) -> usize {
        let walked = match entry.kind {
            TimerKind::Sweep => {
                self.sweep_requests(entry.due_ns);
                0
            }
            TimerKind::Held => {
                self.on_pause_end(entry.due_ns);
                0
            }
            TimerKind::Host => {
                self.io.on_host_timer(entry.due_ns);
                0
            }
            _ => self.expire_of_session(queue, entry),
        };
        self.apply_effects();
        walked
    }

    fn expire_of_session(&mut self, queue: Due, entry: TimerEntry) -> usize {
        let Some(mut flow) = self.client_flow(entry.session) else { return 0 };
        let peer = flow.s.peer;
        match flow.on_expiry(queue, entry) {
            Expiry::Done => {}
            Expiry::Walked(calls) => return calls,
            Expiry::Idle => {
                flow.shrink();
                self.sessions.client_slots.trim();
            }
            Expiry::Silent => self.give_up_peer(peer),
        }
        0
    }

    /// The datapath to a peer is dead (ADR 13): ends every client session with that peer, since they
    /// share the path.
    fn give_up_peer(&mut self, peer: u32) {
        let with_it = |(index, entry): (u32, &Session<C>)| match entry {
            Session::Client(s) if s.peer == peer && s.state == SessionState::Connected => {
                Some(SessionId { index, generation: s.generation })
            }
            _ => None,
        };
        let ended: Vec<_> = (0..).zip(self.sessions.iter()).filter_map(with_it).collect();
        for id in ended {
            self.fail_session(id.index, Cause::Error(CallError::DatapathSilent));
            self.outbox.failed.push_back(id);
            self.outbox.has_news = true;
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
}
