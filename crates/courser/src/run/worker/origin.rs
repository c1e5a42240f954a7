//! The part of an endpoint that its requests use on other threads: mailbox and message memory.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use courser_buf::Arena;
use courser_proto::RequestId;

use crate::control::mailbox::{Answer, AnswerBody, Mailbox};
use crate::platform::Clock;

/// The state that an endpoint's submitted requests share. It may outlive the endpoint; answers are
/// dropped then.
#[derive(Debug)]
pub(crate) struct Origin {
    mailbox: Mailbox,
    pub(super) arena: Arena,
    /// The workers' clock.
    pub(super) clock: Clock,
    /// The endpoint's number.
    pub(super) endpoint: u16,
    panics: AtomicU64,
    /// One-way messages that are queued, or with their handlers.
    messages: AtomicUsize,
}

impl Origin {
    pub(super) fn new(mailbox: Mailbox, arena: Arena, clock: Clock, endpoint: u16) -> Self {
        Origin {
            mailbox,
            arena,
            clock,
            endpoint,
            panics: AtomicU64::new(0),
            messages: AtomicUsize::new(0),
        }
    }

    /// Sends an answer to the endpoint's thread and wakes it if it sleeps. Each submitted request
    /// has one answer, which bounds the mailbox.
    pub(super) fn answer(&self, id: RequestId, outcome: AnswerBody) {
        self.mailbox.post_answer(Answer { id, outcome });
    }

    /// Returns whether the endpoint is gone, so that answers are dropped.
    pub(super) fn is_gone(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// A message is handed out.
    pub(super) fn message_begins(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    /// A message is done with. An endpoint that sleeps may wait for the last one to shut down.
    pub(super) fn message_ends(&self) {
        if self.messages.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.mailbox.wake_sleeper();
        }
    }

    /// Messages that are queued, or with their handlers.
    pub(crate) fn messages(&self) -> usize {
        self.messages.load(Ordering::Acquire)
    }

    pub(super) fn count_panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }
}
