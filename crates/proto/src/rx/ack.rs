//! Acknowledgements at the server: the client has the response, so the server can free it (ADR 6).

use crate::endpoint::Endpoint;
use crate::slot::{Position, ServerPhase};
use crate::stats::RxDrop;

impl<C> Endpoint<C> {
    pub(crate) fn rx_ack(&mut self, peer: u32, session: u32, req_num: u32) -> Result<(), RxDrop> {
        let flow = self.server_flow_of(peer, session)?;
        let s = flow.s;
        let (step, quota) = (s.slots.count(), s.quota);
        if s.slots.are_asleep() {
            return Err(s.slots.late(req_num));
        }
        let slot = &mut s.slots[(req_num & (step - 1)) as usize];
        match slot.position(req_num, step) {
            Position::Current if slot.phase == ServerPhase::Responded => {
                let freed = slot.acknowledged();
                self.release_charged(quota, freed);
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
