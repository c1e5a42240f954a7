//! The handlers of an endpoint that are in progress, so that they can be cancelled.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use courser_proto::{Endpoint, RequestId};
use slab::Slab;

use crate::core::by_request::ByRequest;
use crate::core::continuations::Cont;
use crate::core::shares::Place;
use crate::panics::wake_all;
use crate::service::Watched;
use crate::sync::{AtomicUsize, Mutex, MutexGuard};

#[cfg(all(loom, test))]
mod model;

/// A handler in progress.
struct Entry {
    /// `None`: of a message.
    id: Option<RequestId>,
    /// In the endpoint's time; `u64::MAX`: never.
    expires_ns: u64,
    /// The waker of its task, after its first poll.
    waker: Option<Waker>,
    cancelled: bool,
}

/// The handlers of one endpoint.
#[derive(Default)]
pub(super) struct Running {
    entries: Mutex<Slab<Entry>>,
    /// Times that handlers were cancelled. Written under the lock.
    cancels: AtomicUsize,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, Slab<Entry>> {
        // Only a failed allocation panics under this lock, and it leaves the entries intact.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handler begins.
    pub(super) fn begin(
        self: &Arc<Self>,
        id: Option<RequestId>,
        expires_ns: u64,
        place: Place,
    ) -> Ticket {
        let entry = Entry { id, expires_ns, waker: None, cancelled: false };
        let cancels = self.cancels.load(Ordering::Relaxed);
        let key = self.lock().insert(entry);
        Ticket { running: self.clone(), key, cancels: Some(cancels), place }
    }

    /// Cancels the handler of a request, which had this key.
    fn cancel_request(&self, key: u32, id: RequestId) {
        let mut entries = self.lock();
        let entry = entries.get_mut(key as usize).filter(|entry| entry.id == Some(id));
        let Some(entry) = entry.filter(|entry| !entry.cancelled) else { return };
        entry.cancelled = true;
        let waker = entry.waker.take();
        self.cancels.fetch_add(1, Ordering::Relaxed);
        drop(entries);
        wake_all(waker);
    }

    /// Cancels the handlers that `is_over` selects. Their tasks drop them.
    fn cancel(&self, mut is_over: impl FnMut(&Entry) -> bool) {
        let mut entries = self.lock();
        let over = entries.iter_mut().filter_map(|(_, entry)| {
            if entry.cancelled || !is_over(entry) {
                return None;
            }
            entry.cancelled = true;
            entry.waker.take()
        });
        let wakers: Vec<_> = over.collect();
        self.cancels.fetch_add(1, Ordering::Relaxed);
        drop(entries);
        wake_all(wakers);
    }
}

/// The entry of a handler, which its drop removes.
pub(super) struct Ticket {
    running: Arc<Running>,
    key: usize,
    /// [`Running::cancels`] when it began, until its first poll.
    cancels: Option<usize>,
    /// Among the handlers in progress.
    place: Place,
}

impl Ticket {
    /// Before a poll: whether the handler is to be dropped.
    #[inline]
    pub(super) fn is_cancelled(&mut self) -> bool {
        // Most handlers have just begun, and `wait` finds out; others have waited for their runtime.
        let now = self.running.cancels.load(Ordering::Relaxed);
        self.cancels.take() != Some(now)
            && self.running.lock().get(self.key).is_none_or(|entry| entry.cancelled)
    }

    /// States whether the handler is cancelled, until it ends.
    pub(super) fn watched(&self) -> Arc<dyn Watched> {
        Arc::new(InProgress { running: self.running.clone(), key: self.key })
    }

    /// The handler panicked.
    pub(super) fn count_panic(&self) {
        self.place.count_panic();
    }

