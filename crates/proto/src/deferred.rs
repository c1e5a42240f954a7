//! Calls that were taken and are not on a slot yet.
//!
//! With many thousand sessions a call waits for memory twice, one after the other: for its session,
//! which knows the slot, and for the slot. So a short call on a session that is seldom used is taken,
//! and made some calls later: its session is asked for at once, its slot when four more calls have
//! been taken, and after another four both are there. All that is left is made before a stage, and
//! before a call on the same session that is not deferred; so calls of a session stay in their order.
//! Until then they are calls that wait: given up, alone or with their session, they were never sent.
//!
//! A call is refused at once or not at all. Whether a session takes one can be seen here, from a
//! byte for each, without looking at the session.
//!
//! # Invariant
//! A session that [`Deferred::takes`] a call is this endpoint's as a client, connected, and takes
//! requests of `Config::inline_max` bytes in one packet; no call waits in its queue, which has room
//! for more than [`SPAN`].

use std::collections::VecDeque;

use courser_buf::{MsgBuf, prefetch};

use crate::ahead::fetch_client_slot;
use crate::endpoint::Endpoint;
use crate::error::{CallError, Executed};
use crate::options::CallId;
use crate::session::{QueuedCall, Session, SessionId, SessionState};
use crate::slot::ClientSlot;

/// So many calls at most are deferred.
const SPAN: usize = 8;

/// A call's slot is asked for when so many calls have been taken after it: by then its session,
/// which tells where the slot is, has come.
const SLOT_AT: usize = 4;

/// In place of a generation: a session that takes no deferred call. Nor do those of later generations:
/// they are rare, and with a byte for each session the table of 20,000 stays in the nearest caches.
const NONE: u8 = u8::MAX;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Deferred<C> {
    /// The oldest first.
    calls: VecDeque<DeferredCall<C>>,
    /// By session: its generation, if it takes calls.
    takers: Vec<u8>,
}

/// A call without a deadline whose request is a small packet.
#[derive(Debug)]
pub(crate) struct DeferredCall<C> {
    pub(crate) session: SessionId,
    req: MsgBuf,
    cont: C,
    pub(crate) seq: u64,
    req_type: u16,
}

impl<C> Default for Deferred<C> {
    fn default() -> Self {
        Deferred { calls: VecDeque::new(), takers: Vec::new() }
    }
}

impl<C> Deferred<C> {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Whether a call on this session may be deferred.
    #[inline(always)]
    pub(crate) fn takes(&self, session: SessionId) -> bool {
        match self.takers.get(session.index as usize) {
            Some(&taker) => taker != NONE && u32::from(taker) == session.generation,
            None => false, // with few sessions there are none
        }
    }

    /// Calls on this session are made at once from now on.
    #[inline]
    pub(crate) fn take_no_more(&mut self, session: u32) {
        if let Some(generation) = self.takers.get_mut(session as usize) {
            *generation = NONE;
        }
    }

    /// Calls on this session that are deferred now.
    pub(crate) fn count(&self, session: SessionId) -> usize {
        self.calls.iter().filter(|call| call.session == session).count()
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.calls.capacity() * size_of::<DeferredCall<C>>() + self.takers.capacity()
    }
}

impl<C> Endpoint<C> {
    /// A short call was made at once; the next on this session may be deferred.
    #[inline(always)]
    pub(crate) fn may_defer_next(&mut self, session: SessionId) {
        if self.looks_far() && self.cfg.call_queue > SPAN {
            self.defer_next(session);
        }
    }

    #[inline(never)] // with few sessions it is not called
    fn defer_next(&mut self, session: SessionId) {
        let at = session.index as usize;
        let Some(Session::Client(s)) = self.sessions.get(at) else { return };
        if usize::from(s.most_in_a_packet) >= self.cfg.inline_max {
            if self.deferred.takers.len() <= at {
                self.deferred.takers.resize(self.sessions.len(), NONE);
            }
            self.deferred.takers[at] = u8::try_from(session.generation).unwrap_or(NONE);
        }
    }

