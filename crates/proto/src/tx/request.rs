//! What a client sends: request packets, then requests-for-response; each costs credits
//! `[eRPC §4.3.1, §5.1]` (E33, E43, F4).

use courser_buf::TxBurst;

use super::{Lane, Sent, TxItem};
use crate::endpoint::Endpoint;
use crate::loss::{Board, Pools, Recovery};
use crate::session::{Session, SessionState};
use crate::slot::{ClientSlot, Lone};
use crate::wire::{Packet, data_len};

impl<C> Endpoint<C> {
    /// Sends what a slot can send for the credits there are. One look-up for all its packets. In
    /// its session's `turn` those of the pool are its own for now, and nothing is held back.
    #[inline(never)] // requests of one small packet are `tx/short`'s
    pub(crate) fn tx_client(
        &mut self,
        session: u32,
        slot_no: u8,
        req_num: u32,
        turn: bool,
        out: &mut TxBurst,
    ) -> Sent {
        let now_ns = self.now_ns;
        let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else {
            return Sent::All;
        };
        let slots = s.slots.count();
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return Sent::All };
        if !slot.active || slot.req_num != req_num || s.state != SessionState::Connected {
            // Outlived: a later request has an item of its own, unless it was to have this one.
            if !slot.active && req_num == slot.req_num.wrapping_add(slots) {
                slot.queued_ahead = false;
            }
            return Sent::All;
        }
        let Some(Some(peer)) = self.peers.get_mut(s.peer as usize) else { return Sent::All };
        let mut lane = Lane {
            tx: &mut self.tx,
            arena: &self.arena,
            stats: &mut self.stats,
            inline_max: self.cfg.inline_max,
            now_ns,
            peer_no: s.peer,
            peer,
            out,
        };
        let (before, quantum) = (s.credits, u32::from(s.quantum));
        let waits = slot.in_flight() > 0;
        let mut in_line = false;
        let sent = loop {
            let sendable = slot.sendable();
            if sendable == 0 {
                break Sent::All;
            }
            // A large message leaves in steps of a train: fewer packets wait until more credits
            // are back, as long as something is on its way that brings them.
            let credits = s.credits.min(lane.peer.pool.open);
            let short = credits < quantum.min(sendable) && !turn;
            if credits == 0 || (short && slot.in_flight() >= quantum) {
                s.stalled |= 1 << slot_no;
                in_line = s.credits != 0 && lane.peer.pool.open == 0;
                break Sent::All;
            }
            if slot.lost == 0
                && slot.in_flight() > 0
                && slot.is_spread(s.credit_limit.saturating_mul(self.cfg.spread))
            {
                break Sent::All; // more when the oldest packet has arrived
            }
            let again = &mut s.retransmitted;
            if slot.board.is_none() && s.recovery != Recovery::GoBackN && !slot.is_small() {
                slot.board = begin_board(&mut self.boards, &self.pools, s.recovery, slot);
            }
            match step(&mut lane, slot, s.remote, credits, s.data_per_packet, again) {
                Some(spent) => {
                    s.credits -= spent;
                    lane.peer.pool.open -= spent;
                }
                None => break Sent::Rest(TxItem::Client { session, slot: slot_no, req_num }),
            }
        };
        if s.credits != before {
            let in_flight = s.credit_limit - s.credits;
            lane.stats.max_in_flight = lane.stats.max_in_flight.max(in_flight);
            // MELO's timeout is that of the first hole.
            if s.recovery != Recovery::Melo || !waits {
                let timeout_ns = lane.peer.timeout_ns(s.recovery, slot.retries, &self.cfg);
                slot.deadline_ns = now_ns + timeout_ns;
            }
        }
        slot.queued = matches!(sent, Sent::Rest(_));
        if s.credits != before && (!slot.tracked || s.recovery == Recovery::Selective) {
            let due_ns = slot.deadline_ns;
            self.arm_slot(session, slot_no, due_ns);
        }
        if in_line {
            self.stand_in_line(session);
        }
        sent
    }
}

/// A board for the message of a slot that is about to be sent, or asked for.
#[cold]
#[allow(clippy::vec_box)] // as slots have them
fn begin_board<C>(
    spare: &mut Vec<Box<Board>>,
    pools: &Pools,
    recovery: Recovery,
    slot: &ClientSlot<C>,
) -> Option<Box<Board>> {
    let in_order = if slot.resp_packets > 0 { slot.resp_rcvd } else { slot.req_acked };
    if recovery == Recovery::Selective
        && let Some(mut board) = spare.pop()
        && board.renew(in_order)
    {
        return Some(board);
    }
    Board::new(recovery, pools, slot.req_packets, in_order).map(Box::new)
}

/// One packet of a slot that has something to send: gives the credits it cost, or `None` when
/// the stage has no room. A packet that was sent before is also counted in `again`.
#[inline]
fn step<C>(
    lane: &mut Lane<'_>,
    slot: &mut ClientSlot<C>,
    remote: u32,
    credits: u32,
    dpp: u16,
    again: &mut u64,
) -> Option<u32> {
    let (session, req_num) = (remote, slot.req_num);
    let lost = if slot.lost > 0 { slot.next_lost(credits) } else { None };
    let index = lost.map_or(slot.req_sent, |(first, _)| first);
    if slot.resp_packets > 0 {
        let new = (slot.resp_asked, slot.resp_packets - slot.resp_asked);
        let (first, count) = lost.unwrap_or(new);
        let count = count.min(credits);
        let rfr = Packet::Rfr { session, req_num, first, count };
        if !lane.header_only(2, rfr.header()) {
            return None;
        }
        if first < slot.resp_high {
            retransmitted(lane, again);
        }
        slot.resp_asked = slot.resp_asked.max(first + count);
        slot.resp_high = slot.resp_high.max(slot.resp_asked);
        slot.note_sent(first, count, lane.now_ns);
        return Some(count);
    }
    let remaining_us = if index == 0 { slot.remaining_us(lane.now_ns) } else { None };
    let req = slot.req.as_mut()?;
    let msg_size = req.len() as u32;
    let at = index as usize * usize::from(dpp);
    let range = at..at + data_len(msg_size, index, dpp);
    let req_type = slot.req_type;
    let data: &[u8] = &[];
    let packet =
        Packet::Request { session, req_num, req_type, msg_size, index, remaining_us, data };
    if !lane.part(0, packet.header(), req, index, range) {
        return None;
    }
    // From here on it is like a call that was always so, if this is its only packet.
    slot.lone = if slot.lone == Lone::Fresh { Lone::Sent } else { Lone::No };
    if slot.req_high == 0 {
        slot.started_ns = lane.now_ns;
        slot.ack_owed = false; // the request says it (F6)
    }
    if index < slot.req_high {
        retransmitted(lane, again);
    }
    slot.req_sent = slot.req_sent.max(index + 1);
    slot.req_high = slot.req_high.max(slot.req_sent);
    slot.note_sent(index, 1, lane.now_ns);
    Some(1)
}

#[cold]
fn retransmitted(lane: &mut Lane<'_>, again: &mut u64) {
    *again += 1;
    lane.stats.retransmitted += 1;
}
