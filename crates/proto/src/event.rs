//! Events for the application: requests to answer, and calls that have ended.

use courser_buf::MsgBuf;

use crate::error::CallError;
use crate::session::SessionId;

/// A message as passed to the application.
#[derive(Debug)]
pub enum Body<'f> {
    /// In the received frame, without a copy; valid until the handler returns (E28).
    Borrowed(&'f [u8]),
    /// In a buffer of its own, since it arrived in several packets.
    Owned(MsgBuf),
}

impl std::ops::Deref for Body<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Body::Borrowed(b) => b,
            Body::Owned(m) => m,
        }
    }
}

/// Identifies one request at its server until it is answered. It may be copied: a second answer is
/// rejected.
///
/// Packed into two words to be passed in registers; a wider struct causes a store-forwarding stall.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId {
    /// Index and, in the upper half, generation.
    session: u64,
    /// Request number and, in the upper half, slot.
    request: u64,
}

impl RequestId {
    #[inline]
    pub(crate) fn new(session: SessionId, slot: u8, req_num: u32) -> Self {
        let SessionId { index, generation } = session;
        RequestId {
            session: u64::from(index) | u64::from(generation) << 32,
            request: u64::from(req_num) | u64::from(slot) << 32,
        }
    }

    /// The session of the request.
    #[inline]
    pub fn session(&self) -> SessionId {
        SessionId { index: self.session as u32, generation: (self.session >> 32) as u32 }
    }

    /// The slot of the request in its session: below [`crate::Config::slots`].
    #[inline]
    pub fn slot(&self) -> u8 {
        (self.request >> 32) as u8
    }

    /// The request number. Session, slot and number together identify a request at its server,
    /// until the number wraps.
    #[inline]
    pub fn req_num(&self) -> u32 {
        self.request as u32
    }
}

impl std::fmt::Debug for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestId")
            .field("session", &self.session())
            .field("slot", &self.slot())
            .field("req_num", &self.req_num())
            .finish()
    }
}

/// A call that has ended.
#[derive(Debug)]
pub struct Completion<'f, C> {
    /// The value passed with the call.
    pub cont: C,
    /// The session of the call.
    pub session: SessionId,
    /// The request buffer, which belongs to the application again (E24, E27).
    pub request: MsgBuf,
    /// The response, or the error.
    pub result: Result<Body<'f>, CallError>,
}

/// Result of a packet.
#[derive(Debug)]
pub(crate) enum Event<'f, C> {
    /// A request for a handler.
    Request {
        id: RequestId,
        req_type: u16,
        body: Body<'f>,
        /// The client's deadline, in this endpoint's time; `u64::MAX`: none.
        expires_ns: u64,
    },
    /// A one-way message for a handler.
    Message {
        session: SessionId,
        msg_type: u16,
        body: Body<'f>,
        expires_ns: u64,
        /// The request that carried a large message.
        request: Option<RequestId>,
    },
    /// A call has ended.
    Completion(Completion<'f, C>),
}

/// An event that the application waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A session that has refused a message, or a call for which room is awaited
    /// ([`crate::Endpoint::await_room`]), has room, or it has ended.
    Freed {
        /// The session.
        session: SessionId,
        /// Messages were refused, and at most half of their queue is full; for messages of several packets
        /// that is the queue of calls. False after the end of the session.
        messages: bool,
    },
    /// A request that its client cancelled, or whose client is gone, while its handler had it. It must
    /// be answered in any case.
    Cancelled(RequestId),
}
