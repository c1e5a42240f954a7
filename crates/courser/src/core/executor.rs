//! The step of the event loop that polls tasks.

use std::rc::Rc;
use std::task::{Context, Poll};

use courser_proto::{RequestId, SessionState, Status};

use crate::core::counting::LocalMethod;
use crate::core::lent;
use crate::core::tasks::MAIN;
use crate::core::{Core, Lender};
use crate::counts::CallOutcome;
use crate::panics::caught;

impl Core {
    /// Wakes the futures whose sessions are not connecting any more.
    pub(crate) fn wake_connected(&mut self) -> bool {
        let proto = &self.proto;
        let waits = |id| proto.session_state(id) == SessionState::Connecting;
        let ended: Vec<_> =
            self.tasks.dials.0.extract_if(.., |(session, _)| !waits(*session)).collect();
        let any = !ended.is_empty();
        for (_, waiter) in ended {
            self.tasks.wake(waiter);
        }
        any
    }

    /// Polls a future in a slot, with the endpoint lent to it. `lender` is that of the endpoint.
    #[inline(always)] // its callers are few
    pub(crate) fn poll_in<R>(
        &mut self,
        lender: &Lender,
        at: u32,
        deadline_ns: u64,
        poll: impl FnOnce(&mut Context<'_>) -> R,
    ) -> R {
        let waker = self.tasks.begin(at, deadline_ns);
        let polled = lent::lend(lender, self, || poll(&mut Context::from_waker(&waker)));
        self.tasks.end(at, waker);
        polled
    }

    /// Counts a handler of a method that has ended in its first poll.
    #[inline]
    pub(crate) fn count_ended(&mut self, method: &Rc<LocalMethod>, outcome: CallOutcome) {
        if method.count_ended(outcome) {
            self.first_ended(method);
        }
    }

    #[inline(never)] // once in a burst
    fn first_ended(&mut self, method: &Rc<LocalMethod>) {
        let burst_ns = self.last_ns();
        self.tasks.counting.add(method, burst_ns);
        self.queue.set_news(); // counted after the burst
    }

    /// Counts the handlers that have ended since the last call.
    #[inline]
    pub(crate) fn end_counting(&mut self) {
        if self.tasks.counting.any() {
            let now_ns = self.now_ns();
            self.tasks.counting.end(now_ns);
        }
    }

    /// Polls the tasks that are ready, each once. Whether there were any.
    pub(crate) fn run_ready(&mut self) -> bool {
        self.end_counting();
        let count = self.tasks.ready.len();
        let lender = self.lender.clone();
        for _ in 0..count {
            if let Some(at) = self.tasks.ready.pop_front() {
                self.tasks.slots[at as usize].ready = false;
                self.run_task(&lender, at);
            }
        }
        count > 0
    }

    /// Polls a task. `lender` is that of the endpoint.
    #[inline(always)] // into the completion of a call
    pub(super) fn run_task(&mut self, lender: &Lender, at: u32) {
        let Some((mut future, deadline_ns)) = self.tasks.take_future(at) else {
            self.tasks.main_is_ready |= at == MAIN;
            return;
        };
        match self.poll_in(lender, at, deadline_ns, |cx| future.as_mut().poll(cx)) {
            Poll::Pending => self.tasks.put_back(at, future),
            Poll::Ready(()) => self.end_task(at),
        }
    }

    /// Frees the slot of a task that has ended.
    #[cold]
    fn end_task(&mut self, at: u32) {
        drop(self.tasks.remove(at));
    }

    /// Drops the task of a request that was cancelled, or whose client is gone. Returns whether there is
    /// one.
    pub(crate) fn drop_cancelled(&mut self, id: RequestId) -> bool {
        let Some(at) = self.tasks.of_request(id) else { return false };
        // Before its reply handle does, which would state that the handler has ended.
        self.proto.reply_status(id, Status::Expired);
        self.lender.set_dropped_ns(self.now_ns());
        let task = self.tasks.remove(at);
        let panicked = caught("async", 0, || drop(task));
        self.handled.panics += u64::from(panicked);
        true
    }
}
