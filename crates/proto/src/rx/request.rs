//! Requests at the server: order, reassembly, duplicates (E1, E42, E58, E61).

use courser_buf::{AllocError, MsgBuf};

use crate::endpoint::{Endpoint, copy_of, server_at};
use crate::error::Status;
use crate::event::{Body, Event, RequestId};
use crate::loss::Recovery;
use crate::mutant::{self, Mutant};
use crate::rx::Content;
use crate::session::{Session, SessionId};
use crate::slot::{Position, ServerPhase, ServerSlot, Stored};
use crate::stats::Drop;
use crate::tx::TxItem;
use crate::wire::packets_of;

impl<C> Endpoint<C> {
    #[inline]
    #[allow(clippy::too_many_arguments)] // the fields of one packet
    pub(crate) fn rx_request<'f>(
        &mut self,
        peer: u32,
        session: u32,
        req_num: u32,
        req_type: u16,
        msg_size: u32,
        index: u32,
        remaining_us: Option<u32>,
        data: impl Content<'f>,
    ) -> Result<Option<Event<'f, C>>, Drop> {
        let expires_ns = remaining_us.map_or(u64::MAX, |us| self.deadline_of(peer, us));
        let now_ns = self.now_ns;
        let s = server_at(&mut self.sessions, peer, session)?;
        if s.slots.are_asleep() {
            // Only a new request wakes them: what is late is dropped without a trace.
            s.slots.wake_for(req_num, &mut self.server_slots, ServerSlot::new)?;
        }
        let (step, tenant) = (s.slots.count(), s.tenant);
        let slot_no = (req_num & (step - 1)) as u8;
        let id = SessionId { index: session, generation: s.generation };
        let dpp = s.data_per_packet;
        let in_order = s.recovery == Recovery::GoBackN;
        let slot = &mut s.slots[usize::from(slot_no)];
        match slot.position(req_num, step) {
            Position::Current => {}
            Position::Next if slot.phase == ServerPhase::Executing => return Err(Drop::Future),
            Position::Next if index != 0 && in_order => return Err(Drop::OutOfOrder),
            Position::Next => {
                let packets = packets_of(msg_size, dpp);
                let freed = slot.begin(req_num, req_type, msg_size, packets, expires_ns);
                self.shares.unhold(tenant, freed);
            }
            Position::Past => return Err(Drop::Stale),
            Position::Future => return Err(Drop::Future),
        }
        if slot.req_size != msg_size || slot.req_type != req_type {
            // Of a request that was cancelled before it came nothing is known but its number, nor
            // of the last one before the session was idle.
            let forgotten = slot.cancelled || slot.phase == ServerPhase::Idle;
            return Err(if forgotten { Drop::Stale } else { Drop::Inconsistent });
        }
        if (slot.phase != ServerPhase::Receiving || index < slot.req_rcvd) && !runs_again(slot) {
            self.on_duplicate(session, slot_no, req_num, index);
            return Err(Drop::Duplicate);
        }
        let id = RequestId::new(id, slot_no, req_num);
        let slot = if index > slot.req_rcvd && !mutant::is_on(Mutant::RequestGapTaken) {
            if in_order {
                return Err(Drop::OutOfOrder);
            }
            self.insert_early(id, index)?;
            match self.server_slot_mut(id) {
                Some(slot) if slot.phase == ServerPhase::Receiving => slot,
                _ => return Ok(None), // refused
            }
        } else {
            slot
        };
        if index == 0 {
            slot.expires_ns = expires_ns; // known from now on, if later packets came first
        }
        if slot.req_packets == 1 {
            let data = data.whole().ok_or(Drop::Length)?;
            slot.req_rcvd = 1;
            slot.phase = ServerPhase::Executing;
            let (deadline_ns, expired) = (slot.deadline_ns(), slot.expires_ns <= now_ns);
            if (self.shares.choosy || msg_size > self.cfg.max_msg_size)
                && let Some(status) = self.objection(tenant, msg_size)
            {
                self.reply_status(id, status);
                return Ok(None);
            }
            if expired {
                self.reply_status(id, Status::DeadlineExceeded);
                return Ok(None);
            }
            let body = match self.request_body(data) {
                Ok(body) => body,
                Err(_) => {
                    self.reply_status(id, Status::NoMemory);
                    return Ok(None);
                }
            };
            self.stats.requests += 1;
            return Ok(Some(Event::Request { id, req_type, body, deadline_ns }));
        }
        let offset = index as usize * usize::from(dpp);
        // Taken apart here: an event that is none, moved whole, would wait for the stores of the copy.
        let Some(event) = self.rx_request_part(id, index, offset, data) else { return Ok(None) };
        Ok(Some(event))
    }

    /// A request of one packet as its handler gets it.
    #[inline(always)]
    fn request_body<'f>(&self, data: &'f [u8]) -> Result<Body<'f>, AllocError> {
        if self.cfg.zero_copy_rx {
            return Ok(Body::Borrowed(data));
        }
        copy_of(&self.arena, data).map(Body::Owned)
    }

    /// A packet that is new, of a request of several.
    #[inline(never)] // so that requests of one packet have the registers
    fn rx_request_part<'f>(
        &mut self,
        id: RequestId,
        index: u32,
        offset: usize,
        data: impl Content<'f>,
    ) -> Option<Event<'f, C>> {
        let (now_ns, copies) = (self.now_ns, self.cfg.copy_requests);
        let slot = self.server_slot_mut(id)?;
        let req_type = slot.req_type;
        let (deadline_ns, expired) = (slot.deadline_ns(), slot.expires_ns <= now_ns);
        if expired && index == 0 {
            self.refuse(id, Status::DeadlineExceeded); // the rest need not come
            return None;
        }
        if slot.req.is_none() && !self.begin_request(id) {
            return None;
        }
        let slot = self.server_slot_mut(id)?;
        if let Some(req) = slot.req.as_mut().filter(|_| copies) {
            data.copy_into(req, offset);
        }
        if index == slot.req_rcvd || mutant::is_on(Mutant::RequestGapTaken) {
            slot.req_rcvd = match &mut slot.gaps {
                None => slot.req_rcvd + 1,
                Some(gaps) => gaps.advance(slot.req_rcvd),
            };
        }
        if slot.req_rcvd < slot.req_packets {
            if !slot.cr_queued {
                slot.cr_queued = true;
                let (session, slot, req_num) = (id.session().index, id.slot(), id.req_num());
                self.tx.push(TxItem::CreditReturn { session, slot, req_num });
            }
            return None;
        }
        slot.phase = ServerPhase::Executing;
        let body = Body::Owned(slot.req.take()?);
        // It counts as its client's until the handler has answered.
        if expired {
            self.reply_status(id, Status::DeadlineExceeded);
            return None;
        }
        self.stats.requests += 1;
        Some(Event::Request { id, req_type, body, deadline_ns })
    }

    /// Memory for a request of several packets, of which the first one has arrived. `false`: it was
    /// refused.
    fn begin_request(&mut self, id: RequestId) -> bool {
        let Some(Session::Server(s)) = self.sessions.get(id.session().index as usize) else {
            return false;
        };
        let tenant = s.tenant;
        let Some(size) = self.server_slot_mut(id).map(|slot| slot.req_size) else { return false };
        let buffer = match self.request_buffer(tenant, size) {
            Ok(buffer) => buffer,
            Err(status) => {
                self.refuse(id, status);
                return false;
            }
        };
        let Some(slot) = self.server_slot_mut(id) else { return false };
        slot.held = buffer.capacity() as u32;
        slot.req = Some(buffer);
        let held = slot.held;
        self.shares.hold(tenant, held);
        true
    }

    /// Notes a packet of a request that comes before others that are missing, unless the request is
    /// refused.
    #[cold]
    fn insert_early(&mut self, id: RequestId, index: u32) -> Result<(), Drop> {
        let Some(slot) = self.server_slot_mut(id) else { return Err(Drop::Stale) };
        if slot.req.is_none() && !self.begin_request(id) {
            return Ok(());
        }
        let Some(Session::Server(s)) = self.sessions.get_mut(id.session().index as usize) else {
            return Err(Drop::Stale);
        };
        let pools = (s.recovery == Recovery::Melo).then_some(&self.pools);
        let Some(slot) = s.slots.get_mut(usize::from(id.slot())) else { return Err(Drop::Stale) };
        let (count, packets) = (slot.req_rcvd, slot.req_packets);
        let inserted = slot.gaps.get_or_insert_default().insert(index, count, packets, pools);
        let is_melo = pools.is_some();
        self.note_pool(is_melo);
        if inserted.is_err() {
            self.on_duplicate(id.session().index, id.slot(), id.req_num(), index);
        }
        inserted
    }

    /// The deadline of a request of the frame at hand, of which `remaining_us` were left when it
    /// was sent (F15).
    #[cold]
    fn deadline_of(&mut self, peer: u32, remaining_us: u32) -> u64 {
        let peer = self.peers.get_mut(peer as usize).and_then(Option::as_mut);
        peer.map_or(u64::MAX, |p| p.deadline_ns(remaining_us))
    }

    /// Memory for a request of several packets, if its client may have that much.
    fn request_buffer(&self, tenant: u32, size: u32) -> Result<MsgBuf, Status> {
        if let Some(status) = self.objection(tenant, size) {
            return Err(status);
        }
        if u64::from(size) > self.shares.room_of(tenant) {
            return Err(Status::NoMemory);
        }
        self.arena.alloc(size as usize).map_err(|_| Status::NoMemory)
    }

    /// Answers a request that cannot be received at all: the client need not send the rest.
    fn refuse(&mut self, id: RequestId, status: Status) {
        if let Some(slot) = self.server_slot_mut(id) {
            slot.req_rcvd = slot.req_packets;
            slot.req = None; // `reply_status` gives its bytes back
            slot.phase = ServerPhase::Executing;
        }
        self.reply_status(id, status);
    }

    /// A packet that was here before: the handler never runs again (E1, E61). A complete request
    /// is answered with its stored response or with "in progress" (F5), an incomplete one with
    /// the credits that are returned so far. An error is said again for any packet: the request may
    /// have been refused at its first one, and the client have no credits to come to the last.
    #[cold]
    fn on_duplicate(&mut self, session: u32, slot_no: u8, req_num: u32, index: u32) {
        let Some(Session::Server(s)) = self.sessions.get_mut(session as usize) else { return };
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return };
        let last = index + 1 == slot.req_packets || matches!(slot.resp, Stored::Error(_));
        let item = match slot.phase {
            ServerPhase::Responded if last && mutant::is_on(Mutant::ResponseNotResent) => return,
            ServerPhase::Responded if last => {
                if !slot.resend_first(self.tx.number()) {
                    return;
                }
                s.resent += 1;
                self.stats.responses_resent += 1;
                TxItem::Response { session, slot: slot_no, req_num }
            }
            ServerPhase::Receiving | ServerPhase::Executing | ServerPhase::Responded => {
                slot.cr_in_progress |= last && slot.phase == ServerPhase::Executing;
                if slot.cr_queued || (slot.req_packets == 1 && !slot.cr_in_progress) {
                    return;
                }
                slot.cr_queued = true;
                TxItem::CreditReturn { session, slot: slot_no, req_num }
            }
            ServerPhase::Idle | ServerPhase::Acked => return,
        };
        self.tx.push(item);
    }

    /// The slot of a request, as long as it is the slot's current one.
    pub(crate) fn server_slot_mut(&mut self, id: RequestId) -> Option<&mut ServerSlot> {
        match self.sessions.get_mut(id.session().index as usize)? {
            Session::Server(s) if s.generation == id.session().generation => {
                let slot = s.slots.get_mut(usize::from(id.slot()))?;
                (slot.req_num == id.req_num()).then_some(slot)
            }
            _ => None,
        }
    }
}

/// Whether a planted bug runs the handler for a duplicate; for requests of one packet.
#[inline(always)]
fn runs_again(slot: &ServerSlot) -> bool {
    let answered = matches!(slot.phase, ServerPhase::Responded | ServerPhase::Acked);
    let executing = slot.phase == ServerPhase::Executing;
    slot.req_packets == 1
        && (answered && mutant::is_on(Mutant::AnsweredRunsAgain)
            || executing && mutant::is_on(Mutant::ExecutingRunsAgain))
}
