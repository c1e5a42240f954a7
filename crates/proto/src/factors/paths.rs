//! The paths that are taken while an optimisation is off.

use courser_buf::MsgBuf;

use crate::factors::Factors;
use crate::flow::ServerFlow;
use crate::rx::Content;
use crate::slot::Stored;
use crate::tx::send_single_response;

impl Factors {
    /// Copies a packet of a request to its message.
    #[inline(always)]
    pub(crate) fn copy_part<'f>(self, data: impl Content<'f>, message: &mut [u8], begin: usize) {
        if self.copy_requests {
            data.copy_into(message, begin);
        }
    }
}

impl<C> ServerFlow<'_, C> {
    /// Sends a response of one packet from a buffer that was allocated for it, with
    /// [`Factors::prealloc_responses`] off. It takes the path of a preallocated one, so
    /// that the switch changes the allocation alone (E75). The buffer does not count against the
    /// client's quota: a slot with counted bytes leaves the fast path of reception.
    pub(crate) fn reply_allocated(&mut self, slot_no: u8, m: MsgBuf, len: usize) {
        let (s, io) = (&mut *self.s, &mut *self.io);
        let slot = &mut s.slots[usize::from(slot_no)];
        let freed = std::mem::take(&mut slot.charged);
        slot.prealloc = Some(m);
        slot.respond_single(Stored::Preallocated, len as u32);
        io.stats.replies += 1;
        if io.tx.may_append() && send_single_response(io, self.peer, s.remote, slot) {
            slot.appended_for(io.tx.appended());
        } else {
            self.queue_response(slot_no);
        }
        self.s.slots[usize::from(slot_no)].own_single();
        self.release_charged(freed);
    }
}
