//! Panics of handlers stay with the request that caused them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Runs a handler; true when it panicked, which is logged. The process's panic hook has run then.
///
/// Unwind safety is asserted: what a handler shares with others is its author's to keep whole, as
/// with any state that outlives a panic; Courser's own state is never borrowed half-changed while
/// a handler runs.
#[inline]
pub(crate) fn caught(kind: &'static str, req_type: u16, handler: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(handler)) {
        Ok(()) => false,
        Err(payload) => {
            report(kind, req_type, payload);
            true
        }
    }
}

/// Wakes tasks on a thread of this library, which the waker of another runtime must not end.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        caught("waker", 0, || waker.wake());
    }
}

fn report(kind: &'static str, req_type: u16, payload: Box<dyn Any + Send>) {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    tracing::error!(req_type, "a {kind} handler panicked: {}", text.unwrap_or("(no text)"));
    // A payload of the application's own type may panic once more when it is dropped.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics when it is dropped.
    struct Spiteful;

    impl Drop for Spiteful {
        fn drop(&mut self) {
            panic!("once more");
        }
    }

    #[test]
    fn a_waker_that_panics_keeps_no_other_task_asleep() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering};
        use std::task::Wake;

        struct Panics(AtomicUsize);
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
                panic!("on purpose");
            }
        }
        let woken = Arc::new(Panics(AtomicUsize::new(0)));
        wake_all((0..3).map(|_| Waker::from(woken.clone())));
        assert_eq!(woken.0.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn every_kind_of_payload_is_caught() {
        assert!(!caught("test", 1, || {}));
        assert!(caught("test", 1, || panic!("text")));
        assert!(caught("test", 1, || panic!("{}", 7)));
        assert!(caught("test", 1, || std::panic::panic_any(7)));
        assert!(caught("test", 1, || std::panic::panic_any(Spiteful)));
    }
}
