//! Ports of the operating system, as a node uses them.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use courser_link::addresses::Addresses;
use courser_link::neighbours::{Found, Neighbours, Unreachable};
use courser_link::netlink::{Event, Link, Netlink};
use courser_link::socket::{PortCounters, Received, Ring};
use rustix::event::{PollFd, PollFlags, poll};

use super::port::{Follow, Port};
use super::{BURST, Ended, Intake, LineError, Outlet};
use crate::counters::PacketDrop;
use crate::packet;
use crate::route::{MAX_PORTS, PortId};

/// The kernel's changes are read that often while nothing waits for one, since reading is a system
/// call.
const READ_EVERY: Duration = Duration::from_millis(1);
/// Packets that the system had no room for are handed over again after that time.
const RETRY_AFTER: Duration = Duration::from_millis(1);

/// Opens interfaces for the ports of a node, in the order of its ports. They belong to the network
/// namespace of the calling thread, in which [`flush`](Outlet::flush) is to be called, too: it opens
/// interfaces that are made again.
///
/// # Errors
/// [`LineError`], which states what to do.
pub fn open(names: &[&str]) -> Result<(SystemIntake, SystemPorts), LineError> {
    if names.len() > MAX_PORTS {
        return Err(LineError::TooMany(names.len()));
    }
    let mut netlink = Netlink::open()?;
    let mut links = Vec::new();
    netlink.read_all(&mut |event| match event {
        Event::Begin => links.clear(),
        Event::Link(link) => links.push(link),
        _ => {}
    })?;
    let mut rings = Vec::new();
    let mut ports: Vec<Port> = Vec::new();
    for name in names {
        let link = find(&links, name)?;
        if ports.iter().any(|port| port.interface() == Some(link.index)) {
            return Err(LineError::Twice { name: (*name).to_owned() });
        }
        let refused = |what| move |error| refused(what, name, error);
        rings.push(Ring::open(link).map_err(refused("the receive ring"))?);
        ports.push(Port::open(link).map_err(refused("the send socket"))?);
    }
    let now = Instant::now();
    let (neighbours, addresses) = (Neighbours::default(), Addresses::default());
    let (follow, fresh) = Follow::new();
    let mut ports = SystemPorts { ports, neighbours, addresses, follow, netlink, now, read: now };
    // Once more, now that the ports are known.
    ports.read_all()?;
    let warned = vec![false; names.len()];
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    Ok((SystemIntake { rings, fresh, names, warned, first: 0 }, ports))
}

fn find<'a>(links: &'a [Link], name: &str) -> Result<&'a Link, LineError> {
    let link = links.iter().find(|link| link.name == name).ok_or_else(|| {
        let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
        LineError::NoInterface { name: name.to_owned(), present: names.join(", ") }
    })?;
    let name = name.to_owned();
    match link {
        Link { is_ethernet: false, .. } => Err(LineError::NotEthernet { name }),
        Link { is_enabled: false, .. } => Err(LineError::Down { name }),
        _ => Ok(link),
    }
}

fn refused(what: &'static str, name: &str, error: io::Error) -> LineError {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return LineError::NotAllowed;
    }
    LineError::System { what, name: name.to_owned(), error }
}

/// The receiving half of a node's ports.
#[derive(Debug)]
pub struct SystemIntake {
    rings: Vec<Ring>,
    /// Rings of interfaces that were made again.
    fresh: mpsc::Receiver<(PortId, Ring)>,
    names: Vec<String>,
    warned: Vec<bool>,
    /// The port that is next, so that each one has its turn.
    first: usize,
}

impl SystemIntake {
    /// Waits until packets arrive, if `packets`, one of the other descriptors is readable, or the time
    /// is over.
    ///
    /// # Errors
    /// The system refused.
    pub fn wait(
        &mut self,
        packets: bool,
        others: &[BorrowedFd<'_>],
        limit: Option<Duration>,
    ) -> io::Result<()> {
        self.take_fresh();
        let events = if packets { PollFlags::IN } else { PollFlags::empty() };
        let own = self.rings.iter().map(|ring| PollFd::from_borrowed_fd(ring.as_fd(), events));
        let others = others.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = own.chain(others).collect();
        let limit = limit.map(TryInto::try_into).transpose().map_err(io::Error::other)?;
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for (ring, fd) in self.rings.iter().zip(&fds) {
            // An interface went down. Its socket goes on when it is up again.
            if fd.revents().contains(PollFlags::ERR) {
                ring.clear_error();
            }
        }
        Ok(())
    }

    /// The descriptors that are readable when packets have arrived. A program that waits by its
    /// own means calls [`clear_errors`](Self::clear_errors) afterwards.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(AsFd::as_fd)
    }

