//! Jobs for threads that spin and sleep: how the threads take jobs.
//!
//! One queue under one lock. A thread that queues a job makes a system call only when the job needs
//! a sleeping thread. Two counters hold the exact states of the threads that take jobs:
//!
//! * `searching`: awake without a job. These are threads that spin for [`SPIN`] after their last
//!   job, and threads that were woken and have not reached the queue.
//! * `sleeping`: asleep, and not notified.
//! * The others run a job and return to the queue when it ends.
//!
//! Invariant, whenever the lock is free: **there are no more jobs than `searching`, or no thread
//! sleeps** (or the queue is closed). Proof by induction: a new job wakes a sleeping thread when
//! too few are searching; a searching thread takes a job or finds the queue empty; a thread sleeps
//! only when the queue is empty. So no job waits while a thread sleeps, and no wake-up is
//! superfluous.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::queue::Queue;
use crate::core::deadline::Deadline;
use crate::platform::cpus;
use crate::run::spin::spin_until;
use crate::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard};

#[cfg(all(loom, test))]
mod model;

/// Time that a thread spins for its next job before it sleeps. Jobs often follow each other
/// closely, while a wake-up costs the other thread about 2 us and delays the job by about 50.
const SPIN: Duration = Duration::from_micros(10);

/// Jobs between the threads that queue them and those that take them.
pub(crate) struct HandOver<J> {
    limit: usize,
    state: Mutex<State<J>>,
    wake: Condvar,
    /// Length of the queue, for reads without the lock. Written under the lock.
    queued: AtomicUsize,
    /// Written under the lock.
    closed: AtomicBool,
}

struct State<J> {
    queue: Queue<J>,
    searching: usize,
    sleeping: usize,
    /// Notifications that no thread has consumed yet; their threads count as searching.
    wakes: usize,
}

impl<J> HandOver<J> {
    /// An empty queue of at most `limit` jobs.
    pub(crate) fn new(limit: usize) -> Self {
        let state = State { queue: Queue::new(), searching: 0, sleeping: 0, wakes: 0 };
        HandOver {
            limit,
            state: Mutex::new(state),
            wake: Condvar::new(),
            queued: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        // Only a failed allocation panics under this lock, before the state changes.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the lock after the queue may have changed.
    fn unlock(&self, state: MutexGuard<'_, State<J>>) {
        let queued = state.queue.len();
        debug_assert!(
            queued <= state.searching || state.sleeping == 0 || self.is_closed(),
            "{queued} jobs, {} searching, {} asleep",
            state.searching,
            state.sleeping
        );
        self.queued.store(queued, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Length of the queue: one load.
    pub(super) fn len(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Queues a job, and wakes a thread if too few are awake for the queue.
    ///
    /// # Errors
    /// The queue is full or closed; returns the job.
    pub(crate) fn push(&self, deadline: Option<Deadline>, job: J) -> Result<(), J> {
        let mut state = self.lock();
        if state.queue.len() >= self.limit || self.is_closed() {
            return Err(job);
        }
        state.queue.push(deadline, job);
        let wake = state.queue.len() > state.searching && state.sleeping > 0;
        if wake {
            state.sleeping -= 1;
            state.searching += 1;
            state.wakes += 1;
        }
        self.unlock(state);
        if wake {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Takes the next job without waiting. The clock is read only when there are deadlines.
    pub(super) fn pop(&self, clock: impl FnOnce() -> Instant) -> Option<J> {
        let mut state = self.lock();
        let job = state.queue.pop(clock);
        self.unlock(state);
        job
    }

    /// Takes the next job: spins, then sleeps, until there is one. `None` when the queue is closed.
    pub(crate) fn next(&self, clock: impl Fn() -> Instant) -> Option<J> {
        let mut may_spin = cpus() > 1;
        let mut state = self.lock();
        loop {
            if self.is_closed() {
                return None;
            }
            if let Some(job) = state.queue.pop(&clock) {
                self.unlock(state);
                return Some(job);
            }
            if may_spin {
                may_spin = false;
                state.searching += 1;
                self.unlock(state);
                spin_until(SPIN, || self.len() > 0 || self.is_closed());
                state = self.lock();
                state.searching -= 1;
                continue;
            }
            state.sleeping += 1;
            while state.wakes == 0 && !self.is_closed() {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if self.is_closed() {
                return None;
            }
            state.wakes -= 1;
            state.searching -= 1;
        }
    }

    /// Takes the jobs that `is` selects. The others keep their order.
    pub(super) fn remove(&self, is: impl Fn(&J) -> bool) -> Vec<J> {
        let mut state = self.lock();
        let jobs = state.queue.remove(is);
        self.unlock(state);
        jobs
    }

    /// Takes all jobs, and refuses further ones. Threads end when they return to the queue.
    pub(crate) fn close(&self) -> Vec<J> {
        let mut state = self.lock();
        self.closed.store(true, Ordering::Relaxed);
        let jobs = state.queue.remove(|_| true);
        self.unlock(state);
        self.wake.notify_all();
        jobs
    }
}
