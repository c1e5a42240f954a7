//! Reads the kernel's interfaces, neighbours and addresses by netlink, and asks it to resolve
//! neighbours.
//!
//! The kernel does the work of ARP and neighbour discovery (RFC 826, RFC 4861), and its table
//! is the only one. This socket receives each change. When it missed some (`ENOBUFS`), it reads all
//! tables again.

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::event::{PollFd, PollFlags, poll};

use crate::socket::set_receive_buffer;

/// Multicast groups of the kernel.
const GROUPS: [u32; 4] =
    [libc::RTNLGRP_LINK, libc::RTNLGRP_NEIGH, libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV6_IFADDR];
/// Bytes of changes that the kernel keeps for the socket.
const IN_KERNEL: usize = 1 << 20;
/// Bytes of one reading. The kernel splits its tables so that each part fits.
const BUFFER: usize = 1 << 16;
/// Readings of one call, so that many changes do not keep the thread.
const READINGS: usize = 32;
/// A limit for the kernel's answer to a request, which it usually gives at once.
const ANSWER: Duration = Duration::from_secs(5);

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mac(
    /// Its bytes, as in a frame.
    pub [u8; 6],
);

/// An interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The kernel's number of it, from 1. A deleted interface's may be used again.
    pub index: u32,
    /// The name.
    pub name: String,
    /// The link-layer address, if it has one of six bytes.
    pub mac: Option<Mac>,
    /// Bytes of the largest packet without the link-layer header.
    pub mtu: usize,
    /// Frames are those of Ethernet.
    pub is_ethernet: bool,
    /// The administrator's setting.
    pub is_enabled: bool,
    /// Ready to send and receive.
    pub is_up: bool,
}

/// A report of the kernel about a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Its address is valid.
    Known(Mac),
    /// Its address was valid, and is to be confirmed when it is used.
    Stale(Mac),
    /// Being resolved.
    Incomplete,
    /// It does not answer.
    Failed,
    /// Removed from the table.
    Gone,
}

/// A change of the kernel's tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A new reading of the tables begins.
    Begin,
    /// The reading is complete: entries that did not occur since `Begin` do not exist.
    End,
    /// An interface exists and has this state.
    Link(Link),
    /// An interface is gone.
    LinkGone(
        /// The index of the interface.
        u32,
    ),
    /// A neighbour.
    Neighbour {
        /// The index of its interface.
        interface: u32,
        /// Its address.
        address: IpAddr,
        /// The report.
        change: Change,
    },
    /// An interface has an address.
    Address {
        /// The index of the interface.
        interface: u32,
        /// The address.
        address: IpAddr,
    },
    /// An interface has lost an address.
    AddressGone {
        /// The index of the interface.
        interface: u32,
        /// The address.
        address: IpAddr,
    },
}

/// The table being read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reading {
    None,
    Links,
    Neighbours,
    Addresses,
}

/// A netlink socket, which follows interfaces, neighbours and addresses.
///
/// It is readable ([`AsFd`]) when there are changes.
pub struct Netlink {
    socket: Socket,
    buffer: Vec<u8>,
    reading: Reading,
    /// Changes were missed, so all tables are to be read again.
    is_outdated: bool,
    /// Messages that could not be interpreted.
    pub unknown: u64,
}

