//! What handlers, continuations and timers can do.

use std::time::Duration;

use courser_buf::{AllocError, ArenaStats, MsgBuf};
use courser_proto::{
    CallId, Endpoint, EndpointStats, ReplyError, RequestId, SessionId, SessionState, SessionStats,
    Status,
};

use crate::call::CallBuilder;
use crate::conts::Cont;
use crate::core::Core;
use crate::error::{CallRejected, SessionError};
use crate::message::{Answerer, Completion, Reply, ReplyHandle};

/// The endpoint, as handlers and continuations see it. Nothing here blocks or does I/O: calls and
/// replies are queued and leave when the event loop goes on.
pub struct Context<'a> {
    pub(crate) core: &'a mut Core,
    /// The request that is being handled and has no answer yet.
    pub(crate) request: Option<RequestId>,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("request", &self.request).finish_non_exhaustive()
    }
}

/// The request that a reply answers.
struct To<'a>(&'a mut Endpoint<Cont>, RequestId);

impl Answerer for To<'_> {
    type Given = Result<(), ReplyError>;

    #[inline(always)]
    fn bytes(self, bytes: &[u8]) -> Self::Given {
        self.0.reply_bytes(self.1, bytes)
    }

    #[inline]
    fn msg(self, msg: MsgBuf) -> Self::Given {
        self.0.reply_msg(self.1, msg)
    }
}

