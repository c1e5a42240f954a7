//! Requests for handlers that run elsewhere than on workers: each becomes a [`Work`] in the dispatch.

use std::sync::Arc;

use courser_net::Transport;
use courser_proto::RequestId;

use crate::context::Context;
use crate::message::Request;
use crate::rpc::Rpc;
use crate::worker::origin::Origin;
use crate::worker::work::Incoming;
use crate::worker::{Refused, Work, owned};

/// A request or message on its way to its handler.
pub(crate) struct Arrived {
    pub(crate) work: Work,
    /// `None`: a message.
    pub(crate) id: Option<RequestId>,
    /// In the endpoint's time; `u64::MAX`: never.
    pub(crate) expires_ns: u64,
}

impl<T: Transport> Rpc<T> {
    /// Registers a handler that owns its requests, in place of an earlier one. It runs on this thread,
    /// as one of [`Rpc::on`] does. The [`Work`] may be moved to any thread or task, which answers it:
    /// this is the reply handle for other threads. [`crate::Server`] does this for handlers that are
    /// futures.
    ///
    /// Costs the copy of a request of one packet, and for an answer of another thread what
    /// [`Work`] states.
    pub fn on_owned(&mut self, req_type: u16, handler: impl Fn(Work) + 'static) {
        self.on_arrived(
            req_type,
            || false,
            move |Arrived { mut work, .. }| {
                work.start();
                handler(work);
            },
        );
    }

    /// [`Rpc::on_owned`] with what a server needs to know of a request.
    /// While `is_full` returns true, requests are refused with [`courser_proto::Status::WorkersBusy`].
    pub(crate) fn on_arrived(
        &mut self,
        req_type: u16,
        is_full: impl Fn() -> bool + 'static,
        handler: impl Fn(Arrived) + 'static,
    ) {
        let origin = self.origin();
        let dispatch = move |cx: &mut Context<'_>, request: Request<'_>| {
            let Some(id) = cx.request.take() else { return };
            let taken = match is_full() {
                true => Err(Refused::Busy),
                false => own(cx, Incoming::Request(id), request, &origin),
            };
            match taken {
                Ok((work, expires_ns)) => handler(Arrived { work, id: Some(id), expires_ns }),
                Err(refused) => refused.answer(cx, id),
            }
        };
        self.register(req_type, Box::new(dispatch));
    }

    /// The same for one-way messages, which are dropped while `is_full` returns true.
    pub(crate) fn on_message_arrived(
        &mut self,
        msg_type: u16,
        is_full: impl Fn() -> bool + 'static,
        handler: impl Fn(Arrived) + 'static,
    ) {
        let origin = self.origin();
        self.on_message(msg_type, move |cx, message| {
            let incoming = Incoming::Message(message.session);
            if is_full() {
                cx.core.handled.messages_busy += 1;
                return;
            }
            match own(cx, incoming, message, &origin) {
                Ok((work, expires_ns)) => handler(Arrived { work, id: None, expires_ns }),
                Err(_) => cx.core.handled.messages_no_memory += 1,
            }
        });
    }
}

/// A request with its memory, and its deadline.
pub(super) fn own(
    cx: &Context<'_>,
    incoming: Incoming,
    request: Request<'_>,
    origin: &Arc<Origin>,
) -> Result<(Work, u64), Refused> {
    let deadline = request.deadline_ns().and_then(|ns| cx.core.deadline(ns));
    let Request { body, req_type, expires_ns, .. } = request;
    let body = owned(body, cx).ok_or(Refused::NoMemory)?;
    Ok((Work::new(incoming, req_type, body, deadline, origin.clone()), expires_ns))
}
