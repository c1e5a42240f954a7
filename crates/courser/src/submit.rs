//! Submissions that wait for room in the queues of sessions, in their order: calls and messages of
//! tasks, and clients that have such.
//!
//! The protocol sends a notice when a session that has refused a submission has room
//! ([`courser_proto::Notice::Freed`]). Nothing is tried again before the notice comes, and then only
//! what waits for that session.

use std::collections::{BTreeMap, VecDeque};

use courser_proto::SessionId;

/// The submissions that wait for one session. Entries that have left stay until they are the most, so that leaving
/// takes constant time.
#[derive(Debug)]
struct SessionQueue<T> {
    entries: VecDeque<T>,
    /// Entries among them that have left.
    left: usize,
}

/// All that wait, by session. Each queue has an entry that has not left.
#[derive(Debug)]
pub(crate) struct Waiters<T> {
    queues: BTreeMap<u64, SessionQueue<T>>,
    /// Entries of all queues that have not left.
    waiting: usize,
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Waiters { queues: BTreeMap::new(), waiting: 0 }
    }
}

impl<T> Waiters<T> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// The number of those that wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    /// Returns whether something waits for a session.
    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.queues.contains_key(&session.key())
    }

    /// Adds one behind the others of its session.
    pub(crate) fn push(&mut self, session: SessionId, entry: T) {
        let empty = || SessionQueue { entries: VecDeque::new(), left: 0 };
        self.queues.entry(session.key()).or_insert_with(empty).entries.push_back(entry);
        self.waiting += 1;
    }

    /// The first one of a session, which may have left.
    pub(crate) fn front(&self, session: SessionId) -> Option<&T> {
        self.queues.get(&session.key())?.entries.front()
    }

    /// Removes the first one of a session. `has_left`: it had left.
    pub(crate) fn pop(&mut self, session: SessionId, has_left: bool) -> Option<T> {
        let queue = self.queues.get_mut(&session.key())?;
        let entry = queue.entries.pop_front();
        queue.left -= usize::from(has_left);
        self.waiting -= usize::from(!has_left);
        if queue.entries.is_empty() {
            self.queues.remove(&session.key());
        }
        entry
    }

    /// One of a session has left, which is no longer one that `stays`.
    pub(crate) fn leave(&mut self, session: SessionId, stays: impl FnMut(&T) -> bool) {
        let Some(queue) = self.queues.get_mut(&session.key()) else { return };
        self.waiting -= 1;
        queue.left += 1;
        if 2 * queue.left > queue.entries.len() {
            queue.entries.retain(stays);
            queue.left = 0;
        }
        if queue.entries.is_empty() {
            self.queues.remove(&session.key());
        }
    }
}
