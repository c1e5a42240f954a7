//! Replies: from the handler's answer to a stored response (E9, E32, E61).

use courser_buf::MsgBuf;

use crate::endpoint::{Endpoint, RequestId, copy_of};
use crate::error::{ReplyError, Status};
use crate::session::Session;
use crate::slot::{ServerPhase, ServerSlot, Stored};
use crate::tx::TxItem;
use crate::wire::packets_of;

impl<C> Endpoint<C> {
    /// Answers with a copy of `bytes`. Up to one packet goes to the slot's preallocated buffer,
    /// so that nothing is allocated (E32).
    ///
    /// # Errors
    /// The request is gone, or the response cannot be held; the client then gets an error.
    #[inline]
    pub fn reply_bytes(&mut self, id: RequestId, bytes: &[u8]) -> Result<(), ReplyError> {
        self.reply_with(id, bytes.len(), |out| out.copy_from_slice(bytes))
    }

    /// Answers with `len` bytes that `fill` writes in place. The bytes it is given are arbitrary.
    ///
    /// # Errors
    /// As [`Endpoint::reply_bytes`]; `fill` is not called then.
    #[inline]
    pub fn reply_with(
        &mut self,
        id: RequestId,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), ReplyError> {
        self.check_size(id, len)?;
        let (slot, dpp) = self.answerable(id)?;
        if len > usize::from(dpp) {
            let mut m = self.alloc_reply(id, len)?;
            fill(&mut m);
            return self.reply_msg(id, m);
        }
        let usable = slot.prealloc.as_mut().and_then(MsgBuf::get_mut).is_some();
        if !usable {
            let fresh = self.alloc_reply(id, usize::from(dpp))?;
            let (slot, _) = self.answerable(id)?;
            slot.prealloc = Some(fresh);
        }
        let (slot, _) = self.answerable(id)?;
        if let Some(room) = slot.prealloc.as_mut().and_then(MsgBuf::get_mut) {
            fill(&mut room[..len]);
        }
        slot.resp = Stored::Preallocated;
        self.respond(id, len);
        Ok(())
    }

    /// Answers with a message buffer, without a copy.
    ///
    /// # Errors
    /// As [`Endpoint::reply_bytes`].
    pub fn reply_msg(&mut self, id: RequestId, mut msg: MsgBuf) -> Result<(), ReplyError> {
        let len = msg.len();
        self.check_size(id, len)?;
        if msg.is_shared() {
            // The same buffer still leaves for another destination.
            msg = copy_of(&self.arena, &msg)?;
        }
        let (slot, _) = self.answerable(id)?;
        slot.resp = Stored::Owned(msg);
        self.respond(id, len);
        Ok(())
    }

    /// Answers with an error in place of a response. A request that is gone is ignored.
    pub fn reply_status(&mut self, id: RequestId, status: Status) {
        if let Ok((slot, _)) = self.answerable(id) {
            slot.resp = Stored::Error(status as u16);
            self.respond(id, 0);
        }
    }

    /// The slot of a request that waits for its answer, and the session's packet size.
    #[inline]
    fn answerable(&mut self, id: RequestId) -> Result<(&mut ServerSlot, u16), ReplyError> {
        match self.sessions.get_mut(id.session.index as usize) {
            Some(Session::Server(s)) if s.generation == id.session.generation => {
                let dpp = s.data_per_packet;
                match s.slots.get_mut(usize::from(id.slot)) {
                    Some(slot)
                        if slot.req_num == id.req_num && slot.phase == ServerPhase::Executing =>
                    {
                        Ok((slot, dpp))
                    }
                    _ => Err(ReplyError::Gone),
                }
            }
            _ => Err(ReplyError::Gone),
        }
    }

    /// Whether a request still waits for its answer.
    pub fn is_answerable(&mut self, id: RequestId) -> bool {
        self.answerable(id).is_ok()
    }

    #[inline]
    fn check_size(&mut self, id: RequestId, bytes: usize) -> Result<(), ReplyError> {
        let limit = self.cfg.max_msg_size;
        if bytes > limit as usize {
            self.reply_status(id, Status::ResponseFailed);
            return Err(ReplyError::TooLarge { bytes, limit });
        }
        Ok(())
    }

    fn alloc_reply(&mut self, id: RequestId, len: usize) -> Result<MsgBuf, ReplyError> {
        match self.arena.alloc(len) {
            Ok(m) => Ok(m),
            Err(e) => {
                self.reply_status(id, Status::ResponseFailed);
                Err(e.into())
            }
        }
    }

    #[inline]
    fn respond(&mut self, id: RequestId, len: usize) {
        let Ok((slot, dpp)) = self.answerable(id) else { return };
        slot.phase = ServerPhase::Responded;
        slot.resp_size = len as u32;
        slot.resp_packets = packets_of(len as u32, dpp);
        self.stats.replies += 1;
        let RequestId { session, slot, req_num } = id;
        self.tx.push(TxItem::Response {
            session: session.index,
            slot,
            req_num,
            first: 0,
            count: 1,
        });
    }
}
