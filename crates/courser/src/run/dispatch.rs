//! Calls handlers and continuations for the events of an endpoint (step 13 of a packet's path).

use std::collections::BTreeMap;

use courser_buf::{MsgBuf, RxFrame};
use courser_proto::Completion as Ended;
use courser_proto::{Body, CallError, Driver, Endpoint, RequestId, SessionId, Status};

use crate::channel::method::METADATA;
use crate::core::Core;
use crate::core::context::Context;
use crate::core::continuations::{CompletionTarget, Cont};
use crate::core::handler::{Handler, parts};
use crate::core::message::{Completion, Reply, Request, Response};
use crate::counts::CallOutcome;
use crate::error::service::DecodeError;
use crate::panics::caught;
use crate::run::endpoint::{Events, Handlers};
use crate::service::trailer::{self, Arrived};
use crate::service::{Services, in_metadata, undecoded};

/// Passes the events of the endpoint to the application.
struct Dispatch<'a, A: Events> {
    core: &'a mut Core<A>,
    handlers: &'a mut A::Handlers,
    batched: bool,
    now_ns: Option<u64>,
    /// Time of the first frame of the burst, ns; 0: not read yet.
    burst_ns: u64,
}

/// Receives a burst of frames and runs the handlers and continuations of their packets. `batched`: the
/// clock is read once for the burst, not for each packet. `now_ns` is the time of the burst, if it is
/// known.
#[inline(never)] // keeps the registers for this loop
pub(crate) fn receive<A: Events>(
    core: &mut Core<A>,
    handlers: &mut A::Handlers,
    batched: bool,
    now_ns: Option<u64>,
    frames: &[RxFrame<'_>],
) {
    let mut driver = Dispatch { core, handlers, batched, now_ns, burst_ns: now_ns.unwrap_or(0) };
    for (at, frame) in frames.iter().enumerate() {
        driver.core.proto.prefetch_burst(frames, at);
        Endpoint::receive(&mut driver, frame);
    }
}

impl<A: Events> Dispatch<'_, A> {
    #[inline(always)]
    fn before_event(&mut self) {
        if !self.batched {
            self.core.read_clock_for(1);
        }
    }
}

impl<A: Events> Driver<Cont> for Dispatch<'_, A> {
    #[inline(always)]
    fn endpoint(&mut self) -> &mut Endpoint<Cont> {
        &mut self.core.proto
    }

    #[inline(always)]
    fn now_ns(&mut self) -> u64 {
        match self.now_ns {
            Some(now_ns) if self.batched => now_ns,
            _ => {
                let now_ns = self.core.now_ns();
                if self.burst_ns == 0 {
                    self.burst_ns = now_ns;
                }
                *self.now_ns.insert(now_ns)
            }
        }
    }

    #[inline(always)]
    fn since_burst_ns(&self) -> u32 {
        self.now_ns.map_or(0, |now_ns| now_ns.saturating_sub(self.burst_ns)) as u32
    }

    #[inline(always)]
    fn on_request(&mut self, id: RequestId, req_type: u16, body: Body<'_>, expires_ns: u64) {
        self.before_event();
        A::on_request(self.core, self.handlers, id, req_type, body, expires_ns);
    }

    #[inline(always)]
    fn on_message(&mut self, session: SessionId, msg_type: u16, body: Body<'_>, expires_ns: u64) {
        self.before_event();
        A::on_message(self.core, self.handlers, session, msg_type, body, expires_ns);
    }

    #[inline(always)]
    fn on_completion(
        &mut self,
        cont: Cont,
        session: SessionId,
        request: MsgBuf,
        result: Result<Body<'_>, CallError>,
    ) {
        self.before_event();
        A::on_completion(self.core, self.handlers, cont, session, request, result);
    }
}

/// Runs the function of a completion while a frame is received.
#[inline(always)] // into the places where the completion is made
pub(super) fn conclude(
    core: &mut Core,
    handlers: &mut Handlers,
    cont: Cont,
    session: SessionId,
    request: MsgBuf,
    result: Result<Body<'_>, CallError>,
) {
    // In parts, which stay in registers.
    if let (CompletionTarget::Tag(tag), Ok(Body::Borrowed(body))) = (cont.target(), &result)
        && let Some(f) = handlers.on_completion.as_mut()
    {
        let cx = &mut Context { core, request: None };
        return f.conclude(cx, tag, request, body, None, session);
    }
    if let (CompletionTarget::Awaited(at), Ok(Body::Borrowed(body))) = (cont.target(), &result) {
        return core.answer_awaited(at, request, body);
    }
    complete(core, handlers, Ended { cont, session, request, result });
}

