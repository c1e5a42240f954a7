//! The worker threads: how they take jobs, spin and sleep.
//!
//! One queue under one lock. An endpoint that queues a job makes a system call only when the job
//! needs a sleeping worker. Two counters hold the exact states of the workers:
//!
//! * `searching`: awake without a job. These are workers that spin for [`SPIN`] after their last
//!   job, and workers that were woken and have not reached the queue.
//! * `sleeping`: asleep, and not notified.
//! * The others run a handler and return to the queue when it ends.
//!
//! Invariant, whenever the lock is free: **there are no more jobs than `searching`, or no worker
//! sleeps** (or the pool is closing). Proof by induction: a new job wakes a sleeping worker when
//! too few are searching; a searching worker takes a job or finds the queue empty; a worker sleeps
//! only when the queue is empty. So no job waits while a worker sleeps, and no wake-up is
//! superfluous.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use courser_proto::{RequestId, Status};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::WorkerError;
use crate::machine::{Machine, Thread, VirtualWorkers};
use crate::panics::caught;
use crate::platform::{Clock, Platform};
use crate::shares::Shares;
use crate::spin::{cpus, spin_until};
use crate::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard};
use crate::worker::origin::Origin;
use crate::worker::queue::{Deadline, Queue};
use crate::worker::work::Work;

/// Time that a worker spins for its next job before it sleeps. Jobs often follow each other
/// closely, while a wake-up costs the endpoint about 2 us and delays the job by about 50.
const SPIN: Duration = Duration::from_micros(10);

/// A registered handler and its endpoint.
pub(super) struct Registered<F: ?Sized = dyn Fn(Work) + Send + Sync> {
    pub(super) origin: Arc<Origin>,
    pub(super) run: F,
}

/// A request and its handler.
pub(super) struct Job {
    pub(super) handler: Arc<Registered>,
    pub(super) work: Work,
}

// `Config::worker_queue` documents twice this size, as a list that has just grown is half empty.
const _: () = assert!(size_of::<(u64, Deadline, Job)>() <= 160);

/// Counters of a nexus's workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Worker threads; 0 until the first handler for workers is registered.
    pub threads: usize,
    /// Queued requests and one-way messages, which all counters contain.
    pub queued: usize,
    /// Running handlers.
    pub running: u64,
    /// Handlers that were started.
    pub started: u64,
    /// Handlers that have ended, including those that panicked.
    pub finished: u64,
    /// Requests refused with [`Status::WorkersBusy`] and one-way messages dropped because the queue
    /// was full.
    pub refused: u64,
    /// Those that were not started because their deadline had passed.
    pub expired: u64,
    /// Those that were not started because their endpoint had been dropped, and requests whose clients
    /// had cancelled them or were gone.
    pub abandoned: u64,
    /// Handlers that panicked.
    pub panicked: u64,
}

/// The workers of a nexus. The pool closes when the last clone is dropped, without waiting for
/// running handlers.
#[derive(Clone)]
pub(crate) struct Pool {
    user: Arc<User>,
}

struct User {
    shared: Arc<Shared>,
    /// Runs the jobs in virtual time, where there are no threads.
    machine: Option<Arc<dyn Machine>>,
}

