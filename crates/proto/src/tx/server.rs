//! Transmission of a server slot: the first packet of a stored response unsolicited, the rest as
//! requested (E39, E43), and credit returns.

use courser_buf::TxBurst;

use super::lane::Lane;
use super::{Sent, TxItem, Waiter};
use crate::flow::ServerFlow;
use crate::io::Io;
use crate::peer::Peer;
use crate::slot::{ServerPhase, ServerSlot, Stored};
use crate::wire::{
    FRAME_HEADER, Hole, Holes, NO_HOLES, PACKET_HEADER, Packet, data_len, header_words,
    single_response,
};

/// Sends for the first time a response of one small packet in the slot's own buffer: the straight
/// line of a small RPC. `session` is the peer's number for the session. `false`: the batch has no
/// room, or it is not such a response; nothing has changed.
#[inline(always)] // inlined into the reply and into the transmit loop
pub(crate) fn send_single_response(
    io: &mut Io,
    peer: &mut Peer,
    session: u32,
    slot: &mut ServerSlot,
) -> bool {
    let req_num = slot.req_num;
    let inline_max = io.cfg.inline_max;
    let Some(data) = slot.single_response_data().filter(|data| data.len() <= inline_max) else {
        return false;
    };
    let header = single_response(session, req_num, data.len() as u32);
    if !io.tx.append(peer, &io.arena, header, data) {
        return false;
    }
    slot.sent_single();
    io.stats.sent(3);
    true
}

