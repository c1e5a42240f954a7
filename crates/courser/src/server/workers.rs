//! Threads that poll the handlers of a server: `courser-worker-N`.
//!
//! One queue of tasks that were woken, under one lock. A thread spins for its next task before it
//! sleeps, as the workers of a nexus do (`worker/pool.rs`).

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_task::Runnable;

use super::spawn::{HandlerFuture, Spawn};
use crate::panics::caught;
use crate::spin::{cpus, spin_until};
use crate::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard};

#[cfg(all(loom, test))]
mod model;

/// Time that a thread spins for its next task.
const SPIN: Duration = Duration::from_micros(10);

/// The threads, which end when it is dropped; the drop does not wait for handlers that run.
pub(super) struct Workers(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// Length of the queue, for threads that spin.
    queued: AtomicUsize,
    closing: AtomicBool,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Runnable>,
    /// Threads that spin, or were woken and have not taken the lock yet.
    searching: usize,
    sleeping: usize,
    /// Notifications that no thread has taken.
    wakes: usize,
}

impl Workers {
    /// # Errors
    /// The system refused the first thread.
    pub(super) fn start(threads: usize) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let workers = Workers(shared.clone());
        for n in 0..threads.max(1) {
            let own = shared.clone();
            let thread = std::thread::Builder::new().name(format!("courser-worker-{n}"));
            match thread.spawn(move || own.work()) {
                Ok(_) => {}
                Err(e) if n == 0 => return Err(e),
                Err(e) => {
                    tracing::warn!("only {n} of {threads} worker threads could be started: {e}");
                    break;
                }
            }
        }
        Ok(workers)
    }
}

impl Spawn for Workers {
    fn spawn(&self, handler: HandlerFuture) {
        let shared = self.0.clone();
        let (runnable, task) = async_task::spawn(handler, move |task| shared.push(task));
        task.detach();
        runnable.schedule();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Only a failed allocation panics under this lock, before the state changes.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a task, and wakes a thread if too few are awake for the queue.
    fn push(&self, task: Runnable) {
        let mut state = self.lock();
        if self.closing.load(Ordering::Relaxed) {
            drop(state);
            caught("dropped", 0, || drop(task));
            return;
        }
        state.queue.push_back(task);
        self.queued.store(state.queue.len(), Ordering::Relaxed);
        let wake = state.queue.len() > state.searching && state.sleeping > 0;
        if wake {
            state.sleeping -= 1;
            state.searching += 1;
            state.wakes += 1;
        }
        drop(state);
        if wake {
            self.wake.notify_one();
        }
    }

    /// Drops the queued tasks. Threads end when they return to the queue.
    fn close(&self) {
        let mut state = self.lock();
        self.closing.store(true, Ordering::Relaxed);
        let tasks = std::mem::take(&mut state.queue);
        self.queued.store(0, Ordering::Relaxed);
        drop(state);
        self.wake.notify_all();
        caught("dropped", 0, || drop(tasks));
    }

    fn work(&self) {
        while let Some(task) = self.next() {
            caught("async", 0, || {
                task.run();
            });
        }
    }

    /// The next task: spins, then sleeps, until there is one. `None` when the threads are to end.
    fn next(&self) -> Option<Runnable> {
        let mut may_spin = cpus() > 1;
        let mut state = self.lock();
        loop {
            if self.closing.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(task) = state.queue.pop_front() {
                self.queued.store(state.queue.len(), Ordering::Relaxed);
                return Some(task);
            }
            if may_spin {
                may_spin = false;
                state.searching += 1;
                drop(state);
                self.spin();
                state = self.lock();
                state.searching -= 1;
                continue;
            }
            state.sleeping += 1;
            while state.wakes == 0 && !self.closing.load(Ordering::Relaxed) {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if self.closing.load(Ordering::Relaxed) {
                return None;
            }
            state.wakes -= 1;
            state.searching -= 1;
        }
    }

    /// Spins until the queue is not empty, for at most [`SPIN`].
    fn spin(&self) {
        spin_until(SPIN, || {
            self.queued.load(Ordering::Relaxed) > 0 || self.closing.load(Ordering::Relaxed)
        });
    }
}
