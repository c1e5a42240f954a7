//! Sessions that wait for room in the credit pool of their peer ([`crate::credits`]): the waiting
//! queue, and the turn of the session that has waited longest.

use courser_buf::TxBurst;

use super::{Sent, TxItem};
use crate::endpoint::Endpoint;
use crate::flow::{ClientFlow, Shared};
use crate::session::SessionId;

impl<C> Endpoint<C> {
    /// The turn of the session that has waited longest: its slots take the returned room. The next
    /// session's turn follows while room is left.
    pub(super) fn tx_turn(&mut self, peer_no: u32, out: &mut TxBurst) -> Sent {
        let (sessions, Shared { io, peers, admission, out: outbox }) = self.split();
        let Some(peer) = peers.at_mut(peer_no) else { return Sent::All };
        // Sessions that have ended are skipped.
        let (index, s) = loop {
            let Some(SessionId { index, generation }) = peer.credits.next_waiter() else {
                return Sent::All; // there is no room for the one that has waited longest
            };
            if let Some(s) = sessions.client_mut(index)
                && s.generation == generation
                && s.waits_for_room
            {
                break (index, s);
            }
        };
        let mut flow = ClientFlow { s, peer, index, io, admission, out: outbox };
        flow.wait_no_more();
        flow.peer.credits.begin_turn();
        let done = flow.tx_waiting(out);
        if !done {
            flow.wait_first();
        }
        let again = flow.peer.credits.end_turn();
        if flow.peer.path.is_paced() && !flow.peer.credits.waits_for_departure() {
            flow.peer.path.on_paced_wait(false);
        }
        match again {
            true if done => flow.io.tx.push(TxItem::Turn { peer: peer_no }),
            true => return Sent::Rest(TxItem::Turn { peer: peer_no }),
            false => {}
        }
        Sent::All
    }
}

impl<C> ClientFlow<'_, C> {
    /// Sends the messages and calls that wait for credits; in the next turn those of the other kind
    /// are first. `false`: the batch is full.
    fn tx_waiting(&mut self, out: &mut TxBurst) -> bool {
        let Some(outgoing) = self.s.outgoing.as_mut().filter(|outgoing| outgoing.stalled) else {
            return self.tx_stalled(out);
        };
        let messages_first = outgoing.before_calls;
        outgoing.before_calls = !messages_first;
        if !messages_first && !self.tx_stalled(out) {
            return false;
        }
        if let Sent::Rest(_) = self.tx_messages(out) {
            if let Some(outgoing) = &mut self.s.outgoing {
                (outgoing.queued, outgoing.stalled) = (false, true);
            }
            return false;
        }
        !messages_first || self.tx_stalled(out)
    }

    /// Sends for the slots that wait for credits, in rotation, until credits run out. `false`: the
    /// batch is full.
    fn tx_stalled(&mut self, out: &mut TxBurst) -> bool {
        let first = u32::from(self.s.next_in_turn) % 32;
        let mut stalled = self.s.stalled.rotate_right(first);
        while stalled != 0 {
            let slot_no = ((stalled.trailing_zeros() + first) % 32) as u8;
            stalled &= stalled - 1;
            let before = self.s.credits.left();
            self.s.stalled &= !(1 << slot_no);
            let Some(slot) = self.s.slots.get(usize::from(slot_no)) else { continue };
            let req_num = slot.req_num;
            let sent = self.tx_client(slot_no, req_num, true, out);
            let s = &mut *self.s;
            // A slot that sent something is last in the next rotation.
            s.next_in_turn = slot_no + u8::from(s.credits.left() < before);
            if let Sent::Rest(_) | Sent::Later(_) = sent {
                s.stalled |= 1 << slot_no;
                if let Some(slot) = s.slots.get_mut(usize::from(slot_no)) {
                    slot.queued = false;
                }
                return false;
            }
            if s.stalled & 1 << slot_no != 0 {
                return true;
            }
        }
        true
    }
}
