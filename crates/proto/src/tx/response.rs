//! What a server sends of a stored response: the first packet by itself, the rest as asked
//! (E39, E43).

use courser_buf::TxBurst;

use super::{Sent, TxItem, live_peer};
use crate::endpoint::Endpoint;
use crate::session::Session;
use crate::slot::{ServerPhase, Stored};
use crate::wire::{Packet, data_len};

impl<C> Endpoint<C> {
    pub(crate) fn tx_response(
        &mut self,
        session: u32,
        slot_no: u8,
        req_num: u32,
        first: u32,
        count: u32,
        out: &mut TxBurst,
    ) -> Sent {
        for index in first..first + count {
            match self.tx_response_packet(session, slot_no, req_num, index, out) {
                Some(true) => {
                    self.stats.tx_packets += 1;
                    self.stats.tx_kinds[3] += 1;
                }
                Some(false) => {
                    let count = first + count - index;
                    let first = index;
                    let slot = slot_no;
                    return Sent::Rest(TxItem::Response { session, slot, req_num, first, count });
                }
                None => break,
            }
        }
        Sent::All
    }

    /// `None`: the response is gone; `Some(false)`: no room.
    #[inline]
    fn tx_response_packet(
        &mut self,
        session: u32,
        slot_no: u8,
        req_num: u32,
        index: u32,
        out: &mut TxBurst,
    ) -> Option<bool> {
        let Some(Session::Server(s)) = self.sessions.get_mut(session as usize) else { return None };
        let slot = s.slots.get_mut(usize::from(slot_no))?;
        if slot.req_num != req_num
            || slot.phase != ServerPhase::Responded
            || index >= slot.resp_packets
        {
            return None;
        }
        let peer = live_peer(&mut self.peers, s.peer)?;
        let session = s.remote;
        let msg = match &mut slot.resp {
            Stored::None => return None,
            Stored::Error(status) => {
                let packet = Packet::ErrorResponse { session, req_num, status: *status };
                return Some(self.tx.append(s.peer, peer, &self.arena, &packet, &[]));
            }
            Stored::Preallocated => slot.prealloc.as_mut()?,
            Stored::Owned(m) => m,
        };
        let (msg_size, dpp) = (slot.resp_size, s.data_per_packet);
        let packet = Packet::Response { session, req_num, msg_size, index, data: &[] };
        let len = data_len(msg_size, index, dpp);
        let at = index as usize * usize::from(dpp);
        let (sent, copied) = if len <= self.cfg.inline_max {
            let data = msg.get(at..at + len)?;
            (self.tx.append(s.peer, peer, &self.arena, &packet, data), false)
        } else {
            let (tx, now_ns) = (&mut self.tx, self.now_ns);
            tx.direct(s.peer, peer, &self.arena, &packet, msg, index, at..at + len, now_ns, out)
        };
        self.stats.tx_copied += u64::from(copied);
        Some(sent)
    }
}
