//! Responses at the client: order, reassembly, completion (E2, E28, E42, E43).

use courser_buf::MsgBuf;

use super::Content;
use crate::driver::{Driver, deliver};
use crate::endpoint::Endpoint;
use crate::error::{CallError, Executed, Status};
use crate::event::{Body, Completion, Event};
use crate::flow::{ClientFlow, cancel_first_timer};
use crate::loss::{LossFeedback, Recovery};
use crate::mutant::{self, Mutant};
use crate::session::{SessionId, SessionState};
use crate::stats::RxDrop;
use crate::timers::CANCEL_FROM;
use crate::wire::{SinglePacket, packets_of};

/// The header of a packet of a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseHeader {
    pub(super) session: u32,
    pub(super) req_num: u32,
    pub(super) msg_size: u32,
    pub(super) index: u32,
}

/// Handles a response of one packet to a request of one packet that was sent once: the straight
/// line of a small RPC. `false`: a condition of the fast path does not hold, nothing has changed,
/// and the packet is for [`rx_response_rare`].
#[inline(always)]
pub(super) fn rx_response<C>(driver: &mut impl Driver<C>, peer: u32, p: &SinglePacket<'_>) -> bool {
    let Some((cont, session, request)) = driver.endpoint().end_single(peer, p) else {
        return false;
    };
    driver.on_completion(cont, session, request, Ok(Body::Borrowed(p.data)));
    true
}

/// Handles a packet of a response of several packets, a late, duplicate or oversized one, an answer
/// to a retransmission or to a request of several packets, or one whose request the transport still
/// references.
#[inline(never)]
pub(super) fn rx_response_rare<'f, C>(
    driver: &mut impl Driver<C>,
    peer: u32,
    h: ResponseHeader,
    data: impl Content<'f>,
) {
    let endpoint = driver.endpoint();
    let taken = match endpoint.connected_flow(peer, h.session) {
        Ok(mut flow) => flow.take_response(h, data),
        Err(reason) => Err(reason),
    };
    endpoint.apply_effects();
    match taken {
        Ok(completion) => {
            endpoint.io.stats.received(3);
            if let Some(completion) = completion {
                deliver(driver, Event::Completion(completion));
            }
        }
        Err(reason) => endpoint.io.stats.drop(reason),
    }
}

impl<C> Endpoint<C> {
    /// Completes a call of one packet each way, if the conditions of the fast path hold: returns
    /// its credit, and passes its slot to the call that has waited longest. `None`: nothing was
    /// changed.
    #[inline(always)]
    fn end_single(&mut self, peer: u32, p: &SinglePacket<'_>) -> Option<(C, SessionId, MsgBuf)> {
        let many = self.working_set.is_large() && self.sessions.len() >= CANCEL_FROM;
        // It takes the parts of a flow: a flow would cost 15 instructions more.
        let Endpoint { io, peers, sessions, .. } = self;
        let s = sessions.client_mut(p.session)?;
        let session = SessionId { index: p.session, generation: s.generation };
        let slot_no = p.req_num & (s.slots.count() - 1);
        let is_ready = s.peer == peer && s.state == SessionState::Connected && s.stalled == 0;
        let slot = s.slots.get_mut(slot_no as usize)?;
        // A slot whose first timer has expired needs a timer for its acknowledgement.
        let expected = slot.is_single_sent() && slot.req_num == p.req_num && slot.tracked;
        if !expected || !is_ready {
            return None;
        }
        let peer = peers.at_mut(peer)?;
        let units = slot.units();
        let (request, cont) = slot.finish_single()?;
        slot.deadline_ns = io.now_ns;
        s.credits.release(1);
        s.free |= 1 << slot_no;
        io.stats.responses += 1;
        io.stats.received(3);
        peer.credits.on_response(p.data.len());
        io.release_room(peer, units);
        if s.waits() {
            self.start_next(p.session);
        } else if many && let Some(slot) = s.slots.get_mut(slot_no as usize) {
            cancel_first_timer(io, slot, p.session);
        }
        Some((cont, session, request))
    }
}

