//! The middleware of a server, and the calls whose end it sees.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, ready};
use std::time::{Duration, Instant};

use courser_proto::{RequestId, Status};

use super::end::{CallEnd, Subject};
use super::server::{IncomingCall, ServerMiddleware};
use crate::core::context::Context;
use crate::core::message::Request;
use crate::core::queue::LocalFuture;
use crate::core::{Lender, lent};
use crate::counts::CallOutcome;
use crate::panics::caught;
use crate::platform::Clock;
use crate::service::access::{Denied, Peer};
use crate::service::context::Metadata;
use crate::service::verdict::outcome_of;

/// The middleware of a server; the first one is the outermost.
#[derive(Clone, Default)]
pub(crate) struct ServerChain(Arc<[Arc<dyn ServerMiddleware>]>);

impl ServerChain {
    /// With another one behind those that are there.
    pub(crate) fn with(&self, last: Arc<dyn ServerMiddleware>) -> Self {
        ServerChain(self.0.iter().cloned().chain([last]).collect())
    }

    /// A list of its own with the same middleware.
    pub(crate) fn copied(&self) -> Self {
        ServerChain(self.0.iter().cloned().collect())
    }

    /// Passes a call to all, until one refuses it.
    ///
    /// # Errors
    /// It does; those before it have seen the end.
    pub(crate) fn admit(
        self,
        cx: &Context<'_>,
        request: &Request<'_>,
        subject: Subject,
        metadata: &mut Metadata,
    ) -> Result<Observation, Denied> {
        let time_left = (request.expires_ns != u64::MAX)
            .then(|| Duration::from_nanos(request.expires_ns.saturating_sub(cx.now_ns())));
        let (req_type, len) = (request.req_type, request.body.len());
        let count = self.0.len();
        let mut observation = Observation::new(self, subject, cx.core.clock().clone());
        let begun = observation.begun;
        for at in 0..count {
            let mut decision = Err(Denied::new("middleware of the server has failed"));
            caught("middleware", req_type, || {
                let size = (req_type, len);
                let mut call = IncomingCall::new((subject, begun), size, time_left, metadata);
                decision = observation.chain.0[at].before(&mut call);
            });
            if let Err(denied) = decision {
                observation.keep(metadata);
                observation.end(denied.outcome());
                return Err(denied);
            }
            observation.passed();
        }
        observation.keep(metadata);
        Ok(observation)
    }

    /// Reports the end of a call to the first `count` of them.
    fn report(&self, count: usize, end: &CallEnd<'_>) {
        for middleware in self.0[..count].iter().rev() {
            caught("middleware", 0, || middleware.after(end));
        }
    }
}

/// A call that middleware has let pass. Its end is reported at the drop.
pub(crate) struct Observation {
    chain: ServerChain,
    /// The number of middleware that have let it pass.
    passed: usize,
    subject: Subject,
    metadata: Metadata,
    clock: Clock,
    begun: Instant,
    /// `None`: its handler was dropped.
    outcome: Option<CallOutcome>,
}

thread_local! {
    /// The call whose handler the dispatch runs, until its request has moved to another thread.
    static CURRENT: RefCell<Option<Observation>> = const { RefCell::new(None) };
}

thread_local! {
    /// The outcome of the call whose handler this thread runs, if it is not that of its answer.
    static MISSED: Cell<Option<CallOutcome>> = const { Cell::new(None) };
}

/// The call that this thread passes to its handler does not reach it, or is a message whose handler has
/// panicked.
#[cold]
pub(crate) fn miss(outcome: CallOutcome) {
    MISSED.set(Some(outcome));
}

/// Passes a call to its handler. Also returns the outcome that is not that of its answer ([`miss`]).
pub(crate) fn missing<R>(pass: impl FnOnce() -> R) -> (R, Option<CallOutcome>) {
    // An outer call has set it, or an earlier one without middleware.
    let before = MISSED.take();
    let passed = pass();
    (passed, MISSED.replace(before))
}

impl Observation {
    fn new(chain: ServerChain, subject: Subject, clock: Clock) -> Self {
        let (begun, metadata) = (clock.now(), Metadata::new());
        Observation { chain, passed: 0, subject, metadata, clock, begun, outcome: None }
    }

    /// The client.
    pub(crate) fn peer(&self) -> Peer {
        self.subject.peer
    }

    /// Another one has let it pass.
    fn passed(&mut self) {
        self.passed += 1;
    }

