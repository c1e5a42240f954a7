//! A router of several servers in the three topologies of scaled-out software routers (S1, S2):
//! [Scatter-gather §II-A, Fig. 1].
//!
//! Each node has a line to a host outside, on which plain packets arrive at random and leave. A node
//! passes a packet on to the next node as a one-way message, and the last node sends it on the line
//! of its destination:
//!
//! - *mesh* (RouteBricks): a cable between every two nodes, and Valiant load balancing: from the node
//!   of its line a packet goes to a node drawn at random, and from there to the node of its
//!   destination. The node drawn may be one of these two, and the packet goes directly then.
//! - *switch* (ScaleBricks): a cable from every node to one switch, over which packets go directly to
//!   the node of their destination.
//! - *mixed* (Flowstream, E2): the lines are at the switch, too, which divides the packets that arrive
//!   among all nodes. That node processes them first, and the node of their destination last.
//!
//! Times are those of each hop, from the moment at which a node has the packet until the next one
//! has it, so that the hops of a packet add up to its latency.

mod lines;
mod node;
mod tally;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::Packing;
use serde::Serialize;

use super::hosts::Hosts;
use super::{
    Cpu, Latency, ScenarioError, Traffic, app, check, check_time, check_warm_up, per_second,
};
use crate::fabric::{CableSpec, HOST_DELAY_NS, Node, SwitchSpec, Topology};
use crate::observe::{DropReason, Times};
use crate::{HostId, World, WorldConfig};
use tally::{SharedTally, Tally};

/// A topology of [Scatter-gather Fig. 1].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// All nodes connected with each other, and Valiant load balancing.
    Mesh,
    /// All nodes at a switch.
    Switch,
    /// All nodes and all lines at a switch.
    Mixed,
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 3] = [Shape::Mesh, Shape::Switch, Shape::Mixed];

    /// Its name in options and results.
    pub const fn name(self) -> &'static str {
        match self {
            Shape::Mesh => "mesh",
            Shape::Switch => "switch",
            Shape::Mixed => "mixed",
        }
    }
}

/// Destinations of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Matrix {
    /// Any other line, with equal probability.
    Uniform,
    /// The next line: all packets of one go to one other, the worst case for direct paths.
    Neighbour,
}

/// Settings of the experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// All hosts. Default: measured CPU costs, frames of 9,000 bytes, 256 credits.
    #[serde(flatten)]
    pub hosts: Hosts,
    /// How the nodes are connected.
    pub topology: Shape,
    /// True if messages share frames, into which small ones are copied.
    pub batching: bool,
    /// Nodes, and lines: 2 to 32. Default 4.
    pub nodes: u32,
    /// Threads of each node, with one CPU each: 1 to 16. Default 4.
    pub cores: u32,
    /// Rate of lines and cables, bit/s. A node's cable has twice that in the mixed topology, where it
    /// has both the line's packets and those between nodes.
    pub line_rate_bps: u64,
    /// Bytes of a packet, with its Ethernet header and check sequence: 64 to 1,518.
    pub packet_bytes: u32,
    /// Packets that arrive, as a share of what a line can carry, per million: 1 to 1,000,000.
    pub load_ppm: u32,
    /// Where they go.
    pub matrix: Matrix,
    /// Warm-up, ns. Default 50 us.
    pub warm_up_ns: u64,
    /// Measured time, ns. Default 500 us.
    pub time_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            hosts: Hosts { credits: 256, max_frame: 9_000, cpu: Cpu::Measured, ..Hosts::default() },
            topology: Shape::Mesh,
            batching: true,
            nodes: 4,
            cores: 4,
            line_rate_bps: 10_000_000_000,
            packet_bytes: 64,
            load_ppm: 500_000,
            matrix: Matrix::Uniform,
            warm_up_ns: 50_000,
            time_ns: 500_000,
        }
    }
}

/// Preamble and gap of an Ethernet frame.
const FRAMING: u32 = crate::WIRE_OVERHEAD - crate::STORED_OVERHEAD;

