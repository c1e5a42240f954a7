//! Replies: from the handler's answer to a stored response (E9, E32, E61).

use courser_buf::{AllocError, MsgBuf};

use crate::endpoint::{Endpoint, copy_of};
use crate::error::{ReplyError, Status};
use crate::event::RequestId;
use crate::mutant::{self, Mutant};
use crate::session::Sessions;
use crate::slot::{ServerPhase, ServerSlot, Stored};
use crate::tx::{TxItem, copy_short, send_single_response};
use crate::wire::packets_of;

/// Largest preallocated response buffer: a packet of usual networks. With larger packets most
/// responses are still small, and the buffers have to stay in the caches.
const PREALLOC_MAX: usize = 1500;

impl<C> Endpoint<C> {
    /// Replies with a copy of `bytes`. Up to one packet goes to the slot's preallocated buffer,
    /// without an allocation (E32).
    /// # Errors
    /// The request is gone, or the response cannot be stored; the client then gets an error.
    #[inline(always)] // inlined into the handler, where the length is known
    pub fn reply_bytes(&mut self, id: RequestId, bytes: &[u8]) -> Result<(), ReplyError> {
        self.reply_with(id, bytes.len(), |out| copy_short(out, bytes))
    }

    /// Replies with `len` bytes that `fill` writes in place. The buffer's previous contents are
    /// arbitrary.
    ///
    /// # Errors
    /// As [`Endpoint::reply_bytes`]; `fill` is not called then.
    #[inline(always)] // inlined into the handler, with `fill`
    pub fn reply_with(
        &mut self,
        id: RequestId,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), ReplyError> {
        if let Ok(w) = waiting(&mut self.sessions, id)
            && len <= w.limit as usize
            && w.slot.charged == 0
            && let Some(out) = w.slot.prealloc_mut(len)
        {
            fill(out);
            w.slot.respond_single(len as u32);
            self.io.stats.replies += 1;
            if self.io.tx.may_append()
                && send_single_response(&mut self.io, w.slot, (w.peer, w.remote))
            {
                w.slot.appended_for(self.io.tx.appended());
            } else {
                self.io.tx.push(response(id));
            }
            return Ok(());
        }
        self.reply_general(id, len, fill)
    }

    /// Counts a response, and queues it for transmission.
    #[inline(always)]
    fn replied(&mut self, id: RequestId) {
        self.io.stats.replies += 1;
        self.io.tx.push(response(id));
    }

    /// [`Endpoint::reply_with`] for any response and any state of the slot.
    #[inline(never)] // outlined to keep registers free for the handler
    fn reply_general(
        &mut self,
        id: RequestId,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), ReplyError> {
        let waiting = match waiting(&mut self.sessions, id) {
            Ok(w) => w,
            Err(e) => return Err(self.gone(id, e)),
        };
        if len > waiting.limit as usize {
            return Err(self.too_large(id, len));
        }
        let (slot, dpp) = (waiting.slot, waiting.data_per_packet);
        let ready = usize::from(dpp).min(PREALLOC_MAX);
        if len > ready || !self.io.cfg.factors.prealloc_responses {
            let mut m = match self.io.arena.alloc(len) {
                Ok(m) => m,
                Err(e) => return Err(self.no_memory(id, e)),
            };
            fill(&mut m);
            if len <= ready {
                return self.reply_allocated(id, m, len);
            }
            return self.respond(id, Stored::Owned(m), len);
        }
        let room = match slot.prealloc.as_mut().and_then(MsgBuf::get_mut) {
            Some(room) => room,
            // No buffer yet, or the transport still references the previous response.
            None => match self.io.arena.alloc(ready) {
                Ok(fresh) => {
                    if slot.prealloc.is_none() {
                        self.admission.quotas.charge(waiting.quota, fresh.capacity() as u32);
                    }
                    slot.prealloc.insert(fresh)
                }
                Err(e) => return Err(self.no_memory(id, e)),
            },
        };
        fill(&mut room[..len]);
        let freed = std::mem::take(&mut slot.charged);
        slot.respond_single(len as u32);
        let quota = waiting.quota;
        self.release_charged(quota, freed);
        self.replied(id);
        Ok(())
    }

    /// Replies with a message buffer, without a copy.
    ///
    /// # Errors
    /// As [`Endpoint::reply_bytes`].
    pub fn reply_msg(&mut self, id: RequestId, mut msg: MsgBuf) -> Result<(), ReplyError> {
        let len = msg.len();
        match waiting(&mut self.sessions, id) {
            Ok(w) if len > w.limit as usize => return Err(self.too_large(id, len)),
            Ok(_) => {}
            Err(e) => return Err(self.gone(id, e)),
        }
        if msg.is_shared() {
            // The same buffer is still being sent to another destination.
            msg = match copy_of(&self.io.arena, &msg) {
                Ok(copy) => copy,
                Err(e) => return Err(self.no_memory(id, e)),
            };
        }
        self.respond(id, Stored::Owned(msg), len)
    }

