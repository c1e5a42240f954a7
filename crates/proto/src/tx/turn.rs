//! Sessions that wait for room in the credit pool of their peer ([`crate::credits`]): the waiting
//! queue, and the turn of the session that has waited longest.

use courser_buf::TxBurst;

use super::{Sent, TxItem, Waiter};
use crate::credits::{AtHostEntry, CreditPool};
use crate::endpoint::Endpoint;
use crate::flow::{ClientFlow, Shared};
use crate::io::Io;
use crate::session::SessionId;

impl<C> Endpoint<C> {
    /// The turn of the session that has waited longest: its slots take the returned room. The next
    /// session's turn follows while room is left.
    pub(super) fn tx_turn(&mut self, peer_no: u32, out: &mut TxBurst) -> Sent {
        let next = |pool: &mut CreditPool, _: &mut Io| Some((pool.next_waiter()?, ()));
        let sent = self.next_in_pool(peer_no, next, |flow, ()| {
            flow.s.waits_for_room.then(|| flow.tx_turn(peer_no, out))
        });
        sent.unwrap_or(Sent::All) // there may be no room for the one that has waited longest
    }

    /// The turn of a peer's pool at the host's transmit queue ([`super::host`]): that of the request which
    /// has waited longest of those that had their turn in the pool.
    pub(super) fn tx_pool_at_host(&mut self, peer_no: u32, out: &mut TxBurst) -> Sent {
        let next = |pool: &mut CreditPool, io: &mut Io| {
            let request = pool.next_at_host();
            if request.is_none() && pool.retry_turn() {
                io.tx.push(TxItem::Turn { peer: peer_no }); // in the room that was kept
            }
            request.map(|request| (request.0, request))
        };
        let sent = self.next_in_pool(peer_no, next, |flow, request| {
            Some(flow.tx_turn_at_host(peer_no, request, out))
        });
        sent.unwrap_or(Sent::All) // the sessions of all may have ended
    }

    /// Takes sessions with `next` from the pool of a peer until one is live and `then` returns something.
    fn next_in_pool<T, R>(
        &mut self,
        peer_no: u32,
        mut next: impl FnMut(&mut CreditPool, &mut Io) -> Option<(SessionId, T)>,
        mut then: impl FnMut(&mut ClientFlow<'_, C>, T) -> Option<R>,
    ) -> Option<R> {
        let (sessions, Shared { io, peers, admission, out }) = self.split();
        let peer = peers.at_mut(peer_no)?;
        loop {
            let (SessionId { index, generation }, of_turn) = next(&mut peer.credits, io)?;
            let s = sessions.client_mut(index).filter(|s| s.generation == generation);
            let Some(s) = s else { continue };
            let mut flow = ClientFlow { s, peer, index, io, admission, out };
            if let Some(result) = then(&mut flow, of_turn) {
                return Some(result);
            }
        }
    }
}

impl<C> ClientFlow<'_, C> {
    /// The session's turn in the pool of its peer.
    fn tx_turn(&mut self, peer_no: u32, out: &mut TxBurst) -> Sent {
        self.end_wait_for_room();
        self.peer.credits.begin_turn();
        let done = self.tx_waiting(out);
        if !done {
            self.wait_first();
        }
        match self.end_turn() {
            true if done => self.io.tx.push(TxItem::Turn { peer: peer_no }),
            true => return Sent::Rest(TxItem::Turn { peer: peer_no }),
            false => {}
        }
        Sent::All
    }

    /// The turn of a request of the session at the host's transmit queue and in the pool of its peer.
    fn tx_turn_at_host(&mut self, peer_no: u32, request: AtHostEntry, out: &mut TxBurst) -> Sent {
        let (_, slot_no, _) = request;
        self.peer.credits.begin_host_turn();
        let before = self.s.credits.left();
        let sent = self.tx_client_at_host(slot_no, true, out);
        let has_sent = self.s.credits.left() < before;
        if has_sent || self.s.waits_for_room {
            self.peer.credits.keep_room(has_sent);
        }
        if let Sent::Rest(_) = sent {
            self.peer.credits.first_at_host(request);
        }
        if self.end_turn() {
            self.io.tx.push(TxItem::Turn { peer: peer_no });
        }
        if let Sent::Rest(_) = sent {
            return Sent::Rest(TxItem::PoolTurn { peer: peer_no });
        }
        if let Some(left) = self.peer.credits.continue_at_host() {
            self.io.wait_for_host(Waiter::Pool { peer: peer_no }, left);
        }
        sent
    }

    /// Ends a turn in the pool of the peer. Returns whether the next one is to be queued.
    fn end_turn(&mut self) -> bool {
        let again = self.peer.credits.end_turn();
        if self.peer.path.is_paced() && !self.peer.credits.waits_for_departure() {
            self.peer.path.on_paced_wait(false);
        }
        again
    }

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