impl Netlink {
    /// Opens a socket, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The system refused.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.set_non_blocking(true)?;
        let buffer = Vec::with_capacity(BUFFER);
        // Without the privilege the system's limit applies.
        set_receive_buffer(socket.as_fd(), IN_KERNEL)?;
        for group in GROUPS {
            socket.add_membership(group)?;
        }
        Ok(Self { socket, buffer, reading: Reading::None, is_outdated: false, unknown: 0 })
    }

    /// Reads all tables, and waits until it is done: milliseconds, or seconds with many neighbours.
    ///
    /// # Errors
    /// The system refused, or the kernel has not answered for 5 seconds.
    pub fn read_all(&mut self, each: &mut dyn FnMut(Event)) -> io::Result<()> {
        self.is_outdated = true;
        self.poll(each)?;
        while self.reading != Reading::None || self.is_outdated {
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            let limit = ANSWER.try_into().map_err(io::Error::other)?;
            if poll(&mut fds, Some(&limit))? == 0 {
                return Err(io::Error::from(io::ErrorKind::TimedOut));
            }
            self.poll(each)?;
        }
        Ok(())
    }

    /// Passes the changes since the last call, without waiting. Events of a reading that is
    /// under way are among them.
    ///
    /// # Errors
    /// The system refused. The next call tries again.
    pub fn poll(&mut self, each: &mut dyn FnMut(Event)) -> io::Result<()> {
        for _ in 0..READINGS {
            if self.is_outdated && self.reading == Reading::None {
                self.request(Reading::Links)?;
                self.is_outdated = false;
                each(Event::Begin);
            }
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.clear();
            let result = self.socket.recv_from(&mut buffer, libc::MSG_DONTWAIT);
            let result = result.map(|(_, from)| from.port_number() == 0);
            let outcome = match result {
                Ok(true) => self.messages(&buffer, each),
                // Not from the kernel.
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            };
            self.buffer = buffer;
            match outcome {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.is_outdated = true;
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(()),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// The next call of [`poll`](Self::poll) begins to read all tables.
    pub fn read_again(&mut self) {
        self.is_outdated = true;
    }

    /// Asks the kernel to resolve or to confirm a neighbour. The answer is an event.
    ///
    /// # Errors
    /// The system refused.
    pub fn resolve(&self, interface: u32, address: IpAddr) -> io::Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = match address {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        message.header.ifindex = interface;
        message.header.flags = NeighbourFlags::Use;
        message.attributes.push(NeighbourAttribute::Destination(address.into()));
        self.send(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE, 0)
    }

    fn request(&mut self, table: Reading) -> io::Result<()> {
        let message = match table {
            Reading::None => return Ok(()),
            Reading::Links => RouteNetlinkMessage::GetLink(LinkMessage::default()),
            Reading::Neighbours => RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()),
            Reading::Addresses => RouteNetlinkMessage::GetAddress(AddressMessage::default()),
        };
        let sent = self.send(message, NLM_F_DUMP, 1);
        // Without an answer to wait for, the next call begins again.
        self.is_outdated |= sent.is_err();
        self.reading = if sent.is_ok() { table } else { Reading::None };
        sent
    }

    /// `number` tells answers about tables (1) from answers about neighbours to resolve (0).
    fn send(&self, message: RouteNetlinkMessage, flags: u16, number: u32) -> io::Result<()> {
        let mut message = NetlinkMessage::from(message);
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = number;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        let kernel = SocketAddr::new(0, 0);
        self.socket.send_to(&bytes, &kernel, libc::MSG_DONTWAIT).map(drop)
    }

    /// Interprets the messages of one reading.
    fn messages(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(Event)) -> io::Result<()> {
        while let Some(len) = bytes.first_chunk::<4>().map(|len| u32::from_ne_bytes(*len) as usize)
        {
            if len < 16 || len > bytes.len() {
                self.unknown += 1;
                break;
            }
            match NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes[..len]) {
                Ok(message) => self.message(message, each)?,
                Err(_) => self.unknown += 1,
            }
            bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(())
    }

    fn message(
        &mut self,
        message: NetlinkMessage<RouteNetlinkMessage>,
        each: &mut dyn FnMut(Event),
    ) -> io::Result<()> {
        // The table changed while it was read.
        self.is_outdated |= message.header.flags & NLM_F_DUMP_INTR != 0;
        match message.payload {
            NetlinkPayload::Done(_) => match self.reading {
                Reading::Links => self.request(Reading::Neighbours)?,
                Reading::Neighbours => self.request(Reading::Addresses)?,
                Reading::Addresses => {
                    self.reading = Reading::None;
                    if !self.is_outdated {
                        each(Event::End);
                    }
                }
                Reading::None => {}
            },
            // A request for a table was refused, because the kernel has no memory.
            NetlinkPayload::Error(_) if message.header.sequence_number != 0 => {
                self.reading = Reading::None;
                self.is_outdated = true;
            }
            NetlinkPayload::Overrun(_) => self.is_outdated = true,
            NetlinkPayload::InnerMessage(inner) => {
                if let Some(event) = event(inner) {
                    each(event);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Debug for Netlink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Netlink").field("reading", &self.reading).finish_non_exhaustive()
    }
}

fn event(message: RouteNetlinkMessage) -> Option<Event> {
    match message {
        RouteNetlinkMessage::NewLink(link) => Some(Event::Link(interface(link))),
        // A bridge reports a port that leaves it by such a message too, of its own family.
        RouteNetlinkMessage::DelLink(link) => {
            let is_interface = link.header.interface_family == AddressFamily::Unspec;
            is_interface.then_some(Event::LinkGone(link.header.index))
        }
        RouteNetlinkMessage::NewNeighbour(message) => neighbour(message, false),
        RouteNetlinkMessage::DelNeighbour(message) => neighbour(message, true),
        RouteNetlinkMessage::NewAddress(message) => {
            let interface = message.header.index;
            own_address(message).map(|address| Event::Address { interface, address })
        }
        RouteNetlinkMessage::DelAddress(message) => {
            let interface = message.header.index;
            own_address(message).map(|address| Event::AddressGone { interface, address })
        }
        _ => None,
    }
}

fn interface(message: LinkMessage) -> Link {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mac: None,
        mtu: 0,
        is_ethernet: message.header.link_layer_type == LinkLayerType::Ether,
        is_enabled: flags.contains(LinkFlags::Up),
        is_up: flags.contains(LinkFlags::Up | LinkFlags::Running),
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Mtu(mtu) => link.mtu = mtu as usize,
            LinkAttribute::Address(bytes) => link.mac = mac(&bytes),
            _ => {}
        }
    }
    link
}

fn neighbour(message: NeighbourMessage, is_gone: bool) -> Option<Event> {
    let (mut address, mut link_layer) = (None, None);
    for attribute in message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => {
                address = Some(ip.into())
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => {
                address = Some(ip.into());
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => link_layer = mac(&bytes),
            _ => {}
        }
    }
    let change = match (message.header.state, link_layer) {
        _ if is_gone => Change::Gone,
        (NeighbourState::Failed, _) => Change::Failed,
        (NeighbourState::Incomplete | NeighbourState::None, _) => Change::Incomplete,
        (NeighbourState::Stale, Some(mac)) => Change::Stale(mac),
        (_, Some(mac)) => Change::Known(mac),
        (_, None) => return None,
    };
    Some(Event::Neighbour { interface: message.header.ifindex, address: address?, change })
}

/// The interface's own address. On a point-to-point link the other attribute is its peer's.
fn own_address(message: AddressMessage) -> Option<IpAddr> {
    let mut own = None;
    for attribute in message.attributes {
        match attribute {
            AddressAttribute::Local(address) => own = Some(address),
            AddressAttribute::Address(address) => own = own.or(Some(address)),
            _ => {}
        }
    }
    own
}

fn mac(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok().map(Mac)
}
