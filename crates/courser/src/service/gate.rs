//! Gates before handlers: endpoints with an [`Authorize`] have one before each handler, and endpoints with
//! middleware before that of each method. Others have none, so that a request costs nothing more.

use std::sync::Arc;

use courser_buf::MsgBuf;
use courser_proto::{Body, SessionId, Status};

use super::access::{Authorize, Denied, Peer, Target};
use super::answer::RefusalReply;
use super::context::current;
use super::context::marked::in_metadata;
use super::context::trailer::Arrived;
use super::hello;
use super::middleware::{Observation, ServerChain, missing};
use super::services::{MethodOf, Services};
use super::verdict::outcome_of;
use crate::channel::method::{ACCEPT, HELLO, PULL, PUSH};
use crate::core::context::Context;
use crate::core::handler::{Handle, Handler};
use crate::core::message::Request;
use crate::counts::{CallOutcome, MethodCells};
use crate::panics::caught;

/// The checks of a gate, as they were when its handler was registered or they were last changed. Requests
/// read no state that the threads of a server share behind a lock.
struct Checks {
    access: Option<Arc<dyn Authorize>>,
    /// `None` for handlers without a service, which middleware does not see.
    chain: Option<ServerChain>,
    method: Option<MethodOf>,
    /// The counters of the method.
    cells: Option<Arc<MethodCells>>,
    /// The handler is that of a method, or one of the library's own.
    is_of_service: bool,
    /// The handler has a context.
    is_asking: bool,
}

impl Checks {
    /// The checks before the handler of a request type. `None`: there are none.
    fn of(services: &Services, number: u16) -> Option<Self> {
        let (access, method) = (services.access(), services.method_info(number));
        let chain = services.middleware().filter(|_| method.is_some());
        if access.is_none() && chain.is_none() {
            return None;
        }
        let (cells, is_of_service) = (services.cells(number), services.has(number));
        let is_asking = services.is_asking(number);
        Some(Checks { access, chain, method, cells, is_of_service, is_asking })
    }

    /// Returns whether a peer may make a request, or send a message.
    fn authorize(
        &self,
        access: &dyn Authorize,
        peer: &Peer,
        request: &Request<'_>,
        is_message: bool,
    ) -> Result<(), Denied> {
        let req_type = request.req_type;
        match req_type {
            // A malformed one is answered with an error.
            HELLO if !is_message && self.is_of_service => {
                return hello::service(request).map_or(Ok(()), |name| access.service(peer, name));
            }
            // The stream was allowed when it was opened.
            PULL | PUSH | ACCEPT if !is_message && self.is_of_service => return Ok(()),
            _ => {}
        }
        let method = self.method.map(|of| (of.service, of.method));
        if let Some((service, _)) = method {
            access.service(peer, service)?;
        }
        access.request(peer, &Target { req_type, is_message, method })
    }
}

/// A handler behind the check of its peer, and behind middleware.
struct Gate {
    inner: Handler,
    services: Services,
    checks: Checks,
    number: u16,
    is_message: bool,
    /// The client of the request that was authorized last, until it is passed on.
    peer: Option<Peer>,
}

/// Puts a gate before a handler, if there is something to check.
pub(crate) fn guarded(
    inner: Handler,
    services: &Services,
    number: u16,
    is_message: bool,
) -> Handler {
    let Some(checks) = Checks::of(services, number) else { return inner };
    Box::new(Gate { inner, services: services.clone(), checks, number, is_message, peer: None })
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
            self.pass(cx, request, Arrived::default());
        }
    }

    /// Answers a request that is not allowed.
    fn denies(&mut self, cx: &mut Context<'_>, request: &Request<'_>) -> bool {
        let Some(access) = self.checks.access.as_deref() else { return false };
        self.peer = peer(cx, request);
        let mut decision = Err(Denied::new("the check of the server has failed"));
        caught("authorization", request.req_type, || {
            decision = match &self.peer {
                Some(peer) => self.checks.authorize(access, peer, request, self.is_message),
                None => Err(ended()),
            };
        });
        match decision {
            Ok(()) => false,
            Err(denied) => {
                self.refuse(cx, denied);
                true
            }
        }
    }

    fn handle_allowed(&mut self, cx: &mut Context<'_>, request: Request<'_>) {
        let arrived = current::arrived().map(|arrived| (*arrived).clone());
        self.pass(cx, request, arrived.unwrap_or_default());
    }

    fn reads_metadata(&self) -> bool {
        self.checks.chain.is_some()
    }

    fn renew(&mut self) -> bool {
        // Checks are added and replaced, and none is removed.
        if let Some(checks) = Checks::of(&self.services, self.number) {
            self.checks = checks;
        }
        true
    }
}

