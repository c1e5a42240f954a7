//! What a node does with a packet.

use std::net::{IpAddr, Ipv4Addr};

use courser::Context;

use super::link::destination;
use super::message::{Head, MOST_PASSED};
use super::settings::{Spread, networks};
use super::{Node, Origin, Probe};
use crate::counters::PacketDrop;
use crate::line::{BURST, Outlet};
use crate::packet::icmp::{self, Problem};
use crate::packet::{self, Header, Version, fragment};
use crate::route::{Exit, NextHop, NodeId, PortId};
use crate::routes::Lookup;

#[cfg(test)]
mod tests;

/// The way of a packet: its next hop, and the hash of its flow.
#[derive(Clone, Copy)]
struct Way {
    hop: NextHop,
    flow: u32,
}

impl<O: Outlet + 'static, P: Probe + 'static> Node<O, P> {
    /// Prefetches what [`Node::receive`] will load for a packet, which need not be good.
    #[inline]
    pub fn prefetch(&self, packet: &[u8]) {
        if let Some(destination) = destination(packet) {
            self.routes.prefetch(destination);
        }
    }

    /// Takes a packet that has arrived at a port, without its link-layer header. Bytes after its end
    /// are ignored.
    #[inline]
    pub fn receive(&mut self, cx: &mut Context<'_>, port: PortId, packet: &mut [u8]) {
        self.counters.received += 1;
        let header = match packet::parse(packet) {
            Ok(header) => header,
            Err(reason) => {
                self.counters.received_bytes += packet.len() as u64;
                return self.counters.drop(reason);
            }
        };
        let packet = &mut packet[..header.total_len as usize];
        self.counters.received_bytes += packet.len() as u64;
        if self.sources.has(header.src) {
            return self.counters.drop(PacketDrop::Source);
        }
        self.forward(cx, Origin::Port(port), packet, &header);
    }

    /// Sends a packet on towards its destination.
    fn forward(
        &mut self,
        cx: &mut Context<'_>,
        origin: Origin,
        packet: &mut [u8],
        header: &Header,
    ) {
        let flow = packet::flow_hash(packet, header, self.settings.seed);
        let hop = match self.routes.lookup(header.dst, flow) {
            Lookup::Via(hop) => hop,
            Lookup::NoRoute => {
                self.counters.drop(PacketDrop::NoRoute);
                return self.report(cx, origin, Problem::NoRoute, packet, header);
            }
            Lookup::Unreachable => {
                self.counters.drop(PacketDrop::Unreachable);
                return self.report(cx, origin, Problem::HostUnreachable, packet, header);
            }
        };
        let way = Way { hop, flow };
        if hop.exit == Exit::Local {
            return self.deliver(cx, origin, way, packet);
        }
        if self.is_directed_broadcast(&hop, header.dst) {
            return self.counters.drop(PacketDrop::Destination);
        }
        let is_foreign = origin != Origin::Own;
        if is_foreign && header.ttl <= 1 {
            self.counters.drop(PacketDrop::TimeExceeded);
            return self.report(cx, origin, Problem::TimeExceeded, packet, header);
        }
        if packet.len() > usize::from(self.mtu(&hop)) {
            return self.too_big(cx, origin, way, packet, header);
        }
        if is_foreign {
            packet::decrement_ttl(packet, header);
        }
        self.emit(cx, way, packet);
    }

    /// Whether an address is the first or last one of a port's network, to which a router sends no
    /// packets (RFC 2644) and about which it sends no errors (RFC 1812 section 4.3.2.7).
    #[inline]
    fn is_directed_broadcast(&self, hop: &NextHop, address: IpAddr) -> bool {
        let (Exit::Connected(port), IpAddr::V4(address)) = (hop.exit, address) else {
            return false;
        };
        // Few other addresses have such bits.
        let bits = address.to_bits() & self.host_mask;
        (bits == 0 || bits == self.host_mask) && self.is_first_or_last(hop.node, port, address)
    }

    fn is_first_or_last(&self, node: NodeId, port: PortId, address: Ipv4Addr) -> bool {
        let ports = self.settings.ports.get(usize::from(node));
        let port = ports.and_then(|ports| ports.get(usize::from(port)));
        networks(port.into_iter()).any(|net| address == net.network() || address == net.broadcast())
    }

    /// A packet for an address of a node.
    fn deliver(&mut self, cx: &mut Context<'_>, origin: Origin, way: Way, packet: &mut [u8]) {
        match origin {
            // The system has received it, too.
            Origin::Port(_) if way.hop.node == self.settings.node => self.counters.to_system += 1,
            _ => self.emit(cx, way, packet),
        }
    }

