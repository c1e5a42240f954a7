//! Requests, responses, completions and replies.

use std::ops::Deref;

use crate::counts::CallOutcome;
use courser_buf::{AllocError, Arena, MsgBuf};
use courser_proto::{Body, CallError, RequestId, SessionId, Status};

use crate::core::queue::{LocalCommand, LocalQueue};

/// A request, lent to its handler. Reads as a byte slice.
///
/// A request of one packet is read in place from the received frame; one of several packets is
/// in a buffer of its own `[eRPC §4.2.3]`. [`Request::take`] returns a buffer in either case.
///
/// ```
/// # use courser_example_store::*;
/// use courser::Nexus;
///
/// # fn main() -> Done {
/// let mut rpc = Nexus::bind("udp://127.0.0.1:0")?.endpoint()?;
/// rpc.on(ECHO, |cx, request| {
///     // It reads as a slice, in the packet that was received.
///     let sum: u64 = request.iter().map(|byte| u64::from(*byte)).sum();
///     cx.reply(sum.to_le_bytes());
/// });
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Request<'f> {
    pub(crate) body: Body<'f>,
    pub(crate) req_type: u16,
    pub(crate) session: SessionId,
    /// In the endpoint's time; `u64::MAX`: never.
    pub(crate) expires_ns: u64,
}

impl Request<'_> {
    /// The request type.
    pub fn req_type(&self) -> u16 {
        self.req_type
    }

    /// The session of the call.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Bytes of message memory that it has to itself: one of several packets.
    #[inline]
    pub(crate) fn held(&self) -> u32 {
        match &self.body {
            Body::Borrowed(_) => 0,
            Body::Owned(message) => u32::try_from(message.len()).unwrap_or(u32::MAX),
        }
    }

    /// The deadline of the call, in the time of [`crate::Context::now_ns`]; `None`: it has none. An estimate:
    /// up to about a round trip before the client's own deadline, and after it only for requests
    /// that waited more than 3.7 s in this process's socket while it was stopped.
    pub fn deadline_ns(&self) -> Option<u64> {
        (self.expires_ns != u64::MAX).then_some(self.expires_ns)
    }
}

impl Deref for Request<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.body
    }
}

/// A response, lent to the continuation. Reads as a byte slice.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_rpc(|mut rpc, uri| {
/// let session = rpc.connect(&uri)?;
/// let request = rpc.alloc(3)?;
/// rpc.call(session, ECHO, request, |cx, done| {
///     let response = done.result.expect("the server is there");
///     // A buffer that outlives this function.
///     let kept = response.take(cx).expect("there is memory");
///     assert_eq!(kept.len(), 3);
///     cx.stop();
/// })?;
/// rpc.run()?;
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
pub struct Response<'f>(pub(crate) Body<'f>);

impl Deref for Response<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// The end of a call: the request buffer returns to the caller, with the response or the error.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_rpc(|mut rpc, uri| {
/// let session = rpc.connect(&uri)?;
/// let request = rpc.alloc(3)?;
/// rpc.call(session, 7, request, |cx, done| {
///     // The request's buffer returns with each end of a call.
///     assert_eq!(done.request.len(), 3);
///     // The server has no handler of this type.
///     println!("{}", done.result.err().expect("an error"));
///     cx.stop();
/// })?;
/// rpc.run()?;
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
pub struct Completion<'f> {
    /// The request buffer, ready for the next call.
    pub request: MsgBuf,
    /// The response, or the error, which states whether the handler ran.
    pub result: Result<Response<'f>, CallError>,
    /// The session of the call.
    pub session: SessionId,
}

/// The content of a reply: bytes, which are copied, or a [`MsgBuf`], which is not.
///
/// ```
/// # use courser_example_store::*;
/// use courser::Server;
///
/// # fn main() -> Done {
/// let mut server = Server::bind("udp://127.0.0.1:0")?;
/// server.on(1, |work| async move { work.reply("a text") });
/// server.on(2, |work| async move { work.reply([1, 2, 3]) });
/// server.on(3, |mut work| async move {
///     // The request's own buffer, without a copy.
///     let request = work.take().expect("it was not taken before");
///     work.reply(request)
/// });
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// let client = courser::Client::connect(&uri).wait()?;
/// assert_eq!(&client.call(2, client.alloc(0)?).wait()?[..], [1, 2, 3]);
/// # Ok(()) }
/// ```
pub trait Reply {
    #[doc(hidden)]
    fn send_to<A: ReplySink>(self, to: A) -> A::Output;

    /// The outcome of the call, for its counters.
    #[doc(hidden)]
    fn outcome(&self) -> CallOutcome;
}

/// Sink for a reply. One function for each representation keeps the arguments in registers.
#[doc(hidden)]
pub trait ReplySink {
    type Output;
    fn bytes(self, bytes: &[u8]) -> Self::Output;
    fn msg(self, msg: MsgBuf) -> Self::Output;
    /// Memory for a reply that is encoded: `len` bytes with the contents of earlier messages.
    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError>;
}

impl Reply for &[u8] {
    #[inline]
    fn outcome(&self) -> CallOutcome {
        CallOutcome::Ok
    }

