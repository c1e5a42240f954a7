//! The metadata of the request that this thread passes to its handler, and the metadata that calls of the
//! future that it polls have too.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::metadata::Metadata;
use super::trailer::Arrived;

thread_local! {
    static ARRIVED: RefCell<Option<Arc<Arrived>>> = const { RefCell::new(None) };
    /// Returns whether [`PASSED`] has metadata. Every typed call reads it.
    static PASSES: Cell<bool> = const { Cell::new(false) };
    static PASSED: RefCell<Option<Arc<Metadata>>> = const { RefCell::new(None) };
}

/// Returns whether calls of the future that is polled have metadata of the call that it is a part of.
#[inline]
pub(crate) fn passes() -> bool {
    PASSES.get()
}

/// The metadata that calls of the future that is polled have.
pub(crate) fn passed() -> Option<Arc<Metadata>> {
    PASSED.with_borrow(Clone::clone)
}

/// The metadata of the request that is passed to its handler.
pub(crate) fn arrived() -> Option<Arc<Arrived>> {
    ARRIVED.with_borrow(Clone::clone)
}

/// The metadata that is set again at the drop, also after a panic.
struct Before(Option<Arc<Metadata>>);

impl Drop for Before {
    fn drop(&mut self) {
        set(self.0.take());
    }
}

fn set(metadata: Option<Arc<Metadata>>) -> Option<Arc<Metadata>> {
    PASSES.set(metadata.is_some());
    PASSED.replace(metadata)
}

/// Runs `f`, whose calls have this metadata.
pub(crate) fn with<R>(metadata: Option<Arc<Metadata>>, f: impl FnOnce() -> R) -> R {
    let _before = Before(set(metadata));
    f()
}

/// Runs `f`, which passes a request with this metadata to its handler.
pub(crate) fn with_arrived<R>(arrived: Arc<Arrived>, f: impl FnOnce() -> R) -> R {
    /// Forgets the request at the drop, also after a panic.
    struct Forget;
    impl Drop for Forget {
        fn drop(&mut self) {
            ARRIVED.set(None);
        }
    }
    ARRIVED.set(Some(arrived));
    let _forget = Forget;
    f()
}

impl Arrived {
    /// The metadata that calls of the handler have too.
    pub(crate) fn passed(&self) -> Option<Arc<Metadata>> {
        Some(self.metadata.passed()).filter(|passed| !passed.is_empty()).map(Arc::new)
    }
}

pin_project_lite::pin_project! {
    /// A handler whose calls have metadata of its request.
    pub(crate) struct Passing<F> {
        passed: Arc<Metadata>,
        #[pin]
        future: F,
    }
}

impl<F: Future> Passing<F> {
    pub(crate) fn new(passed: Arc<Metadata>, future: F) -> Self {
        Passing { passed, future }
    }
}

impl<F: Future> Future for Passing<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        with(Some(this.passed.clone()), || this.future.poll(cx))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn metadata_lasts_as_long_as_the_poll_also_after_a_panic() {
        let mut metadata = Metadata::new();
        metadata.insert("baggage", "b").unwrap();
        let metadata = Arc::new(metadata);
        assert!(!passes());
        with(Some(metadata.clone()), || {
            assert!(passes() && passed() == Some(metadata.clone()));
            with(None, || assert!(!passes() && passed().is_none()));
            assert!(catch_unwind(|| with(None, || panic!("a handler"))).is_err());
            assert!(passes());
        });
        assert!(!passes() && passed().is_none());
        let arrived_now = Arc::new(Arrived { metadata: Metadata::new(), answers: true });
        let of_handler = arrived_now.clone();
        assert!(arrived_now.passed().is_none());
        let panicked = catch_unwind(move || {
            with_arrived(arrived_now, || {
                assert!(arrived().is_some_and(|arrived| arrived.answers));
                panic!("a handler")
            })
        });
        assert!(panicked.is_err() && arrived().is_none());
        drop(of_handler);
    }
}
