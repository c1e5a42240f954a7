//! Errors of calls and replies, and whether the handler has run.

use std::fmt;

use crate::session::ConnectRefuseReason;

/// States whether the request's handler ran, which decides whether a retry is safe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Executed {
    /// The handler has not run and will not: retry freely.
    Never,
    /// The handler may have run, may be running, or may run: retry only what is idempotent.
    Maybe,
    /// The handler has run; only its answer is missing.
    Yes,
}

impl fmt::Display for Executed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Executed::Never => "never executed",
            Executed::Maybe => "may have executed",
            Executed::Yes => "executed",
        })
    }
}

/// Status codes of a server's error response; the numbers are those of the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
#[non_exhaustive]
pub enum Status {
    /// No handler is registered for this request type (E3).
    UnknownType = 1,
    /// The request is larger than the server accepts.
    TooLarge = 2,
    /// The server has no memory for the request.
    NoMemory = 3,
    /// The handler dropped its reply handle without answering.
    NoReply = 4,
    /// The response is larger than the server sends, or it had no memory for it.
    ResponseFailed = 5,
    /// The handler rejected the request.
    Rejected = 6,
    /// The server has as many requests for workers or handlers as it takes, in all or of this client;
    /// nothing was started (E10).
    WorkersBusy = 7,
    /// The handler panicked before it had answered.
    Panicked = 8,
    /// The call's deadline had passed before its handler started (ADR 15).
    DeadlineExceeded = 9,
    /// The client cancelled the call before its handler started (ADR 15).
    Cancelled = 10,
    /// The server is shutting down and starts no new requests.
    ShuttingDown = 11,
    /// The call's deadline passed while its handler ran, which was dropped without an answer. The
    /// client sees [`CallError::DeadlineExceeded`].
    Expired = 12,
    /// The server dropped the request before its handler started: the runtime of its handlers has
    /// ended, or refused the handler.
    NotStarted = 13,
    /// The server dropped the handler while it ran, before it had answered.
    Dropped = 14,
    /// The server does not allow this client to make the request; no handler was started.
    Denied = 15,
    /// The server has shut down, and its grace ended before the handler had answered.
    GraceEnded = 16,
    /// An unknown code.
    Other = u16::MAX,
}

impl Status {
    /// The status of a wire code.
    pub fn from_code(code: u16) -> Self {
        match code {
            1 => Status::UnknownType,
            2 => Status::TooLarge,
            3 => Status::NoMemory,
            4 => Status::NoReply,
            5 => Status::ResponseFailed,
            6 => Status::Rejected,
            7 => Status::WorkersBusy,
            8 => Status::Panicked,
            9 => Status::DeadlineExceeded,
            10 => Status::Cancelled,
            11 => Status::ShuttingDown,
            12 => Status::Expired,
            13 => Status::NotStarted,
            14 => Status::Dropped,
            15 => Status::Denied,
            16 => Status::GraceEnded,
            _ => Status::Other,
        }
    }

    /// The cause, and what to do about it.
    fn text(self) -> &'static str {
        match self {
            Status::UnknownType => {
                "the server has no handler for this request type; check the type and the version \
                 of the server"
            }
            Status::TooLarge => {
                "the request is larger than the server accepts; split it or raise the server's \
                 max_msg_size"
            }
            Status::NoMemory => {
                "the server has no memory for the request; try again later or raise its memory_limit"
            }
            Status::NoReply => "the handler ended without a reply; check the handler of the server",
            Status::ResponseFailed => {
                "the server could not send its response; raise the server's max_msg_size or \
                 memory_limit"
            }
            Status::Rejected => "the handler rejected the request; check what the handler requires",
            Status::WorkersBusy => {
                "the server has as many requests for handlers as it takes at a time, in all or of this \
                 client; try again later, or raise its max_in_progress or worker_queue"
            }
            Status::Panicked => "the handler panicked; read the log of the server",
            Status::DeadlineExceeded => {
                "the deadline passed before the handler was started; check the load of the server \
                 or set a later one"
            }
            Status::Cancelled => {
                "the call was cancelled before its handler was started; call again if it is still \
                 needed"
            }
            Status::ShuttingDown => "the server is shutting down; call another one",
            Status::Expired => {
                "the deadline passed while the handler ran; check the load of the server or set a later \
                 one"
            }
            Status::NotStarted => {
                "the server dropped the request before its handler was started; call again, or \
                 another server"
            }
            Status::Dropped => {
                "the server dropped the handler before it had answered, as its runtime has ended; \
                 check whether the server still runs"
            }
            Status::Denied => {
                "the server does not allow this client to make the request; use a client that it \
                 allows"
            }
            Status::GraceEnded => {
                "the server is shutting down, and the grace of its shutdown ended before the handler \
                 had answered; call another server if the request may run twice, or let the handler \
                 end early (DrainToken)"
            }
            Status::Other => {
                "the server reports an error that this version does not know; upgrade this side"
            }
        }
    }

    /// Returns whether the handler has run.
    pub fn executed(self) -> Executed {
        match self {
            Status::UnknownType
            | Status::TooLarge
            | Status::NoMemory
            | Status::WorkersBusy
            | Status::DeadlineExceeded
            | Status::Cancelled
            | Status::ShuttingDown
            | Status::NotStarted
            | Status::Denied => Executed::Never,
            Status::NoReply | Status::ResponseFailed | Status::Rejected => Executed::Yes,
            // A handler that panicked, was dropped, or had not ended, has run in part.
            Status::Panicked
            | Status::Expired
            | Status::Dropped
            | Status::GraceEnded
            | Status::Other => Executed::Maybe,
        }
    }
}

