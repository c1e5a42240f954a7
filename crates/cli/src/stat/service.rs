//! The server's side of `courser stat`: how an endpoint of `courser serve` answers.
//!
//! The transport's counters cannot be read in a handler, as its receive memory is lent out then.
//! So the handler only notes who asked, and the answer is given between two passes of the event
//! loop. An endpoint without such requests checks one empty list per iteration.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use courser::{ControlStats, Nexus, ReplyHandle, Rpc, RunError, Transport, WorkerStats};

use super::snapshot::{FORMAT, Process, Query, STAT, Snapshot, named};

/// Requests that wait for the end of the pass; more than a pass can bring.
const WAITING: usize = 1024;

/// An endpoint's statistics service.
pub(crate) struct Service {
    asked: Rc<RefCell<Vec<(ReplyHandle, Query)>>>,
}

impl Service {
    /// Registers it.
    pub(crate) fn register<T: Transport>(rpc: &mut Rpc<T>) -> Self {
        let asked = Rc::new(RefCell::new(Vec::new()));
        let list = asked.clone();
        rpc.on(STAT, move |cx, request| {
            let query = serde_json::from_slice(&request).ok();
            match query.filter(|query: &Query| query.format == FORMAT) {
                Some(query) if list.borrow().len() < WAITING => {
                    let Some(handle) = cx.defer() else { return };
                    list.borrow_mut().push((handle, query));
                }
                // Of another format, no query at all, or too many of them.
                _ => cx.reject(),
            }
        });
        Self { asked }
    }

    /// Runs the event loop until it is stopped, and answers those who ask. `process` is asked
    /// once for each of them.
    ///
    /// # Errors
    /// The system's poll failed.
    pub(crate) fn run<T: Transport>(
        &self,
        rpc: &mut Rpc<T>,
        process: impl Fn() -> Process,
    ) -> Result<(), RunError> {
        loop {
            rpc.run_until(|| !self.asked.borrow().is_empty())?;
            let asked = self.asked.take();
            if asked.is_empty() {
                return Ok(());
            }
            for (handle, query) in asked {
                let snapshot = Snapshot::take(rpc, process(), &query, handle.session());
                // Failures reach the asker as its call's error: a handle that is dropped too.
                if let Ok(text) = serde_json::to_vec(&snapshot) {
                    let _ = rpc.reply_to(handle, text);
                }
            }
        }
    }
}

/// What a process adds to the snapshots of its endpoints.
pub(crate) fn process(nexus: &Nexus, endpoints: u16) -> Process {
    let version = courser_bench::program::VERSION.to_owned();
    let (control, workers) = (control(&nexus.control_stats()), workers(&nexus.worker_stats()));
    Process { version, endpoints, control, workers }
}

/// The workers by name, when there are any; only what happened.
fn workers(stats: &WorkerStats) -> BTreeMap<String, u64> {
    named([
        ("threads", stats.threads as u64),
        ("queued", stats.queued as u64),
        ("running", stats.running),
        ("started", stats.started),
        ("finished", stats.finished),
        ("refused", stats.refused),
        ("expired", stats.expired),
        ("abandoned", stats.abandoned),
        ("panicked", stats.panicked),
    ])
}

/// The control plane's counters by name; only what happened.
fn control(stats: &ControlStats) -> BTreeMap<String, u64> {
    named([
        ("excess_connections", stats.excess_connections),
        ("failed_greetings", stats.failed_greetings),
        ("protocol_errors", stats.protocol_errors),
        ("silent_peers", stats.silent_peers),
        ("misdirected", stats.misdirected),
        ("refused", stats.refused),
        ("exhausted", stats.exhausted),
    ])
}
