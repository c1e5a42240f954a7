//! Sessions that wait for room in the credit pool of their peer ([`crate::credits`]): the waiting
//! queue, and the turn of the session that has waited longest.

use courser_buf::TxBurst;

use super::{Sent, TxItem};
use crate::endpoint::Endpoint;
use crate::session::SessionId;

impl<C> Endpoint<C> {
    /// Room of the peer's sessions returns to the pool.
    #[inline(always)]
    pub(crate) fn release_room(&mut self, peer_no: u32, units: u32) {
        if let Some(peer) = self.io.peers.at_mut(peer_no)
            && peer.credits.release(units)
        {
            self.io.tx.push(TxItem::Turn { peer: peer_no });
        }
    }

    /// Queues a turn if there is room: a waiting session has ended, or has less to send.
    #[cold]
    pub(crate) fn retry_turn(&mut self, peer_no: u32) {
        if let Some(peer) = self.io.peers.at_mut(peer_no)
            && peer.credits.retry_turn()
        {
            self.io.tx.push(TxItem::Turn { peer: peer_no });
        }
    }

    /// The peer's pool lacks room for a packet of `units` units: the session waits for its turn.
    #[cold]
    pub(crate) fn wait_for_room(&mut self, index: u32, units: u16) {
        let Some((peer_no, session)) = self.begin_wait(index) else { return };
        self.io.stats.pool_waits += 1;
        if let Some(peer) = self.io.peers.at_mut(peer_no)
            && peer.credits.wait(session, units)
        {
            self.io.tx.push(TxItem::Turn { peer: peer_no });
        }
    }

    /// A packet of the session has to wait for its departure time: the next turn of the sessions with
    /// its peer is then.
    #[cold]
    pub(super) fn pace(&mut self, session: u32, at_ns: u64) {
        let Some(peer_no) = self.sessions.client(session).map(|s| s.peer) else { return };
        if let Some(peer) = self.io.peers.at_mut(peer_no)
            && peer.credits.begin_pacing()
        {
            self.io.peers.wheel.add(peer_no, at_ns, self.io.now_ns);
            self.io.stats.paced += 1;
        }
    }

    /// Departure times have come: queues the turns of these peers.
    #[cold]
    pub(crate) fn on_wheel(&mut self) {
        while let Some(peer_no) = self.io.peers.wheel.pop(self.io.now_ns) {
            if let Some(peer) = self.io.peers.at_mut(peer_no)
                && peer.credits.end_pacing()
            {
                self.io.tx.push(TxItem::Turn { peer: peer_no });
            }
        }
    }

    /// The turn of a session was cut short: it is the next one again.
    #[cold]
    fn wait_first(&mut self, index: u32) {
        let Some((peer_no, session)) = self.begin_wait(index) else { return };
        if let Some(peer) = self.io.peers.at_mut(peer_no) {
            peer.credits.wait_first(session);
        }
    }

    /// `None`: the session already waits.
    fn begin_wait(&mut self, index: u32) -> Option<(u32, SessionId)> {
        let s = self.sessions.client_mut(index)?;
        let waited = std::mem::replace(&mut s.waits_for_room, true);
        (!waited).then_some((s.peer, SessionId { index, generation: s.generation }))
    }

    /// The turn of the session that has waited longest: its slots take the returned room. The next
    /// session's turn follows while room is left.
    pub(super) fn tx_turn(&mut self, peer_no: u32, out: &mut TxBurst) -> Sent {
        let Some(session) = self.next_waiter(peer_no) else { return Sent::All };
        self.wait_no_more(session);
        if let Some(peer) = self.io.peers.at_mut(peer_no) {
            peer.credits.begin_turn();
        }
        let done = self.tx_waiting(session, out);
        if !done {
            self.wait_first(session);
        }
        let Some(peer) = self.io.peers.at_mut(peer_no) else { return Sent::All };
        match peer.credits.end_turn() {
            true if done => self.io.tx.push(TxItem::Turn { peer: peer_no }),
            true => return Sent::Rest(TxItem::Turn { peer: peer_no }),
            false => {}
        }
        Sent::All
    }

    /// The session that has waited longest, if there is room for it. Skips sessions that have
    /// ended.
    fn next_waiter(&mut self, peer_no: u32) -> Option<u32> {
        loop {
            let SessionId { index, generation } =
                self.io.peers.at_mut(peer_no)?.credits.next_waiter()?;
            if let Some(s) = self.sessions.client(index)
                && s.generation == generation
                && s.waits_for_room
            {
                return Some(index);
            }
        }
    }

    /// Sends the messages and calls of a session that wait for credits; in the next turn those of the
    /// other kind are first. `false`: the batch is full.
    fn tx_waiting(&mut self, session: u32, out: &mut TxBurst) -> bool {
        let Some(s) = self.sessions.client_mut(session) else { return true };
        let Some(outgoing) = s.outgoing.as_mut().filter(|outgoing| outgoing.stalled) else {
            return self.tx_stalled(session, out);
        };
        let messages_first = outgoing.before_calls;
        outgoing.before_calls = !messages_first;
        if !messages_first && !self.tx_stalled(session, out) {
            return false;
        }
        if let Sent::Rest(_) = self.tx_messages(session, out) {
            if let Some(outgoing) =
                self.sessions.client_mut(session).and_then(|s| s.outgoing.as_mut())
            {
                (outgoing.queued, outgoing.stalled) = (false, true);
            }
            return false;
        }
        !messages_first || self.tx_stalled(session, out)
    }

    /// Sends for the slots of a session that wait for credits, in rotation, until credits run out.
    /// `false`: the batch is full.
    fn tx_stalled(&mut self, session: u32, out: &mut TxBurst) -> bool {
        let Some(s) = self.sessions.client_mut(session) else { return true };
        let first = u32::from(s.next_in_turn) % 32;
        let mut stalled = s.stalled.rotate_right(first);
        while stalled != 0 {
            let slot_no = ((stalled.trailing_zeros() + first) % 32) as u8;
            stalled &= stalled - 1;
            let Some(s) = self.sessions.client_mut(session) else { return true };
            let before = s.credits.left();
            s.stalled &= !(1 << slot_no);
            let Some(slot) = s.slots.get(usize::from(slot_no)) else { continue };
            let req_num = slot.req_num;
            let sent = self.tx_client(session, slot_no, req_num, true, out);
            let Some(s) = self.sessions.client_mut(session) else { return true };
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
