//! What an endpoint gives to the application: requests to answer and calls that have ended.

use courser_buf::MsgBuf;

use crate::error::CallError;
use crate::session::SessionId;

/// One message as the application gets it.
#[derive(Debug)]
pub enum Body<'f> {
    /// Read in place from the received frame; valid for the length of the handler (E28).
    Borrowed(&'f [u8]),
    /// In a buffer of its own, because it came in several packets.
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

/// Names one request at its server until it is answered. Copies are harmless: the second answer
/// is refused.
///
/// Packed into two words to be passed in registers; a wider struct causes a store-forwarding stall.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId {
    /// Index and, above it, generation.
    session: u64,
    /// Number and, above it, slot.
    request: u64,
}

impl RequestId {
    #[inline(always)]
    pub(crate) fn new(session: SessionId, slot: u8, req_num: u32) -> Self {
        let SessionId { index, generation } = session;
        RequestId {
            session: u64::from(index) | u64::from(generation) << 32,
            request: u64::from(req_num) | u64::from(slot) << 32,
        }
    }

    /// The session that the request came on.
    #[inline(always)]
    pub fn session(&self) -> SessionId {
        SessionId { index: self.session as u32, generation: (self.session >> 32) as u32 }
    }

    /// The session's slot that it occupies: below [`crate::Config::slots`].
    #[inline(always)]
    pub fn slot(&self) -> u8 {
        (self.request >> 32) as u8
    }

    /// Its number in the slot. Session, slot and number together name a request at its server,
    /// until the number wraps.
    #[inline(always)]
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
    /// What the caller gave with the call.
    pub cont: C,
    /// The session of the call.
    pub session: SessionId,
    /// The request buffer: the application's again (E24, E27).
    pub request: MsgBuf,
    /// The response, or why there is none.
    pub result: Result<Body<'f>, CallError>,
}

/// What a packet leads to.
#[derive(Debug)]
pub(crate) enum Event<'f, C> {
    /// A request for a handler.
    Request {
        id: RequestId,
        req_type: u16,
        body: Body<'f>,
        /// When the client gives the call up, in this endpoint's time; `u64::MAX`: never.
        expires_ns: u64,
    },
    /// A call has ended.
    Completion(Completion<'f, C>),
}
