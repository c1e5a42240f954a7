//! The router in the simulated datacenter: the nodes of [`crate::node`], unchanged, in the three
//! topologies of scaled-out routers (S1), with a host at each node's port that sends and takes
//! packets.
//!
//! Every packet that leaves is checked: that it leaves where its destination is, with a time to live
//! that is one less, once, and after all earlier packets of its flow.

pub mod figures;
mod lines;
mod node;
mod shape;
mod tally;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::stats::Stats;
use courser::{Integrity, Packing};
use courser_sim::fabric::Topology;
use courser_sim::observe::DropReason;
use courser_sim::{CpuCosts, HostId, World, WorldConfig, WorldError};
use serde::Serialize;

use crate::counters::Counters;
pub use lines::{Matrix, Sizes};
pub use node::SimNode;
pub use shape::Shape;
pub use tally::{Faults, Hop, Latency};
use tally::{SharedTally, Tally};

/// Settings of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Settings {
    /// Decides all random choices.
    pub seed: u64,
    /// How the nodes are connected. A full mesh has Valiant load balancing.
    #[serde(serialize_with = "shape_name")]
    pub topology: Shape,
    /// Nodes, each with a port: 2 to 32. Default 4.
    pub nodes: u32,
    /// Packets that a node takes from its port in a pass, and whose messages share frames: 1 to 64.
    /// 1: a frame for each packet. Default 32.
    pub batch: usize,
    /// Packets that a host sends together, to one destination: 1 to 64. Default 1.
    pub burst: u32,
    /// A packet waits at most this long for others that share its frame. At most 250 us. Default 0.
    pub batch_budget: Duration,
    /// Rate of ports and cables, bit/s. Default 10 Gbit/s.
    pub line_rate_bps: u64,
    /// The packets.
    pub sizes: Sizes,
    /// Packets that arrive, as a share of what a port can carry, per million: 1 to 1,000,000.
    pub load_ppm: u32,
    /// Where they go.
    pub matrix: Matrix,
    /// Largest datagram between nodes, bytes.
    pub max_frame: usize,
    /// Time within which a dead node's routes are withdrawn. At least 20 ms. Default 40 ms.
    pub failure_timeout: Duration,
    /// CPU time of frames and packets.
    pub cpu: Cpu,
    /// Warm-up, ns. Default 100 us.
    pub warm_up_ns: u64,
    /// Measured time, ns. Default 500 us.
    pub time_ns: u64,
}

/// CPU time of the nodes. A node has one core.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cpu {
    /// None: the cables are the limit.
    None,
    /// Courser's own time without a NIC's driver: [`CpuCosts::measured`], and what a node does with a
    /// packet.
    Measured,
    /// That of the system's sockets: a system call and the kernel's network stack for each frame.
    Sockets,
}

impl Cpu {
    /// All of them.
    pub const ALL: [Cpu; 3] = [Cpu::None, Cpu::Measured, Cpu::Sockets];

    /// Its name in options and results.
    pub const fn name(self) -> &'static str {
        match self {
            Cpu::None => "none",
            Cpu::Measured => "measured",
            Cpu::Sockets => "sockets",
        }
    }

    fn costs(self) -> CpuCosts {
        // A message's handler puts a packet into a port's ring, which is counted there.
        let counted_at_ports = CpuCosts { handler_ns: 0, ..CpuCosts::measured() };
        let measured = CpuCosts { plain_ns: Some(PLAIN_NS), ..counted_at_ports };
        match self {
            Cpu::None => CpuCosts::none(),
            Cpu::Measured => measured,
            Cpu::Sockets => {
                CpuCosts { rx_frame_ns: SOCKET_FRAME_NS, tx_frame_ns: SOCKET_FRAME_NS, ..measured }
            }
        }
    }

    /// Checks, look-up and rewriting of a packet at its first node, ns.
    const fn forward_ns(self) -> u64 {
        match self {
            Cpu::None => 0,
            Cpu::Measured | Cpu::Sockets => FORWARD_NS,
        }
    }
}

