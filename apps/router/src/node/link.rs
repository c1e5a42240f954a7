//! Links between nodes: packets as one-way messages over a session, with a header:
//!
//! ```text
//! number, 4 bytes | kind, 1 | last node, 1 | port, 1 | nodes passed, 1 | gateway: 0, 4 or 16 | packet
//! ```
//!
//! The number counts the messages of a session, from 0 (`order`). Numbers are little-endian. The first
//! message of a session is a heartbeat (`members`), which names its sender.

use std::net::IpAddr;
use std::time::Duration;

use courser::{Context, RejectReason, Rpc, SessionId, Transport};

use super::order::{Order, Place};
use super::{Node, Probe, Shared};
use crate::counters::PacketDrop;
use crate::line::{BURST, Outlet};
use crate::route::{Exit, NextHop, NodeId};

/// Type of the messages.
pub(super) const MESSAGE: u16 = 1;

/// Bytes of the shortest header.
pub const HEADER_MIN: usize = 8;
/// Bytes of the longest header: with an IPv6 gateway.
pub const HEADER_MAX: usize = HEADER_MIN + 16;

/// Nodes that a packet may pass, its first one not counted: one between, and the last. A link that
/// fails on the way may cost one more.
pub(super) const MOST_PASSED: u8 = 3;

/// Runs of the timer after which a message counts as never sent: the time in which a node counts as
/// dead. Courser delivers a lost message far earlier, or ends its session.
const GIVEN_UP: u32 = 8;

pub(super) const HEARTBEAT: u8 = 0;
const CONNECTED: u8 = 1;
const GATEWAY4: u8 = 2;
const GATEWAY6: u8 = 3;
const LOCAL: u8 = 4;

/// Packets wait at most this long for room on links ([`Node::takes_packets`]). Then those for full
/// links are dropped, so that others can pass.
pub const PAUSE: Duration = Duration::from_micros(200);

/// To another node.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) session: Option<SessionId>,
    /// The session is connected and its first heartbeat sent.
    pub(super) up: bool,
    /// It has refused a packet, and has not reported room since: packets for it are dropped before
    /// work is spent on them.
    pub(super) full: bool,
    /// Number of its next message.
    pub(super) next: u32,
    /// When to connect again, ns.
    pub(super) retry_ns: u64,
    /// The last heartbeat from there.
    pub(super) heard: Option<super::members::Heard>,
    /// Since when it is received by others only, ns.
    pub(super) relayed_ns: Option<u64>,
}

/// From another node.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) session: SessionId,
    /// Known from its first heartbeat.
    pub(super) node: Option<NodeId>,
    /// The start of that node.
    pub(super) life: u64,
    order: Order,
    /// Runs of the timer in which messages waited for the same one.
    stuck: u32,
}

/// The head of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) hop: NextHop,
    /// Nodes that the packet has passed when it arrives.
    pub(super) passed: u8,
}

impl Head {
    fn len(&self) -> usize {
        HEADER_MIN
            + match self.hop.exit {
                Exit::Gateway(_, IpAddr::V4(_)) => 4,
                Exit::Gateway(_, IpAddr::V6(_)) => 16,
                Exit::Local | Exit::Connected(_) => 0,
            }
    }

    /// Writes the header without the number.
    fn write(&self, out: &mut [u8]) {
        let (kind, port) = match self.hop.exit {
            Exit::Local => (LOCAL, 0),
            Exit::Connected(port) => (CONNECTED, port),
            Exit::Gateway(port, IpAddr::V4(gateway)) => {
                out[8..12].copy_from_slice(&gateway.octets());
                (GATEWAY4, port)
            }
            Exit::Gateway(port, IpAddr::V6(gateway)) => {
                out[8..24].copy_from_slice(&gateway.octets());
                (GATEWAY6, port)
            }
        };
        out[4..8].copy_from_slice(&[kind, self.hop.node, port, self.passed]);
    }

    /// Reads a header, and returns it with the packet.
    fn read(message: &[u8]) -> Option<(Head, &[u8])> {
        let (head, rest) = message.split_first_chunk::<HEADER_MIN>()?;
        let [_, _, _, _, kind, node, port, passed] = *head;
        let (exit, packet) = match kind {
            LOCAL => (Exit::Local, rest),
            CONNECTED => (Exit::Connected(port), rest),
            GATEWAY4 => {
                let (gateway, rest) = rest.split_first_chunk::<4>()?;
                (Exit::Gateway(port, IpAddr::from(*gateway)), rest)
            }
            GATEWAY6 => {
                let (gateway, rest) = rest.split_first_chunk::<16>()?;
                (Exit::Gateway(port, IpAddr::from(*gateway)), rest)
            }
            _ => return None,
        };
        Some((Head { hop: NextHop { node, exit }, passed }, packet))
    }
}

