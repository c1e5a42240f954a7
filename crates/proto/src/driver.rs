//! The endpoint's user: acts on requests and completions while a frame is being received.

use courser_buf::MsgBuf;

use crate::endpoint::Endpoint;
use crate::error::CallError;
use crate::event::{Body, Completion, Event, RequestId};
use crate::session::SessionId;

/// An endpoint together with the code that acts on its events.
pub trait Driver<C> {
    /// The endpoint.
    fn endpoint(&mut self) -> &mut Endpoint<C>;

    /// The time, ns; never before an earlier one. Asked for frames that say when they were sent.
    fn now_ns(&mut self) -> u64;

    /// Runs the handler of a request, which is answered now or later with
    /// [`Endpoint::reply_bytes`] and its like. `expires_ns`: when the client gives the call up, in this
    /// endpoint's time; `u64::MAX`: never, as far as the client said.
    ///
    /// Inlined into the receive loop, so that a small request stays in registers.
    fn on_request(&mut self, id: RequestId, req_type: u16, body: Body<'_>, expires_ns: u64);

    /// Acts on a call that has ended: its continuation, its session, its message, which is the
    /// application's again, and the response or why there is none.
    fn on_completion(
        &mut self,
        cont: C,
        session: SessionId,
        request: MsgBuf,
        result: Result<Body<'_>, CallError>,
    );
}

/// Hands an event of a rare packet to the driver.
#[cold]
#[inline(never)] // once for all rare packets; the receive loop inlines the calls for small messages
pub(crate) fn deliver<C>(driver: &mut impl Driver<C>, event: Event<'_, C>) {
    match event {
        Event::Request { id, req_type, body, expires_ns } => {
            driver.on_request(id, req_type, body, expires_ns);
        }
        Event::Completion(Completion { cont, session, request, result }) => {
            driver.on_completion(cont, session, request, result);
        }
    }
}