/// Runs the handler of a request.
#[inline(always)] // into the places where the request is made
pub(super) fn handle(
    core: &mut Core,
    handlers: &mut Handlers,
    id: RequestId,
    req_type: u16,
    body: Body<'_>,
    expires_ns: u64,
) {
    let Some(Some(handler)) = handlers.by_type.get_mut(usize::from(req_type)) else {
        return handle_other(core, handlers, id, req_type, body, expires_ns);
    };
    // Checked again: time has passed since the burst arrived, also without other handlers.
    if expires_ns != u64::MAX && core.now_ns() >= expires_ns {
        return expire(core, &handlers.services, id, req_type);
    }
    let mut cx = Context { core, request: Some(id) };
    let session = id.session();
    let (body, owned) = parts(body);
    let panicked = caught("dispatch", req_type, || {
        handler.handle(&mut cx, body, owned, req_type, session, expires_ns);
    });
    end(cx, panicked);
}

/// Answers a request whose deadline has passed before its handler began.
#[cold]
#[inline(never)]
fn expire(core: &mut Core, services: &Services, id: RequestId, req_type: u16) {
    services.count_refused(req_type, CallOutcome::Deadline);
    core.proto.reply_status(id, Status::DeadlineExceeded);
}

/// Answers the request of a handler that has ended without an answer.
#[inline(always)] // into `handle`
fn end(cx: Context<'_>, panicked: bool) {
    cx.core.handled.panics += u64::from(panicked);
    let Some(id) = cx.request else { return };
    let status = if panicked { Status::Panicked } else { Status::NoReply };
    cx.core.proto.reply_status(id, status);
}

#[inline(never)]
pub(crate) fn complete(core: &mut Core, handlers: &mut Handlers, done: Ended<'_, Cont>) {
    let Ended { cont, session, request, result } = done;
    let cx = &mut Context { core, request: None };
    match cont.target() {
        CompletionTarget::Call(at) => {
            if let Some(mut f) = cx.core.continuations.take(at) {
                f(cx, Completion { request, result: result.map(Response), session });
            }
        }
        CompletionTarget::Awaited(at) => cx.core.finish_awaited(at, request, result),
        CompletionTarget::Tag(tag) => {
            let (body, ending) = match result {
                Ok(Body::Borrowed(body)) => (body, None),
                Ok(Body::Owned(large)) => (&[][..], Some(Ok(large))),
                Err(e) => (&[][..], Some(Err(e))),
            };
            if let Some(f) = handlers.on_completion.as_mut() {
                f.conclude(cx, tag, request, body, ending, session);
            }
        }
    }
}

/// Runs the handler of a message.
#[inline(never)]
pub(super) fn handle_message(
    core: &mut Core,
    handlers: &mut Handlers,
    session: SessionId,
    msg_type: u16,
    body: Body<'_>,
    expires_ns: u64,
) {
    let Some(Some(handler)) = handlers.messages.get_mut(usize::from(msg_type)) else {
        return handle_other_message(core, handlers, session, msg_type, body, expires_ns);
    };
    // Checked again: other handlers of the burst may have run since it arrived.
    if expires_ns != u64::MAX && core.now_ns() >= expires_ns {
        core.handled.messages_expired += 1;
        handlers.services.count_refused(msg_type, CallOutcome::Deadline);
        return;
    }
    let mut cx = Context { core, request: None };
    let (body, owned) = parts(body);
    let panicked = caught("message", msg_type, || {
        handler.handle(&mut cx, body, owned, msg_type, session, expires_ns);
    });
    core.handled.panics += u64::from(panicked);
}

// ---- requests with metadata -----------------------------------------------------------------

// Requests and messages with metadata have a type of their own, for which there is no handler, so that
// others take no instruction more. The handler of their method gets them without it. An endpoint's own
// thread polls the handler's task with the metadata that is passed on; a server has a second handler for
// each method, which makes tasks for other threads.

