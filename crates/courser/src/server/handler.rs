//! A handler and its requests: the future that runs it, with cancellation, deadline and panics.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use courser_proto::Status;

use super::running::Ticket;
use super::spawn::{HandlerFuture, Spawn};
use crate::core::deadline::with;
use crate::panics::caught;
use crate::run::worker::{Work, drop_as};

/// A handler of any type: begins the future for a request.
pub(super) type Handler = Arc<dyn Fn(Work, Ticket) -> HandlerFuture + Send + Sync>;

/// Makes the handler of a function.
pub(super) fn handler<F, Fut>(f: F) -> Handler
where
    F: Fn(Work) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let f = Arc::new(f);
    Arc::new(move |work, ticket| {
        let (req_type, expires) = (work.req_type(), work.expires());
        let stage = Stage::Waiting { work: Some(work), f: f.clone() };
        Box::pin(Guarded { stage, ticket, req_type, expires })
    })
}

pin_project_lite::pin_project! {
    /// How far a handler has come.
    #[project = StageProjection]
    enum Stage<F, Fut> {
        /// Nothing of the handler has run.
        Waiting { work: Option<Work>, f: Arc<F> },
        Running { #[pin] future: Fut },
        Ended,
    }
}

pin_project_lite::pin_project! {
    /// Starts a handler, polls it until it ends, panics, or is cancelled, and drops it then.
    struct Guarded<F, Fut> {
        // Dropped before the ticket.
        #[pin]
        stage: Stage<F, Fut>,
        ticket: Ticket,
        req_type: u16,
        expires: Option<Instant>,
    }

    impl<F, Fut> PinnedDrop for Guarded<F, Fut> {
        fn drop(this: Pin<&mut Self>) {
            let mut stage = this.project().stage;
            // The runtime of the handlers drops it, or this server does, before its end.
            if let StageProjection::Running { .. } = stage.as_mut().project() {
                drop_as(Status::Dropped, || stage.set(Stage::Ended));
            }
        }
    }
}

impl<F: Fn(Work) -> Fut, Fut: Future<Output = ()>> Guarded<F, Fut> {
    /// Calls the function on the first poll. Ready: there is no future to poll.
    fn start(self: Pin<&mut Self>) -> Poll<()> {
        let mut this = self.project();
        let StageProjection::Waiting { work, f } = this.stage.as_mut().project() else {
            return Poll::Pending;
        };
        let Some(mut work) = work.take() else { return Poll::Ready(()) };
        // It may have waited for its first poll.
        if work.is_late() {
            work.fail(Status::DeadlineExceeded);
            return Poll::Ready(());
        }
        work.start();
        let mut future = None;
        // The function may panic, and may call before the first await of its future.
        if caught("async", *this.req_type, || future = Some(with(*this.expires, || f(work)))) {
            this.ticket.count_panic();
        }
        let Some(future) = future else { return Poll::Ready(()) };
        this.stage.set(Stage::Running { future });
        Poll::Pending
    }
}

impl<F: Fn(Work) -> Fut, Fut: Future<Output = ()>> Future for Guarded<F, Fut> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.as_mut().project();
        if this.ticket.is_cancelled() {
            drop_as(Status::Dropped, || this.stage.set(Stage::Ended));
            return Poll::Ready(());
        }
        if self.as_mut().start().is_ready() {
            return Poll::Ready(());
        }
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

/// Starts a handler. `in_place`: polls it once on this thread, and passes it on if it does not end.
pub(super) fn run(mut handler: HandlerFuture, spawner: &dyn Spawn, in_place: bool) {
    if in_place {
        let mut ended = false;
        let mut poll = || {
            // The spawner polls it again, with its own waker.
            ended = handler.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        };
        spawner.enter(&mut || {
            // A panic of the handler was caught before; this one is of a value that it dropped.
            caught("async", 0, &mut poll);
        });
        if ended {
            return;
        }
    }
    spawner.spawn(handler);
}
