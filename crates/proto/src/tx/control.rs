//! Packets without data and without credit: acknowledgements (ADR 6), cancellations (ADR 15), gaps. Each
//! slot has at most one of its kind at a time, each peer one gap, so their number is bounded by
//! slots and peers.

use super::{Sent, TxItem};
use crate::flow::ClientFlow;
use crate::io::Io;
use crate::moves::Moves;
use crate::peer::Peer;
use crate::session::SessionState;
use crate::wire::Packet;

impl Io {
    pub(super) fn tx_gap(&mut self, peer: &mut Peer) -> Sent {
        if peer.gap_queued && !self.tx_header(7, peer, Packet::Gap) {
            return Sent::Rest(TxItem::Gap { peer: peer.number() });
        }
        peer.gap_queued = false;
        Sent::All
    }
}

impl Io {
    /// Sends the token of a challenge.
    pub(super) fn tx_proof(&mut self, peer: &mut Peer, moves: &mut Moves) -> Sent {
        let number = peer.number();
        if let Some(&token) = moves.proofs.get(&number)
            && !self.tx_header(10, peer, Packet::Proof { token })
        {
            return Sent::Rest(TxItem::Proof { peer: number });
        }
        moves.proofs.remove(&number);
        Sent::All
    }
}

impl<C> ClientFlow<'_, C> {
    pub(super) fn tx_ack(&mut self, req_num: u32) -> Sent {
        let (session, slot) = (self.s.remote, self.s.slots.of(req_num));
        let owed =
            slot.is_some_and(|slot| !slot.active && !slot.quarantined && slot.req_num == req_num);
        // Otherwise the next request acknowledges it.
        if owed && !self.io.tx_header(4, self.peer, Packet::Ack { session, req_num }) {
            return Sent::Rest(TxItem::Ack { session: self.index, req_num });
        }
        Sent::All
    }

    pub(super) fn tx_cancel(&mut self, slot_no: u8, req_num: u32) -> Sent {
        let (session, slot) = (self.s.remote, self.s.slots.get_mut(usize::from(slot_no)));
        let asked = slot.filter(|slot| slot.quarantined && slot.req_num == req_num);
        let Some(slot) = asked.filter(|_| self.s.state == SessionState::Connected) else {
            return Sent::All; // answered meanwhile
        };
        if !self.io.tx_header(5, self.peer, Packet::Cancel { session, req_num }) {
            return Sent::Rest(TxItem::Cancel { session: self.index, slot: slot_no, req_num });
        }
        slot.queued = false;
        self.extend_deadline(slot_no);
        Sent::All
    }
}
