//! Graceful shutdown of an endpoint.

use std::ops::Range;

use crate::endpoint::Endpoint;
use crate::error::Status;
use crate::event::RequestId;
use crate::session::{Session, SessionId};
use crate::slot::ServerPhase;

impl<C> Endpoint<C> {
    /// Rejects all new work from now on: connects with [`crate::ConnectRefuseReason::ShuttingDown`], new
    /// requests with [`crate::Status::ShuttingDown`], without execution. Work in progress
    /// continues.
    pub fn shut_down(&mut self) {
        self.shut_down_except(&[]);
    }

    /// [`Endpoint::shut_down`] that goes on to accept requests of these types, which belong to work
    /// in progress, or report the shutdown.
    pub fn shut_down_except(&mut self, types: &[Range<u16>]) {
        self.admission.quotas.close(types);
    }

    /// Returns whether [`Endpoint::shut_down`] was called.
    pub fn is_shutting_down(&self) -> bool {
        self.admission.quotas.is_closing()
    }

    /// Answers all requests that have no answer, as the grace of a shutdown ends: with
    /// [`Status::GraceEnded`] those with their handlers, whose later answers are dropped, with
    /// [`Status::ShuttingDown`] those that are arriving. Walks all sessions.
    pub fn end_unanswered(&mut self) {
        let unanswered: Vec<_> = self.unanswered().collect();
        for (id, phase) in unanswered {
            match phase {
                ServerPhase::Receiving => self.end_arriving(id, Status::ShuttingDown),
                _ => self.reply_status(id, Status::GraceEnded),
            }
        }
    }

    /// Requests that are arriving or with their handlers.
    fn unanswered(&self) -> impl Iterator<Item = (RequestId, ServerPhase)> {
        self.sessions.iter().enumerate().flat_map(|(index, session)| {
            let server = match session {
                Session::Server(s) => Some(s),
                _ => None,
            };
            server.into_iter().flat_map(move |s| {
                let session = SessionId { index: index as u32, generation: s.generation };
                s.slots.iter().enumerate().filter_map(move |(n, slot)| {
                    let id = RequestId::new(session, n as u8, slot.req_num);
                    slot.is_open().then_some((id, slot.phase))
                })
            })
        })
    }

    /// Returns whether no work is left: no call of this endpoint, no request that is arriving or
    /// with its handler, no unacknowledged response. Walks all sessions.
    pub fn is_drained(&self) -> bool {
        self.is_answered() && self.unacknowledged() == 0
    }

    /// Returns whether at most acknowledgements of sent responses are missing.
    pub fn is_answered(&self) -> bool {
        let unsent = self.io.outstanding_calls() + self.outstanding_messages();
        unsent == 0 && self.is_sent() && self.executing() == 0
    }

    /// Returns whether no packet waits to be sent.
    pub fn is_sent(&self) -> bool {
        self.io.tx.is_empty() && !self.io.tx.host.is_awaited()
    }

    /// Responses that are stored because their clients have not acknowledged them.
    pub fn unacknowledged(&self) -> usize {
        self.slots_in(|phase| phase == ServerPhase::Responded)
    }

    /// Requests that are arriving or with their handlers.
    pub fn executing(&self) -> usize {
        let waited_for = |s: &Session<C>| match s {
            Session::Draining(d) => d.executing.len(),
            _ => 0,
        };
        self.slots_in(|phase| matches!(phase, ServerPhase::Receiving | ServerPhase::Executing))
            + self.sessions.iter().map(waited_for).sum::<usize>()
    }

    /// Number of slots of server sessions in a phase.
    fn slots_in(&self, is_it: impl Fn(ServerPhase) -> bool) -> usize {
        let of = |s: &Session<C>| match s {
            Session::Server(s) => s.slots.iter().filter(|slot| is_it(slot.phase)).count(),
            _ => 0,
        };
        self.sessions.iter().map(of).sum()
    }
}
