//! Counts the handlers of typed methods of a server.

use std::time::Instant;

use crate::counts::{CallOutcome, MethodCells};
use crate::platform::{Clock, Stopwatch};

/// A handler of a server for any thread. Its drop counts one that was dropped, or has panicked.
pub(super) struct Handling<'a> {
    cells: Option<&'a MethodCells>,
    /// A reading of the stopwatch.
    begun: u64,
    expires: Option<Instant>,
}

impl<'a> Handling<'a> {
    /// A handler begins.
    pub(super) fn begin(cells: &'a MethodCells, expires: Option<Instant>) -> Self {
        cells.begin::<false>();
        Handling { cells: Some(cells), begun: Stopwatch::system().read(), expires }
    }

    /// It has ended.
    pub(super) fn end(&mut self, outcome: CallOutcome) {
        if let Some(cells) = self.cells.take() {
            cells.end::<false>(Stopwatch::system().since_ns(self.begun), outcome);
        }
    }
}

impl Drop for Handling<'_> {
    fn drop(&mut self) {
        if self.cells.is_none() {
            return;
        }
        let outcome = match self.expires {
            _ if std::thread::panicking() => CallOutcome::Panicked,
            Some(expires) if Clock::System.now() >= expires => CallOutcome::Deadline,
            _ => CallOutcome::Cancelled,
        };
        self.end(outcome);
    }
}
