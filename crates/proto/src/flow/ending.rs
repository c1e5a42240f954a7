//! Calls that end before their answer: cancellation and expired deadlines at the client (ADR 15).
//!
//! The result depends on the progress of the call; the statement about its handler is always true:
//!
//! | the call | its slot | the handler ran |
//! | --- | --- | --- |
//! | waits for a slot | none | never |
//! | on a slot, nothing sent | free; its number is used again, since the server expects it next | never |
//! | sent in part | quarantine | never: the rest will not be sent |
//! | sent, no answer | quarantine | maybe |
//! | answered in part | free; the rest of the answer is discarded | yes |
//!
//! A slot in *quarantine* has no call, credits or buffers, but its request number is still in use
//! at the server, which would reject the next one. So the slot sends cancellations, with back-off,
//! until the server answers the request in any way. That takes as long as its handler; the session
//! has one slot less until then ([`crate::SessionStats`]).

use super::ClientFlow;
use crate::error::{CallError, Executed};
use crate::mutant::{self, Mutant};
use crate::slot::Ending;
use crate::stats::RxDrop;
use crate::tx::TxItem;

impl<C> ClientFlow<'_, C> {
    /// Ends the call of a slot in any state.
    pub(crate) fn end_early(&mut self, slot_no: u8, error: fn(Executed) -> CallError) {
        let step = self.s.slots.count();
        let slot = &mut self.s.slots[usize::from(slot_no)];
        let (ending, executed) = slot.ending();
        let error = error(executed);
        slot.end_wait_for_host();
        match ending {
            Ending::Quarantine if mutant::is_on(Mutant::NoQuarantine) => {}
            Ending::Rewind => slot.rewind(step),
            Ending::Free => slot.ack_owed = true,
            Ending::Quarantine => slot.quarantined = true,
        }
        self.fail(slot_no, error);
        if ending == Ending::Quarantine && !mutant::is_on(Mutant::NoQuarantine) {
            self.quarantine(slot_no);
        }
        self.arm_soon(slot_no);
        self.io.count_ending(&error);
    }

    // ---- quarantine ---------------------------------------------------------------------------

    /// A slot without a call may not be used until the server has answered.
    fn quarantine(&mut self, slot_no: u8) {
        let slot = &mut self.s.slots[usize::from(slot_no)];
        slot.retries = 0;
        slot.last_rx_ns = self.io.now_ns; // restarts the server's time to answer
        slot.deadline_ns = u64::MAX; // until the cancellation is sent
        slot.queued = true;
        let (session, req_num) = (self.index, slot.req_num);
        self.io.tx.push(TxItem::Cancel { session, slot: slot_no, req_num });
    }

    /// A cancellation was not answered: send it again.
    pub(crate) fn cancel_again(&mut self, slot_no: u8) {
        let slot = &mut self.s.slots[usize::from(slot_no)];
        slot.retries = slot.retries.saturating_add(1);
        if !std::mem::replace(&mut slot.queued, true) {
            let (session, req_num) = (self.index, slot.req_num);
            self.io.tx.push(TxItem::Cancel { session, slot: slot_no, req_num });
        }
        self.extend_deadline(slot_no);
    }

    /// A packet from the server for a request without a call, which would be dropped for `reason`.
    /// Any answer ends the quarantine of its slot; "in progress" delays the next cancellation.
    pub(crate) fn rx_quarantined(
        &mut self,
        req_num: u32,
        answered: bool,
        reason: RxDrop,
    ) -> Result<(), RxDrop> {
        // Dropped as stale: the session belongs to the peer, and is connected.
        if reason != RxDrop::Stale {
            return Err(reason);
        }
        let now_ns = self.io.now_ns;
        let slot_no = (req_num & (self.s.slots.count() - 1)) as u8;
        let slot = self.s.slots.get_mut(usize::from(slot_no)).ok_or(reason)?;
        if !slot.quarantined || slot.req_num != req_num {
            return Err(reason);
        }
        slot.last_rx_ns = now_ns;
        if !answered {
            slot.retries = slot.retries.saturating_add(1);
            self.extend_deadline(slot_no);
            return Ok(());
        }
        slot.release_answered(now_ns);
        self.s.free |= 1 << slot_no;
        self.arm_soon(slot_no);
        self.start_queued();
        Ok(())
    }
}
