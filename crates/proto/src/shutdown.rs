//! Shutting an endpoint down without losing what it has begun.

use crate::endpoint::Endpoint;
use crate::session::Session;
use crate::slot::ServerPhase;

impl<C> Endpoint<C> {
    /// Takes nothing new from now on: clients that want a session are refused
    /// ([`crate::ConnectRefuseReason::ShuttingDown`]), new requests are answered with
    /// [`crate::Status::ShuttingDown`] and are never executed. What has begun goes on.
    pub fn shut_down(&mut self) {
        self.shares.close();
    }

    /// Whether [`Endpoint::shut_down`] was called.
    pub fn is_shutting_down(&self) -> bool {
        self.shares.is_closing()
    }

    /// Whether nothing is under way: no call of this endpoint, no request that arrives or is with
    /// its handler, no response whose client has not acknowledged it. Looks at every session.
    pub fn is_drained(&self) -> bool {
        self.is_answered() && self.unacknowledged() == 0
    }

    /// Whether all that may be missing is acknowledgements of responses that were sent.
    pub fn is_answered(&self) -> bool {
        self.outstanding_calls() == 0 && self.tx.is_empty() && self.executing() == 0
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

    /// How many slots of server sessions are in a phase.
    fn slots_in(&self, is_it: impl Fn(ServerPhase) -> bool) -> usize {
        let of = |s: &Session<C>| match s {
            Session::Server(s) => s.slots.iter().filter(|slot| is_it(slot.phase)).count(),
            _ => 0,
        };
        self.sessions.iter().map(of).sum()
    }
}
