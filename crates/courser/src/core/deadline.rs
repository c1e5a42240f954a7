//! Deadlines of jobs; the deadline of the handler that a thread polls, which the calls of the handler
//! inherit.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The deadline of a job, with the time of its arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deadline {
    /// Time of arrival.
    pub(crate) received: Instant,
    /// Time at which its call expires.
    pub(crate) expires: Instant,
}

impl Deadline {
    /// Returns whether the job has expired.
    pub(crate) fn has_passed(&self, now: Instant) -> bool {
        self.expires <= now
    }

    /// Returns whether more than half of the time from arrival to expiry has passed.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let waited = now.saturating_duration_since(self.received);
        let budget = self.expires.saturating_duration_since(self.received);
        courser_proto::serve_newest(ns(waited), ns(budget))
    }
}

thread_local! {
    static EXPIRES: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The deadline of the handler that this thread polls now.
pub(crate) fn inherited() -> Option<Instant> {
    EXPIRES.get()
}

/// Runs `f`, which is part of a handler with this deadline.
pub(crate) fn with<R>(expires: Option<Instant>, f: impl FnOnce() -> R) -> R {
    /// Sets the earlier deadline, also after a panic.
    struct Before(Option<Instant>);
    impl Drop for Before {
        fn drop(&mut self) {
            EXPIRES.set(self.0);
        }
    }
    let _before = Before(EXPIRES.replace(expires));
    f()
}

/// The earlier one of two deadlines.
pub(crate) fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    [a, b].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::time::Duration;

    use super::*;
    use crate::platform::Clock;

    #[test]
    fn a_deadline_lasts_as_long_as_the_poll_of_its_handler() {
        let first = Clock::System.now();
        let second = first + Duration::from_secs(1);
        assert_eq!(inherited(), None);
        with(Some(first), || {
            assert_eq!(inherited(), Some(first));
            with(Some(second), || assert_eq!(inherited(), Some(second)));
            let panicked = catch_unwind(|| with(None, || panic!("a handler")));
            assert!(panicked.is_err());
            assert_eq!(inherited(), Some(first));
        });
        assert_eq!(inherited(), None);
        assert_eq!(earliest(Some(second), Some(first)), Some(first));
        assert_eq!((earliest(None, Some(first)), earliest(None, None)), (Some(first), None));
    }
}
