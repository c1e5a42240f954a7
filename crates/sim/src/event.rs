//! The queue of things to come.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events in the order of their time; those of the same time in the order in which they were
/// added, so that a run does not depend on the queue's inner order.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    added: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at_ns: u64,
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at_ns, self.number) == (other.at_ns, other.number)
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.number).cmp(&(other.at_ns, other.number))
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        EventQueue { heap: BinaryHeap::new(), added: 0 }
    }
}

impl<E> EventQueue<E> {
    pub(crate) fn push(&mut self, at_ns: u64, event: E) {
        self.heap.push(Reverse(Entry { at_ns, number: self.added, event }));
        self.added += 1;
    }

    /// When the next event is.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(e)| e.at_ns)
    }

    /// The next event, with its time, if that is not after `end_ns`.
    pub(crate) fn pop_until(&mut self, end_ns: u64) -> Option<(u64, E)> {
        if self.next_ns()? > end_ns {
            return None;
        }
        self.heap.pop().map(|Reverse(e)| (e.at_ns, e.event))
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_first_then_order_of_arrival() {
        let mut q = EventQueue::default();
        for (at, e) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b'), (9, 'e')] {
            q.push(at, e);
        }
        let order: String = std::iter::from_fn(|| q.pop_until(5)).map(|(_, e)| e).collect();
        assert_eq!((order.as_str(), q.next_ns(), q.len()), ("abcd", Some(9), 1));
    }
}
