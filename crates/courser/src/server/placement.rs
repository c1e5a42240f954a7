//! Where the first poll of a handler runs: on the thread of its endpoint, or on its runtime.
//!
//! A change of threads and back costs a short handler more than its own work. A handler that blocks or
//! computes would delay all packets of its endpoint. So each type of requests begins on the runtime,
//! and moves to the endpoint's thread when its first polls there were short and ended it.
//!
//! Many short handlers of one pass of the event loop would also delay packets, while the threads of the
//! runtime have nothing to do. So a pass has a limited time for handlers that take longer than it costs
//! to start a task.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::platform::Clock;

/// A first poll of less is short, ns: less than two changes of threads.
const SHORT_NS: u64 = 10_000;
/// A first poll of more keeps its type away from the endpoint's thread for a while, ns.
const LONG_NS: u64 = 100_000;
/// Short first polls that move a type to the endpoint's thread, and the margin before it leaves that
/// again.
const TRIAL: u32 = 16;
/// Starting a task and sending its answer costs the endpoint's thread about this time, ns.
const TASK_NS: u64 = 2_000;
/// Time of handlers in a pass after which those that take longer than [`TASK_NS`] become tasks, ns.
const PASS_NS: u64 = 20_000;
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
    /// Polls of [`TASK_NS`] and more, less shorter ones: 0 to 2 * [`TRIAL`].
    worth: AtomicU32,
}

impl Record {
    pub(super) fn new() -> Self {
        let zero = || AtomicU32::new(0);
        Record { owed: AtomicU32::new(2 * TRIAL), long: zero(), worth: zero() }
    }

    /// Returns whether a first poll on the endpoint's thread is expected to be short, and to end the
    /// handler. One load.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.owed.load(Ordering::Relaxed) <= TRIAL
    }

    /// Returns whether most first polls take longer than it costs to start a task.
    #[inline]
    fn is_worth_a_task(&self) -> bool {
        self.worth.load(Ordering::Relaxed) > TRIAL
    }

    /// A first poll has taken this time. Threads that do so at once may lose each other's steps.
    #[inline]
    pub(super) fn note(&self, ns: u64, ended: bool) {
        let worth = self.worth.load(Ordering::Relaxed);
        let next = if ns < TASK_NS { worth.saturating_sub(1) } else { (worth + 1).min(2 * TRIAL) };
        if next != worth {
            self.worth.store(next, Ordering::Relaxed);
        }
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
    pub(super) fn note_long(&self) {
        let long = self.long.load(Ordering::Relaxed) + u32::from(self.is_short());
        let long = long.clamp(1, MOST_DOUBLINGS);
        self.long.store(long, Ordering::Relaxed);
        self.owed.store(TRIAL + (TRIAL << long), Ordering::Relaxed);
    }
}

/// The handlers that are polled on the thread of one endpoint.
#[derive(Debug)]
pub(super) struct InPlace {
    clock: Clock,
    /// Time of handlers in this pass, ns.
    spent_ns: Cell<u64>,
}

impl InPlace {
    pub(super) fn new(clock: Clock) -> Self {
        InPlace { clock, spent_ns: Cell::new(0) }
    }

    /// A pass of the event loop begins.
    #[inline]
    pub(super) fn begin_pass(&self) {
        self.spent_ns.set(0);
    }

    /// Returns whether a handler of this record is to be polled here.
    #[inline]
    pub(super) fn takes(&self, record: &Record) -> bool {
        record.is_short() && (self.spent_ns.get() < PASS_NS || !record.is_worth_a_task())
    }

    /// Polls a handler, and adds its time to its record and to that of the pass. Returns whether it has
    /// ended.
    #[inline]
    pub(super) fn measure(&self, record: &Record, poll: impl FnOnce() -> bool) -> bool {
        let begun = self.clock.now();
        let ended = poll();
        let took = self.clock.now().saturating_duration_since(begun);
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        record.note(took_ns, ended);
        self.spent_ns.set(self.spent_ns.get().saturating_add(took_ns));
        ended
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::machine::VirtualClock;

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

    /// An endpoint's thread whose clock only handlers advance.
    struct Thread {
        clock: Arc<VirtualClock>,
        here: InPlace,
    }

    impl Thread {
        fn new() -> Self {
            let clock = Arc::new(VirtualClock::default());
            Thread { here: InPlace::new(Clock::Virtual(clock.clone())), clock }
        }

        /// A pass with this number of requests, whose handlers take this time. Returns how many are
        /// polled in it.
        fn pass(&self, record: &Record, requests: usize, ns: u64) -> usize {
            self.here.begin_pass();
            let run = |_: &usize| match self.here.takes(record) {
                true => self.here.measure(record, || {
                    self.clock.spend(ns);
                    true
                }),
                false => {
                    record.note(ns, true); // by the runtime
                    false
                }
            };
            (0..requests).filter(run).count()
        }
    }

    #[test]
    fn a_pass_polls_handlers_of_microseconds_for_20_us_and_leaves_the_others_to_the_runtime() {
        let (thread, record) = (Thread::new(), Record::new());
        assert_eq!(thread.pass(&record, TRIAL as usize, 5_000), 0, "the trial");
        for _ in 0..10 {
            assert_eq!(thread.pass(&record, 100, 5_000), 4);
            assert_eq!(thread.pass(&record, 3, 9_000), 3);
        }
        assert_eq!(thread.pass(&record, 100, 9_000), 3, "the last one begins before the limit");
    }

    #[test]
    fn handlers_that_cost_no_more_than_a_task_stay_in_place_in_any_number() {
        let (thread, record) = (Thread::new(), Record::new());
        trial(&record);
        assert_eq!(thread.pass(&record, 10_000, TASK_NS - 1), 10_000);
        // Now and then one takes longer, as its thread loses its CPU.
        for _ in 0..100 {
            assert_eq!(thread.pass(&record, 1, SHORT_NS), 1);
            assert_eq!(thread.pass(&record, 100, 300), 100);
        }
    }

    #[test]
    fn handlers_return_to_their_endpoint_in_the_same_pass_when_they_are_short_again() {
        let (thread, record) = (Thread::new(), Record::new());
        trial(&record);
        assert!((0..100).all(|_| thread.pass(&record, 1, 5_000) == 1));
        assert_eq!(thread.pass(&record, 100, 5_000), 4);
        // The runtime measures short ones too.
        let mut by_the_runtime = 0;
        while !thread.here.takes(&record) {
            record.note(300, true);
            by_the_runtime += 1;
        }
        assert_eq!(by_the_runtime, TRIAL);
        assert_eq!(thread.pass(&record, 1_000, 300), 1_000);
    }

    #[test]
    fn a_pass_with_long_handlers_of_one_type_still_polls_short_ones_of_another() {
        let (thread, [long, short]) = (Thread::new(), [Record::new(), Record::new()]);
        trial(&short);
        (0..100).for_each(|_| long.note(5_000, true));
        assert_eq!(thread.pass(&long, 10, 5_000), 4);
        assert!(!thread.here.takes(&long) && thread.here.takes(&short));
        thread.here.begin_pass();
        assert!(thread.here.takes(&long));
    }
}
