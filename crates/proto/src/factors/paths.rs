//! The paths that are taken while an optimisation is off.

use courser_buf::{AllocError, MsgBuf};

use crate::endpoint::{Endpoint, copy_of};
use crate::error::ReplyError;
use crate::event::{Body, RequestId};
use crate::factors::Factors;
use crate::reply::{response, waiting};
use crate::rx::Content;
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

impl<C> Endpoint<C> {
    /// Sends a response of one packet from a buffer that was allocated for it, with
    /// [`Factors::prealloc_responses`] off. It takes the path of a preallocated one, so
    /// that the switch changes the allocation alone (E75). The buffer does not count against the
    /// client's quota: a slot with counted bytes leaves the fast path of reception.
    pub(crate) fn reply_allocated(
        &mut self,
        id: RequestId,
        m: MsgBuf,
        len: usize,
    ) -> Result<(), ReplyError> {
        let w = match waiting(&mut self.sessions, id) {
            Ok(w) => w,
            Err(e) => return Err(self.gone(id, e)),
        };
        let freed = std::mem::take(&mut w.slot.charged);
        w.slot.prealloc = Some(m);
        w.slot.respond_single(len as u32);
        self.io.stats.replies += 1;
        if self.io.tx.may_append() && send_single_response(&mut self.io, w.slot, (w.peer, w.remote))
        {
            w.slot.appended_for(self.io.tx.appended());
        } else {
            self.io.tx.push(response(id));
        }
        w.slot.own_single();
        let quota = w.quota;
        self.release_charged(quota, freed);
        Ok(())
    }

    /// The body of a request of one packet with [`Factors::zero_copy_rx`] off.
    pub(crate) fn copied_body<'f>(&self, data: &'f [u8]) -> Result<Body<'f>, AllocError> {
        copy_of(&self.io.arena, data).map(Body::Owned)
    }
}
