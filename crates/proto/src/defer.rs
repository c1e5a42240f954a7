//! Deferral of calls ([`crate::deferred`]): with many sessions in use, calls are batched by eight, and
//! sessions and slots are prefetched in the meantime.

use courser_buf::MsgBuf;

use crate::deferred::{DeferredCall, MOST, NONE, SPAN};
use crate::endpoint::Endpoint;
use crate::error::{CallError, Executed};
use crate::flow::end_without_slot;
use crate::options::CallId;
use crate::session::{QueuedCall, Session, SessionId, SessionState};
use crate::slot::ClientSlot;

/// Number of later calls after which a call's slot is prefetched: by then its session, which
/// locates the slot, is in the cache.
const SLOT_AT: usize = 4;

impl<C> Endpoint<C> {
    /// Most bytes of a request that is deferred.
    #[inline]
    pub(crate) fn most_deferred(&self) -> usize {
        self.io.cfg.inline_max.min(MOST)
    }

    /// A short call was made at once; the next one on this session may be deferred.
    #[inline]
    pub(crate) fn may_defer_next(&mut self, session: SessionId) {
        if self.working_set.is_large() && self.io.cfg.call_queue > SPAN {
            self.defer_next(session);
        }
    }

    #[inline(never)] // not called with few sessions
    fn defer_next(&mut self, session: SessionId) {
        let at = session.index as usize;
        let Some(Session::Client(s)) = self.sessions.get(at) else { return };
        if s.most_in_a_packet() >= self.most_deferred() {
            if self.deferred.takers.len() <= at {
                self.deferred.takers.resize(self.sessions.len(), NONE);
            }
            self.deferred.takers[at] = u8::try_from(session.generation).unwrap_or(NONE);
        }
    }

    /// Accepts a call on a session that [`Deferred::takes`] it.
    #[inline(never)] // not reached with few sessions
    pub(crate) fn defer(
        &mut self,
        session: SessionId,
        req_type: u16,
        req: MsgBuf,
        cont: C,
        expires_ns: u64,
    ) -> CallId {
        let seq = self.io.stats.calls;
        self.io.stats.calls += 1;
        self.sessions.prefetch(session.index);
        let calls = &mut self.deferred.calls;
        let oldest = if calls.len() < SPAN { None } else { calls.pop_front() };
        calls.push_back(DeferredCall { session, req, cont, seq, expires_ns, req_type });
        if let Some(at) = calls.len().checked_sub(1 + SLOT_AT) {
            self.fetch_slot_of(at);
        }
        if let Some(oldest) = oldest {
            self.make(oldest);
        }
        CallId { session, seq }
    }

    /// Prefetches the slot of a deferred call.
    #[inline]
    fn fetch_slot_of(&self, at: usize) {
        if let Some(call) = self.deferred.calls.get(at)
            && let Some(Session::Client(s)) = self.sessions.get(call.session.index as usize)
            && let Some(slot) = s.slots.get(s.free.trailing_zeros() as usize)
        {
            slot.prefetch();
        }
    }

    /// Puts a deferred call on its slot.
    #[inline]
    fn make(&mut self, call: DeferredCall<C>) {
        let (session, call) = call.made(self.io.now_ns);
        if let Err(call) = self.start_single(session, call) {
            self.make_otherwise(session, call);
        }
    }

    /// Makes a call that finds no free slot, or has expired.
    fn make_otherwise(&mut self, session: SessionId, call: QueuedCall<C>) {
        let Some(mut flow) = self.awake_flow(session.index, |_| true) else {
            let error = CallError::Closed(Executed::Never);
            return end_without_slot((&mut self.io, &mut self.outbox), session, call, error);
        };
        flow.call_later(call);
        flow.start_queued();
        if flow.s.waits() {
            self.deferred.take_no_more(session.index);
        }
    }

    /// Makes the deferred calls for a batch. Their requests may be appended, since they can no
    /// longer be taken back. They do not overtake queued calls, many of which are of the same
    /// session.
    pub(crate) fn make_deferred_for_batch(&mut self) {
        if !self.io.tx.has_queued() {
            self.io.open_append();
        }
        self.make_deferred();
        self.io.tx.close_append();
    }

    /// Makes the deferred calls of this session before a call that is not deferred.
    #[inline]
    pub(crate) fn make_deferred_of(&mut self, session: SessionId) {
        if !self.deferred.is_empty() && self.deferred.count(session) > 0 {
            self.make_deferred();
        }
    }

    /// Makes all deferred calls. The cache misses of their slots overlap.
    pub(crate) fn make_deferred(&mut self) {
        let count = self.deferred.calls.len();
        (count.saturating_sub(SLOT_AT)..count).for_each(|at| self.fetch_slot_of(at));
        while let Some(oldest) = self.deferred.calls.pop_front() {
            self.make(oldest);
        }
    }

    /// Checks the invariant, and the order of calls; for debug builds and simulations.
    pub(crate) fn check_deferred(&self) {
        assert!(self.deferred.calls.len() <= SPAN);
        for DeferredCall { session, seq, .. } in &self.deferred.calls {
            let Some(Session::Client(s)) = self.sessions.get(session.index as usize) else {
                panic!("a call is deferred on {session:?}, which is not a client session");
            };
            assert_eq!(s.generation, session.generation, "deferred on a session that has ended");
            let earlier = |slot: &ClientSlot<C>| !slot.active || slot.seq < *seq;
            assert!(
                s.slots.iter().all(earlier) && s.queue.iter().all(|c| c.seq < *seq),
                "overtaken"
            );
        }
        assert!(
            self.deferred.takers.len() <= self.sessions.len(),
            "calls are accepted on no session"
        );
        let entries = self.deferred.takers.iter().zip(self.sessions.iter()).enumerate();
        for (index, (&generation, entry)) in entries.filter(|(_, (g, _))| **g != NONE) {
            let Session::Client(s) = entry else {
                panic!("calls are accepted on {index}, which is not a client session");
            };
            assert_eq!(u32::from(generation), s.generation, "session {index}: wrong generation");
            assert_eq!(s.state, SessionState::Connected, "session {index}");
            assert!(!s.waits() && self.io.cfg.call_queue > SPAN, "session {index}: calls wait");
            let most = s.most_in_a_packet();
            assert!(most >= self.most_deferred(), "session {index}: small packets");
        }
    }
}
