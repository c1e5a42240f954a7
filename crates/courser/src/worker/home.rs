//! An endpoint, as its requests see it from other threads: where answers go, and memory.

use std::sync::atomic::{AtomicU64, Ordering};

use courser_buf::{Arena, MsgBuf};
use courser_proto::{RequestId, Status};

use crate::control::Mailbox;
use crate::platform::Clock;

/// The answer to one request, on its way to the endpoint's thread.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) id: RequestId,
    pub(crate) outcome: Outcome,
}

/// What a request is answered with.
#[derive(Debug)]
pub(crate) enum Outcome {
    Response(MsgBuf),
    Status(Status),
}

/// What every request in the hands of a worker shares with its endpoint. It may outlive the
/// endpoint; answers go nowhere then.
#[derive(Debug)]
pub(crate) struct Home {
    mailbox: Mailbox,
    pub(super) arena: Arena,
    /// The workers' clock.
    pub(super) clock: Clock,
    /// The endpoint's number.
    pub(super) endpoint: u16,
    panics: AtomicU64,
}

impl Home {
    pub(super) fn new(mailbox: Mailbox, arena: Arena, clock: Clock, endpoint: u16) -> Self {
        Home { mailbox, arena, clock, endpoint, panics: AtomicU64::new(0) }
    }

    /// Sends an answer to the endpoint's thread and wakes it if it sleeps. There are never more
    /// answers on the way than requests that were handed out: each has one.
    pub(super) fn answer(&self, id: RequestId, outcome: Outcome) {
        self.mailbox.post_answer(Answer { id, outcome });
    }

    /// Whether the endpoint is gone, so that answers have no receiver.
    pub(super) fn is_gone(&self) -> bool {
        self.mailbox.is_closed()
    }

    pub(super) fn count_panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }
}
