//! What a call may say about itself (F15).

use std::time::Duration;

/// Options of a call, for [`crate::Context::call_with`] and its like.
///
/// ```
/// use std::time::Duration;
/// let options = courser::CallOptions::new().deadline(Duration::from_millis(5));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CallOptions {
    deadline: Option<Duration>,
}

impl CallOptions {
    /// A call without options: it waits for its answer as long as its session lives.
    pub const fn new() -> Self {
        CallOptions { deadline: None }
    }

    /// The call ends within `after` from now, and if not with a response, then with
    /// [`crate::CallError::DeadlineExceeded`], which says whether its handler ran. The server
    /// starts no handler whose deadline has passed, by an estimate that is at most about a round
    /// trip early, and late only for a request that lay in a stopped server's socket for more than
    /// 3.7 s. Server and client clocks need not agree. A deadline more than
    /// 134 s away holds at the client only.
    ///
    /// Deadlines are not inherited: a handler that makes a nested call passes on what is left of
    /// its own, [`crate::Request::time_left`].
    #[must_use]
    pub const fn deadline(mut self, after: Duration) -> Self {
        self.deadline = Some(after);
        self
    }

    /// The protocol's options, with a deadline counted from now.
    #[inline]
    pub(crate) fn at(self, now_ns: impl FnOnce() -> u64) -> courser_proto::CallOptions {
        let options = courser_proto::CallOptions::new();
        match self.deadline {
            None => options,
            Some(after) => {
                let after_ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
                options.with_deadline_ns(now_ns().saturating_add(after_ns))
            }
        }
    }
}