/// Why a session is not, or no longer, connected: the kind of the cause. The library keeps the
/// details (addresses, errors of the system) with the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionEnd {
    /// The server's control port could not be reached.
    #[error("its server could not be reached; call Rpc::session_error for address and reason")]
    Unreachable,
    /// The server accepted the control connection, but no endpoint answered in time.
    #[error(
        "no endpoint of its server answered in time; check that the server runs its event loop, or \
         raise connect_timeout"
    )]
    Unanswered,
    /// The server refused the session.
    #[error("its server refused it: {0}")]
    Refused(ConnectRefuseReason),
    /// The server's answer to the connect request was not usable.
    #[error("its server sent an unusable answer; check that both sides run the same version")]
    BadAnswer,
    /// The datapath address of the server cannot be reached.
    #[error("its server has no reachable datapath address; call Rpc::session_error for the reason")]
    NoPath,
    /// The control connection ended: the peer failed, or the network in between.
    #[error("its control connection ended; connect again, Rpc::session_error has the reason")]
    PeerFailed,
    /// The server closed its endpoint.
    #[error("its server closed the endpoint; connect to another endpoint or server")]
    EndpointGone,
    /// The server ended it before its first request, to make room for another session.
    #[error("its server ended it unused, to make room; connect again when there are calls to make")]
    Evicted,
    /// The control connection lived, but the datapath carried no packet (ADR 13).
    #[error("its datapath carried no packet; check firewalls and the path MTU, then connect again")]
    DatapathSilent,
    /// This side closed it.
    #[error("this endpoint closed it; connect again")]
    Closed,
    /// No session with this number is known: it never existed, or ended long ago.
    #[error("it never existed, was closed, or ended long ago; connect again")]
    Unknown,
}

/// Why an accepted call ended without a response. Its request buffer is returned with the error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The session could not be set up, for this reason.
    NotConnected(SessionEnd),
    /// The server answered with an error status.
    Server(Status),
    /// The peer, its process or its control connection is gone.
    PeerFailed(Executed),
    /// The control connection works, but no packet arrives on the datapath (ADR 13).
    DatapathSilent(Executed),
    /// This side closed the session.
    Closed(Executed),
    /// The call's deadline passed before its response arrived (ADR 15).
    DeadlineExceeded(Executed),
    /// The application cancelled the call (ADR 15).
    Cancelled(Executed),
    /// The response arrived but there was no memory to receive it.
    NoMemory {
        /// Bytes of the response.
        response_bytes: u32,
    },
    /// The response is larger than this endpoint accepts.
    ResponseTooLarge {
        /// Bytes of the response.
        response_bytes: u32,
        /// Limit: `Config::max_msg_size`.
        limit: u32,
    },
}

