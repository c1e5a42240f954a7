//! A node of the cluster: from the port at which a packet arrives to the one by which it leaves.
//!
//! The first node of a packet checks it, looks its destination up, decrements its time to live and
//! fragments it if it has to. It sends the packet to its last node as a one-way message
//! (`link`), with the way out ([`crate::route::Exit`]); the last node sends it to the neighbour.
//! With [`Spread::Valiant`] a third node passes it on between them (`valiant`). Small messages share
//! frames, so a burst of packets needs few of them.
//!
//! The cluster counts as one router: a packet's time to live decreases by one, at its first node,
//! which also reports all errors but those of the last link.
//!
//! Packets of a flow keep their order: they take one way, and `order` puts those back into order
//! that a link has lost and sent again.
//!
//! A node has no clock and no sockets of its own: it is driven by its endpoint's handlers and by
//! [`Node::receive`].

mod announce;
mod forward;
mod link;
mod members;
mod names;
mod order;
mod sources;
mod system;
mod valiant;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use courser::{Rpc, SessionError, Transport};
use ipnet::IpNet;

use crate::counters::Counters;
use crate::line::{Ended, Outlet};
use crate::packet::icmp::Limiter;
use crate::packet::{Header, Version};
use crate::route::{MAX_NODES, NodeId, PortId};
use crate::routes::Routes;

pub use link::{HEADER_MAX, HEADER_MIN, PAUSE};
pub use members::NodeState;
pub use names::{Claim, Reason};

use announce::Announcer;
use link::{Incoming, Link};
use names::Names;
use sources::Sources;
use valiant::Valiant;

/// Credits that Courser gives a session by default, at least.
const LEAST_CREDITS: usize = 32;

/// How packets go from their first node to their last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    /// Directly: for nodes at a switch.
    Direct,
    /// By a node that each burst of a flow selects, for a full mesh: no cable carries more than two
    /// shares of a node's traffic, whatever the destinations are (Valiant load balancing).
    Valiant,
}

/// A port, as all nodes know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// Addresses of the node there, with their networks.
    pub addresses: Vec<IpNet>,
    /// Largest IP packet that leaves by it, bytes.
    pub mtu: u16,
}

impl Port {
    /// An address of this version, the source of ICMP messages.
    fn address(&self, version: Version) -> Option<IpAddr> {
        let addresses = self.addresses.iter().map(IpNet::addr);
        let mut matching = addresses.filter(|a| a.is_ipv4() == (version == Version::V4));
        matching.next()
    }
}

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This node.
    pub node: NodeId,
    /// The ports of all nodes, by node: at most [`MAX_NODES`].
    pub ports: Vec<Vec<Port>>,
    /// Courser addresses of all nodes, as this one reaches them.
    pub addresses: Vec<String>,
    /// By node: addresses of IP from which its sessions may come besides its address above. Nodes
    /// without any here have one address. Not used where addresses are none of `udp`.
    pub origins: Vec<Vec<IpAddr>>,
    /// How packets go from node to node.
    pub spread: Spread,
    /// Within this time of the death of a node its routes are withdrawn.
    pub failure_timeout: Duration,
    /// Seed of the hash of flows, the same in all nodes.
    pub seed: u64,
    /// A hash of the settings in which all nodes have to agree. Nodes with another one are refused.
    pub fingerprint: u64,
    /// ICMP errors for each second, and at once; the same for echo replies.
    pub icmp: (u32, u32),
}

impl Settings {
    /// The Courser settings that this node needs, on top of `base`: heartbeats that notice a dead
    /// node in time, and a credit for each message that a link takes, for a short queue as many as by
    /// default: calls and parts of packets take them, too.
    ///
    /// A message costs a credit however small it is. The default is a few dozens, which suits calls
    /// and large packets: at 100,000 packets a second a node that the system runs half a millisecond
    /// late would stop its peers.
    pub fn courser(&self, base: courser::Config) -> courser::Config {
        let failure_timeout = members::silence(self.failure_timeout);
        let failure_timeout = failure_timeout.max(Duration::from_millis(10));
        let credits = base.message_queue.clamp(LEAST_CREDITS, u16::MAX.into()) as u32;
        courser::Config { failure_timeout, credits: Some(credits), ..base }
    }
}

/// Observes packets on their way between nodes, for measurements. Does nothing by default.
pub trait Probe {
    /// This node sends a packet to another one; its last node is `last`.
    fn sends(&mut self, _to: NodeId, _last: NodeId, _packet: &[u8]) {}
    /// A packet of another node is in its place in the order.
    fn takes(&mut self, _from: NodeId, _packet: &[u8]) {}
}

impl Probe for () {}