/// The client of a request. `None`: its session has ended.
fn peer(cx: &Context<'_>, request: &Request<'_>) -> Option<Peer> {
    cx.core.proto.session_peer(request.session).map(Peer::new)
}

#[cold]
fn ended() -> Denied {
    Denied::new("the session has ended")
}

/// Passes a request to the middleware. `known`: its client, if it is known.
fn admit(
    cx: &Context<'_>,
    (chain, method): (&ServerChain, MethodOf),
    known: Option<Peer>,
    request: &Request<'_>,
    arrived: &mut Arrived,
) -> Result<Observation, Denied> {
    let peer = known.or_else(|| peer(cx, request)).ok_or_else(ended)?;
    chain.clone().admit(cx, request, method.subject(peer), &mut arrived.metadata)
}

impl Gate {
    /// Answers a request that is refused, and counts it.
    #[cold]
    fn refuse(&self, cx: &mut Context<'_>, denied: Denied) {
        if let Some(cells) = &self.checks.cells {
            cells.refuse(denied.outcome());
        }
        let refusal = self.services.denied(denied);
        if cx.request.is_some() && self.checks.is_of_service {
            cx.reply(RefusalReply(refusal));
        } else if let Some(id) = cx.request.take() {
            cx.core.proto.reply_status(id, Status::Denied);
        }
    }

    /// Passes an authorized request to the middleware, and to the handler if that lets it pass.
    fn pass(&mut self, cx: &mut Context<'_>, request: Request<'_>, mut arrived: Arrived) {
        let peer = self.peer.take();
        let chain = self.checks.chain.as_ref().zip(self.checks.method);
        let Some((chain, method)) = chain else { return self.run(cx, request, arrived) };
        match admit(cx, (chain, method), peer, &request, &mut arrived) {
            Ok(observation) => {
                if !self.checks.is_asking {
                    arrived.keep_passed();
                }
                self.observe(cx, request, arrived, observation);
            }
            Err(denied) => self.refuse(cx, denied),
        }
    }

    /// Runs the handler, and sees its end: that of this function, of the task that it becomes, or of its
    /// request on another thread.
    fn observe(
        &mut self,
        cx: &mut Context<'_>,
        request: Request<'_>,
        arrived: Arrived,
        observation: Observation,
    ) {
        let (at, id) = (cx.core.tasks.next_slot(), cx.request);
        // The future of a message is not dropped at the deadline.
        let expires_ns = id.map_or(u64::MAX, |_| request.expires_ns);
        let dropped = cx.core.handled.messages_dropped();
        let (left, missed) = missing(|| observation.during(|| self.run(cx, request, arrived)));
        let Some(observation) = left else { return };
        if let Some(outcome) = missed {
            return observation.end(outcome);
        }
        let lender = cx.core.lender.clone();
        let mut left = Some(observation);
        cx.core.tasks.replace_future(at, |task| match left.take() {
            Some(observation) => observation.of_task(task, (id, expires_ns), lender),
            None => task,
        });
        let Some(observation) = left else { return };
        observation.end(match id {
            Some(id) => cx.core.proto.stored_answer(id).map_or(CallOutcome::Cancelled, outcome_of),
            None if cx.core.handled.messages_dropped() == dropped => CallOutcome::Ok,
            None => CallOutcome::Overload,
        });
    }

    /// Runs the handler.
    fn run(&mut self, cx: &mut Context<'_>, request: Request<'_>, arrived: Arrived) {
        if arrived.answers || !arrived.metadata.is_empty() {
            return in_metadata(cx, arrived, |cx| self.inner.handle_allowed(cx, request));
        }
        self.inner.handle_allowed(cx, request);
    }
}

#[cfg(test)]
mod tests;
