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
    ///
    /// ```
    /// # use courser_example_store::*;
    /// use courser::Server;
    ///
    /// use courser::service::CallContext;
    ///
    /// #[courser::service]
    /// trait Front {
    ///     async fn len(&self, cx: CallContext, key: String) -> Option<u64>;
    /// }
    ///
    /// struct Pages(StoreClient);
    ///
    /// impl Front for Pages {
    ///     async fn len(&self, cx: CallContext, key: String) -> Option<u64> {
    ///         // The call has the deadline and the trace of this one, on whichever thread it is polled.
    ///         let store = self.0.clone();
    ///         let scoped = cx.scope(async move { store.len(key).await.ok() });
    ///         std::thread::spawn(|| futures::executor::block_on(scoped)).join().ok()?
    ///     }
    /// }
    /// # fn main() -> Done { run(async |uri| {
    /// # let server = Server::bind("udp://127.0.0.1:0")?;
    /// # let server = server.add_service(FrontServer::new(Pages(StoreClient::connect(&uri).await?)))?;
    /// # let (uri, _serving) = (server.local_uri(), server.serve()?);
    ///
    /// let front = FrontClient::connect(&uri).await?;
    /// assert_eq!(front.len("apple".to_owned()).await?, Some(5));
    /// # Ok(()) }) }
    /// ```
    #[must_use = "futures do nothing unless they are polled"]
    pub struct Scoped<F> {
        context: CallContext,
        passed: Option<Arc<Metadata>>,
        #[pin]
        future: F,
    }
}

impl CallContext {
    /// A future in which calls end by the deadline of this call and have the metadata that it passes on
    /// (`traceparent`, `tracestate` and `baggage`), as they do in its handler: for tasks that the handler
    /// spawns, and for calls of a [`crate::Client`] in handlers of an [`crate::Rpc`], which inherit
    /// the metadata but not the deadline without it. It never has the metadata of another call that
    /// polls it. The future goes on after the call has ended, unless it looks at
    /// [`CallContext::cancelled`].
    ///
    /// A typed call inherits the metadata when its future is made, by `.await` or `into_future()`, and
    /// not when it is polled: a future that is made outside of the scope has none of it, and one that
    /// is made in the handler has the handler's, wherever it is polled. Metadata is left out if the
    /// request of the call has no room or no memory for it.
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
        // Its own only: it may be polled in the handler of another call.
        let passed = this.passed.clone();
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

#[cfg(test)]
mod tests {
    use courser_buf::Arena;
    use futures::executor::block_on;

    use super::*;
    use crate::service::{Received, Services, SessionKey};

    #[test]
    fn a_scope_has_the_metadata_of_its_own_call_only() {
        let arena = Arena::heap();
        let session = SessionKey::new(0, 1);
        let received = Received::owned(arena.alloc(0).unwrap(), session, &arena, 0);
        let (context, _in_call) = Services::default().asks(0).begin(&received);
        let mut of_other = Metadata::new();
        of_other.insert("baggage", "of another call").unwrap();
        current::with(Some(Arc::new(of_other)), || {
            assert!(!block_on(context.scope(async { current::passes() })));
            assert!(current::passes());
        });
    }
}
