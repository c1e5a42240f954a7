//! Kinds of calls, and of their ends.

use courser::{CallError, Status};

/// Kinds of requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub(super) enum Kind {
    /// An immediate response.
    Echo = 1,
    /// A response by a timer.
    Later = 2,
    /// A response after a call to another server.
    Nested = 3,
    /// A response by a worker.
    Work = 4,
    /// A refusal.
    Refuse = 5,
    /// Much of the server's time.
    Slow = 6,
    /// No response: the handler drops its duty to answer.
    Forget = 7,
    /// A panic of the handler.
    Panic = 8,
    /// A type without a handler.
    Unknown = 9,
    /// The request as response, after a delay.
    Keep = 10,
}

impl Kind {
    pub(super) const ALL: [Kind; 10] = [
        Kind::Echo,
        Kind::Later,
        Kind::Nested,
        Kind::Work,
        Kind::Refuse,
        Kind::Slow,
        Kind::Forget,
        Kind::Panic,
        Kind::Unknown,
        Kind::Keep,
    ];

    /// Returns whether a server may return this error instead of a response without any fault.
    pub(super) fn may_get(self, status: Status) -> bool {
        match status {
            Status::Rejected => self == Kind::Refuse,
            // The nested call may have been rejected.
            Status::NoReply => matches!(self, Kind::Forget | Kind::Nested),
            Status::Panicked => self == Kind::Panic,
            Status::UnknownType => self == Kind::Unknown,
            Status::WorkersBusy => self == Kind::Work,
            _ => false,
        }
    }

    /// Returns whether it can end with a response.
    pub(super) fn is_answered(self) -> bool {
        !matches!(self, Kind::Refuse | Kind::Forget | Kind::Panic | Kind::Unknown)
    }
}

/// Names of the ends of calls.
pub const ENDS: [&str; 19] = [
    "response",
    "not-connected",
    "peer-failed",
    "datapath-silent",
    "closed",
    "deadline-exceeded",
    "cancelled",
    "no-memory-here",
    "response-too-large",
    "unknown-type",
    "request-too-large",
    "server-no-memory",
    "no-reply",
    "response-failed",
    "refused",
    "workers-busy",
    "panicked",
    "shutting-down",
    "other",
];

/// Index in [`ENDS`] of an error.
pub(super) fn end_index(error: &CallError) -> usize {
    match error {
        CallError::NotConnected(_) => 1,
        CallError::PeerFailed(_) => 2,
        CallError::DatapathSilent(_) => 3,
        CallError::Closed(_) => 4,
        CallError::DeadlineExceeded(_) => 5,
        CallError::Cancelled(_) => 6,
        CallError::NoMemory { .. } => 7,
        CallError::ResponseTooLarge { .. } => 8,
        CallError::Server(Status::UnknownType) => 9,
        CallError::Server(Status::TooLarge) => 10,
        CallError::Server(Status::NoMemory) => 11,
        CallError::Server(Status::NoReply) => 12,
        CallError::Server(Status::ResponseFailed) => 13,
        CallError::Server(Status::Rejected) => 14,
        CallError::Server(Status::WorkersBusy) => 15,
        CallError::Server(Status::Panicked) => 16,
        CallError::Server(Status::ShuttingDown) => 17,
        // Other statuses, and errors of later versions.
        _ => 18,
    }
}
