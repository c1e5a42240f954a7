//! The ends of calls, as middleware sees them.

use std::time::Duration;

use courser_proto::Executed;

use crate::error::service::{NoError, RpcError};
use crate::service::access::Peer;
use crate::service::context::Metadata;
use crate::shape::method::MethodKind;

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
    /// The time from [`crate::service::ServerMiddleware::before`] to the end; at a client from the first poll of the call.
    /// For a stream it is the time that the stream was open.
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
            Executed::Never => CallOutcome::Refused,
            _ => CallOutcome::Dropped,
        }
    }
}

/// The method and the client of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub(crate) service: &'static str,
    pub(crate) method: &'static str,
    pub(crate) kind: MethodKind,
    pub(crate) peer: Peer,
}
