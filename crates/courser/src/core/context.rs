//! The endpoint as handlers, continuations and timers use it.

use std::time::Duration;

use courser_buf::{AllocError, ArenaStats, MsgBuf};
use courser_proto::{
    Body, CallId, Endpoint, EndpointStats, ReplyError, RequestId, SessionId, SessionState,
    SessionStats, Status,
};
use smallbox::SmallBox;
use smallbox::space::S8;

use crate::core::Core;
use crate::core::app::{App, OnThread};
use crate::core::continuations::Cont;
use crate::core::message::{Completion, Reply, ReplyHandle, ReplySink, Request, Response, zeroed};
use crate::error::SessionError;

/// The continuation of a call; up to 64 bytes are stored without a heap box.
pub(crate) type ContinuationFn = SmallBox<dyn FnMut(&mut Context<'_>, Completion<'_>), S8>;

/// The callback of a timer that runs once.
pub(crate) type OnceFn = Box<dyn FnOnce(&mut Context<'_>)>;

/// The callback of a timer that runs repeatedly.
pub(crate) type RepeatedFn = Box<dyn FnMut(&mut Context<'_>)>;

/// The endpoint, as handlers, continuations and timers use it. Nothing here blocks or does I/O:
/// calls and replies are queued, and the event loop sends them.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_rpc(|mut rpc, uri| {
/// use std::time::Duration;
///
/// let session = rpc.connect(&uri)?;
/// let request = rpc.alloc(3)?;
/// rpc.call(session, ECHO, request, |cx, done| {
///     // The next call, in the same buffer.
///     let session = done.session;
///     let call = cx.request(session, ECHO, done.request).deadline(Duration::from_secs(5));
///     call.then(|cx, done| {
///         assert!(done.result.is_ok());
///         cx.stop();
///     }).expect("there is room");
/// })?;
/// rpc.run()?;
/// # Ok(()) }) }
/// ```
pub struct Context<'a, A: App = OnThread> {
    pub(crate) core: &'a mut Core<A>,
    /// The request that is being handled, until it is answered.
    pub(crate) request: Option<RequestId>,
}

impl<A: App> std::fmt::Debug for Context<'_, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("request", &self.request).finish_non_exhaustive()
    }
}

/// The request that a reply answers.
struct To<'a>(&'a mut Endpoint<Cont>, RequestId);

impl ReplySink for To<'_> {
    type Output = Result<(), ReplyError>;

    #[inline(always)]
    fn bytes(self, bytes: &[u8]) -> Self::Output {
        self.0.reply_bytes(self.1, bytes)
    }

    #[inline]
    fn msg(self, msg: MsgBuf) -> Self::Output {
        self.0.reply_msg(self.1, msg)
    }

    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.0.alloc(len)
    }
}

impl Context<'_> {
    /// Answers the request that is being handled. A second answer, or one outside a handler, is
    /// ignored; a response that is too large, or for which there is no memory, reaches the client as
    /// an error. [`Context::try_reply`] returns these errors.
    #[doc(alias = "enqueue_response")]
    #[inline]
    pub fn reply(&mut self, reply: impl Reply) {
        // The client gets the error.
        let _ = self.try_reply(reply);
    }

    /// [`Context::reply`] with its result.
    ///
    /// # Errors
    /// There is nothing to answer, or the response cannot be held.
    #[inline]
    pub fn try_reply(&mut self, reply: impl Reply) -> Result<(), ReplyError> {
        let id = self.request.ok_or(ReplyError::Gone)?;
        let answered = self.answer(id, reply);
        // Afterwards: the reply's own code may panic, which leaves the request unanswered.
        self.request = None;
        answered
    }

    /// Answers with `len` bytes that `fill` writes in place; single-packet responses are neither
    /// copied nor allocated. `fill` gets the contents of earlier messages and must overwrite all of
    /// them.
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
        // Afterwards: `fill` may panic, which leaves the request unanswered.
        self.request = None;
        answered
    }

    /// Rejects the request: its call ends with [`Status::Rejected`].
    pub fn reject(&mut self) {
        if let Some(id) = self.request.take() {
            self.core.proto.reply_status(id, Status::Rejected);
        }
    }

    /// Defers the answer: the handle answers later with [`Context::reply_to`], for example in the
    /// continuation of a nested call. `None` outside a handler, or after an answer. For answers of other
    /// threads see [`crate::Rpc::on_owned`].
    pub fn defer(&mut self) -> Option<ReplyHandle> {
        let id = self.request.take()?;
        Some(ReplyHandle { id, queue: Some(self.core.queue.clone()) })
    }

    /// Answers a deferred request.
    ///
    /// # Errors
    /// The session is gone, or the response cannot be held.
    pub fn reply_to(&mut self, handle: ReplyHandle, reply: impl Reply) -> Result<(), ReplyError> {
        if !handle.is_of(&self.core.queue) {
            // Dropping it here answers the request at its own endpoint with an error.
            return Err(ReplyError::OtherEndpoint);
        }
        let answered = self.answer(handle.id, reply);
        handle.settle();
        answered
    }

    #[inline]
    fn answer(&mut self, id: RequestId, reply: impl Reply) -> Result<(), ReplyError> {
        reply.send_to(To(&mut self.core.proto, id))
    }

    /// Whether the answer to a deferred request is no longer needed: its client cancelled the call,
    /// its deadline passed, or the client is gone. Long work should check it from time to time; the
    /// request must be answered in any case, with any content. False for handles of other endpoints.
    pub fn is_cancelled(&self, handle: &ReplyHandle) -> bool {
        handle.is_of(&self.core.queue) && self.core.proto.is_cancelled(handle.id)
    }
}

