//! The answer to the opening of a stream, at the server.
//!
//! A client sends two calls together: the open call, whose answer is the end of the stream, and an
//! *accept* call, which is answered when the handler has made its stream. Packets overtake each other,
//! so the accept call may arrive before the open call, or be handled before it: then it waits. Of the
//! calls that wait for streams it is the only kind, and the number of those is limited.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::task::{Context, Poll, Waker};

use super::table::Key;
use crate::core::message::{Reply, ReplySink};
use crate::error::service::{DecodeError, StreamError};
use crate::service::answer::{Refusal, RefusalReply, tag};
use crate::service::registry::{Received, SessionKey};
use crate::service::services::Services;

#[cfg(all(loom, test))]
mod model;

/// Accept calls of a session that may wait. A client has one stream on a session at a time, and may
/// have dropped another one a moment before.
const MAX_OF_SESSION: usize = 2;

/// Accept calls of all sessions that may wait. The oldest one makes room for a further one, and its
/// client asks again.
const MAX_WAITING: usize = 1_024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waiting,
    Accepted,
    /// The open call has ended, or is about to: its answer states why.
    Ended,
    /// Newer ones took its place.
    Displaced,
}

#[derive(Debug)]
struct Accept {
    state: State,
    order: u64,
    waker: Option<Waker>,
}

/// The accept calls that are not answered.
#[derive(Debug, Default)]
pub(super) struct Accepts {
    calls: BTreeMap<Key, Accept>,
    /// Calls that wait, the oldest first.
    order: BTreeMap<u64, Key>,
    next: u64,
}

impl Accepts {
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    fn of_session(&self, session: SessionKey) -> usize {
        self.calls.range((session, 0)..=(session, u32::MAX)).count()
    }

    /// Adds a call that waits. Returns the task of the one that has made room for it.
    fn add(&mut self, key: Key) -> Result<Option<Waker>, StreamError> {
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
    fn settle(&mut self, key: Key, state: State) -> Option<Waker> {
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

    fn remove(&mut self, key: Key) -> Option<Accept> {
        let call = self.calls.remove(&key)?;
        self.order.remove(&call.order);
        Some(call)
    }
}

/// An accept call in the table.
struct Waiting {
    services: Services,
    key: Key,
}

impl Waiting {
    fn poll(&self, cx: &Context<'_>) -> Poll<AcceptReply> {
        let mut table = self.services.streams().lock();
        let Some(call) = table.accepts.calls.get_mut(&self.key) else {
            return Poll::Ready(AcceptReply::Ended); // it is there until the drop
        };
        let reply = match call.state {
            State::Waiting => {
                let old = call.waker.replace(cx.waker().clone());
                drop(table);
                drop(old); // may run code of the application
                return Poll::Pending;
            }
            State::Accepted => AcceptReply::Accepted,
            State::Ended => AcceptReply::Ended,
            State::Displaced => {
                drop(table);
                AcceptReply::Refused(self.services.stream_error(StreamError::TooMany))
            }
        };
        Poll::Ready(reply)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let removed = self.services.streams().lock().accepts.remove(self.key);
        drop(removed); // its waker may run code of the application
    }
}

/// An accept call that has arrived.
enum Arrived {
    Waits(Waiting),
    Accepted,
}

impl Services {
    /// Answers an accept call when its stream is accepted, or has ended.
    pub(in crate::service) fn accept(
        &self,
        received: Received<'_>,
    ) -> impl Future<Output = AcceptReply> + Send + use<> {
        let call = self.begin_accept(received);
        poll_fn(move |cx| match &call {
            Ok(Arrived::Waits(waiting)) => waiting.poll(cx),
            Ok(Arrived::Accepted) => Poll::Ready(AcceptReply::Accepted),
            Err(refusal) => Poll::Ready(AcceptReply::Refused(refusal.clone())),
        })
    }

    fn begin_accept(&self, mut received: Received<'_>) -> Result<Arrived, Refusal> {
        let trailer = received.split_trailer::<4>().map_err(|e| self.undecoded(e))?;
        if !received.bytes().is_empty() {
            let left = received.bytes().len();
            return Err(self.undecoded(DecodeError::Trailing { left }));
        }
        let key = (received.session(), u32::from_le_bytes(trailer));
        let mut table = self.streams().lock();
        if table.is_accepted(key) {
            return Ok(Arrived::Accepted);
        }
        let added = table.accepts.add(key);
        drop(table);
        let displaced = added.map_err(|e| self.stream_error(e))?;
        displaced.into_iter().for_each(Waker::wake);
        Ok(Arrived::Waits(Waiting { services: self.clone(), key }))
    }
}

/// The answer to an accept call.
pub(in crate::service) enum AcceptReply {
    Accepted,
    Ended,
    Refused(Refusal),
}

impl Reply for AcceptReply {
    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        match self {
            AcceptReply::Accepted => to.bytes(&[tag::OK]),
            AcceptReply::Ended => to.bytes(&[tag::ENDED]),
            AcceptReply::Refused(refusal) => RefusalReply(refusal).send_to(to),
        }
    }
}
