//! Authorization: whether a peer may use a service and call its methods.
//!
//! Endpoints with an [`Authorize`] have a [`Gate`] before each handler of a service. Others have
//! none, so that a request costs nothing more.

use std::fmt;

use courser_buf::Addr;
use courser_proto::{Body, SessionId};

use super::answer::RefusalReply;
use super::services::Services;
use crate::context::Context;
use crate::message::Request;
use crate::panics::caught;
use crate::rpc::{Handle, Handler};

/// A client as a server knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Peer {
    addr: Addr,
}

impl Peer {
    /// The address that its packets come from: over UDP a socket ([`Addr::to_socket`]). Networks can
    /// be made to deliver packets with another sender's address: see docs/security.md.
    pub fn addr(&self) -> Addr {
        self.addr
    }
}

/// A peer may not use a service, or call a method.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denied {
    reason: Box<str>,
}

impl Denied {
    /// The text for the client, which gets up to 200 bytes of it.
    pub fn new(reason: impl Into<Box<str>>) -> Self {
        Denied { reason: reason.into() }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Decides what clients of typed services may do: see [`crate::Server::authorize`].
///
/// It runs on the thread of the endpoint, before anything of the request is decoded, copied or
/// counted as in progress. So it should take a microsecond at most, and look things up rather than
/// ask for them. A panic denies the request.
///
/// A closure of a peer, a service and a method is one that allows every service.
pub trait Authorize: Send + Sync + 'static {
    /// Returns whether a peer may use a service. It is called when a client asks for the service on
    /// a new session, and before each request, as a client need not ask.
    ///
    /// # Errors
    /// It may not: the client is not made, or the request not passed to its handler.
    fn service(&self, _peer: &Peer, _service: &str) -> Result<(), Denied> {
        Ok(())
    }

    /// Returns whether a peer may call a method, send it a one-way message, or open its stream. It
    /// is called before each request, if the peer may use the service.
    ///
    /// # Errors
    /// It may not: the call ends with [`super::RpcError::Denied`], a one-way message is dropped.
    fn method(&self, peer: &Peer, service: &str, method: &str) -> Result<(), Denied>;
}

impl<F> Authorize for F
where
    F: Fn(&Peer, &str, &str) -> Result<(), Denied> + Send + Sync + 'static,
{
    fn method(&self, peer: &Peer, service: &str, method: &str) -> Result<(), Denied> {
        self(peer, service, method)
    }
}

/// A handler of a service behind the check of its peer.
pub(crate) struct Gate {
    pub(crate) inner: Handler,
    pub(crate) services: Services,
    pub(crate) number: u16,
}

impl Gate {
    /// Answers a request that is not allowed.
    fn denies(&self, cx: &mut Context<'_>, session: SessionId, request: &[u8]) -> bool {
        let mut decision = Err(Denied::new("the check of the server has failed"));
        caught("authorization", self.number, || {
            let addr = cx.core.proto.session_stats(session).and_then(|stats| stats.peer);
            decision = match addr {
                Some(addr) => self.services.authorize(&Peer { addr }, self.number, request),
                None => Err(Denied::new("the session has ended")),
            };
        });
        let Err(denied) = decision else { return false };
        let refusal = self.services.denied(denied);
        if cx.request.is_some() {
            cx.reply(RefusalReply(refusal));
        }
        true
    }
}

impl Handle for Gate {
    fn handle(&mut self, cx: &mut Context<'_>, request: Request<'_>) {
        if !self.denies(cx, request.session, &request) {
            self.inner.handle(cx, request);
        }
    }

    fn handle_bytes(
        &mut self,
        cx: &mut Context<'_>,
        body: &[u8],
        req_type: u16,
        session: SessionId,
        expires_ns: u64,
    ) {
        let request = Request { body: Body::Borrowed(body), req_type, session, expires_ns };
        self.handle(cx, request);
    }
}
