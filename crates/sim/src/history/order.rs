//! The begins and ends of calls in the order of time, as a list from which calls are taken.

/// The head of the list, and its end.
pub(super) const HEAD: usize = 0;

/// An event of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    // Before an end at the same time: the calls are concurrent.
    Begin(usize),
    End(usize),
}

#[derive(Debug)]
struct Node {
    event: Event,
    previous: usize,
    next: usize,
}

/// A doubly linked list in a vector ("dancing links"): what was taken last is put back first.
#[derive(Debug)]
pub(super) struct Order {
    nodes: Vec<Node>,
    /// The end of each call.
    ends: Vec<usize>,
}

impl Order {
    /// The order of the events of calls, each with the times of its begin and its end.
    pub(super) fn new(calls: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut events = Vec::new();
        let mut count = 0;
        for (call, (begin_ns, end_ns)) in calls.enumerate() {
            events.push((begin_ns, Event::Begin(call)));
            events.push((end_ns, Event::End(call)));
            count += 1;
        }
        // By time, then begins before ends.
        events
            .sort_unstable_by_key(|&(at_ns, event)| (at_ns, matches!(event, Event::End(_)), event));
        let (mut nodes, mut ends) = (Vec::with_capacity(events.len() + 1), vec![HEAD; count]);
        let last = events.len();
        // Its event is not used.
        nodes.push(Node { event: Event::Begin(0), previous: last, next: usize::from(last > 0) });
        for (at, (_, event)) in events.into_iter().enumerate() {
            if let Event::End(call) = event {
                ends[call] = at + 1;
            }
            let next = if at + 1 == last { HEAD } else { at + 2 };
            nodes.push(Node { event, previous: at, next });
        }
        Order { nodes, ends }
    }

    pub(super) fn next(&self, node: usize) -> usize {
        self.nodes[node].next
    }

    pub(super) fn event(&self, node: usize) -> Event {
        self.nodes[node].event
    }

    fn unlink(&mut self, node: usize) {
        let Node { previous, next, .. } = self.nodes[node];
        self.nodes[previous].next = next;
        self.nodes[next].previous = previous;
    }

    fn link(&mut self, node: usize) {
        let Node { previous, next, .. } = self.nodes[node];
        self.nodes[previous].next = node;
        self.nodes[next].previous = node;
    }

    /// Takes a call out, given the node of its begin.
    pub(super) fn take(&mut self, begin: usize, call: usize) {
        self.unlink(begin);
        self.unlink(self.ends[call]);
    }

    /// Puts back the call that was taken last.
    pub(super) fn put_back(&mut self, begin: usize, call: usize) {
        self.link(self.ends[call]);
        self.link(begin);
    }
}
