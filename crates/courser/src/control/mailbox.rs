//! One endpoint's mailbox, and the way to wake its thread.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::{EventfdFlags, eventfd};

use super::Mail;
use crate::machine::{Machine, Thread};
use crate::platform::Platform;
use crate::worker::Answer;

/// Messages of peers that may wait for an endpoint.
pub(super) const MAIL_MAX: usize = 65_536;

/// Messages that an endpoint takes in one pass of its event loop.
pub(super) const MAIL_PER_PASS: usize = 32;

/// Answers of workers that an endpoint gives in one pass; some 10 us.
const ANSWERS_PER_PASS: usize = 64;

/// There is something to take.
const PENDING: u8 = 1;
/// The endpoint's thread sleeps on the descriptor, or is about to.
const ASLEEP: u8 = 2;
/// A foreign event loop has the descriptor, so that it may be slept on at any time.
const FOREIGN: u8 = 4;
/// The endpoint is gone, and takes no answers any more.
const CLOSED: u8 = 8;

/// One endpoint's mailbox: filled by the control thread and by workers, emptied by the endpoint's
/// thread.
///
/// Letters of the control thread and nudges always make the descriptor readable. Answers of
/// workers do so only for an endpoint that sleeps or may sleep unnoticed: one that spins costs
/// them no system call.
///
/// Invariants, whenever the lock is free:
/// 1. The descriptor is readable just when `signalled`, and then [`PENDING`] is set. A foreign
///    event loop sleeps on the descriptor and looks at the flag, so that a descriptor that stays
///    readable without reason would be a busy loop.
/// 2. With [`PENDING`] and [`FOREIGN`] it is signalled. With [`PENDING`] and [`ASLEEP`] it is too,
///    or the endpoint's thread has set [`ASLEEP`] last and sees [`PENDING`] in the same step
///    ([`Mailbox::fall_asleep`]). All flags are one word, so that of the poster and the sleeper
///    the second sees what the first did: no wake-up is lost.
///
/// On a simulated machine there is no descriptor. The machine is told of whatever comes into an
/// empty mailbox, and polls the endpoint until nothing is left.
#[derive(Clone)]
pub(crate) struct Mailbox {
    shared: Arc<Shared>,
}

struct Shared {
    flags: AtomicU8,
    inbox: Mutex<Inbox>,
    wake: Wake,
}

/// How the endpoint's thread is woken.
enum Wake {
    /// An eventfd.
    Fd(OwnedFd),
    /// A simulated machine, which may own this, and the endpoint's number.
    Machine(Weak<dyn Machine>, u16),
}

#[derive(Default)]
struct Inbox {
    mail: VecDeque<Mail>,
    /// At most one for each request that workers have.
    answers: VecDeque<Answer>,
    /// The descriptor is readable, or the machine was told.
    signalled: bool,
}

impl Mailbox {
    /// An empty mailbox for an endpoint.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub(crate) fn new(platform: &Platform, endpoint: u16) -> io::Result<Self> {
        let wake = match platform {
            Platform::System => {
                Wake::Fd(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
            }
            Platform::Virtual(machine) => Wake::Machine(Arc::downgrade(machine), endpoint),
        };
        let shared = Shared { flags: AtomicU8::new(0), inbox: Mutex::default(), wake };
        Ok(Mailbox { shared: Arc::new(shared) })
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // Nothing panics under this lock but a failed allocation, which leaves the lists whole.
        self.shared.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flags(&self) -> u8 {
        self.shared.flags.load(Ordering::Acquire)
    }

    /// Whether there is mail, or answers: one load.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.flags() & PENDING != 0
    }

    /// Moves mail and answers to the ends of the lists, oldest first, at most [`MAIL_PER_PASS`]
    /// letters and [`ANSWERS_PER_PASS`] answers, so that a flood of them cannot hold up packets.
    /// What is left keeps the flag and the wake-up.
    pub(crate) fn take_all(&self, mail: &mut Vec<Mail>, answers: &mut Vec<Answer>) {
        let mut inbox = self.lock();
        let n = inbox.mail.len().min(MAIL_PER_PASS);
        mail.extend(inbox.mail.drain(..n));
        let n = inbox.answers.len().min(ANSWERS_PER_PASS);
        answers.extend(inbox.answers.drain(..n));
        if inbox.mail.is_empty() && inbox.answers.is_empty() {
            self.shared.flags.fetch_and(!PENDING, Ordering::AcqRel);
            if std::mem::take(&mut inbox.signalled)
                && let Wake::Fd(fd) = &self.shared.wake
            {
                // Cannot fail: it is readable.
                let _ = rustix::io::read(fd, &mut [0; 8]);
            }
        }
    }

