//! The accept calls of streams that are not answered: see [`super::accept`].

use std::collections::BTreeMap;
use std::task::Waker;

use crate::error::service::StreamError;
use crate::service::key::SessionKey;

/// A stream: its session and its number.
pub(super) type Key = (SessionKey, u32);

/// Accept calls of a session that may wait. A client has one stream on a session at a time, and may
/// have dropped another one a moment before.
const MAX_OF_SESSION: usize = 2;

/// Accept calls of all sessions that may wait. The oldest one makes room for a further one, and its
/// client asks again.
const MAX_WAITING: usize = 1_024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Waiting,
    Accepted,
    /// The open call has ended, or is about to: its answer states why.
    Ended,
    /// Newer ones took its place.
    Displaced,
}

#[derive(Debug)]
pub(super) struct Accept {
    pub(super) state: State,
    pub(super) order: u64,
    pub(super) waker: Option<Waker>,
}

/// The accept calls that are not answered.
#[derive(Debug, Default)]
pub(super) struct Accepts {
    pub(super) calls: BTreeMap<Key, Accept>,
    /// Calls that wait, the oldest first.
    pub(super) order: BTreeMap<u64, Key>,
    pub(super) next: u64,
}

impl Accepts {
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn of_session(&self, session: SessionKey) -> usize {
        self.calls.range((session, 0)..=(session, u32::MAX)).count()
    }

    /// Adds a call that waits. Returns the task of the one that has made room for it.
    pub(super) fn add(&mut self, key: Key) -> Result<Option<Waker>, StreamError> {
        if self.calls.contains_key(&key) {
            return Err(StreamError::Sequence);
        }
        if self.of_session(key.0) >= MAX_OF_SESSION {
            return Err(StreamError::TooMany);
        }
        let oldest =
            if self.order.len() < MAX_WAITING { None } else { self.order.first_key_value() };
        let oldest = oldest.map(|(_, key)| *key);
        let displaced = oldest.and_then(|key| self.settle(key, State::Displaced));
        let order = self.next;
        self.next += 1;
        self.order.insert(order, key);
        self.calls.insert(key, Accept { state: State::Waiting, order, waker: None });
        Ok(displaced)
    }

    /// Ends the wait of a call; returns its task.
    pub(super) fn settle(&mut self, key: Key, state: State) -> Option<Waker> {
        let call = self.calls.get_mut(&key)?;
        if call.state != State::Waiting {
            return None;
        }
        call.state = state;
        self.order.remove(&call.order);
        call.waker.take()
    }

    /// The stream is accepted; returns the task of its call.
    pub(super) fn accepted(&mut self, key: Key) -> Option<Waker> {
        self.settle(key, State::Accepted)
    }

    /// The open call has ended; returns the task of its accept call.
    pub(super) fn ended(&mut self, key: Key) -> Option<Waker> {
        self.settle(key, State::Ended)
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Accept> {
        let call = self.calls.remove(&key)?;
        self.order.remove(&call.order);
        Some(call)
    }
}
