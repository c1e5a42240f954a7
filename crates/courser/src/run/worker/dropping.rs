//! The status of requests that are dropped with the future of their handler.

use std::cell::Cell;

use courser_proto::Status;

thread_local! {
    static STATUS: Cell<Option<Status>> = const { Cell::new(None) };
}

/// The status of unanswered requests that this thread drops now, if a handler has not ended.
pub(super) fn status() -> Option<Status> {
    STATUS.get()
}

/// Runs `drops`, which drops a handler that has not ended: it answers the requests that it owns with
/// `status`.
pub(crate) fn drop_as(status: Status, drops: impl FnOnce()) {
    /// Sets the earlier status, also after a panic.
    struct Before(Option<Status>);
    impl Drop for Before {
        fn drop(&mut self) {
            STATUS.set(self.0);
        }
    }
    let _before = Before(STATUS.replace(Some(status)));
    drops();
}
