//! The futures of calls and of one-way messages.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use courser_buf::MsgBuf;

use super::local::Session;
use crate::channel::Answer;
use crate::core::calls::{End, Kind, Outgoing, Polled};
use crate::core::lent;
use crate::core::queue::LocalCommand;
use crate::error::failure::CallFailure;

/// A call as a future, made by [`Session::call`]. It starts when it is first polled. Its result is
/// the response.
///
/// Dropping it cancels the call, as [`crate::Context::cancel`] does: its memory is free within a
/// round trip. A response of one packet is in the buffer of the request when it fits there.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_local(async |local, uri| {
/// use std::time::Duration;
///
/// let session = local.connect(&uri).await?;
/// let response = session.call(ECHO, local.alloc(8)?).deadline(Duration::from_secs(5)).await?;
/// assert_eq!(response.len(), 8);
/// # Ok(()) }) }
/// ```
///
/// # Panics
/// A poll outside of the endpoint of the session: see [`crate::Local`].
#[must_use = "a call starts when it is awaited"]
pub struct Call<'a>(Awaited<'a>);

/// A one-way message as a future, made by [`Session::send`]. It ends when the message is in the
/// queue of its session, and waits while the queue is full. Dropping it before that drops the
/// message.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_local(async |local, uri| {
/// let session = local.connect(&uri).await?;
/// session.send(ECHO, local.alloc(8)?).await?;
/// # Ok(()) }) }
/// ```
///
/// # Panics
/// A poll outside of the endpoint of the session: see [`crate::Local`].
#[must_use = "a message is sent when it is awaited"]
pub struct Sent<'a>(Awaited<'a>);

struct Awaited<'a> {
    session: &'a Session,
    deadline: Option<Duration>,
    state: State,
}

enum State {
    Idle(Kind, MsgBuf),
    /// The number of its entry.
    Waits(u32),
    Ended,
}

impl<'a> Awaited<'a> {
    #[inline]
    fn new(session: &'a Session, kind: Kind, message: MsgBuf) -> Self {
        Awaited { session, deadline: None, state: State::Idle(kind, message) }
    }

    #[inline]
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let State::Waits(at) = self.state else { return self.start(cx) };
        let end = lent::with(self.session.lender(), |core| match core.take_response(at) {
            Some(end) => Some(end),
            None => core.poll_awaited(at, cx),
        });
        match end {
            Some(end) => {
                self.state = State::Ended;
                Poll::Ready(end)
            }
            None => Poll::Pending,
        }
    }

    /// [`Awaited::poll`] of a call that passes its response to `read`, where it was received if this
    /// is the poll within its completion.
    #[inline]
    fn poll_read<R>(
        &mut self,
        cx: &mut Context<'_>,
        read: impl FnOnce(Answer<'_>) -> R,
    ) -> Poll<Result<R, Option<Box<CallFailure>>>> {
        let State::Waits(at) = self.state else {
            return self.start(cx).map_ok(|response| read(Answer::Owned(response)));
        };
        let (lender, arena) = (self.session.lender(), self.session.local().arena());
        if let Some(request) = lent::with(lender, |core| core.take_answered(at)) {
            self.state = State::Ended;
            let result = lender.response().with(|bytes| read(Answer::Shown(bytes, arena)));
            lender.keep_spare(request);
            return Poll::Ready(result.ok_or(None));
        }
        match lent::with(lender, |core| core.poll_awaited(at, cx)) {
            Some(end) => {
                self.state = State::Ended;
                Poll::Ready(end.map(|response| read(Answer::Owned(response))))
            }
            None => Poll::Pending,
        }
    }

    #[inline]
    fn start(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let (req_type, request) = match std::mem::replace(&mut self.state, State::Ended) {
            State::Idle(Kind::Call(req_type), request) => (req_type, request),
            State::Idle(kind, message) => return self.start_message(kind, message, cx),
            _ => return Poll::Pending, // polled after its end
        };
        let deadline_ns = self.deadline.map_or(u64::MAX, |after| self.deadline_ns(after));
        let session = self.session.id();
        let polled = lent::with(self.session.lender(), |core| {
            core.start_call(session, req_type, request, deadline_ns, cx)
        });
        self.started(polled)
    }

    #[inline]
    fn started(&mut self, polled: Polled) -> Poll<End> {
        match polled {
            Polled::Ended(end) => Poll::Ready(end),
            Polled::Waits(at) => {
                self.state = State::Waits(at);
                Poll::Pending
            }
        }
    }

    fn deadline_ns(&self, after: Duration) -> u64 {
        lent::with(self.session.lender(), |core| core.deadline_ns(after))
    }

    fn start_message(&mut self, kind: Kind, message: MsgBuf, cx: &mut Context<'_>) -> Poll<End> {
        let deadline_ns = self.deadline.map_or(u64::MAX, |after| self.deadline_ns(after));
        let outgoing = Outgoing { session: self.session.id(), kind, message, deadline_ns };
        let polled = lent::with(self.session.lender(), |core| core.start_awaited(outgoing, cx));
        self.started(polled)
    }
}

impl Drop for Awaited<'_> {
    #[inline]
    fn drop(&mut self) {
        if let State::Waits(at) = self.state {
            self.session.queue().push(LocalCommand::DropCall(at));
        }
    }
}

impl<'a> Call<'a> {
    #[inline]
    pub(super) fn new(session: &'a Session, req_type: u16, request: MsgBuf) -> Self {
        Call(Awaited::new(session, Kind::Call(req_type), request))
    }

    /// Ends the call within `after` from its start: see [`crate::CallBuilder::deadline`]. Within an
    /// async handler every call has at most the time that is left to the handler's request.
    #[inline]
    pub fn deadline(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.0.deadline = after.into();
        self
    }
}

impl Call<'_> {
    /// Polls the call, and passes its response to `read`.
    #[inline]
    pub(super) fn poll_read<R>(
        &mut self,
        cx: &mut Context<'_>,
        read: impl FnOnce(Answer<'_>) -> R,
    ) -> Poll<Result<R, CallFailure>> {
        self.0.poll_read(cx, read).map_err(failure)
    }
}

#[cold]
fn failure(reason: Option<Box<CallFailure>>) -> CallFailure {
    reason.map_or(CallFailure::Stopped, |reason| *reason)
}

impl Future for Call<'_> {
    type Output = Result<MsgBuf, CallFailure>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map(|end| end.map_err(failure))
    }
}

impl<'a> Sent<'a> {
    pub(super) fn new(session: &'a Session, msg_type: u16, message: MsgBuf) -> Self {
        Sent(Awaited::new(session, Kind::Message(msg_type), message))
    }

    /// See [`crate::MessageBuilder::deadline`].
    pub fn deadline(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.0.deadline = after.into();
        self
    }
}

impl Future for Sent<'_> {
    type Output = Result<(), CallFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map(|end| match end {
            Ok(_) | Err(None) => Ok(()),
            Err(Some(e)) => Err(*e),
        })
    }
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("session", &self.0.session.id()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Sent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sent").field("session", &self.0.session.id()).finish_non_exhaustive()
    }
}
