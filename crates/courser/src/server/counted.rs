//! Counts the handlers of typed methods of a server.

use std::time::Instant;

use crate::counts::{CallOutcome, MethodCells};
use crate::platform::Clock;

/// A handler of a server for any thread. Its drop counts one that was dropped, or has panicked.
pub(super) struct Handling<'a> {
    cells: Option<&'a MethodCells>,
    begun: Instant,
    expires: Option<Instant>,
}

impl<'a> Handling<'a> {
    /// A handler begins.
    pub(super) fn begin(cells: &'a MethodCells, expires: Option<Instant>) -> Self {
        cells.begin::<false>();
        Handling { cells: Some(cells), begun: Clock::System.now(), expires }
    }

    /// It has ended.
    pub(super) fn end(&mut self, outcome: CallOutcome) {
        self.end_at(Clock::System.now(), outcome);
    }

    fn end_at(&mut self, now: Instant, outcome: CallOutcome) {
        if let Some(cells) = self.cells.take() {
            let took = now.saturating_duration_since(self.begun);
            cells.end::<false>(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), outcome);
        }
    }
}

impl Drop for Handling<'_> {
    fn drop(&mut self) {
        if self.cells.is_none() {
            return;
        }
        let now = Clock::System.now();
        let outcome = match self.expires {
            _ if std::thread::panicking() => CallOutcome::Panicked,
            Some(expires) if now >= expires => CallOutcome::Deadline,
            _ => CallOutcome::Cancelled,
        };
        self.end_at(now, outcome);
    }
}
