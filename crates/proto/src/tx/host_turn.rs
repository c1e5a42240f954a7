//! Turns of large messages that wait for the host's own transmit queue (`host`).

use courser_buf::TxBurst;

use super::host::Waiter;
use super::{Sent, TxItem};
use crate::endpoint::Endpoint;
use crate::flow::{ClientFlow, Shared};

impl<C> Endpoint<C> {
    /// The host's transmit queue may have room: the message that is next has its turn.
    pub(super) fn tx_host(&mut self, out: &mut TxBurst) -> Sent {
        let Some(waiter) = self.io.tx.host.next() else {
            self.io.continue_host();
            return Sent::All;
        };
        let sent = match waiter {
            Waiter::Request { session, slot } => {
                let flow = self.client_flow(session.index).filter(|flow| flow.id() == session);
                flow.map_or(Sent::All, |mut flow| flow.tx_client_at_host(slot, false, out))
            }
            Waiter::Response { session, slot } => {
                let flow = self.server_flow(session.index).filter(|flow| flow.id() == session);
                flow.map_or(Sent::All, |mut flow| flow.tx_response_at_host(slot, out))
            }
            Waiter::Pool { peer } => self.tx_pool_at_host(peer, out),
        };
        self.io.tx.host.end_turn();
        if let Sent::Rest(_) = sent {
            self.io.tx.host.wait_first(waiter);
            return Sent::Rest(TxItem::Host);
        }
        self.io.continue_host();
        sent
    }

    /// The turn of a peer's pool: that of the request that has waited longest of those which had their
    /// turn in the pool.
    fn tx_pool_at_host(&mut self, peer_no: u32, out: &mut TxBurst) -> Sent {
        let (sessions, Shared { io, peers, admission, out: outbox }) = self.split();
        let Some(peer) = peers.at_mut(peer_no) else { return Sent::All };
        peer.credits.begin_host_turn();
        let mut sent = Sent::All;
        while io.tx.host.has_turn()
            && let Some((id, slot_no, left)) = peer.credits.next_at_host()
        {
            // Sessions that have ended are skipped, and slots with nothing to send.
            let s = sessions.client_mut(id.index).filter(|s| s.generation == id.generation);
            let Some(s) = s else { continue };
            let before = s.credits.left();
            let mut flow =
                ClientFlow { s, peer: &mut *peer, index: id.index, io, admission, out: outbox };
            sent = flow.tx_client_at_host(slot_no, true, out);
            let has_sent = flow.s.credits.left() < before;
            if has_sent || flow.s.waits_for_room {
                flow.peer.credits.keep_room(has_sent);
            }
            if let Sent::Rest(_) = sent {
                peer.credits.first_at_host((id, slot_no, left));
            }
        }
        if peer.credits.end_turn() {
            io.tx.push(TxItem::Turn { peer: peer_no });
        }
        if let Some(left) = peer.credits.continue_at_host() {
            io.wait_for_host(Waiter::Pool { peer: peer_no }, left);
        }
        sent
    }
}
