//! Calls that end before their answer: cancellation and expired deadlines at the client (ADR 15).
//!
//! The result depends on the progress of the call; the statement about its handler is always true:
//!
//! | the call | its slot | the handler ran |
//! | --- | --- | --- |
//! | waits for a slot | none | never |
//! | on a slot, nothing sent | free; its number is used again, since the server expects it next | never |
//! | sent in part | quarantine | never: the rest will not be sent |
//! | sent, no answer | quarantine | maybe |
//! | answered in part | free; the rest of the answer is discarded | yes |
//!
//! A slot in *quarantine* has no call, credits or buffers, but its request number is still in use
//! at the server, which would reject the next one. So the slot sends cancellations, with back-off,
//! until the server answers the request in any way. That takes as long as its handler; the session
//! has one slot less until then ([`crate::SessionStats`]).

use std::collections::VecDeque;

use crate::deferred::DeferredCall;
use crate::endpoint::Endpoint;
use crate::error::{CallError, Executed};
use crate::event::Completion;
use crate::mutant::{self, Mutant};
use crate::options::CallId;
use crate::overload::serve_newest;
use crate::session::{QueuedCall, Session, SessionId};
use crate::slot::{ClientSlot, Ending};
use crate::stats::RxDrop;
use crate::timers::{QUEUE, TimerEntry};
use crate::tx::TxItem;

/// Number of newest waiting calls that are searched for one with a deadline.
const NEWEST_SEARCHED: usize = 8;

impl<C> Endpoint<C> {
    /// Cancels a call: it ends with [`CallError::Cancelled`], which states whether its handler ran,
    /// and which [`Endpoint::poll_completion`] returns. The server is informed if it may have
    /// received the request. `false`: the call has ended already.
    /// Cost: a search of the deferred calls, eight at most, and of the slots of the session, or a
    /// binary search in its queue.
    pub fn cancel(&mut self, call: CallId) -> bool {
        let is_it = |c: &DeferredCall<C>| c.session == call.session && c.seq == call.seq;
        if let Some((session, deferred)) = self.take_deferred(is_it) {
            self.end_waiting(session, deferred, CallError::Cancelled(Executed::Never));
            return true;
        }
        let index = call.session.index;
        let Some(s) = self.sessions.client_mut(index) else { return false };
        if s.generation != call.session.generation {
            return false;
        }
        let on_slot = |slot: &ClientSlot<C>| slot.active && slot.seq == call.seq;
        if let Some(slot_no) = s.slots.iter().position(on_slot) {
            self.end_early(index, slot_no as u8, CallError::Cancelled);
        } else if let Ok(at) = s.queue.binary_search_by_key(&call.seq, |c| c.seq)
            && let Some(waiting) = s.with_queue(|queue| queue.remove(at))
        {
            self.end_waiting(call.session, waiting, CallError::Cancelled(Executed::Never));
        } else {
            return false;
        }
        true
    }

    /// Ends the call of a slot in any state.
    #[cold]
    pub(crate) fn end_early(
        &mut self,
        session: u32,
        slot_no: u8,
        error: fn(Executed) -> CallError,
    ) {
        let Some(s) = self.sessions.client_mut(session) else { return };
        let step = s.slots.count();
        let slot = &mut s.slots[usize::from(slot_no)];
        let (ending, executed) = slot.ending();
        let completion = match ending {
            Ending::Quarantine if mutant::is_on(Mutant::NoQuarantine) => {
                self.complete(session, slot_no, Err(error(executed)))
            }
            Ending::Rewind => {
                slot.rewind(step);
                self.complete(session, slot_no, Err(error(executed)))
            }
            Ending::Free => {
                slot.ack_owed = true;
                self.complete(session, slot_no, Err(error(executed)))
            }
            Ending::Quarantine => self.quarantine(session, slot_no, error(executed)),
        };
        self.arm_soon(session, slot_no);
        self.count_ending(&error(executed));
        if let Some(Completion { cont, session, request, .. }) = completion {
            let result = Err(error(executed));
            self.outbox.done.push_back(Completion { cont, session, request, result });
        }
    }

