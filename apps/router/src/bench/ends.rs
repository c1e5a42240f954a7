//! The two threads: the node at which packets arrive, and that by which they leave.

mod first;
mod last;

use std::sync::Arc;
use std::sync::mpsc::{Receiver as Inbox, Sender as Mailbox, channel};
use std::thread;

use courser::parts::transport::Transport;
use courser::{Nexus, Rpc};
use courser_bench::clock::Clock;
use courser_kit::affinity::{Cores, pin_current_thread};

use super::baseline::{self, Sender};
use super::sink::{Line, PORTS};
use super::table::Arrivals;
use super::{BenchError, MTU, Measured, Over, QUEUE, Settings, Workload};
use crate::config::Config;
use crate::line::Outlet;
use crate::node::{self, Node, Shared};
use crate::route::NodeId;
use crate::routes::Routes;
use crate::run::{self, NodeError};
use first::First;
use last::Last;

/// The cluster: the node `a` with one port, and `b` with several.
fn config(batching: bool) -> Result<Config, BenchError> {
    let mut text = format!(
        "[cluster]\nname = \"bench\"\ntopology = \"switch\"\nfailure_timeout = \"8s\"\n\
         [interconnect]\nmtu = {MTU}\nqueue = {QUEUE}\nbatching = {batching}\n\
         [[node]]\nname = \"a\"\naddress = \"udp://127.0.0.1:31850\"\n\
         [[node.port]]\ninterface = \"lan0\"\naddresses = [\"10.1.0.1/24\"]\n\
         [[node]]\nname = \"b\"\naddress = \"udp://127.0.0.1:31851\"\n"
    );
    for port in 0..PORTS {
        text += &format!(
            "[[node.port]]\ninterface = \"lan{port}\"\naddresses = [\"10.2.{port}.1/24\"]\n"
        );
    }
    Config::parse(&text, "").map_err(|error| BenchError::Transport(error.to_string()))
}

/// A node with its endpoint.
struct End<O> {
    node: Shared<O>,
    rpc: Rpc,
    _nexus: Nexus,
}

impl<O: Outlet + 'static> End<O> {
    fn pass(&mut self) -> bool {
        let worked = self.rpc.poll();
        node::end_of_pass(&self.node);
        worked
    }

    fn frames(&self) -> (u64, u64) {
        let stats = self.rpc.transport_stats();
        (stats.tx_frames, stats.tx_bytes)
    }
}

/// The nodes of this thread, one for each of [`Workload::NODES`]: their settings and addresses.
struct Bound(Vec<(Config, Nexus)>);

impl Bound {
    fn new(settings: &Settings, own: NodeId) -> Result<Bound, BenchError> {
        let bind = |workload| {
            let config = config(workload == Workload::Batching)?;
            let courser = run::courser_settings(&config, &run::settings(&config, own));
            // Trains of UDP are batches that the kernel makes.
            let has_trains = settings.over == Over::Udp && workload == Workload::OneByOne;
            let options = if has_trains { "?gso=off" } else { "" };
            let address = format!("{}://127.0.0.1:0{options}", settings.over.scheme());
            let nexus = Nexus::bind_with(&address, courser).map_err(NodeError::from)?;
            Ok((config, nexus))
        };
        Ok(Bound(Workload::NODES.into_iter().map(bind).collect::<Result<_, BenchError>>()?))
    }

    fn addresses(&self) -> Vec<String> {
        self.0.iter().map(|(_, nexus)| nexus.local_uri()).collect()
    }

    /// Starts the nodes.
    fn start<O: Outlet + 'static>(
        self,
        own: NodeId,
        others: &[String],
        mut routes: impl FnMut(&Config) -> Result<Routes, BenchError>,
        mut outlet: impl FnMut(usize) -> O,
    ) -> Result<Vec<End<O>>, BenchError> {
        let mut ends = Vec::new();
        for (at, ((config, nexus), other)) in self.0.into_iter().zip(others).enumerate() {
            let mut node = run::settings(&config, own);
            node.addresses = vec![nexus.local_uri(), other.clone()];
            if own == 1 {
                node.addresses.reverse();
            }
            let mut rpc = nexus.endpoint().map_err(NodeError::from)?;
            let started = Node::start(&mut rpc, node, routes(&config)?, outlet(at), ());
            let node = started.map_err(NodeError::from)?;
            ends.push(End { node, rpc, _nexus: nexus });
        }
        Ok(ends)
    }
}

/// Addresses to and from the other thread.
struct Exchange {
    to: Mailbox<Vec<String>>,
    from: Inbox<Vec<String>>,
}

impl Exchange {
    fn pair() -> [Exchange; 2] {
        let ((to_b, from_a), (to_a, from_b)) = (channel(), channel());
        [Exchange { to: to_b, from: from_b }, Exchange { to: to_a, from: from_a }]
    }

    /// `None`: the other thread has failed.
    fn swap(&self, own: Vec<String>) -> Option<Vec<String>> {
        self.to.send(own).ok()?;
        self.from.recv().ok()
    }
}

/// Measures packets of a size.
pub(super) fn run(
    settings: &Settings,
    bytes: usize,
    clock: &Clock,
    cores: &Cores,
) -> Result<Measured, BenchError> {
    let mut routes = config(true)?.routes().map_err(NodeError::from)?;
    settings.table.announce(&mut routes)?;
    let arrivals = Arrivals::new(&routes, bytes);
    drop(routes);
    let line = Line::new();
    let max_frame = MTU - 48;
    let (sender, receiver) = baseline::pair(settings.over, max_frame)?;
    let address = sender.local_addr();
    let sender = Sender::new(sender, &receiver)?;
    let [first, last] = Exchange::pair();
    let count = arrivals.len();
    thread::scope(|scope| {
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        let stop = StopAtEnd(Arc::clone(&line));
        let last = named("last-node").spawn_scoped(scope, move || {
            pin(cores, cores.server)?;
            Last::start(settings, &stop.0, last, count, (receiver, address))?.run(cores)
        });
        let stop = StopAtEnd(Arc::clone(&line));
        let first = named("first-node").spawn_scoped(scope, move || {
            pin(cores, cores.client)?;
            let mut first = First::start(settings, &stop.0, first, arrivals, sender)?;
            first.clock = clock.clone();
            first.yields = !cores.distinct();
            first.measure(settings)
        });
        let (Ok(first), Ok(last)) = (first, last) else { return Err(BenchError::Thread) };
        let (first, last) = (first.join(), last.join());
        let mut measured = first.map_err(|_| BenchError::Thread)??;
        let back = last.map_err(|_| BenchError::Thread)??;
        for (frames, back) in measured.frames[1..].iter_mut().zip(back) {
            frames.back = back;
        }
        Ok(measured)
    })
}

/// Without a second core the threads take turns anyway.
fn pin(cores: &Cores, core: usize) -> Result<(), BenchError> {
    if cores.distinct() { Ok(pin_current_thread(core)?) } else { Ok(()) }
}

/// Ends the other thread when this one ends.
struct StopAtEnd(Arc<Line>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.stop();
    }
}
