//! The clients of an endpoint as its application. It has no closures, tasks or timers, so that the
//! endpoint can be driven by any thread.

use courser_buf::MsgBuf;
use courser_net::Transport;
use courser_proto::Completion as Ended;
use courser_proto::{Body, CallError, Notice, RequestId, SessionId, Status};

use super::calls::Clients;
use crate::control::Mail;
use crate::control::mailbox::Mailbox;
use crate::core::Core;
use crate::core::app::{App, Kept};
use crate::core::context::Context;
use crate::core::continuations::{CompletionTarget, Cont};
use crate::core::message::{Completion, Response};
use crate::rpc::Rpc;
use crate::run::endpoint::Events;
use crate::run::worker::Pool;

/// See the module.
#[derive(Debug)]
pub(super) struct OfClients;

impl App for OfClients {
    type Continuations = ();
    type Queue = ();
    type Lender = ();
    type Tasks = ();
    type Timers = ();

    fn kept(_: Mailbox, _: usize) -> Kept<Self> {
        Kept { continuations: (), queue: (), lender: (), tasks: (), timers: () }
    }
}

impl Events for OfClients {
    type Handlers = Clients;
    type Workers = ();

    fn workers(_: &Pool) {}

    #[cold]
    fn on_request(
        core: &mut Core<Self>,
        _: &mut Clients,
        id: RequestId,
        _: u16,
        _: Body<'_>,
        _: u64,
    ) {
        core.proto.reply_status(id, Status::UnknownType); // it accepts no sessions
    }

    #[cold]
    fn on_message(
        core: &mut Core<Self>,
        _: &mut Clients,
        _: SessionId,
        _: u16,
        _: Body<'_>,
        _: u64,
    ) {
        core.handled.messages_unhandled += 1;
    }

    #[inline]
    fn on_completion(
        core: &mut Core<Self>,
        clients: &mut Clients,
        cont: Cont,
        session: SessionId,
        request: MsgBuf,
        result: Result<Body<'_>, CallError>,
    ) {
        if let CompletionTarget::Tag(tag) = cont.target() {
            let cx = &mut Context { core, request: None };
            let result = result.map(Response);
            clients.completed(cx, tag, Completion { request, result, session });
        }
    }

    fn complete(core: &mut Core<Self>, clients: &mut Clients, done: Ended<'_, Cont>) {
        let Ended { cont, session, request, result } = done;
        Self::on_completion(core, clients, cont, session, request, result);
    }

    #[inline(always)]
    fn after_burst(_: &mut Core<Self>) {}

    #[inline(always)]
    fn has_upkeep<T: Transport>(_: &Rpc<T, Self>, _: u64) -> bool {
        false
    }

    fn run_timers(_: &mut Core<Self>, _: u64) -> bool {
        false
    }

    fn upkeep<T: Transport>(_: &mut Rpc<T, Self>, _: u64) -> bool {
        false
    }

    fn on_notice<T: Transport>(rpc: &mut Rpc<T, Self>, notice: Notice) -> bool {
        let Notice::Freed { session, .. } = notice else { return false };
        let cx = &mut Context { core: &mut rpc.core, request: None };
        rpc.handlers.on_room(cx, session);
        true
    }

    fn take_mail<T: Transport>(rpc: &mut Rpc<T, Self>, mail: &mut Vec<Mail>) {
        rpc.mailbox.take_all(mail, &mut Vec::new());
    }

    fn next_deadline_ns<T: Transport>(_: &Rpc<T, Self>) -> Option<u64> {
        None
    }

    fn end<T: Transport>(_: &mut Rpc<T, Self>) {}
}