impl Settings {
    fn check(&self) -> Result<(), ScenarioError> {
        self.hosts.check()?;
        check((2..=32).contains(&self.nodes), "nodes", self.nodes, "2 to 32")?;
        check((1..=16).contains(&self.cores), "cores", self.cores, "1 to 16")?;
        let rate = (1_000_000..=1_000_000_000_000).contains(&self.line_rate_bps);
        check(rate, "line_rate_bps", self.line_rate_bps, "1 Mbit/s to 1 Tbit/s")?;
        let bytes = self.packet_bytes;
        check((64..=1_518).contains(&bytes), "packet_bytes", bytes, "64 to 1,518 bytes")?;
        let fits = self.hosts.max_frame >= super::data_overhead() + bytes as usize;
        let frame = self.hosts.max_frame as u64;
        check(fits, "max_frame", frame, "at least the bytes of a packet and 44")?;
        let load = self.load_ppm;
        check((1..=1_000_000).contains(&load), "load_ppm", load, "1 to 1,000,000 per million")?;
        check_time(self.time_ns)?;
        check_warm_up(self.warm_up_ns)
    }

    /// The nodes, and after them the host outside of each line.
    pub fn topology(&self) -> Topology {
        let cable = |rate_bps| CableSpec { rate_bps, delay_ns: HOST_DELAY_NS };
        let (line, nodes) = (cable(self.line_rate_bps), self.nodes);
        let (node, outside) = (|n| Node::Host(HostId(n)), |n| Node::Host(HostId(self.nodes + n)));
        let mut t = Topology::new(2 * nodes);
        let switch = match self.topology {
            Shape::Mesh => None,
            _ => Some(Node::Switch(t.add_switch(SwitchSpec::default()))),
        };
        for n in 0..nodes {
            match (self.topology, switch) {
                (Shape::Mixed, Some(switch)) => {
                    t.add_cable(node(n), switch, cable(2 * self.line_rate_bps));
                    t.add_cable(outside(n), switch, line);
                    continue;
                }
                (_, Some(switch)) => {
                    t.add_cable(node(n), switch, line);
                }
                (_, None) => {
                    (n + 1..nodes).for_each(|m| {
                        t.add_cable(node(n), node(m), line);
                    });
                }
            }
            t.add_cable(outside(n), node(n), line);
        }
        t
    }

    fn config(&self) -> WorldConfig {
        // A session in each direction with a thread of every other node.
        let mut config = self.hosts.config(self.topology(), 2 * self.nodes);
        config.nexus.line_rate_bps = self.line_rate_bps;
        let packing = if self.batching { Packing::Copy } else { Packing::Off };
        config.nexus.packing = Some(packing);
        config
    }

    /// Packets that a line can carry in each direction, per second.
    pub fn line_pps(&self) -> u64 {
        self.line_rate_bps / 8 / u64::from(self.packet_bytes + FRAMING)
    }

    /// Time of a packet on a line, ns.
    fn wire_ns(&self) -> u64 {
        super::wire_ns(u64::from(self.packet_bytes + FRAMING), self.line_rate_bps)
    }

    /// Mean time between two packets that arrive on a line, ns.
    fn mean_gap_ns(&self) -> f64 {
        1e9 / (self.line_pps() as f64 * super::share(self.load_ppm))
    }
}

/// One hop of packets.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Hop {
    /// `line_in`: from the host outside to a node's thread; `first` and `second`: between nodes;
    /// `line_out`: from the last node to the host outside.
    pub hop: &'static str,
    /// Mean, ns.
    pub mean_ns: u64,
    /// Its distribution over the packets that have it.
    #[serde(flatten)]
    pub latency: Latency,
}