/// Taking a packet from a port's ring, or putting it there: its copy, without a driver.
const PLAIN_NS: u64 = 5;
/// Time of `router bench` for a packet without interconnect.
const FORWARD_NS: u64 = 25;
/// Half of the time that sending and receiving a datagram takes on one core over sockets.
const SOCKET_FRAME_NS: u64 = 600;

fn shape_name<S: serde::Serializer>(shape: &Shape, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(shape.name())
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 1,
            topology: Shape::Mesh,
            nodes: 4,
            batch: 32,
            burst: 1,
            batch_budget: Duration::ZERO,
            line_rate_bps: 10_000_000_000,
            sizes: Sizes::Fixed { packet_bytes: 64 },
            load_ppm: 200_000,
            matrix: Matrix::Uniform,
            max_frame: JUMBO_FRAME,
            failure_timeout: Duration::from_millis(40),
            cpu: Cpu::Measured,
            warm_up_ns: 100_000,
            time_ns: 500_000,
        }
    }
}

/// An MTU of 9,000 bytes without the headers of IPv4 and UDP.
const JUMBO_FRAME: usize = 9_000 - 20 - 8;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// A setting is out of its range.
    #[error("{name} = {value} is out of range; use {range}")]
    Setting {
        /// The field.
        name: &'static str,
        /// Its value.
        value: u64,
        /// Its range.
        range: &'static str,
    },
    /// The world could not be built.
    #[error(transparent)]
    World(#[from] WorldError),
    /// A node did not start.
    #[error("node {node} did not start: {cause}; change the settings")]
    Node {
        /// Its number.
        node: u32,
        /// The cause.
        cause: String,
    },
    /// Nodes did not find each other.
    #[error("the nodes are not connected after {after_ms} ms; use fewer of them")]
    NotConnected {
        /// Time of the attempts, ms.
        after_ms: u64,
    },
}

impl Settings {
    /// Checks the ranges.
    ///
    /// # Errors
    /// A setting is out of range.
    pub fn check(&self) -> Result<(), SimError> {
        let check = |ok: bool, name, value: u64, range| {
            if ok { Ok(()) } else { Err(SimError::Setting { name, value, range }) }
        };
        let (nodes, load) = (u64::from(self.nodes), u64::from(self.load_ppm));
        check((2..=32).contains(&nodes), "nodes", nodes, "2 to 32")?;
        check((1..=64).contains(&self.batch), "batch", self.batch as u64, "1 to 64")?;
        let burst = u64::from(self.burst);
        check((1..=64).contains(&burst), "burst", burst, "1 to 64")?;
        check((1..=1_000_000).contains(&load), "load_ppm", load, "1 to 1,000,000 per million")?;
        let rate = self.line_rate_bps;
        let rates = 1_000_000..=1_000_000_000_000;
        check(rates.contains(&rate), "line_rate_bps", rate, "1 Mbit/s to 1 Tbit/s")?;
        if let Sizes::Fixed { packet_bytes } = self.sizes {
            let bytes = u64::from(packet_bytes);
            check((64..=1_518).contains(&bytes), "packet_bytes", bytes, "64 to 1,518 bytes")?;
        }
        let budget = self.batch_budget.as_micros() as u64;
        check(budget <= 250, "batch_budget", budget, "at most 250 us")?;
        let frame = self.max_frame as u64;
        check((1_472..=9_000).contains(&frame), "max_frame", frame, "1,472 to 9,000 bytes")?;
        let timeout = self.failure_timeout.as_millis() as u64;
        check((20..=10_000).contains(&timeout), "failure_timeout", timeout, "20 to 10,000 ms")?;
        let times = 1..=10_000_000_000;
        check(times.contains(&self.time_ns), "time_ns", self.time_ns, "1 ns to 10 s")
    }

    /// The nodes, and after them the host at each node's port.
    fn topology(&self) -> Topology {
        self.topology.topology(self.nodes, self.line_rate_bps)
    }