/// Handles a request of a type without a handler.
#[cold]
#[inline(never)]
fn handle_other(
    core: &mut Core,
    handlers: &mut Handlers,
    id: RequestId,
    req_type: u16,
    body: Body<'_>,
    expires_ns: u64,
) {
    let Handlers { services, asking, marked, by_type, .. } = handlers;
    if req_type != METADATA || !services.reads_metadata() {
        return core.proto.reply_status(id, Status::UnknownType);
    }
    let mut cx = Context { core, request: Some(id) };
    let method = match trailer::method(&body) {
        Ok(method) => method,
        Err(e) => return cx.reply(undecoded(services, e)),
    };
    let Some(handler) = handler_of(services, marked, by_type, method) else {
        return core.proto.reply_status(id, Status::UnknownType);
    };
    if cx.core.proto.is_shutting_down() && !services.is_accepted_in_drain(method) {
        return core.proto.reply_status(id, Status::ShuttingDown);
    }
    // In the order of other requests, so that the metadata of one that is refused is not read.
    if expires_ns != u64::MAX && cx.core.now_ns() >= expires_ns {
        return expire(core, services, id, method);
    }
    let request = |body| Request { body, req_type: method, session: id.session(), expires_ns };
    if handler.denies(&mut cx, &request(Body::Borrowed(&[]))) {
        return;
    }
    let reads_all = asking.contains(&method) || handler.reads_metadata();
    match split(reads_all, body) {
        Ok((arrived, body)) => {
            let panicked = caught("dispatch", method, || {
                in_metadata(&mut cx, arrived, |cx| handler.handle_allowed(cx, request(body)));
            });
            end(cx, panicked);
        }
        Err(e) => cx.reply(undecoded_of(services, method, e)),
    }
}

/// Counts a request or message of a method whose metadata cannot be decoded. Returns the answer to it.
fn undecoded_of(services: &Services, method: u16, error: DecodeError) -> impl Reply {
    let reply = undecoded(services, error);
    services.count_refused(method, reply.outcome());
    reply
}

/// The handler of requests of a method that have metadata.
fn handler_of<'a>(
    services: &Services,
    marked: &'a mut BTreeMap<u16, Handler>,
    others: &'a mut [Option<Handler>],
    method: u16,
) -> Option<&'a mut Handler> {
    let other = others.get_mut(usize::from(method)).and_then(Option::as_mut);
    marked.get_mut(&method).or(other).filter(|_| services.is_method(method))
}

/// Splits a request with metadata, of which a handler without a context keeps what is passed on. `reads_all`:
/// its handler has a context, or middleware reads all before.
fn split(reads_all: bool, body: Body<'_>) -> Result<(Arrived, Body<'_>), DecodeError> {
    let (mut arrived, body) = trailer::split(body)?;
    if !reads_all {
        arrived.keep_passed();
    }
    Ok((arrived, body))
}

/// Handles a message of a type without a handler.
#[cold]
#[inline(never)]
fn handle_other_message(
    core: &mut Core,
    handlers: &mut Handlers,
    session: SessionId,
    msg_type: u16,
    body: Body<'_>,
    expires_ns: u64,
) {
    let Handlers { services, asking, marked_messages, messages, .. } = handlers;
    if msg_type != METADATA || !services.reads_metadata() {
        core.handled.messages_unhandled += 1;
        return;
    }
    let method = match trailer::method(&body) {
        Ok(method) => method,
        Err(e) => return drop(undecoded(services, e)), // counts it
    };
    let Some(handler) = handler_of(services, marked_messages, messages, method) else {
        core.handled.messages_unhandled += 1;
        return;
    };
    if core.proto.is_shutting_down() && !services.is_accepted_in_drain(method) {
        return services.count_refused(method, CallOutcome::ShuttingDown);
    }
    if expires_ns != u64::MAX && core.now_ns() >= expires_ns {
        core.handled.messages_expired += 1;
        return services.count_refused(method, CallOutcome::Deadline);
    }
    let request = |body| Request { body, req_type: method, session, expires_ns };
    let mut cx = Context { core, request: None };
    if handler.denies(&mut cx, &request(Body::Borrowed(&[]))) {
        return;
    }
    let reads_all = asking.contains(&method) || handler.reads_metadata();
    match split(reads_all, body) {
        Ok((arrived, body)) => {
            let panicked = caught("message", method, || {
                in_metadata(&mut cx, arrived, |cx| handler.handle_allowed(cx, request(body)));
            });
            cx.core.handled.panics += u64::from(panicked);
        }
        Err(e) => drop(undecoded_of(services, method, e)), // counts it
    }
}