impl<C> ClientFlow<'_, C> {
    /// Handles any packet of a response.
    fn take_response<'f>(
        &mut self,
        h: ResponseHeader,
        data: impl Content<'f>,
    ) -> Result<Option<Completion<'f, C>>, RxDrop> {
        let ResponseHeader { req_num, msg_size, index, .. } = h;
        let (limit, ack) = (self.io.cfg.max_msg_size, self.io.ack_info(self.peer));
        let mut feedback = LossFeedback::default();
        let slot_no = match self.slot_of(req_num) {
            Ok(slot_no) => slot_no,
            Err(reason) => return self.rx_quarantined(req_num, true, reason).map(|()| None),
        };
        let s = &mut *self.s;
        let dpp = s.agreed.data_per_packet;
        let slot = &mut s.slots[usize::from(slot_no)];
        let packets = packets_of(msg_size, dpp);
        let whole = if packets == 1 { Some(data.whole().ok_or(RxDrop::Length)?) } else { None };
        let recovery = s.agreed.recovery;
        let is_melo = recovery == Recovery::Melo;
        let (front, units) = (slot.in_order(), slot.units());
        let credits = match slot.on_response(index, msg_size, packets, ack, &mut feedback) {
            Ok(credits) => credits,
            Err(reason) => {
                self.io.note_pool(is_melo);
                if reason == RxDrop::OutOfOrder && recovery.goes_back_on_nacks() {
                    self.go_back_in_response(slot_no);
                }
                return Err(reason);
            }
        };
        let on_retry_answered =
            slot.retries > 0 && packets == 1 && slot.last_rx_ns < slot.started_ns;
        let age_ns = slot.age_of_retry(ack.now_ns);
        let moved = !is_melo || slot.in_order() > front;
        s.credits.release(credits);
        self.io.on_feedback(self.peer, feedback);
        if on_retry_answered {
            self.io.on_retry_answered(self.peer, age_ns, ack);
        }
        self.io.note_pool(is_melo);
        if index == 0 {
            self.peer.credits.on_response(msg_size.min(dpp.into()) as usize);
        }
        self.note_awaiting(slot_no);
        self.io.release_room(self.peer, credits * units);
        if packets > 1 && msg_size <= limit {
            match index {
                0 => self.begin_fetch(slot_no),
                _ => self.grant_fetch(slot_no),
            }
        }
        let slot = &mut self.s.slots[usize::from(slot_no)];
        let result = if msg_size > limit {
            slot.ack_owed = true; // dropped here, so the server need not keep it
            Err(CallError::ResponseTooLarge { response_bytes: msg_size, limit })
        } else if let Some(data) = whole {
            slot.ack_owed = true;
            Ok(Body::Borrowed(data))
        } else {
            match self.rx_response_part(slot_no, index, msg_size, data, moved) {
                Ok(None) => return Ok(None),
                Ok(Some(body)) => Ok(body),
                Err(e) => Err(e),
            }
        };
        Ok(self.complete(slot_no, result))
    }

    /// A packet of a response has arrived behind a gap: the first such packet of a gap has all
    /// packets from the gap on requested again.
    #[cold]
    fn go_back_in_response(&mut self, slot_no: u8) {
        let s = &mut *self.s;
        let slot = &mut s.slots[usize::from(slot_no)];
        let Some(credits) = slot.go_back_in_response() else { return };
        let units = credits * slot.units();
        slot.last_rx_ns = self.io.now_ns;
        slot.retries = 0;
        s.credits.release(credits);
        let mut feedback = LossFeedback::default();
        feedback.add_lost(1);
        self.io.on_feedback(self.peer, feedback);
        self.note_awaiting(slot_no);
        self.io.release_room(self.peer, units);
        self.extend_deadline(slot_no);
        self.wake_in_turn(slot_no);
    }

    /// A new packet of a response of several packets; returns the response when it is complete.
    /// `moved`: restarts the timeout for missing packets.
    fn rx_response_part<'f>(
        &mut self,
        slot_no: u8,
        index: u32,
        msg_size: u32,
        data: impl Content<'f>,
        moved: bool,
    ) -> Result<Option<Body<'f>>, CallError> {
        let offset = index as usize * usize::from(self.s.agreed.data_per_packet);
        let slot = &mut self.s.slots[usize::from(slot_no)];
        if index == 0 {
            let buffer = self.io.arena.alloc(msg_size as usize);
            let no_memory = |_| CallError::NoMemory { response_bytes: msg_size };
            slot.ack_owed = buffer.is_err();
            slot.set_response_buffer(buffer.map_err(no_memory)?);
        }
        if let Some(response) = slot.response_buffer_mut() {
            data.copy_into(response, offset);
        }
        if slot.has_response() {
            slot.ack_owed = true;
            return Ok(slot.take_response().map(Body::Owned));
        }
        slot.last_rx_ns = self.io.now_ns;
        if moved {
            slot.retries = 0;
            self.extend_deadline(slot_no);
        }
        self.wake_in_turn(slot_no);
        Ok(None)
    }

    /// Handles an error in place of a response.
    pub(super) fn rx_error_response(
        &mut self,
        req_num: u32,
        status: u16,
    ) -> Result<Option<Completion<'static, C>>, RxDrop> {
        let slot_no = match self.slot_of(req_num) {
            Ok(slot_no) => slot_no,
            Err(reason) => return self.rx_quarantined(req_num, true, reason).map(|()| None),
        };
        let slot = &mut self.s.slots[usize::from(slot_no)];
        // A server may reject a request from its first packet on, before the rest is sent.
        if !slot.awaits_response() {
            return Err(RxDrop::Inconsistent);
        }
        slot.ack_owed = true;
        let refused = Status::from_code(status) == Status::NoMemory;
        if refused || mutant::is_on(Mutant::RanMadeAgain) {
            self.peer.path.on_refused(self.io.now_ns);
            if self.hold_back(slot_no) {
                return Ok(None);
            }
        }
        let error = match Status::from_code(status) {
            Status::DeadlineExceeded => CallError::DeadlineExceeded(Executed::Never),
            Status::Cancelled => CallError::Cancelled(Executed::Never),
            Status::Expired => CallError::DeadlineExceeded(Executed::Maybe),
            status => CallError::Server(status),
        };
        self.io.count_ending(&error);
        Ok(self.complete(slot_no, Err(error)))
    }
}