    #[inline]
    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        to.bytes(self)
    }
}

impl<const N: usize> Reply for &[u8; N] {
    #[inline]
    fn outcome(&self) -> CallOutcome {
        CallOutcome::Ok
    }

    #[inline]
    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        to.bytes(self)
    }
}

impl<const N: usize> Reply for [u8; N] {
    #[inline]
    fn outcome(&self) -> CallOutcome {
        CallOutcome::Ok
    }

    #[inline]
    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        to.bytes(&self)
    }
}

impl Reply for &str {
    #[inline]
    fn outcome(&self) -> CallOutcome {
        CallOutcome::Ok
    }

    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        to.bytes(self.as_bytes())
    }
}

impl Reply for String {
    #[inline]
    fn outcome(&self) -> CallOutcome {
        CallOutcome::Ok
    }

    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        to.bytes(self.as_bytes())
    }
}

impl Reply for Vec<u8> {
    #[inline]
    fn outcome(&self) -> CallOutcome {
        CallOutcome::Ok
    }

    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        to.bytes(&self)
    }
}

impl Reply for MsgBuf {
    #[inline]
    fn outcome(&self) -> CallOutcome {
        CallOutcome::Ok
    }

    #[inline]
    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        to.msg(self)
    }
}

impl Reply for Request<'_> {
    #[inline]
    fn outcome(&self) -> CallOutcome {
        CallOutcome::Ok
    }

    #[inline]
    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        match self.body {
            Body::Borrowed(b) => to.bytes(b),
            Body::Owned(m) => to.msg(m),
        }
    }
}

impl Reply for Response<'_> {
    #[inline]
    fn outcome(&self) -> CallOutcome {
        CallOutcome::Ok
    }

    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        match self.0 {
            Body::Borrowed(b) => to.bytes(b),
            Body::Owned(m) => to.msg(m),
        }
    }
}

/// Creates a message from a reply.
struct InMemory<'a>(&'a Arena);

impl ReplySink for InMemory<'_> {
    type Output = Result<MsgBuf, AllocError>;

    fn bytes(self, bytes: &[u8]) -> Self::Output {
        let mut m = self.0.alloc(bytes.len())?;
        m.copy_from_slice(bytes);
        Ok(m)
    }

    fn msg(self, msg: MsgBuf) -> Self::Output {
        Ok(msg)
    }

    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.0.alloc(len)
    }
}

/// A reply as a message, for servers that answer with messages.
///
/// ```
/// use courser::service::to_message;
///
/// # fn main() -> Result<(), courser::AllocError> {
/// // For servers of your own, which answer with messages of their arenas.
/// let arena = courser_buf::Arena::heap();
/// assert_eq!(&to_message("a text", &arena)?[..], b"a text");
/// # Ok(()) }
/// ```
///
/// # Errors
/// No memory for the message.
pub fn to_message(reply: impl Reply, arena: &Arena) -> Result<MsgBuf, AllocError> {
    reply.send_to(InMemory(arena))
}

/// Answers one request after its handler has returned (`[eRPC §3.1]`, nested RPCs). Dropping it
/// answers with an error, so that no client waits forever.
///
/// ```
/// # use courser_example_store::*;
/// use courser::Nexus;
/// use std::time::Duration;
///
/// # fn main() -> Done {
/// let mut rpc = Nexus::bind("udp://127.0.0.1:0")?.endpoint()?;
/// rpc.on(ECHO, |cx, request| {
///     let key = request.to_vec();
///     let handle = cx.defer().expect("it was not answered");
///     // The answer comes later, from a timer or from the continuation of another call.
///     cx.after(Duration::from_millis(1), move |cx| {
///         let _ = cx.reply_to(handle, key);
///     });
/// });
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "dropping a reply handle answers the request with an error"]
pub struct ReplyHandle {
    pub(crate) id: RequestId,
    pub(crate) queue: Option<LocalQueue>,
}

impl ReplyHandle {
    /// The session of the request.
    pub fn session(&self) -> SessionId {
        self.id.session()
    }

    /// Whether the handle is of the endpoint with this queue; request numbers are valid at their own
    /// endpoint only.
    pub(crate) fn is_of(&self, endpoint: &LocalQueue) -> bool {
        self.queue.as_ref().is_some_and(|own| own.is(endpoint))
    }

    /// Marks the request as answered.
    pub(crate) fn settle(mut self) {
        self.queue = None;
    }
}

impl Drop for ReplyHandle {
    fn drop(&mut self) {
        if let Some(queue) = &self.queue {
            // A handler that panics drops its deferred handles.
            let panics = std::thread::panicking();
            let status = if panics { Status::Panicked } else { Status::NoReply };
            queue.push(LocalCommand::Reply(self.id, status));
        }
    }
}

/// A new buffer with all bytes 0.
#[inline]
pub(crate) fn zeroed(buffer: Result<MsgBuf, AllocError>) -> Result<MsgBuf, AllocError> {
    let mut buffer = buffer?;
    buffer.fill(0);
    Ok(buffer)
}
