//! Transmission of a client slot: request packets, then requests-for-response. Each passes the gate
//! of credits and pacing `[eRPC section 4.3.1, section 5.1]` (E33, E43, ADR 4).

use courser_buf::{Arena, TxBurst};

use super::lane::Lane;
use super::{Sent, TxBatch, TxItem};
use crate::config::Config;
use crate::credits::SessionCredits;
use crate::endpoint::Endpoint;
use crate::expiry::slot_timeout_ns;
use crate::mutant::{self, Mutant};
use crate::peer::{Peer, Peers};
use crate::session::SessionState;
use crate::slot::{ClientSlot, NextPacket};
use crate::stats::EndpointStats;
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

/// The parts of an endpoint that [`send_single`] needs, and the destination of the request.
pub(crate) struct Single<'a> {
    pub(crate) tx: &'a mut TxBatch,
    pub(crate) peers: &'a mut Peers,
    pub(crate) arena: &'a Arena,
    pub(crate) cfg: &'a Config,
    pub(crate) stats: &'a mut EndpointStats,
    pub(crate) now_ns: u64,
    /// The peer, and its number for the session.
    pub(crate) peer_no: u32,
    pub(crate) session: u32,
}

/// Sends an unsent request of one small packet: the straight line of a small RPC. `false`: the gate
/// or the batch does not admit it now, or it is not such a request; nothing has changed.
#[inline(always)] // inlined into the call and into the transmit loop
pub(crate) fn send_single<C>(
    cx: Single<'_>,
    credits: &mut SessionCredits,
    slot: &mut ClientSlot<C>,
) -> bool {
    let Single { tx, peers, arena, cfg, stats, now_ns, peer_no, session } = cx;
    let Some(data) = slot.single_unsent().filter(|data| data.len() <= cfg.inline_max) else {
        return false;
    };
    let Some(peer) = peers.at_mut(peer_no) else { return false };
    let units = peer.credits.units_of(data.len());
    if !matches!(gate(peer, *credits, units, now_ns), Gate::Now(_)) {
        return false;
    }
    let (size, remaining_us) = (data.len() as u32, slot.remaining_us(now_ns));
    let header = single_request(session, slot.req_num, slot.req_type(), size, remaining_us);
    if !tx.append(peer_no, peer, arena, header, data) {
        return false;
    }
    pass(peer, credits, 1, units, now_ns);
    slot.sent_single(units, now_ns);
    stats.sent(0);
    stats.max_in_flight = stats.max_in_flight.max(credits.in_flight());
    true
}

impl<C> Endpoint<C> {
    /// Sends what a slot can send with the available credits. In its session's `turn` the pool's
    /// credits are reserved for it, and no packets are held back.
    #[inline(always)]
    pub(crate) fn tx_client(
        &mut self,
        session: u32,
        slot_no: u8,
        req_num: u32,
        turn: bool,
        out: &mut TxBurst,
    ) -> Sent {
        let Some(s) = self.sessions.client_mut(session) else { return Sent::All };
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return Sent::All };
        // A slot whose first timer has expired needs one of its own.
        let current = slot.req_num == req_num && slot.active && slot.tracked;
        if current && s.state == SessionState::Connected {
            let cx = Single {
                tx: &mut self.io.tx,
                peers: &mut self.io.peers,
                arena: &self.io.arena,
                cfg: &self.io.cfg,
                stats: &mut self.io.stats,
                now_ns: self.io.now_ns,
                peer_no: s.peer,
                session: s.remote,
            };
            if send_single(cx, &mut s.credits, slot) {
                return Sent::All;
            }
        }
        self.tx_client_packets(session, slot_no, req_num, turn, out)
    }

    /// [`Endpoint::tx_client`] for a message of several packets, a retransmission, or a slot that
    /// waits.
    #[inline(never)]
    fn tx_client_packets(
        &mut self,
        session: u32,
        slot_no: u8,
        req_num: u32,
        turn: bool,
        out: &mut TxBurst,
    ) -> Sent {
        let now_ns = self.io.now_ns;
        let item = TxItem::Client { session, slot: slot_no, req_num };
        let Some(s) = self.sessions.client_mut(session) else { return Sent::All };
        let slots = s.slots.count();
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return Sent::All };
        if !slot.active || slot.req_num != req_num || s.state != SessionState::Connected {
            // A later request has its own queue item, unless this one was meant for it.
            if !slot.active && req_num == slot.req_num.wrapping_add(slots) {
                slot.queued_ahead = false;
            }
            return Sent::All;
        }
        let Some(peer) = self.io.peers.at_mut(s.peer) else { return Sent::All };
        let (before, quantum) = (s.credits.left(), u32::from(s.agreed.quantum));
        let spread = s.credits.limit().saturating_mul(self.io.cfg.reorder_span);
        let waits = slot.in_flight() > 0;
        slot.limit_unscheduled(peer.path.unscheduled(now_ns));
        let (mut lacked_units, mut paced_until_ns, mut again) = (0, None, 0);
        let mut lane = Lane {
            tx: &mut self.io.tx,
            arena: &self.io.arena,
            stats: &mut self.io.stats,
            inline_max: self.io.cfg.inline_max,
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
            slot.begin_board(&mut self.io.boards, s.agreed.recovery);
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
            let timeout_ns = slot_timeout_ns(path, slot, s.agreed.recovery, &self.io.cfg);
            if slot.await_answer(s.agreed.recovery, waits, now_ns + timeout_ns) {
                let due_ns = slot.deadline_ns;
                self.arm_slot(session, slot_no, due_ns);
            }
        }
        self.note_awaiting(session, slot_no);
        if again > 0
            && let Some(s) = self.sessions.client_mut(session)
        {
            s.on_retransmitted(again);
        }
        if let Some(at_ns) = paced_until_ns {
            self.pace(session, at_ns);
        }
        if lacked_units > 0 {
            self.wait_for_room(session, lacked_units);
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
