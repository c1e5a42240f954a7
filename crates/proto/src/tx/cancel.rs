//! Cancellations, sent by slots in quarantine (F15). They cost no credit, like acknowledgements:
//! a slot has one at a time, so there are never more of them than slots.

use super::{Sent, TxItem};
use crate::endpoint::Endpoint;
use crate::session::{Session, SessionState};
use crate::wire::Packet;

impl<C> Endpoint<C> {
    #[cold]
    pub(crate) fn tx_cancel(&mut self, session: u32, slot_no: u8, req_num: u32) -> Sent {
        let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else {
            return Sent::All;
        };
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return Sent::All };
        if !slot.quarantined || slot.req_num != req_num || s.state != SessionState::Connected {
            return Sent::All; // answered meanwhile
        }
        let Some(Some(peer)) = self.peers.get_mut(s.peer as usize) else { return Sent::All };
        let cancel = Packet::Cancel { session: s.remote, req_num };
        if !self.tx.append(s.peer, peer, &self.arena, cancel.header(), &[]) {
            return Sent::Rest(TxItem::Cancel { session, slot: slot_no, req_num });
        }
        slot.queued = false;
        self.stats.sent(5);
        let now_ns = self.now_ns;
        self.extend_deadline(session, slot_no, now_ns);
        Sent::All
    }
}
