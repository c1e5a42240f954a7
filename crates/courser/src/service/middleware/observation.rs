//! Calls of a server whose end middleware sees.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use courser_proto::{RequestId, Status};

use super::server::{ServerChain, outcome_of};
use super::{CallEnd, CallOutcome};
use crate::core::queue::LocalFuture;
use crate::core::{Lender, lent};
use crate::platform::Clock;
use crate::service::access::Peer;
use crate::service::context::Metadata;
use crate::shape::method::MethodKind;

/// The method and the client of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub(crate) service: &'static str,
    pub(crate) method: &'static str,
    pub(crate) kind: MethodKind,
    pub(crate) peer: Peer,
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
    outcome: CallOutcome,
}

thread_local! {
    /// The call whose handler the dispatch runs, until its request has moved to another thread.
    static CURRENT: RefCell<Option<Observation>> = const { RefCell::new(None) };
}

impl Observation {
    pub(super) fn new(chain: ServerChain, subject: Subject, clock: Clock) -> Self {
        let (begun, outcome) = (clock.now(), CallOutcome::Dropped);
        let metadata = Metadata::new();
        Observation { chain, passed: 0, subject, metadata, clock, begun, outcome }
    }

    pub(super) fn chain(&self) -> &ServerChain {
        &self.chain
    }

    /// Another one has let it pass.
    pub(super) fn passed(&mut self) {
        self.passed += 1;
    }

    /// Keeps the metadata for the end.
    pub(super) fn keep(&mut self, metadata: &Metadata) {
        self.metadata.clone_from(metadata);
    }

    /// Reports the end.
    pub(crate) fn end(mut self, outcome: CallOutcome) {
        self.outcome = outcome;
    }

    /// Reports the end of a call with this answer, or of a message whose handler has ended with this
    /// status.
    pub(crate) fn answered(self, answer: Result<&[u8], Status>, is_message: bool) {
        self.end(match answer {
            Err(Status::NoReply | Status::Expired) if is_message => CallOutcome::Ok,
            answer => outcome_of(answer),
        });
    }

    /// Runs a handler, during which [`Observation::take_current`] takes this call. Returns it if nothing
    /// did.
    pub(crate) fn during(self, run: impl FnOnce()) -> Option<Self> {
        /// Ends the call at the drop, also after a panic.
        struct Forget;
        impl Drop for Forget {
            fn drop(&mut self) {
                drop(Observation::take_current());
            }
        }
        CURRENT.set(Some(self));
        let _forget = Forget;
        run();
        Observation::take_current()
    }

    /// The call whose handler the dispatch runs.
    pub(crate) fn take_current() -> Option<Self> {
        CURRENT.take()
    }

    /// The task of a handler, whose end is that of the call. `None`: a message.
    pub(crate) fn of_task(
        self,
        task: LocalFuture,
        id: Option<RequestId>,
        lender: Lender,
    ) -> LocalFuture {
        Box::pin(Watched { task, observation: Some(self), id, lender })
    }
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
            outcome: self.outcome,
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
    lender: Lender,
}

impl Future for Watched {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.task.as_mut().poll(cx));
        if let Some(observation) = self.observation.take() {
            let id = self.id;
            let outcome = lent::try_with(&self.lender, |core| match id {
                None => CallOutcome::Ok,
                Some(id) => core.proto.stored_answer(id).map_or(CallOutcome::Dropped, outcome_of),
            });
            observation.end(outcome.unwrap_or(CallOutcome::Dropped));
        }
        Poll::Ready(())
    }
}
