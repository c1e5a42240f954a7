//! A handler and its requests: the future that runs it, with cancellation, deadline and panics.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::running::Ticket;
use super::spawn::{HandlerFuture, Spawn};
use crate::deadline::with;
use crate::panics::caught;
use crate::worker::Work;

/// A handler of any type: begins the future for a request.
pub(super) type Handler = Arc<dyn Fn(Work, Ticket) -> HandlerFuture + Send + Sync>;

/// Makes the handler of a function.
pub(super) fn handler<F, Fut>(f: F) -> Handler
where
    F: Fn(Work) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    Arc::new(move |work, ticket| {
        let (req_type, expires) = (work.req_type(), work.expires());
        // Also the function may call, before its first await.
        let future = with(expires, || f(work));
        Box::pin(guarded(future, ticket, req_type, expires))
    })
}

/// Polls a handler until it ends, panics, or is cancelled, and drops it then.
async fn guarded(
    future: impl Future<Output = ()>,
    mut ticket: Ticket,
    req_type: u16,
    expires: Option<Instant>,
) {
    // Declared after the ticket, and so dropped before it.
    let mut future = pin!(future);
    poll_fn(|cx| {
        if ticket.is_cancelled() {
            return Poll::Ready(());
        }
        let mut polled = Poll::Pending;
        let panicked = caught("async", req_type, || {
            polled = with(expires, || future.as_mut().poll(cx));
        });
        if panicked || (polled.is_pending() && ticket.wait(cx.waker())) {
            return Poll::Ready(());
        }
        polled
    })
    .await;
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
