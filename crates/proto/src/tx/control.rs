//! Packets without data and without credit: acknowledgements (ADR 6), cancellations (ADR 15), gaps. Each
//! slot has at most one of its kind at a time, each peer one gap, so their number is bounded by
//! slots and peers.

use super::{Sent, TxItem};
use crate::endpoint::Endpoint;
use crate::session::SessionState;
use crate::wire::{Packet, header_words};

impl<C> Endpoint<C> {
    /// Adds a packet without data to a frame of the peer. `false`: no room.
    pub(super) fn tx_header(&mut self, kind: usize, peer_no: u32, packet: Packet<'_>) -> bool {
        let Some(peer) = self.io.peers.at_mut(peer_no) else { return true };
        let sent =
            self.io.tx.append(peer_no, peer, &self.io.arena, header_words(packet.header()), &[]);
        if sent {
            self.io.stats.sent(kind);
        }
        sent
    }

    pub(super) fn tx_gap(&mut self, peer_no: u32) -> Sent {
        let item = TxItem::Gap { peer: peer_no };
        let queued = self.io.peers.at(peer_no).is_some_and(|peer| peer.gap_queued);
        if queued && !self.tx_header(7, peer_no, Packet::Gap) {
            return Sent::Rest(item);
        }
        if let Some(peer) = self.io.peers.at_mut(peer_no) {
            peer.gap_queued = false;
        }
        Sent::All
    }

    pub(super) fn tx_ack(&mut self, session: u32, req_num: u32) -> Sent {
        let Some(s) = self.sessions.client(session) else { return Sent::All };
        let (peer, remote, slot) = (s.peer, s.remote, s.slots.of(req_num));
        let owed =
            slot.is_some_and(|slot| !slot.active && !slot.quarantined && slot.req_num == req_num);
        // Otherwise the next request acknowledges it.
        if owed && !self.tx_header(4, peer, Packet::Ack { session: remote, req_num }) {
            return Sent::Rest(TxItem::Ack { session, req_num });
        }
        Sent::All
    }

    pub(super) fn tx_cancel(&mut self, session: u32, slot_no: u8, req_num: u32) -> Sent {
        let Some(s) = self.sessions.client(session) else { return Sent::All };
        let (peer, remote, slot) = (s.peer, s.remote, s.slots.get(usize::from(slot_no)));
        let asked = slot.is_some_and(|slot| slot.quarantined && slot.req_num == req_num);
        if !asked || s.state != SessionState::Connected {
            return Sent::All; // answered meanwhile
        }
        if !self.tx_header(5, peer, Packet::Cancel { session: remote, req_num }) {
            return Sent::Rest(TxItem::Cancel { session, slot: slot_no, req_num });
        }
        if let Some(slot) = self.sessions.client_slot_mut(session, slot_no) {
            slot.queued = false;
        }
        let now_ns = self.io.now_ns;
        self.extend_deadline(session, slot_no, now_ns);
        Sent::All
    }
}
