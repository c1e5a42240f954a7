//! Shutting an endpoint down without losing what it has begun.

use crate::endpoint::Endpoint;
use crate::session::Session;
use crate::slot::ServerPhase;

impl<C> Endpoint<C> {
    /// Takes nothing new from now on: clients that want a session are refused
    /// ([`crate::RefuseReason::ShuttingDown`]), new requests are answered with
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
        let is_over = |s: &Session<C>| match s {
            Session::Server(s) => {
                let over = |phase| matches!(phase, ServerPhase::Idle | ServerPhase::Acked);
                s.slots.iter().all(|slot| over(slot.phase))
            }
            Session::Draining(_) => false,
            Session::Client(_) | Session::Vacant { .. } => true,
        };
        self.outstanding_calls() == 0 && self.tx.is_empty() && self.sessions.iter().all(is_over)
    }

    /// Whether all that may be missing is acknowledgements of responses that were sent.
    pub fn is_answered(&self) -> bool {
        let is_over = |s: &Session<C>| match s {
            Session::Server(s) => s
                .slots
                .iter()
                .all(|slot| !matches!(slot.phase, ServerPhase::Receiving | ServerPhase::Executing)),
            Session::Draining(_) => false,
            Session::Client(_) | Session::Vacant { .. } => true,
        };
        self.outstanding_calls() == 0 && self.tx.is_empty() && self.sessions.iter().all(is_over)
    }

    /// Responses that are stored because their clients have not acknowledged them.
    pub fn unacknowledged(&self) -> usize {
        let of = |s: &Session<C>| match s {
            Session::Server(s) => {
                s.slots.iter().filter(|slot| slot.phase == ServerPhase::Responded).count()
            }
            _ => 0,
        };
        self.sessions.iter().map(of).sum()
    }

    /// Requests that are arriving or with their handlers.
    pub fn executing(&self) -> usize {
        let of = |s: &Session<C>| match s {
            Session::Server(s) => {
                let begun =
                    |phase| matches!(phase, ServerPhase::Receiving | ServerPhase::Executing);
                s.slots.iter().filter(|slot| begun(slot.phase)).count()
            }
            Session::Draining(d) => d.executing.len(),
            Session::Client(_) | Session::Vacant { .. } => 0,
        };
        self.sessions.iter().map(of).sum()
    }
}
