//! Nodes of the simulated router: endpoints of the simulated datacenter with a queue of plain packets
//! as their port.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use courser::Rpc;
use courser_sim::{HostId, PlainQueue, World, spend};
use ipnet::{IpNet, Ipv4Net};

use super::tally::{SharedTally, SimProbe, packet_of, payload};
use super::{Settings, Shape, SimError};
use crate::counters::PacketDrop;
use crate::line::Outlet;
use crate::node::{self, Node, Port, Shared, Spread};
use crate::route::{Exit, NextHop, NodeId, PortId};
use crate::routes::{Origin, Routes};

/// A node, which the simulation and the test share.
pub type SimNode = Shared<SimPort, SimProbe>;

/// The port of a node.
pub struct SimPort {
    queue: PlainQueue,
    /// The host at it.
    outside: HostId,
    neighbour: IpAddr,
    tally: SharedTally,
}

impl std::fmt::Debug for SimPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimPort").field("outside", &self.outside).finish_non_exhaustive()
    }
}

impl Outlet for SimPort {
    fn send(&mut self, port: PortId, neighbour: IpAddr, packet: &[u8]) -> Result<(), PacketDrop> {
        if port != 0 {
            return Err(PacketDrop::PortDown);
        }
        if neighbour != self.neighbour {
            return Err(PacketDrop::NeighbourFailed);
        }
        let payload = payload(packet);
        if payload.is_some() {
            self.tally.borrow_mut().check_packet(packet);
        }
        let sent = self.queue.send(self.outside, payload.unwrap_or(packet));
        if sent { Ok(()) } else { Err(PacketDrop::LineFull) }
    }

    fn flush(&mut self) {}

    fn is_up(&self, _: PortId) -> bool {
        true
    }
}

/// The address of a node at its port.
fn router(node: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, node as u8, 1)
}

/// The address of the host at a node's port.
pub(super) fn outside(node: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, node as u8, 2)
}

/// A network behind the host at a node's port.
pub(super) fn behind(node: u32, host: u16) -> Ipv4Addr {
    let [high, low] = host.to_be_bytes();
    Ipv4Addr::new(20 + node as u8, node as u8, high, low)
}

fn net(address: Ipv4Addr, length: u8) -> IpNet {
    Ipv4Net::new_assert(address, length).into()
}

/// The settings of a node.
pub(super) fn settings(settings: &Settings, own: u32) -> node::Settings {
    let port = |n: u32| Port { addresses: vec![net(router(n), 24)], mtu: 1_500 };
    let spread = if settings.topology == Shape::Mesh { Spread::Valiant } else { Spread::Direct };
    node::Settings {
        node: own as NodeId,
        ports: (0..settings.nodes).map(|n| vec![port(n)]).collect(),
        addresses: Vec::new(),
        origins: Vec::new(),
        spread,
        failure_timeout: settings.failure_timeout,
        seed: settings.seed,
        fingerprint: 1,
        icmp: (1_000, 100),
    }
}

fn routes(nodes: u32) -> Result<Routes, crate::routes::RouteError> {
    let mut routes = Routes::new();
    for n in 0..nodes {
        let hop = |exit| [(NextHop { node: n as NodeId, exit }, 1)];
        routes.announce(Origin::Connected, net(router(n), 32), &hop(Exit::Local))?;
        let network = net(router(n), 24).trunc();
        routes.announce(Origin::Connected, network, &hop(Exit::Connected(0)))?;
        let gateway = Exit::Gateway(0, outside(n).into());
        routes.announce(Origin::File, net(behind(n, 0), 16), &hop(gateway))?;
    }
    Ok(routes)
}

/// Makes a node of an endpoint.
pub(super) fn attach(
    world: &mut World,
    all: &Settings,
    node: u32,
    tally: &SharedTally,
) -> Result<SimNode, SimError> {
    let failed = |cause: String| SimError::Node { node, cause };
    let host = HostId(node);
    let addresses = (0..all.nodes).map(|n| world.uri(HostId(n))).collect();
    let node_settings = node::Settings { addresses, ..settings(all, node) };
    let queue = world.plain_queue(host, 0).ok_or_else(|| failed("no endpoint".into()))?;
    let outside_host = HostId(all.nodes + node);
    let port = SimPort {
        queue: queue.clone(),
        outside: outside_host,
        neighbour: outside(node).into(),
        tally: Rc::clone(tally),
    };
    let probe = SimProbe::new(node, tally);
    let routes = routes(all.nodes).map_err(|error| failed(error.to_string()))?;
    let rpc = world.endpoint(host, 0).ok_or_else(|| failed("no endpoint".into()))?;
    let started = Node::start(rpc, node_settings, routes, port, probe);
    let started = started.map_err(|error| failed(error.to_string()))?;
    let (own, batch) = (Rc::clone(&started), all.batch);
    let mut packet = Vec::new();
    let forward = Duration::from_nanos(all.cpu.forward_ns());
    world.set_beside(host, 0, move |rpc: &mut Rpc| {
        let now_ns = rpc.context().now_ns();
        if !own.borrow_mut().takes_packets(now_ns) {
            return true; // It looks again.
        }
        let mut any = false;
        for _ in 0..batch {
            let Some(payload) = queue.receive() else { break };
            any = true;
            packet_of(&payload, &mut packet);
            queue.give_back(payload);
            spend(forward);
            own.borrow_mut().receive(&mut rpc.context(), 0, &mut packet);
        }
        any
    });
    Ok(started)
}
