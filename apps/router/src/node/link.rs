//! Links between nodes: packets as one-way messages (`message`) over a session.

use std::net::IpAddr;
use std::time::Duration;

use courser::{Context, RejectReason, Rpc, SessionId, Transport};

use super::message::{HEADER_MIN, HEARTBEAT, Head, MESSAGE, MOST_PASSED};
use super::order::{Order, Place};
use super::peers::Incoming;
use super::{Node, Probe, Shared};
use crate::counters::PacketDrop;
use crate::line::{BURST, Outlet};
use crate::route::NodeId;

/// Runs of the timer after which a message counts as never sent: the time in which a node counts as
/// dead. Courser delivers a lost message far earlier, or ends its session.
const GIVEN_UP: u32 = 8;

/// Packets wait at most this long for room on links ([`Node::takes_packets`]). Then those for full
/// links are dropped, so that others can pass.
pub const PAUSE: Duration = Duration::from_micros(200);

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
