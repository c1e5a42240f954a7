//! Acknowledgements at the server: the client has the response, so the server can free it (ADR 6).

use crate::flow::ServerFlow;
use crate::slot::{Position, ServerPhase};
use crate::stats::RxDrop;

impl<C> ServerFlow<'_, C> {
    pub(super) fn rx_ack(&mut self, req_num: u32) -> Result<(), RxDrop> {
        let step = self.s.slots.count();
        if self.s.slots.are_asleep() {
            return Err(self.s.slots.late(req_num));
        }
        let slot = &mut self.s.slots[(req_num & (step - 1)) as usize];
        match slot.position(req_num, step) {
            Position::Current if slot.phase == ServerPhase::Responded => {
                let freed = slot.acknowledged();
                self.release_charged(freed);
                Ok(())
            }
            Position::Current if slot.phase == ServerPhase::Acked => Err(RxDrop::Duplicate),
            // Late: the session was idle meanwhile, and its slots are new.
            Position::Current if slot.phase == ServerPhase::Idle => Err(RxDrop::Stale),
            Position::Current => Err(RxDrop::Inconsistent),
            Position::Past => Err(RxDrop::Stale),
            Position::Next | Position::Future => Err(RxDrop::Future),
        }
    }
}
