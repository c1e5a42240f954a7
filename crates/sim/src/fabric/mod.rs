//! The simulated network: hosts' ports, cables, output-queued switches, and their faults.
//!
//! # Time
//!
//! A packet of `b` bytes on the wire ([`Packet::wire_bytes`]) keeps a port busy for `8 b / rate`;
//! its last bit arrives one cable delay later. A store-and-forward switch puts it into the output
//! queue one switch latency after the last bit, a cut-through switch after the first. Without
//! queueing a packet takes, through `k` store-and-forward switches, `(k + 1) (8 b / rate + delay) +
//! k latency`, and through `k` cut-through switches on equal links `8 b / rate + (k + 1) delay + k
//! latency`.
//!
//! # Event loop
//!
//! The fabric has no event queue: it passes its events to a [`Schedule`] and receives them by
//! [`Fabric::on_event`], in the order of their time and, for equal times, in the order in which
//! they were passed. Hosts have no output queue here: the NIC's queue belongs to the host, which
//! sends when [`Fabric::host_port_is_free`].
//!
//! # Hosts with several cables
//!
//! A host may have a cable to each of several hosts and switches, each at a port of its own. It
//! sends a packet on a shortest path to the packet's receiver ([`Fabric::link_to`]). It does not
//! forward packets: a packet that reaches a host other than its receiver is dropped. An application
//! that forwards, as a software router does, sends a new packet.

mod faults;
mod hop;
mod pfc;
mod policy;
mod port;
mod presets;
mod route;
mod topology;

use std::fmt;

use crate::observe::Tap;
use crate::{DropReason, HostId, LinkId, Packet, Rng};
use faults::FaultState;
use port::Port;
use route::Routes;

pub use faults::{Burst, Crossing, Fate, FaultRule, Flap, LinkFaults, MIN_FLAP_NS, delay_in_order};
pub use policy::{Buffer, Marking, Pfc};
pub use port::{LinkCounters, QueueCounters};
pub use presets::{
    BUFFER_ALPHA, BUFFER_BYTES, DCQCN_MARKING, HOST_DELAY_NS, HOST_RATE_BPS, LeafSpine,
    SWITCH_LATENCY_NS, UPLINK_DELAY_NS, UPLINK_RATE_BPS,
};
pub use topology::{
    Cable, CableSpec, MAX_DELAY_NS, MAX_NODES, Node, PolicyError, SwitchSpec, Topology,
    TopologyError,
};

/// A time that is never reached: over a hundred years.
const NEVER: u64 = 1 << 62;

/// Purposes of random streams; the number of the link or switch is added.
const FAULTS: u64 = 0xfa01 << 32;
const MARKS: u64 = 0xfa02 << 32;
const SALTS: u64 = 0xfa03 << 32;

/// A future event in the network, opaque outside the fabric.
#[derive(Debug)]
pub struct FabricEvent(Kind);

#[derive(Debug)]
enum Kind {
    /// A packet reaches the end of `link` and continues on `out`; `falls` is the number of failures
    /// of the link when it left.
    Arrive { link: u32, out: u32, falls: u32, packet: Box<Packet> },
    /// A port has finished a transmission.
    Sent { link: u32 },
    /// A pause frame reaches the sender of `link`.
    Pause { link: u32, on: bool },
}

/// The event queue of the program that drives the fabric.
pub trait Schedule {
    /// Schedules the event at this time, which is not in the past.
    fn at(&mut self, at_ns: u64, event: FabricEvent);
}

/// Effect of an event on the hosts.
#[derive(PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Nothing.
    None,
    /// The last bit of a packet has arrived at the NIC of the host. It may be
    /// [corrupt](Packet::corrupt), which the NIC checks.
    Deliver(HostId, Box<Packet>),
    /// A port of the host may send the next packet. Follows each [`Fabric::transmit`] and each
    /// pause; while nothing was sent it may also occur spuriously.
    HostPortFree(HostId),
}

/// Packets in the whole network: `sent + duplicated = delivered + dropped + in_flight`, always.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Sent by hosts.
    pub sent: u64,
    /// Copies made by faults.
    pub duplicated: u64,
    /// Delivered to hosts' NICs.
    pub delivered: u64,
    /// Dropped.
    pub dropped: u64,
    /// On links and in queues now.
    pub in_flight: u64,
}