    /// Keeps the metadata for the end.
    fn keep(&mut self, metadata: &Metadata) {
        self.metadata.clone_from(metadata);
    }

    /// Reports the end.
    pub(crate) fn end(mut self, outcome: CallOutcome) {
        self.outcome = Some(outcome);
    }

    /// Reports the end of a call with this answer, or of a message whose handler has ended with this
    /// status.
    pub(crate) fn answered(self, answer: Result<&[u8], Status>, is_message: bool) {
        self.end(match answer {
            Err(Status::NoReply) if is_message => CallOutcome::Ok,
            answer => outcome_of(answer),
        });
    }

    /// Runs a handler, during which [`Observation::take_current`] takes this call. Returns it if nothing
    /// did.
    pub(crate) fn during(self, run: impl FnOnce()) -> Option<Self> {
        /// Sets the call before it again at the drop, also after a panic.
        struct Before(Option<Observation>);
        impl Drop for Before {
            fn drop(&mut self) {
                drop(CURRENT.replace(self.0.take()));
            }
        }
        let _before = Before(CURRENT.replace(Some(self)));
        run();
        Observation::take_current()
    }

    /// The call whose handler the dispatch runs.
    pub(crate) fn take_current() -> Option<Self> {
        CURRENT.take()
    }

    /// The task of a handler, whose end is that of the call. `id`: `None` for a message; `expires_ns`: its
    /// deadline, in the endpoint's time.
    pub(crate) fn of_task(
        self,
        task: LocalFuture,
        (id, expires_ns): (Option<RequestId>, u64),
        lender: Lender,
    ) -> LocalFuture {
        Box::pin(Watched { task, observation: Some(self), id, expires_ns, lender })
    }
}

/// The outcome of a call whose handler is dropped, before it is a task.
#[cold]
fn dropped() -> CallOutcome {
    if std::thread::panicking() { CallOutcome::Panicked } else { CallOutcome::Cancelled }
}

impl Drop for Observation {
    fn drop(&mut self) {
        if self.passed == 0 {
            return;
        }
        let Subject { service, method, kind, peer } = self.subject;
        let end = CallEnd {
            service,
            method,
            kind,
            peer: Some(peer),
            metadata: &self.metadata,
            outcome: self.outcome.unwrap_or_else(dropped),
            duration: self.clock.now().saturating_duration_since(self.begun),
            attempts: 1,
        };
        self.chain.report(self.passed, &end);
    }
}

/// The task of a handler on its endpoint's thread.
struct Watched {
    task: LocalFuture,
    /// Dropped after the task.
    observation: Option<Observation>,
    id: Option<RequestId>,
    expires_ns: u64,
    lender: Lender,
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(observation) = &mut self.observation {
            // As the counters of the method do.
            let is_late = self.lender.dropped_ns() >= self.expires_ns;
            let outcome = if is_late { CallOutcome::Deadline } else { CallOutcome::Cancelled };
            observation.outcome = Some(outcome);
        }
    }
}

impl Future for Watched {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<()> {
        let (polled, missed) = missing(|| self.task.as_mut().poll(cx));
        ready!(polled);
        if let Some(observation) = self.observation.take() {
            let id = self.id;
            let outcome = lent::try_with(&self.lender, |core| match id {
                None => missed.unwrap_or(CallOutcome::Ok),
                Some(id) => core.proto.stored_answer(id).map_or(CallOutcome::Cancelled, outcome_of),
            });
            observation.end(outcome.unwrap_or(CallOutcome::Cancelled));
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use courser_buf::Addr;

    use super::*;
    use crate::shape::method::MethodKind;

    fn observation(method: &'static str) -> Observation {
        let (kind, peer) = (MethodKind::Unary, Peer::new(Addr { host: 1, port: 1 }));
        let subject = Subject { service: "Test", method, kind, peer };
        Observation::new(ServerChain::default(), subject, Clock::System)
    }

    #[test]
    fn a_call_whose_handler_runs_within_another_leaves_that_one_in_place() {
        let left = observation("outer").during(|| {
            let inner = observation("inner").during(|| ());
            assert_eq!(inner.map(|inner| inner.subject.method), Some("inner"));
            let outer = Observation::take_current();
            assert_eq!(outer.map(|outer| outer.subject.method), Some("outer"));
        });
        assert!(left.is_none() && Observation::take_current().is_none());
    }
}
