//! The order in which workers take jobs.
//!
//! Normally first come, first served. Under overload that order wastes all work: the queue grows to
//! the length of the callers' timeouts, so every job starts just before its caller gives up.
//! Therefore, when the oldest job with a deadline has waited for more than half of its time, the
//! newest job is taken instead. It is the most likely to finish in time, and the old ones expire
//! without being started. When the queue is short again, the order is first come, first served
//! again (adaptive LIFO: Maurer, "Fail at Scale", ACM Queue 13(8), 2015).

use std::collections::VecDeque;
use std::time::Instant;

use crate::core::deadline::Deadline;

/// Queued jobs. Invariant: each of the two queues is in order of arrival.
#[derive(Debug)]
pub(super) struct Queue<J> {
    /// Jobs with a deadline: arrival number, deadline, job.
    with_deadline: VecDeque<(u64, Deadline, J)>,
    /// Jobs without a deadline: arrival number, job.
    without_deadline: VecDeque<(u64, J)>,
    arrived: u64,
    /// Under overload the two queues alternate, so that neither starves.
    without_deadline_next: bool,
}

impl<J> Queue<J> {
    pub(super) fn new() -> Self {
        Queue {
            with_deadline: VecDeque::new(),
            without_deadline: VecDeque::new(),
            arrived: 0,
            without_deadline_next: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.with_deadline.len() + self.without_deadline.len()
    }

    pub(super) fn push(&mut self, deadline: Option<Deadline>, job: J) {
        self.arrived += 1;
        match deadline {
            Some(deadline) => self.with_deadline.push_back((self.arrived, deadline, job)),
            None => self.without_deadline.push_back((self.arrived, job)),
        }
    }

    /// Removes the next job, which may have expired. Reads the clock only when there are deadlines.
    pub(super) fn pop(&mut self, clock: impl FnOnce() -> Instant) -> Option<J> {
        let Some(&(number, deadline, _)) = self.with_deadline.front() else {
            return self.pop_without_deadline();
        };
        let now = clock();
        // Take an expired job first: refusing it is cheap and makes room.
        if deadline.has_passed(now) {
            return self.with_deadline.pop_front().map(|(_, _, job)| job);
        }
        let overload = deadline.is_late(now);
        let without_deadline_first = match self.without_deadline.front() {
            None => false,
            Some(_) if overload => self.without_deadline_next,
            Some((other, _)) => *other < number,
        };
        self.without_deadline_next = !without_deadline_first;
        if without_deadline_first {
            return self.pop_without_deadline();
        }
        let with_deadline =
            if overload { self.with_deadline.pop_back() } else { self.with_deadline.pop_front() };
        with_deadline.map(|(_, _, job)| job)
    }

    fn pop_without_deadline(&mut self) -> Option<J> {
        self.without_deadline.pop_front().map(|(_, job)| job)
    }

    /// Removes the jobs that `is` selects. The others keep their order.
    pub(super) fn remove(&mut self, is: impl Fn(&J) -> bool) -> Vec<J> {
        let mut out = Vec::new();
        for _ in 0..self.with_deadline.len() {
            match self.with_deadline.pop_front() {
                Some((_, _, job)) if is(&job) => out.push(job),
                Some(other) => self.with_deadline.push_back(other),
                None => {}
            }
        }
        for _ in 0..self.without_deadline.len() {
            match self.without_deadline.pop_front() {
                Some((_, job)) if is(&job) => out.push(job),
                Some(other) => self.without_deadline.push_back(other),
                None => {}
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A clock that returns arbitrary times.
    struct Clock(Instant);

    impl Clock {
        fn at(&self, ms: u64) -> Instant {
            self.0 + Duration::from_millis(ms)
        }

        fn deadline(&self, since_ms: u64, until_ms: u64) -> Option<Deadline> {
            Some(Deadline { received: self.at(since_ms), expires: self.at(until_ms) })
        }
    }

    #[test]
    fn without_deadlines_first_come_first_served_and_no_clock() {
        let mut q = Queue::new();
        (0..5).for_each(|n| q.push(None, n));
        for n in 0..5 {
            assert_eq!(q.pop(|| panic!("no clock is needed")), Some(n));
        }
        assert_eq!((q.pop(Instant::now), q.len()), (None, 0));
    }

    #[test]
    fn without_overload_deadlines_do_not_change_the_order() {
        let c = Clock(Instant::now());
        let mut q = Queue::new();
        for n in 0..6 {
            let deadline = if n % 3 == 0 { None } else { c.deadline(n, 100) };
            q.push(deadline, n);
        }
        for n in 0..6 {
            assert_eq!(q.pop(|| c.at(50)), Some(n));
        }
    }

    #[test]
    fn under_overload_the_newest_job_is_taken_and_expired_jobs_are_shed() {
        let c = Clock(Instant::now());
        let mut q = Queue::new();
        (0..6).for_each(|n| q.push(c.deadline(10 * n, 10 * n + 100), n));
        // Half of the oldest job's time is not "more than half".
        assert_eq!(q.pop(|| c.at(50)), Some(0));
        assert_eq!(q.pop(|| c.at(61)), Some(5));
        assert_eq!(q.pop(|| c.at(62)), Some(4));
        // Expired: taken first, to be refused.
        assert_eq!(q.pop(|| c.at(110)), Some(1));
        assert_eq!(q.pop(|| c.at(111)), Some(3));
        assert_eq!(q.pop(|| c.at(112)), Some(2), "the only job left is taken");
        // Back to first come, first served.
        q.push(c.deadline(200, 300), 7);
        q.push(c.deadline(200, 300), 8);
        assert_eq!(q.pop(|| c.at(210)), Some(7));
    }

    #[test]
    fn under_overload_neither_kind_starves() {
        let c = Clock(Instant::now());
        let mut q = Queue::new();
        q.push(c.deadline(0, 100), 0);
        (1..5).for_each(|n| q.push(None, n));
        (5..8).for_each(|n| q.push(c.deadline(0, 100), n));
        let order: Vec<_> = std::iter::from_fn(|| q.pop(|| c.at(80))).collect();
        assert_eq!(order, [7, 1, 6, 2, 5, 3, 0, 4]);
    }

    /// One worker, jobs of 4 ms with a timeout of 50 ms, at twice the worker's capacity.
    #[test]
    fn at_twice_the_load_nine_tenths_of_the_capacity_finish_in_time() {
        const SERVICE: u64 = 4;
        const END: u64 = 20_000;
        let c = Clock(Instant::now());
        let mut q = Queue::new();
        let (mut now, mut arrival, mut in_time, mut late) = (0, 0, 0, 0);
        while now < END {
            while arrival <= now {
                q.push(c.deadline(arrival, arrival + 50), arrival + 50);
                arrival += SERVICE / 2;
            }
            // The job is its own expiry.
            match q.pop(|| c.at(now)) {
                None => now += 1,
                Some(expires) if expires <= now => {}
                Some(expires) => {
                    now += SERVICE;
                    if now <= expires { in_time += 1 } else { late += 1 }
                }
            }
        }
        let capacity = END / SERVICE;
        assert!(in_time * 10 >= capacity * 9, "{in_time} in time, {late} late, of {capacity}");
        assert!(q.len() < 40, "expired jobs are removed: {}", q.len());
    }

    #[test]
    fn removal_keeps_the_order_of_the_others() {
        let c = Clock(Instant::now());
        let mut q = Queue::new();
        (0..10).for_each(|n| q.push(if n < 5 { None } else { c.deadline(0, 100) }, n));
        assert_eq!(q.remove(|n| n % 2 == 0).len(), 5);
        let order: Vec<_> = std::iter::from_fn(|| q.pop(|| c.at(1))).collect();
        assert_eq!(order, [1, 3, 5, 7, 9]);
    }
}