    fn config(&self) -> WorldConfig {
        let mut config = WorldConfig::new(self.seed, self.topology());
        config.costs = self.cpu.costs();
        config.nic.max_frame = self.max_frame;
        config.nic.rx_queue = 16_384;
        config.nexus.integrity = Some(Integrity::None);
        config.nexus.max_msg_size = 1 << 16;
        let packing = if self.batch > 1 { Packing::Copy } else { Packing::Off };
        config.nexus.packing = Some(packing);
        config.nexus.batch_budget = self.batch_budget;
        config.clocks_differ = false; // times of several hosts are compared
        config.nexus = node::settings(self, 0).courser(config.nexus);
        config
    }

    /// Packets that a port can carry in each direction, per second, of a fixed size.
    pub fn line_pps(&self) -> u64 {
        self.line_rate_bps / 8 / u64::from(self.sizes.largest_packet() + lines::FRAMING)
    }
}

/// Results of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// Packets sent to the router in the measured time.
    pub packets_offered: u64,
    /// Those of them that left it, also after the measured time.
    pub packets_forwarded: u64,
    /// Packets that left in the measured time, per second, of all ports.
    pub throughput_pps: u64,
    /// Their IP bytes, bit/s.
    pub throughput_bps: u64,
    /// From the first bit of a packet to its last bit at the receiver.
    pub end_to_end: Latency,
    /// The mean of the same, ns.
    pub end_to_end_mean_ns: u64,
    /// Its parts.
    pub hops: Vec<Hop>,
    /// Mean number of links between nodes that packets passed.
    pub links_mean: f64,
    /// Messages for each frame between nodes, acknowledgements' frames included.
    pub messages_per_frame: f64,
    /// Bytes on the wire between nodes for each byte of the packets there.
    pub wire_bytes_per_byte: f64,
    /// Packets sent by one node to another, as a share of those of the port with most packets in a
    /// direction: that of the pair with most. Valiant load balancing keeps it at or below 2 / nodes.
    pub busiest_pair_share: f64,
    /// Events that must not happen.
    pub faults: Faults,
    /// Packets that the nodes dropped, by reason.
    pub drops: Vec<(&'static str, u64)>,
    /// Packets dropped at receive queues.
    pub dropped_at_receive_queues: u64,
    /// A hash over all events.
    pub digest: u64,
}

/// A router in a simulated datacenter.
pub struct Cluster {
    settings: Settings,
    /// The datacenter: faults are injected there. Nodes are its first hosts.
    pub world: World,
    nodes: Vec<SimNode>,
    tally: SharedTally,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Builds it and connects all nodes.
    ///
    /// # Errors
    /// A setting is out of range, or the nodes were not connected.
    pub fn new(settings: &Settings) -> Result<Self, SimError> {
        settings.check()?;
        let mut world = World::new(settings.config())?;
        let tally: SharedTally = Rc::new(RefCell::new(Tally::new(settings.nodes)));
        for node in 0..settings.nodes {
            world.start(HostId(node), |nexus: &courser::Nexus| nexus.endpoint())?;
        }
        let nodes = (0..settings.nodes).map(|n| node::attach(&mut world, settings, n, &tally));
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        lines::set_sinks(&mut world, settings, &tally);
        let mut cluster = Cluster { settings: settings.clone(), world, nodes, tally };
        cluster.await_connections()?;
        Ok(cluster)
    }

    /// Runs until every node receives every other one.
    fn await_connections(&mut self) -> Result<(), SimError> {
        let limit = Duration::from_secs(2);
        let nodes = self.nodes.clone();
        let connected = self.world.run_until(limit, move |_| {
            let own = |n: &SimNode| n.borrow().connected() + 1 == nodes.len();
            nodes.iter().all(own)
        });
        let after_ms = limit.as_millis() as u64;
        if !connected {
            return Err(SimError::NotConnected { after_ms });
        }
        // Heartbeats spread which nodes are connected with which.
        self.world.run_for(self.settings.failure_timeout / 2);
        Ok(())
    }

    /// Cuts the cable between two nodes of a mesh, so that packets between them pass another one.
    pub fn cut(&mut self, a: u32, b: u32) {
        for (from, to) in [(a, b), (b, a)] {
            let link = self.world.fabric().link_to(HostId(from), HostId(to), 0);
            if let Some(link) = link {
                self.world.set_link_up(link, false);
            }
        }
    }