    /// [`Mailbox::take_all`] for mailboxes without workers.
    #[cfg(test)]
    pub(crate) fn take(&self, mail: &mut Vec<Mail>) {
        self.take_all(mail, &mut Vec::new());
    }

    /// Adds mail and wakes the endpoint. False when the mailbox is full: then nothing is added.
    ///
    /// Only messages of peers are counted against the limit. A dial's answer is bounded by the
    /// dials of this endpoint, and a lost connection by the connections whose mail it has had.
    /// Without those two an endpoint would wait for ever.
    pub(crate) fn post(&self, mail: Mail) -> bool {
        let mut inbox = self.lock();
        if inbox.mail.len() >= MAIL_MAX && matches!(mail, Mail::Msg { .. }) {
            return false;
        }
        inbox.mail.push_back(mail);
        self.raise(&mut inbox, true);
        true
    }

    /// Adds a worker's answer, and wakes the endpoint if it may sleep. Dropped when the endpoint
    /// is gone.
    pub(crate) fn post_answer(&self, answer: Answer) {
        let mut inbox = self.lock();
        if self.is_closed() {
            return;
        }
        inbox.answers.push_back(answer);
        self.raise(&mut inbox, false);
    }

    /// Wakes the endpoint's thread, from any thread, as if there were mail.
    pub(crate) fn nudge(&self) {
        self.raise(&mut self.lock(), true);
    }

    /// Sets the flag, and makes the descriptor readable when somebody may sleep on it, or
    /// `always`. Simulated endpoints sleep whenever they are not polled.
    fn raise(&self, inbox: &mut Inbox, always: bool) {
        let before = self.shared.flags.fetch_or(PENDING, Ordering::AcqRel);
        let virtual_ = matches!(self.shared.wake, Wake::Machine(..));
        if always || virtual_ || before & (ASLEEP | FOREIGN) != 0 {
            self.signal(inbox);
        }
    }

    fn signal(&self, inbox: &mut Inbox) {
        if std::mem::replace(&mut inbox.signalled, true) {
            return;
        }
        match &self.shared.wake {
            // Cannot fail: the counter was 0.
            Wake::Fd(fd) => drop(rustix::io::write(fd, &1u64.to_ne_bytes())),
            Wake::Machine(machine, endpoint) => {
                if let Some(machine) = machine.upgrade() {
                    machine.wake(Thread::Endpoint(*endpoint));
                }
            }
        }
    }

    /// Says that the endpoint's thread is about to sleep on the descriptor. False when there is
    /// something to take first.
    pub(crate) fn fall_asleep(&self) -> bool {
        let before = self.shared.flags.fetch_or(ASLEEP, Ordering::AcqRel);
        if before & PENDING != 0 {
            self.wake_up();
        }
        before & PENDING == 0
    }

    /// Says that the endpoint's thread looks at the flag again.
    pub(crate) fn wake_up(&self) {
        self.shared.flags.fetch_and(!ASLEEP, Ordering::AcqRel);
    }

    /// Says that the descriptor may be slept on at any time from now on.
    pub(crate) fn always_signal(&self) {
        if self.flags() & FOREIGN != 0 {
            return;
        }
        let mut inbox = self.lock();
        if self.shared.flags.fetch_or(FOREIGN, Ordering::AcqRel) & PENDING != 0 {
            self.signal(&mut inbox);
        }
    }

    /// Takes no more answers, and drops those that wait.
    pub(crate) fn close(&self) {
        let mut inbox = self.lock();
        self.shared.flags.fetch_or(CLOSED, Ordering::AcqRel);
        let answers = std::mem::take(&mut inbox.answers);
        drop(inbox);
        drop(answers);
    }

    /// Whether answers go nowhere.
    pub(crate) fn is_closed(&self) -> bool {
        self.flags() & CLOSED != 0
    }

    /// Readable while there is mail, or answers for an endpoint that may sleep. `None` on a
    /// simulated machine.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.shared.wake {
            Wake::Fd(fd) => Some(fd.as_fd()),
            Wake::Machine(..) => None,
        }
    }

    /// [`Mailbox::fd`] as a number.
    pub(crate) fn raw_fd(&self) -> Option<RawFd> {
        self.fd().map(|fd| fd.as_raw_fd())
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("has_mail", &self.has_mail()).finish_non_exhaustive()
    }
}
