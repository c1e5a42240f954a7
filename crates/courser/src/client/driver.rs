//! The thread of an endpoint that clients share: it starts their calls, and wakes their tasks.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use courser_proto::Notice;

use super::calls::Clients;
use super::inbox::{Inbox, Submitted};
use crate::error::RunError;
use crate::panics::caught;
use crate::platform::few_cpus;
use crate::rpc::Rpc;

/// With this many calls in progress or fewer, a task or the server is likely to wait for this CPU. With
/// more there is seldom nothing to do.
const FEW_CALLS: usize = 8;

/// Runs the endpoint until `stop` is set and nothing is submitted.
pub(super) fn run(rpc: Rpc, inbox: Arc<Inbox>, stop: &AtomicBool) {
    let state = Clients::new(&rpc);
    let mut driver = Driver { inbox, state: Rc::new(RefCell::new(state)), rpc };
    register(&mut driver.rpc, &driver.state);
    if let Err(e) = driver.drive(stop) {
        tracing::error!("the endpoint of a client has ended: {e}");
    }
}

/// Passes the endpoint's events to the clients.
pub(super) fn register(rpc: &mut Rpc, state: &Rc<RefCell<Clients>>) {
    let of = state.clone();
    rpc.on_completion(move |cx, tag, done| of.borrow_mut().completed(cx, tag, done));
    let of = state.clone();
    rpc.handlers.on_notice = Some(Box::new(move |cx, notice| {
        if let Notice::Freed { session, .. } = notice {
            of.borrow_mut().on_room(cx, session);
        }
    }));
}

/// Dropping it ends what is submitted and all calls, also after a panic of this thread.
struct Driver {
    inbox: Arc<Inbox>,
    state: Rc<RefCell<Clients>>,
    rpc: Rpc,
}

impl Driver {
    fn drive(&mut self, stop: &AtomicBool) -> Result<(), RunError> {
        self.rpc.may_block()?;
        let mut submitted = Submitted::default();
        loop {
            if self.inbox.take(&mut submitted) {
                self.accept(&mut submitted);
            } else if stop.load(Ordering::Relaxed)
                && let Some(mut last) = self.inbox.end(true)
            {
                self.accept(&mut last);
                self.rpc.run_pending_commands();
                return Ok(());
            }
            let due_ns = self.tend();
            self.yield_to_tasks();
            self.wake();
            self.rpc.pass_until(due_ns)?;
            self.wake();
        }
    }

    /// Yields the CPU while it spins if the tasks of few calls may need it.
    #[inline]
    fn yield_to_tasks(&mut self) {
        let few = self.state.borrow().in_progress() <= FEW_CALLS;
        self.rpc.event_loop.set_yields(few && few_cpus());
    }

    fn accept(&mut self, submitted: &mut Submitted) {
        self.state.borrow_mut().accept(&mut self.rpc.context(), submitted);
        self.rpc.event_loop.force_full_pass();
    }

    /// Connects and deadlines. Returns when it is to be called again.
    #[inline]
    fn tend(&mut self) -> Option<u64> {
        let mut state = self.state.borrow_mut();
        if state.has_due(self.rpc.event_loop.pass_ns()) {
            state.tend(&mut self.rpc.context());
            self.rpc.event_loop.force_full_pass();
        }
        state.due_ns()
    }

    /// Wakes the tasks whose calls have ended.
    #[inline]
    fn wake(&mut self) {
        let mut state = self.state.borrow_mut();
        if state.wakers.is_empty() {
            return;
        }
        // A task that is woken in place, or dropped, may drop futures and clients of this thread,
        // which only submits something.
        let mut wakers = std::mem::take(&mut state.wakers);
        drop(state);
        for waker in wakers.drain(..) {
            caught("waker", 0, || waker.wake());
        }
        self.state.borrow_mut().wakers = wakers;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let last = self.inbox.end(false);
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.stop(last.unwrap_or_default());
        }
        self.wake();
    }
}
