//! The mailbox of an endpoint, with the wake-up of its thread.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};

use self::descriptor::Descriptor;
use courser_buf::MsgBuf;
use courser_proto::{RequestId, Status};

use super::mail::Mail;
use crate::machine::{Machine, Thread};
use crate::platform::Platform;
use crate::sync::{AtomicU8, Mutex, MutexGuard};

mod descriptor;
#[cfg(all(loom, test))]
pub(crate) mod model;

/// Limit of queued control messages of peers.
pub(super) const MAIL_MAX: usize = 65_536;

/// Messages that an endpoint takes in one pass of its event loop.
pub(super) const MAIL_PER_PASS: usize = 32;

/// Worker answers that an endpoint takes in one pass, which costs about 10 us.
const ANSWERS_PER_PASS: usize = 64;

/// Mail, an answer or a wake-up is pending.
const PENDING: u8 = 1;
/// The endpoint's thread sleeps on the descriptor, or is about to.
const ASLEEP: u8 = 2;
/// An external event loop polls the descriptor and may sleep at any time.
const EXTERNAL: u8 = 4;
/// The endpoint is gone and takes no more answers.
const CLOSED: u8 = 8;
/// A queue that the endpoint's thread has beside the mailbox is not empty.
const SUBMITTED: u8 = 16;
/// A thread drives the endpoint, and takes what is submitted before it leaves.
const DRIVEN: u8 = 32;

/// The answer to one request, sent to the endpoint's thread.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) id: RequestId,
    pub(crate) outcome: AnswerBody,
}

/// A response or an error status.
#[derive(Debug)]
pub(crate) enum AnswerBody {
    Response(MsgBuf),
    Status(Status),
}

impl AnswerBody {
    /// The bytes of a response, or the status.
    pub(crate) fn answer(&self) -> Result<&[u8], Status> {
        match self {
            AnswerBody::Response(response) => Ok(response),
            AnswerBody::Status(status) => Err(*status),
        }
    }
}

/// The mailbox of one endpoint: the control thread and workers add to it, the endpoint's thread
/// takes from it.
///
/// Mail of the control thread and explicit wake-ups always make the descriptor readable. Worker
/// answers do so only when the endpoint sleeps or an external event loop polls the descriptor, so
/// they cost no system call while the endpoint spins.
///
/// Invariants, whenever the lock is free:
/// 1. The descriptor is readable if and only if `signalled` is set, and then [`PENDING`] is set. An
///    external event loop sleeps on the descriptor and checks the flag, so a descriptor that stays
///    readable without mail would cause a busy loop.
/// 2. `signalled` is set while [`PENDING`] and [`EXTERNAL`] are set. It is also set while
///    [`PENDING`] and [`ASLEEP`] are set, unless the endpoint's thread set [`ASLEEP`] last and sees
///    [`PENDING`] in the same operation ([`Mailbox::fall_asleep`]). All flags are in one atomic, so
///    the second of the two threads sees the flag of the first, and no wake-up is lost.
///
/// A simulated machine has no descriptor. It is notified when something is added to an empty
/// mailbox, and polls the endpoint until the mailbox is empty.
#[derive(Clone)]
pub(crate) struct Mailbox {
    shared: Arc<Shared>,
}

struct Shared {
    flags: AtomicU8,
    inbox: Mutex<Inbox>,
    wake: Wake,
}

/// The wake-up of the endpoint's thread.
enum Wake {
    Fd(Descriptor),
    /// The simulated machine, weak because it may own the mailbox, and the endpoint's number.
    Machine(Weak<dyn Machine>, u16),
}

#[derive(Default)]
struct Inbox {
    mail: VecDeque<Mail>,
    /// At most one per request that workers have.
    answers: VecDeque<Answer>,
    /// The descriptor is readable, or the machine was notified.
    signalled: bool,
}

