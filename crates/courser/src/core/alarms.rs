//! The timers of an endpoint, as its context sets and its event loop runs them.

use std::time::Duration;

use crate::core::Core;
use crate::core::context::Context;
use crate::core::timer::{Due, TimerId};

impl Core {
    /// Runs every timer that is due; whether there was one.
    pub(crate) fn run_timers(&mut self, now_ns: u64) -> bool {
        let mut any = false;
        while let Some(due) = self.timers.take_due(now_ns) {
            any = true;
            let cx = &mut Context { core: self, request: None };
            match due {
                Due::Once(callback) => callback(cx),
                Due::Every(id, mut callback) => {
                    callback(cx);
                    self.timers.put_back(id, callback);
                }
            }
        }
        any
    }
}

impl Context<'_> {
    /// Runs `f` once in the event loop, `after` from now or as soon after that as the loop comes
    /// to it. Timers run in the order of their times, and those of one time in the order in which
    /// they were set. Setting and cancelling allocate and cost O(log n) for n timers.
    #[doc(alias = "set_timer")]
    pub fn after(
        &mut self,
        after: Duration,
        f: impl FnOnce(&mut Context<'_>) + 'static,
    ) -> TimerId {
        let due_ns = self.core.deadline_ns(after);
        self.core.timers.add_once(due_ns, Box::new(f))
    }

    /// Runs `f` in the event loop every `period`, first one period from now, until
    /// [`Context::cancel_timer`], a panic of `f`, or the end of the endpoint. Runs stay on the grid of the first
    /// one: a late run does not move the next, and periods that pass during a delay are skipped. A
    /// period of zero counts as 1 ns and runs once per iteration of the event loop.
    pub fn every(
        &mut self,
        period: Duration,
        f: impl FnMut(&mut Context<'_>) + 'static,
    ) -> TimerId {
        let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
        let due_ns = self.core.now_ns().saturating_add(period_ns);
        self.core.timers.add_repeated(due_ns, period_ns, Box::new(f))
    }

    /// Cancels a timer: its closure does not run again and is dropped. A repeated timer may cancel
    /// itself from its own callback, which then runs to its end. `false`: the timer has run, runs
    /// now for its only time, or was cancelled before.
    pub fn cancel_timer(&mut self, timer: TimerId) -> bool {
        self.core.timers.cancel(timer)
    }
}
