//! The table of the calls and one-way messages that futures await.
//!
//! Each has an entry from the first poll of its future until both the future and the call have
//! ended. A dropped future leaves the entry to its cancelled call. When the queue of the session is
//! full, the call waits here, in order, so that it is delayed and not refused.

use std::collections::VecDeque;

use courser_buf::MsgBuf;
use courser_proto::{CallId, SessionId};

use crate::core::queue::Waiter;
use crate::core::timer::TimerId;
use crate::error::failure::CallFailure;

/// The end of a call, or of a message: that one has no response, `Err(None)`. Two words, which stay
/// in registers.
pub(crate) type End = Result<MsgBuf, Option<Box<CallFailure>>>;

const _: () = assert!(size_of::<End>() == 16);

/// What a future starts.
pub(crate) struct Outgoing {
    pub(crate) session: SessionId,
    pub(crate) kind: Kind,
    pub(crate) message: MsgBuf,
    /// ns; `u64::MAX`: none.
    pub(crate) deadline_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Call(u16),
    Message(u16),
}

pub(super) enum Entry {
    Vacant,
    /// In the protocol.
    Started(CallId, Waiter),
    /// Waits for room in the queue of its session.
    Queued(Box<Queued>),
    Ended(End),
    /// The future was dropped. The entry is freed by its completion.
    Dropped,
}

pub(super) struct Queued {
    pub(super) outgoing: Outgoing,
    pub(super) waiter: Waiter,
    pub(super) deadline: Option<TimerId>,
    /// Its place in the order of all that were queued.
    pub(super) ticket: u64,
}

/// Entries that wait for room in the queue of a session, in order, each with its ticket. Those that
/// have left are skipped, and removed when they are the most, so that leaving takes constant time.
pub(super) struct Line {
    pub(super) session: SessionId,
    pub(super) entries: VecDeque<(u32, u64)>,
    /// Of them, those that have left.
    pub(super) left: usize,
}

/// The state of a poll.
pub(crate) enum Polled {
    Ended(End),
    /// The number of the entry.
    Waits(u32),
}

#[derive(Default)]
pub(crate) struct AwaitedCalls {
    pub(super) entries: Vec<Entry>,
    pub(super) vacant: Vec<u32>,
    /// Entries that wait, by session. Each line has one that has not left.
    pub(super) lines: Vec<Line>,
    /// The next ticket.
    pub(super) ticket: u64,
}

impl AwaitedCalls {
    #[inline]
    pub(super) fn add(&mut self, entry: Entry) -> u32 {
        if let Some(at) = self.vacant.pop() {
            self.set(at, entry);
            return at;
        }
        self.entries.push(entry);
        self.entries.len() as u32 - 1
    }

    /// Sets a vacant entry.
    #[inline]
    pub(super) fn set(&mut self, at: u32, entry: Entry) {
        // Without the call of a destructor.
        std::mem::forget(std::mem::replace(&mut self.entries[at as usize], entry));
    }

    #[inline]
    pub(super) fn free(&mut self, at: u32) -> Entry {
        self.vacant.push(at);
        std::mem::replace(&mut self.entries[at as usize], Entry::Vacant)
    }

    #[inline]
    pub(crate) fn any_queued(&self) -> bool {
        !self.lines.is_empty()
    }

    pub(crate) fn in_use(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    pub(crate) fn queued(&self) -> usize {
        self.lines.iter().map(|line| line.entries.len() - line.left).sum()
    }

    pub(super) fn has_queue(&self, outgoing: &Outgoing) -> bool {
        self.lines.iter().any(|line| line.session == outgoing.session)
    }

    pub(super) fn is_queued(&self, (at, ticket): (u32, u64)) -> bool {
        matches!(&self.entries[at as usize], Entry::Queued(queued) if queued.ticket == ticket)
    }

    pub(super) fn replace_queued(&mut self, at: u32, by: Entry) -> Option<Box<Queued>> {
        let entry = &mut self.entries[at as usize];
        if !matches!(entry, Entry::Queued(_)) {
            return None;
        }
        match std::mem::replace(entry, by) {
            Entry::Queued(queued) => Some(queued),
            _ => None,
        }
    }

    /// Takes an entry out of its line.
    pub(super) fn unqueue(&mut self, at: u32, by: Entry) -> Option<Box<Queued>> {
        let queued = self.replace_queued(at, by)?;
        let session = queued.outgoing.session;
        if let Some(n) = self.lines.iter().position(|line| line.session == session) {
            let line = &mut self.lines[n];
            line.left += 1;
            if 2 * line.left > line.entries.len() {
                self.tidy(n);
            }
        }
        Some(queued)
    }

    /// Removes the entries that have left from a line, and the line if there are no others.
    pub(super) fn tidy(&mut self, n: usize) {
        let mut entries = std::mem::take(&mut self.lines[n].entries);
        entries.retain(|entry| self.is_queued(*entry));
        if entries.is_empty() {
            self.lines.remove(n);
        } else {
            (self.lines[n].entries, self.lines[n].left) = (entries, 0);
        }
    }

    /// Adds an entry to the line of its session, and returns its ticket.
    pub(super) fn enqueue(&mut self, session: SessionId, at: u32) -> u64 {
        let ticket = self.ticket;
        self.ticket += 1;
        match self.lines.iter_mut().find(|line| line.session == session) {
            Some(line) => line.entries.push_back((at, ticket)),
            None => {
                let entries = VecDeque::from([(at, ticket)]);
                self.lines.push(Line { session, entries, left: 0 });
            }
        }
        ticket
    }
}

#[cold]
pub(super) fn failed(reason: impl Into<CallFailure>) -> End {
    Err(Some(Box::new(reason.into())))
}
