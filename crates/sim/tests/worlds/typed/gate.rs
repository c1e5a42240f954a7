//! The middleware of the swarm's server: it refuses calls without a token, adds a trace that handlers
//! read, and counts the ends of calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use courser::service::{CallContext, CallEnd, Denied, IncomingCall, ServerMiddleware};

use super::service::Broken;

/// The metadata of calls that are allowed.
pub(super) const TOKEN: (&str, &str) = ("token", "right");
const TRACE: &str = "trace";

/// Shared by all lives of the server.
#[derive(Clone)]
pub(super) struct Gate {
    broken: Broken,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    passed: AtomicU64,
    ended: AtomicU64,
    refused: AtomicU64,
    /// Ends without the trace.
    untraced: AtomicU64,
}

impl Gate {
    pub(super) fn new(broken: Broken) -> Self {
        Gate { broken, counts: Arc::default() }
    }

    /// The calls that were refused.
    pub(super) fn refused(&self) -> u64 {
        self.counts.refused.load(SeqCst)
    }

    /// The rules that were broken, after the end of all calls.
    pub(super) fn judge(&self) -> Option<String> {
        let Counts { passed, ended, untraced, .. } = &*self.counts;
        let [passed, ended, untraced] = [passed, ended, untraced].map(|count| count.load(SeqCst));
        let holds = passed == ended && untraced == 0;
        (!holds).then(|| format!("{passed} calls have passed, {ended} ended, {untraced} untraced"))
    }
}

impl ServerMiddleware for Gate {
    fn before(&self, call: &mut IncomingCall<'_>) -> Result<(), Denied> {
        let (key, token) = TOKEN;
        if call.metadata().text(key) != Some(token) && self.broken != Broken::Gate {
            self.counts.refused.fetch_add(1, SeqCst);
            return Err(Denied::unauthenticated("there is no token"));
        }
        if self.broken != Broken::Trace {
            let method = call.method();
            call.add_metadata(TRACE, method)?;
        }
        self.counts.passed.fetch_add(1, SeqCst);
        Ok(())
    }

    fn after(&self, end: &CallEnd<'_>) {
        self.counts.ended.fetch_add(1, SeqCst);
        if end.metadata.text(TRACE) != Some(end.method) && self.broken != Broken::Trace {
            self.counts.untraced.fetch_add(1, SeqCst);
        }
    }
}

/// Returns whether a handler has the trace of its call.
pub(super) fn is_traced(cx: &CallContext) -> bool {
    cx.metadata().text(TRACE) == Some(cx.method())
}
