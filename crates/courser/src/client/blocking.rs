//! Waiting of plain threads for a future of this crate.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, current, park};

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static WAKER: Waker = Waker::from(Arc::new(Unpark(current())));
}

/// Parks the thread until the future has a result.
pub(super) fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    // Not borrowed while the future is polled: the thread may end one call within another.
    let waker = WAKER.with(Waker::clone);
    let mut cx = Context::from_waker(&waker);
    loop {
        match Pin::new(&mut future).poll(&mut cx) {
            Poll::Ready(result) => return result,
            Poll::Pending => park(),
        }
    }
}
