//! The future of a queued operation.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The result of a queued operation, for any executor. Dropping it does not cancel the operation.
#[must_use = "the result of the operation is not known before it has ended"]
pub struct Pending<T> {
    shared: Arc<Shared<T>>,
}

/// Ends a [`Pending`]. Dropped, it ends it with [`io::ErrorKind::Interrupted`].
pub struct Completion<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    inner: Mutex<Inner<T>>,
    ended: Condvar,
}

struct Inner<T> {
    result: Option<io::Result<T>>,
    waker: Option<Waker>,
    /// The result was set, and may have been taken since.
    is_ended: bool,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        // No code panics while it is locked.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, result: io::Result<T>) {
        let mut inner = self.lock();
        if inner.is_ended {
            return;
        }
        (inner.result, inner.is_ended) = (Some(result), true);
        let waker = inner.waker.take();
        drop(inner);
        self.ended.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Pending<T> {
    /// A future and its completion, for implementations of [`crate::Storage`].
    pub fn new() -> (Completion<T>, Pending<T>) {
        let inner = Inner { result: None, waker: None, is_ended: false };
        let shared = Arc::new(Shared { inner: Mutex::new(inner), ended: Condvar::new() });
        (Completion { shared: shared.clone() }, Pending { shared })
    }

    /// One that has ended.
    pub fn ended(result: io::Result<T>) -> Pending<T> {
        let (completion, pending) = Pending::new();
        completion.end(result);
        pending
    }

    /// Returns whether it has ended, for callbacks, which do not await.
    pub fn is_ended(&self) -> bool {
        self.shared.lock().is_ended
    }

    /// Blocks until it has ended; for threads that serve no endpoint. In the simulator, where nothing
    /// happens meanwhile, it never returns.
    ///
    /// # Errors
    /// That of the operation.
    pub fn wait(self) -> io::Result<T> {
        let mut inner = self.shared.lock();
        loop {
            if let Some(result) = inner.result.take() {
                return result;
            }
            inner = self.shared.ended.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = io::Result<T>;

    /// # Panics
    /// A poll after the result was returned.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let mut inner = self.shared.lock();
        if let Some(result) = inner.result.take() {
            return Poll::Ready(result);
        }
        assert!(!inner.is_ended, "a future was polled after its end");
        match &mut inner.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl<T> Completion<T> {
    /// Ends the future.
    pub fn end(self, result: io::Result<T>) {
        self.shared.end(result);
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        let lost = || {
            let text =
                "the storage ended before the operation did; open it again and read what is there";
            io::Error::new(io::ErrorKind::Interrupted, text)
        };
        self.shared.end(Err(lost()));
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("is_ended", &self.is_ended()).finish()
    }
}

impl<T> fmt::Debug for Completion<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_last_waker_is_woken_once_and_the_result_returned() {
        let (completion, mut pending) = Pending::new();
        let counts = [Arc::<Count>::default(), Arc::default()];
        for count in &counts {
            let waker = Waker::from(count.clone());
            let polled = Pin::new(&mut pending).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending() && !pending.is_ended());
        }
        completion.end(Ok(7));
        assert_eq!(counts.map(|count| count.0.load(Ordering::Relaxed)), [0, 1]);
        assert!(pending.is_ended());
        let polled = Pin::new(&mut pending).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Ok(7))));
    }

    #[test]
    fn a_dropped_completion_ends_with_an_error() {
        let (completion, pending) = Pending::<()>::new();
        drop(completion);
        assert_eq!(pending.wait().unwrap_err().kind(), io::ErrorKind::Interrupted);
    }

    #[test]
    fn another_thread_ends_a_wait() {
        let (completion, pending) = Pending::new();
        let thread = std::thread::spawn(|| pending.wait());
        completion.end(Ok(3));
        assert_eq!(thread.join().unwrap().unwrap(), 3);
    }
}
