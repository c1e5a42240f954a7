//! The call builder: request, options and completion target of one call (ADR 15).

use std::fmt;
use std::time::Duration;

use courser_buf::MsgBuf;
use courser_proto::{CallId, CallOptions, SessionId};
use smallbox::smallbox;

use crate::core::Core;
use crate::core::app::{App, OnThread};
use crate::core::context::Context;
use crate::core::continuations::Cont;
use crate::core::message::Completion;
use crate::error::CallRejected;

/// A call that has not started, made by [`crate::Rpc::request`] or [`Context::request`].
/// [`CallBuilder::then`] starts it with a closure for its completion, [`CallBuilder::send`] with a
/// tag for the endpoint's completion function. Dropping it frees the request buffer.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_rpc(|mut rpc, uri| {
/// use std::time::Duration;
///
/// let session = rpc.connect(&uri)?;
/// let request = rpc.alloc(32)?;
/// rpc.request(session, ECHO, request).deadline(Duration::from_secs(5)).then(|cx, done| {
///     assert!(done.result.is_ok());
///     cx.stop();
/// })?;
/// rpc.run()?;
///
/// rpc.on_completion(|cx, tag, done| {
///     assert!(tag == 7 && done.result.is_ok());
///     cx.stop();
/// });
/// let request = rpc.alloc(32)?;
/// rpc.request(session, ECHO, request).tag(7).send()?;
/// rpc.run()?;
/// # Ok(()) }) }
/// ```
#[must_use = "the call starts with `then` or `send`"]
pub struct CallBuilder<'a, A: App = OnThread> {
    core: &'a mut Core<A>,
    session: SessionId,
    req_type: u16,
    request: MsgBuf,
    deadline: Option<Duration>,
    tag: u64,
}

impl<A: App> fmt::Debug for CallBuilder<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallBuilder")
            .field("session", &self.session)
            .field("req_type", &self.req_type)
            .field("deadline", &self.deadline)
            .field("tag", &self.tag)
            .finish_non_exhaustive()
    }
}

// Inlined into the caller: moving the builder through memory would cost more than the call.
impl<'a, A: App> CallBuilder<'a, A> {
    #[inline]
    pub(crate) fn new(
        core: &'a mut Core<A>,
        session: SessionId,
        req_type: u16,
        request: MsgBuf,
    ) -> Self {
        CallBuilder { core, session, req_type, request, deadline: None, tag: 0 }
    }

    /// Ends the call within `after` from its start; a call without a response by then ends with
    /// [`crate::CallError::DeadlineExceeded`], which states whether its handler ran. Takes a
    /// duration or an `Option`; `None`, the default, is a call that waits as long as its session
    /// lives.
    ///
    /// The server starts no handler after the deadline. Its estimate is at most about a round trip
    /// early; it is late only for requests that waited more than 3.7 s in a stopped server's
    /// socket. The clocks of server and client need not agree. Deadlines more than 134 s ahead hold
    /// at the client only.
    ///
    /// Nested calls do not inherit deadlines: a handler passes on what is left of its own,
    /// [`crate::Request::time_left`].
    #[inline]
    pub fn deadline(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.deadline = after.into();
        self
    }

    /// The number by which the completion function recognises the call; default 0. Not used by
    /// [`CallBuilder::then`].
    #[inline]
    pub fn tag(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }

    /// Starts the call. Its completion goes to the function of [`crate::Rpc::on_completion`], with
    /// the tag. Nothing is allocated. The number is for [`Context::cancel`].
    ///
    /// # Errors
    /// The call did not start; the error returns the buffer.
    #[inline]
    pub fn send(self) -> Result<CallId, CallRejected> {
        let cont = Cont::tag(self.tag);
        self.start(cont)
    }

    #[inline(always)]
    fn start(self, cont: Cont) -> Result<CallId, CallRejected> {
        let CallBuilder { core, session, req_type, request, deadline, .. } = self;
        let options = match deadline {
            None => CallOptions::new(),
            Some(after) => {
                let after_ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
                CallOptions::new().with_deadline_ns(core.now_ns().saturating_add(after_ns))
            }
        };
        let call = core.proto.call_with(session, req_type, request, cont, options);
        call.map_err(|(reason, request, _)| core.rejected_call(session, reason, request))
    }
}

impl CallBuilder<'_> {
    /// Starts the call. `done` runs exactly once, on this thread, when the call has ended, with the
    /// request buffer. A closure that captures up to 56 bytes is stored without allocation. The
    /// number is for [`Context::cancel`].
    ///
    /// # Errors
    /// The call did not start; the error returns the buffer, and `done` is dropped.
    #[inline]
    pub fn then(
        self,
        done: impl FnOnce(&mut Context<'_>, Completion<'_>) + 'static,
    ) -> Result<CallId, CallRejected> {
        let mut done = Some(done);
        let at = self.core.continuations.put(smallbox!(
            move |cx: &mut Context<'_>, c: Completion<'_>| {
                if let Some(f) = done.take() {
                    f(cx, c);
                }
            }
        ));
        let core = &mut *self.core;
        let started = CallBuilder { core, ..self }.start(Cont::call(at));
        if started.is_err() {
            drop(self.core.continuations.take(at));
        }
        started
    }
}

impl Context<'_> {
    /// Calls: queues `request` on `session`. `done` runs exactly once, on this thread, when the call
    /// has ended, with the request buffer. Short for
    /// [`request(..)`](Context::request)[`.then(done)`](CallBuilder::then).
    ///
    /// # Errors
    /// The call did not start; the error returns the buffer.
    #[doc(alias = "enqueue_request")]
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
}

impl<A: App> Context<'_, A> {
    /// A call with options: a deadline, a tag in place of a closure.
    #[inline]
    pub fn request(
        &mut self,
        session: SessionId,
        req_type: u16,
        request: MsgBuf,
    ) -> CallBuilder<'_, A> {
        CallBuilder::new(self.core, session, req_type, request)
    }
}
