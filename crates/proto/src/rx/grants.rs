//! Grants: what the receiver's budget ([`crate::budget`]) allows the senders of large messages.
//!
//! A server states grants in credit returns. When the sender of a message has nothing left that it
//! may send, the server withholds the credit return for the last packet: it leaves with the grant, so a packet of a client causes
//! at most one of the server (E39), and the client's timers recover a lost grant. A client has its
//! own grants at hand and requests that many packets of a response.

use crate::budget::{Grant, NO_MESSAGE, Owner};
use crate::endpoint::Endpoint;
use crate::event::RequestId;
use crate::mutant::{self, Mutant};
use crate::session::{Session, SessionId};
use crate::slot::ServerPhase;
use crate::tx::TxItem;

/// Messages that are checked when a duplicate arrives: a flood of them must not cost more.
const RECLAIMED_AT_ONCE: usize = 16;

impl<C> Endpoint<C> {
    /// A new packet of an incomplete request of several packets has arrived. Returns whether a
    /// credit return is to be sent now.
    #[inline]
    pub(super) fn grant_request(&mut self, id: RequestId, peer: u32) -> bool {
        let now_ns = self.io.now_ns;
        let Some(s) = self.sessions.server_mut(id.session().index) else { return true };
        let dpp = u32::from(s.data_per_packet);
        let Some(slot) = self.server_slot_mut(id) else { return true };
        let at = slot.message();
        let has_gaps = slot.gaps.as_ref().is_some_and(|gaps| gaps.high(slot.req_rcvd).is_some());
        let owner = request_owner(id);
        self.budget.on_arrival(at, &owner, now_ns);
        self.keep_promise(at, &owner, dpp);
        if self.budget.lacks_memory() && self.budget.waits(at, &owner) {
            // The credit return for its first packet is withheld.
            return self.budget.arrived(at, &owner) > 1;
        }
        if !self.budget.is_in_force() {
            return true;
        }
        self.budget.enqueue(at, &owner);
        self.share_out();
        let pool = self.io.peers.at(peer).map_or(0, |p| p.credits.granted());
        let session = self.sessions.server_mut(id.session().index);
        let credits = session.map_or(0, |s| s.credit_limit).min(pool);
        // With gaps its sender has packets to send again, and a NACK leaves now.
        has_gaps || !self.budget.withholds(at, &owner, credits)
    }

    /// A request is complete, rejected or cancelled.
    #[inline]
    pub(crate) fn end_request(&mut self, id: RequestId) {
        let Some(slot) = self.server_slot_mut(id) else { return };
        let at = slot.set_message(NO_MESSAGE);
        if at != NO_MESSAGE {
            self.end_message(at, &request_owner(id));
        }
    }

    /// A server session ends: so do the requests that are arriving.
    pub(crate) fn end_requests(&mut self, index: u32) {
        let Some(Session::Server(s)) = self.sessions.get(index as usize) else { return };
        let session = SessionId { index, generation: s.generation };
        let arriving = s.slots.iter().enumerate().filter(|(_, slot)| slot.message() != NO_MESSAGE);
        let ids = arriving.map(|(at, slot)| RequestId::new(session, at as u8, slot.req_num));
        for id in ids.collect::<Vec<_>>() {
            self.end_request(id);
        }
    }

