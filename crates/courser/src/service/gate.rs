//! Gates before handlers: endpoints with an [`Authorize`](super::access::Authorize) have one before each
//! handler. Others have none, so that a request costs nothing more.

use courser_buf::MsgBuf;
use courser_proto::{Body, SessionId, Status};

use super::access::{Denied, Peer};
use super::answer::RefusalReply;
use super::services::Services;
use crate::core::context::Context;
use crate::core::handler::{Handle, Handler};
use crate::core::message::Request;
use crate::panics::caught;

/// A handler behind the check of its peer.
struct Gate {
    inner: Handler,
    services: Services,
    is_message: bool,
}

/// Puts a gate before a handler.
pub(crate) fn guarded(inner: Handler, services: &Services, is_message: bool) -> Handler {
    Box::new(Gate { inner, services: services.clone(), is_message })
}

impl Handle for Gate {
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
        let request = Request { body, req_type, session, expires_ns };
        if !self.denies(cx, &request) {
            self.handle_allowed(cx, request);
        }
    }

    /// Answers a request that is not allowed.
    fn denies(&mut self, cx: &mut Context<'_>, request: &Request<'_>) -> bool {
        let number = request.req_type;
        let mut decision = Err(Denied::new("the check of the server has failed"));
        caught("authorization", number, || {
            let stats = cx.core.proto.session_stats(request.session);
            decision = match stats.and_then(|stats| stats.peer) {
                Some(addr) => {
                    let peer = Peer { addr };
                    self.services.authorize(&peer, number, self.is_message, request)
                }
                None => Err(Denied::new("the session has ended")),
            };
        });
        let Err(denied) = decision else { return false };
        let refusal = self.services.denied(denied);
        if cx.request.is_some() && self.services.has(number) {
            cx.reply(RefusalReply(refusal));
        } else if let Some(id) = cx.request.take() {
            cx.core.proto.reply_status(id, Status::Denied);
        }
        true
    }

    fn handle_allowed(&mut self, cx: &mut Context<'_>, request: Request<'_>) {
        self.inner.handle_allowed(cx, request);
    }
}
