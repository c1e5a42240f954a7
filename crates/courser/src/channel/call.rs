//! The state of one call or one-way message of a [`super::Client`], shared by its future and the
//! thread of the endpoint: one allocation.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::Instant;

use courser_buf::MsgBuf;
use courser_proto::{CallId, RejectReason};

use crate::channel::method::{MARKED, METADATA, MethodId, Numbers};
use crate::error::CallRejected;
use crate::error::failure::CallFailure;
use crate::error::method::MethodMismatch;
use crate::sync::{AtomicBool, Mutex, MutexGuard};

/// The result of a call: a response, or `None` of a message.
pub(crate) type Outcome = Result<Option<MsgBuf>, CallFailure>;

/// Where a call or message goes, and how long it may wait: see [`Call`].
pub(crate) struct Target {
    pub(crate) link: usize,
    pub(crate) method: MethodId,
    pub(crate) one_way: bool,
    pub(crate) wait_for_ready: bool,
    pub(crate) expires: Option<Instant>,
}

/// A call or message.
pub(crate) struct Call {
    /// The client's number at its endpoint.
    pub(crate) link: usize,
    pub(crate) method: MethodId,
    pub(crate) one_way: bool,
    /// It waits for a session where others fail at once.
    pub(crate) wait_for_ready: bool,
    pub(crate) expires: Option<Instant>,
    /// Set with [`Stage::Done`], for callers that spin.
    done: AtomicBool,
    /// Its task will drive the endpoint when it is polled: see `client/endpoint.rs`.
    pub(crate) comes: AtomicBool,
    /// Its metadata was removed for a server that does not read it.
    bare: AtomicBool,
    progress: Mutex<Progress>,
}

struct Progress {
    stage: Stage,
    /// The waker of the task that awaits the result.
    waker: Option<Waker>,
}

enum Stage {
    /// Not started.
    Waiting(MsgBuf),
    /// The endpoint has the request.
    Running(CallId),
    Done(Outcome),
    /// The future has the result, or was dropped.
    Over,
}

/// The outcome of submitting a request.
pub(crate) enum Started {
    /// The protocol has the call.
    Running,
    /// The protocol has the message, and this is the task to be woken.
    Sent(Option<Waker>),
    /// It was refused, and waits as before.
    Refused(RejectReason),
    /// The future was dropped.
    Over,
}

/// The progress of a call whose future was dropped.
pub(crate) enum Dropped {
    Waiting,
    Running,
    Done,
}

impl Call {
    pub(crate) fn new(target: Target, request: MsgBuf, waker: Option<Waker>) -> Self {
        let Target { link, method, one_way, wait_for_ready, expires } = target;
        let progress = Mutex::new(Progress { stage: Stage::Waiting(request), waker });
        let done = AtomicBool::new(false);
        let comes = AtomicBool::new(false);
        let bare = AtomicBool::new(false);
        Call { link, method, one_way, wait_for_ready, expires, done, comes, bare, progress }
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        // Nothing panics between two changes that belong together.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- the future ---------------------------------------------------------------------------

    /// Returns whether [`Call::poll`] returns a result: one load.
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Removes the waker: the task itself looks for the result, by [`Call::poll`] at last.
    pub(crate) fn take_waker(&self) -> Option<Waker> {
        self.lock().waker.take()
    }

    /// The result, or the task is woken when it is there.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Outcome> {
        let mut p = self.lock();
        if !matches!(p.stage, Stage::Done(_)) {
            let known = p.waker.as_ref().is_some_and(|known| known.will_wake(waker));
            let old = if known { None } else { p.waker.replace(waker.clone()) };
            drop(p);
            drop(old); // may run code of the application
            return Poll::Pending;
        }
        let stage = std::mem::replace(&mut p.stage, Stage::Over);
        drop(p);
        match stage {
            Stage::Done(outcome) => Poll::Ready(outcome),
            _ => Poll::Pending,
        }
    }

    /// The task that awaits the result, if it has been polled.
    pub(crate) fn waker(&self) -> Option<Waker> {
        self.lock().waker.clone()
    }

    /// Stores the waker without a look for the result.
    #[cfg(all(loom, test))]
    pub(crate) fn poll_late(&self, waker: &Waker) {
        self.lock().waker = Some(waker.clone());
    }

    /// The future was dropped: the request or the result is freed.
    pub(crate) fn abandon(&self) -> Dropped {
        let mut p = self.lock();
        let stage = std::mem::replace(&mut p.stage, Stage::Over);
        let dropped = match &stage {
            Stage::Waiting(_) => Dropped::Waiting,
            Stage::Done(_) | Stage::Over => Dropped::Done,
            Stage::Running(id) => {
                p.stage = Stage::Running(*id);
                Dropped::Running
            }
        };
        let waker = p.waker.take();
        drop(p);
        drop((stage, waker));
        dropped
    }

    // ---- the endpoint's thread ----------------------------------------------------------------

    /// Returns whether the future was dropped before the call started.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.lock().stage, Stage::Over)
    }

    /// The request type of a call with metadata at a server with these numbers. The call goes on without
    /// its metadata if the server does not read it, also at other servers.
    #[cold]
    pub(crate) fn address(
        &self,
        numbers: &Numbers,
        write: fn(&mut MsgBuf, &Numbers, u16) -> Result<u16, MethodMismatch>,
    ) -> Result<u16, MethodMismatch> {
        let index = self.method.number;
        let mut p = self.lock();
        match &mut p.stage {
            Stage::Waiting(request) if index & MARKED != 0 => {
                if self.bare.load(Ordering::Relaxed) {
                    return numbers.number(index);
                }
                let req_type = write(request, numbers, index)?;
                self.bare.store(req_type != METADATA, Ordering::Relaxed);
                Ok(req_type)
            }
            _ => numbers.number(index),
        }
    }

    /// Passes the request to `start` if it still waits.
    pub(crate) fn start(
        &self,
        start: impl FnOnce(MsgBuf) -> Result<Option<CallId>, CallRejected>,
    ) -> Started {
        let mut p = self.lock();
        match std::mem::replace(&mut p.stage, Stage::Over) {
            Stage::Waiting(request) => match start(request) {
                Ok(Some(id)) => {
                    p.stage = Stage::Running(id);
                    Started::Running
                }
                Ok(None) => {
                    p.stage = Stage::Done(Ok(None));
                    self.done.store(true, Ordering::Release);
                    Started::Sent(p.waker.take())
                }
                Err(CallRejected { reason, request }) => {
                    p.stage = Stage::Waiting(request);
                    Started::Refused(reason)
                }
            },
            other => {
                p.stage = other;
                Started::Over
            }
        }
    }

    /// The number of a running call, to cancel it.
    pub(crate) fn running(&self) -> Option<CallId> {
        match self.lock().stage {
            Stage::Running(id) => Some(id),
            _ => None,
        }
    }

    /// Stores the result, and returns the task to be woken. The result is dropped if nothing waits
    /// for it.
    pub(crate) fn finish(&self, outcome: Outcome) -> Option<Waker> {
        let mut p = self.lock();
        if let Stage::Over | Stage::Done(_) = p.stage {
            drop(p);
            return None; // `outcome` is dropped without the lock
        }
        let before = std::mem::replace(&mut p.stage, Stage::Done(outcome));
        self.done.store(true, Ordering::Release);
        let waker = p.waker.take();
        drop(p);
        drop(before);
        waker
    }
}