    /// Arms a timer for a slot whose call has ended: a call or cancellation that was never sent has
    /// no timeout, and the timer of another may be far ahead. Without a timer its response would
    /// not be acknowledged (ADR 6).
    #[cold]
    pub(crate) fn arm_soon(&mut self, session: u32, slot_no: u8) {
        let due_ns = self.io.now_ns.saturating_add(self.io.cfg.rto_min_ns);
        self.arm_slot(session, slot_no, due_ns);
    }

    /// Ends a call that has left its session's queue.
    pub(crate) fn end_waiting(
        &mut self,
        session: SessionId,
        call: QueuedCall<C>,
        error: CallError,
    ) {
        let QueuedCall { req, cont, one_way, .. } = call;
        self.io.stats.errors += 1;
        self.io.stats.messages_failed += u64::from(one_way);
        self.count_ending(&error);
        self.outbox.done.push_back(Completion { cont, session, request: req, result: Err(error) });
        self.note_room(session.index);
    }

    pub(crate) fn count_ending(&mut self, error: &CallError) {
        match error {
            CallError::DeadlineExceeded(_) => self.io.stats.expired += 1,
            CallError::Cancelled(_) => self.io.stats.cancelled += 1,
            _ => {}
        }
    }

    // ---- quarantine ---------------------------------------------------------------------------

