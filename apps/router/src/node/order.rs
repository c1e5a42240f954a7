//! Puts the packets of a link back into the order in which they were sent.
//!
//! Courser delivers a message that was lost and sent again after later ones. A sender numbers its
//! messages; the receiver keeps those that are early. All arrive unless their session ends, and the
//! sender has at most a window of them in flight, so at most that many wait.

/// Early packets kept for each link: as many as Courser has in flight on a session, twice.
const WINDOW: u32 = 2_048;

/// Bytes of early packets kept for each link: more than the most messages in flight of 9,000 bytes.
const KEPT: usize = 16 << 20;

/// What to do with a message.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// It is the next one: process it, then those of [`Order::pop`].
    Next,
    /// It was kept, or an empty one in its place if too many bytes were kept already.
    Early,
    /// It is no message of this link's: a number that was used before, or far ahead.
    Wrong,
}

/// The order of one link's messages.
#[derive(Debug, Default)]
pub(super) struct Order {
    next: u32,
    /// Early ones, from number `next` on. Empty when all were in order.
    early: std::collections::VecDeque<Option<Vec<u8>>>,
    /// Early ones, and their bytes.
    waiting: u32,
    bytes: usize,
    /// The number that they waited for at the last look.
    seen: Option<u32>,
    /// Memory of earlier ones.
    spare: Vec<Vec<u8>>,
}

impl Order {
    /// A message with its number.
    #[inline]
    pub(super) fn take(&mut self, number: u32, message: &[u8]) -> Place {
        if number == self.next && self.early.is_empty() {
            self.next = self.next.wrapping_add(1);
            return Place::Next;
        }
        self.take_out_of_order(number, message)
    }

    fn take_out_of_order(&mut self, number: u32, message: &[u8]) -> Place {
        let ahead = number.wrapping_sub(self.next);
        if ahead == 0 {
            self.next = self.next.wrapping_add(1);
            self.early.pop_front();
            return Place::Next;
        }
        if ahead >= WINDOW {
            return Place::Wrong;
        }
        let at = ahead as usize;
        if self.early.len() <= at {
            self.early.resize_with(at + 1, || None);
        }
        let slot = &mut self.early[at];
        if slot.is_some() {
            return Place::Wrong;
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        if self.bytes + message.len() <= KEPT {
            copy.extend_from_slice(message);
        }
        self.bytes += copy.len();
        *slot = Some(copy);
        self.waiting += 1;
        Place::Early
    }

    /// The next message, if it has arrived.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        let message = self.early.front_mut()?.take()?;
        self.early.pop_front();
        self.next = self.next.wrapping_add(1);
        self.waiting -= 1;
        self.bytes -= message.len();
        if self.waiting == 0 {
            self.early.clear();
        }
        Some(message)
    }

    /// Takes back the memory of a message of [`Order::pop`].
    pub(super) fn give_back(&mut self, message: Vec<u8>) {
        if self.spare.len() < 64 {
            self.spare.push(message);
        }
    }

    /// Whether messages wait for the same earlier one as at the last call.
    pub(super) fn is_stuck(&mut self) -> bool {
        let same = self.waiting > 0 && self.seen == Some(self.next);
        self.seen = (self.waiting > 0).then_some(self.next);
        same
    }

    /// Gives up the messages before the first one that waits.
    pub(super) fn skip(&mut self) {
        while let Some(None) = self.early.front() {
            self.early.pop_front();
            self.next = self.next.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn receive(order: &mut Order, number: u32, out: &mut Vec<u32>) -> bool {
        match order.take(number, &number.to_le_bytes()) {
            Place::Next => out.push(number),
            Place::Early => return true,
            Place::Wrong => return false,
        }
        while let Some(message) = order.pop() {
            out.push(u32::from_le_bytes(message[..].try_into().expect("four bytes")));
            order.give_back(message);
        }
        true
    }

    proptest! {
        #[test]
        fn any_order_within_the_window_is_put_right(
            mut keys in prop::collection::vec(0_u32..400, 1..500),
            begin in prop::sample::select(vec![0, 7, u32::MAX - 100]),
        ) {
            // Message n is sent at n and delayed by its key: it is displaced by at most 400 places.
            let mut numbers: Vec<u32> = (0..keys.len() as u32).collect();
            numbers.sort_by_key(|n| *n + keys[*n as usize]);
            keys.clear();
            let mut order = Order { next: begin, ..Order::default() };
            let mut out = Vec::new();
            for n in &numbers {
                prop_assert!(receive(&mut order, begin.wrapping_add(*n), &mut out));
            }
            let expected: Vec<u32> =
                (0..numbers.len() as u32).map(|n| begin.wrapping_add(n)).collect();
            prop_assert_eq!(out, expected);
            prop_assert!(!order.is_stuck() && order.waiting == 0 && order.early.is_empty());
        }
    }

    #[test]
    fn a_number_twice_or_far_ahead_is_refused_and_keeps_nothing() {
        let (mut order, mut out) = (Order::default(), Vec::new());
        assert!(receive(&mut order, 0, &mut out));
        assert!(!receive(&mut order, 0, &mut out), "an old one");
        assert!(receive(&mut order, 2, &mut out));
        assert!(!receive(&mut order, 2, &mut out), "the same early one");
        assert!(!receive(&mut order, 1 + WINDOW, &mut out), "beyond the window");
        assert!(receive(&mut order, WINDOW, &mut out), "the last one of the window");
        assert!(order.early.len() <= WINDOW as usize);
        assert!(receive(&mut order, 1, &mut out));
        assert_eq!(out, [0, 1, 2]);
        assert_eq!(order.waiting, 1);
    }

    #[test]
    fn early_messages_take_limited_memory_and_the_rest_come_empty() {
        let mut order = Order::default();
        let large = vec![7; 1 << 16];
        let kept = (KEPT / large.len()) as u32;
        for number in 1..WINDOW {
            assert_eq!(order.take(number, &large), Place::Early);
        }
        assert!(order.bytes <= KEPT);
        assert_eq!(order.take(0, &large), Place::Next);
        for number in 1..WINDOW {
            let message = order.pop().expect("kept");
            assert_eq!(message.is_empty(), number > kept, "{number}");
            order.give_back(message);
        }
        assert_eq!((order.bytes, order.pop()), (0, None));
    }

    #[test]
    fn a_number_that_never_comes_is_skipped() {
        let (mut order, mut out) = (Order::default(), Vec::new());
        for number in [0, 3, 4, 6] {
            assert!(receive(&mut order, number, &mut out));
        }
        assert!(!order.is_stuck(), "the first look");
        assert!(order.is_stuck());
        order.skip();
        while let Some(message) = order.pop() {
            out.push(u32::from_le_bytes(message[..].try_into().expect("four bytes")));
        }
        assert_eq!(out, [0, 3, 4]);
        assert!(!order.is_stuck(), "another one is waited for now");
        assert!(!receive(&mut order, 1, &mut out), "late");
        assert!(receive(&mut order, 5, &mut out));
        assert_eq!(out, [0, 3, 4, 5, 6]);
    }
}
