//! The endpoint of clients with its state, as the thread that drives it uses it.

use std::sync::Arc;
use std::task::Waker;

use courser_net::{AnyTransport, Transport};

use super::app::OfClients;
use super::batch::Batch;
use super::calls::Clients;
use super::inbox::{Inbox, Submitted};
use super::patience::Patience;
use crate::channel::call::Call;
use crate::core::context::Context;
use crate::panics::caught;
use crate::rpc::Rpc;
use crate::run::event_loop::Turn;

/// See the module.
pub(super) struct Engine {
    pub(super) rpc: Rpc<AnyTransport, OfClients>,
    submitted: Submitted,
    pub(super) patience: Patience,
    pub(super) batch: Batch,
    /// The state of the endpoint's thread, when callers drive.
    pub(super) watch: Watch,
    /// Passes so far.
    pub(super) passes: u64,
}

/// The state of the thread of an endpoint that callers drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Watch {
    /// It looks from time to time whether callers still drive.
    Dozes,
    /// It sleeps on the endpoint's descriptor, until this time, ns.
    Sleeps(u64),
    /// A caller has called it, as nothing drives the endpoint that has calls in flight.
    Called,
}

impl Engine {
    pub(super) fn new(rpc: Rpc<AnyTransport, OfClients>) -> Self {
        let patience = Patience::new(rpc.event_loop.spin_ns());
        let batch = Batch::new(rpc.transport.caps().polls_memory);
        let (submitted, watch, passes) = (Submitted::default(), Watch::Dozes, 0);
        Engine { rpc, submitted, patience, batch, watch, passes }
    }

    pub(super) fn clients(&mut self) -> &mut Clients {
        &mut self.rpc.handlers
    }

    /// The clients, and the endpoint as they use it.
    fn parts(&mut self) -> (&mut Clients, Context<'_, OfClients>) {
        let Rpc { core, handlers, .. } = &mut self.rpc;
        (handlers, Context { core, request: None })
    }

    /// Takes what was submitted. Returns whether there was something.
    #[inline]
    pub(super) fn accept(&mut self, inbox: &Inbox) -> bool {
        if !inbox.take(&mut self.submitted) {
            return false;
        }
        let mut submitted = std::mem::take(&mut self.submitted);
        let (clients, mut cx) = self.parts();
        let calls = submitted.calls.len();
        clients.accept(&mut cx, &mut submitted);
        self.submitted = submitted;
        self.patience.begin(calls);
        self.rpc.event_loop.force_full_pass();
        true
    }

    /// Submits a call of this thread.
    pub(super) fn submit(&mut self, call: Arc<Call>) {
        let (clients, mut cx) = self.parts();
        clients.submit(&mut cx, call);
        self.patience.begin(1);
        self.rpc.event_loop.force_full_pass();
    }

    /// Connects and deadlines. Returns when it is to be called again.
    #[inline]
    pub(super) fn tend(&mut self) -> Option<u64> {
        if self.rpc.handlers.has_due(self.rpc.event_loop.pass_ns()) {
            let (clients, mut cx) = self.parts();
            clients.tend(&mut cx);
            self.rpc.event_loop.force_full_pass();
        }
        self.rpc.handlers.due_ns()
    }

    /// Returns whether to wait for further answers before tasks run: one of them is the task of `call`,
    /// which polls.
    #[inline]
    pub(super) fn gathers(&mut self, call: &Call) -> bool {
        let answers = self.rpc.handlers.wakers.len() + usize::from(call.is_done());
        if answers == 0 {
            return false;
        }
        let in_flight = self.rpc.handlers.in_progress();
        self.batch.gathers(answers, in_flight, self.rpc.event_loop.pass_ns())
    }

    /// One pass of a thread that drives for a while.
    #[inline]
    pub(super) fn pass(&mut self, inbox: &Inbox) -> Turn {
        self.passes += 1;
        self.accept(inbox);
        self.tend();
        let turn = self.rpc.turn();
        // A whole pass, if calls were submitted: its time is now.
        self.batch.leaves(self.now_ns());
        turn
    }

    /// The time of the last whole pass, ns.
    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        self.rpc.event_loop.pass_ns()
    }

    /// The endpoint's thread drives after callers, or after its sleep.
    pub(super) fn take_over(&mut self) {
        if let Watch::Sleeps(_) = self.watch {
            self.rpc.end_rest();
        }
        self.watch = Watch::Dozes;
        self.rpc.begin_turn();
    }

    /// Begins to sleep on the descriptor. Returns until when, or `None` if there is work.
    pub(super) fn sleep(&mut self) -> Option<u64> {
        let due_ns = self.rpc.handlers.due_ns().unwrap_or(u64::MAX);
        let until_ns = self.rpc.begin_rest()?.min(due_ns);
        self.watch = Watch::Sleeps(until_ns);
        Some(until_ns)
    }

    /// The tasks whose calls have ended.
    #[inline]
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        let wakers = std::mem::take(&mut self.rpc.handlers.wakers);
        self.batch.expect(wakers.len());
        wakers
    }

    /// Ends all calls, and what was submitted last.
    pub(super) fn stop(&mut self, last: Submitted) -> Vec<Waker> {
        self.rpc.handlers.stop(last);
        self.take_wakers()
    }
}

/// Wakes tasks. One that is woken in place, or dropped, may drop futures and clients of this thread,
/// which only submits something.
#[inline]
pub(super) fn wake(wakers: &mut Vec<Waker>) {
    for waker in wakers.drain(..) {
        caught("waker", 0, || waker.wake());
    }
}
