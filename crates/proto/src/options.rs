//! What a call may say about itself (F15), and its name.

use crate::session::SessionId;

/// Options of a call. [`CallOptions::default`] is a call without any.
///
/// Two more are reserved: "no answer" (packet kind one-way) and "idempotent".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CallOptions {
    /// When the call is to end at the latest, in the endpoint's time; `None`: it waits as long as
    /// its session lives. A call whose deadline passes ends with
    /// [`crate::CallError::DeadlineExceeded`], and a server does not start its handler any more:
    /// it estimates the deadline from the time left, never too late, by up to a round trip too
    /// early. (Only before it has measured a round trip the time on the way is not taken off.)
    /// Deadlines more than 134 s ahead are not told to the server.
    pub deadline_ns: Option<u64>,
}

impl CallOptions {
    /// No options.
    pub const fn new() -> Self {
        CallOptions { deadline_ns: None }
    }

    /// With a deadline: an absolute time in the endpoint's nanoseconds.
    #[must_use]
    pub const fn with_deadline_ns(mut self, deadline_ns: u64) -> Self {
        self.deadline_ns = Some(deadline_ns);
        self
    }
}

/// Names a call until it ends, to cancel it. Never that of a later call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CallId {
    pub(crate) session: SessionId,
    /// Running number of the endpoint's calls.
    pub(crate) seq: u64,
}

impl CallId {
    /// The session of the call.
    pub fn session(&self) -> SessionId {
        self.session
    }
}
