//! What an endpoint gives to whoever runs it: the events of a received frame, one after the other or
//! each to the function that acts on it.

use courser_buf::MsgBuf;

use crate::endpoint::Endpoint;
use crate::error::CallError;
use crate::session::SessionId;
use crate::wire::{SHORT_REQUEST, SHORT_RESPONSE, Short, parse_short};

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
/// Two words, so that it stays in registers: of more parts one would be stored after the other, and
/// loaded together by whoever gets it, who would wait until the stores have reached the cache.
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

/// What the application has to act on.
#[derive(Debug)]
pub enum Event<'f, C> {
    /// A request for a handler; answer with [`Endpoint::reply_bytes`] and its like.
    Request {
        /// To answer with.
        id: RequestId,
        /// Selects the handler.
        req_type: u16,
        /// The request.
        body: Body<'f>,
        /// When the client gives the call up, in this endpoint's time, if it said so (F15).
        deadline_ns: Option<u64>,
    },
    /// A call has ended.
    Completion(Completion<'f, C>),
}

/// The packets of an accepted frame that were not looked at yet.
#[derive(Debug)]
pub struct FrameCursor<'f> {
    pub(crate) rest: &'f [u8],
    pub(crate) peer: u32,
    pub(crate) data_per_packet: u16,
    /// Sessions wait for credits of the peer's pool: each that comes home is for them, so responses
    /// take no short cut.
    pub(crate) awaited: bool,
    /// Messages of fewer bytes may take the short cuts.
    pub(crate) short_end: u32,
}

/// An endpoint and who acts on its events.
pub trait Driver<C> {
    /// The endpoint.
    fn endpoint(&mut self) -> &mut Endpoint<C>;

    /// Acts on an event of [`Driver::endpoint`].
    fn on_event(&mut self, event: Event<'_, C>);

    /// [`Driver::on_event`] for a request that is read in place and has no deadline. Worth
    /// inlining: what makes up a short message, here and in the next one, then stays in registers,
    /// while an event is gathered in memory and taken apart again.
    fn on_short_request(&mut self, id: RequestId, req_type: u16, body: &[u8]) {
        let body = Body::Borrowed(body);
        self.on_event(Event::Request { id, req_type, body, deadline_ns: None });
    }

    /// [`Driver::on_event`] for a call that has ended with a response that is read in place.
    fn on_short_response(&mut self, call: Answered<C>, body: &[u8]) {
        let Answered { cont, session, request } = call;
        let result = Ok(Body::Borrowed(body));
        self.on_event(Event::Completion(Completion { cont, session, request, result }));
    }
}

/// A call that has ended with a response: [`Completion`] without it.
#[derive(Debug)]
pub struct Answered<C> {
    /// What the caller gave with the call.
    pub cont: C,
    /// The session of the call.
    pub session: SessionId,
    /// The request buffer.
    pub request: MsgBuf,
}

impl<'f> FrameCursor<'f> {
    /// Works through the rest of a frame that the driver's endpoint has accepted:
    /// [`Endpoint::next_event`] until `None`, without an event in between that is made, moved and
    /// taken apart.
    #[inline(always)]
    pub fn drive<C>(self, driver: &mut impl Driver<C>) {
        // The rest of the frame stays in registers as long as nobody else is given the cursor.
        let FrameCursor { mut rest, peer, awaited, short_end, .. } = self;
        driver.endpoint().home_is(peer);
        driver.endpoint().open_writing();
        while !rest.is_empty() {
            if let Some((short, behind)) = parse_short(rest, short_end) {
                if short.kind == SHORT_RESPONSE {
                    let call = driver.endpoint().rx_short_response(peer, awaited, &short);
                    if let Some(call) = call {
                        rest = behind;
                        driver.on_short_response(call, short.data);
                        continue;
                    }
                } else if short.kind == SHORT_REQUEST
                    && let Some(id) = driver.endpoint().rx_short_request(peer, &short)
                {
                    rest = behind;
                    driver.on_short_request(id, short.req_type, short.data);
                    continue;
                }
            }
            let mut cursor = FrameCursor { rest, ..self };
            let event = driver.endpoint().next_packet(&mut cursor);
            rest = cursor.rest;
            if let Some(event) = event {
                driver.on_event(event);
            }
        }
        driver.endpoint().tx.close_writing();
    }

    #[inline(always)]
    pub(crate) fn next_short(&self) -> Option<(Short<'f>, &'f [u8])> {
        parse_short(self.rest, self.short_end)
    }
}
