//! Responses of several packets that a client session receives, as messages of the receiver's budget
//! ([`crate::budget`]).

use super::ClientFlow;
use crate::budget::{NO_MESSAGE, Owner};

impl<C> ClientFlow<'_, C> {
    /// The first packet of a response of several packets has arrived.
    pub(crate) fn begin_fetch(&mut self, slot_no: u8) {
        let budget = &self.admission.budget;
        if !budget.is_enabled() {
            return;
        }
        let limited = budget.is_in_force();
        let Some((owner, packets)) = self.fetch_owner(slot_no) else { return };
        let (peer, now_ns) = (self.s.peer, self.io.now_ns);
        let budget = &mut self.admission.budget;
        let at = budget.begin(owner, peer, packets, (1, 1), now_ns);
        if !limited {
            budget.grant_all(at, &owner);
        }
        if let Some(slot) = self.s.slots.get_mut(usize::from(slot_no)) {
            slot.set_message(at);
            slot.grant_response(if limited { 1 } else { u32::MAX });
        }
        self.admission.effects.limits |= self.admission.budget.is_due();
        if self.admission.limits_responses() {
            self.admission.effects.waiting.push((at, owner));
        }
    }

    /// Further packets of a response have arrived.
    pub(crate) fn grant_fetch(&mut self, slot_no: u8) {
        let Some(slot) = self.s.slots.get(usize::from(slot_no)) else { return };
        let at = slot.message();
        if at == NO_MESSAGE {
            return;
        }
        let Some((owner, _)) = self.fetch_owner(slot_no) else { return };
        self.admission.budget.on_arrival(at, &owner, self.io.now_ns);
        self.admission.effects.limits |= self.admission.budget.is_due();
        if self.admission.limits_responses() {
            self.admission.effects.waiting.push((at, owner));
        }
    }

    /// A response has arrived, or its call has ended without it.
    #[inline]
    pub(crate) fn end_fetch(&mut self, slot_no: u8) {
        let Some(slot) = self.s.slots.get(usize::from(slot_no)) else { return };
        if slot.message() != NO_MESSAGE {
            self.end_fetched(slot_no);
        }
    }

    fn end_fetched(&mut self, slot_no: u8) {
        let Some((owner, _)) = self.fetch_owner(slot_no) else { return };
        let Some(slot) = self.s.slots.get_mut(usize::from(slot_no)) else { return };
        let at = slot.set_message(NO_MESSAGE);
        self.admission.end_message(self.io, at, &owner);
    }

    fn fetch_owner(&self, slot_no: u8) -> Option<(Owner, u32)> {
        let (session, generation) = (self.index, self.s.generation);
        let slot = self.s.slots.get(usize::from(slot_no))?;
        let (req_num, packets) = (slot.req_num, slot.response_packets());
        Some((Owner { session, generation, slot: slot_no, req_num, is_response: true }, packets))
    }
}