    /// A packet that is larger than its last link takes.
    fn too_big(
        &mut self,
        cx: &mut Context<'_>,
        origin: Origin,
        way: Way,
        packet: &mut [u8],
        header: &Header,
    ) {
        let mtu = self.mtu(&way.hop);
        if header.dont_fragment || header.version == Version::V6 {
            self.counters.drop(PacketDrop::TooBig);
            return self.report(cx, origin, Problem::TooBig { mtu }, packet, header);
        }
        if origin != Origin::Own {
            packet::decrement_ttl(packet, header);
        }
        if !self.cut(packet, header, mtu.into(), |node, part| node.emit(cx, way, part)) {
            self.counters.drop(PacketDrop::TooBig);
        }
    }

    /// Sends a packet in fragments. False if it cannot be cut.
    fn cut(
        &mut self,
        packet: &[u8],
        header: &Header,
        mtu: usize,
        mut send: impl FnMut(&mut Self, &[u8]),
    ) -> bool {
        let cut = fragment::fragment(packet, header, mtu, |part| {
            self.counters.fragments += 1;
            send(self, part);
        });
        self.counters.fragmented += u64::from(cut);
        cut
    }

    /// The largest packet that leaves by a next hop.
    #[inline]
    fn mtu(&self, hop: &NextHop) -> u16 {
        let ports = self.settings.ports.get(usize::from(hop.node));
        let port = ports.zip(hop.port()).and_then(|(ports, port)| ports.get(usize::from(port)));
        port.map_or(u16::MAX, |port| port.mtu)
    }

    /// Sends a packet of this node on its way: to a neighbour, or to another node.
    fn emit(&mut self, cx: &mut Context<'_>, way: Way, packet: &[u8]) {
        let Way { hop, flow } = way;
        if hop.node == self.settings.node {
            self.refused_in_a_row = 0;
            return self.leave(cx, hop.exit, packet);
        }
        let head = Head { hop, passed: 1 };
        let mut sent = Err(PacketDrop::LinkDown);
        if let Some(to) = self.first_node(cx, hop.node, flow, packet.len()) {
            sent = self.send_to(cx, to, &head, packet);
            if sent == Err(PacketDrop::LinkDown) {
                // Its session has just ended: another way, as long as there is one.
                self.link_failed(cx, to);
                let other = self.first_node(cx, hop.node, flow, packet.len());
                sent = other.map_or(sent, |to| self.send_to(cx, to, &head, packet));
            }
        }
        match sent {
            Err(reason) => {
                self.refused_in_a_row += usize::from(reason == PacketDrop::LinkFull);
                self.counters.drop(reason);
            }
            Ok(()) => self.refused_in_a_row = 0,
        }
    }

    /// The node to which this one sends a packet for another.
    fn first_node(
        &mut self,
        cx: &Context<'_>,
        last: NodeId,
        flow: u32,
        bytes: usize,
    ) -> Option<NodeId> {
        if self.settings.spread == Spread::Direct {
            return self.next_node(last, flow, 0);
        }
        let usable = self.ways(last);
        let way = self.valiant.way(last, flow, bytes, cx.now_ns(), usable)?;
        if way == self.settings.node { self.next_node(last, flow, 0) } else { Some(way) }
    }

    /// The node to which this one passes a packet on: its last one, or one that is connected with
    /// that, when the link is down: none of those in the set `except`.
    fn next_node(&self, last: NodeId, flow: u32, except: u64) -> Option<NodeId> {
        if self.usable >> last & 1 == 1 {
            return Some(last);
        }
        let relays = self.relays(last) & !except;
        let count = relays.count_ones();
        if count == 0 {
            return None;
        }
        let mut rest = relays;
        for _ in 0..flow % count {
            rest &= rest - 1;
        }
        Some(rest.trailing_zeros() as NodeId)
    }

    /// A packet of another node.
    pub(super) fn pass_on(
        &mut self,
        cx: &mut Context<'_>,
        from: NodeId,
        head: &Head,
        packet: &[u8],
    ) {
        if head.hop.node == self.settings.node {
            return match head.hop.exit {
                Exit::Local => self.answer_echo(cx, packet),
                exit => self.leave(cx, exit, packet),
            };
        }
        if usize::from(head.hop.node) >= self.links.len() || head.passed >= MOST_PASSED {
            return self.counters.drop(PacketDrop::BadMessage);
        }
        // All packets take the same of several nodes, so that none overtakes another. The node that
        // sent this one is none of them: its link to the last node is down, and what it said of that
        // in its last heartbeat is old.
        let flow = u32::from(head.passed);
        let sent = match self.next_node(head.hop.node, flow, 1 << from) {
            None => Err(PacketDrop::LinkDown),
            Some(to) => {
                let head = Head { passed: head.passed + 1, ..*head };
                self.send_to(cx, to, &head, packet)
            }
        };
        match sent {
            Ok(()) => self.counters.passed_on += 1,
            Err(reason) => self.counters.drop(reason),
        }
    }

