//! Timers of the application, run by the event loop: once or repeatedly, until cancelled.
//!
//! A timer is an entry of an ordered queue and one of a table, about 100 bytes beside its closure.
//! Setting and cancelling cost O(log n) for n timers; an event-loop iteration in which no timer is
//! due compares one number.

use std::collections::{BTreeMap, BTreeSet};

/// A timer of one endpoint, for [`crate::Context::cancel_timer`]. Numbers are not used twice; at another
/// endpoint the number belongs to another timer or to none.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_rpc(|mut rpc, uri| {
/// use std::time::Duration;
///
/// # let _ = uri;
/// let endless = rpc.context().every(Duration::from_millis(1), |_| println!("tick"));
/// rpc.context().after(Duration::from_millis(5), move |cx| {
///     assert!(cx.cancel_timer(endless));
///     cx.stop();
/// });
/// rpc.run()?;
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TimerId(u64);

/// The callback of a timer.
enum Callback<Once, Repeated> {
    Once(Once),
    /// `None` while the callback runs.
    Every {
        period_ns: u64,
        callback: Option<Repeated>,
    },
}

struct Entry<Once, Repeated> {
    due_ns: u64,
    callback: Callback<Once, Repeated>,
}

/// A timer that is due, taken out to run.
pub(super) enum Due<Once, Repeated> {
    Once(Once),
    Every(TimerId, Repeated),
}

/// All timers of an endpoint, with callbacks that run once and such that run repeatedly.
pub(crate) struct Timers<Once, Repeated> {
    /// By time, then in the order in which they were set.
    queue: BTreeSet<(u64, TimerId)>,
    entries: BTreeMap<TimerId, Entry<Once, Repeated>>,
    next_id: u64,
    /// The time of the first timer; `u64::MAX`: there is none.
    next_ns: u64,
}

impl<Once, Repeated> Default for Timers<Once, Repeated> {
    fn default() -> Self {
        let (queue, entries) = (BTreeSet::new(), BTreeMap::new());
        Timers { queue, entries, next_id: 0, next_ns: u64::MAX }
    }
}

impl<Once, Repeated> Timers<Once, Repeated> {
    /// The time of the first timer; `u64::MAX`: there is none.
    #[inline]
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    fn add(&mut self, due_ns: u64, callback: Callback<Once, Repeated>) -> TimerId {
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

    /// Adds a callback that runs once at a time of the endpoint's clock, ns.
    pub(crate) fn add_once(&mut self, due_ns: u64, callback: Once) -> TimerId {
        self.add(due_ns, Callback::Once(callback))
    }

    /// Adds a callback that runs first at a time of the endpoint's clock, ns, and then after each
    /// period.
    pub(super) fn add_repeated(
        &mut self,
        due_ns: u64,
        period_ns: u64,
        callback: Repeated,
    ) -> TimerId {
        self.add(due_ns, Callback::Every { period_ns, callback: Some(callback) })
    }

    pub(crate) fn cancel(&mut self, id: TimerId) -> bool {
        let Some(entry) = self.entries.remove(&id) else { return false };
        self.queue.remove(&(entry.due_ns, id));
        self.find_next();
        true
    }

    /// Takes the first timer that is due. A repeated one is queued again for its next period after
    /// `now_ns`: periods that passed meanwhile are skipped.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<Due<Once, Repeated>> {
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

    fn start(&mut self, id: TimerId, due_ns: u64, now_ns: u64) -> Option<Due<Once, Repeated>> {
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
    pub(super) fn put_back(&mut self, id: TimerId, ran: Repeated) {
        if let Some(Entry { callback: Callback::Every { callback, .. }, .. }) =
            self.entries.get_mut(&id)
        {
            *callback = Some(ran);
        }
    }
}
