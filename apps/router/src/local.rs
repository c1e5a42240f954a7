//! A whole cluster in one process and one thread: its nodes over memory, polled in turn. For tests,
//! and to forward the packets of a capture.
//!
//! Time is real: a cluster that nothing polls for longer than its failure timeout sees its nodes die.
//! Only control connections, by TCP on the loopback, have threads of their own.

mod replay;

use std::cell::{Ref, RefMut};
use std::time::Duration;

use courser::stats::Stats;
use courser::{Nexus, Rpc};

use crate::config::Config;
use crate::counters::Counters;
use crate::line::Outlet;
use crate::node::{self, Node, NodeState, Shared};
use crate::route::{NodeId, PortId};
use crate::routes::{Change, ChangeError};
use crate::run::{self, NodeError};

pub use replay::{Exits, Replay, ReplayError, ReplayOutlet, builtin};

/// A pause after a pass without work, for the threads of control connections.
const IDLE: Duration = Duration::from_micros(20);

/// A cluster in memory.
pub struct Local<O> {
    config: Config,
    seats: Vec<Seat<O>>,
    /// Of nodes that were stopped.
    ended: Counters,
}

/// The place of a node, which may be stopped.
struct Seat<O> {
    address: String,
    running: Option<Running<O>>,
    paused: bool,
}

struct Running<O> {
    node: Shared<O>,
    rpc: Rpc,
    _nexus: Nexus,
}

impl<O> std::fmt::Debug for Local<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").field("cluster", &self.config.name).finish_non_exhaustive()
    }
}

