//! The transmit queue: items to be sent, oldest first.
//!
//! A vector and the index of its head: a batch usually empties it, so there is no wrap-around, and
//! both ends cost a few instructions, where a ring buffer costs twenty.

use crate::session::SessionId;

/// An item to send. Names a request by number: an item whose request is over is ignored. A slot has
/// at most one live item of each kind in the queue, whatever its peer repeats, so the number of
/// slots bounds the queue. (Plus one temporarily, when a call is appended to a frame in place of an
/// unsent, cancelled one.)
///
/// An item may also outlive its session, and name a slot of the session that has the number now.
/// This is harmless even with an equal request number, since items carry no content: the slot sends
/// what it has to send.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TxItem {
    /// All that the client slot can send: request packets, then requests-for-response.
    Client { session: u32, slot: u8, req_num: u32 },
    /// A credit return for the packets that have arrived by then.
    CreditReturn { session: u32, slot: u8, req_num: u32 },
    /// The packets of a stored response that are due.
    Response { session: u32, slot: u8, req_num: u32 },
    /// An acknowledgement of the response.
    Ack { session: u32, req_num: u32 },
    /// A gap notification: a frame of the peer is missing.
    Gap { peer: u32 },
    /// The answer to a challenge of this endpoint's address.
    Proof { peer: u32 },
    /// A cancellation of the request of a quarantined slot.
    Cancel { session: u32, slot: u8, req_num: u32 },
    /// The one-way messages of a client session that credits allow.
    Messages { session: u32 },
    /// An acknowledgement of the one-way messages of a server session.
    MessageAck { session: u32 },
    /// Credits of a peer have returned: the turn of the session that has waited longest for them.
    Turn { peer: u32 },
    /// Memory has returned that requests wait for; at most one.
    Memory,
    /// Messages wait for the host's transmit queue, and the first of them may have its turn; at most one.
    Host,
    /// The turn of the request of a slot at the host's transmit queue.
    RequestTurn { session: SessionId, slot: u8 },
    /// The turn of the response of a slot there.
    ResponseTurn { session: SessionId, slot: u8 },
    /// The turn of requests that wait there and have had that of their peer's pool.
    PoolTurn { peer: u32 },
}

/// Result of sending an item.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sent {
    /// The item is done (for now).
    All,
    /// The batch has no room; this remains.
    Rest(TxItem),
    /// The item is requeued for the next batch.
    Later(TxItem),
}

#[derive(Debug, Default)]
pub(crate) struct TxQueue {
    items: Vec<TxItem>,
    /// Index of the first item; those before were taken.
    head: usize,
}

impl TxQueue {
    #[inline]
    pub(crate) fn push(&mut self, item: TxItem) {
        if self.items.len() == self.items.capacity() {
            self.make_room();
        }
        self.items.push(item);
    }

    /// Moves the items to the front, if that frees half of the capacity; each move is then paid for
    /// by as many taken items.
    #[cold]
    fn make_room(&mut self) {
        if self.head >= self.items.len().div_ceil(2) {
            self.items.drain(..self.head);
            self.head = 0;
        } else {
            self.items.reserve(self.items.len().max(16));
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<TxItem> {
        let item = *self.items.get(self.head)?;
        self.head += 1;
        if self.head == self.items.len() {
            self.items.clear();
            self.head = 0;
        }
        Some(item)
    }

    /// Puts back the item that was taken last, or its rest.
    pub(crate) fn push_front(&mut self, item: TxItem) {
        match self.head.checked_sub(1) {
            Some(before) => {
                self.head = before;
                self.items[before] = item;
            }
            None => self.items.insert(0, item),
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.head
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn item(req_num: u32) -> TxItem {
        TxItem::Ack { session: 0, req_num }
    }

    proptest! {
        #[test]
        fn it_is_a_queue(steps in prop::collection::vec(0..8_u32, 0..400)) {
            let (mut q, mut model) = (TxQueue::default(), VecDeque::new());
            let mut taken = None;
            for (n, step) in (0..).zip(steps) {
                match step {
                    0..4 => {
                        q.push(item(n));
                        model.push_back(n);
                    }
                    7 if taken.is_some() => {
                        q.push_front(item(n));
                        model.push_front(n);
                    }
                    _ => {
                        taken = q.pop();
                        let is = taken.map(|i| match i {
                            TxItem::Ack { req_num, .. } => req_num,
                            _ => unreachable!(),
                        });
                        prop_assert_eq!(is, model.pop_front());
                    }
                }
                prop_assert_eq!((q.len(), q.is_empty()), (model.len(), model.is_empty()));
                prop_assert!(q.items.capacity() <= 2 * model.len().max(8) + 400);
            }
        }
    }

    #[test]
    fn a_queue_that_is_never_empty_does_not_grow() {
        let mut q = TxQueue::default();
        (0..10).for_each(|n| q.push(item(n)));
        for n in 10..10_000 {
            q.push(item(n));
            assert!(q.pop().is_some());
        }
        assert!(q.items.capacity() <= 64, "{}", q.items.capacity());
    }
}
