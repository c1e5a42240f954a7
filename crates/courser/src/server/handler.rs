//! A handler and its requests: the future that runs it, with cancellation, deadline and panics.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use courser_proto::Status;

use super::placement::{InPlace, Placement, Record};
use super::running::Ticket;
use super::spawn::{HandlerFuture, Spawn};
use crate::core::deadline::with;
use crate::counts::{CallOutcome, MethodCells};
use crate::panics::caught;
use crate::platform::Stopwatch;
use crate::run::worker::{Work, drop_as};
use crate::service::LARGE;

/// The handler of a type of requests or messages.
pub(super) trait Handle: Send + Sync {
    /// Makes the future for a request. `measured`: its first poll adds its time to the record.
    fn begin(self: Arc<Self>, work: Work, ticket: Ticket, measured: bool) -> HandlerFuture;

    fn record(&self) -> &Record;
}

pub(super) type Handler = Arc<dyn Handle>;

/// Makes the handler of a function. `cells`: the counters of its method.
pub(super) fn handler<F, Fut>(f: F, cells: Option<Arc<MethodCells>>) -> Handler
where
    F: Fn(Work) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    Arc::new(Recorded { f, record: Record::new(), cells })
}

/// A function with the record of its futures.
struct Recorded<F> {
    f: F,
    record: Record,
    /// The counters of its method, for requests whose handler does not begin.
    cells: Option<Arc<MethodCells>>,
}

impl<F> Recorded<F> {
    /// Counts a request that ends before its handler begins.
    #[cold]
    fn count_unrun(&self, is_late: bool) {
        if let Some(cells) = &self.cells {
            cells.refuse(if is_late { CallOutcome::Deadline } else { CallOutcome::Cancelled });
        }
    }
}

impl<F, Fut> Handle for Recorded<F>
where
    F: Fn(Work) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    fn begin(self: Arc<Self>, work: Work, ticket: Ticket, measured: bool) -> HandlerFuture {
        let (req_type, expires) = (work.req_type(), work.expires());
        let stage = Stage::Waiting { work: Some(work) };
        Box::pin(Guarded { stage, ticket, handler: self, req_type, expires, measured })
    }

    fn record(&self) -> &Record {
        &self.record
    }
}

