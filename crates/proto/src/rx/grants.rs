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
        self.admission.budget.on_arrival(at, &owner, now_ns);
        self.keep_promise(at, &owner, dpp);
        if self.admission.budget.lacks_memory() && self.admission.budget.waits(at, &owner) {
            // The credit return for its first packet is withheld.
            return self.admission.budget.arrived(at, &owner) > 1;
        }
        if !self.admission.budget.is_in_force() {
            return true;
        }
        self.admission.budget.enqueue(at, &owner);
        self.share_out();
        let pool = self.io.peers.at(peer).map_or(0, |p| p.credits.granted());
        let session = self.sessions.server_mut(id.session().index);
        let credits = session.map_or(0, |s| s.credit_limit).min(pool);
        // With gaps its sender has packets to send again, and a NACK leaves now.
        has_gaps || !self.admission.budget.withholds(at, &owner, credits)
    }

    /// A request is complete, rejected or cancelled.
    #[inline]
    pub(crate) fn end_request(&mut self, id: RequestId) {
        let Some(slot) = self.server_slot_mut(id) else { return };
        let at = slot.set_message(NO_MESSAGE);
        if at != NO_MESSAGE {
            self.admission.end_message(&mut self.io, at, &request_owner(id));
            self.apply_effects();
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

    /// Checks that the budget has exactly the messages that arrive.
    pub(crate) fn check_budget(&self) {
        self.admission.budget.check();
        self.admission.quotas.check();
        assert_eq!(
            self.admission.budget.promised(),
            self.admission.quotas.promised(),
            "promised, and growing"
        );
        let mut arriving = 0;
        for session in self.sessions.iter() {
            arriving += match session {
                Session::Client(s) => s.slots.iter().filter(|s| s.message() != NO_MESSAGE).count(),
                Session::Server(s) => s.slots.iter().filter(|s| s.message() != NO_MESSAGE).count(),
                _ => 0,
            };
        }
        assert_eq!(
            self.admission.budget.owners().count(),
            arriving,
            "messages of the budget that do not arrive"
        );
    }

    /// The grant that a credit return for this message states.
    pub(crate) fn stated_grant(&self, at: u32, owner: &Owner) -> Grant {
        if at == NO_MESSAGE {
            return Grant::default();
        }
        if self.admission.budget.lacks_memory()
            && let Some(grant) = self.admission.budget.scarce_grant(at, owner)
        {
            return grant;
        }
        if !self.admission.budget.is_in_force() {
            return Grant::default();
        }
        let granted = self.admission.budget.granted(at, owner);
        granted.map_or_else(Grant::default, |n| {
            Grant::new(n.max(1), self.admission.budget.unscheduled())
        })
    }

    /// Limits the messages that are under way when a second peer begins to send.
    pub(crate) fn budget_may_begin(&mut self) {
        let owners: Vec<_> = self.admission.budget.owners().collect();
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
            self.admission.budget.limit(at, &owner, sent);
        }
    }

    /// A single peer is left: its messages are no longer limited.
    pub(crate) fn lift_limits(&mut self) {
        let owners: Vec<_> = self.admission.budget.owners().collect();
        for (at, owner) in owners {
            if !self.admission.budget.waits(at, &owner) {
                self.admission.budget.grant_all(at, &owner);
                self.state_grant(at, &owner, u32::MAX);
            }
        }
    }

    /// Grants packets to the messages that wait, as far as the budget goes.
    pub(crate) fn share_out(&mut self) {
        self.check_one_message();
        while let Some((at, owner)) = self.admission.budget.next() {
            let Some((limit, quantum)) = self.grant_limit(&owner) else {
                let reserved = self.admission.budget.end(at, &owner);
                self.admission.unreserve(&mut self.io, reserved);
                continue;
            };
            if let Some(granted) = self.admission.budget.grant(at, &owner, limit, quantum) {
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
        let Some((at, owner)) = self.admission.budget.next_to_check() else { return };
        if self.grant_limit(&owner).is_none() {
            let reserved = self.admission.budget.end(at, &owner);
            self.admission.unreserve(&mut self.io, reserved);
        } else {
            let base_ns = self.admission.budget.base_ns();
            self.admission.budget.expire(at, &owner, base_ns, self.io.now_ns);
        }
    }

    /// The largest grant for a message by its session's credits, and how much is granted at once;
    /// `None`: the message does not exist any more.
    fn grant_limit(&self, owner: &Owner) -> Option<(u32, u32)> {
        let quantum =
            (self.admission.budget.usage().0 / 4).clamp(1, self.io.cfg.train_frames.max(1));
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
                if let Some(mut flow) = self.client_flow(session) {
                    flow.wake_slot(slot_no);
                }
            }
            Some(Session::Server(s)) if !owner.is_response => {
                let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return };
                if mutant::is_on(Mutant::GrantForgotten)
                    || !self.admission.budget.take_owed(at, owner)
                {
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
            self.admission.budget.on_frame(delay_ns, base_ns, self.io.now_ns);
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
