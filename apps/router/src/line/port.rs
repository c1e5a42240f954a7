//! The sending half of a port, which follows its interface by name.
//!
//! An interface may be deleted and made again, as bonds, VLANs and those of containers are, or another
//! one may get its name. Sockets stay with the old one, so the port opens new ones. Until then it is
//! down. Sockets have memory for packets of the MTU at which they were opened: with a larger one, as
//! an interface has it that is made first and configured afterwards, the port opens new ones, too.

use std::io;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use courser_link::neighbours::Neighbours;
use courser_link::netlink::{Link, Mac};
use courser_link::socket::{Refusal, Ring, Sender};

use super::Ended;
use crate::counters::PacketDrop;
use crate::route::PortId;

/// An interface that could not be opened is opened again after that time.
const OPEN_AFTER: Duration = Duration::from_secs(1);
/// Warnings that wait, at most: more changes than that are not reported.
const WARNINGS: usize = 64;

/// A port's sending half.
#[derive(Debug)]
pub(super) struct Port {
    name: String,
    /// `None` while no interface has the name.
    interface: Option<u32>,
    pub(super) sender: Sender,
    /// Outcomes of packets besides those of the sender, since they were last taken.
    pub(super) ended: Ended,
    pub(super) is_up: bool,
    /// It occurred in the current reading of the kernel's table.
    pub(super) is_seen: bool,
    /// The interface that is to be opened, and when.
    waiting: Option<(Link, Instant)>,
}

/// The consequences of changes of interfaces.
#[derive(Debug)]
pub(super) struct Follow {
    /// To the receiving half: new rings of ports.
    rings: mpsc::Sender<(PortId, Ring)>,
    warnings: Vec<String>,
    /// The kernel may have neighbours and addresses of a new interface that it reports no more.
    pub(super) is_outdated: bool,
}

impl Follow {
    /// With the other end of the rings.
    pub(super) fn new() -> (Follow, mpsc::Receiver<(PortId, Ring)>) {
        let (rings, fresh) = mpsc::channel();
        (Follow { rings, warnings: Vec::new(), is_outdated: false }, fresh)
    }

    /// Warnings for the operator, since the last call.
    pub(super) fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    fn warn(&mut self, text: String) {
        if self.warnings.len() < WARNINGS {
            self.warnings.push(text);
        }
    }
}

impl Port {
    /// A port at an interface.
    pub(super) fn open(link: &Link) -> io::Result<Port> {
        Ok(Port {
            name: link.name.clone(),
            interface: Some(link.index),
            sender: Sender::open(link)?,
            ended: Ended::default(),
            is_up: link.is_up,
            is_seen: true,
            waiting: None,
        })
    }

    /// The interface, while there is one.
    pub(super) fn interface(&self) -> Option<u32> {
        self.interface
    }

    /// Takes the outcomes of packets since the last call.
    pub(super) fn take_ended(&mut self) -> Ended {
        let mut ended = std::mem::take(&mut self.ended);
        let sender = std::mem::take(&mut self.sender.ended);
        ended.sent = sender.sent;
        ended.drop(PacketDrop::Refused, sender.refused);
        ended.drop(PacketDrop::PortDown, sender.cleared);
        ended
    }

    /// Queues a packet for a link-layer address.
    pub(super) fn push(&mut self, to: Mac, packet: &[u8]) -> Result<(), PacketDrop> {
        self.sender.push(to, packet).map_err(|refusal| match refusal {
            Refusal::Version => PacketDrop::Version,
            Refusal::TooBig => PacketDrop::TooBig,
            Refusal::Full => PacketDrop::LineFull,
        })
    }

    /// Takes over the state of an interface, of any name.
    pub(super) fn take_link(
        &mut self,
        id: PortId,
        link: &Link,
        neighbours: &mut Neighbours,
        follow: &mut Follow,
        now: Instant,
    ) {
        let is_own = self.interface == Some(link.index);
        if link.name != self.name {
            if is_own {
                self.leave(id, neighbours, follow);
            }
            return;
        }
        self.is_seen = true;
        // A deleted interface may have had the same index, and the report of its end may be lost.
        if !is_own || !self.sender.is_bound(link.index) {
            self.leave(id, neighbours, follow);
            return self.enter(id, link, follow, now);
        }
        if link.mtu > self.sender.largest() {
            return self.enter(id, link, follow, now);
        }
        if let Some(mac) = link.mac {
            self.sender.set_mac(mac);
        }
        self.sender.set_mtu(link.mtu);
        self.set_up(link.is_up, id, neighbours);
    }

    /// An interface is gone.
    pub(super) fn take_end(
        &mut self,
        id: PortId,
        interface: u32,
        neighbours: &mut Neighbours,
        follow: &mut Follow,
    ) {
        self.waiting.take_if(|(link, _)| link.index == interface);
        if self.interface == Some(interface) {
            self.leave(id, neighbours, follow);
        }
    }

    /// Leaves the interface, if there is one.
    pub(super) fn leave(&mut self, id: PortId, neighbours: &mut Neighbours, follow: &mut Follow) {
        self.waiting = None;
        self.set_up(false, id, neighbours);
        if self.interface.take().is_some() {
            neighbours.forget(id);
            let name = &self.name;
            follow.warn(format!(
                "interface {name} is gone: packets for its port are dropped (port_down) until an \
                 interface has this name again"
            ));
        }
    }

    /// Opens an interface that could not be opened before, if it is time.
    pub(super) fn retry(&mut self, id: PortId, follow: &mut Follow, now: Instant) {
        if let Some((link, _)) = self.waiting.take_if(|(_, due)| *due <= now) {
            self.enter(id, &link, follow, now);
        }
    }

    /// Opens a new interface, or the same one for larger packets.
    fn enter(&mut self, id: PortId, link: &Link, follow: &mut Follow, now: Instant) {
        let (name, index, mtu) = (&link.name, link.index, link.mtu);
        let is_same = self.interface == Some(index);
        let news = if is_same { "has a larger MTU" } else { "is there again" };
        if !link.is_ethernet {
            follow.warn(format!("interface {name} {news}, and is not Ethernet: not used"));
            return;
        }
        let opened = Ring::open(link).and_then(|ring| Ok((ring, Sender::open(link)?)));
        let (ring, sender) = match opened {
            Ok(opened) => opened,
            // The kernel reports states of an interface also after its end.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return,
            Err(error) => {
                follow.warn(format!(
                    "interface {name} {news} and cannot be opened, which is tried again: {error}"
                ));
                self.waiting = Some((link.clone(), now + OPEN_AFTER));
                return;
            }
        };
        self.sender.flush();
        self.sender.clear();
        let old = std::mem::replace(&mut self.sender, sender);
        (self.sender.refused, self.sender.ended) = (old.refused, old.ended);
        (self.interface, self.is_up) = (Some(index), link.is_up);
        follow.is_outdated = true;
        // Without a receiving half there is nothing to receive.
        let _ = follow.rings.send((id, ring));
        follow.warn(format!(
            "interface {name} {news}, with index {index} and an MTU of {mtu}: its port uses it"
        ));
    }

    fn set_up(&mut self, is_up: bool, id: PortId, neighbours: &mut Neighbours) {
        if self.is_up && !is_up {
            self.ended.drop(PacketDrop::PortDown, neighbours.clear(id));
            self.sender.clear();
        }
        self.is_up = is_up;
    }
}
