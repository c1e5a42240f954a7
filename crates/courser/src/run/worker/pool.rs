//! The worker threads of a nexus.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use courser_buf::stats;
use courser_proto::{RequestId, Status};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::core::deadline::Deadline;
use crate::core::shares::Shares;
use crate::error::WorkerError;
use crate::machine::{Machine, Thread, VirtualWorkers};
use crate::panics::caught;
use crate::platform::{Clock, Platform};
use crate::run::worker::hand_over::HandOver;
use crate::run::worker::origin::Origin;
use crate::run::worker::work::Work;

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

stats! {
    /// Counters of a nexus's workers.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let nexus = courser::Nexus::bind("udp://127.0.0.1:0")?;
    /// let mut rpc = nexus.endpoint()?;
    /// rpc.on_worker(1, |work| work.reply("done"))?;
    /// let stats = nexus.worker_stats();
    /// assert_eq!((stats.queued, stats.refused), (0, 0));
    /// # Ok(()) }
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    #[non_exhaustive]
    pub struct WorkerStats: "workers" {
        /// Worker threads; 0 until the first handler for workers is registered.
        pub threads: usize = gauge(threads),
        /// Queued requests and one-way messages, which all counters contain.
        pub queued: usize = gauge(requests),
        /// Running handlers.
        pub running: u64 = gauge(handlers),
        /// Handlers that were started.
        pub started: u64 = counter(handlers),
        /// Handlers that have ended, including those that panicked.
        pub finished: u64 = counter(handlers),
        /// Requests refused with [`Status::WorkersBusy`] and one-way messages dropped because the queue
        /// was full.
        pub refused: u64 = counter(requests),
        /// Requests that were not started because their deadline had passed.
        pub expired: u64 = counter(requests),
        /// Requests that were not started because their endpoint had been dropped, or whose clients
        /// had cancelled them or were gone.
        pub abandoned: u64 = counter(requests),
        /// Handlers that panicked.
        pub panicked: u64 = counter(handlers),
    }
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
    /// CPUs of the workers. Without this, a worker would inherit the affinity of the endpoint's
    /// thread, which is often pinned to a CPU that workers should not use.
    cpus: Option<CpuSet>,
    jobs: HandOver<Job>,
    threads: Mutex<usize>,
    counts: Counts,
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
        let machine = platform.machine().cloned();
        let shared = Shared {
            clock: platform.clock(Thread::Workers),
            threads_wanted: threads,
            places: Shares::new(queue_limit),
            cpus: if machine.is_none() { sched_getaffinity(None).ok() } else { None },
            jobs: HandOver::new(queue_limit),
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
        self.user.shared.jobs.push(job.work.deadline(), job)?;
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
        let jobs = shared.jobs.remove(is);
        shared.counts.abandoned.fetch_add(jobs.len() as u64, Ordering::Relaxed);
        jobs
    }

    /// Removes the jobs of an endpoint that `is_over` selects and returns their request numbers.
    /// The caller answers them.
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
            queued: shared.jobs.len(),
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
    /// Closes the pool: workers exit when they return to the queue. Does not wait for running
    /// handlers, which could block the dropping thread.
    fn close(&self) {
        drop(self.jobs.close());
    }

    // ---- the workers' side --------------------------------------------------------------------

    /// The main function of a worker.
    fn work(&self) {
        if let Some(cpus) = &self.cpus {
            // If the CPUs are not available, keep the inherited affinity.
            let _ = sched_setaffinity(None, cpus);
        }
        while let Some(job) = self.jobs.next(|| self.clock.now()) {
            if let Some(job) = self.begin(job) {
                self.run(job);
            }
        }
    }

    /// Returns the next job that can still be started, without waiting.
    pub(super) fn try_next(&self) -> Option<Job> {
        loop {
            let job = self.jobs.pop(|| self.clock.now());
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
