//! From the events of an endpoint to handlers and continuations (step 13 of a packet's path).

use courser_buf::RxFrame;
use courser_proto::{Answered, Body, Completion, Driver, Endpoint, Event, RequestId, Status};

use crate::context::Context;
use crate::conts::{Cont, Hearer};
use crate::core::Core;
use crate::message::{Done, Request, Response};
use crate::panics::caught;
use crate::rpc::Handlers;

/// Hands the events of the endpoint to the application.
pub(crate) struct Dispatch<'a> {
    pub(crate) core: &'a mut Core,
    pub(crate) handlers: &'a mut Handlers,
    /// The clock is read once for a burst, not for each packet.
    pub(crate) batched: bool,
}

/// Takes a received frame, and runs what it calls for.
#[inline(never)] // so that it has the registers
pub(crate) fn work_through(driver: &mut Dispatch<'_>, frame: &RxFrame<'_>, now_ns: u64) {
    Endpoint::receive(driver, frame, now_ns);
}

impl Dispatch<'_> {
    #[inline(always)]
    fn before_event(&mut self) {
        if !self.batched {
            std::hint::black_box(self.core.now_ns());
        }
    }
}

impl Driver<Cont> for Dispatch<'_> {
    #[inline(always)]
    fn endpoint(&mut self) -> &mut Endpoint<Cont> {
        &mut self.core.proto
    }

    #[inline(never)]
    fn on_event(&mut self, event: Event<'_, Cont>) {
        self.before_event();
        match event {
            Event::Request { id, req_type, body, deadline_ns } => {
                handle(self.core, self.handlers, id, req_type, body, deadline_ns);
            }
            Event::Completion(done) => complete(self.core, self.handlers, done),
        }
    }

    #[inline(always)]
    fn on_short_request(&mut self, id: RequestId, req_type: u16, body: &[u8]) {
        self.before_event();
        handle(self.core, self.handlers, id, req_type, Body::Borrowed(body), None);
    }

    #[inline(always)]
    fn on_short_response(&mut self, call: Answered<Cont>, body: &[u8]) {
        self.before_event();
        let Answered { cont, session, request } = call;
        if let Hearer::Tag(tag) = cont.hearer()
            && let Some(f) = self.handlers.on_completion.as_mut()
        {
            let cx = &mut Context { core: self.core, request: None };
            f.conclude_short(cx, tag, request, body, session);
        } else {
            let response = Response(Body::Borrowed(body));
            let done = Done { request, result: Ok(response), session };
            conclude(self.core, self.handlers, cont, done);
        }
    }
}

/// Runs the handler of a request.
#[inline(always)] // into the places where the request is made
fn handle(
    core: &mut Core,
    handlers: &mut Handlers,
    id: RequestId,
    req_type: u16,
    body: Body<'_>,
    deadline_ns: Option<u64>,
) {
    let Some(Some(handler)) = handlers.by_type.get_mut(usize::from(req_type)) else {
        core.proto.reply_status(id, Status::UnknownType);
        return;
    };
    // It was in time when the burst arrived; since then other handlers may have run.
    if deadline_ns.is_some_and(|deadline_ns| core.now_ns() >= deadline_ns) {
        core.proto.reply_status(id, Status::DeadlineExceeded);
        return;
    }
    let mut cx = Context { core, request: Some(id) };
    let session = id.session();
    let panicked = caught("dispatch", req_type, || match body {
        Body::Borrowed(body) if deadline_ns.is_none() => {
            handler.handle_short(&mut cx, body, req_type, session);
        }
        body => handler.handle(&mut cx, Request { body, req_type, session, deadline_ns }),
    });
    if let Some(id) = cx.request {
        let status = if panicked { Status::Panicked } else { Status::NoReply };
        core.proto.reply_status(id, status);
    }
    core.handled.panics += u64::from(panicked);
}

#[inline(always)] // one copy less of the continuation and the buffer
pub(crate) fn complete(core: &mut Core, handlers: &mut Handlers, done: Completion<'_, Cont>) {
    let Completion { cont, session, request, result } = done;
    // Each arm makes what it gives away: merged before, it would be copied twice.
    match result {
        Ok(body) => {
            let done = Done { request, result: Ok(Response(body)), session };
            conclude(core, handlers, cont, done);
        }
        Err(e) => conclude(core, handlers, cont, Done { request, result: Err(e), session }),
    }
}

fn conclude(core: &mut Core, handlers: &mut Handlers, cont: Cont, done: Done<'_>) {
    let mut cx = Context { core, request: None };
    match cont.hearer() {
        Hearer::Call(at) => {
            if let Some(mut f) = cx.core.conts.take(at) {
                f(&mut cx, done);
            }
        }
        Hearer::Tag(tag) => {
            if let Some(f) = handlers.on_completion.as_mut() {
                f.conclude(&mut cx, tag, done);
            }
        }
    }
}
