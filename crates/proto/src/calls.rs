//! Calls of the application: submission, and completions that wait (E2, E8, E30). A call that finds no
//! free slot waits in its session's queue.

use courser_buf::MsgBuf;

use crate::endpoint::Endpoint;
use crate::error::{RejectReason, SessionEnd};
use crate::event::Completion;
use crate::options::{CallId, CallOptions};
use crate::session::room::AwaitedRoom;
use crate::session::{ClientSession, QueuedCall, Session, SessionId};

impl<C> Endpoint<C> {
    /// [`Endpoint::call_with`] without options.
    /// # Errors
    /// The reason, with the buffer and the continuation.
    #[inline]
    pub fn call(
        &mut self,
        session: SessionId,
        req_type: u16,
        req: MsgBuf,
        cont: C,
    ) -> Result<CallId, (RejectReason, MsgBuf, C)> {
        self.call_with(session, req_type, req, cont, CallOptions::new())
    }

    /// Queues a call (E2, E8); nothing is sent before [`Endpoint::poll_transmit`]. When all slots
    /// are in use, or the session is still connecting, the call waits in the session's queue. With
    /// many sessions in use (`Config::prefetch_min_sessions`) a small call may be deferred: it is put on
    /// its slot up to eight calls later, at the latest before the next batch. The returned number can
    /// be passed to [`Endpoint::cancel`].
    /// # Errors
    /// The reason, with the buffer and the continuation.
    #[inline(always)] // only the branch is inlined: each case is a function of its own
    pub fn call_with(
        &mut self,
        session: SessionId,
        req_type: u16,
        req: MsgBuf,
        cont: C,
        options: CallOptions,
    ) -> Result<CallId, (RejectReason, MsgBuf, C)> {
        let expires_ns = options.deadline_ns.unwrap_or(u64::MAX);
        if self.deferred.takes(session) && req.len() <= self.most_deferred() {
            return Ok(self.defer(session, req_type, req, cont, expires_ns));
        }
        self.call_now(session, req_type, req, cont, expires_ns)
    }

    /// [`Endpoint::call_with`] for a call that is not deferred.
    #[inline(never)]
    fn call_now(
        &mut self,
        session: SessionId,
        req_type: u16,
        req: MsgBuf,
        cont: C,
        expires_ns: u64,
    ) -> Result<CallId, (RejectReason, MsgBuf, C)> {
        self.make_deferred_of(session);
        let (seq, queued_ns) = (self.io.stats.calls, self.io.now_ns);
        let call = QueuedCall { req_type, req, cont, seq, queued_ns, expires_ns, one_way: false };
        if let Err(call) = self.start_single(session, call) {
            return self.call_rare(session, call);
        }
        self.io.stats.calls += 1;
        self.may_defer_next(session);
        Ok(CallId { session, seq })
    }

    /// A call that is rejected, waits, has expired, or whose request has several packets.
    #[inline(never)] // outlined to keep registers free for other calls
    pub(crate) fn call_rare(
        &mut self,
        session: SessionId,
        call: QueuedCall<C>,
    ) -> Result<CallId, (RejectReason, MsgBuf, C)> {
        let limit = self.io.cfg.call_queue;
        let (seq, bytes) = (call.seq, call.req.len());
        let is_late = call.expires_ns <= call.queued_ns;
        let is_open = |s: &ClientSession<C>| s.generation == session.generation && !s.has_failed();
        let fits = |s: &ClientSession<C>| bytes <= s.agreed.max_msg_size as usize;
        let starts = |s: &mut _| is_open(s) && fits(s) && !s.has_to_wait() && !is_late;
        let Some(mut flow) = self.awake_flow(session.index, starts) else {
            return Err((self.no_client(session), call.req, call.cont));
        };
        if !is_open(flow.s) {
            return Err((RejectReason::NoSession(SessionEnd::Unknown), call.req, call.cont));
        }
        if !fits(flow.s) {
            let refused = RejectReason::TooLarge { bytes, limit: flow.s.agreed.max_msg_size };
            return Err((refused, call.req, call.cont));
        }
        let waits = flow.s.has_to_wait();
        if waits && flow.s.queue.len() >= limit {
            if call.one_way {
                flow.s.await_room(AwaitedRoom::LARGE);
            }
            return Err((RejectReason::QueueFull { limit }, call.req, call.cont));
        }
        flow.io.stats.calls += 1;
        if waits || is_late {
            flow.call_later(call);
        } else {
            flow.start_call(call);
        }
        if waits {
            self.deferred.take_no_more(session.index);
        }
        Ok(CallId { session, seq })
    }

    /// Why a session takes no calls that is not a client's.
    #[cold]
    fn no_client(&self, session: SessionId) -> RejectReason {
        match self.sessions.get(session.index as usize) {
            Some(Session::Server(s)) if s.generation == session.generation => {
                RejectReason::NotClient
            }
            _ => RejectReason::NoSession(SessionEnd::Unknown),
        }
    }

    /// Returns whether a completed call waits for the transport to release its request buffer:
    /// flush the transport, then call [`Endpoint::poll_completion`] (E24, E25).
    #[inline]
    pub fn needs_flush(&self) -> bool {
        self.outbox.done.front().is_some_and(|c| c.request.is_shared())
    }

    /// Calls that ended without a packet (timeouts, failures) or whose buffer the transport held.
    /// `None` when there is none, or [`Endpoint::needs_flush`].
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion<'static, C>> {
        if self.outbox.done.is_empty() {
            return None;
        }
        if self.needs_flush() {
            // An incomplete frame may be what references it, and no flush would end that.
            self.io.tx.copy_references();
            if self.needs_flush() {
                return None;
            }
        }
        self.outbox.done.pop_front()
    }
}