impl<O: Outlet + 'static> Local<O> {
    /// Starts all nodes of a configuration, each with its outlet. Their addresses in the
    /// configuration are not used.
    ///
    /// # Errors
    /// The routes do not fit the tables, or the system refuses a socket.
    pub fn new(
        config: &Config,
        mut outlets: impl FnMut(NodeId) -> O,
    ) -> Result<Local<O>, NodeError> {
        let nodes = config.nodes.len() as NodeId;
        let mut bound = Vec::new();
        for node in 0..nodes {
            bound.push(bind(config, node, "mem://127.0.0.1:0")?);
        }
        let address = |nexus: &Nexus| nexus.local_uri();
        let seat = |nexus| Seat { address: address(nexus), running: None, paused: false };
        let seats = bound.iter().map(seat).collect();
        let mut local = Local { config: config.clone(), seats, ended: Counters::default() };
        for (node, nexus) in (0..).zip(bound) {
            local.run(node, nexus, outlets(node))?;
        }
        Ok(local)
    }

    /// Starts a stopped node again, at its address.
    ///
    /// # Errors
    /// As [`Local::new`].
    pub fn start(&mut self, node: NodeId, outlet: O) -> Result<(), NodeError> {
        self.stop(node);
        let nexus = bind(&self.config, node, &self.seats[usize::from(node)].address)?;
        self.run(node, nexus, outlet)
    }

    fn run(&mut self, node: NodeId, nexus: Nexus, outlet: O) -> Result<(), NodeError> {
        let mut settings = run::settings(&self.config, node);
        settings.addresses = self.seats.iter().map(|seat| seat.address.clone()).collect();
        let mut rpc = nexus.endpoint()?;
        let started = Node::start(&mut rpc, settings, self.config.routes()?, outlet, ())?;
        let seat = &mut self.seats[usize::from(node)];
        seat.running = Some(Running { node: started, rpc, _nexus: nexus });
        seat.paused = false;
        Ok(())
    }

    /// Stops a node, as the end of its process does: others notice it at once.
    pub fn stop(&mut self, node: NodeId) {
        if let Some(running) = self.seats[usize::from(node)].running.take() {
            self.ended.merge(running.node.borrow().counters());
        }
    }

    /// Stops a node for a while, or lets it go on. Others notice its silence.
    pub fn pause(&mut self, node: NodeId, paused: bool) {
        self.seats[usize::from(node)].paused = paused;
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The Courser address of a node.
    pub fn address(&self, node: NodeId) -> &str {
        &self.seats[usize::from(node)].address
    }

    /// A node, unless it is stopped.
    pub fn node(&self, node: NodeId) -> Option<Ref<'_, Node<O>>> {
        self.seats.get(usize::from(node))?.running.as_ref().map(|running| running.node.borrow())
    }

    /// A node, unless it is stopped.
    pub fn node_mut(&self, node: NodeId) -> Option<RefMut<'_, Node<O>>> {
        let running = self.seats.get(usize::from(node))?.running.as_ref();
        running.map(|running| running.node.borrow_mut())
    }

    /// All nodes that are not stopped.
    pub fn nodes(&self) -> impl Iterator<Item = Ref<'_, Node<O>>> {
        self.running().map(|running| running.node.borrow())
    }

    fn running(&self) -> impl Iterator<Item = &Running<O>> {
        self.seats.iter().filter_map(|seat| seat.running.as_ref())
    }

    /// A packet arrives at a port. Nothing happens at a stopped node.
    pub fn inject(&mut self, node: NodeId, port: PortId, packet: &mut [u8]) {
        if let Some(running) = &mut self.seats[usize::from(node)].running {
            running.node.borrow_mut().receive(&mut running.rpc.context(), port, packet);
        }
    }

    /// Changes the routes announced at a node; `None` at a stopped one.
    pub fn change(&mut self, node: NodeId, changes: &[Change]) -> Option<Result<(), ChangeError>> {
        let running = self.seats[usize::from(node)].running.as_mut()?;
        Some(running.node.borrow_mut().change(&mut running.rpc.context(), changes))
    }

    /// Polls every node once. True: there was work.
    pub fn pass(&mut self) -> bool {
        let mut worked = false;
        for seat in self.seats.iter_mut().filter(|seat| !seat.paused) {
            let Some(running) = &mut seat.running else { continue };
            worked |= running.rpc.poll();
            node::end_of_pass(&running.node);
        }
        worked
    }

    /// Passes until `done` returns true, for some time at most. Returns whether it did.
    pub fn run_until(
        &mut self,
        limit: Duration,
        mut done: impl FnMut(&mut Local<O>) -> bool,
    ) -> bool {
        let begin_ns = self.now_ns();
        loop {
            if done(self) {
                return true;
            }
            if self.now_ns().saturating_sub(begin_ns) > limit.as_nanos() as u64 {
                return false;
            }
            if !self.pass() {
                std::thread::sleep(IDLE);
            }
        }
    }

    /// Passes for some time.
    pub fn run_for(&mut self, time: Duration) {
        self.run_until(time, |_| false);
    }

    /// Nanoseconds on a clock of the cluster.
    pub fn now_ns(&mut self) -> u64 {
        let running = self.seats.iter_mut().find_map(|seat| seat.running.as_mut());
        running.map_or(0, |running| running.rpc.context().now_ns())
    }

    /// Passes until all nodes that run are connected with each other. Returns whether they are.
    pub fn connect(&mut self, limit: Duration) -> bool {
        self.run_until(limit, |local| {
            let ids: Vec<NodeId> = local.nodes().map(|node| node.settings().node).collect();
            local.nodes().all(|node| {
                let other = |id: &NodeId| node.state(*id) != NodeState::Own;
                ids.iter().filter(|id| other(id)).all(|id| node.state(*id) == NodeState::Direct)
            })
        })
    }

    /// Messages that wait for acknowledgements, of the node with most. Links take as many as the
    /// configuration's queue.
    pub fn backlog(&self) -> u64 {
        self.running().map(|running| unacknowledged(&running.rpc)).max().unwrap_or_default()
    }

    /// Packets between nodes. A packet counts for ever when a node or a link has died with it.
    pub fn in_transit(&self) -> u64 {
        let counters = self.counters();
        counters.to_nodes.saturating_sub(counters.from_nodes)
    }

    /// Passes until no packet is between nodes. Returns whether none is.
    pub fn settle(&mut self, limit: Duration) -> bool {
        let settled = self.run_until(limit, |local| local.in_transit() == 0);
        self.pass();
        settled
    }

    /// Sum of the counters of all nodes, also of those that were stopped.
    pub fn counters(&self) -> Counters {
        let mut all = self.ended.clone();
        self.nodes().for_each(|node| all.merge(node.counters()));
        all
    }
}

/// Messages that an endpoint has sent, and whose receiver has not acknowledged them.
pub(crate) fn unacknowledged(rpc: &Rpc) -> u64 {
    let stats = rpc.stats();
    let ended = stats.messages_acknowledged + stats.messages_unsent + stats.messages_failed;
    stats.messages_sent.saturating_sub(ended)
}

fn bind(config: &Config, node: NodeId, address: &str) -> Result<Nexus, NodeError> {
    let settings = run::settings(config, node);
    Ok(Nexus::bind_with(address, run::courser_settings(config, &settings))?)
}
