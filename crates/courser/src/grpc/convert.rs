//! Errors of calls as statuses.

use courser_proto::{CallError, RejectReason, Status as Verdict};

use super::{Code, Status};
use crate::error::failure::CallFailure;
use crate::error::hello::HelloError;
use crate::error::service::{
    DecodeError, EncodeError, MidStreamError, NoError, RpcError, StreamError,
};

/// The status of the handler, or one for the error of the call, with its text: as gRPC reports them, a
/// call whose server is lost is [`Code::Unavailable`], and one of a method that the server does not have
/// [`Code::Unimplemented`].
impl From<RpcError<Status>> for Status {
    fn from(error: RpcError<Status>) -> Self {
        error.into_service().unwrap_or_else(Status::from)
    }
}

/// A status for the error of the call, with its text.
impl From<RpcError<NoError>> for Status {
    fn from(error: RpcError<NoError>) -> Self {
        let code = match &error {
            RpcError::Service(never) => match *never {},
            RpcError::Call(failure) => of_failure(failure),
            RpcError::UnknownMethod(_) | RpcError::ShapeMismatch(_) => Code::Unimplemented,
            RpcError::Encode(e) => of_encode(e),
            RpcError::Decode(e) => of_decode(e),
            RpcError::Denied(_) => Code::PermissionDenied,
            RpcError::Unauthenticated(_) => Code::Unauthenticated,
            RpcError::TooMany { .. } => Code::ResourceExhausted,
            RpcError::Stream(StreamError::TooMany | StreamError::Limit) => Code::ResourceExhausted,
            RpcError::Stream(_) => Code::Internal,
            RpcError::FewSlots { .. } => Code::FailedPrecondition,
            RpcError::MidStream(e) => of_mid_stream(e),
        };
        Status::new(code, error.to_string())
    }
}

/// A status for the error of connecting, with its text.
impl From<HelloError> for Status {
    fn from(error: HelloError) -> Self {
        let code = match &error {
            HelloError::Mismatch(_) | HelloError::NoService { .. } => Code::Unimplemented,
            HelloError::Denied { .. } => Code::PermissionDenied,
            HelloError::Call(failure) => of_failure(failure),
            HelloError::Encode(e) => of_encode(e),
            HelloError::Decode(e) => of_decode(e),
            HelloError::Connect(_) => Code::Unavailable,
        };
        Status::new(code, error.to_string())
    }
}

/// A status for an item of a client that is not decoded, with its text.
impl From<DecodeError> for Status {
    fn from(error: DecodeError) -> Self {
        Status::new(of_decode(&error), error.to_string())
    }
}

fn of_failure(failure: &CallFailure) -> Code {
    match failure {
        CallFailure::Rejected(RejectReason::NoSession(_)) => Code::Unavailable,
        CallFailure::Rejected(RejectReason::NotClient) => Code::Internal,
        CallFailure::Rejected(_) | CallFailure::NoMemory(_) => Code::ResourceExhausted,
        CallFailure::Failed(error) => of_call(error),
        CallFailure::Method(_) => Code::Unimplemented,
        // It has a text only. tonic has this code for errors of layers, too.
        CallFailure::Middleware { .. } => Code::Unknown,
        CallFailure::Forked => Code::FailedPrecondition,
        CallFailure::NotConnected { .. } | CallFailure::Lost { .. } | CallFailure::Stopped => {
            Code::Unavailable
        }
    }
}

fn of_call(error: &CallError) -> Code {
    match error {
        CallError::Server(verdict) => of_verdict(*verdict),
        CallError::DeadlineExceeded(_) => Code::DeadlineExceeded,
        CallError::Cancelled(_) => Code::Cancelled,
        CallError::NoMemory { .. } | CallError::ResponseTooLarge { .. } => Code::ResourceExhausted,
        CallError::NotConnected(_)
        | CallError::PeerFailed(_)
        | CallError::DatapathSilent(_)
        | CallError::Closed(_) => Code::Unavailable,
        _ => Code::Unknown,
    }
}

fn of_verdict(verdict: Verdict) -> Code {
    match verdict {
        Verdict::UnknownType => Code::Unimplemented,
        Verdict::TooLarge | Verdict::NoMemory | Verdict::WorkersBusy => Code::ResourceExhausted,
        Verdict::DeadlineExceeded | Verdict::Expired => Code::DeadlineExceeded,
        Verdict::Cancelled => Code::Cancelled,
        Verdict::Rejected
        | Verdict::ShuttingDown
        | Verdict::NotStarted
        | Verdict::Dropped
        | Verdict::GraceEnded => Code::Unavailable,
        Verdict::Denied => Code::PermissionDenied,
        Verdict::NoReply | Verdict::ResponseFailed | Verdict::Panicked => Code::Internal,
        _ => Code::Unknown,
    }
}

fn of_encode(error: &EncodeError) -> Code {
    match error {
        EncodeError::TooLarge { .. } | EncodeError::NoMemory(_) => Code::ResourceExhausted,
        EncodeError::Codec { .. } | EncodeError::TooDeep { .. } | EncodeError::Remote(_) => {
            Code::Internal
        }
    }
}

fn of_decode(error: &DecodeError) -> Code {
    match error {
        DecodeError::HeapFull { .. }
        | DecodeError::HeapLimit { .. }
        | DecodeError::NoMemory(_)
        | DecodeError::RemoteFull(_)
        | DecodeError::RemoteLimit(_) => Code::ResourceExhausted,
        DecodeError::Codec { .. }
        | DecodeError::Trailing { .. }
        | DecodeError::Form(_)
        | DecodeError::TooDeep { .. }
        | DecodeError::Elements
        | DecodeError::Remote(_) => Code::Internal,
    }
}

fn of_mid_stream(error: &MidStreamError) -> Code {
    match error {
        MidStreamError::Call(failure) => of_failure(failure),
        MidStreamError::Encode(e) => of_encode(e),
        MidStreamError::Decode(e) => of_decode(e),
        MidStreamError::ShuttingDown { .. } => Code::Unavailable,
        // It does not help to send the item again.
        MidStreamError::Closed => Code::FailedPrecondition,
    }
}
