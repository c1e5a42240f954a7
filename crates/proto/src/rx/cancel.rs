//! Cancellations at the server (ADR 15): the client requests confirmation that the request is over, so
//! that it can use the slot again.
//!
//! A request that has not reached a handler is answered with [`Status::Cancelled`] and never
//! executed, also when none of it has arrived: later packets of it find their request number used.
//! A request with a handler is "in progress", and the handler can check for cancellation
//! ([`Endpoint::is_cancelled`]); the client repeats the cancellation and receives an answer after
//! the handler's reply.

use crate::endpoint::Endpoint;
use crate::error::Status;
use crate::event::{Notice, RequestId};
use crate::flow::ServerFlow;
use crate::session::Session;
use crate::slot::{Position, ServerPhase};
use crate::stats::RxDrop;

impl<C> ServerFlow<'_, C> {
    pub(super) fn rx_cancel(&mut self, req_num: u32) -> Result<(), RxDrop> {
        let step = self.s.slots.count();
        let slot_no = (req_num & (step - 1)) as u8;
        let slot = &mut self.s.slots[usize::from(slot_no)];
        match slot.position(req_num, step) {
            Position::Current => {}
            // No packet of it has arrived. The client has the answer to the previous request of the
            // slot.
            Position::Next if slot.phase == ServerPhase::Executing => return Err(RxDrop::Future),
            Position::Next => {
                self.end_request(slot_no);
                let slot = &mut self.s.slots[usize::from(slot_no)];
                let freed = slot.begin(req_num, 0, 0, 1, u64::MAX);
                self.release_charged(freed);
            }
            Position::Past => return Err(RxDrop::Stale),
            Position::Future => return Err(RxDrop::Future),
        }
        let slot = &mut self.s.slots[usize::from(slot_no)];
        match slot.phase {
            ServerPhase::Receiving => {
                slot.cancelled = true;
                self.reject(slot_no, Status::Cancelled);
            }
            ServerPhase::Executing => {
                slot.cr_in_progress = true;
                if !std::mem::replace(&mut slot.cancelled, true) {
                    let id = self.request(slot_no);
                    self.out.notices.push_back(Notice::Cancelled(id));
                }
                self.queue_credit_return(slot_no);
            }
            ServerPhase::Responded => {
                if slot.resend_first(self.io.tx.number()) {
                    self.s.resent += 1;
                    self.io.stats.responses_resent += 1;
                    self.queue_response(slot_no);
                }
            }
            ServerPhase::Idle | ServerPhase::Acked => return Err(RxDrop::Stale),
        }
        Ok(())
    }
}

impl<C> Endpoint<C> {
    /// Returns whether the answer of a request is no longer needed: its client has cancelled it,
    /// its deadline has passed, or the request is gone. A long handler can check this now and then
    /// and reply early; it has to reply in any case.
    pub fn is_cancelled(&self, id: RequestId) -> bool {
        !matches!(self.request_state(id), RequestState::Wanted)
    }

    /// Returns whether a handler still has this request although its client has cancelled it or is
    /// gone. In contrast to [`Endpoint::is_cancelled`], false after the answer.
    pub fn is_abandoned(&self, id: RequestId) -> bool {
        self.request_state(id) == RequestState::Abandoned
    }

    /// The answer to a request as it is stored: the response, or the error status. `None`: the request has
    /// no answer, or its client has acknowledged it or is gone.
    pub fn stored_answer(&self, id: RequestId) -> Option<Result<&[u8], Status>> {
        let Session::Server(s) = self.session_of(id)? else { return None };
        let slot = s.slots.get(usize::from(id.slot()))?;
        let is_it = s.generation == id.session().generation && slot.req_num == id.req_num();
        if is_it { slot.stored_answer() } else { None }
    }

    fn session_of(&self, id: RequestId) -> Option<&Session<C>> {
        self.sessions.get(id.session().index as usize)
    }

    fn request_state(&self, id: RequestId) -> RequestState {
        let generation = id.session().generation;
        match self.session_of(id) {
            Some(Session::Server(s)) if s.generation == generation => {
                match s.slots.get(usize::from(id.slot())) {
                    Some(slot) if slot.req_num != id.req_num() => RequestState::Gone,
                    Some(slot) if !slot.cancelled => RequestState::Wanted,
                    Some(slot) if slot.phase == ServerPhase::Executing => RequestState::Abandoned,
                    _ => RequestState::Gone,
                }
            }
            Some(Session::Draining(d)) if d.generation == generation => {
                let executes = d.executing.contains(&(id.slot(), id.req_num()));
                if executes { RequestState::Abandoned } else { RequestState::Gone }
            }
            _ => RequestState::Gone,
        }
    }
}

/// A request as its handler needs to know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RequestState {
    /// Its client waits for the answer.
    Wanted,
    /// A handler has it, and its client has cancelled it or is gone.
    Abandoned,
    /// It is over.
    Gone,
}