    /// Replies with an error status. Ignored if the request is gone.
    pub fn reply_status(&mut self, id: RequestId, status: Status) {
        // The only possible error is `Gone`: there is no client to inform.
        if self.respond(id, Stored::Error(status as u16), 0).is_ok() {
            match status {
                Status::DeadlineExceeded => self.io.stats.requests_expired += 1,
                Status::Cancelled => self.io.stats.requests_cancelled += 1,
                _ => {}
            }
        }
    }

    /// Returns whether a request still waits for its answer.
    pub fn is_answerable(&mut self, id: RequestId) -> bool {
        waiting(&mut self.sessions, id).is_ok()
    }

    /// Stores an error status as the answer, without sending it: a packet of the client causes that.
    pub(crate) fn store_status(&mut self, id: RequestId, status: Status) {
        if self.store(id, Stored::Error(status as u16), 0).is_ok()
            && let Some(slot) = self.server_slot_mut(id)
        {
            slot.sent_all_due();
        }
    }

    fn respond(&mut self, id: RequestId, stored: Stored, len: usize) -> Result<(), ReplyError> {
        self.store(id, stored, len)?;
        self.replied(id);
        Ok(())
    }

    /// Stores a response or an error status.
    fn store(&mut self, id: RequestId, stored: Stored, len: usize) -> Result<(), ReplyError> {
        let w = match waiting(&mut self.sessions, id) {
            Ok(w) => w,
            Err(e) => return Err(self.gone(id, e)),
        };
        let packets = packets_of(len as u32, w.data_per_packet);
        // The request's bytes are released; a response in a buffer of its own is charged instead.
        let (quota, mut freed) = (w.quota, w.slot.charged);
        let charged = if let Stored::Owned(m) = &stored { m.capacity() as u32 } else { 0 };
        if matches!(stored, Stored::Error(_)) {
            // Otherwise a client whose quota is used up by these buffers would be rejected for
            // ever.
            freed += w.slot.prealloc.take().map_or(0, |m| m.capacity() as u32);
        }
        w.slot.charged = charged;
        w.slot.respond(stored, len as u32, packets);
        self.release_charged(quota, freed);
        self.admission.quotas.charge(quota, charged);
        Ok(())
    }

    /// The client is gone; a session that only waited for this reply ends (E68).
    #[cold]
    pub(crate) fn gone(&mut self, id: RequestId, e: ReplyError) -> ReplyError {
        self.drained(id.session(), id.slot(), id.req_num());
        e
    }

    #[cold]
    fn too_large(&mut self, id: RequestId, bytes: usize) -> ReplyError {
        let limit = waiting(&mut self.sessions, id).map_or(0, |w| w.limit);
        self.reply_status(id, Status::ResponseFailed);
        ReplyError::TooLarge { bytes, limit }
    }

    #[cold]
    fn no_memory(&mut self, id: RequestId, e: AllocError) -> ReplyError {
        self.reply_status(id, Status::ResponseFailed);
        e.into()
    }
}

/// A request that waits for its answer, and the limits of its session.
pub(crate) struct Waiting<'s> {
    pub(crate) slot: &'s mut ServerSlot,
    pub(crate) peer: u32,
    pub(crate) remote: u32,
    pub(crate) quota: u32,
    data_per_packet: u16,
    limit: u32,
}

#[inline(always)]
pub(crate) fn waiting<C>(
    sessions: &mut Sessions<C>,
    id: RequestId,
) -> Result<Waiting<'_>, ReplyError> {
    let Some(s) = sessions.server_mut(id.session().index) else { return Err(ReplyError::Gone) };
    if s.generation != id.session().generation && !mutant::is_on(Mutant::GenerationIgnored) {
        return Err(ReplyError::Gone);
    }
    let (peer, remote, quota) = (s.peer, s.remote, s.quota);
    let (data_per_packet, limit) = (s.data_per_packet, s.max_msg_size);
    match s.slots.get_mut(usize::from(id.slot())) {
        Some(slot) if slot.req_num == id.req_num() && slot.phase == ServerPhase::Executing => {
            Ok(Waiting { slot, peer, remote, quota, data_per_packet, limit })
        }
        _ => Err(ReplyError::Gone),
    }
}

#[inline(always)]
pub(crate) fn response(id: RequestId) -> TxItem {
    TxItem::Response { session: id.session().index, slot: id.slot(), req_num: id.req_num() }
}
