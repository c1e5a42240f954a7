//! The error of a call that a future awaits.

use std::sync::Arc;

use courser_buf::AllocError;
use courser_proto::{CallError, Executed, RejectReason};

use crate::error::FORKED;
use crate::error::method::MethodMismatch;

/// Why an awaited call has no response, or an awaited message was not sent.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::{CallError, CallFailure, Client, Executed, Status};
///
/// let client = Client::connect(&uri).await?;
/// let failure = client.call(7, client.alloc(8)?).await.unwrap_err();
/// assert!(matches!(failure, CallFailure::Failed(_)), "{failure:?}");
/// if failure.executed() == Executed::Never {
///     println!("not done, and may be tried again: {failure}");
/// }
/// # Ok(()) }) }
/// ```
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
    /// There is no session with the server: the last one was lost before the call started, and a
    /// connect has failed, or did not succeed in the time that the call had.
    #[error("no session with {server}: {reason}")]
    NotConnected {
        /// The address of the server.
        server: Arc<str>,
        /// The text of the last [`crate::SessionError`].
        reason: Arc<str>,
    },
    /// The session was lost while the call was in progress ([`crate::Client`] only).
    #[error("the session with {server} was lost during the call: {reason} ({executed})")]
    Lost {
        /// The address of the server.
        server: Arc<str>,
        /// The text of its [`crate::SessionError`].
        reason: Arc<str>,
        /// True if the handler ran.
        executed: Executed,
    },
    /// The server does not have the typed method, or has it with other types. Typed calls report it as
    /// [`RpcError::UnknownMethod`](crate::service::RpcError::UnknownMethod) or
    /// [`RpcError::ShapeMismatch`](crate::service::RpcError::ShapeMismatch).
    #[error(transparent)]
    Method(#[from] MethodMismatch),
    /// Middleware has refused the call, or a layer of `courser::tower` has ended it.
    #[error("middleware has ended the call ({reason}); check what it requires ({executed})")]
    Middleware {
        /// The text of the middleware.
        reason: Arc<str>,
        /// True if the handler ran.
        executed: Executed,
    },
    /// The process was forked from that of the endpoint.
    #[error("{FORKED}")]
    Forked,
    /// The endpoint was dropped, or its event loop has ended.
    #[error("the endpoint of this session has ended; connect with another one")]
    Stopped,
}

impl CallFailure {
    /// The failure of a call that was not made, because a call that has to come before it failed.
    pub(crate) fn before_the_call(self) -> Self {
        use CallError::{Cancelled, Closed, DatapathSilent, DeadlineExceeded, PeerFailed};
        match self {
            CallFailure::Failed(e) => CallFailure::Failed(match e {
                PeerFailed(_) => PeerFailed(Executed::Never),
                DatapathSilent(_) => DatapathSilent(Executed::Never),
                Closed(_) => Closed(Executed::Never),
                DeadlineExceeded(_) => DeadlineExceeded(Executed::Never),
                Cancelled(_) => Cancelled(Executed::Never),
                e if e.executed() == Executed::Never => e,
                e => return CallFailure::not_connected(e),
            }),
            CallFailure::Lost { server, reason, .. } => {
                CallFailure::Lost { server, reason, executed: Executed::Never }
            }
            CallFailure::NoMemory(_) | CallFailure::Stopped => CallFailure::not_connected(self),
            CallFailure::Middleware { reason, .. } => {
                CallFailure::Middleware { reason, executed: Executed::Never }
            }
            failure => failure,
        }
    }

    fn not_connected(reason: impl std::fmt::Display) -> Self {
        let (server, reason) = ("the server".into(), reason.to_string().into());
        CallFailure::NotConnected { server, reason }
    }

    /// Returns whether the handler ran.
    pub fn executed(&self) -> Executed {
        match self {
            CallFailure::Rejected(_)
            | CallFailure::NotConnected { .. }
            | CallFailure::Method(_)
            | CallFailure::Forked => Executed::Never,
            CallFailure::Failed(e) => e.executed(),
            CallFailure::Lost { executed, .. } | CallFailure::Middleware { executed, .. } => {
                *executed
            }
            // Of a response: requests have their memory before the call.
            CallFailure::NoMemory(_) | CallFailure::Stopped => Executed::Maybe,
        }
    }
}
