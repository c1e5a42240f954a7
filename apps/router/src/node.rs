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
mod claims;
mod forward;
mod heartbeat;
mod link;
mod members;
mod message;
mod names;
mod order;
mod peers;
mod settings;
mod sources;
mod start;
mod system;
mod valiant;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::rc::{Rc, Weak};

use crate::counters::Counters;
use crate::line::{Ended, Outlet};
use crate::packet::Header;
use crate::packet::icmp::Limiter;
use crate::route::{NodeId, PortId};
use crate::routes::Routes;

pub use link::PAUSE;
pub use members::NodeState;
pub use message::{HEADER_MAX, HEADER_MIN};
pub use names::{Claim, Reason};
pub use settings::{Port, Settings, Spread};

use announce::Announcer;
use names::Names;
use peers::{Incoming, Link};
use sources::Sources;
use valiant::Valiant;

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
