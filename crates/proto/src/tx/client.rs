//! Transmission of a client slot: request packets, then requests-for-response. Each passes the gate
//! of credits and pacing `[eRPC section 4.3.1, section 5.1]` (E33, E43, ADR 4).

use courser_buf::TxBurst;

use super::lane::Lane;
use super::{Sent, TxItem};
use crate::credits::SessionCredits;
use crate::flow::{ClientFlow, slot_timeout_ns};
use crate::io::Io;
use crate::mutant::{self, Mutant};
use crate::peer::Peer;
use crate::session::SessionState;
use crate::slot::{ClientSlot, NextPacket};
use crate::wire::{Packet, data_len, single_request};

/// The gate's decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gate {
    /// Send this many packets now.
    Now(u32),
    /// Send at this time, ns.
    At(u64),
    /// Send when credits of the session or room in the peer's pool return.
    Credits,
}

/// The gate for all client packets: credits, the window of congestion control (which the pool
/// applies), and the pacer of the path.
#[inline(always)]
pub(super) fn gate(peer: &Peer, credits: SessionCredits, units: u16, now_ns: u64) -> Gate {
    match peer.credits.grant(credits, units) {
        0 => Gate::Credits,
        packets if peer.path.is_paced() => match peer.path.pace(now_ns) {
            Ok(most) => Gate::Now(packets.min(most)),
            Err(at_ns) => Gate::At(at_ns),
        },
        packets => Gate::Now(packets),
    }
}

/// Takes credits for packets that the gate has admitted.
#[inline(always)]
pub(super) fn pass(
    peer: &mut Peer,
    credits: &mut SessionCredits,
    packets: u32,
    units: u16,
    now_ns: u64,
) {
    peer.credits.spend(credits, packets, units);
    peer.path.on_sent(packets * u32::from(units), peer.credits.units_per_packet(), now_ns);
}

/// Sends an unsent request of one small packet: the straight line of a small RPC. `to` is the peer and
/// its number for the session. `false`: the gate or the batch does not admit it now, or it is not such
/// a request; nothing has changed.
#[inline(always)] // inlined into the call and into the transmit loop
pub(crate) fn send_single<C>(
    io: &mut Io,
    to: (u32, u32),
    credits: &mut SessionCredits,
    slot: &mut ClientSlot<C>,
) -> bool {
    let (peer_no, session) = to;
    let Some(data) = slot.single_unsent().filter(|data| data.len() <= io.cfg.inline_max) else {
        return false;
    };
    let now_ns = io.now_ns;
    let Some(peer) = io.peers.at_mut(peer_no) else { return false };
    let units = peer.credits.units_of(data.len());
    if !matches!(gate(peer, *credits, units, now_ns), Gate::Now(_)) {
        return false;
    }
    let (size, remaining_us) = (data.len() as u32, slot.remaining_us(now_ns));
    let header = single_request(session, slot.req_num, slot.req_type(), size, remaining_us);
    if !io.tx.append(peer_no, peer, &io.arena, header, data) {
        return false;
    }
    pass(peer, credits, 1, units, now_ns);
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
            && send_single(self.io, (s.peer, s.remote), &mut s.credits, slot)
        {
            return Sent::All;
        }
        self.tx_client_packets(slot_no, req_num, turn, out)
    }

    /// [`ClientFlow::tx_client`] for a message of several packets, a retransmission, or a slot that
    /// waits.
    #[inline(never)]
    fn tx_client_packets(
        &mut self,
        slot_no: u8,
        req_num: u32,
        turn: bool,
        out: &mut TxBurst,
    ) -> Sent {
        let (s, io) = (&mut *self.s, &mut *self.io);
        let now_ns = io.now_ns;
        let item = TxItem::Client { session: self.index, slot: slot_no, req_num };
        let slots = s.slots.count();
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return Sent::All };
        if !slot.active || slot.req_num != req_num || s.state != SessionState::Connected {
            // A later request has its own queue item, unless this one was meant for it.
            if !slot.active && req_num == slot.req_num.wrapping_add(slots) {
                slot.queued_ahead = false;
            }
            return Sent::All;
        }
        let Some(peer) = io.peers.at_mut(s.peer) else { return Sent::All };
        let (before, quantum) = (s.credits.left(), u32::from(s.agreed.quantum));
        let spread = s.credits.limit().saturating_mul(io.cfg.reorder_span);
        let waits = slot.in_flight() > 0;
        slot.limit_unscheduled(peer.path.unscheduled(now_ns));
        let (mut lacked_units, mut paced_until_ns, mut again) = (0, None, 0);
        let mut lane = Lane {
            tx: &mut io.tx,
            arena: &io.arena,
            stats: &mut io.stats,
            inline_max: io.cfg.inline_max,
            peer_no: s.peer,
            peer,
            out,
        };
        let sent = loop {
            let sendable = slot.sendable();
            if sendable == 0 {
                break Sent::All;
            }
            let units = slot.units_to_send(&lane.peer.credits);
            let credits = match gate(lane.peer, s.credits, units, now_ns) {
                Gate::Now(credits) => credits,
                Gate::Credits => 0,
                Gate::At(at_ns) => {
                    if mutant::is_on(Mutant::PacedTwice) {
                        let next = slot.next_packet(1);
                        let to = (s.remote, s.agreed.data_per_packet);
                        let _ = send_next(&mut lane, slot, next, to, false, now_ns);
                    }
                    s.stalled |= 1 << slot_no;
                    (lacked_units, paced_until_ns) = (units, Some(at_ns));
                    break Sent::All;
                }
            };
            // A large message leaves in steps of a train: fewer packets are held until more credits
            // return, as long as packets in flight return some.
            let short = credits < quantum.min(sendable) && !turn;
            if credits == 0 || (short && slot.in_flight() >= quantum) {
                s.stalled |= 1 << slot_no;
                lacked_units = if s.credits.left() != 0 && credits == 0 { units } else { 0 };
                break Sent::All;
            }
            if slot.is_spread(spread) {
                break Sent::All; // more when the oldest packet has arrived
            }
            slot.begin_board(&mut io.boards, s.agreed.recovery);
            let next = slot.next_packet(credits);
            let one_way = s.outgoing.as_ref().is_some_and(|o| o.slots & 1 << slot_no != 0);
            let to = (s.remote, s.agreed.data_per_packet);
            if !send_next(&mut lane, slot, next, to, one_way, now_ns) {
                break Sent::Rest(item);
            }
            pass(lane.peer, &mut s.credits, next.credits(), units, now_ns);
            if slot.on_sent(next, units, now_ns) {
                again += 1;
                lane.stats.retransmitted += 1;
            }
        };
        let spent = s.credits.left() != before;
        if spent {
            let in_flight = s.credits.in_flight();
            lane.stats.max_in_flight = lane.stats.max_in_flight.max(in_flight);
        }
        slot.queued = matches!(sent, Sent::Rest(_));
        if spent {
            let path = &lane.peer.path;
            let timeout_ns = slot_timeout_ns(path, slot, s.agreed.recovery, &io.cfg);
            if slot.await_answer(s.agreed.recovery, waits, now_ns + timeout_ns) {
                let due_ns = slot.deadline_ns;
                self.arm_slot(slot_no, due_ns);
            }
        }
        self.note_awaiting(slot_no);
        self.s.on_retransmitted(again);
        if let Some(at_ns) = paced_until_ns {
            self.io.pace(self.s.peer, at_ns);
        }
        if lacked_units > 0 {
            self.wait_for_room(lacked_units);
        }
        sent
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
