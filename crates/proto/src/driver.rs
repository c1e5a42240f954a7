//! The interface by which the protocol calls handlers and completions while it handles a frame.

use courser_buf::MsgBuf;

use crate::endpoint::Endpoint;
use crate::error::CallError;
use crate::event::{Body, Completion, Event, RequestId};
use crate::session::SessionId;

/// An endpoint together with the code that handles its requests and completions.
pub trait Driver<C> {
    /// The endpoint.
    fn endpoint(&mut self) -> &mut Endpoint<C>;

    /// The current time, ns; monotonic. Called for frames with a send time.
    fn now_ns(&mut self) -> u64;

    /// Time since the transport has received the burst of the current frame, ns; 0 before the first
    /// [`Driver::now_ns`] of the burst. The default is for a driver whose time does not pass within
    /// a burst.
    fn since_burst_ns(&self) -> u32 {
        0
    }

    /// Runs the handler of a request, which is answered now or later with [`Endpoint::reply_bytes`]
    /// or one of its variants. `expires_ns`: the client's deadline in this endpoint's time;
    /// `u64::MAX`: none.
    ///
    /// Inlined into the receive loop, so that a small request stays in registers.
    fn on_request(&mut self, id: RequestId, req_type: u16, body: Body<'_>, expires_ns: u64);

    /// Runs the handler of a one-way message of a client on this session. `expires_ns` as for
    /// requests. The default ignores it.
    fn on_message(&mut self, session: SessionId, msg_type: u16, body: Body<'_>, expires_ns: u64) {
        let _ = (session, msg_type, body, expires_ns);
    }

    /// Handles a call that has ended: its continuation, its session, its request buffer, which
    /// belongs to the application again, and the response or the error.
    fn on_completion(
        &mut self,
        cont: C,
        session: SessionId,
        request: MsgBuf,
        result: Result<Body<'_>, CallError>,
    );
}

/// Passes an event of a rare packet to the driver.
#[cold]
#[inline(never)] // one copy for rare packets; small messages have inlined calls
pub(crate) fn deliver<C>(driver: &mut impl Driver<C>, event: Event<'_, C>) {
    match event {
        Event::Request { id, req_type, body, expires_ns } => {
            driver.on_request(id, req_type, body, expires_ns);
        }
        Event::Message { session, msg_type, body, expires_ns, request } => {
            driver.on_message(session, msg_type, body, expires_ns);
            if let Some(id) = request {
                // The sender is gone: it needs no answer.
                let _ = driver.endpoint().reply_bytes(id, &[]);
            }
        }
        Event::Completion(Completion { cont, session, request, result }) => {
            driver.on_completion(cont, session, request, result);
        }
    }
}