/// A node. See the module.
pub struct Node<O, P = ()> {
    settings: Settings,
    routes: Routes,
    outlet: O,
    probe: P,
    /// To each node; unused for this one.
    links: Vec<Link>,
    /// From other nodes, by the number of their session.
    incoming: Vec<Option<Incoming>>,
    /// Packets of ports for full links since the last one that had a way.
    refused_in_a_row: usize,
    /// The program takes no packets until then, while it has only such.
    paused_until_ns: u64,
    valiant: Valiant,
    announcer: Announcer,
    /// Of errors, and of echo replies, so that a flood of packets that cannot be sent on does not
    /// silence the answers to ping.
    limiter: Limiter,
    echo_limiter: Limiter,
    counters: Counters,
    /// A number of this start of the node.
    life: u64,
    /// Memory for ICMP messages.
    scratch: Vec<u8>,
    /// Bits of an IPv4 address that are all 0 in the first, and all 1 in the last address of the
    /// network of each port.
    host_mask: u32,
    /// Sources that no packet from outside may have.
    sources: Sources,
    /// Addresses of this node's kernel that have a route because of it.
    system: BTreeSet<IpAddr>,
    /// The next hops of which groups were told, as sets of nodes and of their ports.
    alive: Vec<Option<u32>>,
    /// Nodes that are connected in both directions.
    usable: u64,
    /// Nodes of which messages have arrived since the timer ran.
    active: u64,
    /// For each node those that it receives heartbeats from; 0 when it is not received itself.
    hears: Vec<u64>,
    deaths: u64,
    refused_heartbeats: u64,
    names: Names,
    /// This node, for completions.
    own: Weak<RefCell<Node<O, P>>>,
}

/// A node that its endpoint's handlers and its program share.
pub type Shared<O, P = ()> = Rc<RefCell<Node<O, P>>>;

/// Where a packet comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    Port(PortId),
    /// ICMP messages of this node.
    Own,
}

impl<O: Outlet + 'static, P: Probe + 'static> Node<O, P> {
    /// A node of the cluster with its routes, which runs on `rpc`: registers the handlers and timers,
    /// and begins to connect to the other nodes.
    ///
    /// # Errors
    /// The address of a node cannot be read.
    ///
    /// # Panics
    /// The settings have more nodes than [`MAX_NODES`], or this node is none of them.
    pub fn start<T: Transport>(
        rpc: &mut Rpc<T>,
        settings: Settings,
        routes: Routes,
        outlet: O,
        probe: P,
    ) -> Result<Shared<O, P>, SessionError> {
        let nodes = settings.ports.len();
        assert!(nodes <= MAX_NODES && usize::from(settings.node) < nodes, "checked by the caller");
        assert_eq!(settings.addresses.len(), nodes, "one address for each node");
        let mut cx = rpc.context();
        let (per_second, burst) = settings.icmp;
        let mut node = Node {
            routes,
            outlet,
            probe,
            links: (0..nodes).map(|_| Link::default()).collect(),
            incoming: Vec::new(),
            refused_in_a_row: 0,
            paused_until_ns: 0,
            valiant: Valiant::new(nodes),
            announcer: Announcer::new(nodes),
            limiter: Limiter::new(per_second, burst),
            echo_limiter: Limiter::new(per_second, burst),
            counters: Counters::default(),
            life: cx.random(),
            scratch: Vec::new(),
            host_mask: forward::host_mask(settings.ports.iter().flatten()),
            sources: Sources::new(settings.ports.iter().flatten()),
            system: BTreeSet::new(),
            alive: Vec::new(),
            usable: 0,
            active: 0,
            hears: vec![0; nodes],
            deaths: 0,
            refused_heartbeats: 0,
            names: Names::new(&settings),
            own: Weak::new(),
            settings,
        };
        node.connect_all(&mut cx)?;
        node.update_alive(cx.now_ns());
        let node = Rc::new(RefCell::new(node));
        node.borrow_mut().own = Rc::downgrade(&node);
        link::register(rpc, &node);
        announce::register(rpc, &node);
        members::start_timer(rpc, &node);
        Ok(node)
    }

    /// Counters since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The routes. Changes of this node's own ones go through [`Node::change`].
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// The lines by which packets leave.
    pub fn outlet(&self) -> &O {
        &self.outlet
    }

    /// The lines by which packets leave.
    pub fn outlet_mut(&mut self) -> &mut O {
        &mut self.outlet
    }

    /// The observer.
    pub fn probe(&mut self) -> &mut P {
        &mut self.probe
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// An address of this node for ICMP messages about a packet: of the port at which it arrived.
    fn icmp_source(&self, origin: Origin, header: &Header) -> Option<IpAddr> {
        let ports = self.settings.ports.get(usize::from(self.settings.node))?;
        let arrival = match origin {
            Origin::Port(port) => ports.get(usize::from(port)),
            Origin::Own => None,
        };
        let arrival = arrival.and_then(|port| port.address(header.version));
        arrival.or_else(|| ports.iter().find_map(|port| port.address(header.version)))
    }
}

/// Ends a pass of the program's loop: packets that wait for the lines leave.
pub fn end_of_pass<O: Outlet, P>(node: &Shared<O, P>) {
    let Node { outlet, counters, .. } = &mut *node.borrow_mut();
    outlet.flush();
    if outlet.is_queue() {
        let Ended { sent, dropped } = outlet.take_ended();
        counters.sent += sent.packets;
        counters.sent_bytes += sent.bytes;
        dropped.iter().for_each(|(reason, packets)| counters.drops[*reason as usize] += packets);
    }
}
