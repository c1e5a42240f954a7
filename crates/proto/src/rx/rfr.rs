//! Requests-for-response at the server (E43, ADR 4). Stateless: any requested part of the stored
//! response is sent, from one queue entry per slot.

use crate::flow::ServerFlow;
use crate::slot::{Position, ServerPhase};
use crate::stats::RxDrop;

impl<C> ServerFlow<'_, C> {
    pub(super) fn rx_rfr(&mut self, req_num: u32, first: u32, count: u32) -> Result<(), RxDrop> {
        let s = &mut *self.s;
        let step = s.slots.count();
        let slot_no = (req_num & (step - 1)) as u8;
        let (credits, selective) = (s.credit_limit, !s.recovery.is_go_back_n());
        if s.slots.are_asleep() {
            return Err(s.slots.late(req_num));
        }
        let slot = &mut s.slots[usize::from(slot_no)];
        match slot.position(req_num, step) {
            Position::Current => {}
            Position::Past => return Err(RxDrop::Stale),
            Position::Next | Position::Future => return Err(RxDrop::Future),
        }
        if slot.phase != ServerPhase::Responded {
            return Err(RxDrop::Stale);
        }
        // An honest client spends one credit per requested packet. A request for more than all
        // credits is an attempt at amplification.
        let end = first.checked_add(count).filter(|&end| end <= slot.response_packets());
        let Some(end) = end.filter(|_| first > 0 && count <= credits) else {
            return Err(RxDrop::Inconsistent);
        };
        let is_repeated = slot.owes_part(first, end);
        if slot.request_part(first, end, credits, selective) {
            self.queue_response(slot_no);
        } else if is_repeated {
            self.say_waiting(slot_no);
        }
        Ok(())
    }

    /// A client has repeated a request for packets that are to be sent anyway. If they wait for the
    /// host's transmit queue, it is answered "in progress", so that the client does not suspect loss.
    pub(super) fn say_waiting(&mut self, slot_no: u8) {
        let slot = &mut self.s.slots[usize::from(slot_no)];
        if slot.waits_for_host() {
            slot.cr_in_progress = true;
            self.queue_credit_return(slot_no);
        }
    }
}
