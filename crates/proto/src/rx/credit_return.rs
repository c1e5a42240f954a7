//! Credit returns at the client (E33, E42, ADR 4).

use crate::budget::Grant;
use crate::flow::ClientFlow;
use crate::loss::{LossFeedback, Recovery};
use crate::mutant::{self, Mutant};
use crate::stats::RxDrop;
use crate::wire::Holes;

impl<C> ClientFlow<'_, C> {
    #[inline]
    pub(crate) fn rx_credit_return(
        &mut self,
        req_num: u32,
        (count, in_progress): (u32, bool),
        grant: Grant,
    ) -> Result<(), RxDrop> {
        let (now_ns, ack) = (self.io.now_ns, self.io.ack_info(self.peer));
        let mut feedback = LossFeedback::default();
        let slot_no = match self.slot_of(req_num) {
            Ok(slot_no) => slot_no,
            Err(reason) if in_progress => return self.rx_quarantined(req_num, false, reason),
            Err(reason) => return Err(reason),
        };
        if in_progress && self.s.slots[usize::from(slot_no)].in_order() > 0 {
            return self.rx_waiting(slot_no);
        }
        let s = &mut *self.s;
        let slot = &mut s.slots[usize::from(slot_no)];
        let awaited = slot.awaits_grant();
        let wait_ns = (awaited && slot.retries == 0).then(|| slot.age_of_retry(now_ns));
        let credits = slot.on_credit_return(count, in_progress, grant, ack, &mut feedback)?;
        let units = credits * slot.units();
        slot.last_rx_ns = now_ns;
        if !mutant::is_on(Mutant::CreditReturnIgnored) {
            s.credits.release(credits);
        }
        if in_progress {
            // Not lost but slow: double the interval to the next request for it (ADR 5).
            slot.retries = slot.retries.saturating_add(1);
            if !awaited {
                self.io.on_in_progress(self.peer);
            }
        } else {
            slot.retries = 0;
        }
        let path = &mut self.peer.path;
        path.on_grant(grant, now_ns);
        match wait_ns {
            _ if awaited && in_progress => path.on_wait_for_grant(now_ns, &self.io.cfg),
            Some(wait_ns) => path.on_grant_wait(wait_ns.into(), now_ns),
            // If the packet was sent more than once, how long the grant took is not known.
            None => {}
        }
        self.io.on_feedback(self.peer, feedback);
        self.note_awaiting(slot_no);
        self.io.release_room(self.peer, units);
        self.extend_deadline(slot_no);
        self.wake_in_turn(slot_no);
        Ok(())
    }

    /// The requested packets of a response are not lost: they wait at the server.
    fn rx_waiting(&mut self, slot_no: u8) -> Result<(), RxDrop> {
        let slot = &mut self.s.slots[usize::from(slot_no)];
        if slot.in_flight() == 0 {
            return Err(RxDrop::Duplicate); // late
        }
        slot.last_rx_ns = self.io.now_ns;
        slot.retries = slot.retries.min(1); // nothing is to be requested again
        self.peer.path.on_wait_for_turn(self.io.now_ns, &self.io.cfg);
        self.extend_deadline(slot_no);
        Ok(())
    }

    /// A negative acknowledgement: a credit return with holes.
    pub(crate) fn rx_nack(
        &mut self,
        req_num: u32,
        (count, high, holes): (u32, u32, Holes<'_>),
    ) -> Result<(), RxDrop> {
        let ack = self.io.ack_info(self.peer);
        let mut feedback = LossFeedback::default();
        let slot_no = self.slot_of(req_num)?;
        let s = &mut *self.s;
        let slot = &mut s.slots[usize::from(slot_no)];
        let front = slot.acked();
        let recovery = s.agreed.recovery;
        let credits = if recovery.goes_back_on_nacks() {
            let from_first = recovery == Recovery::GoBackZero;
            let credits = slot.on_gap_nack(count, high, holes, from_first)?;
            feedback.add_lost(1);
            credits
        } else {
            slot.on_nack(count, high, holes, ack, &mut feedback)?
        };
        slot.last_rx_ns = self.io.now_ns;
        // MELO's timeout belongs to the first hole; filling other holes does not restart it (M15).
        let moved = s.agreed.recovery != Recovery::Melo || slot.acked() > front;
        if moved {
            slot.retries = 0;
        }
        let units = credits * slot.units();
        s.credits.release(credits);
        self.io.on_feedback(self.peer, feedback);
        self.note_awaiting(slot_no);
        self.io.release_room(self.peer, units);
        if moved {
            self.extend_deadline(slot_no);
        }
        self.wake_in_turn(slot_no);
        Ok(())
    }
}
