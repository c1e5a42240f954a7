//! Timers of the application, run by the event loop: once or repeatedly, until cancelled.
//!
//! A timer is an entry of an ordered queue and one of a table, about 100 bytes beside its closure.
//! Setting and cancelling cost O(log n) for n timers; an event-loop iteration in which no timer is
//! due compares one number.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::core::Core;
use crate::core::context::Context;

/// A timer of one endpoint, for [`Context::cancel_timer`]. Numbers are not used twice; at another
/// endpoint the number belongs to another timer or to none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TimerId(u64);

/// A callback that runs once.
type Once = Box<dyn FnOnce(&mut Context<'_>)>;
type Repeated = Box<dyn FnMut(&mut Context<'_>)>;

enum Callback {
    Once(Once),
    /// `None` while the callback runs.
    Every {
        period_ns: u64,
        callback: Option<Repeated>,
    },
}

struct Entry {
    due_ns: u64,
    callback: Callback,
}

/// A timer that is due, taken out to run.
enum Due {
    Once(Once),
    Every(TimerId, Repeated),
}

/// All timers of an endpoint.
pub(crate) struct Timers {
    /// By time, then in the order in which they were set.
    queue: BTreeSet<(u64, TimerId)>,
    entries: BTreeMap<TimerId, Entry>,
    next_id: u64,
    /// The time of the first timer; `u64::MAX`: there is none.
    next_ns: u64,
}

impl Default for Timers {
    fn default() -> Self {
        let (queue, entries) = (BTreeSet::new(), BTreeMap::new());
        Timers { queue, entries, next_id: 0, next_ns: u64::MAX }
    }
}

impl Timers {
    /// The time of the first timer; `u64::MAX`: there is none.
    #[inline]
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    fn add(&mut self, due_ns: u64, callback: Callback) -> TimerId {
        let id = TimerId(self.next_id);
        self.next_id += 1;
        self.queue.insert((due_ns, id));
        self.entries.insert(id, Entry { due_ns, callback });
        self.find_next();
        id
    }

    fn find_next(&mut self) {
        self.next_ns = self.queue.first().map_or(u64::MAX, |(due_ns, _)| *due_ns);
    }

    /// Runs `f` once at a time of the endpoint's clock, ns.
    pub(crate) fn once_at(
        &mut self,
        due_ns: u64,
        f: impl FnOnce(&mut Context<'_>) + 'static,
    ) -> TimerId {
        self.add(due_ns, Callback::Once(Box::new(f)))
    }

    pub(crate) fn cancel(&mut self, id: TimerId) -> bool {
        let Some(entry) = self.entries.remove(&id) else { return false };
        self.queue.remove(&(entry.due_ns, id));
        self.find_next();
        true
    }

    /// Takes the first timer that is due. A repeated one is queued again for its next period after
    /// `now_ns`: periods that passed meanwhile are skipped.
    fn take_due(&mut self, now_ns: u64) -> Option<Due> {
        loop {
            let &(due_ns, id) = self.queue.first().filter(|(due_ns, _)| *due_ns <= now_ns)?;
            self.queue.pop_first();
            let due = self.start(id, due_ns, now_ns);
            self.find_next();
            if due.is_some() {
                return due;
            }
        }
    }

    fn start(&mut self, id: TimerId, due_ns: u64, now_ns: u64) -> Option<Due> {
        match self.entries.remove(&id)?.callback {
            Callback::Once(callback) => Some(Due::Once(callback)),
            Callback::Every { period_ns, callback } => {
                let callback = callback?; // lost in a panic, which ends the timer
                let periods = (now_ns - due_ns) / period_ns + 1;
                let due_ns = due_ns.saturating_add(period_ns.saturating_mul(periods));
                self.queue.insert((due_ns, id));
                let waiting = Callback::Every { period_ns, callback: None };
                self.entries.insert(id, Entry { due_ns, callback: waiting });
                Some(Due::Every(id, callback))
            }
        }
    }

    /// Stores the callback of a repeated timer after its run, unless the timer was cancelled.
    fn put_back(&mut self, id: TimerId, ran: Repeated) {
        if let Some(Entry { callback: Callback::Every { callback, .. }, .. }) =
            self.entries.get_mut(&id)
        {
            *callback = Some(ran);
        }
    }
}

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
        self.core.timers.once_at(due_ns, f)
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
        let period_ns = nanos(period).max(1);
        let due_ns = self.core.now_ns().saturating_add(period_ns);
        let callback = Callback::Every { period_ns, callback: Some(Box::new(f)) };
        self.core.timers.add(due_ns, callback)
    }

    /// Cancels a timer: its closure does not run again and is dropped. A repeated timer may cancel
    /// itself from its own callback, which then runs to its end. `false`: the timer has run, runs
    /// now for its only time, or was cancelled before.
    pub fn cancel_timer(&mut self, timer: TimerId) -> bool {
        self.core.timers.cancel(timer)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
