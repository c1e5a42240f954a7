//! Transmission of a client slot: request packets, then requests-for-response, each through the gate
//! (`gate`).

use courser_buf::TxBurst;

use super::gate::{Gate, Next, Packets, Stop, gate, pass, send_packets};
use super::lane::Lane;
use super::{Sent, TxItem, Waiter};
use crate::credits::{CreditPool, SessionCredits};
use crate::flow::{ClientFlow, slot_timeout_ns};
use crate::io::Io;
use crate::loss::{Boards, Recovery};
use crate::peer::Peer;
use crate::session::SessionState;
use crate::slot::{ClientSlot, NextPacket};
use crate::wire::{FRAME_HEADER, PACKET_HEADER, Packet, data_len, single_request};

/// Sends an unsent request of one small packet: the straight line of a small RPC. `session` is
/// the peer's number for the session. `false`: the gate or the batch does not admit it now, or it is not such
/// a request; nothing has changed.
#[inline(always)] // inlined into the call and into the transmit loop
pub(crate) fn send_single<C>(
    io: &mut Io,
    peer: &mut Peer,
    session: u32,
    credits: &mut SessionCredits,
    slot: &mut ClientSlot<C>,
) -> bool {
    let Some(data) = slot.single_unsent().filter(|data| data.len() <= io.cfg.inline_max) else {
        return false;
    };
    let now_ns = io.now_ns;
    let units = peer.credits.units_of(data.len());
    if !matches!(gate(peer, *credits, units, now_ns), Gate::Now(_)) {
        return false;
    }
    let (size, remaining_us) = (data.len() as u32, slot.remaining_us(now_ns));
    let header = single_request(session, slot.req_num, slot.req_type(), size, remaining_us);
    if !io.tx.append(peer, &io.arena, header, data) {
        return false;
    }
    pass(peer, credits, 1, (units, u64::from(size)), now_ns);
    slot.sent_single(units, now_ns);
    io.stats.sent(0);
    io.stats.max_in_flight = io.stats.max_in_flight.max(credits.in_flight());
    true
}

impl<C> ClientFlow<'_, C> {
    /// Sends what a slot can send with the available credits. In its session's `turn` the pool's
    /// credits are reserved for it, and no packets are held back.
    #[inline(always)]
    pub(crate) fn tx_client(
        &mut self,
        slot_no: u8,
        req_num: u32,
        turn: bool,
        out: &mut TxBurst,
    ) -> Sent {
        let s = &mut *self.s;
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return Sent::All };
        // A slot whose first timer has expired needs one of its own.
        let current = slot.req_num == req_num && slot.active && slot.tracked;
        if current
            && s.state == SessionState::Connected
            && send_single(self.io, self.peer, s.remote, &mut s.credits, slot)
        {
            return Sent::All;
        }
        self.tx_client_packets(slot_no, req_num, turn, out)
    }

    /// [`ClientFlow::tx_client`] for a message of several packets, a retransmission, or a slot that
    /// waits.
    fn tx_client_packets(
        &mut self,
        slot_no: u8,
        req_num: u32,
        turn: bool,
        out: &mut TxBurst,
    ) -> Sent {
        let (s, io) = (&mut *self.s, &mut *self.io);
        let now_ns = io.now_ns;
        let slots = s.slots.count();
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return Sent::All };
        if !slot.active || slot.req_num != req_num || s.state != SessionState::Connected {
            // A later request has its own queue item, unless this one was meant for it.
            if !slot.active && req_num == slot.req_num.wrapping_add(slots) {
                slot.queued_ahead = false;
            }
            return Sent::All;
        }
        let (before, recovery) = (s.credits.left(), s.agreed.recovery);
        let bytes = usize::from(s.agreed.data_per_packet) + FRAME_HEADER + PACKET_HEADER;
        let is_limited = io.tx.host.is_limited() && slot.sends_large();
        let allowed = if is_limited { io.tx.host.turn(bytes) } else { u32::MAX };
        let waits = slot.in_flight() > 0;
        slot.limit_unscheduled(self.peer.path.unscheduled(now_ns));
        let mut lane = Lane {
            tx: &mut io.tx,
            arena: &io.arena,
            stats: &mut io.stats,
            inline_max: io.cfg.inline_max,
            peer: self.peer,
            out,
        };
        let mut packets = CallPackets {
            slot,
            spread: s.credits.limit().saturating_mul(io.cfg.reorder_span),
            quantum: if turn { 0 } else { s.agreed.quantum.into() },
            credits: &mut s.credits,
            boards: &mut io.boards,
            recovery,
            allowed,
            to: (s.remote, s.agreed.data_per_packet),
            one_way: s.outgoing.as_ref().is_some_and(|o| o.slots & 1 << slot_no != 0),
        };
        let (stop, again) = send_packets(&mut packets, &mut lane, now_ns);
        lane.tx.host.on_sent_in_turn((allowed, packets.allowed), bytes);
        if matches!(stop, Stop::Credits | Stop::Room(_) | Stop::Paced(..)) {
            s.stalled |= 1 << slot_no;
        }
        slot.queued = matches!(stop, Stop::Full | Stop::Host);
        if s.credits.left() != before {
            let in_flight = s.credits.in_flight();
            lane.stats.max_in_flight = lane.stats.max_in_flight.max(in_flight);
            let timeout_ns = slot_timeout_ns(&lane.peer.path, slot, recovery, now_ns, &io.cfg);
            if slot.await_answer(recovery, waits, now_ns + timeout_ns) {
                let due_ns = slot.deadline_ns;
                self.arm_slot(slot_no, due_ns);
            }
        }
        self.note_awaiting(slot_no);
        self.end_sending(stop, again);
        match stop {
            Stop::Full => {
                return Sent::Rest(TxItem::Client { session: self.index, slot: slot_no, req_num });
            }
            Stop::Host => self.wait_for_host(slot_no, turn),
            _ => {}
        }
        Sent::All
    }

    /// The request of a slot waits for its turn at the host's transmit queue. In its session's `turn` in
    /// the pool it keeps its place among the requests of the peer.
    fn wait_for_host(&mut self, slot_no: u8, turn: bool) {
        let session = self.id();
        let slot = &mut self.s.slots[usize::from(slot_no)];
        let left = slot.request_left();
        if !slot.wait_for_host() {
            return; // with the entry of an earlier call
        }
        if !turn {
            self.io.wait_for_host(Waiter::Request { session, slot: slot_no }, left);
        } else if self.peer.credits.wait_for_host((session, slot_no, left)) {
            self.io.wait_for_host(Waiter::Pool { peer: self.peer.number() }, left);
        }
    }

    /// The request of a slot has its turn at the host's transmit queue; with `turn`, that of its peer's
    /// pool too.
    pub(super) fn tx_client_at_host(&mut self, slot_no: u8, turn: bool, out: &mut TxBurst) -> Sent {
        let Some(slot) = self.s.slots.get_mut(usize::from(slot_no)) else { return Sent::All };
        if !slot.leave_host() {
            return Sent::All;
        }
        let req_num = slot.req_num;
        self.io.tx.host.begin_turn();
        let sent = self.tx_client_packets(slot_no, req_num, turn, out);
        self.io.tx.host.end_turn();
        if let Sent::Rest(_) = sent {
            self.s.slots[usize::from(slot_no)].wait_for_host();
            return Sent::Rest(TxItem::RequestTurn { session: self.id(), slot: slot_no });
        }
        sent
    }
}

