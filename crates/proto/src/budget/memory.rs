//! The memory of requests that arrive (ADR 36).
//!
//! A request whose memory is not reserved waits in the queue. Clients take turns, and the oldest
//! request of a client is first. Its credit return is withheld, so its client sends nothing further.

use std::collections::BTreeSet;

/// The memory of one message; of a response, nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reserved {
    /// Whose quota it counts against.
    pub(crate) quota: u32,
    /// Bytes that are reserved, whose data has not arrived.
    pub(crate) promised: u32,
    /// Bytes of them that have arrived since.
    pub(crate) kept: u32,
    /// Bytes of a request whose memory grows with its data.
    pub(crate) growing: u32,
    /// Its place in the queue; 0: it does not wait.
    pub(super) ticket: u64,
    /// Its first packet is counted, and was not handled yet.
    pub(super) is_new: bool,
    /// When it began, and when its newest packet arrived, ns.
    pub(crate) begun_ns: u64,
    pub(crate) heard_ns: u64,
}

impl Reserved {
    /// A request of a client, with `promised` bytes reserved.
    pub(crate) fn new(quota: u32, promised: u32, now_ns: u64) -> Self {
        Reserved {
            quota,
            promised,
            kept: 0,
            growing: 0,
            ticket: 0,
            is_new: true,
            begun_ns: now_ns,
            heard_ns: now_ns,
        }
    }

    /// Returns whether the request waits for memory.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.ticket > 0
    }
}

/// Requests that wait for memory.
#[derive(Debug, Default)]
pub(super) struct MemoryQueue {
    /// Quota, ticket and number of the message.
    waiting: BTreeSet<(u32, u64, u32)>,
    tickets: u64,
    /// The client whose turn was last.
    last: u32,
    watch: Watch,
}

/// When unfinished requests are checked.
#[derive(Debug)]
pub(crate) struct Watch {
    /// When their timer is due; `u64::MAX`: it is not set.
    pub(crate) due_ns: u64,
    /// When all of them are looked at next, ns.
    walk_ns: u64,
    /// A try is in the transmit queue.
    queued: bool,
}

impl Default for Watch {
    fn default() -> Self {
        Watch { due_ns: u64::MAX, walk_ns: 0, queued: false }
    }
}

impl Watch {
    /// Returns whether all requests are to be looked at, which happens at this interval.
    pub(crate) fn is_walk_due(&mut self, now_ns: u64, every_ns: u64) -> bool {
        let is_due = now_ns >= self.walk_ns;
        if is_due {
            self.walk_ns = now_ns.saturating_add(every_ns);
        }
        is_due
    }

    /// Returns whether a try is to be queued.
    pub(crate) fn try_soon(&mut self) -> bool {
        !std::mem::replace(&mut self.queued, true)
    }

    /// Requests that wait are tried now.
    pub(crate) fn tried(&mut self) {
        self.queued = false;
    }
}

impl MemoryQueue {
    pub(super) fn len(&self) -> u32 {
        self.waiting.len() as u32
    }

    pub(super) fn remove(&mut self, at: u32, reserved: &Reserved) {
        if reserved.waits() {
            self.waiting.remove(&(reserved.quota, reserved.ticket, at));
        }
    }

    /// Adds a request of a client; returns its place.
    pub(super) fn push(&mut self, quota: u32, at: u32) -> u64 {
        self.tickets += 1;
        self.waiting.insert((quota, self.tickets, at));
        self.tickets
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns whether requests of a client wait.
    pub(super) fn has(&self, quota: u32) -> bool {
        self.waiting.range((quota, 0, 0)..).next().is_some_and(|next| next.0 == quota)
    }

    /// The times at which unfinished requests are checked.
    pub(super) fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// The oldest request of the client whose turn it is.
    pub(super) fn next(&mut self) -> Option<u32> {
        let begin = (self.last.wrapping_add(1), 0, 0);
        let next = self.waiting.range(begin..).next().or_else(|| self.waiting.first());
        let &(quota, _, at) = next?;
        self.last = quota;
        Some(at)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.waiting.len() * size_of::<(u32, u64, u32)>()
    }
}