impl CallError {
    /// Returns whether the handler ran.
    pub fn executed(&self) -> Executed {
        match *self {
            CallError::NotConnected(_) => Executed::Never,
            CallError::Server(s) => s.executed(),
            CallError::PeerFailed(e)
            | CallError::DatapathSilent(e)
            | CallError::Closed(e)
            | CallError::DeadlineExceeded(e)
            | CallError::Cancelled(e) => e,
            CallError::NoMemory { .. } | CallError::ResponseTooLarge { .. } => Executed::Yes,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::NotConnected(end) => write!(f, "the session was not connected: {end}")?,
            CallError::Server(s) => f.write_str(s.text())?,
            CallError::PeerFailed(_) => {
                f.write_str("the peer failed; connect again, Rpc::session_error has the reason")?;
            }
            CallError::DatapathSilent(_) => f.write_str(
                "the peer's control connection is up, but the datapath carries no packet; check \
                 that firewalls pass its UDP port and that the path MTU is right",
            )?,
            CallError::Closed(_) => f.write_str("this side closed the session; connect again")?,
            CallError::DeadlineExceeded(_) => f.write_str(
                "the deadline of the call passed; check that the server runs, and its load, or set a later one",
            )?,
            CallError::Cancelled(_) => {
                f.write_str(
                    "the application cancelled the call; call again if it is still needed",
                )?;
            }
            CallError::NoMemory { response_bytes } => write!(
                f,
                "no memory for a response of {response_bytes} bytes; drop message buffers or raise \
                 memory_limit"
            )?,
            CallError::ResponseTooLarge { response_bytes, limit } => write!(
                f,
                "a response of {response_bytes} bytes is over the limit of {limit}; \
                 raise max_msg_size"
            )?,
        }
        write!(f, " ({})", self.executed())
    }
}

impl std::error::Error for CallError {}

/// Why a call was not accepted; nothing was queued, and the buffer is returned at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RejectReason {
    /// There is no such session, or it has ended.
    #[error("the session is not connected: {0}")]
    NoSession(SessionEnd),
    /// This endpoint is the server of the session.
    #[error(
        "this endpoint is the server of that session; connect a session to call the other side"
    )]
    NotClient,
    /// The session's queue of waiting calls is full.
    #[error("{limit} calls already wait on this session; wait for completions or raise call_queue")]
    QueueFull {
        /// `Config::call_queue`.
        limit: usize,
    },
    /// The session's queue of one-way messages is full.
    #[error(
        "{limit} messages of this session are not acknowledged; wait for room (Rpc::on_room), send \
         less, or raise message_queue"
    )]
    MessagesFull {
        /// `Config::message_queue`.
        limit: usize,
    },
    /// The request is larger than this endpoint sends or its peer accepts.
    #[error(
        "a request of {bytes} bytes is over the limit of {limit} agreed with this peer; split it or \
         raise max_msg_size on both sides"
    )]
    TooLarge {
        /// Bytes of the request.
        bytes: usize,
        /// Bytes allowed.
        limit: u32,
    },
}

/// Why a reply failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// The request is gone: its session ended, or it was answered before.
    #[error("the request is gone, its session ended or it was already answered; drop the response")]
    Gone,
    /// The request belongs to another endpoint of this program; its client gets an error instead.
    #[error("the reply handle is of another endpoint; answer with the endpoint that it came from")]
    OtherEndpoint,
    /// The response is too large; the client gets an error instead.
    #[error("a response of {bytes} bytes is over the limit of {limit}; raise max_msg_size")]
    TooLarge {
        /// Bytes of the response.
        bytes: usize,
        /// Bytes allowed.
        limit: u32,
    },
    /// No memory to hold the response; the client gets an error instead.
    #[error("no memory for the response: {0}")]
    NoMemory(#[from] courser_buf::AllocError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_unknown_ones_have_a_name() {
        for s in [
            Status::UnknownType,
            Status::TooLarge,
            Status::NoMemory,
            Status::NoReply,
            Status::ResponseFailed,
            Status::Rejected,
            Status::WorkersBusy,
            Status::Panicked,
            Status::DeadlineExceeded,
            Status::Cancelled,
            Status::ShuttingDown,
            Status::Expired,
            Status::NotStarted,
            Status::Dropped,
            Status::Denied,
            Status::GraceEnded,
            Status::Other,
        ] {
            assert_eq!(Status::from_code(s as u16), s);
        }
        assert_eq!(Status::from_code(777), Status::Other);
    }

    #[test]
    fn an_error_states_whether_the_handler_ran() {
        let e = CallError::Server(Status::UnknownType);
        assert_eq!(e.executed(), Executed::Never);
        assert!(e.to_string().ends_with("(never executed)"));
        assert_eq!(CallError::NoMemory { response_bytes: 1 }.executed(), Executed::Yes);
    }
}