/// Registers the handler of messages.
pub(super) fn register<T, O, P>(rpc: &mut Rpc<T>, node: &Shared<O, P>)
where
    T: Transport,
    O: Outlet + 'static,
    P: Probe + 'static,
{
    let receiver = node.clone();
    rpc.on_message(MESSAGE, move |cx, message| {
        let session = message.session();
        receiver.borrow_mut().on_message(cx, session, &message);
    });
    let sender = node.clone();
    rpc.on_room(move |_, session| sender.borrow_mut().on_room(session));
}

impl<O: Outlet + 'static, P: Probe + 'static> Node<O, P> {
    /// Sends a packet to a node.
    pub(super) fn send_to(
        &mut self,
        cx: &mut Context<'_>,
        to: NodeId,
        head: &Head,
        packet: &[u8],
    ) -> Result<(), PacketDrop> {
        if self.links.get(usize::from(to)).is_some_and(|link| link.full) {
            return Err(PacketDrop::LinkFull);
        }
        let length = head.len();
        let sent = self.send_message(cx, to, length + packet.len(), |message| {
            head.write(message);
            message[length..].copy_from_slice(packet);
        });
        if sent == Err(PacketDrop::LinkFull) {
            self.links[usize::from(to)].full = true;
        }
        sent?;
        self.counters.to_nodes += 1;
        self.probe.sends(to, head.hop.node, packet);
        Ok(())
    }

    /// A session has room for messages again.
    fn on_room(&mut self, session: SessionId) {
        if let Some(link) = self.links.iter_mut().find(|link| link.session == Some(session)) {
            link.full = false;
            self.refused_in_a_row = 0;
        }
    }

    /// Returns true if the program should take packets from its ports now: not while the last
    /// [`BURST`] of them were for full links: a packet that waits in a ring costs the node nothing, nor
    /// does one that the ring has no room for, so that all its time is left for packets that go on
    /// (Mogul and Ramakrishnan, "Eliminating Receive Livelock", 1996). While some packets have a way,
    /// those for full links are dropped, and hold up no others.
    ///
    /// The wait has a limit, [`PAUSE`], because a link to a machine that does not run is full until that
    /// counts as dead.
    pub fn takes_packets(&mut self, now_ns: u64) -> bool {
        if !self.is_backlogged() {
            return true;
        }
        let resumes = now_ns >= self.paused_until_ns;
        if resumes {
            self.paused_until_ns = now_ns + PAUSE.as_nanos() as u64;
        }
        resumes
    }

    /// When the program should take packets again, if no link has room before.
    pub fn paused_until_ns(&self) -> Option<u64> {
        self.is_backlogged().then_some(self.paused_until_ns)
    }

    fn is_backlogged(&self) -> bool {
        self.refused_in_a_row >= BURST && self.links.iter().any(|link| link.full)
    }

    /// Sends a message to a node, with the next number.
    pub(super) fn send_message(
        &mut self,
        cx: &mut Context<'_>,
        to: NodeId,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), PacketDrop> {
        let link = self.links.get_mut(usize::from(to)).ok_or(PacketDrop::LinkDown)?;
        let Some(session) = link.session else { return Err(PacketDrop::LinkDown) };
        let mut message = cx.alloc_recycled(len).map_err(|_| PacketDrop::Memory)?;
        message[..4].copy_from_slice(&link.next.to_le_bytes());
        write(&mut message);
        cx.send(session, MESSAGE, message).map_err(|refused| match refused.reason {
            RejectReason::MessagesFull { .. } | RejectReason::QueueFull { .. } => {
                PacketDrop::LinkFull
            }
            RejectReason::TooLarge { .. } => PacketDrop::TooBig,
            _ => PacketDrop::LinkDown,
        })?;
        link.next = link.next.wrapping_add(1);
        Ok(())
    }

