//! Replies: from the handler's answer to a stored response (E9, E32, E61).

use courser_buf::{AllocError, MsgBuf, copy_short};

use crate::endpoint::{Endpoint, copy_of};
use crate::error::{ReplyError, Status};
use crate::event::RequestId;
use crate::flow::ServerFlow;
use crate::mutant::{self, Mutant};
use crate::session::Sessions;
use crate::slot::{ServerPhase, ServerSlot, Stored};
use crate::tx::{TxItem, send_single_response};

/// Largest preallocated response buffer: a packet of usual networks. With larger packets most
/// responses are still small, and the buffers have to stay in the caches.
const PREALLOC_MAX: usize = 1500;

impl<C> Endpoint<C> {
    /// Replies with a copy of `bytes`. Up to one packet goes to the slot or its preallocated buffer,
    /// without an allocation (E32).
    /// # Errors
    /// The request is gone, or the response cannot be stored; the client then gets an error.
    #[inline]
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
            && let Some((out, stored)) = single_room(w.slot, len, self.io.short_max)
        {
            fill(out);
            w.slot.respond_single(stored, len as u32);
            self.io.stats.replies += 1;
            if self.io.tx.may_append()
                && let Some(peer) = self.peers.at_mut(w.peer)
                && send_single_response(&mut self.io, peer, w.remote, w.slot)
            {
                w.slot.appended_for(self.io.tx.appended());
            } else {
                self.io.tx.push(response(id));
            }
            return Ok(());
        }
        self.reply_general(id, len, fill)
    }

    /// [`Endpoint::reply_with`] for any response and any state of the slot.
    fn reply_general(
        &mut self,
        id: RequestId,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), ReplyError> {
        let slot_no = id.slot();
        let Some(mut flow) = self.unanswered_flow(id) else { return Err(self.gone(id)) };
        let limit = flow.s.max_msg_size;
        if len > limit as usize {
            flow.refuse(slot_no, Status::ResponseFailed);
            return Err(ReplyError::TooLarge { bytes: len, limit });
        }
        let slot = &mut flow.s.slots[usize::from(slot_no)];
        let ready = usize::from(flow.s.data_per_packet).min(PREALLOC_MAX);
        if len > ready || !flow.io.cfg.factors.prealloc_responses {
            let mut m = match flow.io.arena.alloc(len) {
                Ok(m) => m,
                Err(e) => return Err(flow.no_memory(slot_no, e)),
            };
            fill(&mut m);
            match len <= ready {
                true => flow.reply_allocated(slot_no, m, len),
                false => flow.answer(slot_no, Stored::Owned(m), len),
            }
            return Ok(());
        }
        if len <= flow.io.short_max
            && let Some(room) = slot.short_mut(len)
        {
            fill(room);
            flow.end_single_reply(slot_no, Stored::Short, len);
            return Ok(());
        }
        let room = match slot.prealloc.as_mut().and_then(MsgBuf::get_mut) {
            Some(room) => room,
            // No buffer yet, or the transport still references the previous response.
            None => match flow.io.arena.alloc(ready) {
                Ok(fresh) => {
                    if slot.prealloc.is_none() {
                        flow.admission.quotas.charge(flow.s.quota, fresh.capacity() as u32);
                        flow.s.keeps_buffers = true;
                    }
                    slot.prealloc.insert(fresh)
                }
                Err(e) => return Err(flow.no_memory(slot_no, e)),
            },
        };
        fill(&mut room[..len]);
        flow.end_single_reply(slot_no, Stored::Preallocated, len);
        Ok(())
    }

    /// Replies with a message buffer, without a copy.
    ///
    /// # Errors
    /// As [`Endpoint::reply_bytes`].
    pub fn reply_msg(&mut self, id: RequestId, mut msg: MsgBuf) -> Result<(), ReplyError> {
        let (len, slot_no) = (msg.len(), id.slot());
        let Some(mut flow) = self.unanswered_flow(id) else { return Err(self.gone(id)) };
        let limit = flow.s.max_msg_size;
        if len > limit as usize {
            flow.refuse(slot_no, Status::ResponseFailed);
            return Err(ReplyError::TooLarge { bytes: len, limit });
        }
        if msg.is_shared() {
            // The same buffer is still being sent to another destination.
            msg = match copy_of(&flow.io.arena, &msg) {
                Ok(copy) => copy,
                Err(e) => return Err(flow.no_memory(slot_no, e)),
            };
        }
        flow.answer(slot_no, Stored::Owned(msg), len);
        Ok(())
    }

    /// Replies with an error status. Ignored if the request is gone.
    pub fn reply_status(&mut self, id: RequestId, status: Status) {
        match self.unanswered_flow(id) {
            Some(mut flow) => flow.refuse(id.slot(), status),
            None => {
                self.gone(id); // there is no client to inform
            }
        }
    }

    /// Returns whether a request still waits for its answer.
    pub fn is_answerable(&mut self, id: RequestId) -> bool {
        waiting(&mut self.sessions, id).is_ok()
    }

    /// The session of a request whose handler has it.
    fn unanswered_flow(&mut self, id: RequestId) -> Option<ServerFlow<'_, C>> {
        waiting(&mut self.sessions, id).ok()?;
        self.server_flow(id.session().index)
    }

    /// The client is gone; a session that only waited for this reply ends (E68).
    fn gone(&mut self, id: RequestId) -> ReplyError {
        self.drained(id.session(), id.slot(), id.req_num());
        ReplyError::Gone
    }
}

