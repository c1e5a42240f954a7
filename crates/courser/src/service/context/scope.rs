//! Futures that have the deadline and the metadata of a call outside of its handler.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::metadata::Metadata;
use super::{CallContext, current};
use crate::core::deadline::{self, earliest, inherited};
use crate::core::{Lender, lenders, lent};
use crate::platform::Clock;

pin_project_lite::pin_project! {
    /// A future whose calls are part of a call: [`CallContext::scope`].
    #[must_use = "futures do nothing unless they are polled"]
    pub struct Scoped<F> {
        context: CallContext,
        passed: Option<Arc<Metadata>>,
        #[pin]
        future: F,
    }
}

impl CallContext {
    /// A future in which calls end by the deadline of this call and have the metadata that it passes on,
    /// as they do in its handler: for tasks that the handler spawns. The future goes on after the call has ended, unless it looks at
    /// [`CallContext::cancelled`].
    ///
    /// ```
    /// # use courser::service::CallContext;
    /// # #[courser::service] trait Log { async fn write(&self, line: String); }
    /// # #[courser::service] trait Store { async fn put(&self, cx: CallContext, key: String); }
    /// struct Pages {
    ///     runtime: tokio::runtime::Handle,
    ///     log: LogClient,
    /// }
    ///
    /// impl Store for Pages {
    ///     async fn put(&self, cx: CallContext, key: String) {
    ///         let log = self.log.clone();
    ///         // The call in the task has the time that is left to this one.
    ///         self.runtime.spawn(cx.scope(async move { log.write(key).await }));
    ///     }
    /// }
    /// ```
    pub fn scope<F: Future>(&self, future: F) -> Scoped<F> {
        let passed = self.0.caller.arrived.as_ref().and_then(|arrived| arrived.passed());
        Scoped { context: self.clone(), passed, future }
    }
}

impl<F> fmt::Debug for Scoped<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scoped").field("context", &self.context).finish_non_exhaustive()
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let caller = &this.context.0.caller;
        // Clients compare deadlines with the clock of the system.
        let expires = caller.expires.filter(|_| matches!(caller.clock, Clock::System));
        let of_tasks = caller.endpoint.map(|(number, at_ns)| OfTasks::limit(number, at_ns));
        let passed = this.passed.clone().or_else(current::passed);
        let polled = deadline::with(earliest(expires, inherited()), || {
            current::with(passed, || this.future.poll(cx))
        });
        drop(of_tasks);
        polled
    }
}

/// The deadline of the task of an endpoint that is polled, shortened until the drop. `None`: another
/// thread polls.
struct OfTasks(Option<(Lender, u64)>);

impl OfTasks {
    fn limit(number: u64, at_ns: u64) -> Self {
        let Some(lender) = lenders::find(number) else { return OfTasks(None) };
        let before_ns = lent::try_with(&lender, |core| {
            let limited_ns = core.tasks.deadline_ns.min(at_ns);
            std::mem::replace(&mut core.tasks.deadline_ns, limited_ns)
        });
        OfTasks(before_ns.map(|before_ns| (lender, before_ns)))
    }
}

impl Drop for OfTasks {
    fn drop(&mut self) {
        if let Some((lender, before_ns)) = &self.0 {
            lent::try_with(lender, |core| core.tasks.deadline_ns = *before_ns);
        }
    }
}