    /// Sends a packet to a neighbour.
    fn leave(&mut self, cx: &mut Context<'_>, exit: Exit, packet: &[u8]) {
        let (port, neighbour) = match exit {
            Exit::Gateway(port, gateway) => (port, Some(gateway)),
            Exit::Connected(port) => (port, destination(packet)),
            Exit::Local => return self.counters.to_system += 1,
        };
        let sent = match neighbour {
            Some(neighbour) => self.outlet.send(port, neighbour, packet),
            None => Err(PacketDrop::BadMessage),
        };
        match sent {
            // It is counted when it has left.
            Ok(()) if self.outlet.is_queue() => {}
            Ok(()) => {
                self.counters.sent += 1;
                self.counters.sent_bytes += packet.len() as u64;
            }
            Err(PacketDrop::TooBig) => self.too_big_here(cx, exit, port, packet),
            Err(reason) => self.not_sent(cx, reason, packet),
        }
    }

    /// A packet for which the MTU of a port has become too small since this node started.
    fn too_big_here(&mut self, cx: &mut Context<'_>, exit: Exit, port: PortId, packet: &[u8]) {
        let mtu = self.outlet.mtu(port);
        let header = packet::parse(packet).ok().filter(|_| packet.len() > mtu);
        let leave = |node: &mut Self, part: &[u8]| node.leave(cx, exit, part);
        if header.is_some_and(|header| self.cut(packet, &header, mtu, leave)) {
            return;
        }
        self.counters.drop(PacketDrop::TooBig);
        if let Some(header) = header {
            let problem = Problem::TooBig { mtu: u16::try_from(mtu).unwrap_or(u16::MAX) };
            self.report(cx, Origin::Own, problem, packet, &header);
        }
    }

    /// Reports packets that waited for a neighbour which does not answer. Called once per pass.
    pub fn report_unanswered(&mut self, cx: &mut Context<'_>) {
        for _ in 0..BURST {
            let Some(packet) = self.outlet.take_unanswered() else { return };
            self.not_sent(cx, PacketDrop::NeighbourFailed, &packet);
        }
    }

    /// A packet that its last link does not take.
    fn not_sent(&mut self, cx: &mut Context<'_>, reason: PacketDrop, packet: &[u8]) {
        self.counters.drop(reason);
        if let (PacketDrop::NeighbourFailed, Ok(header)) = (reason, packet::parse(packet)) {
            self.report(cx, Origin::Own, Problem::HostUnreachable, packet, &header);
        }
    }

    /// Answers an echo request to an address of this node that came to another one, whose system
    /// does not have the address. Other packets to it are dropped: they have to arrive at this node.
    fn answer_echo(&mut self, cx: &mut Context<'_>, packet: &[u8]) {
        let mut reply = std::mem::take(&mut self.scratch);
        let header = packet::parse(packet);
        let answered = header.is_ok_and(|h| icmp::echo_reply(packet, &h, &mut reply));
        if !answered {
            self.counters.drop(PacketDrop::NotForwarded);
        } else if self.echo_limiter.allow(cx.now_ns()) {
            self.counters.echoes += 1;
            self.send_own(cx, &mut reply);
        } else {
            self.counters.icmp_limited += 1;
            self.counters.drop(PacketDrop::NotForwarded);
        }
        self.scratch = reply;
    }

    /// Reports an error to the source of a packet.
    fn report(
        &mut self,
        cx: &mut Context<'_>,
        origin: Origin,
        problem: Problem,
        packet: &[u8],
        header: &Header,
    ) {
        let Some(source) = self.icmp_source(origin, header) else { return };
        let mut message = std::mem::take(&mut self.scratch);
        if icmp::error(problem, packet, header, source, &mut message) {
            if self.limiter.allow(cx.now_ns()) {
                self.counters.icmp_sent += 1;
                self.send_own(cx, &mut message);
            } else {
                self.counters.icmp_limited += 1;
            }
        }
        self.scratch = message;
    }

    /// Sends a packet that this node has made.
    fn send_own(&mut self, cx: &mut Context<'_>, packet: &mut [u8]) {
        let header = packet::parse(packet);
        debug_assert!(header.is_ok(), "made by this node");
        if let Ok(header) = header {
            self.forward(cx, Origin::Own, packet, &header);
        }
    }
}