impl Drop for User {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// State shared by clones and workers. Workers hold no [`User`], so they do not keep the pool open.
pub(super) struct Shared {
    clock: Clock,
    threads_wanted: usize,
    /// In the queue.
    places: Arc<Shares>,
    queue_limit: usize,
    spin_time: Duration,
    /// CPUs of the workers. Without this, a worker would inherit the affinity of the endpoint's
    /// thread, which is often pinned to a CPU that workers should not use.
    cpus: Option<CpuSet>,
    state: Mutex<State>,
    wake: Condvar,
    /// Length of the queue, for reads without the lock. Written under the lock.
    queued: AtomicUsize,
    /// Written under the lock.
    closing: AtomicBool,
    threads: Mutex<usize>,
    counts: Counts,
}

struct State {
    queue: Queue<Job>,
    searching: usize,
    sleeping: usize,
    /// Notifications that no worker has consumed yet; their workers count as searching.
    wakes: usize,
}

#[derive(Default)]
struct Counts {
    started: AtomicU64,
    finished: AtomicU64,
    refused: AtomicU64,
    expired: AtomicU64,
    abandoned: AtomicU64,
    panicked: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Pool {
    /// A pool without threads. Its threads will have the CPU affinity of the calling thread.
    pub(crate) fn new(platform: &Platform, threads: usize, queue_limit: usize) -> Self {
        let state = State { queue: Queue::new(), searching: 0, sleeping: 0, wakes: 0 };
        let machine = platform.machine().cloned();
        let shared = Shared {
            clock: platform.clock(Thread::Workers),
            threads_wanted: threads,
            places: Shares::new(queue_limit),
            queue_limit,
            spin_time: if cpus() > 1 { SPIN } else { Duration::ZERO },
            cpus: if machine.is_none() { sched_getaffinity(None).ok() } else { None },
            state: Mutex::new(state),
            wake: Condvar::new(),
            queued: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            threads: Mutex::new(0),
            counts: Counts::default(),
        };
        Pool { user: Arc::new(User { shared: Arc::new(shared), machine }) }
    }

    /// Starts the threads on the first call. Succeeds if at least one thread starts.
    pub(super) fn start(&self) -> Result<(), WorkerError> {
        let shared = &self.user.shared;
        if shared.threads_wanted == 0 {
            return Err(WorkerError::Disabled);
        }
        let mut threads = shared.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if *threads > 0 {
            return Ok(());
        }
        if let Some(machine) = &self.user.machine {
            *threads = shared.threads_wanted;
            machine.start_workers(VirtualWorkers::new(shared.clone()), *threads);
            return Ok(());
        }
        for n in 0..shared.threads_wanted {
            let own = shared.clone();
            let thread = std::thread::Builder::new().name(format!("courser-worker-{n}"));
            match thread.spawn(move || own.work()) {
                Ok(_) => *threads += 1,
                Err(e) if n == 0 => return Err(WorkerError::Threads(e)),
                Err(e) => {
                    let wanted = shared.threads_wanted;
                    tracing::warn!("only {n} of {wanted} worker threads could be started: {e}");
                    break;
                }
            }
        }
        Ok(())
    }

    /// The places in the queue.
    pub(super) fn places(&self) -> &Arc<Shares> {
        &self.user.shared.places
    }

    /// Counts a request or message for which there was no place.
    pub(super) fn count_refused(&self) {
        count(&self.user.shared.counts.refused);
    }

    /// Queues a job and wakes a worker if needed.
    ///
    /// # Errors
    /// The queue is full; returns the job.
    pub(super) fn submit(&self, job: Job) -> Result<(), Job> {
        self.user.shared.submit(job)?;
        if let Some(machine) = &self.user.machine {
            machine.wake(Thread::Workers);
        }
        Ok(())
    }

    /// Removes the jobs of an endpoint that is gone.
    pub(super) fn forget(&self, origin: &Arc<Origin>) {
        let jobs = self.abandon(|job| job.work.is_from(origin));
        // Outside of the lock, as dropping the last job of a handler drops its captured values.
        drop(jobs);
    }

    /// Removes jobs that will not be executed, and counts them.
    fn abandon(&self, is: impl Fn(&Job) -> bool) -> Vec<Job> {
        let shared = &self.user.shared;
        let mut state = shared.lock();
        let jobs = state.queue.remove(is);
        shared.unlock(state);
        shared.counts.abandoned.fetch_add(jobs.len() as u64, Ordering::Relaxed);
        jobs
    }

    /// Removes the jobs of an endpoint that `is_over` selects and returns their request numbers.
    /// The caller answers them.
    #[cold]
    pub(super) fn shed(
        &self,
        origin: &Arc<Origin>,
        is_over: impl Fn(RequestId) -> bool,
    ) -> Vec<RequestId> {
        let jobs =
            self.abandon(|job| job.work.is_from(origin) && job.work.id().is_some_and(&is_over));
        let ids = jobs.iter().filter_map(|job| job.work.id()).collect();
        let handlers: Vec<_> = jobs
            .into_iter()
            .map(|job| {
                job.work.drop_unanswered();
                job.handler
            })
            .collect();
        // Dropping the last job of a replaced handler drops its captured values, which may panic.
        caught("dropped worker", 0, || drop(handlers));
        ids
    }

    pub(crate) fn stats(&self) -> WorkerStats {
        let shared = &self.user.shared;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // Read `finished` first, so that it does not exceed `started`.
        let finished = shared.counts.finished.load(Ordering::Acquire);
        let started = read(&shared.counts.started);
        WorkerStats {
            threads: *shared.threads.lock().unwrap_or_else(PoisonError::into_inner),
            queued: shared.queued.load(Ordering::Relaxed),
            running: started.saturating_sub(finished),
            started,
            finished,
            refused: read(&shared.counts.refused),
            expired: read(&shared.counts.expired),
            abandoned: read(&shared.counts.abandoned),
            panicked: read(&shared.counts.panicked),
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stats().fmt(f)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Only a failed allocation panics under this lock, before the state changes.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the lock after the queue may have changed.
    fn unlock(&self, state: MutexGuard<'_, State>) {
        let queued = state.queue.len();
        debug_assert!(
            queued <= state.searching || state.sleeping == 0 || self.is_closing(),
            "{queued} jobs, {} searching, {} asleep",
            state.searching,
            state.sleeping
        );
        self.queued.store(queued, Ordering::Relaxed);
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    fn submit(&self, job: Job) -> Result<(), Job> {
        let mut state = self.lock();
        if state.queue.len() >= self.queue_limit {
            return Err(job);
        }
        state.queue.push(job.work.deadline(), job);
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

    /// Closes the pool: workers exit when they return to the queue. Does not wait for running
    /// handlers, which could block the dropping thread.
    fn close(&self) {
        let mut state = self.lock();
        self.closing.store(true, Ordering::Relaxed);
        let jobs = state.queue.remove(|_| true);
        self.unlock(state);
        self.wake.notify_all();
        drop(jobs);
    }

    // ---- the workers' side --------------------------------------------------------------------

    /// The main function of a worker.
    fn work(&self) {
        if let Some(cpus) = &self.cpus {
            // If the CPUs are not available, keep the inherited affinity.
            let _ = sched_setaffinity(None, cpus);
        }
        while let Some(job) = self.next() {
            if let Some(job) = self.begin(job) {
                self.run(job);
            }
        }
    }

    /// Returns the next job: spins, then sleeps, until there is one. `None` when the pool closes.
    fn next(&self) -> Option<Job> {
        let mut may_spin = !self.spin_time.is_zero();
        let mut state = self.lock();
        loop {
            if self.is_closing() {
                return None;
            }
            if let Some(job) = state.queue.pop(|| self.clock.now()) {
                self.unlock(state);
                return Some(job);
            }
            if may_spin {
                may_spin = false;
                state.searching += 1;
                self.unlock(state);
                self.spin();
                state = self.lock();
                state.searching -= 1;
                continue;
            }
            state.sleeping += 1;
            while state.wakes == 0 && !self.is_closing() {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if self.is_closing() {
                return None;
            }
            state.wakes -= 1;
            state.searching -= 1;
        }
    }

    /// Spins until the queue is not empty, for at most [`SPIN`].
    fn spin(&self) {
        spin_until(self.spin_time, || self.queued.load(Ordering::Relaxed) > 0 || self.is_closing());
    }

    /// Returns the next job that can still be started, without waiting.
    pub(super) fn try_next(&self) -> Option<Job> {
        loop {
            let mut state = self.lock();
            let job = state.queue.pop(|| self.clock.now());
            self.unlock(state);
            if let Some(job) = self.begin(job?) {
                return Some(job);
            }
        }
    }

    /// Returns the job if it can be started. Answers a job past its deadline, and drops one of an
    /// endpoint that is gone.
    fn begin(&self, mut job: Job) -> Option<Job> {
        job.work.leave_queue();
        let gone = job.work.origin().is_gone();
        if !gone && job.work.deadline().is_none_or(|t| !t.has_passed(self.clock.now())) {
            count(&self.counts.started);
            job.work.start();
            return Some(job);
        }
        self.guarded(job.work.req_type(), || {
            // If this is the handler's last job, its captured values are dropped here.
            let Job { handler: _handler, work } = job;
            if gone {
                count(&self.counts.abandoned);
            } else {
                count(&self.counts.expired);
                work.fail(Status::DeadlineExceeded);
            }
        });
        None
    }

    /// Runs a job's handler.
    pub(super) fn run(&self, job: Job) {
        let req_type = job.work.req_type();
        self.guarded(req_type, || {
            let Job { handler, work } = job;
            let panicked = caught("worker", req_type, || (handler.run)(work));
            if panicked {
                count(&self.counts.panicked);
                handler.origin.count_panic();
            }
            self.counts.finished.fetch_add(1, Ordering::Release);
        });
    }

    /// Catches panics of the application: those of the handler, and those of its captured values'
    /// drops.
    fn guarded(&self, req_type: u16, f: impl FnOnce()) {
        if caught("worker", req_type, f) {
            count(&self.counts.panicked);
        }
    }
}