    /// Sends packets until a time, ns; those from `begin_ns` on are counted.
    pub fn send(&mut self, begin_ns: u64, end_ns: u64) {
        self.tally.borrow_mut().measure(begin_ns, end_ns);
        lines::start(&mut self.world, &self.settings, &self.tally, end_ns);
    }

    /// A node.
    pub fn node(&self, node: u32) -> &SimNode {
        &self.nodes[node as usize]
    }

    /// Starts a node again that was killed or has crashed.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart(&mut self, node: u32) -> Result<(), SimError> {
        self.world.restart(HostId(node))?;
        self.nodes[node as usize] =
            node::attach(&mut self.world, &self.settings, node, &self.tally)?;
        Ok(())
    }

    /// Packets sent to the router so far by a host, and received by another: those counted.
    pub fn flows_between(&self, from: u32, to: u32) -> (u64, u64) {
        self.tally.borrow().between(from, to)
    }

    /// Events that must not happen, so far.
    pub fn faults(&self) -> Faults {
        self.tally.borrow().faults
    }

    /// Sum of the counters of all nodes.
    pub fn counters(&self) -> Counters {
        let mut all = Counters::default();
        for node in &self.nodes {
            all.merge(node.borrow().counters());
        }
        all
    }

    /// The results so far.
    pub fn outcome(&mut self) -> Outcome {
        let tally = self.tally.borrow();
        let counters = self.counters();
        let wire: u64 = (0..self.settings.nodes)
            .flat_map(|from| (0..self.settings.nodes).map(move |to| (from, to)))
            .filter(|(from, to)| from != to)
            .map(|pair| self.wire_bytes(pair))
            .sum();
        let (mut messages, mut frames) = (0, 0);
        for node in 0..self.settings.nodes {
            let Some(rpc) = self.world.peek(HostId(node), 0) else { continue };
            messages += rpc.stats().messages_sent;
            frames += rpc.stats().tx_frames;
        }
        let drops = self.world.fabric().drops();
        let share = |n: u64, of: u64| n as f64 / of.max(1) as f64;
        Outcome {
            packets_offered: tally.offered,
            packets_forwarded: tally.end_to_end.count(),
            throughput_pps: tally.left * 1_000_000_000 / self.settings.time_ns.max(1),
            throughput_bps: (u128::from(tally.left_bytes) * 8_000_000_000
                / u128::from(self.settings.time_ns.max(1))) as u64,
            end_to_end: Latency::from(&tally.end_to_end),
            end_to_end_mean_ns: tally.end_to_end.mean_ns().unwrap_or(0),
            hops: tally.hops(),
            links_mean: share(counters.from_nodes, tally.all_left),
            messages_per_frame: share(messages, frames),
            wire_bytes_per_byte: share(wire, tally.bytes_between_nodes),
            busiest_pair_share: tally.busiest_pair_share(),
            faults: tally.faults,
            drops: counters.drops().map(|(reason, n)| (reason.name(), n)).collect(),
            dropped_at_receive_queues: drops[DropReason::NoDescriptor as usize],
            digest: self.world.digest(),
        }
    }

    /// Bytes that a node has sent on its cable towards another, of both when they share it.
    fn wire_bytes(&self, (from, to): (u32, u32)) -> u64 {
        let fabric = self.world.fabric();
        let link = fabric.link_to(HostId(from), HostId(to), 0);
        link.map_or(0, |link| fabric.link_counters(link).bytes)
    }
}

/// Runs traffic through a router, and lets it drain.
///
/// # Errors
/// As [`Cluster::new`].
pub fn run(settings: &Settings) -> Result<Outcome, SimError> {
    let mut cluster = Cluster::new(settings)?;
    let begin_ns = cluster.world.now_ns() + settings.warm_up_ns;
    let end_ns = begin_ns + settings.time_ns;
    cluster.send(begin_ns, end_ns);
    cluster.world.run_to(end_ns);
    let tally = Rc::clone(&cluster.tally);
    cluster.world.run_until(DRAIN, move |_| tally.borrow().is_complete());
    Ok(cluster.outcome())
}

/// Time in which packets under way leave after the measurement.
const DRAIN: Duration = Duration::from_millis(10);
