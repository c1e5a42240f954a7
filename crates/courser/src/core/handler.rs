//! The functions that an endpoint calls: handlers of requests and messages, and those for
//! completions and for room.

use courser_buf::MsgBuf;
use courser_proto::{Body, CallError, Notice, SessionId};

use crate::core::context::Context;
use crate::core::message::{Completion, Request, Response};

/// A handler. Not `dyn FnMut`, which passes its arguments in a tuple: one more copy of the request.
/// One method that calls the closure in one place, so that the closure is inlined, and the parts of a
/// single-packet request stay in registers.
pub(crate) trait Handle {
    /// Runs the handler for a single-packet request, `body`, or for an `owned` one.
    fn handle(
        &mut self,
        cx: &mut Context<'_>,
        body: &[u8],
        owned: Option<MsgBuf>,
        req_type: u16,
        session: SessionId,
        expires_ns: u64,
    );

    /// Returns whether the peer may not make a request, which is answered then. The body is not read.
    fn denies(&mut self, _cx: &mut Context<'_>, _request: &Request<'_>) -> bool {
        false
    }

    /// Returns whether it reads all metadata of a request, before its handler has the part that is passed on.
    fn reads_metadata(&self) -> bool {
        false
    }

    /// Reads the checks before its handler again, as they have changed. False: it has none.
    fn renew(&mut self) -> bool {
        false
    }

    /// [`Handle::handle`] for a request with metadata that [`Handle::denies`] has allowed.
    fn handle_allowed(&mut self, cx: &mut Context<'_>, request: Request<'_>) {
        let Request { body, req_type, session, expires_ns } = request;
        let (body, owned) = parts(body);
        self.handle(cx, body, owned, req_type, session, expires_ns);
    }
}

impl<F: FnMut(&mut Context<'_>, Request<'_>)> Handle for F {
    #[inline]
    fn handle(
        &mut self,
        cx: &mut Context<'_>,
        body: &[u8],
        owned: Option<MsgBuf>,
        req_type: u16,
        session: SessionId,
        expires_ns: u64,
    ) {
        let body = owned.map_or(Body::Borrowed(body), Body::Owned);
        self(cx, Request { body, req_type, session, expires_ns });
    }
}

/// A body as [`Handle::handle`] takes it.
#[inline]
pub(crate) fn parts(body: Body<'_>) -> (&[u8], Option<MsgBuf>) {
    match body {
        Body::Borrowed(body) => (body, None),
        Body::Owned(message) => (&[], Some(message)),
    }
}

/// The completion function. One method that calls the closure in one place, so that the closure is
/// inlined and the parts of a single-packet response stay in registers.
pub(crate) trait Conclude {
    /// Runs the function for a single-packet response, `body`, or for any other `ending`.
    fn conclude(
        &mut self,
        cx: &mut Context<'_>,
        tag: u64,
        request: MsgBuf,
        body: &[u8],
        ending: Option<Ending>,
        session: SessionId,
    );
}

/// The end of a call without a single-packet response.
pub(crate) type Ending = Result<MsgBuf, CallError>;

impl<F: FnMut(&mut Context<'_>, u64, Completion<'_>)> Conclude for F {
    #[inline]
    fn conclude(
        &mut self,
        cx: &mut Context<'_>,
        tag: u64,
        request: MsgBuf,
        body: &[u8],
        ending: Option<Ending>,
        session: SessionId,
    ) {
        let result = match ending {
            None => Ok(Response(Body::Borrowed(body))),
            Some(ending) => ending.map(|large| Response(Body::Owned(large))),
        };
        self(cx, tag, Completion { request, result, session });
    }
}

pub(crate) type Handler = Box<dyn Handle>;

/// A function for notices of the protocol, of an endpoint that clients or a server use.
pub(crate) type OnNotice = Box<dyn FnMut(&mut Context<'_>, Notice)>;

/// A function that is told of room for messages.
pub(crate) type OnRoom = Box<dyn FnMut(&mut Context<'_>, SessionId)>;
