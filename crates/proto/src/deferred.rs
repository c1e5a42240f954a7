//! Calls that were taken and are not on a slot yet.
//!
//! With many thousand sessions a call waits for memory twice, one after the other: for its session,
//! which knows the slot, and for the slot. So a short call on a session that is seldom used is taken,
//! and made some calls later: its session is asked for at once, its slot when four more calls have
//! been taken, and after another four both are there. All that is left is made before a stage, and
//! before anything else happens to calls or to a client session; so calls stay in their order, and
//! nobody can tell the difference but by the time.
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

/// So many calls at most are deferred.
const SPAN: usize = 8;

/// A call's slot is asked for when so many calls have been taken after it: by then its session,
/// which tells where the slot is, has come.
const SLOT_AT: usize = 4;

/// A session that takes no deferred call.
const NONE: u8 = 0;

/// A session of this generation that takes them. Of 128 generations one has the same mark: a call on
/// a session that ended so long ago may be taken, and then ends at once.
#[inline(always)]
fn mark(generation: u32) -> u8 {
    generation as u8 | 0x80
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Deferred<C> {
    /// The oldest first.
    calls: VecDeque<DeferredCall<C>>,
    /// By session.
    marks: Vec<u8>,
}

/// A call without a deadline whose request is a small packet.
#[derive(Debug)]
struct DeferredCall<C> {
    session: SessionId,
    req: MsgBuf,
    cont: C,
    seq: u64,
    req_type: u16,
}

impl<C> Default for Deferred<C> {
    fn default() -> Self {
        Deferred { calls: VecDeque::new(), marks: Vec::new() }
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
        self.marks.get(session.index as usize) == Some(&mark(session.generation))
    }

    /// Calls on this session are made at once from now on.
    #[inline]
    pub(crate) fn take_no_more(&mut self, session: u32) {
        if let Some(taken) = self.marks.get_mut(session as usize) {
            *taken = NONE;
        }
    }

    /// Calls on this session that are deferred now.
    pub(crate) fn count(&self, session: SessionId) -> usize {
        self.calls.iter().filter(|call| call.session == session).count()
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.calls.capacity() * size_of::<DeferredCall<C>>() + self.marks.capacity()
    }
}

impl<C> Endpoint<C> {
    /// A short call was made at once; the next on this session may be deferred.
    #[inline(always)]
    pub(crate) fn may_defer_next(&mut self, session: SessionId) {
        if self.sessions.len() >= self.cfg.far_sessions {
            self.defer_next(session);
        }
    }

    #[cold]
    fn defer_next(&mut self, session: SessionId) {
        let (at, cfg) = (session.index as usize, &self.cfg);
        let Some(Session::Client(s)) = self.sessions.get(at) else { return };
        if cfg.prefetch
            && cfg.call_queue > SPAN
            && usize::from(s.most_in_a_packet) >= cfg.inline_max
        {
            if self.deferred.marks.len() <= at {
                self.deferred.marks.resize(self.sessions.len(), NONE);
            }
            self.deferred.marks[at] = mark(session.generation);
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
        calls.push_back(DeferredCall { session, req, cont, seq, req_type });
        let count = calls.len();
        if let Some(at) = count.checked_sub(1 + SLOT_AT) {
            self.fetch_slot_of(at);
        }
        if count > SPAN {
            self.make_oldest();
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

    #[inline(never)] // one copy of what makes a call
    fn make_oldest(&mut self) {
        let Some(call) = self.deferred.calls.pop_front() else { return };
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
        self.deferred.take_no_more(session.index);
        match self.client_session_at(session.index) {
            Some(s) if s.generation == session.generation && !s.has_failed() => {
                s.with_queue(|queue| queue.push_back(call));
                self.start_queued(session.index);
            }
            // It has the mark of a session that ended long ago.
            _ => self.end_waiting(session, call, CallError::Closed(Executed::Never)),
        }
    }

    /// Makes the calls that were deferred. Their slots come from memory together.
    #[inline(always)]
    pub(crate) fn make_deferred(&mut self) {
        if !self.deferred.is_empty() {
            self.make_all();
        }
    }

    #[inline(never)]
    fn make_all(&mut self) {
        let count = self.deferred.calls.len();
        (count.saturating_sub(SLOT_AT)..count).for_each(|at| self.fetch_slot_of(at));
        while !self.deferred.is_empty() {
            self.make_oldest();
        }
    }

    /// Checks the invariant; for debug builds and simulations.
    pub(crate) fn check_deferred(&self) {
        assert!(self.deferred.calls.len() <= SPAN);
        for (index, &taken) in self.deferred.marks.iter().enumerate().filter(|(_, m)| **m != NONE) {
            let Some(Session::Client(s)) = self.sessions.get(index) else {
                panic!("calls are taken on {index}, which is no client session");
            };
            assert_eq!(taken, mark(s.generation), "session {index}: of another one");
            assert_eq!(s.state, SessionState::Connected, "session {index}");
            assert!(!s.waits, "session {index}: calls wait");
            let most = usize::from(s.most_in_a_packet);
            assert!(most >= self.cfg.inline_max, "session {index}: small packets");
        }
    }
}