    /// Takes a call on a session that [`Deferred::takes`] it.
    #[inline(never)] // calls on few sessions do not come here
    pub(crate) fn defer(
        &mut self,
        session: SessionId,
        req_type: u16,
        req: MsgBuf,
        cont: C,
    ) -> CallId {
        let seq = self.stats.calls;
        self.stats.calls += 1;
        if let Some(entry) = self.sessions.get(session.index as usize) {
            prefetch(entry);
        }
        let calls = &mut self.deferred.calls;
        let oldest = if calls.len() < SPAN { None } else { calls.pop_front() };
        calls.push_back(DeferredCall { session, req, cont, seq, req_type });
        if let Some(at) = calls.len().checked_sub(1 + SLOT_AT) {
            self.fetch_slot_of(at);
        }
        if let Some(oldest) = oldest {
            self.make(oldest);
        }
        CallId { session, seq }
    }

    /// Asks for the slot of a deferred call.
    #[inline(always)]
    fn fetch_slot_of(&self, at: usize) {
        if let Some(call) = self.deferred.calls.get(at)
            && let Some(Session::Client(s)) = self.sessions.get(call.session.index as usize)
            && let Some(slot) = s.slots.get(s.free.trailing_zeros() as usize)
        {
            fetch_client_slot(slot);
        }
    }

    /// Puts a deferred call on its slot.
    #[inline(always)] // into what takes the next one, where most are made
    fn make(&mut self, call: DeferredCall<C>) {
        let DeferredCall { session, req, cont, seq, req_type } = call;
        if let Err((req, cont)) = self.start_short(session, req_type, req, cont, seq) {
            let (queued_ns, expires_ns) = (self.now_ns, u64::MAX);
            let call = QueuedCall { req_type, req, cont, seq, queued_ns, expires_ns };
            self.make_otherwise(session, call);
        }
    }

    /// Makes a call that does not find a free slot, or whose session's slots are asleep.
    #[cold]
    fn make_otherwise(&mut self, session: SessionId, call: QueuedCall<C>) {
        let Some(s) = self.client_session_at(session.index) else {
            return self.end_waiting(session, call, CallError::Closed(Executed::Never));
        };
        s.with_queue(|queue| queue.push_back(call));
        self.start_queued(session.index);
        if self.client_session_at(session.index).is_none_or(|s| s.waits) {
            self.deferred.take_no_more(session.index);
        }
    }

    /// Takes the oldest of the deferred calls that are meant back.
    pub(crate) fn take_deferred(
        &mut self,
        meant: impl Fn(&DeferredCall<C>) -> bool,
    ) -> Option<(SessionId, QueuedCall<C>)> {
        let at = self.deferred.calls.iter().position(meant)?;
        let DeferredCall { session, req, cont, seq, req_type } = self.deferred.calls.remove(at)?;
        let (queued_ns, expires_ns) = (self.now_ns, u64::MAX);
        Some((session, QueuedCall { req_type, req, cont, seq, queued_ns, expires_ns }))
    }

    /// There will be a call on this session that is not deferred: those that are come first.
    #[inline(always)]
    pub(crate) fn make_deferred_of(&mut self, session: SessionId) {
        if !self.deferred.is_empty() && self.deferred.count(session) > 0 {
            self.make_deferred();
        }
    }

    /// Makes the calls that were deferred. Their slots come from memory together.
    #[inline(never)] // who has few sessions asks whether there are any, and that is all
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
                panic!("a call is deferred on {session:?}, which is no client session");
            };
            assert_eq!(s.generation, session.generation, "deferred on a session that has ended");
            let earlier = |slot: &ClientSlot<C>| !slot.active || slot.seq < *seq;
            assert!(
                s.slots.iter().all(earlier) && s.queue.iter().all(|c| c.seq < *seq),
                "overtaken"
            );
        }
        let takers = self.deferred.takers.iter().enumerate().filter(|(_, g)| **g != NONE);
        for (index, &generation) in takers {
            let Some(Session::Client(s)) = self.sessions.get(index) else {
                panic!("calls are taken on {index}, which is no client session");
            };
            assert_eq!(u32::from(generation), s.generation, "session {index}: of another one");
            assert_eq!(s.state, SessionState::Connected, "session {index}");
            assert!(!s.waits && self.cfg.call_queue > SPAN, "session {index}: calls wait");
            let most = usize::from(s.most_in_a_packet);
            assert!(most >= self.cfg.inline_max, "session {index}: small packets");
        }
    }
}
