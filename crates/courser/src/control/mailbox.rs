//! One endpoint's mailbox, and the way to wake its thread.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::Mail;

/// Messages of peers that may wait for an endpoint.
pub(super) const MAIL_MAX: usize = 65_536;

/// Letters that an endpoint looks at in one pass of its event loop.
pub(super) const MAIL_PER_PASS: usize = 32;

/// One endpoint's mailbox: filled by the control thread, emptied by the endpoint's thread.
///
/// Invariant, whenever the lock is free: the descriptor is readable just when `flag` is set. A
/// foreign event loop sleeps on the descriptor and looks at the flag, so that one without the
/// other would be a lost wake-up or a busy loop.
#[derive(Clone)]
pub(crate) struct Mailbox {
    shared: Arc<Shared>,
}

struct Shared {
    /// Whether `mail` has any; written under its lock.
    flag: AtomicBool,
    mail: Mutex<VecDeque<Mail>>,
    wake: OwnedFd,
}

impl Mailbox {
    /// An empty mailbox.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub(crate) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Shared { flag: AtomicBool::new(false), mail: Mutex::default(), wake };
        Ok(Mailbox { shared: Arc::new(shared) })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Mail>> {
        // Nothing panics under this lock but a failed allocation, which leaves the list whole.
        self.shared.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is mail: one load.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.shared.flag.load(Ordering::Acquire)
    }

    /// Moves mail to the end of `out`, oldest first, at most [`MAIL_PER_PASS`] letters, so that a
    /// flood of them cannot hold up packets. What is left keeps the flag and the wake-up.
    pub(crate) fn take(&self, out: &mut Vec<Mail>) {
        let mut mail = self.lock();
        let n = mail.len().min(MAIL_PER_PASS);
        out.extend(mail.drain(..n));
        if mail.is_empty() {
            self.shared.flag.store(false, Ordering::Release);
            // Fails only when there was no wake-up.
            let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
        }
    }

    /// Adds mail and wakes the endpoint. False when the mailbox is full: then nothing is added.
    ///
    /// Only messages of peers are counted against the limit. A dial's answer is bounded by the
    /// dials of this endpoint, and a lost connection by the connections whose mail it has had.
    /// Without those two an endpoint would wait for ever.
    pub(crate) fn post(&self, mail: Mail) -> bool {
        let mut list = self.lock();
        if list.len() >= MAIL_MAX && matches!(mail, Mail::Msg { .. }) {
            return false;
        }
        list.push_back(mail);
        self.raise(&list);
        true
    }

    /// Wakes the endpoint's thread, from any thread, as if there were mail.
    pub(crate) fn nudge(&self) {
        self.raise(&self.lock());
    }

    /// Sets the flag and makes the descriptor readable; under the lock, as the guard shows.
    fn raise(&self, _locked: &VecDeque<Mail>) {
        if !self.shared.flag.swap(true, Ordering::AcqRel) {
            // Cannot fail: the counter was 0.
            let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        }
    }

    /// Readable while [`Mailbox::has_mail`].
    pub(crate) fn wake_fd(&self) -> RawFd {
        self.shared.wake.as_fd().as_raw_fd()
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("has_mail", &self.has_mail()).finish_non_exhaustive()
    }
}