impl Context<'_> {
    /// Answers the request that is being handled. A second answer, or one outside a handler, is
    /// ignored; a response that is too large or finds no memory reaches the client as an error.
    /// [`Context::try_reply`] tells.
    #[inline]
    pub fn reply(&mut self, reply: impl Reply) {
        // The client was told; the handler did not ask.
        let _ = self.try_reply(reply);
    }

    /// [`Context::reply`] that says what became of it.
    ///
    /// # Errors
    /// There is nothing to answer, or the response cannot be held.
    #[inline]
    pub fn try_reply(&mut self, reply: impl Reply) -> Result<(), ReplyError> {
        let id = self.request.ok_or(ReplyError::Gone)?;
        let answered = self.answer(id, reply);
        // Not before: the reply's own code may panic, and the request is unanswered then.
        self.request = None;
        answered
    }

    /// Answers with `len` bytes written in place; for responses of one packet nothing is copied
    /// or allocated. The bytes that `fill` is given are arbitrary.
    ///
    /// # Errors
    /// As [`Context::try_reply`].
    #[inline]
    pub fn reply_with(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), ReplyError> {
        let id = self.request.ok_or(ReplyError::Gone)?;
        let answered = self.core.proto.reply_with(id, len, fill);
        // Not before: `fill` may panic, and the request is unanswered then.
        self.request = None;
        answered
    }

    /// Rejects the request: its call ends with [`Status::Rejected`].
    pub fn reject(&mut self) {
        if let Some(id) = self.request.take() {
            self.core.proto.reply_status(id, Status::Rejected);
        }
    }

    /// Takes over the duty to answer, to be done later with [`Context::reply_to`]: from the
    /// continuation of a nested call, say. `None` outside a handler, or after an answer.
    pub fn defer(&mut self) -> Option<ReplyHandle> {
        let id = self.request.take()?;
        Some(ReplyHandle { id, dropped: Some(self.core.dropped.clone()) })
    }

    /// Answers a deferred request.
    ///
    /// # Errors
    /// The session is gone, or the response cannot be held.
    pub fn reply_to(&mut self, handle: ReplyHandle, reply: impl Reply) -> Result<(), ReplyError> {
        if !handle.is_of(&self.core.dropped) {
            // Dropped here, it answers its request at its own endpoint.
            return Err(ReplyError::OtherEndpoint);
        }
        let answered = self.answer(handle.id, reply);
        handle.settle();
        answered
    }

    #[inline]
    fn answer(&mut self, id: RequestId, reply: impl Reply) -> Result<(), ReplyError> {
        reply.give(To(&mut self.core.proto, id))
    }

    /// Whether nobody waits for the answer to a deferred request any more: its client cancelled
    /// it, gave it up at its deadline, or is gone. Worth a look now and then in what takes long;
    /// the request has to be answered in any case, with anything. Of a handle of another endpoint
    /// nothing is known here: false.
    pub fn is_cancelled(&self, handle: &ReplyHandle) -> bool {
        handle.is_of(&self.core.dropped) && self.core.proto.is_cancelled(handle.id)
    }

    /// Calls: queues `request` on `session`. `done` runs exactly once, on this thread, when the call
    /// has ended, with the request buffer. Short for
    /// [`request(..)`](Context::request)[`.then(done)`](CallBuilder::then).
    ///
    /// # Errors
    /// The call did not start; the error returns the buffer.
    #[inline]
    pub fn call(
        &mut self,
        session: SessionId,
        req_type: u16,
        request: MsgBuf,
        done: impl FnOnce(&mut Context<'_>, Completion<'_>) + 'static,
    ) -> Result<CallId, CallRejected> {
        self.request(session, req_type, request).then(done)
    }

    /// A call with options: a deadline, a tag in place of a closure.
    #[inline]
    pub fn request(
        &mut self,
        session: SessionId,
        req_type: u16,
        request: MsgBuf,
    ) -> CallBuilder<'_> {
        CallBuilder::new(self.core, session, req_type, request)
    }

    /// Gives a call up: it ends soon with [`courser_proto::CallError::Cancelled`], which says
    /// whether its handler ran, and not from within this function. The server is told if it may
    /// know of the call. `false`: the call has ended already.
    pub fn cancel(&mut self, call: CallId) -> bool {
        self.core.proto.cancel(call)
    }

    /// Begins a session with a server, as [`crate::Rpc::connect`] does: calls on it wait until it
    /// stands, or fail with it.
    ///
    /// # Errors
    /// The address cannot be read, or a limit of this endpoint is reached.
    pub fn connect(&mut self, uri: &str) -> Result<SessionId, SessionError> {
        self.core.connect(uri)
    }

    /// Closes a session of this endpoint as a client: its calls end with an error, not from within
    /// this function; the server frees its side. A session that is gone is ignored.
    pub fn close(&mut self, session: SessionId) {
        self.core.close(session);
    }

    /// Why a session is not connected; `None` while it is connecting or connected.
    pub fn session_error(&self, session: SessionId) -> Option<SessionError> {
        self.core.session_error(session)
    }

    /// Message memory: `len` bytes of arbitrary content.
    ///
    /// # Errors
    /// The endpoint's memory limit is reached.
    #[inline]
    pub fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.core.proto.alloc(len)
    }

    /// Runs `f` once, `after` from now, in the event loop.
    pub fn after(&mut self, after: Duration, f: impl FnOnce(&mut Context<'_>) + 'static) {
        let after_ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        let due_ns = self.core.now_ns().saturating_add(after_ns);
        self.core.add_timer(due_ns, Box::new(f));
    }

    /// The endpoint's clock: nanoseconds since it was made.
    pub fn now_ns(&self) -> u64 {
        self.core.now_ns()
    }

    /// A number of the endpoint's seeded generator; not for secrets.
    pub fn random(&mut self) -> u64 {
        self.core.random()
    }

    /// Ends the event loop that runs now ([`crate::Rpc::run`] and its like) after this pass.
    pub fn stop(&mut self) {
        self.core.stop = true;
    }

    /// Where a session stands.
    pub fn session_state(&self, session: SessionId) -> SessionState {
        self.core.proto.session_state(session)
    }

    /// A session's figures.
    pub fn session_stats(&self, session: SessionId) -> Option<SessionStats> {
        self.core.proto.session_stats(session)
    }

    /// The sessions there are, in any state and both roles, in the order of their numbers from
    /// `first` on. Walks the table of sessions: a handler should look at them in portions, with
    /// `take`, and go on behind the last [`SessionId::index`].
    pub fn sessions_from(&self, first: u32) -> impl Iterator<Item = SessionId> + '_ {
        self.core.proto.sessions_from(first)
    }

    /// Counters of the protocol.
    pub fn stats(&self) -> &EndpointStats {
        self.core.proto.stats()
    }

    /// Message memory by size class; takes microseconds.
    pub fn memory(&self) -> ArenaStats {
        self.core.proto.arena().stats()
    }
}