/// A network in operation.
pub struct Fabric {
    ports: Vec<Port>,
    switches: Vec<Switch>,
    hosts: Vec<HostPort>,
    routes: Routes,
    totals: Totals,
    seed: u64,
    /// Observer of packets; an absent one costs nothing.
    pub tap: Option<Box<dyn Tap>>,
}

struct Switch {
    spec: SwitchSpec,
    /// Bytes in its buffer.
    used: u64,
}

struct HostPort {
    /// The links on which it sends, one for each cable.
    uplinks: Vec<u32>,
    /// Its group in a partition.
    side: u32,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hosts, links) = (self.hosts.len(), self.ports.len());
        f.debug_struct("Fabric")
            .field("hosts", &hosts)
            .field("links", &links)
            .field("totals", &self.totals)
            .finish_non_exhaustive()
    }
}

impl Fabric {
    /// Builds a network. The seed decides marks, faults and the paths of flows.
    pub fn new(topology: &Topology, seed: u64) -> Result<Fabric, TopologyError> {
        topology.check()?;
        let mut ports = Vec::with_capacity(2 * topology.cables().len());
        let mut hosts: Vec<_> =
            (0..topology.hosts()).map(|_| HostPort { uplinks: Vec::new(), side: 0 }).collect();
        for cable in topology.cables() {
            for (from, to) in [(cable.a, cable.b), (cable.b, cable.a)] {
                let link = ports.len() as u32;
                if let Node::Host(h) = from {
                    hosts[h.0 as usize].uplinks.push(link);
                }
                let rng = Rng::stream(seed, MARKS | u64::from(link));
                ports.push(Port::new(cable.spec, from, to, rng));
            }
        }
        let routes = Routes::new(topology, seed)?;
        let switches = topology.switches().iter().map(|&spec| Switch { spec, used: 0 }).collect();
        Ok(Fabric { ports, switches, hosts, routes, totals: Totals::default(), seed, tap: None })
    }

    /// Returns whether a port of the host is neither sending nor paused: it may
    /// [`transmit`](Fabric::transmit) a packet that leaves on that port's link.
    pub fn host_port_is_free(&self, host: HostId) -> bool {
        self.hosts[host.0 as usize].uplinks.iter().any(|&link| self.link_is_free(LinkId(link)))
    }

    /// Returns whether the sender of a link is neither sending nor paused.
    pub fn link_is_free(&self, link: LinkId) -> bool {
        let port = &self.ports[link.0 as usize];
        port.is_idle() && !port.paused
    }

    /// The link on which a host sends a flow's packets to another: its cable when it has one, or one
    /// on a shortest path. `None`: no path leads there.
    pub fn link_to(&self, host: HostId, to: HostId, flow: u32) -> Option<LinkId> {
        match self.hosts[host.0 as usize].uplinks[..] {
            [only] => Some(LinkId(only)),
            _ => self.routes.next_of_host(host, to, flow).map(LinkId),
        }
    }

    /// Begins to send a packet of the host; its first bit leaves now, and `sent_ns` becomes now.
    ///
    /// # Panics
    ///
    /// If no path leads to the packet's receiver, or the [link](Fabric::link_to) to it is not free.
    pub fn transmit(
        &mut self,
        host: HostId,
        now_ns: u64,
        mut packet: Box<Packet>,
        s: &mut impl Schedule,
    ) {
        let link = self.link_to(host, packet.dst, packet.flow).filter(|&l| self.link_is_free(l));
        let link = link.unwrap_or_else(|| panic!("{host:?} sends on a port that is not free"));
        packet.sent_ns = now_ns;
        self.totals.sent += 1;
        self.totals.in_flight += 1;
        self.ports[link.0 as usize].grow(now_ns, 0);
        self.send(link.0, now_ns, port::Queued { packet, stored: 0, from: link.0 }, s);
    }

