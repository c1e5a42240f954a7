//! Clients of an endpoint on a simulated machine, where threads and their waits are the machine's: the
//! same sessions and calls, before each pass of the endpoint's event loop.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::calls::Clients;
use super::driver;
use super::endpoint::{Endpoint, Simulated};
use super::endpoints::Endpoints;
use super::inbox::{Inbox, Submitted};
use crate::machine::Thread;
use crate::panics::caught;
use crate::rpc::Rpc;

/// Drives the clients of one endpoint of a nexus of [`crate::Nexus::bind_in`].
pub struct VirtualClients {
    endpoint: Arc<Endpoint>,
    state: Rc<RefCell<Clients>>,
    submitted: Submitted,
    /// When the last timer for [`VirtualClients::turn`] is due.
    timer_ns: u64,
}

impl fmt::Debug for VirtualClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualClients").finish_non_exhaustive()
    }
}

impl VirtualClients {
    /// Takes the completions of an endpoint, of sessions that it connects itself too, and returns the
    /// `Endpoints` on which clients connect ([`super::Client::connect_on`]). Deadlines of calls and
    /// pauses between retries are in virtual time.
    pub fn new(rpc: &mut Rpc) -> (VirtualClients, Endpoints) {
        let clock = rpc.core.platform.clock(Thread::Endpoint(rpc.index()));
        let counting = rpc.handlers.services.is_counting().then(|| clock.clone());
        let simulated = Simulated::new(clock.clone(), rpc.core.random());
        let clients = Clients::new(clock, rpc.connections.timeout());
        let state = Rc::new(RefCell::new(clients));
        driver::register(rpc, &state);
        let proto = &rpc.core.proto;
        let limit = proto.config().max_msg_size as usize;
        let inbox = Inbox::new(rpc.mailbox.clone());
        let mut endpoint = Endpoint::driven_elsewhere(inbox, proto.arena().clone(), limit);
        endpoint.simulated = Some(simulated);
        let endpoint = endpoint.counted_by(counting);
        let endpoints = Endpoints::driven(endpoint.clone());
        let submitted = Submitted::default();
        (VirtualClients { endpoint, state, submitted, timer_ns: u64::MAX }, endpoints)
    }

    /// Starts what clients have submitted, connects, and wakes tasks: to be called before each pass of
    /// the endpoint. Returns whether the pass has something to do.
    pub fn turn(&mut self, rpc: &mut Rpc) -> bool {
        let mut cx = rpc.context();
        let mut state = self.state.borrow_mut();
        let submitted = self.endpoint.inbox.take(&mut self.submitted);
        if submitted {
            state.accept(&mut cx, &mut self.submitted);
        }
        let now_ns = cx.now_ns();
        if state.has_due(now_ns) {
            state.tend(&mut cx);
        }
        if let Some(due_ns) = state.due_ns()
            && due_ns != self.timer_ns
        {
            self.timer_ns = due_ns;
            cx.after(Duration::from_nanos(due_ns.saturating_sub(now_ns)), |_| {});
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        for waker in wakers {
            caught("waker", 0, || waker.wake());
        }
        submitted
    }
}