    /// After a poll without a result: wakes the task when the handler is cancelled. True: it was.
    pub(super) fn wait(&self, waker: &Waker) -> bool {
        let mut entries = self.running.lock();
        let Some(entry) = entries.get_mut(self.key) else { return true };
        let cancelled = entry.cancelled;
        let known = entry.waker.as_ref().is_some_and(|known| known.will_wake(waker));
        let old = if known { None } else { entry.waker.replace(waker.clone()) };
        drop(entries);
        drop(old);
        cancelled
    }
}

/// A handler in progress, as its context sees it.
struct InProgress {
    running: Arc<Running>,
    key: usize,
}

impl fmt::Debug for InProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProgress").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Watched for InProgress {
    fn is_cancelled(&self) -> bool {
        self.running.lock().get(self.key).is_some_and(|entry| entry.cancelled)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let entry = self.running.lock().try_remove(self.key);
        drop(entry);
    }
}

/// Interval of searches for handlers to cancel, ns, as each visits all of them.
const SEARCH_INTERVAL_NS: u64 = 500_000;

/// Time after its deadline until a handler is dropped, ns. The estimate of the deadline is early by up
/// to a round trip; its client should notice it first, and not receive the answer that there is none.
const LATE_NS: u64 = 1_000_000;

/// The endpoint's side: when to search for handlers to cancel.
pub(super) struct Watch {
    running: Arc<Running>,
    /// The first deadline that may not have been noticed, ns; `u64::MAX`: none.
    due_ns: Cell<u64>,
    /// The keys of handlers by their requests.
    keys: RefCell<ByRequest>,
    searched_ns: Cell<u64>,
    /// Handlers that have begun.
    begun: Cell<u64>,
    /// Handlers that have ended on the endpoint's thread, in their first poll.
    ended_here: Cell<u64>,
}

impl Watch {
    pub(super) fn new(running: Arc<Running>) -> Self {
        let zero = || Cell::new(0);
        Watch {
            running,
            due_ns: Cell::new(u64::MAX),
            keys: RefCell::default(),
            searched_ns: zero(),
            begun: zero(),
            ended_here: zero(),
        }
    }

    pub(super) fn begin(&self, id: Option<RequestId>, expires_ns: u64, place: Place) -> Ticket {
        let expires_ns = expires_ns.saturating_add(LATE_NS);
        self.due_ns.set(self.due_ns.get().min(expires_ns));
        self.begun.set(self.begun.get() + 1);
        let ticket = self.running.begin(id, expires_ns, place);
        if let Some(id) = id {
            self.keys.borrow_mut().set(id, ticket.key as u32);
        }
        ticket
    }

    /// Cancels the handler of a request that its client gave up, unless it has answered.
    pub(super) fn cancelled(&self, endpoint: &Endpoint<Cont>, id: RequestId) {
        let key = self.keys.borrow().get(id);
        if let Some(key) = key.filter(|_| endpoint.is_abandoned(id)) {
            self.running.cancel_request(key, id);
        }
    }

    /// Handlers that have begun so far.
    #[inline]
    pub(super) fn begun(&self) -> u64 {
        self.begun.get()
    }

    /// A handler has ended in its first poll, on this thread.
    #[inline]
    pub(super) fn ended_here(&self) {
        self.ended_here.set(self.ended_here.get() + 1);
    }

    /// Handlers that have ended so.
    #[inline]
    pub(super) fn count_ended_here(&self) -> u64 {
        self.ended_here.get()
    }

    /// When to call [`Watch::search`]; `u64::MAX`: there is no reason.
    #[inline]
    pub(super) fn due_ns(&self) -> u64 {
        match self.due_ns.get() {
            u64::MAX => u64::MAX,
            due_ns => due_ns.max(self.searched_ns.get() + SEARCH_INTERVAL_NS),
        }
    }

    /// Cancels the handlers that have expired and not answered.
    pub(super) fn search(&self, endpoint: &mut Endpoint<Cont>, now_ns: u64) {
        self.searched_ns.set(now_ns);
        let mut due_ns = u64::MAX;
        self.running.cancel(|entry| match entry.id {
            _ if entry.expires_ns > now_ns => {
                due_ns = due_ns.min(entry.expires_ns);
                false
            }
            // A handler may go on after its answer.
            Some(id) => endpoint.is_answerable(id),
            None => true,
        });
        self.due_ns.set(due_ns);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The endpoint is gone, and nothing sends the answers.
        self.running.cancel(|_| true);
    }
}
