//! Requests of a server session: their answers, and the end of those that are arriving.

use super::ServerFlow;
use crate::budget::{NO_MESSAGE, Owner};
use crate::error::Status;
use crate::event::RequestId;
use crate::slot::{ServerPhase, Stored};
use crate::tx::TxItem;
use crate::wire::packets_of;

impl<C> ServerFlow<'_, C> {
    /// The current request of a slot.
    #[inline]
    pub(crate) fn request(&self, slot_no: u8) -> RequestId {
        RequestId::new(self.id(), slot_no, self.s.slots[usize::from(slot_no)].req_num)
    }

    /// The current request of a slot, as a message of the receiver's budget.
    pub(crate) fn owner(&self, slot_no: u8) -> Owner {
        Owner {
            session: self.index,
            generation: self.s.generation,
            slot: slot_no,
            req_num: self.s.slots[usize::from(slot_no)].req_num,
            is_response: false,
        }
    }

    /// Memory of the client's quota returns.
    #[inline]
    pub(crate) fn release_charged(&mut self, bytes: u32) {
        if bytes != 0 {
            self.admission.release_charged(self.io, self.s.quota, bytes);
        }
    }

    // ---- answers ------------------------------------------------------------------------------

    /// Queues the response of a slot for transmission.
    #[inline]
    pub(crate) fn queue_response(&mut self, slot_no: u8) {
        let (session, req_num) = (self.index, self.s.slots[usize::from(slot_no)].req_num);
        self.io.tx.push(TxItem::Response { session, slot: slot_no, req_num });
    }

    /// Stores the answer of a request whose handler has it, without sending it.
    pub(crate) fn store(&mut self, slot_no: u8, stored: Stored, len: usize) {
        let packets = packets_of(len as u32, self.s.data_per_packet);
        let slot = &mut self.s.slots[usize::from(slot_no)];
        // The request's bytes are released; a response in a buffer of its own is charged instead.
        let mut freed = slot.charged;
        let charged = if let Stored::Owned(m) = &stored { m.capacity() as u32 } else { 0 };
        if matches!(stored, Stored::Error(_)) {
            // Otherwise a client whose quota is used up by these buffers would be rejected for
            // ever.
            freed += slot.prealloc.take().map_or(0, |m| m.capacity() as u32);
        }
        slot.charged = charged;
        slot.respond(stored, len as u32, packets);
        self.release_charged(freed);
        self.admission.quotas.charge(self.s.quota, charged);
    }

    /// Stores the answer of a request whose handler has it, and queues it for transmission.
    pub(crate) fn answer(&mut self, slot_no: u8, stored: Stored, len: usize) {
        self.store(slot_no, stored, len);
        self.io.stats.replies += 1;
        self.queue_response(slot_no);
    }

    /// Answers a request with an error status.
    pub(crate) fn refuse(&mut self, slot_no: u8, status: Status) {
        self.answer(slot_no, Stored::Error(status as u16), 0);
        match status {
            Status::DeadlineExceeded => self.io.stats.requests_expired += 1,
            Status::Cancelled => self.io.stats.requests_cancelled += 1,
            _ => {}
        }
    }

    // ---- requests that are arriving -----------------------------------------------------------

    /// Answers a request that cannot be received: the client need not send the rest.
    pub(crate) fn reject(&mut self, slot_no: u8, status: Status) {
        self.close_request(slot_no);
        self.refuse(slot_no, status);
    }

    /// Ends a request that is arriving. Its client is answered at once if it waits for its turn, else
    /// when it sends a packet: all that it has asked for may have been sent.
    pub(crate) fn end_arriving(&mut self, slot_no: u8, status: Status) {
        let (at, owner) = (self.s.slots[usize::from(slot_no)].message(), self.owner(slot_no));
        if self.admission.budget.owes(at, &owner) {
            return self.reject(slot_no, status);
        }
        self.close_request(slot_no);
        self.store(slot_no, Stored::Error(status as u16), 0);
        self.s.slots[usize::from(slot_no)].sent_all_due();
    }

    /// Frees the memory of a request that is arriving. Its answer has to follow.
    fn close_request(&mut self, slot_no: u8) {
        self.end_request(slot_no);
        let slot = &mut self.s.slots[usize::from(slot_no)];
        slot.req_rcvd = slot.req_packets;
        slot.req = None; // the answer releases its quota
        slot.phase = ServerPhase::Executing;
    }

    /// A request is complete, rejected or cancelled: it is no message of the budget any more.
    #[inline]
    pub(crate) fn end_request(&mut self, slot_no: u8) {
        if self.s.slots[usize::from(slot_no)].message() != NO_MESSAGE {
            self.end_message(slot_no);
        }
    }

    #[cold]
    fn end_message(&mut self, slot_no: u8) {
        let owner = self.owner(slot_no);
        let at = self.s.slots[usize::from(slot_no)].set_message(NO_MESSAGE);
        self.admission.end_message(self.io, at, &owner);
    }

    /// The session ends: so do the requests that are arriving.
    pub(crate) fn end_requests(&mut self) {
        for slot_no in 0..self.s.slots.len() as u8 {
            self.end_request(slot_no);
        }
    }

    /// Queues a credit return for a request, unless one is queued.
    pub(crate) fn queue_credit_return(&mut self, slot_no: u8) {
        let slot = &mut self.s.slots[usize::from(slot_no)];
        if !std::mem::replace(&mut slot.cr_queued, true) {
            let (session, req_num) = (self.index, slot.req_num);
            self.io.tx.push(TxItem::CreditReturn { session, slot: slot_no, req_num });
        }
    }
}