impl<C> ServerFlow<'_, C> {
    /// Sends the response packets that are due.
    #[inline]
    pub(super) fn tx_response(&mut self, slot_no: u8, req_num: u32, out: &mut TxBurst) -> Sent {
        let remote = self.s.remote;
        let Some(slot) = self.s.slots.get_mut(usize::from(slot_no)) else { return Sent::All };
        if slot.req_num == req_num && send_single_response(self.io, self.peer, remote, slot) {
            return Sent::All;
        }
        self.tx_response_packets(slot_no, req_num, out)
    }

    /// [`ServerFlow::tx_response`] for a response of several packets, in a buffer of its own, or
    /// retransmitted.
    fn tx_response_packets(&mut self, slot_no: u8, req_num: u32, out: &mut TxBurst) -> Sent {
        let (s, io, session) = (&mut *self.s, &mut *self.io, self.index);
        let (remote, dpp) = (s.remote, s.data_per_packet);
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return Sent::All };
        if slot.req_num != req_num || slot.phase != ServerPhase::Responded {
            return Sent::All; // a later response has its own queue item
        }
        let mut lane = Lane {
            tx: &mut io.tx,
            arena: &io.arena,
            stats: &mut io.stats,
            inline_max: io.cfg.inline_max,
            peer: self.peer,
            out,
        };
        let msg_size = slot.response_size();
        let item = TxItem::Response { session, slot: slot_no, req_num };
        let is_limited = slot.response_packets() > 1 && lane.tx.host.is_limited();
        let bytes = usize::from(dpp) + FRAME_HEADER + PACKET_HEADER;
        let turn = if is_limited { lane.tx.host.turn(bytes) } else { u32::MAX };
        let mut allowed = turn;
        let mut waits = false;
        while let Some(index) = slot.due_packet() {
            if allowed == 0 {
                waits = true;
                break;
            }
            let msg = match &mut slot.resp {
                Stored::None => break,
                Stored::Error(status) => {
                    let status = *status;
                    let packet = Packet::ErrorResponse { session: remote, req_num, status };
                    if !lane.header_only(3, packet.header()) {
                        return Sent::Rest(item);
                    }
                    break;
                }
                Stored::Short => {
                    let packet =
                        Packet::Response { session: remote, req_num, msg_size, index, data: &[] };
                    if !lane.short(3, packet.header(), slot.short_response()) {
                        return Sent::Rest(item);
                    }
                    slot.sent_due_packet();
                    continue;
                }
                Stored::Preallocated => match &mut slot.prealloc {
                    Some(m) => m,
                    None => break,
                },
                Stored::Owned(m) => m,
            };
            let at = index as usize * usize::from(dpp);
            let range = at..at + data_len(msg_size, index, dpp);
            let packet = Packet::Response { session: remote, req_num, msg_size, index, data: &[] };
            if !lane.part(3, packet.header(), msg, index, range) {
                lane.tx.host.on_sent_in_turn((turn, allowed), bytes);
                return Sent::Rest(item);
            }
            slot.sent_due_packet();
            allowed -= 1;
        }
        lane.tx.host.on_sent_in_turn((turn, allowed), bytes);
        match waits {
            true => self.wait_for_host(slot_no),
            false => slot.sent_all_due(),
        }
        Sent::All
    }

    /// The response of a slot waits for its turn at the host's transmit queue.
    fn wait_for_host(&mut self, slot_no: u8) {
        let session = self.id();
        let slot = &mut self.s.slots[usize::from(slot_no)];
        if slot.wait_for_host() {
            let waiter = Waiter::Response { session, slot: slot_no };
            self.io.wait_for_host(waiter, slot.response_left());
        }
    }

    /// The response of a slot has its turn at the host's transmit queue.
    pub(super) fn tx_response_at_host(&mut self, slot_no: u8, out: &mut TxBurst) -> Sent {
        let Some(slot) = self.s.slots.get_mut(usize::from(slot_no)) else { return Sent::All };
        if !slot.leave_host() {
            return Sent::All;
        }
        let req_num = slot.req_num;
        self.io.tx.host.begin_turn();
        let sent = self.tx_response_packets(slot_no, req_num, out);
        self.io.tx.host.end_turn();
        if let Sent::Rest(_) = sent {
            self.s.slots[usize::from(slot_no)].wait_for_host();
            return Sent::Rest(TxItem::ResponseTurn { session: self.id(), slot: slot_no });
        }
        sent
    }

    /// Returns credits for the request packets that have arrived, with the holes between them.
    pub(super) fn tx_credit_return(&mut self, slot_no: u8, req_num: u32) -> Sent {
        let item = TxItem::CreditReturn { session: self.index, slot: slot_no, req_num };
        let remote = self.s.remote;
        let Some(slot) = self.s.slots.get(usize::from(slot_no)) else { return Sent::All };
        if slot.req_num != req_num {
            return Sent::All; // `begin` has cleared the flags of a later request
        }
        let (message, owner) = (slot.message(), self.owner(slot_no));
        let grant = self.admission.stated_grant(self.io, message, &owner);
        let owes = self.admission.budget.owes(message, &owner);
        let slot = &mut self.s.slots[usize::from(slot_no)];
        let is_arriving = slot.phase == ServerPhase::Receiving;
        let waits_for_grant = slot.cr_in_progress && is_arriving;
        let in_order = slot.returnable();
        // A request that waits for a grant keeps one packet unacknowledged (ADR 35). One with a NACK
        // does so by its holes.
        let count = in_order.saturating_sub(u32::from(is_arriving && (waits_for_grant || owes)));
        // Also when a response waits for the host's transmit queue.
        let has_answer = slot.phase == ServerPhase::Executing || slot.waits_for_host();
        let in_progress = slot.cr_in_progress && has_answer || waits_for_grant;
        let high = slot.gaps.as_ref().and_then(|gaps| gaps.high(slot.req_rcvd));
        if let Some(missing) = slot.nack_due() {
            let mut room = NO_HOLES;
            let hole = [Hole { first: missing, len: 1 }];
            let holes = Holes::write(in_order, hole.into_iter(), &mut room);
            let nack = Packet::Nack {
                session: remote,
                req_num,
                count: in_order,
                high: missing + 2,
                holes,
            };
            let header = header_words(nack.header());
            if !self.io.tx.append(self.peer, &self.io.arena, header, nack.data()) {
                return Sent::Rest(item);
            }
            slot.sent_nack();
            self.io.stats.sent(6);
        } else if let Some(high) = high.filter(|_| is_arriving && !waits_for_grant) {
            let mut room = NO_HOLES;
            let holes = slot.gaps.iter().flat_map(|gaps| gaps.holes(in_order));
            let holes = Holes::write(in_order, holes, &mut room);
            let nack = Packet::Nack { session: remote, req_num, count: in_order, high, holes };
            let header = header_words(nack.header());
            if !self.io.tx.append(self.peer, &self.io.arena, header, nack.data()) {
                return Sent::Rest(item);
            }
            self.io.stats.sent(6);
        } else if (count > 0 || in_progress) && slot.phase != ServerPhase::Acked {
            let session = remote;
            let cr = Packet::CreditReturn { session, req_num, count, in_progress, grant };
            if !self.io.tx.append(self.peer, &self.io.arena, header_words(cr.header()), &[]) {
                return Sent::Rest(item);
            }
            self.io.stats.sent(1);
            self.io.stats.in_progress_sent += u64::from(in_progress);
        }
        slot.cr_queued = false;
        slot.cr_in_progress = false;
        Sent::All
    }
}
