//! Pauses between the attempts of a call, at the thread of the endpoint.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use crate::channel::call::Call;

/// Calls that end at their times, in the time of the endpoint.
#[derive(Default)]
pub(super) struct Pauses {
    /// Their times, ns, and their numbers.
    times: BinaryHeap<Reverse<(u64, u64)>>,
    calls: BTreeMap<u64, Arc<Call>>,
    next: u64,
}

impl Pauses {
    pub(super) fn push(&mut self, due_ns: u64, call: Arc<Call>) {
        self.times.push(Reverse((due_ns, self.next)));
        self.calls.insert(self.next, call);
        self.next += 1;
    }

    /// When the first one ends.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.times.peek().map(|Reverse((due_ns, _))| *due_ns)
    }

    /// Takes those that have ended by then.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Vec<Arc<Call>> {
        let mut due = Vec::new();
        while let Some(Reverse((due_ns, number))) = self.times.peek().copied()
            && due_ns <= now_ns
        {
            self.times.pop();
            due.extend(self.calls.remove(&number));
        }
        due
    }

    /// Forgets those whose futures were dropped.
    pub(super) fn drop_over(&mut self) {
        self.calls.retain(|_, call| !call.is_over());
        let calls = &self.calls;
        self.times.retain(|Reverse((_, number))| calls.contains_key(number));
    }
}
