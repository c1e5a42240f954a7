//! Where the first poll of a handler runs: on the thread of its endpoint, or on its runtime.
//!
//! A change of threads and back costs a short handler more than its own work. A handler that blocks or
//! computes would delay all packets of its endpoint. So each type of requests begins on the runtime,
//! and moves to the endpoint's thread when its first polls there were short and ended it.

use std::sync::atomic::{AtomicU32, Ordering};

/// A first poll of less is short, ns: less than two changes of threads.
const SHORT_NS: u64 = 10_000;
/// A first poll of more keeps its type away from the endpoint's thread for a while, ns.
const LONG_NS: u64 = 100_000;
/// Short first polls that move a type to the endpoint's thread, and the margin before it leaves that
/// again.
const TRIAL: u32 = 16;
/// Long polls after which a trial is not doubled any more: 16 * 2^8 short polls.
const MOST_DOUBLINGS: u32 = 8;

/// Where a server polls its handlers first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Placement {
    Endpoint,
    Runtime,
    /// By the [`Record`] of their type.
    Measured,
}

/// The first polls of the handlers of a type of requests, on all endpoints of a server.
#[derive(Debug)]
pub(super) struct Record {
    /// Short polls, less other ones, until handlers have the best record. They run on the endpoint's thread
    /// while it is at most [`TRIAL`].
    owed: AtomicU32,
    long: AtomicU32,
}

impl Record {
    pub(super) fn new() -> Self {
        Record { owed: AtomicU32::new(2 * TRIAL), long: AtomicU32::new(0) }
    }

    /// Returns whether a first poll on the endpoint's thread is expected to be short, and to end the
    /// handler. One load.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.owed.load(Ordering::Relaxed) <= TRIAL
    }

    /// A first poll has taken this time. Threads that do so at once may lose each other's steps.
    #[inline]
    pub(super) fn note(&self, ns: u64, ended: bool) {
        let owed = self.owed.load(Ordering::Relaxed);
        let next = if ended && ns < SHORT_NS {
            owed.saturating_sub(1)
        } else if ns < LONG_NS {
            owed.max((owed + 1).min(2 * TRIAL))
        } else {
            return self.note_long();
        };
        if next != owed {
            // One that fails has lost to a long poll, or to another step.
            let relaxed = Ordering::Relaxed;
            let _ = self.owed.compare_exchange(owed, next, relaxed, relaxed);
        }
    }

    /// A poll has taken long, or has panicked. On the endpoint's thread that doubles the next trial; on
    /// the runtime, where threads also lose their CPU, the trial begins again.
    #[cold]
    pub(super) fn note_long(&self) {
        let long = self.long.load(Ordering::Relaxed) + u32::from(self.is_short());
        let long = long.clamp(1, MOST_DOUBLINGS);
        self.long.store(long, Ordering::Relaxed);
        self.owed.store(TRIAL + (TRIAL << long), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Short polls until the type is polled on the endpoint's thread.
    fn trial(record: &Record) -> u32 {
        (0..10_000)
            .find(|_| {
                record.is_short() || {
                    record.note(1_000, true);
                    false
                }
            })
            .unwrap()
    }

    #[test]
    fn a_type_moves_to_the_endpoint_after_short_polls_and_leaves_it_when_most_wait() {
        let record = Record::new();
        assert_eq!(trial(&record), TRIAL);
        (0..100).for_each(|_| record.note(1_000, true));
        for _ in 0..1_000 {
            record.note(1_000, false);
            record.note(50_000, true);
            (0..3).for_each(|_| record.note(1_000, true));
            assert!(record.is_short());
        }
        (0..=TRIAL).for_each(|_| record.note(1_000, false));
        assert!(!record.is_short());
        (0..1_000).for_each(|_| record.note(1_000, false));
        assert_eq!(trial(&record), TRIAL, "those that waited do not count for ever");
    }

    #[test]
    fn a_long_poll_on_the_runtime_does_not_double_the_trial() {
        let record = Record::new();
        for _ in 0..20 {
            record.note(LONG_NS, true);
            (0..TRIAL).for_each(|_| record.note(1_000, true));
        }
        record.note(LONG_NS, true);
        assert_eq!(trial(&record), 2 * TRIAL);
    }

    #[test]
    fn each_long_poll_doubles_the_short_polls_until_the_next_trial_up_to_4096() {
        let record = Record::new();
        let trials = [32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 4_096];
        for expected in trials {
            record.note(LONG_NS, true);
            assert!(!record.is_short());
            (0..100).for_each(|_| record.note(1_000, false));
            assert_eq!(trial(&record), expected);
            (0..100).for_each(|_| record.note(1_000, true));
        }
    }
}
