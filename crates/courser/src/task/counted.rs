//! Counts the handlers of typed methods that run on the thread of their endpoint.

use std::rc::Rc;
use std::sync::Arc;

use crate::core::Lender;
use crate::core::context::Context;
use crate::core::counting::LocalMethod;
use crate::counts::{CallOutcome, MethodCells};

/// The method of a handler, if it has one that is counted.
pub(super) trait Method: 'static {
    fn get(&self) -> Option<&Rc<LocalMethod>>;
}

impl Method for Option<Rc<LocalMethod>> {
    #[inline]
    fn get(&self) -> Option<&Rc<LocalMethod>> {
        self.as_ref()
    }
}

/// A handler without a service. Known to the compiler, so that it takes no instructions for counting.
pub(super) struct Uncounted;

impl Method for Uncounted {
    #[inline]
    fn get(&self) -> Option<&Rc<LocalMethod>> {
        None
    }
}

/// Counts the panic of a handler in its first poll on the endpoint's thread, when it is unwound.
pub(super) struct Unwinding<'a>(pub(super) Option<&'a LocalMethod>);

impl Unwinding<'_> {
    /// There was no panic.
    #[inline]
    pub(super) fn ended(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unwinding<'_> {
    #[cold]
    fn drop(&mut self) {
        if let Some(method) = self.0 {
            method.cells.refuse(CallOutcome::Panicked);
        }
    }
}

/// A handler of an endpoint that waits. Its drop counts one that was dropped.
pub(super) struct Waiting {
    cells: Option<Arc<MethodCells>>,
    lender: Lender,
    begun_ns: u64,
    expires_ns: u64,
}

impl Waiting {
    /// The handler was polled and waits. `expires_ns`: its deadline; `u64::MAX`: none.
    #[cold]
    pub(super) fn of(
        cx: &Context<'_>,
        method: Option<&Rc<LocalMethod>>,
        expires_ns: u64,
    ) -> Option<Self> {
        let cells = method?.cells.clone();
        cells.begin::<true>();
        let (lender, begun_ns) = (cx.core.lender.clone(), cx.core.last_ns());
        Some(Waiting { cells: Some(cells), lender, begun_ns, expires_ns })
    }

    /// It has ended at this time.
    pub(super) fn end(&mut self, now_ns: u64, outcome: CallOutcome) {
        if let Some(cells) = self.cells.take() {
            cells.end_waited(now_ns.saturating_sub(self.begun_ns), outcome);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let now_ns = self.lender.dropped_ns();
        let is_late = now_ns >= self.expires_ns;
        self.end(now_ns, if is_late { CallOutcome::Deadline } else { CallOutcome::Cancelled });
    }
}
