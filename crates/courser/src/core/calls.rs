//! The table of the calls and one-way messages that futures await.
//!
//! Each has an entry from the first poll of its future until both the future and the call have
//! ended. A dropped future leaves the entry to its cancelled call. When the queue of the session is
//! full, the call waits here, in order, so that it is delayed and not refused.

use courser_buf::MsgBuf;
use courser_proto::{CallId, SessionId};

use crate::core::queue::Waiter;
use crate::core::timer::TimerId;
use crate::error::failure::CallFailure;
use crate::submit::Waiters;

/// The end of a call, or of a message: that one has no response, `Err(None)`. Two words, which stay
/// in registers.
pub(crate) type End = Result<MsgBuf, Option<Box<CallFailure>>>;

const _: () = assert!(size_of::<End>() == 16);

/// The call or message that a future starts.
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
    /// Its task is polled with the response, of one packet.
    Answered,
    Ended(End),
    /// The future was dropped. The entry is freed by its completion.
    Dropped,
}

pub(super) struct Queued {
    pub(super) session: SessionId,
    /// `None` while it is being started.
    pub(super) outgoing: Option<Outgoing>,
    pub(super) waiter: Waiter,
    pub(super) deadline: Option<TimerId>,
    /// Its place in the order of all that were queued.
    pub(super) ticket: u64,
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
    /// The buffer of the request of [`Entry::Answered`].
    pub(super) answered: Option<MsgBuf>,
    /// Entries that wait for room, each with its ticket.
    pub(super) waiters: Waiters<(u32, u64)>,
    /// The next ticket.
    pub(super) ticket: u64,
    /// Times that queued entries were tried.
    #[cfg(test)]
    pub(crate) tries: usize,
}

impl AwaitedCalls {
    /// A vacant entry.
    #[inline]
    pub(super) fn take_vacant(&mut self) -> u32 {
        self.vacant.pop().unwrap_or_else(|| self.add_vacant())
    }

    fn add_vacant(&mut self) -> u32 {
        self.entries.push(Entry::Vacant);
        self.entries.len() as u32 - 1
    }

    /// Sets an entry that has nothing to drop.
    #[inline]
    pub(super) fn set(&mut self, at: u32, entry: Entry) {
        // Without the call of a destructor.
        std::mem::forget(std::mem::replace(&mut self.entries[at as usize], entry));
    }

    /// Takes a response that is shown to this poll: the buffer of its request. `None`: the entry is
    /// in another state.
    #[inline]
    pub(super) fn take_answered(&mut self, at: u32) -> Option<MsgBuf> {
        if !matches!(self.entries[at as usize], Entry::Answered) {
            return None;
        }
        self.set(at, Entry::Vacant);
        self.vacant.push(at);
        self.answered.take()
    }

    #[inline]
    pub(super) fn free(&mut self, at: u32) -> Entry {
        self.vacant.push(at);
        std::mem::replace(&mut self.entries[at as usize], Entry::Vacant)
    }

    #[inline]
    pub(crate) fn any_queued(&self) -> bool {
        !self.waiters.is_empty()
    }

    pub(crate) fn in_use(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    pub(crate) fn queued(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn has_queue(&self, outgoing: &Outgoing) -> bool {
        self.waiters.has(outgoing.session)
    }

    pub(super) fn is_queued(&self, entry: (u32, u64)) -> bool {
        is_queued(&self.entries, entry)
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

    /// Takes an entry out of its line. The second part states that it was the first one there.
    pub(super) fn unqueue(&mut self, at: u32, by: Entry) -> Option<(Box<Queued>, bool)> {
        let queued = self.replace_queued(at, by)?;
        let is_first = self.waiters.front(queued.session) == Some(&(at, queued.ticket));
        let entries = &self.entries;
        self.waiters.leave(queued.session, |entry| is_queued(entries, *entry));
        Some((queued, is_first))
    }

    /// Adds an entry to the line of its session, and returns its ticket.
    pub(super) fn enqueue(&mut self, session: SessionId, at: u32) -> u64 {
        let ticket = self.ticket;
        self.ticket += 1;
        self.waiters.push(session, (at, ticket));
        ticket
    }
}

fn is_queued(entries: &[Entry], (at, ticket): (u32, u64)) -> bool {
    matches!(&entries[at as usize], Entry::Queued(queued) if queued.ticket == ticket)
}

#[cold]
pub(super) fn failed(reason: impl Into<CallFailure>) -> End {
    Err(Some(Box::new(reason.into())))
}
