//! The step of the event loop that polls tasks.

use std::task::{Context, Poll};

use courser_proto::{RequestId, SessionState, Status};

use crate::core::Core;
use crate::core::lent;
use crate::core::tasks::MAIN;
use crate::panics::caught;

impl Core {
    /// Wakes the futures whose sessions are not connecting any more.
    #[cold]
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

    /// Polls a future in a slot, with the endpoint lent to it.
    #[inline]
    pub(crate) fn poll_in<R>(
        &mut self,
        at: u32,
        deadline_ns: u64,
        poll: impl FnOnce(&mut Context<'_>) -> R,
    ) -> R {
        let waker = self.tasks.begin(at, deadline_ns);
        let polled = lent::lend(self, || poll(&mut Context::from_waker(&waker)));
        self.tasks.end(at, waker);
        polled
    }

    /// Polls the tasks that are ready, each once. Whether there were any.
    pub(crate) fn run_ready(&mut self) -> bool {
        let count = self.tasks.ready.len();
        for _ in 0..count {
            if let Some(at) = self.tasks.ready.pop_front() {
                self.tasks.slots[at as usize].ready = false;
                self.run_task(at);
            }
        }
        count > 0
    }

    /// Polls a task.
    #[inline]
    pub(super) fn run_task(&mut self, at: u32) {
        let slot = &mut self.tasks.slots[at as usize];
        let deadline_ns = slot.deadline_ns;
        let Some(mut future) = slot.future.take() else {
            self.tasks.main_is_ready |= at == MAIN;
            return;
        };
        match self.poll_in(at, deadline_ns, |cx| future.as_mut().poll(cx)) {
            Poll::Pending => self.tasks.slots[at as usize].future = Some(future),
            Poll::Ready(()) => drop(self.tasks.remove(at)),
        }
    }

    /// Drops the task of a request that was cancelled, or whose client is gone. Returns whether there is
    /// one.
    #[cold]
    pub(crate) fn drop_cancelled(&mut self, id: RequestId) -> bool {
        let Some(at) = self.tasks.of_request(id) else { return false };
        // Before its reply handle does, which would state that the handler has ended.
        self.proto.reply_status(id, Status::Expired);
        let task = self.tasks.remove(at);
        let panicked = caught("async", 0, || drop(task));
        self.handled.panics += u64::from(panicked);
        true
    }
}
