//! The tasks of an endpoint.
//!
//! A task has a slot with a waker that is made once. Wakers may outlive their task and then wake
//! the next one of the slot: a needless poll, which every future allows.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Wake, Waker};

use courser_buf::stats;
use courser_proto::{RequestId, SessionId};

use crate::control::mailbox::Mailbox;
use crate::core::by_request::ByRequest;
use crate::core::calls::{AwaitedCalls, Entry};
use crate::core::counting::Counting;
use crate::core::queue::{LocalFuture, LocalQueue, Waiter};
use crate::core::shares::{Entrance, Shares};
use crate::sync::{AtomicBool, Mutex};

#[cfg(all(loom, test))]
mod model;

stats! {
    /// Tasks, calls and messages of the futures of an endpoint.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut rpc = courser::Nexus::bind("udp://127.0.0.1:0")?.endpoint()?;
    /// let waiting = rpc.local().spawn(std::future::pending::<()>());
    /// rpc.poll();
    /// assert_eq!(rpc.task_stats().tasks, 1);
    /// # drop(waiting);
    /// # Ok(()) }
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    #[non_exhaustive]
    pub struct TaskStats: "tasks" {
        /// Tasks that have not ended: spawned ones, and handlers that wait.
        pub tasks: usize = gauge(tasks),
        /// Calls and messages of futures that have not ended, those of dropped futures included.
        pub calls: usize = gauge(calls),
        /// Calls and messages among them that wait for room in the queue of their session.
        pub queued: usize = gauge(calls),
    }
}

/// The place of the future of [`crate::Rpc::block_on`].
pub(crate) const MAIN: u32 = 0;

/// No slot.
const NONE: u32 = u32::MAX;

/// Tasks of other threads' wakers.
struct Woken {
    any: AtomicBool,
    slots: Mutex<Vec<u32>>,
    mailbox: Mailbox,
}

/// The waker of a slot.
pub(super) struct SlotWaker {
    slot: u32,
    /// Is in the list.
    queued: AtomicBool,
    woken: Arc<Woken>,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        self.woken.slots.lock().unwrap_or_else(PoisonError::into_inner).push(self.slot);
        self.woken.any.store(true, Ordering::Release);
        self.woken.mailbox.wake_sleeper();
    }
}

pub(super) struct Slot {
    pub(super) future: Option<LocalFuture>,
    pub(super) shared: Arc<SlotWaker>,
    /// A handle of `shared`; lent to the poll that runs.
    pub(super) waker: Option<Waker>,
    /// Is in `Tasks::ready`.
    pub(super) ready: bool,
    /// The last call or message that the task has started: its entry.
    pub(super) awaits: u32,
    /// The request that the task answers.
    pub(super) request: Option<RequestId>,
    /// Calls of the task end by then, ns; `u64::MAX`: it has no deadline.
    pub(super) deadline_ns: u64,
}

impl Slot {
    /// After a poll that has panicked.
    fn new_waker(&self) -> Waker {
        Waker::from(self.shared.clone())
    }
}

/// Most tasks of one-way messages. Those of requests are limited by the slots of their sessions.
const MOST_MESSAGES: usize = 16_384;

/// Futures that wait for a session to connect or fail.
#[derive(Default)]
pub(crate) struct Dials(pub(crate) Vec<(SessionId, Waiter)>);

impl Dials {
    #[inline]
    pub(crate) fn any(&self) -> bool {
        !self.0.is_empty()
    }
}

/// The tasks of an endpoint.
pub(crate) struct Tasks {
    pub(super) slots: Vec<Slot>,
    vacant: Vec<u32>,
    pub(super) ready: VecDeque<u32>,
    woken: Arc<Woken>,
    /// The endpoint's.
    pub(crate) queue: LocalQueue,
    /// The slot that is polled, [`NONE`] otherwise. A poll that has panicked did not reset it.
    current: u32,
    /// The data of its waker, and the deadline of its task.
    current_waker: usize,
    pub(crate) deadline_ns: u64,
    /// The future of `block_on` is to be polled.
    pub(crate) main_is_ready: bool,
    pub(crate) calls: AwaitedCalls,
    pub(crate) dials: Dials,
    /// The tasks that answer requests. Entries stay after the end of their task.
    by_request: ByRequest,
    live: usize,
    /// To the tasks of one-way messages.
    pub(crate) messages: Entrance,
    /// Handlers of typed methods that have ended in this burst.
    pub(crate) counting: Counting,
}

