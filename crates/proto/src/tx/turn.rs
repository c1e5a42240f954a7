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
        let cut = flow.tx_waiting(out);
        if cut.is_some() {
            flow.wait_first();
        }
        let next = TxItem::Turn { peer: peer_no };
        match (flow.peer.credits.end_turn(), cut) {
            (true, None) => flow.io.tx.push(next),
            (true, Some(Cut::Full)) => return Sent::Rest(next),
            (true, Some(Cut::Host(left))) => return Sent::Waits(next, left),
            (false, _) => {}
        }
        Sent::All
    }
}

/// Why a turn was cut short.
#[derive(Clone, Copy)]
enum Cut {
    /// The batch is full.
    Full,
    /// A message with this many packets left waits for the host's transmit queue.
    Host(u32),
}

impl<C> ClientFlow<'_, C> {
    /// Sends the messages and calls that wait for credits; in the next turn those of the other kind
    /// are first. Returns why not all is sent that credits allow.
    fn tx_waiting(&mut self, out: &mut TxBurst) -> Option<Cut> {
        let Some(outgoing) = self.s.outgoing.as_mut().filter(|outgoing| outgoing.stalled) else {
            return self.tx_stalled(out);
        };
        let messages_first = outgoing.before_calls;
        outgoing.before_calls = !messages_first;
        let cut = if messages_first { None } else { self.tx_stalled(out) };
        if matches!(cut, Some(Cut::Full)) {
            return cut;
        }
        if let Sent::Rest(_) = self.tx_messages(out) {
            if let Some(outgoing) = &mut self.s.outgoing {
                (outgoing.queued, outgoing.stalled) = (false, true);
            }
            return Some(Cut::Full);
        }
        if messages_first { self.tx_stalled(out) } else { cut }
    }

    /// Sends for the slots that wait for credits, in rotation, until credits run out. Returns why not
    /// all is sent that credits allow.
    fn tx_stalled(&mut self, out: &mut TxBurst) -> Option<Cut> {
        let first = u32::from(self.s.next_in_turn) % 32;
        let mut stalled = self.s.stalled.rotate_right(first);
        let mut cut = None;
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
            let is_full = match sent {
                Sent::All => false,
                Sent::Waits(_, left) => {
                    cut.get_or_insert(Cut::Host(left));
                    false
                }
                Sent::Rest(_) | Sent::Later(_) => true,
            };
            if !matches!(sent, Sent::All) {
                s.stalled |= 1 << slot_no;
                if let Some(slot) = s.slots.get_mut(usize::from(slot_no)) {
                    slot.queued = false;
                }
            } else if s.stalled & 1 << slot_no != 0 {
                return cut;
            }
            if is_full {
                return Some(Cut::Full);
            }
        }
        cut
    }
}
