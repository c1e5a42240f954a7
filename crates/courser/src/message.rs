//! What handlers and continuations get and give: requests, responses, replies.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use courser_buf::{AllocError, MsgBuf};
use courser_proto::{Body, CallError, RequestId, SessionId, Status};

use crate::context::Context;

/// A request, lent to its handler. Reads as a byte slice.
///
/// A request of one packet is read in place from the received frame; one of several packets is
/// in a buffer of its own `[eRPC §4.2.3]`. [`Request::take`] gives a buffer in either case.
#[derive(Debug)]
pub struct Request<'f> {
    pub(crate) body: Body<'f>,
    pub(crate) req_type: u16,
    pub(crate) session: SessionId,
    /// In the endpoint's time; `u64::MAX`: never.
    pub(crate) expires_ns: u64,
}

impl Request<'_> {
    /// The type it was sent as.
    pub fn req_type(&self) -> u16 {
        self.req_type
    }

    /// The session it came on.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// When its client gives it up, in [`Context::now_ns`]'s time; `None`: the client waits. Up to
    /// about a round trip earlier than the client's own deadline, never later but for a request that
    /// lay in this process's socket for more than 3.7 s while it was stopped.
    pub fn deadline_ns(&self) -> Option<u64> {
        (self.expires_ns != u64::MAX).then_some(self.expires_ns)
    }

    /// What is left of the client's time, to be passed on with nested calls
    /// ([`crate::CallBuilder::deadline`]); `None`: there is no deadline.
    pub fn time_left(&self, cx: &Context<'_>) -> Option<Duration> {
        let deadline_ns = self.deadline_ns()?;
        Some(Duration::from_nanos(deadline_ns.saturating_sub(cx.now_ns())))
    }

    /// The request in a buffer that outlives the handler. Copies a request of one packet, so that
    /// a few bytes never hold a whole receive buffer; does not copy a larger one.
    ///
    /// # Errors
    /// No memory for the copy.
    pub fn take(self, cx: &Context<'_>) -> Result<MsgBuf, AllocError> {
        take(self.body, cx)
    }
}

impl Deref for Request<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.body
    }
}

/// A response, lent to the continuation. Reads as a byte slice.
#[derive(Debug)]
pub struct Response<'f>(pub(crate) Body<'f>);

impl Response<'_> {
    /// The response in a buffer that outlives the continuation; copies a response of one packet.
    ///
    /// # Errors
    /// No memory for the copy.
    pub fn take(self, cx: &Context<'_>) -> Result<MsgBuf, AllocError> {
        take(self.0, cx)
    }
}

impl Deref for Response<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

fn take(body: Body<'_>, cx: &Context<'_>) -> Result<MsgBuf, AllocError> {
    match body {
        Body::Owned(m) => Ok(m),
        Body::Borrowed(bytes) => {
            let mut m = cx.alloc(bytes.len())?;
            m.copy_from_slice(bytes);
            Ok(m)
        }
    }
}

/// A call that has ended: the request buffer is the caller's again, with the response or the
/// reason why there is none.
#[derive(Debug)]
pub struct Completion<'f> {
    /// The request buffer, to be used again.
    pub request: MsgBuf,
    /// The response, or why there is none and whether the handler ran.
    pub result: Result<Response<'f>, CallError>,
    /// The session of the call.
    pub session: SessionId,
}

/// What can be a reply: bytes, which are copied, or a [`MsgBuf`], which is not.
pub trait Reply {
    #[doc(hidden)]
    fn give<A: Answerer>(self, to: A) -> A::Given;
}

/// Who takes a reply. Two functions, so that the handler has what it answers with in registers.
#[doc(hidden)]
pub trait Answerer {
    type Given;
    fn bytes(self, bytes: &[u8]) -> Self::Given;
    fn msg(self, msg: MsgBuf) -> Self::Given;
}

impl Reply for &[u8] {
    #[inline]
    fn give<A: Answerer>(self, to: A) -> A::Given {
        to.bytes(self)
    }
}

impl<const N: usize> Reply for &[u8; N] {
    #[inline]
    fn give<A: Answerer>(self, to: A) -> A::Given {
        to.bytes(self)
    }
}

impl<const N: usize> Reply for [u8; N] {
    #[inline]
    fn give<A: Answerer>(self, to: A) -> A::Given {
        to.bytes(&self)
    }
}

impl Reply for &str {
    fn give<A: Answerer>(self, to: A) -> A::Given {
        to.bytes(self.as_bytes())
    }
}

impl Reply for String {
    fn give<A: Answerer>(self, to: A) -> A::Given {
        to.bytes(self.as_bytes())
    }
}

impl Reply for Vec<u8> {
    fn give<A: Answerer>(self, to: A) -> A::Given {
        to.bytes(&self)
    }
}

impl Reply for MsgBuf {
    #[inline]
    fn give<A: Answerer>(self, to: A) -> A::Given {
        to.msg(self)
    }
}

impl Reply for Request<'_> {
    #[inline]
    fn give<A: Answerer>(self, to: A) -> A::Given {
        match self.body {
            Body::Borrowed(b) => to.bytes(b),
            Body::Owned(m) => to.msg(m),
        }
    }
}

impl Reply for Response<'_> {
    fn give<A: Answerer>(self, to: A) -> A::Given {
        match self.0 {
            Body::Borrowed(b) => to.bytes(b),
            Body::Owned(m) => to.msg(m),
        }
    }
}

/// Requests whose handles were dropped; the event loop answers them with an error.
#[derive(Clone, Debug, Default)]
pub(crate) struct DroppedReplies(Rc<Dropped>);

#[derive(Debug, Default)]
struct Dropped {
    count: Cell<usize>,
    list: RefCell<Vec<(RequestId, Status)>>,
}

impl DroppedReplies {
    /// One load: it is asked in every pass.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.count.get() == 0
    }

    fn push(&self, id: RequestId, status: Status) {
        self.0.list.borrow_mut().push((id, status));
        self.0.count.update(|count| count + 1);
    }

    /// The one that was dropped last.
    pub(crate) fn pop(&self) -> Option<(RequestId, Status)> {
        let last = self.0.list.borrow_mut().pop()?;
        self.0.count.update(|count| count - 1);
        Some(last)
    }
}

/// The duty to answer one request, later than its handler (`[eRPC §3.1]`, nested RPCs). Dropping
/// it answers with an error, so that no client waits for ever.
#[derive(Debug)]
#[must_use = "dropping a reply handle answers the request with an error"]
pub struct ReplyHandle {
    pub(crate) id: RequestId,
    pub(crate) dropped: Option<DroppedReplies>,
}

impl ReplyHandle {
    /// The session that the request came on.
    pub fn session(&self) -> SessionId {
        self.id.session()
    }

    /// Whether it is a handle of the endpoint with this list: numbers of requests mean something
    /// at their own endpoint only.
    pub(crate) fn is_of(&self, endpoint: &DroppedReplies) -> bool {
        self.dropped.as_ref().is_some_and(|own| Rc::ptr_eq(&own.0, &endpoint.0))
    }

    /// Ends the duty: the request has been answered.
    pub(crate) fn settle(mut self) {
        self.dropped = None;
    }
}

impl Drop for ReplyHandle {
    fn drop(&mut self) {
        if let Some(dropped) = &self.dropped {
            // A handler that panics drops what it deferred.
            let panics = std::thread::panicking();
            let status = if panics { Status::Panicked } else { Status::NoReply };
            dropped.push(self.id, status);
        }
    }
}
