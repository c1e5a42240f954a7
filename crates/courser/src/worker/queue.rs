//! In which order the workers take jobs.
//!
//! First come, first served. Under overload that would be the worst order there is: the queue is
//! then always about as long as the callers' patience, so that every job is started just before
//! its caller gives up, and the work is for nothing. So when the oldest job that has a deadline
//! has waited for more than half of its time, the newest one is served in its place; it has the
//! best chance to be in time, and the old ones expire unserved. When the queue is short again the
//! old order is back (adaptive LIFO: Maurer, "Fail at Scale", ACM Queue 13(8), 2015).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The time that a job has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Term {
    /// When it came.
    pub(crate) since: Instant,
    /// When its caller gives it up.
    pub(crate) until: Instant,
}

impl Term {
    /// Whether it is too late to begin.
    pub(super) fn has_passed(&self, now: Instant) -> bool {
        self.until <= now
    }

    /// Whether more than half of the time has been used.
    fn is_late(&self, now: Instant) -> bool {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let waited = now.saturating_duration_since(self.since);
        let budget = self.until.saturating_duration_since(self.since);
        courser_proto::serve_newest(ns(waited), ns(budget))
    }
}

/// Jobs that wait. Invariant: each of the two queues is in the order of arrival.
#[derive(Debug)]
pub(super) struct Queue<J> {
    /// Those with a deadline, with their number in the order of arrival.
    timed: VecDeque<(u64, Term, J)>,
    /// Those without.
    patient: VecDeque<(u64, J)>,
    arrived: u64,
    /// Under overload the two kinds take turns, so that neither starves.
    patient_next: bool,
}

impl<J> Queue<J> {
    pub(super) fn new() -> Self {
        Queue { timed: VecDeque::new(), patient: VecDeque::new(), arrived: 0, patient_next: false }
    }

    pub(super) fn len(&self) -> usize {
        self.timed.len() + self.patient.len()
    }

    pub(super) fn push(&mut self, term: Option<Term>, job: J) {
        self.arrived += 1;
        match term {
            Some(term) => self.timed.push_back((self.arrived, term, job)),
            None => self.patient.push_back((self.arrived, job)),
        }
    }

    /// The next job, which may have expired. The clock is read only when there are deadlines.
    pub(super) fn pop(&mut self, clock: impl FnOnce() -> Instant) -> Option<J> {
        let Some(&(number, term, _)) = self.timed.front() else { return self.pop_patient() };
        let now = clock();
        // One that is over is taken at once: to refuse it costs next to nothing and makes room.
        if term.has_passed(now) {
            return self.timed.pop_front().map(|(_, _, job)| job);
        }
        let overload = term.is_late(now);
        let patient_first = match self.patient.front() {
            None => false,
            Some(_) if overload => self.patient_next,
            Some((other, _)) => *other < number,
        };
        self.patient_next = !patient_first;
        if patient_first {
            return self.pop_patient();
        }
        let timed = if overload { self.timed.pop_back() } else { self.timed.pop_front() };
        timed.map(|(_, _, job)| job)
    }

    fn pop_patient(&mut self) -> Option<J> {
        self.patient.pop_front().map(|(_, job)| job)
    }

    /// Takes out all jobs that `is` names; the others keep their order.
    pub(super) fn remove(&mut self, is: impl Fn(&J) -> bool) -> Vec<J> {
        let mut out = Vec::new();
        for _ in 0..self.timed.len() {
            match self.timed.pop_front() {
                Some((_, _, job)) if is(&job) => out.push(job),
                Some(other) => self.timed.push_back(other),
                None => {}
            }
        }
        for _ in 0..self.patient.len() {
            match self.patient.pop_front() {
                Some((_, job)) if is(&job) => out.push(job),
                Some(other) => self.patient.push_back(other),
                None => {}
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any times can be written.
    struct Clock(Instant);

    impl Clock {
        fn at(&self, ms: u64) -> Instant {
            self.0 + Duration::from_millis(ms)
        }

        fn term(&self, since_ms: u64, until_ms: u64) -> Option<Term> {
            Some(Term { since: self.at(since_ms), until: self.at(until_ms) })
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
    fn while_there_is_time_deadlines_change_no_order() {
        let c = Clock(Instant::now());
        let mut q = Queue::new();
        for n in 0..6 {
            let term = if n % 3 == 0 { None } else { c.term(n, 100) };
            q.push(term, n);
        }
        for n in 0..6 {
            assert_eq!(q.pop(|| c.at(50)), Some(n));
        }
    }

    #[test]
    fn under_overload_the_newest_is_served_and_the_expired_are_shed() {
        let c = Clock(Instant::now());
        let mut q = Queue::new();
        (0..6).for_each(|n| q.push(c.term(10 * n, 10 * n + 100), n));
        // Half of the oldest one's time is not "more than half".
        assert_eq!(q.pop(|| c.at(50)), Some(0));
        assert_eq!(q.pop(|| c.at(61)), Some(5));
        assert_eq!(q.pop(|| c.at(62)), Some(4));
        // Over: taken first, to be refused.
        assert_eq!(q.pop(|| c.at(110)), Some(1));
        assert_eq!(q.pop(|| c.at(111)), Some(3));
        assert_eq!(q.pop(|| c.at(112)), Some(2), "the only one left is served");
        // The old order is back.
        q.push(c.term(200, 300), 7);
        q.push(c.term(200, 300), 8);
        assert_eq!(q.pop(|| c.at(210)), Some(7));
    }

    #[test]
    fn under_overload_neither_kind_starves() {
        let c = Clock(Instant::now());
        let mut q = Queue::new();
        q.push(c.term(0, 100), 0);
        (1..5).for_each(|n| q.push(None, n));
        (5..8).for_each(|n| q.push(c.term(0, 100), n));
        let order: Vec<_> = std::iter::from_fn(|| q.pop(|| c.at(80))).collect();
        assert_eq!(order, [7, 1, 6, 2, 5, 3, 0, 4]);
    }

    /// One worker, jobs of 4 ms, twice as many as it can do, each worth something for 50 ms.
    #[test]
    fn twice_the_load_still_yields_nine_tenths_of_the_capacity() {
        const SERVICE: u64 = 4;
        const END: u64 = 20_000;
        let c = Clock(Instant::now());
        let mut q = Queue::new();
        let (mut now, mut arrival, mut in_time, mut late) = (0, 0, 0, 0);
        while now < END {
            while arrival <= now {
                q.push(c.term(arrival, arrival + 50), arrival + 50);
                arrival += SERVICE / 2;
            }
            // The worker's part: `until` is the job.
            match q.pop(|| c.at(now)) {
                None => now += 1,
                Some(until) if until <= now => {}
                Some(until) => {
                    now += SERVICE;
                    if now <= until { in_time += 1 } else { late += 1 }
                }
            }
        }
        let capacity = END / SERVICE;
        assert!(in_time * 10 >= capacity * 9, "{in_time} in time, {late} late, of {capacity}");
        assert!(q.len() < 40, "what expires does not stay: {}", q.len());
    }

    #[test]
    fn removal_keeps_the_order_of_the_others() {
        let c = Clock(Instant::now());
        let mut q = Queue::new();
        (0..10).for_each(|n| q.push(if n < 5 { None } else { c.term(0, 100) }, n));
        assert_eq!(q.remove(|n| n % 2 == 0).len(), 5);
        let order: Vec<_> = std::iter::from_fn(|| q.pop(|| c.at(1))).collect();
        assert_eq!(order, [1, 3, 5, 7, 9]);
    }
}