    /// Removes the call from a slot that may not be used until the server has answered.
    fn quarantine(
        &mut self,
        session: u32,
        slot_no: u8,
        error: CallError,
    ) -> Option<Completion<'static, C>> {
        let now_ns = self.io.now_ns;
        let s = self.sessions.client_mut(session)?;
        s.slots[usize::from(slot_no)].quarantined = true;
        let completion = self.complete(session, slot_no, Err(error));
        let s = self.sessions.client_mut(session)?;
        let slot = &mut s.slots[usize::from(slot_no)];
        slot.retries = 0;
        slot.last_rx_ns = now_ns; // restarts the server's time to answer
        slot.deadline_ns = u64::MAX; // until the cancellation is sent
        slot.queued = true;
        let req_num = slot.req_num;
        self.io.tx.push(TxItem::Cancel { session, slot: slot_no, req_num });
        completion
    }

    /// A cancellation was not answered: send it again.
    pub(crate) fn cancel_again(&mut self, session: u32, slot_no: u8, now_ns: u64) {
        let Some(s) = self.sessions.client_mut(session) else { return };
        let slot = &mut s.slots[usize::from(slot_no)];
        slot.retries = slot.retries.saturating_add(1);
        if !std::mem::replace(&mut slot.queued, true) {
            let req_num = slot.req_num;
            self.io.tx.push(TxItem::Cancel { session, slot: slot_no, req_num });
        }
        self.extend_deadline(session, slot_no, now_ns);
    }

    /// A packet from the server for a request without a call, which would be dropped for `reason`.
    /// Any answer ends the quarantine of its slot; "in progress" delays the next cancellation.
    #[cold]
    pub(crate) fn rx_quarantined(
        &mut self,
        session: u32,
        req_num: u32,
        answered: bool,
        reason: RxDrop,
    ) -> Result<(), RxDrop> {
        let now_ns = self.io.now_ns;
        // Dropped as stale: the session belongs to the peer, and is connected.
        let s =
            self.sessions.client_mut(session).filter(|_| reason == RxDrop::Stale).ok_or(reason)?;
        let slot_no = (req_num & (s.slots.count() - 1)) as u8;
        let slot = s.slots.get_mut(usize::from(slot_no)).ok_or(reason)?;
        if !slot.quarantined || slot.req_num != req_num {
            return Err(reason);
        }
        slot.last_rx_ns = now_ns;
        if !answered {
            slot.retries = slot.retries.saturating_add(1);
            self.extend_deadline(session, slot_no, now_ns);
            return Ok(());
        }
        slot.release_answered(now_ns);
        s.free |= 1 << slot_no;
        self.arm_soon(session, slot_no);
        self.start_queued(session);
        Ok(())
    }

    // ---- calls that wait for a slot -----------------------------------------------------------

    /// Ensures a timer for the queue by the time at which a waiting call expires.
    pub(crate) fn time_queue(&mut self, session: u32, expires_ns: u64) {
        let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else { return };
        s.queue_times.expires_ns = s.queue_times.expires_ns.min(expires_ns);
        if s.queue_times.expires_ns < s.queue_times.timer_ns {
            let (due_ns, generation) = (s.queue_times.expires_ns, s.generation);
            let entry = TimerEntry { due_ns, session, generation, slot: QUEUE };
            s.queue_times.timer_ns = self.io.timers.arm_later(entry);
        }
    }

    /// Ends the expired calls of a queue, in one walk. Afterwards `QueueTimes::expires_ns` is the
    /// earliest deadline of the others.
    #[cold]
    pub(crate) fn expire_queue(&mut self, session: u32, now_ns: u64) {
        let Some(s) = self.sessions.client_mut(session) else { return };
        let id = SessionId { index: session, generation: s.generation };
        let waiting = s.queue.len();
        s.queue_times.expires_ns = u64::MAX;
        for _ in 0..waiting {
            let Some(s) = self.sessions.client_mut(session) else { return };
            let Some(call) = s.with_queue(VecDeque::pop_front) else { return };
            if call.expires_ns <= now_ns {
                self.end_waiting(id, call, CallError::DeadlineExceeded(Executed::Never));
            } else {
                s.queue_times.expires_ns = s.queue_times.expires_ns.min(call.expires_ns);
                s.with_queue(|queue| queue.push_back(call));
            }
        }
    }

    /// Queues a call that has to wait, or ends it if it had expired when it was made.
    #[inline(never)] // not on the path of a call that finds a slot
    pub(crate) fn call_later(&mut self, session: SessionId, call: QueuedCall<C>) {
        let expires_ns = call.expires_ns;
        if expires_ns <= self.io.now_ns {
            self.end_waiting(session, call, CallError::DeadlineExceeded(Executed::Never));
        } else if let Some(s) = self.sessions.client_mut(session.index) {
            s.with_queue(|queue| queue.push_back(call));
            if expires_ns != u64::MAX {
                self.time_queue(session.index, expires_ns);
            }
        }
    }

    /// The next waiting call to serve: the oldest, or under overload the newest with a deadline
    /// ([`serve_newest`]). Expired calls found on the way end here.
    #[inline]
    pub(crate) fn next_waiting(&mut self, session: u32) -> Option<QueuedCall<C>> {
        let s = self.sessions.client_mut(session)?;
        if s.queue.front()?.expires_ns == u64::MAX {
            return s.with_queue(VecDeque::pop_front);
        }
        self.next_by_deadline(session)
    }

    #[cold]
    fn next_by_deadline(&mut self, session: u32) -> Option<QueuedCall<C>> {
        let now_ns = self.io.now_ns;
        loop {
            let s = self.sessions.client_mut(session)?;
            let id = SessionId { index: session, generation: s.generation };
            let oldest = s.queue.front()?;
            let budget_ns = oldest.expires_ns.saturating_sub(oldest.queued_ns);
            let waited_ns = now_ns.saturating_sub(oldest.queued_ns);
            let timed = |c: &QueuedCall<C>| c.expires_ns != u64::MAX;
            let at = if timed(oldest) && serve_newest(waited_ns, budget_ns) {
                let newest = s.queue.iter().rev().take(NEWEST_SEARCHED).position(timed);
                newest.map_or(0, |back| s.queue.len() - 1 - back)
            } else {
                0
            };
            let call = s.with_queue(|queue| queue.remove(at))?;
            if call.expires_ns > now_ns {
                return Some(call);
            }
            self.end_waiting(id, call, CallError::DeadlineExceeded(Executed::Never));
        }
    }
}
