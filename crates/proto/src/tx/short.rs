//! Short cuts of the transmit path: one small packet that is copied into its peer's open frame.
//! Each first looks whether that is all there is to do, and does nothing when it is not; what it
//! does is then what the general code would (`tests/short_cuts.rs` compares the two).

use crate::endpoint::Endpoint;
use crate::session::{Session, SessionState};
use crate::slot::Lone;
use crate::wire::{SHORT_REQUEST, SHORT_RESPONSE, short_header};

impl<C> Endpoint<C> {
    /// The request of a [`Lone::Fresh`] call, when there is a credit for it:
    /// [`Endpoint::tx_client`]. `false`: nothing was done.
    #[inline(always)]
    pub(crate) fn tx_short_request(&mut self, session: u32, slot_no: u8, req_num: u32) -> bool {
        let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else {
            return false;
        };
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return false };
        // A slot whose first look is over needs a timer of its own.
        let expected = slot.lone == Lone::Fresh && slot.req_num == req_num && slot.tracked;
        if !expected || s.credits == 0 || s.state != SessionState::Connected {
            return false;
        }
        let Some(data) = slot.req.as_deref().filter(|data| data.len() <= self.cfg.inline_max)
        else {
            return false;
        };
        let Some(Some(peer)) = self.peers.get_mut(s.peer as usize) else { return false };
        if peer.pool.open == 0 {
            return false;
        }
        let (req_type, size) = (slot.req_type, data.len() as u32);
        let header = short_header(SHORT_REQUEST, s.remote, req_num, req_type, size);
        if !self.tx.append_short(s.peer, peer, &self.arena, header, data) {
            return false;
        }
        slot.sent_lone(self.now_ns);
        s.credits -= 1;
        peer.pool.open -= 1;
        self.stats.sent(0);
        self.stats.max_in_flight = self.stats.max_in_flight.max(s.credit_limit - s.credits);
        true
    }

    /// The one packet of a preallocated response: [`Endpoint::tx_response`]. `false`: nothing was
    /// done.
    #[inline(always)]
    pub(crate) fn tx_short_response(&mut self, session: u32, slot_no: u8, req_num: u32) -> bool {
        let Some(Session::Server(s)) = self.sessions.get_mut(session as usize) else {
            return false;
        };
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return false };
        if slot.req_num != req_num {
            return false;
        }
        let size = slot.resp_size;
        let Some(data) = slot.short_response().filter(|data| data.len() <= self.cfg.inline_max)
        else {
            return false;
        };
        let Some(Some(peer)) = self.peers.get_mut(s.peer as usize) else { return false };
        let header = short_header(SHORT_RESPONSE, s.remote, req_num, 0, size);
        if !self.tx.append_short(s.peer, peer, &self.arena, header, data) {
            return false;
        }
        slot.sent_short();
        self.stats.sent(3);
        true
    }
}
