//! The submissions of the futures of clients to the thread of an endpoint.
//!
//! One queue under one lock, which the thread swaps for an empty one. Its length is bounded by the
//! number of futures that exist: entries of dropped futures are removed when there are many, and
//! have freed their requests before.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, PoisonError};

use courser_net::ThisProcess;

use crate::channel::call::{Call, Dropped};
use crate::channel::link::Open;
use crate::control::mailbox::Mailbox;
use crate::error::failure::CallFailure;
use crate::sync::{Mutex, MutexGuard};

#[cfg(all(loom, test))]
mod model;

/// Entries of dropped futures that may stay in a queue before it is searched for them.
pub(super) const DROPPED_KEPT: usize = 1_024;

/// Submissions in their order.
#[derive(Default)]
pub(super) struct Submitted {
    pub(super) opens: Vec<Open>,
    pub(super) calls: Vec<Arc<Call>>,
    /// Calls whose futures were dropped while they ran.
    pub(super) cancels: Vec<Arc<Call>>,
    /// Clients that were dropped.
    pub(super) closes: Vec<usize>,
    /// Calls whose futures were dropped before they started.
    dropped: usize,
    /// The same, since the queue was last searched for them.
    unsearched: usize,
}

impl Submitted {
    /// The number of calls whose futures were dropped before they started.
    pub(super) fn take_dropped(&mut self) -> usize {
        self.unsearched = 0;
        std::mem::take(&mut self.dropped)
    }

    fn is_empty(&self) -> bool {
        self.opens.is_empty()
            && self.calls.is_empty()
            && self.cancels.is_empty()
            && self.closes.is_empty()
    }
}

#[derive(Default)]
struct Queue {
    submitted: Submitted,
    /// The thread has ended, or is about to.
    closed: bool,
}

/// The queue to the thread of an endpoint.
pub(super) struct Inbox {
    queue: Mutex<Queue>,
    mailbox: Mailbox,
    process: ThisProcess,
}

impl Inbox {
    pub(super) fn new(mailbox: Mailbox) -> Self {
        Inbox { queue: Mutex::default(), mailbox, process: ThisProcess::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Only a failed allocation panics under this lock, and it leaves the queue intact.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In a forked process there is no thread, and the lock may have been held.
    pub(super) fn was_forked(&self) -> bool {
        self.process.was_forked()
    }

    /// Returns whether the thread has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.was_forked() || self.lock().closed
    }

    /// # Errors
    /// The thread has ended.
    pub(super) fn call(&self, call: &Arc<Call>) -> Result<(), CallFailure> {
        self.add(|submitted| submitted.calls.push(call.clone()))
    }

    /// # Errors
    /// The thread has ended.
    pub(super) fn open(&self, open: Open) -> Result<(), CallFailure> {
        self.add(|submitted| submitted.opens.push(open))
    }

    /// Closes the sessions of a client.
    pub(super) fn close(&self, link: usize) {
        let _ = self.add(|submitted| submitted.closes.push(link));
    }

    /// The future of a call was dropped.
    pub(super) fn drop_call(&self, call: &Arc<Call>) {
        if self.was_forked() {
            return;
        }
        match call.abandon() {
            Dropped::Done => {}
            Dropped::Running => {
                let _ = self.add(|submitted| submitted.cancels.push(call.clone()));
            }
            Dropped::Waiting => self.drop_waiting(),
        }
    }

    fn drop_waiting(&self) {
        let mut queue = self.lock();
        let submitted = &mut queue.submitted;
        submitted.dropped += 1;
        submitted.unsearched += 1;
        if submitted.unsearched < DROPPED_KEPT.max(submitted.calls.len() / 2) {
            return;
        }
        // The thread may have some of them, and searches its own queues when it learns of them.
        submitted.unsearched = 0;
        let calls = std::mem::take(&mut submitted.calls);
        let (over, live): (Vec<_>, Vec<_>) = calls.into_iter().partition(|call| call.is_over());
        submitted.calls = live;
        drop(queue);
        drop(over);
        self.mailbox.submitted();
    }

    fn add(&self, f: impl FnOnce(&mut Submitted)) -> Result<(), CallFailure> {
        if self.was_forked() {
            return Err(CallFailure::Forked);
        }
        let mut queue = self.lock();
        if queue.closed {
            return Err(CallFailure::Stopped);
        }
        f(&mut queue.submitted);
        drop(queue);
        self.mailbox.submitted();
        Ok(())
    }

    /// See [`Mailbox::try_drive`].
    #[inline]
    pub(super) fn try_drive(&self) -> bool {
        self.mailbox.try_drive()
    }

    /// See [`Mailbox::leave`].
    #[inline]
    pub(super) fn leave(&self) -> bool {
        self.mailbox.leave()
    }

    /// See [`Mailbox::has_submitted`].
    #[inline]
    pub(super) fn has_submitted(&self) -> bool {
        self.mailbox.has_submitted()
    }

    /// Makes the thread that drives look for a successor once more.
    pub(super) fn nudge(&self) {
        self.mailbox.submitted();
    }

    /// Returns whether there is mail of the control thread.
    pub(super) fn has_mail(&self) -> bool {
        self.mailbox.has_mail()
    }

    /// The descriptor that is readable while there is mail.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.mailbox.fd()
    }

    /// Swaps the queue for `empty`, whose memory is used again. False: nothing was submitted.
    #[inline]
    pub(super) fn take(&self, empty: &mut Submitted) -> bool {
        if !self.mailbox.take_submitted() {
            return false;
        }
        std::mem::swap(&mut self.lock().submitted, empty);
        true
    }

    /// Refuses submissions from now on, and returns the last ones. `only_if_empty`: unless there
    /// are some.
    pub(super) fn end(&self, only_if_empty: bool) -> Option<Submitted> {
        let mut queue = self.lock();
        if only_if_empty && !queue.submitted.is_empty() {
            return None;
        }
        queue.closed = true;
        Some(std::mem::take(&mut queue.submitted))
    }

    /// Wakes the thread, which has been told to end.
    pub(super) fn wake(&self) {
        self.mailbox.wake();
    }
}
