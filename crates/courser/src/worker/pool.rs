//! The threads of the pool, and how they sleep.
//!
//! One queue under one lock. An endpoint that queues a job makes no system call unless the job
//! needs a sleeping worker. The state of each worker is counted exactly:
//!
//! * `looking`: awake and about to take a job. Workers that spin for [`SPIN`] after their last job,
//!   and those that were woken and have not reached the queue.
//! * `sleeping`: asleep, and not woken.
//! * All others run a handler, and return to the queue when it ends.
//!
//! Invariant, whenever the lock is free: **there are no more jobs than `looking`, or no worker
//! sleeps** (or the pool ends). By induction: a new job wakes a sleeper when too few workers are
//! looking; a looking worker takes a job or finds the queue empty; a worker sleeps only with an
//! empty queue. So no job waits while a worker sleeps, and no wake-up is superfluous.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use courser_proto::{RequestId, Status};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::WorkerError;
use crate::machine::{Machine, Thread, VirtualWorkers};
use crate::panics::caught;
use crate::platform::{Clock, Platform};
use crate::spin::cpus;
use crate::worker::home::Home;
use crate::worker::queue::{Queue, Term};
use crate::worker::work::Work;

/// How long a worker spins for its next job before it sleeps. A wake-up costs the endpoint about
/// 2 us and delays the job by about 50; jobs often follow each other closely.
const SPIN: Duration = Duration::from_micros(10);

/// Polls of the queue between two readings of the clock.
const QUEUE_POLLS: u32 = 32;

/// A registered handler, with the endpoint that it belongs to.
pub(super) struct Registered<F: ?Sized = dyn Fn(Work) + Send + Sync> {
    pub(super) home: Arc<Home>,
    pub(super) run: F,
}

/// A request and its handler.
pub(super) struct Job {
    pub(super) handler: Arc<Registered>,
    pub(super) work: Work,
}

// `Config::worker_queue` states twice this, for a list that has just grown.
const _: () = assert!(size_of::<(u64, Term, Job)>() <= 144);

/// What the workers of a nexus have done and have to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Worker threads; 0 until the first [`crate::Rpc::on_worker`].
    pub threads: usize,
    /// Requests that wait for a worker.
    pub queued: usize,
    /// Handlers that run now.
    pub running: u64,
    /// Handlers that were started.
    pub started: u64,
    /// Handlers that have ended, those that panicked included.
    pub finished: u64,
    /// Requests refused with [`Status::WorkersBusy`] because the queue was full.
    pub refused: u64,
    /// Requests that were not started because their deadline had passed.
    pub expired: u64,
    /// Requests that were not started because their endpoint had been dropped, or because their
    /// clients had cancelled them or were gone.
    pub abandoned: u64,
    /// Handlers that panicked.
    pub panicked: u64,
}

/// A nexus's workers. Each clone is a user; the pool ends with the last one, without waiting for
/// handlers that run.
#[derive(Clone)]
pub(crate) struct Pool {
    user: Arc<User>,
}

struct User {
    shared: Arc<Shared>,
    /// Runs the jobs in virtual time, which has no threads.
    machine: Option<Arc<dyn Machine>>,
}