impl<C> ServerFlow<'_, C> {
    /// A response of one packet is in the slot or its preallocated buffer.
    fn end_single_reply(&mut self, slot_no: u8, stored: Stored, len: usize) {
        let slot = &mut self.s.slots[usize::from(slot_no)];
        let freed = std::mem::take(&mut slot.charged);
        slot.respond_single(stored, len as u32);
        self.release_charged(freed);
        self.io.stats.replies += 1;
        self.queue_response(slot_no);
    }

    fn no_memory(&mut self, slot_no: u8, e: AllocError) -> ReplyError {
        self.refuse(slot_no, Status::ResponseFailed);
        e.into()
    }
}

/// A request that waits for its answer, and the limits of its session.
pub(crate) struct Waiting<'s> {
    pub(crate) slot: &'s mut ServerSlot,
    pub(crate) peer: u32,
    pub(crate) remote: u32,
    limit: u32,
}

#[inline]
pub(crate) fn waiting<C>(
    sessions: &mut Sessions<C>,
    id: RequestId,
) -> Result<Waiting<'_>, ReplyError> {
    let Some(s) = sessions.server_mut(id.session().index) else { return Err(ReplyError::Gone) };
    if s.generation != id.session().generation && !mutant::is_on(Mutant::GenerationIgnored) {
        return Err(ReplyError::Gone);
    }
    let (peer, remote, limit) = (s.peer, s.remote, s.max_msg_size);
    match s.slots.get_mut(usize::from(id.slot())) {
        Some(slot) if slot.req_num == id.req_num() && slot.phase == ServerPhase::Executing => {
            Ok(Waiting { slot, peer, remote, limit })
        }
        _ => Err(ReplyError::Gone),
    }
}

/// Room for a response of one packet of `len` bytes: in the slot up to `short_max`, else in its
/// preallocated buffer, if that is large enough and the transport has released it.
#[inline]
fn single_room(slot: &mut ServerSlot, len: usize, short_max: usize) -> Option<(&mut [u8], Stored)> {
    if len <= short_max {
        return Some((slot.short_mut(len)?, Stored::Short));
    }
    Some((slot.prealloc_mut(len)?, Stored::Preallocated))
}

#[inline]
pub(crate) fn response(id: RequestId) -> TxItem {
    TxItem::Response { session: id.session().index, slot: id.slot(), req_num: id.req_num() }
}