/// The packets of a call.
struct CallPackets<'a, C> {
    slot: &'a mut ClientSlot<C>,
    credits: &'a mut SessionCredits,
    boards: &'a mut Boards,
    recovery: Recovery,
    /// A large message leaves in steps of this many packets; 0: it does not.
    quantum: u32,
    /// Packets between the oldest one that has not arrived and the newest one, at most.
    spread: u32,
    /// Packets that the host's transmit queue has room for; `u32::MAX`: any number.
    allowed: u32,
    /// The server's number for the session, and the data in a packet, bytes.
    to: (u32, u16),
    /// The call carries a one-way message.
    one_way: bool,
}

impl<'a, C> Packets for CallPackets<'a, C> {
    type Next<'p>
        = &'p mut CallPackets<'a, C>
    where
        Self: 'p;

    #[inline]
    fn credits(&mut self) -> &mut SessionCredits {
        self.credits
    }

    #[inline]
    fn next(&mut self, _: &mut Lane<'_>, _: u64) -> Option<&mut CallPackets<'a, C>> {
        (self.slot.sendable() > 0).then_some(self)
    }

    #[inline]
    fn on_sent(&mut self, _: u16, _: bool) {}
}

impl<C> Next for &mut CallPackets<'_, C> {
    type Packet = NextPacket;

    #[inline]
    fn units(&self, pool: &CreditPool) -> u16 {
        self.slot.units_to_send(pool)
    }

    /// Fewer packets than a train are held until more credits return, as long as packets in flight
    /// return some.
    #[inline]
    fn holds(&mut self, most: u32) -> Option<Stop> {
        let short = most < self.quantum.min(self.slot.sendable());
        if short && self.slot.in_flight() >= self.quantum {
            return Some(Stop::Credits);
        }
        // It sends more when the oldest packet has arrived.
        if self.slot.is_spread(self.spread) {
            return Some(Stop::Done);
        }
        (self.allowed == 0).then_some(Stop::Host)
    }

    #[inline]
    fn add(&mut self, lane: &mut Lane<'_>, most: u32, now_ns: u64) -> Option<NextPacket> {
        self.slot.begin_board(self.boards, self.recovery);
        let next = self.slot.next_packet(most);
        send_next(lane, self.slot, next, self.to, self.one_way, now_ns).then_some(next)
    }

    #[inline]
    fn data(&self, packet: NextPacket) -> u64 {
        let (_, dpp) = self.to;
        match (packet, self.slot.request()) {
            (NextPacket::Request { index }, Some(request)) => {
                data_len(request.len() as u32, index, dpp) as u64
            }
            _ => dpp.into(),
        }
    }

    #[inline]
    fn on_sent(self, packet: NextPacket, units: u16, now_ns: u64) -> (u32, bool) {
        self.allowed -= 1;
        (packet.credits(), self.slot.on_sent(packet, units, now_ns))
    }
}

/// Adds a packet of a slot to a frame, with the session and packet size of `wire`. `false`: the
/// batch has no room.
#[inline]
fn send_next<C>(
    lane: &mut Lane<'_>,
    slot: &mut ClientSlot<C>,
    next: NextPacket,
    (session, dpp): (u32, u16),
    one_way: bool,
    now_ns: u64,
) -> bool {
    let req_num = slot.req_num;
    match next {
        NextPacket::Rfr { first, count } => {
            lane.header_only(2, Packet::Rfr { session, req_num, first, count }.header())
        }
        NextPacket::Request { index } => {
            let remaining_us = if index == 0 { slot.remaining_us(now_ns) } else { None };
            let req_type = slot.req_type();
            let Some(req) = slot.request_mut() else { return false };
            let (msg_size, data) = (req.len() as u32, &[][..]);
            let at = index as usize * usize::from(dpp);
            let range = at..at + data_len(msg_size, index, dpp);
            let packet = Packet::Request {
                session,
                req_num,
                req_type,
                msg_size,
                index,
                remaining_us,
                one_way,
                data,
            };
            lane.part(0, packet.header(), req, index, range)
        }
    }
}