pin_project_lite::pin_project! {
    /// How far a handler has come.
    #[project = StageProjection]
    enum Stage<Fut> {
        /// Nothing of the handler has run.
        Waiting { work: Option<Work> },
        Running { #[pin] future: Fut },
        Ended,
    }
}

pin_project_lite::pin_project! {
    /// Starts a handler, polls it until it ends, panics, or is cancelled, and drops it then.
    struct Guarded<F, Fut> {
        // Dropped before the ticket.
        #[pin]
        stage: Stage<Fut>,
        ticket: Ticket,
        handler: Arc<Recorded<F>>,
        req_type: u16,
        expires: Option<Instant>,
        // Until its first poll.
        measured: bool,
    }

    impl<F, Fut> PinnedDrop for Guarded<F, Fut> {
        fn drop(this: Pin<&mut Self>) {
            // The runtime of the handlers drops it, or this server does, before its end.
            this.end_early();
        }
    }
}

impl<F, Fut> Guarded<F, Fut> {
    /// Drops the handler, or the request whose handler did not begin, which is counted then.
    fn end_early(self: Pin<&mut Self>) {
        let mut this = self.project();
        match this.stage.as_mut().project() {
            StageProjection::Waiting { work: Some(work) } => {
                this.handler.count_unrun(work.is_late());
            }
            StageProjection::Running { .. } => {}
            _ => return,
        }
        drop_as(Status::Dropped, || this.stage.set(Stage::Ended));
    }
}

impl<F: Fn(Work) -> Fut, Fut: Future<Output = ()>> Guarded<F, Fut> {
    /// Calls the function on the first poll. Ready: there is no future to poll.
    fn start(self: Pin<&mut Self>) -> Poll<()> {
        let mut this = self.project();
        let StageProjection::Waiting { work } = this.stage.as_mut().project() else {
            return Poll::Pending;
        };
        let Some(mut work) = work.take() else { return Poll::Ready(()) };
        // It may have waited for its first poll.
        if work.is_late() {
            this.handler.count_unrun(true);
            work.fail(Status::DeadlineExceeded);
            return Poll::Ready(());
        }
        work.start();
        let f = &this.handler.f;
        let mut future = None;
        // The function may panic, and may call before the first await of its future.
        if caught("async", *this.req_type, || future = Some(with(*this.expires, || f(work)))) {
            this.ticket.count_panic();
            this.handler.record.note_long();
        }
        let Some(future) = future else { return Poll::Ready(()) };
        this.stage.set(Stage::Running { future });
        Poll::Pending
    }

    /// Polls the handler, which [`Guarded::start`] has started.
    fn advance(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let StageProjection::Running { future } = this.stage.as_mut().project() else {
            return Poll::Ready(());
        };
        let mut polled = Poll::Pending;
        let panicked = caught("async", *this.req_type, || {
            polled = with(*this.expires, || future.poll(cx));
        });
        if panicked {
            this.ticket.count_panic();
            // It may have panicked since it is no task where it was polled.
            this.handler.record.note_long();
        }
        let status = match polled {
            _ if panicked => Status::Panicked,
            Poll::Ready(()) => Status::NoReply,
            Poll::Pending if this.ticket.wait(cx.waker()) => Status::Dropped,
            Poll::Pending => return Poll::Pending,
        };
        drop_as(status, || this.stage.set(Stage::Ended));
        Poll::Ready(())
    }
}

impl<F: Fn(Work) -> Fut, Fut: Future<Output = ()>> Future for Guarded<F, Fut> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.as_mut().project();
        if this.ticket.is_cancelled() {
            self.end_early();
            return Poll::Ready(());
        }
        let begun = std::mem::take(this.measured).then(|| Stopwatch::system().read());
        if self.as_mut().start().is_ready() {
            return Poll::Ready(());
        }
        let polled = self.as_mut().advance(cx);
        if let Some(begun) = begun {
            let took_ns = Stopwatch::system().since_ns(begun);
            self.handler.record.note(took_ns, polled.is_ready());
        }
        polled
    }
}

/// Starts a handler, where the placement says. Returns whether it has ended on this thread.
pub(super) fn run(
    handler: &Handler,
    work: Work,
    ticket: Ticket,
    spawner: &dyn Spawn,
    placement: Placement,
    in_place: &InPlace,
) -> bool {
    run_as(handler, work, ticket, spawner, placement, in_place, |handler| handler)
}

/// [`run`] for a handler that `change` puts into another future.
#[inline]
pub(super) fn run_as(
    handler: &Handler,
    work: Work,
    ticket: Ticket,
    spawner: &dyn Spawn,
    placement: Placement,
    in_place: &InPlace,
    change: impl FnOnce(HandlerFuture) -> HandlerFuture,
) -> bool {
    let small = work.len() < LARGE;
    let measured = small && placement == Placement::Measured;
    let here = match placement {
        Placement::Endpoint => small,
        Placement::Measured => small && in_place.takes(handler.record()),
        Placement::Runtime => false,
    };
    let mut future = change(handler.clone().begin(work, ticket, measured && !here));
    if here {
        let mut poll = || poll_once(&mut future, spawner);
        let ended = if measured { in_place.measure(handler.record(), poll) } else { poll() };
        if ended {
            return true;
        }
    }
    spawner.spawn(future);
    false
}

/// Polls a handler on this thread. Returns whether it has ended.
fn poll_once(future: &mut HandlerFuture, spawner: &dyn Spawn) -> bool {
    let mut ended = false;
    let mut poll = || {
        // The spawner polls it again, with its own waker.
        ended = future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
    };
    spawner.enter(&mut || {
        // A panic of the handler was caught before; this one is of a value that it dropped.
        caught("async", 0, &mut poll);
    });
    ended
}
