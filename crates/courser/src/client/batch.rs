//! How the calls of many tasks stay together: requests in few frames, and the answers of several before
//! their tasks run.
//!
//! Over UDP each frame and each look for frames costs a system call. With half of the calls in a batch,
//! or 32, the server works on one while the tasks of another run. Where frames are in memory, waiting
//! for others costs more than it saves.

/// Requests that leave together at most, so that the server can begin; answers that suffice.
const BATCH: usize = 32;

/// Longest time between the first answer and the tasks, ns.
const GATHER_NS: u64 = 10_000;

/// A call that waits for longer for the calls of other tasks has waited too long, ns: 32 tasks that use a
/// few microseconds between their calls.
const MOST_HELD_NS: u64 = 200_000;

/// After attempts in vain the next 2, 4, ... 64 do not take place.
const MOST_DOUBLINGS: u32 = 6;

/// Leaves out attempts after those in vain.
#[derive(Debug, Default)]
struct Backoff {
    /// Attempts in vain since the last success.
    in_vain: u32,
    /// Attempts to leave out.
    skips: u32,
}

impl Backoff {
    /// Returns whether to leave out an attempt.
    #[inline]
    fn skips(&mut self) -> bool {
        let skips = self.skips > 0;
        self.skips -= u32::from(skips);
        skips
    }

    /// An attempt has had its effect, or not.
    #[inline]
    fn ends(&mut self, success: bool) {
        if success {
            self.in_vain = 0;
        } else {
            self.in_vain = (self.in_vain + 1).min(MOST_DOUBLINGS);
            self.skips = 1 << self.in_vain;
        }
    }
}

/// The batch that is growing.
#[derive(Debug)]
pub(super) struct Batch {
    /// Looks for frames cost system calls.
    has_costly_polls: bool,
    /// Calls that were submitted since the last pass, and a time before the first one, since which the
    /// thread has sent nothing.
    unsent: usize,
    held_ns: u64,
    /// Leaves out the waits of calls for those of other tasks, in vain if they were too long.
    holds: Backoff,
    /// Tasks that were woken and may submit calls, before a task that drives.
    expected: usize,
    /// The time of the first answer and their number then, while the thread waits for more.
    since: Option<(u64, usize)>,
    /// Leaves out the waits for more answers, in vain if there were none.
    waiting: Backoff,
}

impl Batch {
    /// `in_memory`: looks for frames cost no system calls.
    pub(super) fn new(in_memory: bool) -> Self {
        Batch {
            has_costly_polls: !in_memory,
            unsent: 0,
            held_ns: 0,
            holds: Backoff::default(),
            expected: 0,
            since: None,
            waiting: Backoff::default(),
        }
    }

    /// Tasks are woken, each of which may submit a call.
    #[inline]
    pub(super) fn expect(&mut self, tasks: usize) {
        self.expected += tasks;
    }

    /// A task has submitted a call. Returns whether others are likely to do so before a task drives.
    #[inline]
    pub(super) fn expects_more(&mut self) -> bool {
        self.expected = self.expected.saturating_sub(1);
        self.has_costly_polls && self.expected > 0
    }

    /// Adds a call to the batch. Returns whether it waits there: there is room for more, and calls have
    /// not waited too long of late.
    #[inline]
    pub(super) fn adds(&mut self, now_ns: u64) -> bool {
        if self.unsent == 0 {
            if self.holds.skips() {
                return false;
            }
            self.held_ns = now_ns;
        }
        self.unsent += 1;
        self.unsent < BATCH
    }

    /// A pass sends what was submitted.
    #[inline]
    pub(super) fn leaves(&mut self, now_ns: u64) {
        if self.unsent > 0 {
            self.unsent = 0;
            self.holds.ends(now_ns.saturating_sub(self.held_ns) < MOST_HELD_NS);
        }
    }

    #[cfg(test)]
    pub(super) fn has_unsent(&self) -> bool {
        self.unsent > 0
    }

    /// A task drives: those that were woken before have run.
    #[inline]
    pub(super) fn begins(&mut self) {
        self.expected = 0;
        self.since = None;
    }

    /// Returns whether to wait for more than this number of answers, while other calls are `in_flight`.
    #[inline]
    pub(super) fn gathers(&mut self, answers: usize, in_flight: usize, now_ns: u64) -> bool {
        if !self.has_costly_polls || answers >= in_flight.min(BATCH) {
            if self.since.take().is_some() {
                self.waiting.ends(true);
            }
            return false;
        }
        self.waits(answers, now_ns)
    }

    fn waits(&mut self, answers: usize, now_ns: u64) -> bool {
        let Some((since_ns, first)) = self.since else {
            if self.waiting.skips() {
                return false;
            }
            self.since = Some((now_ns, answers));
            return true;
        };
        if now_ns.saturating_sub(since_ns) < GATHER_NS {
            return true;
        }
        self.since = None;
        self.waiting.ends(answers > first);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_waits_for_half_of_the_answers_but_not_for_long() {
        let mut batch = Batch::new(false);
        assert!(!batch.gathers(1, 0, 0), "a lone call");
        assert!(!batch.gathers(5, 5, 0) && !batch.gathers(BATCH, 1_000, 0));
        assert!(batch.gathers(1, 10, 100) && batch.gathers(2, 9, 5_000));
        assert!(!batch.gathers(2, 9, 100 + GATHER_NS));
        assert!(batch.gathers(1, 10, 100) && !batch.gathers(6, 5, 200));
        let mut in_memory = Batch::new(true);
        in_memory.expect(3);
        assert!(!in_memory.gathers(1, 10, 0) && !in_memory.expects_more());
    }

    #[test]
    fn a_batch_seldom_waits_where_answers_come_one_by_one() {
        let mut batch = Batch::new(false);
        let waits = (0..1_000u64).filter(|n| {
            batch.begins();
            let waits = batch.gathers(1, 40, n * 100_000);
            assert!(!waits || !batch.gathers(1, 40, n * 100_000 + GATHER_NS));
            waits
        });
        assert!((10..25).contains(&waits.count()));
        batch.waiting.skips = 0;
        assert!(
            batch.gathers(1, 40, 0) && batch.gathers(2, 39, 1) && !batch.gathers(2, 39, GATHER_NS)
        );
        assert_eq!(batch.waiting.in_vain, 0, "one with a second answer");
    }

    #[test]
    fn a_batch_leaves_with_the_last_expected_call_or_when_it_is_full() {
        let mut batch = Batch::new(false);
        assert!(!batch.expects_more());
        batch.expect(3);
        assert!(batch.expects_more() && batch.expects_more() && !batch.expects_more());
        batch.expect(3);
        batch.begins();
        assert!(!batch.expects_more());
        assert!((1..BATCH).all(|_| batch.adds(0)) && !batch.adds(0));
        batch.leaves(0);
        assert!(batch.adds(0));
    }

    #[test]
    fn calls_seldom_wait_beside_tasks_that_use_more_time_than_a_frame_costs() {
        let mut batch = Batch::new(false);
        // Each call leaves 1 ms later.
        let held = (0..1_000).filter(|n| {
            let held = batch.adds(n * 1_000_000);
            batch.leaves((n + 1) * 1_000_000);
            held
        });
        assert!((10..25).contains(&held.count()));
        // The tasks are short again.
        let held = (0..1_000).filter(|n| {
            let held = batch.adds(n * 1_000_000);
            batch.leaves(n * 1_000_000 + MOST_HELD_NS - 1);
            held
        });
        assert!(held.count() >= 1_000 - (1 << MOST_DOUBLINGS));
    }
}
