//! Gates before handlers: endpoints with an [`Authorize`](super::access::Authorize) or with middleware have
//! one before each handler. Others have none, so that a request costs nothing more.

use courser_buf::MsgBuf;
use courser_proto::{Body, SessionId, Status};

use super::access::{Denied, Peer};
use super::answer::RefusalReply;
use super::context::current;
use super::context::marked::in_metadata;
use super::context::trailer::Arrived;
use super::middleware::{Observation, ServerChain, missing};
use super::services::{MethodOf, Services};
use super::verdict::outcome_of;
use crate::core::context::Context;
use crate::core::handler::{Handle, Handler};
use crate::core::message::Request;
use crate::counts::CallOutcome;
use crate::panics::caught;

/// A handler behind the check of its peer, and behind middleware.
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
            self.pass(cx, request, Arrived::default());
        }
    }

    /// Answers a request that is not allowed.
    fn denies(&mut self, cx: &mut Context<'_>, request: &Request<'_>) -> bool {
        let number = request.req_type;
        let mut decision = Err(Denied::new("the check of the server has failed"));
        caught("authorization", number, || {
            decision = match peer(cx, request) {
                Some(peer) => self.services.authorize(&peer, number, self.is_message, request),
                None => Err(Denied::new("the session has ended")),
            };
        });
        match decision {
            Ok(()) => false,
            Err(denied) => {
                self.refuse(cx, number, denied);
                true
            }
        }
    }

    fn handle_allowed(&mut self, cx: &mut Context<'_>, request: Request<'_>) {
        let arrived = current::arrived().map(|arrived| (*arrived).clone());
        self.pass(cx, request, arrived.unwrap_or_default());
    }
}

/// The client of a request. `None`: its session has ended.
fn peer(cx: &Context<'_>, request: &Request<'_>) -> Option<Peer> {
    let stats = cx.core.proto.session_stats(request.session)?;
    stats.peer.map(Peer::new)
}

impl Gate {
    /// Answers a request that is refused, and counts it.
    fn refuse(&self, cx: &mut Context<'_>, number: u16, denied: Denied) {
        self.services.count_refused(number, denied.outcome());
        let refusal = self.services.denied(denied);
        if cx.request.is_some() && self.services.has(number) {
            cx.reply(RefusalReply(refusal));
        } else if let Some(id) = cx.request.take() {
            cx.core.proto.reply_status(id, Status::Denied);
        }
    }

    /// Passes an authorized request to the middleware, and to the handler if that lets it pass.
    fn pass(&mut self, cx: &mut Context<'_>, request: Request<'_>, mut arrived: Arrived) {
        let number = request.req_type;
        let chain = self.services.middleware().zip(self.services.method_info(number));
        let Some((chain, method)) = chain else { return self.run(cx, request, arrived) };
        match self.admit(cx, chain, method, &request, &mut arrived) {
            Ok(observation) => {
                if !self.services.is_asking(number) {
                    arrived.keep_passed();
                }
                self.observe(cx, request, arrived, observation);
            }
            Err(denied) => self.refuse(cx, number, denied),
        }
    }

    fn admit(
        &self,
        cx: &Context<'_>,
        chain: ServerChain,
        method: MethodOf,
        request: &Request<'_>,
        arrived: &mut Arrived,
    ) -> Result<Observation, Denied> {
        let peer = peer(cx, request).ok_or_else(|| Denied::new("the session has ended"))?;
        let subject = method.subject(peer);
        chain.admit(cx, request, subject, &mut arrived.metadata)
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