    /// Updates the count of slots that await a grant, after a change of this slot.
    #[inline]
    pub(crate) fn note_awaiting(&mut self, session: u32, slot_no: u8) {
        let Some(s) = self.sessions.client_mut(session) else { return };
        let peer = s.peer;
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return };
        if !slot.update_awaiting() {
            return;
        }
        let awaits = slot.is_awaiting();
        if let Some(p) = self.io.peers.at_mut(peer) {
            p.path.on_awaiting(awaits);
        }
        self.apply_window(peer);
    }

    /// Checks that the budget has exactly the messages that arrive.
    pub(crate) fn check_budget(&self) {
        self.budget.check();
        self.quotas.check();
        assert_eq!(self.budget.promised(), self.quotas.promised(), "promised, and growing");
        let mut arriving = 0;
        for session in self.sessions.iter() {
            arriving += match session {
                Session::Client(s) => s.slots.iter().filter(|s| s.message() != NO_MESSAGE).count(),
                Session::Server(s) => s.slots.iter().filter(|s| s.message() != NO_MESSAGE).count(),
                _ => 0,
            };
        }
        assert_eq!(
            self.budget.owners().count(),
            arriving,
            "messages of the budget that do not arrive"
        );
    }

    /// A message has ended: its part of the budget is for others.
    pub(crate) fn end_message(&mut self, at: u32, owner: &Owner) {
        let limited = self.budget.is_in_force();
        if !mutant::is_on(Mutant::BudgetLeaks) {
            let reserved = self.budget.end(at, owner);
            self.unreserve(reserved);
        }
        if limited {
            if self.budget.is_in_force() {
                self.share_out();
            } else {
                self.lift_limits();
            }
        }
    }

    /// The first packet of a response of several packets has arrived.
    pub(super) fn begin_fetch(&mut self, session: u32, slot_no: u8, peer: u32) {
        if !self.budget.is_enabled() {
            return;
        }
        let (now_ns, limited) = (self.io.now_ns, self.budget.is_in_force());
        let Some((owner, packets)) = self.fetch_owner(session, slot_no) else { return };
        let at = self.budget.begin(owner, peer, packets, (1, 1), now_ns);
        if !limited {
            self.budget.grant_all(at, &owner);
        }
        if let Some(slot) = self.sessions.client_slot_mut(session, slot_no) {
            slot.set_message(at);
            slot.grant_response(if limited { 1 } else { u32::MAX });
        }
        self.budget_may_begin(limited);
        if self.budget.is_in_force() {
            self.budget.enqueue(at, &owner);
            self.share_out();
        }
    }

    /// `packets` further packets of a response have arrived.
    pub(super) fn grant_fetch(&mut self, session: u32, slot_no: u8) {
        let Some(slot) = self.sessions.client_slot_mut(session, slot_no) else { return };
        let at = slot.message();
        if at == NO_MESSAGE {
            return;
        }
        let Some((owner, _)) = self.fetch_owner(session, slot_no) else { return };
        self.budget.on_arrival(at, &owner, self.io.now_ns);
        if self.budget.is_in_force() {
            self.budget.enqueue(at, &owner);
            self.share_out();
        }
    }

    /// A response has arrived, or its call has ended without it.
    #[inline]
    pub(crate) fn end_fetch(&mut self, session: u32, slot_no: u8) {
        let Some(slot) = self.sessions.client_slot_mut(session, slot_no) else { return };
        if slot.message() == NO_MESSAGE {
            return;
        }
        let Some((owner, _)) = self.fetch_owner(session, slot_no) else { return };
        let Some(slot) = self.sessions.client_slot_mut(session, slot_no) else { return };
        let at = slot.set_message(NO_MESSAGE);
        self.end_message(at, &owner);
    }

    fn fetch_owner(&mut self, session: u32, slot_no: u8) -> Option<(Owner, u32)> {
        let s = self.sessions.client_mut(session)?;
        let generation = s.generation;
        let slot = s.slots.get(usize::from(slot_no))?;
        let (req_num, packets) = (slot.req_num, slot.response_packets());
        Some((Owner { session, generation, slot: slot_no, req_num, is_response: true }, packets))
    }

    /// The grant that a credit return for this message states.
    pub(crate) fn stated_grant(&self, at: u32, owner: &Owner) -> Grant {
        if at == NO_MESSAGE {
            return Grant::default();
        }
        if self.budget.lacks_memory()
            && let Some(grant) = self.budget.scarce_grant(at, owner)
        {
            return grant;
        }
        if !self.budget.is_in_force() {
            return Grant::default();
        }
        let granted = self.budget.granted(at, owner);
        granted.map_or_else(Grant::default, |n| Grant::new(n.max(1), self.budget.unscheduled()))
    }

    /// Limits the messages that are under way when a second peer begins to send.
    pub(super) fn budget_may_begin(&mut self, was_limited: bool) {
        if was_limited || !self.budget.is_in_force() {
            return;
        }
        let owners: Vec<_> = self.budget.owners().collect();
        for (at, owner) in owners {
            let sent = match self.sessions.get_mut(owner.session as usize) {
                Some(Session::Client(s)) if owner.is_response => {
                    let slot = s.slots.get_mut(usize::from(owner.slot));
                    slot.map_or(0, |slot| {
                        slot.grant_response(slot.requested());
                        slot.requested()
                    })
                }
                Some(Session::Server(s)) if !owner.is_response => {
                    let slot = s.slots.get(usize::from(owner.slot));
                    slot.map_or(0, |slot| slot.req_rcvd.max(1).saturating_add(s.credit_limit))
                }
                _ => 0,
            };
            self.budget.limit(at, &owner, sent);
        }
    }

    /// A single peer is left: its messages are no longer limited.
    fn lift_limits(&mut self) {
        let owners: Vec<_> = self.budget.owners().collect();
        for (at, owner) in owners {
            if !self.budget.waits(at, &owner) {
                self.budget.grant_all(at, &owner);
                self.state_grant(at, &owner, u32::MAX);
            }
        }
    }

    /// Grants packets to the messages that wait, as far as the budget goes.
    pub(super) fn share_out(&mut self) {
        self.check_one_message();
        while let Some((at, owner)) = self.budget.next() {
            let Some((limit, quantum)) = self.grant_limit(&owner) else {
                let reserved = self.budget.end(at, &owner);
                self.unreserve(reserved);
                continue;
            };
            if let Some(granted) = self.budget.grant(at, &owner, limit, quantum) {
                self.state_grant(at, &owner, granted);
            }
        }
    }

    /// Messages wait and only duplicates arrive, or nothing: takes back what silent senders hold.
    #[cold]
    pub(crate) fn reclaim_grants(&mut self) {
        for _ in 0..RECLAIMED_AT_ONCE {
            self.check_one_message();
        }
        self.share_out();
    }

    /// One message for each arrival: its sender may be gone, or its packets lost.
    fn check_one_message(&mut self) {
        let Some((at, owner)) = self.budget.next_to_check() else { return };
        if self.grant_limit(&owner).is_none() {
            let reserved = self.budget.end(at, &owner);
            self.unreserve(reserved);
        } else {
            let base_ns = self.budget.base_ns();
            self.budget.expire(at, &owner, base_ns, self.io.now_ns);
        }
    }

    /// The largest grant for a message by its session's credits, and how much is granted at once;
    /// `None`: the message does not exist any more.
    fn grant_limit(&self, owner: &Owner) -> Option<(u32, u32)> {
        let quantum = (self.budget.usage().0 / 4).clamp(1, self.io.cfg.train_frames.max(1));
        match self.sessions.get(owner.session as usize)? {
            Session::Client(s) if owner.is_response && s.generation == owner.generation => {
                let slot = s.slots.get(usize::from(owner.slot))?;
                let current = slot.active && slot.req_num == owner.req_num;
                (current && slot.response_packets() > 1).then_some((u32::MAX, quantum))
            }
            Session::Server(s) if !owner.is_response && s.generation == owner.generation => {
                let slot = s.slots.get(usize::from(owner.slot))?;
                let current = slot.req_num == owner.req_num && slot.phase == ServerPhase::Receiving;
                let limit = slot.req_rcvd.saturating_add(s.credit_limit);
                current.then_some((limit, quantum))
            }
            _ => None,
        }
    }

    /// Applies a new grant: a credit return, or requests for a response's packets.
    pub(super) fn state_grant(&mut self, at: u32, owner: &Owner, granted: u32) {
        let Owner { session, slot: slot_no, req_num, .. } = *owner;
        match self.sessions.get_mut(session as usize) {
            Some(Session::Client(s)) if owner.is_response => {
                let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return };
                slot.grant_response(granted);
                self.wake_slot(session, slot_no);
            }
            Some(Session::Server(s)) if !owner.is_response => {
                let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return };
                if mutant::is_on(Mutant::GrantForgotten) || !self.budget.take_owed(at, owner) {
                    return; // it leaves with the credit return of the next packet
                }
                slot.cr_in_progress = false;
                if !std::mem::replace(&mut slot.cr_queued, true) {
                    self.io.tx.push(TxItem::CreditReturn { session, slot: slot_no, req_num });
                }
            }
            _ => {}
        }
    }

    /// The budget's size follows the delay of an arriving frame.
    #[cold]
    pub(crate) fn on_budget_frame(&mut self, peer: u32) {
        let Some(p) = self.io.peers.at_mut(peer) else { return };
        if let Some((delay_ns, base_ns)) = p.path.queue_delay_ns(self.io.now_ns) {
            self.budget.on_frame(delay_ns, base_ns, self.io.now_ns);
        }
    }
}

/// The message of a request.
pub(crate) fn request_owner(id: RequestId) -> Owner {
    let (session, slot, req_num) = (id.session(), id.slot(), id.req_num());
    Owner {
        session: session.index,
        generation: session.generation,
        slot,
        req_num,
        is_response: false,
    }
}
