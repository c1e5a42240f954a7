//! The queue of deferred calls: accepted calls that are not on a slot yet.
//!
//! With thousands of sessions in use, a call would incur two successive cache misses: for its session,
//! which locates the slot, and for the slot. So a short call on a rarely used session is accepted
//! and put on its slot some calls later: its session is prefetched at once, its slot after four
//! more calls, and after another four both are cached. The remaining deferred calls are made before
//! a batch, and before a call on the same session that is not deferred, so the calls of a session
//! keep their order. Until then they count as waiting calls: cancelled, or failed with their
//! session, they were never executed.
//!
//! A call is rejected at once or not at all. A table of one byte per session records whether a
//! session accepts deferred calls, without access to the session.
//!
//! # Invariant
//! A session that [`Deferred::takes`] a call is a connected client session, and a request of
//! [`MOST`] or `Config::inline_max` bytes, the smaller, is one packet; no call waits in its queue, which
//! has room for more than [`SPAN`].

use std::collections::VecDeque;

use courser_buf::MsgBuf;

use crate::session::{QueuedCall, SessionId};

/// Most deferred calls at a time.
pub(crate) const SPAN: usize = 8;

/// Instead of a generation: the session accepts no deferred calls. Also for later generations,
/// which are rare; with one byte per session, the table of 20,000 sessions stays in the nearest
/// caches.
pub(crate) const NONE: u8 = u8::MAX;

/// Most bytes of a deferred request, if `Config::inline_max` is not less: sessions whose packets or
/// messages are smaller defer none.
pub(crate) const MOST: usize = 512;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Deferred<C> {
    /// Oldest first.
    pub(crate) calls: VecDeque<DeferredCall<C>>,
    /// By session: its generation, if it accepts deferred calls.
    pub(crate) takers: Vec<u8>,
}

/// A call whose request is a small packet.
#[derive(Debug)]
pub(crate) struct DeferredCall<C> {
    pub(crate) session: SessionId,
    pub(crate) req: MsgBuf,
    pub(crate) cont: C,
    pub(crate) seq: u64,
    pub(crate) expires_ns: u64,
    pub(crate) req_type: u16,
}

impl<C> DeferredCall<C> {
    /// The call, as made at `queued_ns`.
    #[inline]
    pub(crate) fn made(self, queued_ns: u64) -> (SessionId, QueuedCall<C>) {
        let DeferredCall { session, req, cont, seq, expires_ns, req_type } = self;
        (session, QueuedCall { req_type, req, cont, seq, queued_ns, expires_ns, one_way: false })
    }
}

impl<C> Default for Deferred<C> {
    fn default() -> Self {
        Deferred { calls: VecDeque::new(), takers: Vec::new() }
    }
}

impl<C> Deferred<C> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns whether a call on this session may be deferred.
    #[inline]
    pub(crate) fn takes(&self, session: SessionId) -> bool {
        match self.takers.get(session.index as usize) {
            Some(&taker) => taker != NONE && u32::from(taker) == session.generation,
            None => false, // with few sessions in use none is deferred
        }
    }

    /// Calls on this session are no longer deferred.
    #[inline]
    pub(crate) fn take_no_more(&mut self, session: u32) {
        if let Some(generation) = self.takers.get_mut(session as usize) {
            *generation = NONE;
        }
    }

    /// Calls are no longer deferred on any session.
    pub(crate) fn take_none(&mut self) {
        self.takers.clear();
    }

    /// Removes and returns the oldest deferred call that matches.
    pub(crate) fn take(
        &mut self,
        meant: impl Fn(&DeferredCall<C>) -> bool,
    ) -> Option<DeferredCall<C>> {
        let at = self.calls.iter().position(meant)?;
        self.calls.remove(at)
    }

    /// Number of deferred calls on this session.
    pub(crate) fn count(&self, session: SessionId) -> usize {
        self.calls.iter().filter(|call| call.session == session).count()
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.calls.capacity() * size_of::<DeferredCall<C>>() + self.takers.capacity()
    }
}
