//! Lines: where packets of a node's ports arrive, and by which they leave.
//!
//! A node uses two traits, [`Intake`] and [`Outlet`], and does no I/O of its own. They exist for
//!
//! * ports of the operating system ([`SystemIntake`], [`SystemPorts`]), by packet sockets with a ring
//!   in shared memory. AF_XDP would be one more implementation of the same two traits;
//! * in the laboratory captures (`CaptureIntake`, `CaptureOutlet`), files of tcpdump and Wireshark,
//!   and memory (`MemoryIntake`, `CountingOutlet`), for benchmarks.
//!
//! Packets have no link-layer header on this side of the traits. Every buffer and table has a limit.

#[cfg(feature = "lab")]
mod capture;
#[cfg(feature = "lab")]
mod memory;
mod port;
mod system;

#[cfg(feature = "lab")]
pub use capture::{CaptureError, CaptureIntake, CaptureOutlet};
pub use courser_link::socket::{PortCounters, Sent};
#[cfg(feature = "lab")]
pub use memory::{CountingOutlet, MemoryIntake};
pub use system::{SystemIntake, SystemPorts, open};

use std::io;
use std::net::IpAddr;

use crate::counters::PacketDrop;
use crate::route::{MAX_PORTS, PortId};

/// Packets that [`Intake::burst`] passes at most. It bounds the time until a node's other work.
pub const BURST: usize = 64;

/// Where packets of a node's ports arrive. One thread uses it.
pub trait Intake {
    /// Passes IP packets that have arrived, at most [`BURST`], and returns their number.
    ///
    /// A packet is writable in place, and has no link-layer header. It has the bytes that were
    /// received: padding of the link may follow the IP packet.
    fn burst(&mut self, each: &mut dyn FnMut(PortId, &mut [u8])) -> usize {
        self.burst_ahead(&mut |_| {}, each)
    }

    /// As [`Intake::burst`], and passes the beginning of packets to `ahead` some packets before, so
    /// that it can prefetch. It need not be called, and may get packets of the next burst.
    fn burst_ahead(
        &mut self,
        ahead: &mut dyn FnMut(&[u8]),
        each: &mut dyn FnMut(PortId, &mut [u8]),
    ) -> usize;
}

/// By which packets leave. One thread uses it.
pub trait Outlet {
    /// Queues an IP packet for a neighbour on the port's network.
    ///
    /// # Errors
    /// The reason why it is dropped: [`PacketDrop::LineFull`], [`PacketDrop::Neighbour`],
    /// [`PacketDrop::NeighbourFailed`], [`PacketDrop::PortDown`], [`PacketDrop::TooBig`] for a packet larger than the
    /// interface takes, [`PacketDrop::Version`] for one that is no IP packet.
    fn send(&mut self, port: PortId, neighbour: IpAddr, packet: &[u8]) -> Result<(), PacketDrop>;

    /// Hands queued packets to the system. Called once per pass.
    fn flush(&mut self);

    /// Whether a port exists and its link is up.
    fn is_up(&self, port: PortId) -> bool;

    /// Whether packets that [`send`](Self::send) has taken may wait, so that
    /// [`take_ended`](Self::take_ended) counts them.
    fn is_queue(&self) -> bool {
        false
    }

    /// Takes the outcomes of packets since the last call.
    fn take_ended(&mut self) -> Ended {
        Ended::default()
    }

    /// A packet that was taken, and whose neighbour does not answer: to be dropped as
    /// [`PacketDrop::NeighbourFailed`].
    fn take_unanswered(&mut self) -> Option<Box<[u8]>> {
        None
    }

    /// Bytes of the largest packet that a port takes now.
    fn mtu(&self, _port: PortId) -> usize {
        usize::MAX
    }
}

/// The outcomes of packets that a line had queued.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Ended {
    /// Those that left.
    pub sent: Sent,
    /// Reasons for which others were dropped, and their numbers.
    pub dropped: Vec<(PacketDrop, u64)>,
}

impl Ended {
    fn drop(&mut self, reason: PacketDrop, packets: u64) {
        match self.dropped.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, sum)) => *sum += packets,
            None if packets > 0 => self.dropped.push((reason, packets)),
            None => {}
        }
    }

    fn add(&mut self, other: Ended) {
        self.sent.packets += other.sent.packets;
        self.sent.bytes += other.sent.bytes;
        other.dropped.into_iter().for_each(|(reason, packets)| self.drop(reason, packets));
    }
}

/// Why a port of the operating system cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// No such interface.
    #[error("there is no interface {name}; use one of: {present}")]
    NoInterface {
        /// The name asked for.
        name: String,
        /// The interfaces that exist, separated by commas.
        present: String,
    },
    /// Not an Ethernet interface.
    #[error("interface {name} is not Ethernet; use an Ethernet interface for a port")]
    NotEthernet {
        /// The interface.
        name: String,
    },
    /// The interface is not up.
    #[error("interface {name} is down; run `ip link set {name} up`")]
    Down {
        /// The interface.
        name: String,
    },
    /// An interface was named twice.
    #[error("interface {name} is used by two ports; give each port an interface of its own")]
    Twice {
        /// The interface.
        name: String,
    },
    /// More ports than a node can have.
    #[error("{0} ports are too many; use at most {MAX_PORTS}")]
    TooMany(usize),
    /// The user may not open packet sockets.
    #[error(
        "packet sockets need the capabilities CAP_NET_RAW and CAP_NET_ADMIN; run the program as root, \
         or run `setcap cap_net_raw,cap_net_admin+ep` on it"
    )]
    NotAllowed,
    /// The system refused something else.
    #[error("{what} of interface {name}: {error}; check that the kernel has packet sockets")]
    System {
        /// The operation.
        what: &'static str,
        /// The interface.
        name: String,
        /// The system's error.
        error: io::Error,
    },
    /// The kernel's tables of interfaces and neighbours cannot be read.
    #[error("the kernel's interfaces and neighbours cannot be read: {0}; check that netlink works")]
    Netlink(#[from] io::Error),
}

#[cfg(test)]
mod tests;