    /// Processes an event.
    pub fn on_event(&mut self, now_ns: u64, e: FabricEvent, s: &mut impl Schedule) -> Outcome {
        match e.0 {
            Kind::Arrive { link, out, falls, packet } => {
                self.on_arrival(now_ns, link, out, falls, packet, s)
            }
            Kind::Sent { link } => self.on_sent(now_ns, link, s),
            Kind::Pause { link, on } => self.on_pause(now_ns, link, on, s),
        }
    }

    /// Takes a link down, or up again. Packets on it when it goes down, and packets sent on it
    /// while it is down, are lost; queues continue to drain. The other direction is a link of its
    /// own.
    pub fn set_link_up(&mut self, link: LinkId, up: bool) {
        let port = &mut self.ports[link.0 as usize];
        port.falls = port.falls.wrapping_add(u32::from(port.up && !up));
        port.up = up;
    }

    /// Partitions the hosts: between hosts of different groups every packet is dropped where it
    /// enters the network, at the end of its sender's link. Hosts in no group form a group
    /// together. Packets beyond that point arrive. Replaces an earlier partition.
    pub fn partition(&mut self, groups: &[&[HostId]]) {
        self.heal();
        for (side, group) in (1..).zip(groups) {
            for host in *group {
                self.hosts[host.0 as usize].side = side;
            }
        }
    }

    /// Ends a partition.
    pub fn heal(&mut self) {
        self.hosts.iter_mut().for_each(|h| h.side = 0);
    }

    /// Replaces the faults of a link. Packets in flight are not affected, a
    /// [rule](Fabric::set_fault_rule) remains, and the link's generator continues.
    pub fn set_faults(&mut self, now_ns: u64, link: LinkId, faults: LinkFaults) {
        self.fault_state(link).set(now_ns, faults);
    }

    /// Sets or removes a rule that decides about every packet of a link before its rates do.
    pub fn set_fault_rule(&mut self, link: LinkId, rule: Option<FaultRule>) {
        self.fault_state(link).rule = rule;
    }

    fn fault_state(&mut self, link: LinkId) -> &mut FaultState {
        let seed = self.seed;
        let new = || Box::new(FaultState::new(Rng::stream(seed, FAULTS | u64::from(link.0))));
        self.ports[link.0 as usize].faults.get_or_insert_with(new)
    }

    /// Number of links; link numbers are below it.
    pub fn links(&self) -> u32 {
        self.ports.len() as u32
    }

    /// Ends of a link.
    pub fn ends(&self, link: LinkId) -> (Node, Node) {
        let port = &self.ports[link.0 as usize];
        (port.from, port.to)
    }

    /// Rate and delay of a link.
    pub fn cable(&self, link: LinkId) -> CableSpec {
        self.ports[link.0 as usize].spec
    }

    /// The link on which a host with one cable sends, the first one of several; its
    /// [reverse](LinkId::reverse) is the one on which it receives.
    pub fn uplink(&self, host: HostId) -> LinkId {
        LinkId(self.hosts[host.0 as usize].uplinks[0])
    }

    /// All links on which a host sends.
    pub fn uplinks(&self, host: HostId) -> impl Iterator<Item = LinkId> {
        self.hosts[host.0 as usize].uplinks.iter().copied().map(LinkId)
    }

    /// Counters of a link.
    pub fn link_counters(&self, link: LinkId) -> &LinkCounters {
        &self.ports[link.0 as usize].counters
    }

    /// Occupancy of the output queue of a link.
    pub fn queue_counters(&self, link: LinkId, now_ns: u64) -> QueueCounters {
        self.ports[link.0 as usize].queue_counters(now_ns)
    }

    /// Bytes in the buffer of a switch.
    pub fn switch_bytes(&self, switch: u32) -> u64 {
        self.switches[switch as usize].used
    }

    /// Packets in the whole network.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Drops in the whole network, by [`DropReason`].
    pub fn drops(&self) -> [u64; DropReason::COUNT] {
        let mut sum = [0; DropReason::COUNT];
        for port in &self.ports {
            sum.iter_mut().zip(port.counters.drops).for_each(|(sum, n)| *sum += n);
        }
        sum
    }
}

#[cfg(test)]
mod tests;
