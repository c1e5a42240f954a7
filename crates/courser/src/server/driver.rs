//! The thread of a server's endpoint.

use std::rc::Rc;
use std::sync::Arc;

use super::control::{Command, Control};
use super::handler::{Handler, run, run_as};
use super::placement::{InPlace, Placement};
use super::running::Watch;
use super::spawn::{HandlerFuture, Spawn};
use super::stats::{Publication, ServerStats};

use courser_proto::Notice;

use crate::core::shares::{Entrance, Shares};
use crate::error::RunError;
use crate::platform::{Clock, few_cpus};
use crate::rpc::Rpc;
use crate::rpc::shutdown::{Grace, ShutdownReport};
use crate::run::worker::{Arrived, asker, client};
use crate::service::{Services, current};

/// Longest time between two checks whether a graceful shutdown is complete, ns.
const DRAIN_CHECK_NS: u64 = 200_000;

/// Requests of one pass that count as single ones.
const FEW_REQUESTS: u64 = 4;

/// The parts that all endpoints of a server have in common.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) requests: Vec<(u16, Handler)>,
    pub(super) messages: Vec<(u16, Handler)>,
    pub(super) spawner: Arc<dyn Spawn>,
    pub(super) placement: Placement,
    /// Places of handlers in progress.
    pub(super) places: Arc<Shares>,
    pub(super) services: Services,
}

/// An endpoint with its handlers. Dropping it cancels those that run.
pub(super) struct Driver {
    rpc: Rpc,
    watch: Rc<Watch>,
    /// [`Watch::begun`] after the last pass with requests.
    begun: u64,
    publication: Publication,
    in_place: Rc<InPlace>,
    entrance: Rc<Entrance>,
    /// Clients with a session when the entrance last forgot those that are gone.
    clients: usize,
}

impl Driver {
    pub(super) fn new(mut rpc: Rpc, setup: Setup, control: &Control) -> Self {
        let Setup { requests, messages, spawner, placement, places, services } = setup;
        rpc.handlers.services = services.clone();
        let watch = Rc::new(Watch::new(Arc::default()));
        let entrance = Rc::new(Entrance::new(places));
        let in_place = Rc::new(InPlace::new(Clock::System));
        let begin = |handler: Handler| {
            let (watch, spawner, in_place) = (watch.clone(), spawner.clone(), in_place.clone());
            move |Arrived { work, id, expires_ns, place }: Arrived| {
                let ticket = watch.begin(id, expires_ns, place);
                if run(&handler, work, ticket, &*spawner, placement, &in_place) {
                    watch.ended_here();
                }
            }
        };
        // For handlers with a context or middleware, and for requests with metadata. `asks`: it has a context.
        let begin_asking = |handler: Handler, asks: bool| {
            let (watch, spawner, in_place) = (watch.clone(), spawner.clone(), in_place.clone());
            move |Arrived { mut work, id, expires_ns, place }: Arrived| {
                let ticket = watch.begin(id, expires_ns, place);
                if asks {
                    work.watch(ticket.watched());
                }
                let passed = work.arrived().and_then(|arrived| arrived.passed());
                let passing = |handler: HandlerFuture| match passed {
                    Some(passed) => Box::pin(current::Passing::new(passed, handler)),
                    None => handler,
                };
                if run_as(&handler, work, ticket, &*spawner, placement, &in_place, passing) {
                    watch.ended_here();
                }
            }
        };
        for (req_type, handler) in requests {
            let asks = services.is_asking(req_type);
            let asking = begin_asking(handler.clone(), asks);
            let asking = rpc.arrivals(entrance.clone(), asker, asking);
            if asks || services.is_observed(req_type) {
                rpc.register(req_type, asking);
                continue;
            }
            let plain = rpc.arrivals(entrance.clone(), client, begin(handler));
            rpc.register(req_type, plain);
            rpc.register_marked(req_type, asking);
        }
        for (msg_type, handler) in messages {
            let asks = services.is_asking(msg_type);
            let asking = begin_asking(handler.clone(), asks);
            let asking = rpc.message_arrivals(entrance.clone(), asker, asking);
            if asks || services.is_observed(msg_type) {
                rpc.register_message(msg_type, asking);
                continue;
            }
            let plain = rpc.message_arrivals(entrance.clone(), client, begin(handler));
            rpc.register_message(msg_type, plain);
            rpc.register_marked_message(msg_type, asking);
        }
        let cancelling = watch.clone();
        rpc.handlers.on_notice = Some(Box::new(move |cx, notice| {
            if let Notice::Cancelled(id) = notice {
                cancelling.cancelled(&cx.core.proto, id);
            }
        }));
        rpc.accept_sessions(); // also without a handler
        let publication = Publication::new(control.published.add());
        Driver { rpc, watch, begun: 0, publication, in_place, entrance, clients: 0 }
    }

