//! Options of a call (ADR 15), and its identifier.

use crate::session::SessionId;

/// Options of a call. [`CallOptions::default`] is a call without any.
///
/// Two more are reserved: without an answer (packet kind one-way), and idempotent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CallOptions {
    /// Deadline in the endpoint's time; `None`: none, the call waits as long as its session lives.
    /// A call whose deadline passes ends with [`crate::CallError::DeadlineExceeded`], and the
    /// server no longer starts its handler: the server estimates the deadline from the remaining
    /// time, never too late, and up to a round trip too early. (Except before its first round-trip
    /// sample, when the transit time is not subtracted.) Deadlines more than 134 s ahead are not
    /// sent to the server.
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

/// Identifies a call until it ends, for [`Endpoint::cancel`](crate::Endpoint::cancel). Never
/// reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CallId {
    pub(crate) session: SessionId,
    /// Sequence number among the endpoint's calls.
    pub(crate) seq: u64,
}

impl CallId {
    /// The session of the call.
    pub fn session(&self) -> SessionId {
        self.session
    }
}
