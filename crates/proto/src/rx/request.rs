//! Requests at the server: order, reassembly, duplicates (E1, E42, E58, E61).

use super::Content;
use crate::admission::{Answer, Handler, Line, NextPackets};
use crate::budget::NO_MESSAGE;
use crate::driver::{Driver, deliver};
use crate::endpoint::Endpoint;
use crate::error::Status;
use crate::event::{Body, Event, RequestId};
use crate::flow::ServerFlow;
use crate::loss::Recovery;
use crate::mutant::{self, Mutant};
use crate::session::SessionId;
use crate::slot::{Position, ServerPhase, ServerSlot, Stored};
use crate::stats::RxDrop;
use crate::wire::{SinglePacket, packets_of};

/// The header of a packet of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestHeader {
    pub(super) session: u32,
    pub(super) req_num: u32,
    pub(super) req_type: u16,
    pub(super) msg_size: u32,
    pub(super) index: u32,
    pub(super) remaining_us: Option<u32>,
    pub(super) one_way: bool,
}

/// Handles a request of one packet: the straight line of a small RPC. `false`: a condition of the
/// fast path does not hold, nothing has changed, and the packet is for [`rx_request_rare`].
#[inline(always)]
pub(super) fn rx_request<C>(driver: &mut impl Driver<C>, peer: u32, p: &SinglePacket<'_>) -> bool {
    let Some((id, expires_ns)) = driver.endpoint().begin_single(peer, p) else { return false };
    driver.on_request(id, p.req_type, Body::Borrowed(p.data), expires_ns);
    true
}

/// Handles a packet of a request of several packets, a duplicate, a late, early, rejected or copied
/// one, or one whose slot has to be cleared first.
#[inline(never)]
pub(super) fn rx_request_rare<'f, C>(
    driver: &mut impl Driver<C>,
    peer: u32,
    h: RequestHeader,
    data: impl Content<'f>,
) {
    let endpoint = driver.endpoint();
    let taken = match endpoint.awake_server_flow(peer, h.session, h.req_num) {
        Ok(mut flow) => flow.take_request(h, data),
        Err(reason) => Err(reason),
    };
    endpoint.apply_effects();
    match taken {
        Ok(event) => {
            endpoint.io.stats.received(0);
            match event {
                Some(event) if h.one_way => {
                    let message = as_message(driver.endpoint(), event);
                    deliver(driver, message);
                }
                Some(event) => deliver(driver, event),
                None => {}
            }
        }
        Err(reason) => endpoint.io.stats.drop(reason),
    }
}

/// A request that carries a one-way message, as that.
#[cold]
fn as_message<'f, C>(endpoint: &mut Endpoint<C>, event: Event<'f, C>) -> Event<'f, C> {
    match event {
        Event::Request { id, req_type, body, expires_ns } => {
            let stats = &mut endpoint.io.stats;
            stats.requests -= 1;
            stats.messages_received += 1;
            let (session, msg_type, request) = (id.session(), req_type, Some(id));
            Event::Message { session, msg_type, body, expires_ns, request }
        }
        other => other,
    }
}

impl<C> Endpoint<C> {
    /// Starts a request of one packet on a clean slot, if the conditions of the fast path hold.
    /// Returns its id and its deadline. `None`: nothing was changed.
    #[inline(always)]
    fn begin_single(&mut self, peer: u32, p: &SinglePacket<'_>) -> Option<(RequestId, u64)> {
        let s = self.sessions.server_mut(p.session)?;
        let (step, generation, size) = (s.slots.count(), s.generation, p.data.len() as u32);
        let slot_no = p.req_num & (step - 1);
        let slot = s.slots.get_mut(slot_no as usize)?;
        let is_next = slot.req_num.wrapping_add(step) == p.req_num;
        if s.peer != peer || !is_next || !slot.is_clean() || self.admission.quotas.needs_check {
            return None;
        }
        let mut expires_ns = u64::MAX;
        if let Some(us) = p.remaining_us() {
            expires_ns = self.peers.at_mut(peer)?.path.deadline_ns(us);
            if expires_ns <= self.io.now_ns {
                return None;
            }
        }
        slot.renew(p.req_num, p.req_type, size, 1, expires_ns);
        slot.arrived_whole();
        self.io.stats.requests += 1;
        self.io.stats.received(0);
        let session = SessionId { index: p.session, generation };
        Some((RequestId::new(session, slot_no as u8, p.req_num), expires_ns))
    }
}