impl Mailbox {
    /// An empty mailbox for an endpoint.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub(crate) fn new(platform: &Platform, endpoint: u16) -> io::Result<Self> {
        let wake = match platform {
            Platform::System => Wake::Fd(Descriptor::new()?),
            Platform::Virtual(machine) => Wake::Machine(Arc::downgrade(machine), endpoint),
        };
        let shared = Shared { flags: AtomicU8::new(0), inbox: Mutex::default(), wake };
        Ok(Mailbox { shared: Arc::new(shared) })
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // Only a failed allocation panics under this lock, and it leaves the queues intact.
        self.shared.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flags(&self) -> u8 {
        self.shared.flags.load(Ordering::Acquire)
    }

    /// Returns whether there is mail or an answer: one load.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.flags() & PENDING != 0
    }

    /// Appends the oldest mail and answers to the lists: at most [`MAIL_PER_PASS`] messages and
    /// [`ANSWERS_PER_PASS`] answers, so that a flood does not delay packets. The flag and the
    /// wake-up stay set while the mailbox is not empty.
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
                fd.lower();
            }
        }
    }

    /// The number of waiting messages.
    #[cfg(test)]
    pub(crate) fn mail(&self) -> usize {
        self.lock().mail.len()
    }

    /// [`Mailbox::take_all`] for mailboxes without workers.
    #[cfg(test)]
    pub(crate) fn take(&self, mail: &mut Vec<Mail>) {
        self.take_all(mail, &mut Vec::new());
    }

    /// The mail that an endpoint has left at its end.
    pub(super) fn take_rest(&self) -> VecDeque<Mail> {
        std::mem::take(&mut self.lock().mail)
    }

    /// Adds mail and wakes the endpoint. Returns false, without adding it, when the mailbox is
    /// full.
    ///
    /// The limit applies only to messages of peers and to what they cause. Results of dials are bounded by the dials of
    /// this endpoint, and lost connections by the connections that it used. Dropping one of these
    /// would block the endpoint forever.
    pub(crate) fn post(&self, mail: Mail) -> bool {
        let mut inbox = self.lock();
        let is_limited =
            matches!(mail, Mail::Msg { .. } | Mail::Unanswered { .. } | Mail::Scarce { .. });
        if inbox.mail.len() >= MAIL_MAX && is_limited {
            return false;
        }
        inbox.mail.push_back(mail);
        self.raise(&mut inbox, true);
        true
    }

    /// Adds a worker's answer and wakes the endpoint if it sleeps. The answer is dropped when the
    /// endpoint is gone.
    pub(crate) fn post_answer(&self, answer: Answer) {
        let mut inbox = self.lock();
        if self.is_closed() {
            return;
        }
        inbox.answers.push_back(answer);
        self.raise(&mut inbox, false);
    }

    /// Wakes the endpoint's thread without mail; callable from any thread.
    pub(crate) fn wake(&self) {
        self.raise(&mut self.lock(), true);
    }

    /// Wakes the endpoint if it sleeps.
    pub(crate) fn wake_sleeper(&self) {
        self.raise(&mut self.lock(), false);
    }

    /// Declares that the queue beside the mailbox is not empty, after something was added to it. Costs
    /// a load while the thread has not taken what it was told of before, and a system call only when
    /// the thread sleeps.
    #[inline]
    pub(crate) fn submitted(&self) {
        if self.flags() & SUBMITTED != 0 {
            return;
        }
        let before = self.shared.flags.fetch_or(SUBMITTED, Ordering::AcqRel);
        // A simulated endpoint sleeps whenever it is not polled.
        if before & (ASLEEP | EXTERNAL) != 0 || matches!(self.shared.wake, Wake::Machine(..)) {
            self.wake_sleeper();
        }
    }

    /// Whether the queue beside the mailbox has something since the last call: to be called before it
    /// is emptied. One load when it has nothing.
    #[inline]
    pub(crate) fn take_submitted(&self) -> bool {
        if self.flags() & SUBMITTED == 0 {
            return false;
        }
        self.shared.flags.fetch_and(!SUBMITTED, Ordering::AcqRel);
        true
    }

    /// Begins to drive the endpoint, if no other thread does. A thread that was refused has submitted
    /// before: the other one takes that before it leaves ([`Mailbox::leave`]).
    #[inline]
    pub(crate) fn try_drive(&self) -> bool {
        self.flags() & DRIVEN == 0
            && self.shared.flags.fetch_or(DRIVEN, Ordering::AcqRel) & DRIVEN == 0
    }

    /// Ends driving. False: something was submitted, and this thread goes on.
    #[inline]
    pub(crate) fn leave(&self) -> bool {
        let leave = |flags: u8| (flags & SUBMITTED == 0).then_some(flags & !DRIVEN);
        self.shared.flags.fetch_update(Ordering::AcqRel, Ordering::Acquire, leave).is_ok()
    }

    /// [`Mailbox::leave`] in any case.
    #[cfg(all(loom, test))]
    pub(crate) fn leave_first(&self) {
        self.shared.flags.fetch_and(!DRIVEN, Ordering::AcqRel);
    }

    /// Returns whether the queue beside the mailbox has something.
    #[inline]
    pub(crate) fn has_submitted(&self) -> bool {
        self.flags() & SUBMITTED != 0
    }

    /// Sets the flag. Makes the descriptor readable when a thread may sleep on it, or if `always`
    /// is set. Simulated endpoints sleep whenever they are not polled.
    fn raise(&self, inbox: &mut Inbox, always: bool) {
        let before = self.shared.flags.fetch_or(PENDING, Ordering::AcqRel);
        let virtual_ = matches!(self.shared.wake, Wake::Machine(..));
        if always || virtual_ || before & (ASLEEP | EXTERNAL) != 0 {
            self.signal(inbox);
        }
    }

    fn signal(&self, inbox: &mut Inbox) {
        if std::mem::replace(&mut inbox.signalled, true) {
            return;
        }
        match &self.shared.wake {
            Wake::Fd(fd) => fd.raise(),
            Wake::Machine(machine, endpoint) => {
                if let Some(machine) = machine.upgrade() {
                    machine.wake(Thread::Endpoint(*endpoint));
                }
            }
        }
    }

    /// Declares that the endpoint's thread is about to sleep on the descriptor. Returns false when
    /// the mailbox or the queue beside it is not empty.
    pub(crate) fn fall_asleep(&self) -> bool {
        let before = self.shared.flags.fetch_or(ASLEEP, Ordering::AcqRel);
        let awake = before & (PENDING | SUBMITTED) != 0;
        if awake {
            self.wake_up();
        }
        !awake
    }

    /// Declares that the endpoint's thread polls the flag again.
    pub(crate) fn wake_up(&self) {
        self.shared.flags.fetch_and(!ASLEEP, Ordering::AcqRel);
    }

    /// Declares that an external event loop may sleep on the descriptor at any time from now on.
    /// Returns false when that was declared before.
    pub(crate) fn always_signal(&self) -> bool {
        if self.flags() & EXTERNAL != 0 {
            return false;
        }
        let mut inbox = self.lock();
        if self.shared.flags.fetch_or(EXTERNAL, Ordering::AcqRel) & PENDING != 0 {
            self.signal(&mut inbox);
        }
        true
    }

    /// Drops the queued answers and rejects further ones.
    pub(crate) fn close(&self) {
        let mut inbox = self.lock();
        self.shared.flags.fetch_or(CLOSED, Ordering::AcqRel);
        let answers = std::mem::take(&mut inbox.answers);
        drop(inbox);
        drop(answers);
    }

    /// Returns whether answers are dropped.
    pub(crate) fn is_closed(&self) -> bool {
        self.flags() & CLOSED != 0
    }

    /// Readable while there is mail, or an answer for an endpoint that may sleep. `None` on a
    /// simulated machine.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.shared.wake {
            Wake::Fd(fd) => Some(fd.fd()),
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
