//! What a server sends of a stored response: the first packet by itself, the rest as asked
//! (E39, E43).

use courser_buf::TxBurst;

use super::{Lane, Sent, TxItem};
use crate::endpoint::Endpoint;
use crate::session::Session;
use crate::slot::{ServerPhase, Stored};
use crate::wire::{Packet, data_len};

impl<C> Endpoint<C> {
    /// Sends the packets of a response that are due.
    #[inline(never)] // small responses are `tx/short`'s
    pub(crate) fn tx_response(
        &mut self,
        session: u32,
        slot_no: u8,
        req_num: u32,
        out: &mut TxBurst,
    ) -> Sent {
        let Some(Session::Server(s)) = self.sessions.get_mut(session as usize) else {
            return Sent::All;
        };
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return Sent::All };
        if slot.req_num != req_num || slot.phase != ServerPhase::Responded {
            return Sent::All; // outlived: a later response has an item of its own
        }
        let Some(Some(peer)) = self.peers.get_mut(s.peer as usize) else { return Sent::All };
        let mut lane = Lane {
            tx: &mut self.tx,
            arena: &self.arena,
            stats: &mut self.stats,
            inline_max: self.cfg.inline_max,
            now_ns: self.now_ns,
            peer_no: s.peer,
            peer,
            out,
        };
        let (remote, dpp, msg_size) = (s.remote, s.data_per_packet, slot.resp_size);
        slot.short_due = false;
        while slot.send_next < slot.send_end.min(slot.resp_packets) || slot.next_part() {
            let index = slot.send_next;
            let msg = match &mut slot.resp {
                Stored::None => break,
                Stored::Error(status) => {
                    let status = *status;
                    let packet = Packet::ErrorResponse { session: remote, req_num, status };
                    if !lane.header_only(3, packet.header()) {
                        return Sent::Rest(TxItem::Response { session, slot: slot_no, req_num });
                    }
                    break;
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
                return Sent::Rest(TxItem::Response { session, slot: slot_no, req_num });
            }
            slot.send_next += 1;
        }
        slot.resp_queued = false;
        Sent::All
    }
}