/// Results of a run. Packets are those that arrived on a line in the measured time.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// Packets that arrived at the router.
    pub packets_offered: u64,
    /// Packets that left the router, also after the measured time.
    pub packets_forwarded: u64,
    /// Packets that were dropped, or in flight after 5 ms more.
    pub packets_dropped: u64,
    /// Dropped for lack of a receive descriptor, in the whole run.
    pub dropped_at_receive_queues: u64,
    /// Dropped because a session had too many messages or a transmit queue was full, in the whole run.
    pub dropped_at_send_queues: u64,
    /// Datagrams dropped by the switch for lack of buffer, in the whole run; those between nodes are
    /// sent again.
    pub dropped_at_switch: u64,
    /// Messages sent again, in the whole run.
    pub messages_retransmitted: u64,
    /// Packets that left the router in the measured time, of all lines, per second.
    pub throughput_pps: u64,
    /// Their bytes, bit/s.
    pub throughput_bps: u64,
    /// The same as a share of what all lines can carry.
    pub throughput_share: f64,
    /// From the first bit at the host outside to the last bit at the other one.
    pub end_to_end: Latency,
    /// Its mean, ns.
    pub end_to_end_mean_ns: u64,
    /// Its parts. Those that no packet has are absent.
    pub hops: Vec<Hop>,
    /// Mean number of hops between nodes.
    pub node_hops_mean: f64,
    /// Messages for each frame between nodes, of which some have acknowledgements only; mean of the
    /// whole run.
    pub messages_per_frame: f64,
    /// Packets sent from one node to another, as a share of those received from a line: that of the
    /// pair with most. With Valiant load balancing at most 2 / nodes, whatever the destinations.
    pub busiest_pair_share: f64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "super::hex")]
    pub digest: u64,
}

/// Limit of the time in which packets under way leave after the measurement.
const DRAIN: Duration = Duration::from_millis(5);

/// Runs it.
///
/// # Errors
/// A setting is out of range, or sessions were not connected.
pub fn run(settings: &Settings) -> Result<Outcome, ScenarioError> {
    settings.check()?;
    let mut world = World::new(settings.config())?;
    let tally: SharedTally = Rc::new(RefCell::new(Tally::new(settings.nodes)));
    node::start(&mut world, settings, &tally)?;
    app::connect_all(&mut world)?;
    let begin_ns = world.now_ns() + settings.warm_up_ns;
    let end_ns = begin_ns + settings.time_ns;
    tally.borrow_mut().measure(begin_ns, end_ns);
    lines::start(&mut world, settings, &tally, end_ns);
    world.run_to(end_ns);
    let all = Rc::clone(&tally);
    world.run_until(DRAIN, move |_| all.borrow().is_complete());
    Ok(outcome(settings, &mut world, &tally.borrow()))
}

fn outcome(settings: &Settings, world: &mut World, tally: &Tally) -> Outcome {
    let traffic = Traffic::of(world);
    let throughput_pps = per_second(tally.left, settings.time_ns);
    let all_pps = settings.line_pps() * u64::from(settings.nodes);
    let (messages, frames) = node::sent(world, settings);
    let forwarded = tally.end_to_end.count();
    let hop = |&(hop, ref times): &(&'static str, Times)| Hop {
        hop,
        mean_ns: times.mean_ns().unwrap_or(0),
        latency: Latency::from(times),
    };
    let between_nodes: u64 = tally.hops[1..3].iter().map(|(_, times)| times.count()).sum();
    Outcome {
        packets_offered: tally.offered,
        packets_forwarded: forwarded,
        packets_dropped: tally.offered - forwarded,
        dropped_at_receive_queues: traffic.dropped(DropReason::NoDescriptor),
        dropped_at_send_queues: tally.refused,
        dropped_at_switch: traffic.dropped(DropReason::BufferFull),
        messages_retransmitted: traffic.retransmitted,
        throughput_pps,
        throughput_bps: throughput_pps * u64::from(settings.packet_bytes) * 8,
        throughput_share: throughput_pps as f64 / all_pps as f64,
        end_to_end: Latency::from(&tally.end_to_end),
        end_to_end_mean_ns: tally.end_to_end.mean_ns().unwrap_or(0),
        hops: tally.hops.iter().filter(|(_, times)| times.count() > 0).map(hop).collect(),
        node_hops_mean: between_nodes as f64 / forwarded.max(1) as f64,
        messages_per_frame: messages as f64 / frames.max(1) as f64,
        busiest_pair_share: tally.busiest_pair_share(),
        digest: world.digest(),
    }
}

#[cfg(test)]
mod tests;
