//! The verdicts of answers, whose values are not decoded.

use courser_proto::{CallError, Status};

use super::answer::{refused, tag};
use super::context::trailer;
use crate::counts::CallOutcome;
use crate::error::service::{NoError, RpcError};

/// The error of a response without a value or an application error. `None`: it has one of them, or it is
/// malformed.
pub(crate) fn refusal(response: &[u8]) -> Option<RpcError<NoError>> {
    match without_metadata(response).split_last()? {
        (&(tag::OK | tag::FAILED), _) => None,
        (tag, payload) => Some(refused(*tag, payload)),
    }
}

/// A response without its metadata, if it has some; nothing of one that is malformed.
fn without_metadata(response: &[u8]) -> &[u8] {
    match trailer::split_answer(response) {
        Ok((_, len)) => &response[..len],
        Err(_) => &[],
    }
}

/// The outcome of a call by its answer: a response, or a status.
pub(crate) fn outcome_of(answer: Result<&[u8], Status>) -> CallOutcome {
    let answer = match answer {
        Ok(answer) => without_metadata(answer),
        Err(status) => return CallOutcome::of_call(&CallError::Server(status)),
    };
    match answer.split_last() {
        Some((&tag::OK, _)) => CallOutcome::Ok,
        Some((&tag::FAILED, _)) => CallOutcome::Failed,
        Some((tag, payload)) => CallOutcome::of_error(&refused::<NoError>(*tag, payload)),
        None => CallOutcome::Other,
    }
}
