//! Threads that poll the handlers of a server: `courser-worker-N`.

use std::io;
use std::sync::Arc;

use async_task::Runnable;

use super::spawn::{HandlerFuture, Spawn};
use crate::panics::caught;
use crate::platform::Clock;
use crate::run::worker::HandOver;

/// The threads, which end when it is dropped; the drop does not wait for handlers that run.
pub(super) struct Workers(Arc<Shared>);

/// The tasks that were woken.
struct Shared(HandOver<Runnable>);

impl Workers {
    /// # Errors
    /// The system refused the first thread.
    pub(super) fn start(threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared(HandOver::new(usize::MAX)));
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
    /// Queues a task, which is dropped when the threads are to end.
    fn push(&self, task: Runnable) {
        if let Err(task) = self.0.push(None, task) {
            caught("dropped", 0, || drop(task));
        }
    }

    /// Drops the queued tasks. Threads end when they return to the queue.
    fn close(&self) {
        let tasks = self.0.close();
        caught("dropped", 0, || drop(tasks));
    }

    fn work(&self) {
        while let Some(task) = self.0.next(|| Clock::System.now()) {
            caught("async", 0, || {
                task.run();
            });
        }
    }
}
