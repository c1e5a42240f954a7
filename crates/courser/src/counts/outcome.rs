//! The ways in which calls of typed methods end.

use courser_buf::labels;
use courser_proto::{CallError, RejectReason, Status};

use crate::error::failure::CallFailure;
use crate::error::service::{DecodeError, EncodeError, MidStreamError, RpcError, StreamError};

labels! {
    /// The way in which a call of a typed method has ended. Server and client count by themselves: a call
    /// that its client gives up may have ended well at the server.
    ///
    /// Example: [`MethodStats`](crate::service::MethodStats).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[non_exhaustive]
    pub enum CallOutcome {
        /// A value, a stream without an error, or a message that was handled or sent.
        Ok = "ok",
        /// The error of the application.
        Failed = "failed",
        /// The [`crate::service::Authorize`] or middleware of the server, or middleware of the client, does
        /// not allow it.
        Denied = "denied",
        /// A message that cannot be decoded, or a value that cannot be encoded.
        Undecoded = "undecoded",
        /// A limit of the server or of the client was reached: handlers, streams, queues, memory.
        Overload = "overload",
        /// The deadline has passed.
        Deadline = "deadline",
        /// The client dropped the call; at the server also the end of its session, or of the server.
        Cancelled = "cancelled",
        /// There was no connection to the server, or it was lost during the call.
        Lost = "lost",
        /// The server was shutting down.
        ShuttingDown = "shutting_down",
        /// The handler panicked.
        Panicked = "panicked",
        /// The server does not have the method, or has it in another shape.
        Unknown = "unknown",
        /// Any other error, such as a peer that breaks the rules of streams.
        Other = "other",
    }
}

impl CallOutcome {
    /// The outcome of a call at its client.
    pub(crate) fn of<T, E>(result: &Result<T, RpcError<E>>) -> Self {
        match result {
            Ok(_) => CallOutcome::Ok,
            Err(error) => Self::of_error(error),
        }
    }

    #[cold]
    pub(crate) fn of_error<E>(error: &RpcError<E>) -> Self {
        match error {
            RpcError::Service(_) => CallOutcome::Failed,
            RpcError::Denied(_) | RpcError::Unauthenticated(_) => CallOutcome::Denied,
            RpcError::TooMany { .. } => CallOutcome::Overload,
            RpcError::UnknownMethod(_) | RpcError::ShapeMismatch(_) => CallOutcome::Unknown,
            RpcError::Call(failure) => Self::of_failure(failure),
            RpcError::MidStream(MidStreamError::Call(failure)) => Self::of_failure(failure),
            RpcError::Encode(e) | RpcError::MidStream(MidStreamError::Encode(e)) => {
                Self::of_encoding(e)
            }
            RpcError::Decode(e) | RpcError::MidStream(MidStreamError::Decode(e)) => {
                Self::of_decoding(e)
            }
            RpcError::MidStream(MidStreamError::ShuttingDown { .. }) => CallOutcome::ShuttingDown,
            RpcError::MidStream(MidStreamError::Closed) | RpcError::FewSlots { .. } => {
                CallOutcome::Other
            }
            RpcError::Stream(e) => Self::of_stream(*e),
        }
    }

    fn of_encoding(error: &EncodeError) -> Self {
        match error {
            EncodeError::NoMemory(_) => CallOutcome::Overload,
            _ => CallOutcome::Undecoded,
        }
    }

    pub(crate) fn of_decoding(error: &DecodeError) -> Self {
        match error {
            DecodeError::NoMemory(_)
            | DecodeError::HeapFull { .. }
            | DecodeError::RemoteFull(_) => CallOutcome::Overload,
            _ => CallOutcome::Undecoded,
        }
    }

    pub(crate) fn of_stream(error: StreamError) -> Self {
        match error {
            StreamError::Limit | StreamError::TooMany => CallOutcome::Overload,
            _ => CallOutcome::Other,
        }
    }

    pub(crate) fn of_failure(failure: &CallFailure) -> Self {
        match failure {
            CallFailure::Rejected(RejectReason::NoSession(_)) => CallOutcome::Lost,
            CallFailure::Rejected(
                RejectReason::QueueFull { .. } | RejectReason::MessagesFull { .. },
            ) => CallOutcome::Overload,
            CallFailure::Failed(error) => Self::of_call(error),
            CallFailure::NoMemory(_) => CallOutcome::Overload,
            CallFailure::NotConnected { .. } | CallFailure::Lost { .. } => CallOutcome::Lost,
            CallFailure::Method(_) => CallOutcome::Unknown,
            CallFailure::Middleware { .. } => CallOutcome::Denied,
            _ => CallOutcome::Other,
        }
    }

    pub(crate) fn of_call(error: &CallError) -> Self {
        match error {
            CallError::NotConnected(_)
            | CallError::PeerFailed(_)
            | CallError::DatapathSilent(_)
            | CallError::Closed(_) => CallOutcome::Lost,
            CallError::DeadlineExceeded(_) => CallOutcome::Deadline,
            CallError::Cancelled(_) => CallOutcome::Cancelled,
            CallError::NoMemory { .. } => CallOutcome::Overload,
            CallError::Server(status) => match status {
                Status::NoMemory | Status::WorkersBusy => CallOutcome::Overload,
                Status::DeadlineExceeded | Status::Expired => CallOutcome::Deadline,
                Status::Cancelled | Status::Dropped | Status::NotStarted => CallOutcome::Cancelled,
                Status::ShuttingDown | Status::GraceEnded => CallOutcome::ShuttingDown,
                Status::Panicked => CallOutcome::Panicked,
                Status::Denied => CallOutcome::Denied,
                Status::UnknownType => CallOutcome::Unknown,
                _ => CallOutcome::Other,
            },
            _ => CallOutcome::Other,
        }
    }
}
