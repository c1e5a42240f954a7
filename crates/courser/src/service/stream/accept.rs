//! The answer to the opening of a stream, at the server.
//!
//! A client sends two calls together: the open call, whose answer is the end of the stream, and an
//! *accept* call, which is answered when the handler has made its stream. Packets overtake each other,
//! so the accept call may arrive before the open call, or be handled before it: then it waits. Of the
//! calls that wait for streams it is the only kind, and the number of those is limited.

use std::future::{Future, poll_fn};
use std::task::{Context, Poll, Waker};

use super::accepts::{Key, State};
use crate::core::message::{Reply, ReplySink};
use crate::counts::CallOutcome;
use crate::error::service::{DecodeError, StreamError};
use crate::service::answer::{Refusal, RefusalReply, tag};
use crate::service::registry::Received;
use crate::service::services::Services;

#[cfg(all(loom, test))]
mod model;

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
    fn outcome(&self) -> CallOutcome {
        match self {
            AcceptReply::Accepted | AcceptReply::Ended => CallOutcome::Ok,
            AcceptReply::Refused(refusal) => refusal.outcome(),
        }
    }

    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        match self {
            AcceptReply::Accepted => to.bytes(&[tag::OK]),
            AcceptReply::Ended => to.bytes(&[tag::ENDED]),
            AcceptReply::Refused(refusal) => RefusalReply(refusal).send_to(to),
        }
    }
}
