//! Waiting of plain threads for a future of this crate.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::sync::{Thread, current, park, thread_locals};

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

thread_locals! {
    static WAKER: Waker = Waker::from(Arc::new(Unpark(current())));
    /// Futures that this thread is within.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Counts a future of this thread. One within another may have taken the wake-up of the outer one, of
/// which a thread keeps a single one: the outer one is polled again.
struct Within;

impl Within {
    fn enter() -> Self {
        DEPTH.with(|depth| depth.set(depth.get() + 1));
        Within
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
        if DEPTH.with(Cell::get) > 0 {
            current().unpark();
        }
    }
}

/// Parks the thread until the future has a result.
pub(super) fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    let _within = Within::enter();
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_call_within_another_one_leaves_it_its_wake_up() {
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            let mut polls = 0;
            block_on(poll_fn(|cx| {
                polls += 1;
                if polls > 1 {
                    return Poll::Ready(());
                }
                cx.waker().wake_by_ref();
                let (ready, mut begun) = (Arc::new(AtomicBool::new(false)), false);
                block_on(poll_fn(|cx| {
                    if !std::mem::replace(&mut begun, true) {
                        let (ready, waker) = (ready.clone(), cx.waker().clone());
                        std::thread::spawn(move || {
                            std::thread::sleep(Duration::from_millis(20));
                            ready.store(true, Ordering::Release);
                            waker.wake();
                        });
                    }
                    if ready.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
                }));
                Poll::Pending
            }));
            let _ = done.send(());
        });
        is_done.recv_timeout(Duration::from_secs(20)).expect("the outer call is polled again");
    }
}