    /// The number of the endpoint among those that publish counters.
    pub(super) fn number(&self) -> usize {
        self.publication.number()
    }

    /// Runs the endpoint until it is told to end.
    pub(super) fn drive(mut self, control: &Control) -> Result<ShutdownReport, RunError> {
        self.rpc.may_block()?;
        loop {
            match control.command() {
                Command::Run => self.pass(control, None)?,
                Command::Stop => return Ok(self.stop(control)),
                Command::ShutDown => return self.shut_down(control),
            }
        }
    }

    /// Publishes the counters if they have changed.
    fn publish(&mut self, control: &Control) {
        let stats = ServerStats::of(&self.rpc, self.watch.count_ended_here());
        control.published.publish(&mut self.publication, stats, self.rpc.event_loop.pass_ns());
    }

    /// Publishes all counters, as the endpoint ends.
    fn publish_last(&mut self, control: &Control) {
        self.publish(control);
        let now_ns = self.rpc.event_loop.pass_ns();
        control.published.answer(&mut self.publication, self.rpc.stats(), now_ns, true);
    }

    /// Forgets clients that are gone.
    #[inline]
    fn forget_gone(&mut self) {
        let clients = self.rpc.core.proto.clients();
        if clients != self.clients {
            self.clients = clients;
            self.entrance.forget_gone(&self.rpc.core.proto);
        }
    }

    /// One pass of the event loop, and the search for handlers to cancel. Counters are published while
    /// there is no work, and now and then under load.
    #[inline]
    fn pass(&mut self, control: &Control, end_ns: Option<u64>) -> Result<(), RunError> {
        self.forget_gone();
        let due_ns = self.watch.due_ns();
        if due_ns != u64::MAX && due_ns <= self.rpc.event_loop.pass_ns() {
            self.watch.search(&mut self.rpc.core.proto, self.rpc.event_loop.pass_ns());
            return self.pass(control, end_ns);
        }
        self.yield_to_tasks();
        self.in_place.begin_pass();
        let again = self.rpc.step();
        let now_ns = self.rpc.event_loop.pass_ns();
        if !again || self.publication.is_due(now_ns) {
            self.publish(control);
            if self.publication.late_ns().is_some_and(|late_ns| late_ns <= now_ns) {
                control.published.give_up(&mut self.publication);
            }
        }
        if control.published.is_wanted(&self.publication) {
            control.published.answer(&mut self.publication, self.rpc.stats(), now_ns, false);
        }
        if again {
            return Ok(());
        }
        let due_ns = (due_ns != u64::MAX).then_some(due_ns);
        let dues = [due_ns, end_ns, self.publication.late_ns()];
        self.rpc.rest(dues.into_iter().flatten().min())
    }

    /// Yields the CPU while it spins if requests come one by one: then their handlers or clients are
    /// likely to wait for it.
    #[inline]
    fn yield_to_tasks(&mut self) {
        let begun = self.watch.begun();
        if begun != self.begun {
            let few = begun - self.begun <= FEW_REQUESTS;
            self.rpc.event_loop.set_yields(few && few_cpus());
            self.begun = begun;
        }
    }

    /// Ends at once.
    fn stop(&mut self, control: &Control) -> ShutdownReport {
        self.publish_last(control);
        self.rpc.left_behind()
    }

    /// Refuses requests, waits for the handlers that run, and for the clients to have their answers.
    fn shut_down(mut self, control: &Control) -> Result<ShutdownReport, RunError> {
        self.rpc.begin_shutdown();
        let grace = Grace::begin(self.rpc.core.now_ns(), control.grace());
        let (end_ns, mut streams_end_ns) = (grace.end_ns, grace.streams_end_ns());
        loop {
            if control.command() == Command::Stop {
                return Ok(self.stop(control));
            }
            let now_ns = self.rpc.core.now_ns();
            let answered =
                self.rpc.core.proto.is_answered() && self.rpc.messages_with_workers() == 0;
            if answered || now_ns >= end_ns {
                self.publish_last(control);
                return self.rpc.shutdown_within(grace);
            }
            if now_ns >= streams_end_ns {
                streams_end_ns = u64::MAX;
                self.rpc.end_streams();
            }
            self.pass(control, Some(end_ns.min(now_ns.saturating_add(DRAIN_CHECK_NS))))?;
        }
    }
}