impl Drop for User {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// What users and workers share. Workers are no users: they do not keep the pool up.
pub(super) struct Shared {
    clock: Clock,
    threads_wanted: usize,
    queue_limit: usize,
    spin: Duration,
    /// Where the workers may run. A thread inherits the CPUs of the one that makes it, and that
    /// is an endpoint's, often pinned to the CPU that workers should leave alone.
    cpus: Option<CpuSet>,
    state: Mutex<State>,
    wake: Condvar,
    /// Length of the queue, to be looked at without the lock; written under it.
    queued: AtomicUsize,
    /// Written under the lock.
    closing: AtomicBool,
    threads: Mutex<usize>,
    counts: Counts,
}

struct State {
    queue: Queue<Job>,
    looking: usize,
    sleeping: usize,
    /// Wake-ups that were given and not yet taken; their takers count as looking.
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
    /// A pool whose threads are not started yet. They will run where this thread may.
    pub(crate) fn new(platform: &Platform, threads: usize, queue_limit: usize) -> Self {
        let state = State { queue: Queue::new(), looking: 0, sleeping: 0, wakes: 0 };
        let machine = platform.machine().cloned();
        let shared = Shared {
            clock: platform.clock(Thread::Workers),
            threads_wanted: threads,
            queue_limit,
            spin: if cpus() > 1 { SPIN } else { Duration::ZERO },
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

    /// Starts the threads, the first time. With fewer than were asked for it goes on.
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

    /// Whether a job would be refused now: one load.
    pub(super) fn is_full(&self) -> bool {
        self.user.shared.queued.load(Ordering::Relaxed) >= self.user.shared.queue_limit
    }

    /// Counts a request that was refused because [`Pool::is_full`].
    pub(super) fn count_refused(&self) {
        count(&self.user.shared.counts.refused);
    }

    /// Queues a job and sees to it that somebody takes it.
    ///
    /// # Errors
    /// The queue is full; the job is back.
    pub(super) fn submit(&self, job: Job) -> Result<(), Job> {
        self.user.shared.submit(job)?;
        if let Some(machine) = &self.user.machine {
            machine.wake(Thread::Workers);
        }
        Ok(())
    }

    /// Takes out the jobs of an endpoint that is gone.
    pub(super) fn forget(&self, home: &Arc<Home>) {
        let jobs = self.abandon(|job| job.work.is_of(home));
        // Outside of the lock: with the last job of a handler go the things that it captured.
        drop(jobs);
    }

    /// Takes jobs out of the queue that will not be executed, and counts them.
    fn abandon(&self, is: impl Fn(&Job) -> bool) -> Vec<Job> {
        let shared = &self.user.shared;
        let mut state = shared.lock();
        let jobs = state.queue.remove(is);
        shared.unlock(state);
        shared.counts.abandoned.fetch_add(jobs.len() as u64, Ordering::Relaxed);
        jobs
    }

    /// Removes the jobs of an endpoint that `is_over` selects, and returns their numbers: the caller
    /// answers them.
    #[cold]
    pub(super) fn shed(
        &self,
        home: &Arc<Home>,
        is_over: impl Fn(RequestId) -> bool,
    ) -> Vec<RequestId> {
        let jobs = self.abandon(|job| job.work.is_of(home) && is_over(job.work.id()));
        let ids = jobs.iter().map(|job| job.work.id()).collect();
        let handlers: Vec<_> = jobs
            .into_iter()
            .map(|job| {
                job.work.disown();
                job.handler
            })
            .collect();
        // With the last job of a handler that was replaced go the things that it captured.
        caught("dropped worker", 0, || drop(handlers));
        ids
    }

    pub(crate) fn stats(&self) -> WorkerStats {
        let shared = &self.user.shared;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // In this order, so that no handler ends before it was started.
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
        // Nothing panics under this lock but a failed allocation, before anything was changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of the lock after the queue may have changed.
    fn unlock(&self, state: MutexGuard<'_, State>) {
        let queued = state.queue.len();
        debug_assert!(
            queued <= state.looking || state.sleeping == 0 || self.is_closing(),
            "{queued} jobs, {} looking, {} asleep",
            state.looking,
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
        state.queue.push(job.work.term(), job);
        let wake = state.queue.len() > state.looking && state.sleeping > 0;
        if wake {
            state.sleeping -= 1;
            state.looking += 1;
            state.wakes += 1;
        }
        self.unlock(state);
        if wake {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Ends the pool: workers end when they return to the queue. Does not wait for running handlers,
    /// which could block the thread that drops the last user.
    fn close(&self) {
        let mut state = self.lock();
        self.closing.store(true, Ordering::Relaxed);
        let jobs = state.queue.remove(|_| true);
        self.unlock(state);
        self.wake.notify_all();
        drop(jobs);
    }

    // ---- the workers' side --------------------------------------------------------------------

    /// A worker's life.
    fn work(&self) {
        if let Some(cpus) = &self.cpus {
            // Forbidden or no longer there: then where this thread happens to be.
            let _ = sched_setaffinity(None, cpus);
        }
        while let Some(job) = self.next() {
            if let Some(job) = self.begin(job) {
                self.run(job);
            }
        }
    }

    /// The next job; `None` at the end. Spins, then sleeps, until there is one.
    fn next(&self) -> Option<Job> {
        let mut may_spin = !self.spin.is_zero();
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
                state.looking += 1;
                self.unlock(state);
                self.look();
                state = self.lock();
                state.looking -= 1;
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
            state.looking -= 1;
        }
    }

    /// Spins until there seems to be a job, or for [`SPIN`].
    fn look(&self) {
        let start = Instant::now();
        while start.elapsed() < self.spin {
            for _ in 0..QUEUE_POLLS {
                if self.queued.load(Ordering::Relaxed) > 0 || self.is_closing() {
                    return;
                }
                std::hint::spin_loop();
            }
        }
    }

    /// The next job that is worth running, if there is one now.
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

    /// Returns the job if it is to run; a job without a caller or past its deadline is answered.
    fn begin(&self, job: Job) -> Option<Job> {
        let gone = job.work.home().is_gone();
        if !gone && job.work.term().is_none_or(|t| !t.has_passed(self.clock.now())) {
            count(&self.counts.started);
            return Some(job);
        }
        self.guarded(job.work.req_type(), || {
            // The handler, with what it captured, may go with its last job.
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
                handler.home.count_panic();
            }
            self.counts.finished.fetch_add(1, Ordering::Release);
        });
    }

    /// Nothing of the application's escapes from here: neither the handler's panics, nor those of
    /// what it captured, which may go with the job.
    fn guarded(&self, req_type: u16, f: impl FnOnce()) {
        if caught("worker", req_type, f) {
            count(&self.counts.panicked);
        }
    }
}