impl Tasks {
    pub(crate) fn new(mailbox: Mailbox, queue: LocalQueue, max_streams: usize) -> Self {
        let woken = Woken { any: AtomicBool::new(false), slots: Mutex::default(), mailbox };
        Tasks {
            slots: Vec::new(),
            vacant: Vec::new(),
            ready: VecDeque::new(),
            woken: Arc::new(woken),
            queue,
            current: NONE,
            current_waker: 0,
            deadline_ns: u64::MAX,
            main_is_ready: false,
            calls: AwaitedCalls::default(),
            dials: Dials::default(),
            by_request: ByRequest::default(),
            live: 0,
            messages: Entrance::new(Shares::with_streams(MOST_MESSAGES, max_streams)),
            counting: Counting::default(),
        }
    }

    /// Returns whether tasks are to be polled.
    #[inline]
    pub(crate) fn any_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns whether a pass has something to do for tasks, besides polling them.
    pub(crate) fn any_waiting(&self) -> bool {
        self.dials.any()
    }

    fn add_slot(&mut self) -> u32 {
        let slot = self.slots.len() as u32;
        let (queued, woken) = (AtomicBool::new(false), self.woken.clone());
        let shared = Arc::new(SlotWaker { slot, queued, woken });
        let waker = Some(Waker::from(shared.clone()));
        let (future, ready, request, deadline_ns) = (None, false, None, u64::MAX);
        self.slots.push(Slot { future, shared, waker, ready, awaits: NONE, request, deadline_ns });
        slot
    }

    /// The slot that the next task will have.
    #[inline]
    pub(crate) fn next_slot(&mut self) -> u32 {
        match self.vacant.last() {
            Some(&slot) if self.current == NONE => slot,
            _ => self.make_vacant(),
        }
    }

    fn make_vacant(&mut self) -> u32 {
        if self.current != NONE {
            self.after_panic(); // frees a slot, and would change the next one later
        }
        if self.slots.is_empty() {
            self.add_slot(); // MAIN, which stays without a task
        }
        if let Some(&slot) = self.vacant.last() {
            return slot;
        }
        let slot = self.add_slot();
        self.vacant.push(slot);
        slot
    }

    /// Makes a future the task of [`Tasks::next_slot`].
    pub(crate) fn install(
        &mut self,
        future: LocalFuture,
        request: Option<RequestId>,
        deadline_ns: u64,
    ) -> u32 {
        let at = self.next_slot();
        self.vacant.pop();
        let slot = &mut self.slots[at as usize];
        (slot.future, slot.request, slot.deadline_ns) = (Some(future), request, deadline_ns);
        if let Some(id) = request {
            self.by_request.set(id, at);
        }
        self.live += 1;
        at
    }

    /// Adds a task that is polled in the next step.
    pub(crate) fn spawn(&mut self, future: LocalFuture) {
        let at = self.install(future, None, u64::MAX);
        self.make_ready(at);
    }

    #[inline]
    fn make_ready(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        if !std::mem::replace(&mut slot.ready, true) {
            self.ready.push_back(at);
            self.queue.set_news();
        }
    }

    /// Frees the slot of a task, and returns its future, to be dropped outside of this table.
    pub(super) fn remove(&mut self, at: u32) -> Option<LocalFuture> {
        if at == MAIN {
            return None;
        }
        let slot = &mut self.slots[at as usize];
        slot.request = None;
        self.live -= 1;
        self.vacant.push(at);
        slot.future.take()
    }

    /// The waiter for the poll that runs.
    #[inline]
    pub(crate) fn waiter(&self, cx: &Context<'_>) -> Waiter {
        if cx.waker().data() as usize == self.current_waker {
            Waiter::Task(self.current)
        } else {
            Waiter::other(cx)
        }
    }

    /// [`Tasks::waiter`] for a call or message that is started.
    #[inline]
    pub(super) fn starts(&mut self, at: u32, cx: &Context<'_>) -> Waiter {
        let waiter = self.waiter(cx);
        if let Waiter::Task(task) = waiter {
            self.slots[task as usize].awaits = at;
        }
        waiter
    }