impl<C> ServerFlow<'_, C> {
    /// Handles any packet of a request.
    fn take_request<'f>(
        &mut self,
        h: RequestHeader,
        data: impl Content<'f>,
    ) -> Result<Option<Event<'f, C>>, RxDrop> {
        let RequestHeader { req_num, req_type, msg_size, index, remaining_us, .. } = h;
        let deadline_ns = |us| self.peer.path.deadline_ns(us);
        let expires_ns = remaining_us.map_or(u64::MAX, deadline_ns);
        let (step, dpp) = (self.s.slots.count(), self.s.data_per_packet);
        let slot_no = (req_num & (step - 1)) as u8;
        let recovery = self.s.recovery;
        let slot = &mut self.s.slots[usize::from(slot_no)];
        match slot.position(req_num, step) {
            Position::Current => {}
            Position::Next if slot.phase == ServerPhase::Executing => return Err(RxDrop::Future),
            Position::Next if index != 0 && recovery == Recovery::GoBackN => {
                return Err(RxDrop::OutOfOrder);
            }
            Position::Next => {
                let packets = packets_of(msg_size, dpp);
                // A client that gives up a request without a cancellation is faulty.
                self.end_request(slot_no);
                let slot = &mut self.s.slots[usize::from(slot_no)];
                let freed = slot.begin(req_num, req_type, msg_size, packets, expires_ns);
                self.release_charged(freed);
            }
            Position::Past => return Err(RxDrop::Stale),
            Position::Future => return Err(RxDrop::Future),
        }
        let slot = &mut self.s.slots[usize::from(slot_no)];
        if slot.req_size != msg_size || slot.req_type != req_type {
            // The slot stores only the number of a request that was cancelled before it arrived, and
            // of the last one before an idle period.
            let forgotten = slot.cancelled || slot.phase == ServerPhase::Idle;
            return Err(if forgotten { RxDrop::Stale } else { RxDrop::Inconsistent });
        }
        if restarts(slot, recovery, index) {
            self.begin_request_again(slot_no);
        }
        let slot = &mut self.s.slots[usize::from(slot_no)];
        if (slot.phase != ServerPhase::Receiving || index < slot.req_rcvd) && !runs_again(slot) {
            self.on_duplicate(slot_no, index);
            return Err(RxDrop::Duplicate);
        }
        let is_early = index > slot.req_rcvd && !mutant::is_on(Mutant::RequestGapTaken);
        if is_early && recovery.is_go_back_n() {
            self.refuse_early(slot_no, recovery);
            return Err(RxDrop::OutOfOrder);
        }
        let offset = index as usize * usize::from(dpp);
        let end = (offset + data.len()) as u32;
        if slot.req_packets > 1 && slot.room() < end && !self.reserve_part(slot_no, (index, end))? {
            return Ok(None); // rejected
        }
        if is_early {
            self.insert_early(slot_no, index)?;
        }
        let slot = &mut self.s.slots[usize::from(slot_no)];
        if index == 0 {
            slot.expires_ns = expires_ns; // stored now, in case later packets came first
        }
        if slot.req_packets > 1 {
            return Ok(self.rx_request_part(slot_no, (index, offset), data));
        }
        let data = data.whole().ok_or(RxDrop::Length)?;
        slot.arrived_whole();
        Ok(self.admit_single(slot_no, h, data))
    }

    /// The first packet of an incomplete request has arrived again with [`Recovery::GoBackZero`]:
    /// its packets are discarded. It keeps its memory and its place in the budget, because it was
    /// admitted. Nothing is discarded while the request waits for a grant, which its client may not
    /// know, nor when only that packet has arrived: the duplicate is answered with that.
    #[cold]
    fn begin_request_again(&mut self, slot_no: u8) {
        let owner = self.owner(slot_no);
        let slot = &mut self.s.slots[usize::from(slot_no)];
        let at = slot.message();
        if slot.req_rcvd == 1 || self.admission.budget.owes(at, &owner) {
            slot.forget_nack();
            return;
        }
        slot.discard_packets();
        let most = self.s.credit_limit;
        if let Some((quota, kept)) = self.admission.budget.begin_again(at, &owner, most) {
            self.admission.quotas.end_promise(quota, 0, kept);
            self.admission.quotas.promise(quota, kept);
        }
    }

    /// A request of one packet has arrived: decides whether its handler runs.
    fn admit_single<'f>(
        &mut self,
        slot_no: u8,
        h: RequestHeader,
        data: &'f [u8],
    ) -> Option<Event<'f, C>> {
        let expires_ns = self.s.slots[usize::from(slot_no)].expires_ns;
        let (client, req_type) = (self.s.quota, h.req_type);
        match self.admission.ask(self.io, Handler { client, req_type, data, expires_ns }) {
            Answer::Now(body) => {
                self.io.stats.requests += 1;
                let id = self.request(slot_no);
                Some(Event::Request { id, req_type, body, expires_ns })
            }
            Answer::Refuse(status) => {
                self.io.stats.requests_refused += u64::from(status != Status::DeadlineExceeded);
                self.refuse(slot_no, status);
                None
            }
            Answer::Wait(_) => None, // it does not
        }
    }

    /// A new packet of a request of several packets.
    #[inline(never)] // outlined to keep registers free on the path of small requests
    fn rx_request_part<'f>(
        &mut self,
        slot_no: u8,
        (index, offset): (u32, usize),
        data: impl Content<'f>,
    ) -> Option<Event<'f, C>> {
        let (now_ns, factors) = (self.io.now_ns, self.io.cfg.factors);
        let slot = &mut self.s.slots[usize::from(slot_no)];
        let req_type = slot.req_type;
        let (expires_ns, expired) = (slot.expires_ns, slot.expires_ns <= now_ns);
        if expired && index == 0 {
            self.reject(slot_no, Status::DeadlineExceeded); // the rest is not needed
            return None;
        }
        if let Some(req) = &mut slot.req {
            factors.copy_part(data, req, offset);
        }
        if index == slot.req_rcvd || mutant::is_on(Mutant::RequestGapTaken) {
            slot.req_rcvd = match &mut slot.gaps {
                None => slot.req_rcvd + 1,
                Some(gaps) => gaps.advance(slot.req_rcvd),
            };
        }
        if slot.req_rcvd < slot.req_packets {
            self.note_arrival(slot_no);
            return None;
        }
        self.end_request(slot_no);
        let slot = &mut self.s.slots[usize::from(slot_no)];
        slot.phase = ServerPhase::Executing;
        let body = Body::Owned(slot.req.take()?);
        // Counts against its client's quota until the handler has replied.
        if expired {
            self.refuse(slot_no, Status::DeadlineExceeded);
            return None;
        }
        self.io.stats.requests += 1;
        Some(Event::Request { id: self.request(slot_no), req_type, body, expires_ns })
    }

    /// A new packet of an incomplete request of several packets has arrived: its credit return is to
    /// be sent now, unless it is withheld.
    #[inline]
    fn note_arrival(&mut self, slot_no: u8) {
        let owner = self.owner(slot_no);
        let at = self.s.slots[usize::from(slot_no)].message();
        let dpp = u32::from(self.s.data_per_packet);
        let now_ns = self.io.now_ns;
        if let Some((quota, kept)) = self.admission.budget.on_part(at, &owner, dpp, now_ns)
            && self.admission.quotas.keep_promise(quota, kept)
        {
            self.admission.memory_returns(self.io);
        }
        self.admission.effects.limits |= self.admission.budget.is_due();
        match self.admission.ask(self.io, NextPackets { at, owner: &owner }) {
            // The credit return for its first packet is withheld.
            Answer::Wait(Line::Memory) if self.admission.budget.arrived(at, &owner) <= 1 => {}
            Answer::Wait(Line::Grants) => {
                self.admission.effects.waiting.push((at, owner));
                self.admission.effects.arrived = Some(self.request(slot_no));
            }
            _ => self.queue_credit_return(slot_no),
        }
    }

    /// A request packet that arrived before missing ones is dropped. The first one behind each gap
    /// has the client go back, if the scheme does that.
    #[cold]
    fn refuse_early(&mut self, slot_no: u8, recovery: Recovery) {
        let slot = &mut self.s.slots[usize::from(slot_no)];
        if recovery.goes_back_on_nacks() && slot.on_gap() {
            self.queue_credit_return(slot_no);
        }
    }

    /// Records a request packet that arrived before missing ones.
    #[cold]
    fn insert_early(&mut self, slot_no: u8, index: u32) -> Result<(), RxDrop> {
        let is_melo = self.s.recovery == Recovery::Melo;
        let pools = is_melo.then_some(&self.io.boards.pools);
        let slot = &mut self.s.slots[usize::from(slot_no)];
        let (count, packets) = (slot.req_rcvd, slot.req_packets);
        let inserted = slot.gaps.get_or_insert_default().insert(index, count, packets, pools);
        self.io.note_pool(is_melo);
        if inserted.is_err() {
            self.on_duplicate(slot_no, index);
        }
        inserted
    }

    /// A duplicate: the handler never runs again (E1, E61). A complete request is answered with its
    /// stored response or with "in progress" (ADR 5), an incomplete one with the credits returned so
    /// far. An error is repeated for any packet: the request may have been rejected at its first
    /// packet, and the client may lack credits to reach the last one.
    #[cold]
    fn on_duplicate(&mut self, slot_no: u8, index: u32) {
        let owner = self.owner(slot_no);
        let slot = &mut self.s.slots[usize::from(slot_no)];
        let message = slot.message();
        if message != NO_MESSAGE {
            self.admission.budget.touch(message, &owner, self.io.now_ns);
        }
        let owes = self.admission.budget.owes(message, &owner);
        self.admission.effects.silent |= owes;
        let last = index + 1 == slot.req_packets || matches!(slot.resp, Stored::Error(_));
        match slot.phase {
            ServerPhase::Responded if last && mutant::is_on(Mutant::ResponseNotResent) => {}
            ServerPhase::Responded if last => {
                if slot.resend_first(self.io.tx.number()) {
                    self.s.resent += 1;
                    self.io.stats.responses_resent += 1;
                    self.queue_response(slot_no);
                } else {
                    self.say_waiting(slot_no);
                }
            }
            ServerPhase::Receiving | ServerPhase::Executing | ServerPhase::Responded => {
                let waits = slot.phase == ServerPhase::Receiving && owes && !slot.cr_queued;
                slot.cr_in_progress |= last && slot.phase == ServerPhase::Executing || waits;
                if slot.req_packets > 1 || slot.cr_in_progress {
                    self.queue_credit_return(slot_no);
                }
            }
            ServerPhase::Idle | ServerPhase::Acked => {}
        }
    }
}

/// Returns whether a packet of the current request has its packets discarded (M21).
#[inline(always)]
fn restarts(slot: &ServerSlot, recovery: Recovery, index: u32) -> bool {
    recovery == Recovery::GoBackZero
        && index == 0
        && slot.phase == ServerPhase::Receiving
        && slot.req_rcvd > 0
        && !slot.cancelled
}

/// Returns whether a planted bug runs the handler for a duplicate request of one packet.
#[inline(always)]
fn runs_again(slot: &ServerSlot) -> bool {
    let answered = matches!(slot.phase, ServerPhase::Responded | ServerPhase::Acked);
    let executing = slot.phase == ServerPhase::Executing;
    slot.req_packets == 1
        && (answered && mutant::is_on(Mutant::AnsweredRunsAgain)
            || executing && mutant::is_on(Mutant::ExecutingRunsAgain))
}
