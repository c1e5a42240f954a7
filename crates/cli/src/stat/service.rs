//! The server side of `courser stat`, for endpoints of `courser serve`.
//!
//! A handler cannot read the transport's counters, because the transport's receive memory is borrowed
//! during the call. The handler therefore only queues the request, and the event loop answers it
//! between two passes. An endpoint without such requests checks one empty list per iteration.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use courser::{ControlStats, Nexus, ReplyHandle, Rpc, RunError, Transport, WorkerStats};

use super::snapshot::{FORMAT, Process, Query, STAT, Snapshot, named};

/// Most queued requests; more than one pass can receive.
const WAITING: usize = 1024;

/// An endpoint's statistics service.
pub(crate) struct Service {
    asked: Rc<RefCell<Vec<(ReplyHandle, Query)>>>,
}

impl Service {
    /// Registers the handler.
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
                // Another format, an invalid query, or too many requests.
                _ => cx.reject(),
            }
        });
        Self { asked }
    }

    /// Runs the event loop until it is stopped, and answers requests. `process` is called once for each
    /// request.
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
                // The client gets failures, and a dropped handle, as the error of its call.
                if let Ok(text) = serde_json::to_vec(&snapshot) {
                    let _ = rpc.reply_to(handle, text);
                }
            }
        }
    }
}

/// The part of a snapshot that is common to all endpoints of a process.
pub(crate) fn process(nexus: &Nexus, endpoints: u16) -> Process {
    let version = courser_kit::VERSION.to_owned();
    let (control, workers) = (control(&nexus.control_stats()), workers(&nexus.worker_stats()));
    Process { version, endpoints, control, workers }
}

/// Counters of the worker pool by name, without zeros.
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

/// Counters of the control plane by name, without zeros.
fn control(stats: &ControlStats) -> BTreeMap<String, u64> {
    named([
        ("excess_connections", stats.excess_connections),
        ("failed_greetings", stats.failed_greetings),
        ("protocol_errors", stats.protocol_errors),
        ("silent_peers", stats.silent_peers),
        ("misdirected", stats.misdirected),
        ("refused", stats.refused),
        ("exhausted", stats.exhausted),
        ("evicted_connections", stats.evicted_connections),
    ])
}