    /// The task that is polled at once when a call ends: the one that waits for it, if it has
    /// started none since. A task that waits for many calls is not polled for each of them.
    #[inline]
    pub(super) fn polled_at_end(&self, at: u32) -> Option<u32> {
        let Some(Entry::Started(_, Waiter::Task(task))) = self.calls.entries.get(at as usize)
        else {
            return None;
        };
        let slot = self.slots.get(*task as usize)?;
        // The future of `block_on` is not here.
        (slot.awaits == at && slot.future.is_some()).then_some(*task)
    }

    #[inline]
    pub(crate) fn wake(&mut self, waiter: Waiter) {
        match waiter {
            Waiter::Task(at) => self.make_ready(at),
            Waiter::Other(waker) => waker.wake(),
        }
    }

    /// Adds the tasks whose wakers were called.
    pub(crate) fn collect_woken(&mut self) {
        if !self.woken.any.swap(false, Ordering::AcqRel) {
            return;
        }
        let woken = self.woken.clone();
        let slots =
            std::mem::take(&mut *woken.slots.lock().unwrap_or_else(PoisonError::into_inner));
        for at in slots {
            // Not a store: the poll sees what wakers have done that found the flag set.
            self.slots[at as usize].shared.queued.swap(false, Ordering::AcqRel);
            self.make_ready(at);
        }
    }

    /// The future of a task, and its deadline. `None`: it is not here.
    #[inline]
    pub(super) fn take_future(&mut self, at: u32) -> Option<(LocalFuture, u64)> {
        let slot = &mut self.slots[at as usize];
        Some((slot.future.take()?, slot.deadline_ns))
    }

    #[inline]
    pub(super) fn put_back(&mut self, at: u32, future: LocalFuture) {
        // Without a test whether there is one to be dropped.
        std::mem::forget(self.slots[at as usize].future.replace(future));
    }

    /// Begins a poll: the waker of the slot, which becomes the current one.
    #[inline]
    pub(super) fn begin(&mut self, at: u32, deadline_ns: u64) -> Waker {
        if self.current != NONE {
            self.after_panic();
        }
        let slot = &mut self.slots[at as usize];
        let waker = slot.waker.take().unwrap_or_else(|| slot.new_waker());
        (self.current, self.deadline_ns) = (at, deadline_ns);
        self.current_waker = waker.data() as usize;
        waker
    }

    #[inline]
    pub(super) fn end(&mut self, at: u32, waker: Waker) {
        (self.current, self.current_waker, self.deadline_ns) = (NONE, 0, u64::MAX);
        // Without a test whether there is one to be dropped.
        std::mem::forget(self.slots[at as usize].waker.replace(waker));
    }

    /// Replaces the future of the task that has been installed in a slot, if one has.
    pub(crate) fn replace_future(
        &mut self,
        at: u32,
        replace: impl FnOnce(LocalFuture) -> LocalFuture,
    ) {
        let slot = self.slots.get_mut(at as usize);
        if let Some(slot) = slot
            && let Some(future) = slot.future.take()
        {
            slot.future = Some(replace(future));
        }
    }

    /// Frees the slot of a task that has panicked: its future is gone.
    fn after_panic(&mut self) {
        let at = std::mem::replace(&mut self.current, NONE);
        let slot = &self.slots[at as usize];
        if at != MAIN && slot.future.is_none() && !self.vacant.contains(&at) {
            self.remove(at);
        }
    }

    /// The task that answers a request.
    pub(super) fn of_request(&self, id: RequestId) -> Option<u32> {
        let at = self.by_request.get(id)?;
        let slot = self.slots.get(at as usize)?;
        (slot.request == Some(id)).then_some(at)
    }

    pub(crate) fn stats(&self) -> TaskStats {
        TaskStats { tasks: self.live, calls: self.calls.in_use(), queued: self.calls.queued() }
    }

    /// Takes all futures out, for the end of the endpoint.
    pub(crate) fn take_futures(&mut self) -> Vec<LocalFuture> {
        self.slots.iter_mut().filter_map(|slot| slot.future.take()).collect()
    }
}
