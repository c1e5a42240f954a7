//! Authorization: whether a peer may use a service and make a request.
//!
//! Endpoints with an [`Authorize`] have a [`Gate`] before each handler. Others have none, so that a
//! request costs nothing more.

use std::fmt;

use courser_buf::Addr;
use courser_proto::{Body, SessionId, Status};

use super::answer::RefusalReply;
use super::services::Services;
use crate::core::context::Context;
use crate::core::handler::{Handle, Handler};
use crate::core::message::Request;
use crate::panics::caught;

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

/// A peer may not use a service, or make a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denied {
    reason: Box<str>,
}

impl Denied {
    /// The text for the client, which gets up to 200 bytes of it if the request is to a service.
    pub fn new(reason: impl Into<Box<str>>) -> Self {
        Denied { reason: reason.into() }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// The handler that a request or a one-way message is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Target<'a> {
    /// Its request type, or type of messages. Servers assign those of the methods of services.
    pub req_type: u16,
    /// It is a one-way message.
    pub is_message: bool,
    /// The names of the service and of the method. `None`: a handler without a service, such as those
    /// of [`crate::Server::on`] and [`crate::Rpc::on`].
    pub method: Option<(&'a str, &'a str)>,
}

/// Decides what clients may do: see [`crate::Server::authorize`].
///
/// It runs on the thread of the endpoint, before anything of the request is decoded, copied or
/// counted as in progress. So it should take a microsecond at most, and look things up rather than
/// ask for them. A panic denies the request.
///
/// A closure of a peer and a target is one that allows every service.
pub trait Authorize: Send + Sync + 'static {
    /// Returns whether a peer may use a service. It is called when a client asks for the service on
    /// a new session, and before each request to a method, as a client need not ask.
    ///
    /// # Errors
    /// It may not: the client is not made, or the request not passed to its handler.
    fn service(&self, _peer: &Peer, _service: &str) -> Result<(), Denied> {
        Ok(())
    }

    /// Returns whether a peer may make a request, send a one-way message, or open a stream. It is
    /// called for each that has a handler, with a service or without; for methods if the peer may use
    /// the service. The items of an open stream are not asked about.
    ///
    /// # Errors
    /// It may not: a call of a method ends with [`super::RpcError::Denied`], another one with
    /// [`Status::Denied`], and a one-way message is dropped.
    fn request(&self, peer: &Peer, target: &Target<'_>) -> Result<(), Denied>;
}

impl<F> Authorize for F
where
    F: Fn(&Peer, &Target<'_>) -> Result<(), Denied> + Send + Sync + 'static,
{
    fn request(&self, peer: &Peer, target: &Target<'_>) -> Result<(), Denied> {
        self(peer, target)
    }
}

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

impl Gate {
    /// Answers a request that is not allowed.
    fn denies(&self, cx: &mut Context<'_>, request: &Request<'_>) -> bool {
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
}

impl Handle for Gate {
    fn handle(&mut self, cx: &mut Context<'_>, request: Request<'_>) {
        if !self.denies(cx, &request) {
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