    /// Clears errors of interfaces that went down, which would end each wait at once.
    pub fn clear_errors(&self) {
        self.rings.iter().for_each(Ring::clear_error);
    }

    /// Counters of a port.
    pub fn counters(&mut self, port: PortId) -> PortCounters {
        let Some(ring) = self.rings.get_mut(usize::from(port)) else {
            return PortCounters::default();
        };
        ring.update();
        ring.counters
    }

    /// Takes over the rings of interfaces that were made again. Counters go on.
    fn take_fresh(&mut self) {
        while let Ok((port, mut ring)) = self.fresh.try_recv() {
            let Some(old) = self.rings.get_mut(usize::from(port)) else { continue };
            old.update();
            ring.counters = old.counters;
            *old = ring;
        }
    }

    /// A warning for the operator, once per port: packets arrive that are longer than the MTU.
    pub fn take_warning(&mut self) -> Option<String> {
        let mut ports = self.rings.iter().zip(&mut self.warned).zip(&self.names);
        let ((_, warned), name) =
            ports.find(|((ring, warned), _)| ring.counters.too_long > 0 && !**warned)?;
        *warned = true;
        Some(format!(
            "packets longer than the MTU of {name} are dropped, because they were aggregated; run \
             `ethtool -K {name} gro off lro off`, and if {name} is a virtual interface, at its peer \
             `ethtool -K PEER tso off gso off tx off`"
        ))
    }
}

impl Intake for SystemIntake {
    fn burst_ahead(
        &mut self,
        ahead: &mut dyn FnMut(&[u8]),
        each: &mut dyn FnMut(PortId, &mut [u8]),
    ) -> usize {
        self.take_fresh();
        let mut passed = 0;
        let ports = self.rings.len();
        for i in 0..ports {
            let port = (self.first + i) % ports;
            passed += self.rings[port].burst(BURST - passed, ahead, &mut |received| {
                each(port as PortId, completed(received));
            });
            if passed == BURST {
                self.first = (port + 1) % ports;
                break;
            }
        }
        passed
    }
}

/// A received packet, with its checksum: senders on the same machine leave it to hardware that a
/// virtual link does not have.
fn completed(received: Received<'_>) -> &mut [u8] {
    let Received { packet, lacks_checksum } = received;
    // The node counts a packet that does not parse.
    if lacks_checksum && let Ok(header) = packet::parse(packet) {
        packet::complete_checksum(packet, &header);
    }
    packet
}

/// The sending half of a node's ports, with their neighbours.
#[derive(Debug)]
pub struct SystemPorts {
    ports: Vec<Port>,
    neighbours: Neighbours,
    addresses: Addresses,
    follow: Follow,
    netlink: Netlink,
    /// The time of the pass.
    now: Instant,
    /// When the kernel's changes were read.
    read: Instant,
}

impl SystemPorts {
    /// Packets that waited for the link-layer address of a neighbour in vain.
    pub fn unresolved(&self) -> u64 {
        self.neighbours.unresolved
    }

    /// Packets that the system refused, on all ports.
    pub fn refused(&self) -> u64 {
        self.ports.iter().map(|port| port.sender.refused).sum()
    }

    /// The time after which [`flush`](Outlet::flush) has something to do although no descriptor is
    /// readable.
    pub fn timeout(&self) -> Option<Duration> {
        if !self.neighbours.unanswered.is_empty() {
            return Some(Duration::ZERO);
        }
        if self.ports.iter().any(|port| port.sender.is_waiting()) {
            return Some(RETRY_AFTER);
        }
        self.neighbours.is_resolving().then_some(Duration::from_millis(100))
    }

    /// Whether the interface of a port has an address.
    pub fn has_address(&self, port: PortId, address: IpAddr) -> bool {
        let port = self.ports.get(usize::from(port));
        let interface = port.and_then(Port::interface);
        interface.is_some_and(|interface| self.addresses.has(interface, address))
    }

    /// All addresses of the kernel, if there was a change since the last call.
    pub fn take_addresses(&mut self) -> Option<BTreeSet<IpAddr>> {
        self.addresses.take_changed()
    }

    /// Warnings for the operator, since the last call: interfaces that are gone, or there again.
    pub fn take_warnings(&mut self) -> Vec<String> {
        self.follow.take_warnings()
    }

    fn read_all(&mut self) -> io::Result<()> {
        let Self { ports, neighbours, addresses, follow, netlink, now, .. } = self;
        netlink.read_all(&mut |event| take(ports, neighbours, addresses, follow, event, *now))
    }

