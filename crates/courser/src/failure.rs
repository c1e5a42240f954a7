//! The error of a call that a future awaits.

use courser_buf::AllocError;
use courser_proto::{CallError, Executed, RejectReason};

/// Why an awaited call has no response, or an awaited message was not sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallFailure {
    /// The call did not start.
    #[error(transparent)]
    Rejected(#[from] RejectReason),
    /// The call ended with an error.
    #[error(transparent)]
    Failed(#[from] CallError),
    /// There is no memory for the request, or for the copy of the response.
    #[error(transparent)]
    NoMemory(#[from] AllocError),
    /// The endpoint was dropped, or its event loop has ended.
    #[error("the endpoint of this session has ended; connect with another one")]
    Stopped,
}

impl CallFailure {
    /// Whether the handler ran.
    pub fn executed(&self) -> Executed {
        match self {
            CallFailure::Rejected(_) => Executed::Never,
            CallFailure::Failed(e) => e.executed(),
            // Of a response: requests have their memory before the call.
            CallFailure::NoMemory(_) | CallFailure::Stopped => Executed::Maybe,
        }
    }
}
