//! Ending an endpoint: gracefully with [`Rpc::shutdown`], at once by dropping it.

use std::time::Duration;

use courser_net::Transport;

use crate::control::Command;
use crate::error::RunError;
use crate::rpc::Rpc;

/// The least time between two checks whether everything has ended, ns: a check costs a walk over
/// all sessions.
const LOOK_EVERY_NS: u64 = 200_000;

/// A client whose event loop runs acknowledges a response within 0.4 s (F6). When all that is
/// missing is acknowledgements, clients that do not run are waited for this long, ns.
const ACKNOWLEDGE_NS: u64 = 1_000_000_000;

/// What a graceful shutdown had to leave behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShutdownReport {
    /// Calls of this endpoint that had not ended. Their continuations are dropped without being
    /// called, as with a plain drop.
    pub calls: u64,
    /// Requests that were arriving, or whose handlers had not answered. Their clients see
    /// [`courser_proto::CallError::PeerFailed`].
    pub executing: usize,
    /// Responses that were sent and that their clients have not acknowledged: they may be lost.
    pub unacknowledged: usize,
}

impl ShutdownReport {
    /// Whether nothing was left behind.
    pub fn is_clean(&self) -> bool {
        *self == ShutdownReport::default()
    }
}

impl<T: Transport> Rpc<T> {
    /// Ends the endpoint in order, within `grace`:
    ///
    /// 1. new sessions are refused, new requests are answered with
    ///    [`courser_proto::Status::ShuttingDown`] and never executed, so that clients can turn to
    ///    another server;
    /// 2. what has begun goes on until its handlers have answered, the clients have the answers,
    ///    and the calls of this endpoint have ended (clients that do not run their event loop are
    ///    waited for only a second once their answers are sent);
    /// 3. the sessions are closed, and the peers told.
    ///
    /// Dropping the endpoint instead is step 3 alone: its peers' calls end with `PeerFailed`. Drop
    /// is safe at any time; call this where answers matter.
    ///
    /// Usually called when [`Rpc::run`] has returned, because of a [`crate::EndpointHandle::stop`] from a
    /// signal handler, say.
    ///
    /// A program with its own event loop takes the steps one by one: [`Rpc::begin_shutdown`],
    /// [`Rpc::poll`] until [`Rpc::is_drained`], [`Rpc::left_behind`], drop.
    ///
    /// # Errors
    /// The system's poll failed, or time is virtual ([`crate::Nexus::bind_in`]); the endpoint is
    /// closed all the same.
    pub fn shutdown(mut self, grace: Duration) -> Result<ShutdownReport, RunError> {
        self.may_block()?;
        self.begin_shutdown();
        let grace_ns = u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX);
        let end_ns = self.core.now_ns().saturating_add(grace_ns);
        // Since when all that is missing is acknowledgements, and when to stop waiting for them.
        let mut enough_ns = None;
        let mut look_ns = 0;
        loop {
            let now_ns = self.core.now_ns();
            if now_ns >= look_ns {
                if self.is_drained() {
                    break;
                }
                if !self.core.proto.is_answered() {
                    enough_ns = None;
                } else if enough_ns.is_none() {
                    enough_ns = Some(now_ns.saturating_add(ACKNOWLEDGE_NS));
                }
                look_ns = now_ns + LOOK_EVERY_NS;
            }
            if now_ns >= enough_ns.map_or(end_ns, |enough| enough.min(end_ns)) {
                break;
            }
            if !self.poll() {
                self.idle(Some(look_ns.min(end_ns)))?;
            }
        }
        Ok(self.left_behind())
    }

    /// The first step of [`Rpc::shutdown`]: new sessions and new requests are refused from now on,
    /// while what has begun goes on as the event loop does. There is no way back.
    pub fn begin_shutdown(&mut self) {
        self.control.send(Command::SetAccepts { index: self.index, accepts: false });
        self.core.proto.shut_down();
    }

    /// The end of the second step of [`Rpc::shutdown`]: nothing is under way any more, so that
    /// dropping the endpoint leaves nothing behind. Looks at every session.
    pub fn is_drained(&self) -> bool {
        self.core.proto.is_drained() && self.burst.is_empty()
    }

    /// What dropping the endpoint now would leave behind. Looks at every session.
    pub fn left_behind(&self) -> ShutdownReport {
        ShutdownReport {
            calls: self.core.proto.outstanding_calls(),
            executing: self.core.proto.executing(),
            unacknowledged: self.core.proto.unacknowledged(),
        }
    }
}
