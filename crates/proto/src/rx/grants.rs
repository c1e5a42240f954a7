//! Grants: what the receiver's budget ([`crate::budget`]) allows the senders of large messages.
//!
//! A server states grants in credit returns. When the sender of a message has nothing left that it
//! may send, the server withholds the credit return for the last packet: it leaves with the grant, so a packet of a client causes
//! at most one of the server (E39), and the client's timers recover a lost grant. A client has its
//! own grants at hand and requests that many packets of a response.

use crate::budget::{NO_MESSAGE, Owner};
use crate::endpoint::Endpoint;
use crate::flow::ServerFlow;
use crate::mutant::{self, Mutant};
use crate::session::Session;
use crate::slot::ServerPhase;

/// Messages that are checked when a duplicate arrives: a flood of them must not cost more.
const RECLAIMED_AT_ONCE: usize = 16;

impl<C> Endpoint<C> {
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

    /// Limits the messages that are under way when a second peer begins to send.
    pub(crate) fn limit_messages(&mut self) {
        self.admission.budget.set_in_force(true);
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
        self.admission.budget.set_in_force(false);
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
    fn state_grant(&mut self, at: u32, owner: &Owner, granted: u32) {
        let (sessions, shared) = self.split();
        match sessions.get_mut(owner.session as usize) {
            Some(Session::Server(s)) if !owner.is_response => {
                if let Some(mut flow) = shared.server(owner.session, s) {
                    flow.state_grant(at, owner);
                }
            }
            Some(Session::Client(s)) if owner.is_response => {
                if let Some(mut flow) = shared.client(owner.session, s)
                    && let Some(slot) = flow.s.slots.get_mut(usize::from(owner.slot))
                {
                    slot.grant_response(granted);
                    flow.wake_slot(owner.slot);
                }
            }
            _ => {}
        }
    }
}

impl<C> ServerFlow<'_, C> {
    /// A request has a new grant: sends the credit return that was withheld.
    pub(super) fn state_grant(&mut self, at: u32, owner: &Owner) {
        let Some(slot) = self.s.slots.get_mut(usize::from(owner.slot)) else { return };
        if mutant::is_on(Mutant::GrantForgotten) || !self.admission.budget.take_owed(at, owner) {
            return; // it leaves with the credit return of the next packet
        }
        slot.cr_in_progress = false;
        self.queue_credit_return(owner.slot);
    }

    /// The grants of a request are up to date: queues the credit return for its last packet, unless it
    /// is withheld until the next grant.
    pub(crate) fn return_credit(&mut self, slot_no: u8) {
        let slot = &self.s.slots[usize::from(slot_no)];
        let at = slot.message();
        // With gaps its sender has packets to send again, and a NACK leaves now.
        let has_gaps = slot.gaps.as_ref().is_some_and(|gaps| gaps.high(slot.req_rcvd).is_some());
        let pool = self.peer.credits.granted();
        let (owner, credits) = (self.owner(slot_no), self.s.credit_limit.min(pool));
        if has_gaps || !self.admission.budget.withholds(at, &owner, credits) {
            self.queue_credit_return(slot_no);
        }
    }
}
