//! Routes of a table of the kernel by netlink: reading the table, and its changes.
//!
//! [`Kernel`] is the kernel as a follower of a table uses it: a [`NetlinkSocket`], or a double in tests.
//! [`message::parse`] interprets what it receives.

pub mod message;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage};
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::route::{RouteAttribute, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::socket::set_receive_buffer;

/// Multicast groups of the kernel.
const GROUPS: [u32; 6] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
    libc::RTNLGRP_NEXTHOP,
];
/// Bytes of changes that the kernel keeps for the socket: some thousands of routes.
const IN_KERNEL: usize = 8 << 20;
/// Bytes of one reading. The kernel splits its tables so that each part fits.
const BUFFER: usize = 1 << 16;

/// A part of a reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The interfaces, to which next hops refer.
    Interfaces,
    /// The routes of IPv4.
    V4,
    /// The routes of IPv6.
    V6,
}

impl Part {
    /// The part that is read after this one.
    pub fn next(self) -> Option<Part> {
        match self {
            Part::Interfaces => Some(Part::V4),
            Part::V4 => Some(Part::V6),
            Part::V6 => None,
        }
    }
}

/// The kernel, as a follower of a table uses it.
pub trait Kernel {
    /// Asks for a part of the tables. `number` is in all messages with it.
    ///
    /// # Errors
    /// The system refused.
    fn request(&mut self, part: Part, table: u32, number: u32) -> io::Result<()>;

    /// Replaces the contents of `buffer` by the next messages, without waiting.
    ///
    /// # Errors
    /// `WouldBlock`: there is none. `ENOBUFS`: changes were lost.
    fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<()>;

    /// Readable when messages have arrived.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// A netlink socket, in the network namespace of the thread that has opened it.
#[derive(Debug)]
pub struct NetlinkSocket(Socket);

impl NetlinkSocket {
    /// Opens a socket that receives changes of interfaces, addresses, routes and next hops.
    ///
    /// # Errors
    /// The system refused.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.set_non_blocking(true)?;
        set_receive_buffer(socket.as_fd(), IN_KERNEL)?;
        // Linux before 4.20 sends all tables, of which the parser takes one.
        let _ = socket.set_netlink_get_strict_chk(true);
        for group in GROUPS {
            // Linux before 5.3 has no next hop objects.
            if let Err(error) = socket.add_membership(group)
                && group != libc::RTNLGRP_NEXTHOP
            {
                return Err(error);
            }
        }
        Ok(Self(socket))
    }
}

impl Kernel for NetlinkSocket {
    fn request(&mut self, part: Part, table: u32, number: u32) -> io::Result<()> {
        let mut message = NetlinkMessage::from(match part {
            Part::Interfaces => RouteNetlinkMessage::GetLink(LinkMessage::default()),
            Part::V4 => routes(AddressFamily::Inet, table),
            Part::V6 => routes(AddressFamily::Inet6, table),
        });
        message.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        message.header.sequence_number = number;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send_to(&bytes, &SocketAddr::new(0, 0), libc::MSG_DONTWAIT).map(drop)
    }

    fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        loop {
            buffer.clear();
            buffer.reserve(BUFFER);
            let (_, from) = self.0.recv_from(buffer, libc::MSG_DONTWAIT)?;
            if from.port_number() == 0 {
                return Ok(());
            }
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

fn routes(family: AddressFamily, table: u32) -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family;
    message.attributes.push(RouteAttribute::Table(table));
    RouteNetlinkMessage::GetRoute(message)
}
