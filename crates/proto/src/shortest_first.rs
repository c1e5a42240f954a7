//! The order in which messages share a link: the one with the fewest packets left first, with a share
//! for the oldest.
//!
//! Messages are in classes by the binary logarithm of their packets left, and take turns within a
//! class. All long messages are in one class: several of them share the link equally instead of one
//! after the other. Every [`OLDEST_EVERY`]th turn is that of the message that has waited longest,
//! whatever its class, so that short messages do not starve long ones. Adding a message and taking the
//! next one cost the same with any number of messages.
//!
//! The receiver's budget grants packets in this order ([`crate::budget`]), and a sender fills the
//! host's transmit queue in it (`tx::host`).

use std::collections::VecDeque;

use crate::mutant::{self, Mutant};

/// Classes; the last has all messages of 2^(CLASSES - 1) packets and more.
const CLASSES: usize = 8;
/// A turn in this many is that of the message that has waited longest.
const OLDEST_EVERY: u32 = 16;
/// Entries of messages that no longer wait are removed when they are half of the queue, and more than
/// this number.
const DEAD_MOST: usize = 64;

/// The entry of a message in the queue; 0: it has none. Never used twice.
pub(crate) type Ticket = u64;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct ShortestFirst<T> {
    /// Message and ticket, per class.
    classes: [VecDeque<(T, Ticket)>; CLASSES],
    newest: Ticket,
    turns: u32,
    len: usize,
    /// Entries whose message no longer waits.
    dead: usize,
}

impl<T> Default for ShortestFirst<T> {
    fn default() -> Self {
        let classes = std::array::from_fn(|_| VecDeque::new());
        ShortestFirst { classes, newest: 0, turns: 0, len: 0, dead: 0 }
    }
}

impl<T: Copy> ShortestFirst<T> {
    /// Adds a message with `left` packets, at the end of its class. Returns its ticket.
    pub(crate) fn push(&mut self, message: T, left: u32) -> Ticket {
        let class = (left.max(1).ilog2() as usize).min(CLASSES - 1);
        self.newest += 1;
        self.classes[class].push_back((message, self.newest));
        self.len += 1;
        self.newest
    }

    /// Takes the next entry: a message and its ticket. If the message has another ticket by now, the
    /// entry is dead ([`ShortestFirst::on_dead`]).
    pub(crate) fn pop(&mut self) -> Option<(T, Ticket)> {
        self.turns = (self.turns + 1) % OLDEST_EVERY;
        if self.turns == 0 {
            return self.pop_oldest();
        }
        let queue = self.classes.iter_mut().find(|q| !q.is_empty())?;
        self.len -= 1;
        if mutant::is_on(Mutant::NewestGrantedFirst) {
            return queue.pop_back();
        }
        queue.pop_front()
    }

    /// Takes the entry that has waited longest.
    fn pop_oldest(&mut self) -> Option<(T, Ticket)> {
        let waiting = self.classes.iter_mut().filter(|q| !q.is_empty());
        let queue = waiting.min_by_key(|q| q.front().map_or(u64::MAX, |&(_, ticket)| ticket))?;
        self.len -= 1;
        queue.pop_front()
    }

    /// The message of an entry no longer waits.
    pub(crate) fn on_dead(&mut self) {
        self.dead += 1;
    }

    /// A dead entry was taken.
    pub(crate) fn on_dead_taken(&mut self) {
        self.dead -= 1;
    }

    /// Returns whether dead entries are to be removed.
    pub(crate) fn has_many_dead(&self) -> bool {
        self.dead > DEAD_MOST && 2 * self.dead > self.len
    }

    /// Removes the dead entries: those that are not `alive`.
    pub(crate) fn remove_dead(&mut self, mut alive: impl FnMut(T, Ticket) -> bool) {
        for class in &mut self.classes {
            class.retain(|&(message, ticket)| alive(message, ticket));
        }
        self.len = self.classes.iter().map(VecDeque::len).sum();
        self.dead = 0;
    }

    /// Entries, and those of them that are dead.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.len, self.dead)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn clear(&mut self) {
        self.classes.iter_mut().for_each(VecDeque::clear);
        (self.len, self.dead) = (0, 0);
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.classes.iter().map(|q| q.capacity() * size_of::<(T, Ticket)>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_packets_left_go_first_and_the_oldest_is_not_starved() {
        let mut q = ShortestFirst::default();
        q.push(1, 5_000);
        q.push(2, 7_000);
        for message in 100..131 {
            q.push(message, 2);
        }
        let order: Vec<u32> = std::iter::from_fn(|| q.pop()).map(|(message, _)| message).collect();
        let at = |message| order.iter().position(|&m| m == message).unwrap();
        assert_eq!((order[0], order[1]), (100, 101));
        assert_eq!(at(1), 15, "the sixteenth turn is that of the oldest message");
        assert_eq!(at(2), 31);
    }

    #[test]
    fn long_messages_take_turns() {
        let mut q = ShortestFirst::default();
        (0..3).for_each(|m| _ = q.push(m, 1_000 + m));
        let mut order = Vec::new();
        for _ in 0..9 {
            let (message, _) = q.pop().unwrap();
            order.push(message);
            q.push(message, 900);
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    }
}
