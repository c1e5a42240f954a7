//! The order of grants: the message with the fewest packets left first, with a share for the oldest.
//!
//! Messages are in classes by the binary logarithm of their packets left, and take turns within a
//! class. All long messages are in one class: several of them share the link equally instead of one
//! after the other. Every [`OLDEST_EVERY`]th grant goes to the message that has waited longest,
//! whatever its class, so that short messages do not starve long ones. Both operations cost the same
//! with any number of messages.

use std::collections::VecDeque;

/// Classes; the last has all messages of 2^(CLASSES - 1) packets and more.
const CLASSES: usize = 8;
/// A grant in this many goes to the message that has waited longest.
const OLDEST_EVERY: u32 = 16;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct GrantQueue {
    /// Message and ticket, per class.
    classes: [VecDeque<(u32, u64)>; CLASSES],
    next_ticket: u64,
    grants: u32,
    len: usize,
}

impl GrantQueue {
    /// Adds a message with `left` packets, at the end of its class.
    pub(super) fn push(&mut self, message: u32, left: u32) {
        let class = (left.max(1).ilog2() as usize).min(CLASSES - 1);
        self.classes[class].push_back((message, self.next_ticket));
        self.next_ticket += 1;
        self.len += 1;
    }

    /// Takes the next message.
    pub(super) fn pop(&mut self) -> Option<u32> {
        self.grants = (self.grants + 1) % OLDEST_EVERY;
        let queue = if self.grants == 0 {
            let waiting = self.classes.iter_mut().filter(|q| !q.is_empty());
            waiting.min_by_key(|q| q.front().map_or(u64::MAX, |&(_, ticket)| ticket))?
        } else {
            self.classes.iter_mut().find(|q| !q.is_empty())?
        };
        self.len -= 1;
        queue.pop_front().map(|(message, _)| message)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn clear(&mut self) {
        self.classes.iter_mut().for_each(VecDeque::clear);
        self.len = 0;
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.classes.iter().map(|q| q.capacity() * size_of::<(u32, u64)>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_packets_left_go_first_and_the_oldest_is_not_starved() {
        let mut q = GrantQueue::default();
        q.push(1, 5_000);
        q.push(2, 7_000);
        for message in 100..131 {
            q.push(message, 2);
        }
        let order: Vec<u32> = std::iter::from_fn(|| q.pop()).collect();
        let at = |message| order.iter().position(|&m| m == message).unwrap();
        assert_eq!((order[0], order[1]), (100, 101));
        assert_eq!(at(1), 15, "the sixteenth grant is the oldest message's");
        assert_eq!(at(2), 31);
    }

    #[test]
    fn long_messages_take_turns() {
        let mut q = GrantQueue::default();
        (0..3).for_each(|m| q.push(m, 1_000 + m));
        let mut order = Vec::new();
        for _ in 0..9 {
            let message = q.pop().unwrap();
            order.push(message);
            q.push(message, 900);
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    }
}