    /// Takes over a change, as if the kernel had reported it.
    #[cfg(test)]
    pub(super) fn take(&mut self, event: Event) {
        let Self { ports, neighbours, addresses, follow, now, .. } = self;
        take(ports, neighbours, addresses, follow, event, *now);
    }

    fn read_changes(&mut self) {
        let Self { ports, neighbours, addresses, follow, netlink, now, .. } = self;
        for (id, port) in (0..).zip(ports.iter_mut()) {
            port.retry(id, follow, *now);
        }
        if std::mem::take(&mut follow.is_outdated) {
            netlink.read_again();
        }
        // After an error the table stays as it is, and the next call tries again.
        let _ = netlink.poll(&mut |event| take(ports, neighbours, addresses, follow, event, *now));
        self.read = self.now;
    }
}

/// Takes over a change of the kernel's tables.
fn take(
    ports: &mut [Port],
    neighbours: &mut Neighbours,
    addresses: &mut Addresses,
    follow: &mut Follow,
    event: Event,
    now: Instant,
) {
    match event {
        Event::Begin => {
            neighbours.begin();
            addresses.begin();
            ports.iter_mut().for_each(|port| port.is_seen = false);
        }
        Event::End => {
            neighbours.end();
            addresses.end();
            for (id, port) in (0..).zip(ports).filter(|(_, port)| !port.is_seen) {
                port.leave(id, neighbours, follow);
            }
        }
        Event::Link(link) => {
            for (id, port) in (0..).zip(ports) {
                port.take_link(id, &link, neighbours, follow, now);
            }
        }
        Event::LinkGone(interface) => {
            for (id, port) in (0..).zip(ports) {
                port.take_end(id, interface, neighbours, follow);
            }
        }
        Event::Neighbour { interface, address, change } => {
            let id = ports.iter().position(|port| port.interface() == Some(interface));
            if let Some(id) = id {
                let port = &mut ports[id];
                neighbours.update(id as PortId, address, change, now, &mut |mac, packet| {
                    if let Err(reason) = port.push(mac, packet) {
                        port.ended.drop(reason, 1);
                    }
                });
            }
        }
        Event::Address { interface, address } => addresses.add(interface, address),
        Event::AddressGone { interface, address } => addresses.remove(interface, address),
    }
}

impl Outlet for SystemPorts {
    fn send(&mut self, port: PortId, neighbour: IpAddr, packet: &[u8]) -> Result<(), PacketDrop> {
        let Some(to) = self.ports.get_mut(usize::from(port)).filter(|port| port.is_up) else {
            return Err(PacketDrop::PortDown);
        };
        if packet.len() > to.sender.mtu() {
            return Err(PacketDrop::TooBig);
        }
        let found = self.neighbours.find(port, neighbour, packet, self.now);
        let found = found.map_err(|reason| match reason {
            Unreachable::NoRoom => PacketDrop::Neighbour,
            Unreachable::Failed => PacketDrop::NeighbourFailed,
        })?;
        if let (Found::Resolve | Found::Confirm(_), Some(interface)) = (found, to.interface()) {
            // Without the request, a packet that waits is dropped after a while.
            let _ = self.netlink.resolve(interface, neighbour);
        }
        match found {
            Found::Send(mac) | Found::Confirm(mac) => to.push(mac, packet),
            Found::Resolve | Found::Waits => Ok(()),
        }
    }

    fn flush(&mut self) {
        self.now = Instant::now();
        let is_due = self.now.saturating_duration_since(self.read) >= READ_EVERY;
        if is_due || self.neighbours.is_resolving() {
            self.read_changes();
            self.neighbours.expire(self.now);
        }
        self.ports.iter_mut().for_each(|port| port.sender.flush());
    }

    fn is_up(&self, port: PortId) -> bool {
        self.ports.get(usize::from(port)).is_some_and(|port| port.is_up)
    }

    fn is_queue(&self) -> bool {
        true
    }

    fn take_ended(&mut self) -> Ended {
        let mut all = Ended::default();
        self.ports.iter_mut().for_each(|port| all.add(port.take_ended()));
        all
    }

    fn take_unanswered(&mut self) -> Option<Box<[u8]>> {
        self.neighbours.unanswered.pop_front()
    }

    fn mtu(&self, port: PortId) -> usize {
        self.ports.get(usize::from(port)).map_or(usize::MAX, |port| port.sender.mtu())
    }
}

impl AsFd for SystemPorts {
    /// Readable when the kernel reports a change of a link or a neighbour.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netlink.as_fd()
    }
}