    /// A message of another node.
    fn on_message(&mut self, cx: &mut Context<'_>, session: SessionId, message: &[u8]) {
        let at = session.index() as usize;
        if self.incoming.len() <= at {
            self.incoming.resize_with(at + 1, || None);
        }
        let slot = &mut self.incoming[at];
        // Another session had this number before: packets of it that still wait have no place.
        let incoming = match slot {
            Some(incoming) if incoming.session == session => incoming,
            _ => {
                let order = Order::default();
                slot.insert(Incoming { session, node: None, life: 0, order, stuck: 0 })
            }
        };
        let Some(number) = message.first_chunk::<4>() else {
            return self.counters.drop(PacketDrop::BadMessage);
        };
        match incoming.order.take(u32::from_le_bytes(*number), message) {
            Place::Next => self.take_message(cx, at, message),
            Place::Early => return self.counters.reordered += 1,
            Place::Wrong => return self.counters.drop(PacketDrop::BadMessage),
        }
        self.take_early(cx, at);
    }

    /// Processes messages that arrived early and are in their place now.
    fn take_early(&mut self, cx: &mut Context<'_>, at: usize) {
        while let Some(message) = self.next_early(at) {
            self.take_message(cx, at, &message);
            if let Some(incoming) = self.incoming[at].as_mut() {
                incoming.order.give_back(message);
            }
        }
    }

    #[inline]
    fn next_early(&mut self, at: usize) -> Option<Vec<u8>> {
        self.incoming[at].as_mut()?.order.pop()
    }

    /// A message in its place in the order.
    fn take_message(&mut self, cx: &mut Context<'_>, at: usize, message: &[u8]) {
        let from = self.incoming[at].as_ref().and_then(|incoming| incoming.node);
        if message.get(4) == Some(&HEARTBEAT) {
            return self.on_heartbeat(cx, at, from, &message[HEADER_MIN.min(message.len())..]);
        }
        let taken = from.zip(Head::read(message));
        let Some((from, (head, packet))) = taken.filter(|(_, (h, _))| h.passed <= MOST_PASSED)
        else {
            return self.counters.drop(PacketDrop::BadMessage);
        };
        self.counters.from_nodes += 1;
        self.active |= 1 << from;
        self.probe.takes(from, packet);
        self.pass_on(cx, from, &head, packet);
    }

    /// Forgets the state of sessions that are gone, and messages that others wait for in vain: a
    /// node that skips a number must not stop a link.
    pub(super) fn sweep_incoming(&mut self, cx: &mut Context<'_>) {
        for at in 0..self.incoming.len() {
            let Some(incoming) = self.incoming[at].as_mut() else { continue };
            if cx.session_state(incoming.session) == courser::SessionState::Gone {
                self.incoming[at] = None;
                continue;
            }
            incoming.stuck = if incoming.order.is_stuck() { incoming.stuck + 1 } else { 0 };
            if incoming.stuck < GIVEN_UP {
                continue;
            }
            incoming.stuck = 0;
            incoming.order.skip();
            self.counters.drop(PacketDrop::BadMessage);
            self.take_early(cx, at);
        }
    }

    /// Names the sender of a session's messages.
    pub(super) fn name_incoming(&mut self, at: usize, node: NodeId, life: u64) {
        if let Some(incoming) = self.incoming[at].as_mut() {
            (incoming.node, incoming.life) = (Some(node), life);
        }
    }

    /// The sender of a session's messages and its start, if it is known.
    pub(super) fn sender(&self, session: SessionId) -> Option<(NodeId, u64)> {
        let incoming = self.incoming.get(session.index() as usize)?.as_ref()?;
        let node = incoming.node.filter(|_| incoming.session == session)?;
        Some((node, incoming.life))
    }
}

/// The destination of a packet that another node has checked.
pub(super) fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => packet.get(16..20)?.first_chunk::<4>().map(|a| IpAddr::from(*a)),
        6 => packet.get(24..40)?.first_chunk::<16>().map(|a| IpAddr::from(*a)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_were_written() {
        let exits = [
            Exit::Local,
            Exit::Connected(3),
            Exit::Gateway(31, IpAddr::from([10, 0, 0, 1])),
            Exit::Gateway(0, IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 9])),
        ];
        for exit in exits {
            let head = Head { hop: NextHop { node: 63, exit }, passed: 2 };
            let mut message = vec![0; head.len() + 5];
            head.write(&mut message);
            message[head.len()..].copy_from_slice(b"hello");
            assert_eq!(Head::read(&message), Some((head, &b"hello"[..])));
            for cut in 0..head.len() {
                assert_eq!(Head::read(&message[..cut]), None, "{exit:?} cut to {cut}");
            }
        }
        assert_eq!(Head::read(&[0, 0, 0, 0, 9, 0, 0, 0]), None, "no such kind");
    }
}
