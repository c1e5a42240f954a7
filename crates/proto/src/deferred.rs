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

use courser_buf::MsgBuf;

use crate::session::{QueuedCall, SessionId};

/// At most this many calls are deferred.
pub(crate) const SPAN: usize = 8;

/// In place of a generation: a session that takes no deferred call. Nor do those of later generations:
/// they are rare, and with a byte for each session the table of 20,000 stays in the nearest caches.
pub(crate) const NONE: u8 = u8::MAX;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Deferred<C> {
    /// The oldest first.
    pub(crate) calls: VecDeque<DeferredCall<C>>,
    /// By session: its generation, if it takes calls.
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
    /// The call as one that was made at `queued_ns`.
    #[inline(always)]
    pub(crate) fn made(self, queued_ns: u64) -> (SessionId, QueuedCall<C>) {
        let DeferredCall { session, req, cont, seq, expires_ns, req_type } = self;
        (session, QueuedCall { req_type, req, cont, seq, queued_ns, expires_ns })
    }
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