impl<A: App> Context<'_, A> {
    /// Cancels a call: it ends soon, after this function has returned, with
    /// [`crate::CallError::Cancelled`], which states whether its handler ran. A server that may have
    /// received the request is notified. `false`: the call has already ended.
    pub fn cancel(&mut self, call: CallId) -> bool {
        self.core.proto.cancel(call)
    }

    /// Starts to connect a session with a server, as [`crate::Rpc::connect`] does: calls on it are
    /// queued until it is connected, and fail if it fails.
    ///
    /// # Errors
    /// The address cannot be read, or a limit of this endpoint is reached.
    pub fn connect(&mut self, uri: &str) -> Result<SessionId, SessionError> {
        self.core.connect(uri)
    }

    /// Closes a session of which this endpoint is the client: its calls end with an error, after
    /// this function has returned; the server frees its side. Ignores sessions that are gone.
    pub fn close(&mut self, session: SessionId) {
        self.core.close(session);
    }

    /// Why a session is not connected; `None` while it is connecting or connected.
    pub fn session_error(&self, session: SessionId) -> Option<SessionError> {
        self.core.session_error(session)
    }

    /// Allocates a message buffer of `len` bytes, all 0. [`Self::alloc_recycled`] saves the time of
    /// clearing large ones.
    ///
    /// # Errors
    /// The endpoint's memory limit is reached.
    #[inline]
    pub fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        zeroed(self.core.proto.alloc(len))
    }

    /// A message buffer of `len` bytes that have the contents of earlier messages of this endpoint:
    /// for messages that are overwritten in full. A byte that is not **reveals another message**.
    ///
    /// # Errors
    /// The endpoint's memory limit is reached.
    #[inline]
    pub fn alloc_recycled(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.core.proto.alloc(len)
    }

    /// The endpoint's clock: nanoseconds since it was made.
    pub fn now_ns(&self) -> u64 {
        self.core.now_ns()
    }

    /// The next number of the endpoint's seeded generator; not for secrets.
    pub fn random(&mut self) -> u64 {
        self.core.random()
    }

    /// Ends the event loop that runs now ([`crate::Rpc::run`] and its like) after this pass.
    pub fn stop(&mut self) {
        self.core.stop = true;
    }

    /// The state of a session.
    pub fn session_state(&self, session: SessionId) -> SessionState {
        self.core.proto.session_state(session)
    }

    /// Counters of a session.
    pub fn session_stats(&self, session: SessionId) -> Option<SessionStats> {
        self.core.proto.session_stats(session)
    }

    /// The sessions of any state and role, ordered by number, from `first` on. Walks the session
    /// table: handlers should use `take` and continue after the last [`SessionId::index`].
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

impl Request<'_> {
    /// The time left until the deadline, to be passed on with nested calls
    /// ([`crate::CallBuilder::deadline`]); `None`: there is no deadline.
    pub fn time_left(&self, cx: &Context<'_>) -> Option<Duration> {
        let deadline_ns = self.deadline_ns()?;
        Some(Duration::from_nanos(deadline_ns.saturating_sub(cx.now_ns())))
    }

    /// The request in a buffer that outlives the handler. Copies a single-packet request, so that a
    /// few bytes never keep a whole receive buffer; larger requests are not copied.
    ///
    /// # Errors
    /// No memory for the copy.
    pub fn take(self, cx: &Context<'_>) -> Result<MsgBuf, AllocError> {
        take(self.body, cx)
    }
}

impl Response<'_> {
    /// The response in a buffer that outlives the continuation; copies single-packet responses.
    ///
    /// # Errors
    /// No memory for the copy.
    pub fn take(self, cx: &Context<'_>) -> Result<MsgBuf, AllocError> {
        take(self.0, cx)
    }
}

fn take(body: Body<'_>, cx: &Context<'_>) -> Result<MsgBuf, AllocError> {
    match body {
        Body::Owned(m) => Ok(m),
        Body::Borrowed(bytes) => {
            let mut m = cx.alloc_recycled(bytes.len())?;
            m.copy_from_slice(bytes);
            Ok(m)
        }
    }
}
