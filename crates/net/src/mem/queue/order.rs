//! The memory orders of the queue, which a model can break one at a time.

#[cfg(not(all(loom, test)))]
use std::sync::atomic::Ordering;

/// A rule that a model breaks: the model has to fail then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The publication of a frame does not release.
    Publish,
    /// The look for a frame does not acquire.
    Peek,
    /// The receiver's count does not release.
    Report,
    /// Senders do not acquire the receiver's count.
    Taken,
}

/// The order of an access, unless a model breaks it.
#[cfg(not(all(loom, test)))]
#[inline]
pub(super) fn unless(_: Fault, order: Ordering) -> Ordering {
    order
}

#[cfg(all(loom, test))]
pub(super) use broken::{FAULT, unless};

#[cfg(all(loom, test))]
mod broken {
    use std::cell::Cell;
    use std::sync::atomic::Ordering;

    use super::Fault;

    thread_local! {
        /// Per operating system thread: loom runs all threads of a model on one.
        pub(in super::super) static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    pub(in super::super) fn unless(fault: Fault, order: Ordering) -> Ordering {
        if FAULT.get() == Some(fault) { Ordering::Relaxed } else { order }
    }
}
