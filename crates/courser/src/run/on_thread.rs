//! The application of an endpoint that stays on its thread, in the event loop: handlers, tasks, timers
//! and workers.

use courser_buf::MsgBuf;
use courser_net::Transport;
use courser_proto::Completion as Ended;
use courser_proto::{Body, CallError, Endpoint, Notice, RequestId, SessionId};

use crate::control::Mail;
use crate::core::Core;
use crate::core::app::OnThread;
use crate::core::continuations::Cont;
use crate::run::dispatch;
use crate::run::endpoint::{Events, Handlers, Rpc};
use crate::run::worker::{Pool, Workers};

impl Events for OnThread {
    type Handlers = Handlers;
    type Workers = Workers;

    fn workers(pool: &Pool) -> Workers {
        Workers::new(pool.clone())
    }

    #[inline(always)]
    fn on_request(
        core: &mut Core,
        handlers: &mut Handlers,
        id: RequestId,
        req_type: u16,
        body: Body<'_>,
        expires_ns: u64,
    ) {
        dispatch::handle(core, handlers, id, req_type, body, expires_ns);
    }

    #[inline(always)]
    fn on_message(
        core: &mut Core,
        handlers: &mut Handlers,
        session: SessionId,
        msg_type: u16,
        body: Body<'_>,
        expires_ns: u64,
    ) {
        dispatch::handle_message(core, handlers, session, msg_type, body, expires_ns);
    }

    #[inline(always)]
    fn on_completion(
        core: &mut Core,
        handlers: &mut Handlers,
        cont: Cont,
        session: SessionId,
        request: MsgBuf,
        result: Result<Body<'_>, CallError>,
    ) {
        dispatch::conclude(core, handlers, cont, session, request, result);
    }

    fn complete(core: &mut Core, handlers: &mut Handlers, done: Ended<'_, Cont>) {
        dispatch::complete(core, handlers, done);
    }

    #[inline(always)]
    fn after_burst(core: &mut Core) {
        if core.queue.has_news() {
            core.end_counting();
            if core.tasks.any_ready() {
                // Their packets leave with those of the handlers.
                Endpoint::appending(core, |core| &mut core.proto, Core::run_ready);
            }
            let tasks = &core.tasks;
            core.queue.update_news(tasks.any_ready() || tasks.any_waiting());
        }
    }

    #[inline(always)]
    fn has_upkeep<T: Transport>(rpc: &Rpc<T>, now_ns: u64) -> bool {
        let core = &rpc.core;
        core.timers.next_ns() <= now_ns || core.queue.has_news() || rpc.workers.has_cancelled()
    }

    fn run_timers(core: &mut Core, now_ns: u64) -> bool {
        core.run_timers(now_ns)
    }

    fn upkeep<T: Transport>(rpc: &mut Rpc<T>, now_ns: u64) -> bool {
        rpc.shed_cancelled(now_ns) | rpc.run_tasks()
    }

    fn on_notice<T: Transport>(rpc: &mut Rpc<T>, notice: Notice) -> bool {
        rpc.on_notice(notice)
    }

    fn take_mail<T: Transport>(rpc: &mut Rpc<T>, mail: &mut Vec<Mail>) {
        let mut answers = std::mem::take(&mut rpc.workers.answers);
        rpc.mailbox.take_all(mail, &mut answers);
        rpc.send_answers(&mut answers);
        rpc.core.tasks.collect_woken();
        rpc.workers.answers = answers;
    }

    fn next_deadline_ns<T: Transport>(rpc: &Rpc<T>) -> Option<u64> {
        let core = &rpc.core;
        // Commands from outside of an iteration run in the next one.
        let now = (core.queue.has_commands() || core.tasks.any_ready()).then_some(0);
        let timer_ns = core.timers.next_ns();
        let timer = (timer_ns != u64::MAX).then_some(timer_ns);
        [now, timer, rpc.workers.search_due_ns()].into_iter().flatten().min()
    }

    fn end<T: Transport>(rpc: &mut Rpc<T>) {
        // Futures that are dropped queue nothing any more.
        rpc.core.queue.close();
        rpc.core.lender.close();
        drop(rpc.core.tasks.take_futures());
        rpc.detach_workers();
        rpc.handlers.services.drain_token().set();
    }
}
