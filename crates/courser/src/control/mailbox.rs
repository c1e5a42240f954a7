//! One endpoint's mailbox, and the way to wake its thread.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::Mail;

/// Messages of peers that may wait for an endpoint.
pub(super) const MAIL_MAX: usize = 65_536;

/// One endpoint's mailbox: filled by the control thread, emptied by the endpoint's thread.
///
/// To sleep, an endpoint polls [`Mailbox::wake_fd`]; when it is readable, first
/// [`Mailbox::clear_wake`], then [`Mailbox::take`]: mail posted in between wakes again.
#[derive(Clone)]
pub(crate) struct Mailbox {
    shared: Arc<Shared>,
}

struct Shared {
    /// Whether `mail` has any; written under its lock.
    flag: AtomicBool,
    mail: Mutex<Vec<Mail>>,
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

    fn lock(&self) -> MutexGuard<'_, Vec<Mail>> {
        // Nothing panics under this lock but a failed allocation, which leaves the list whole.
        self.shared.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is mail: one load.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.shared.flag.load(Ordering::Acquire)
    }

    /// Moves all mail to the end of `out`, oldest first.
    pub(crate) fn take(&self, out: &mut Vec<Mail>) {
        let mut mail = self.lock();
        out.append(&mut mail);
        self.shared.flag.store(false, Ordering::Release);
    }

    /// Adds mail and wakes the endpoint. False when the mailbox is full: then nothing is added.
    ///
    /// Only messages of peers are counted against the limit. A dial's answer is bounded by the
    /// dials of this endpoint, and a lost connection by the connections whose mail it has had.
    /// Without those two an endpoint would wait for ever.
    pub(crate) fn post(&self, mail: Mail) -> bool {
        {
            let mut list = self.lock();
            if list.len() >= MAIL_MAX && matches!(mail, Mail::Msg { .. }) {
                return false;
            }
            list.push(mail);
            self.shared.flag.store(true, Ordering::Release);
        }
        self.wake();
        true
    }

    /// Wakes the endpoint's thread, from any thread.
    pub(crate) fn wake(&self) {
        // Fails only when the counter is at its end, and then the thread is being woken already.
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
    }

    /// Wakes the endpoint's thread as if there were mail: its event loop takes the wake-up back.
    pub(crate) fn nudge(&self) {
        self.shared.flag.store(true, Ordering::Release);
        self.wake();
    }

    /// Readable after [`Mailbox::wake`], until [`Mailbox::clear_wake`].
    pub(crate) fn wake_fd(&self) -> RawFd {
        self.shared.wake.as_fd().as_raw_fd()
    }

    /// Takes the wake-up back, after a sleep.
    pub(crate) fn clear_wake(&self) {
        // Fails only when there was none.
        let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
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
