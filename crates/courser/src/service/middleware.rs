//! Middleware: code around the calls of typed services, at a server and at a client.
//!
//! Hooks before a call and after it, not futures around it: they work on an endpoint's own thread, on other
//! threads and in virtual time, for all codecs and kinds of methods, and cost no allocation where there is
//! nothing to keep (ADR 60). `courser::tower` (feature `tower`) has layers around calls.

mod client;
mod observation;
mod server;

use std::time::Duration;

use super::access::Peer;
use super::context::Metadata;
use crate::error::service::{NoError, RpcError};
use crate::shape::method::MethodKind;

pub(crate) use client::{ClientChain, Observed};
pub use client::{ClientMiddleware, OutgoingCall};
pub(crate) use observation::{Observation, Subject};
pub use server::{IncomingCall, ServerMiddleware};
pub(crate) use server::{ServerChain, outcome_of};

/// The end of a call that middleware has let pass.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CallEnd<'a> {
    /// The name of the service.
    pub service: &'a str,
    /// The name of the method.
    pub method: &'a str,
    /// The kind of the method.
    pub kind: MethodKind,
    /// The client; `None` at the client itself.
    pub peer: Option<Peer>,
    /// The metadata of the request, with what middleware has added.
    pub metadata: &'a Metadata,
    /// How it has ended.
    pub outcome: CallOutcome,
    /// The time from [`ServerMiddleware::before`] to the end; at a client from the first poll of the call.
    /// Of a stream it is the time that the stream was open.
    pub duration: Duration,
    /// How often the call was made: more than 1 at clients with retries only.
    pub attempts: u32,
}

/// How a call has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CallOutcome {
    /// The handler has returned a value, the stream has ended without an error, or the handler of a one-way
    /// message has returned.
    Ok,
    /// The handler has returned its error.
    Failed,
    /// The call did not reach its handler: other middleware or the server has refused it, its arguments
    /// cannot be decoded, or at a client: it was never executed.
    Refused,
    /// The call has no answer of its handler: it was cancelled, its deadline has passed, the other end is
    /// gone, the handler has panicked, or its answer could not be sent.
    Dropped,
}

impl CallOutcome {
    /// The outcome of a call with an error.
    pub(crate) fn of(error: &RpcError<NoError>) -> Self {
        match error.executed() {
            courser_proto::Executed::Never => CallOutcome::Refused,
            _ => CallOutcome::Dropped,
        }
    }
}
