//! Calls and one-way messages that futures await.
//!
//! Each has an entry from the first poll of its future until both the future and the call have
//! ended. A dropped future leaves the entry to its cancelled call. When the queue of the session is
//! full, the call waits here, in order, so that it is delayed and not refused.

use std::collections::VecDeque;
use std::task::Context;

use courser_buf::MsgBuf;
use courser_proto::mutant::{self, Mutant};
use courser_proto::{Body, CallError, CallId, CallOptions, Executed, RejectReason, SessionId};

use super::executor::Waiter;
use crate::core::Core;
use crate::core::continuations::Cont;
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

enum Entry {
    Vacant,
    /// In the protocol.
    Started(CallId, Waiter),
    /// Waits for room in the queue of its session.
    Queued(Box<Queued>),
    Ended(End),
    /// The future was dropped. The entry is freed by its completion.
    Dropped,
}

struct Queued {
    outgoing: Outgoing,
    waiter: Waiter,
    deadline: Option<TimerId>,
    /// Its place in the order of all that were queued.
    ticket: u64,
}

/// Entries that wait for room in the queue of a session, in order, each with its ticket. Those that
/// have left are skipped, and removed when they are the most, so that leaving takes constant time.
struct Line {
    session: SessionId,
    entries: VecDeque<(u32, u64)>,
    /// Of them, those that have left.
    left: usize,
}

/// The state of a poll.
pub(crate) enum Polled {
    Ended(End),
    /// The number of the entry.
    Waits(u32),
}

#[derive(Default)]
pub(crate) struct AwaitedCalls {
    entries: Vec<Entry>,
    vacant: Vec<u32>,
    /// Entries that wait, by session. Each line has one that has not left.
    lines: Vec<Line>,
    /// The next ticket.
    ticket: u64,
}

impl AwaitedCalls {
    #[inline]
    fn add(&mut self, entry: Entry) -> u32 {
        if let Some(at) = self.vacant.pop() {
            self.set(at, entry);
            return at;
        }
        self.entries.push(entry);
        self.entries.len() as u32 - 1
    }

    /// Sets a vacant entry.
    #[inline]
    fn set(&mut self, at: u32, entry: Entry) {
        // Without the call of a destructor.
        std::mem::forget(std::mem::replace(&mut self.entries[at as usize], entry));
    }

    #[inline]
    fn free(&mut self, at: u32) -> Entry {
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

    fn has_queue(&self, outgoing: &Outgoing) -> bool {
        self.lines.iter().any(|line| line.session == outgoing.session)
    }

    fn is_queued(&self, (at, ticket): (u32, u64)) -> bool {
        matches!(&self.entries[at as usize], Entry::Queued(queued) if queued.ticket == ticket)
    }

    fn replace_queued(&mut self, at: u32, by: Entry) -> Option<Box<Queued>> {
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
    fn unqueue(&mut self, at: u32, by: Entry) -> Option<Box<Queued>> {
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
    fn tidy(&mut self, n: usize) {
        let mut entries = std::mem::take(&mut self.lines[n].entries);
        entries.retain(|entry| self.is_queued(*entry));
        if entries.is_empty() {
            self.lines.remove(n);
        } else {
            (self.lines[n].entries, self.lines[n].left) = (entries, 0);
        }
    }

    /// Adds an entry to the line of its session, and returns its ticket.
    fn enqueue(&mut self, session: SessionId, at: u32) -> u64 {
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
fn failed(reason: impl Into<CallFailure>) -> End {
    Err(Some(Box::new(reason.into())))
}

/// The outcome of a start.
enum Start {
    Started(CallId),
    /// A message is in the queue of its session.
    Sent,
    /// There is no room.
    Full(Outgoing),
    Refused(CallFailure),
}

impl Core {
    /// Starts a call or message, or queues it.
    #[inline]
    pub(crate) fn start_awaited(
        &mut self,
        mut outgoing: Outgoing,
        waiter: impl FnOnce(&Core) -> Waiter,
    ) -> Polled {
        // The deadline of the request that this task answers.
        outgoing.deadline_ns = outgoing.deadline_ns.min(self.tasks.deadline_ns);
        let waiter = waiter(self);
        let at = self.tasks.calls.add(Entry::Vacant);
        let first = !self.tasks.calls.any_queued() || !self.tasks.calls.has_queue(&outgoing);
        let started = if first { self.start(at, outgoing) } else { Start::Full(outgoing) };
        let end = match started {
            Start::Started(call) => {
                self.tasks.calls.set(at, Entry::Started(call, waiter));
                return Polled::Waits(at);
            }
            Start::Full(outgoing) => {
                self.queue_entry(at, outgoing, waiter);
                return Polled::Waits(at);
            }
            Start::Sent => Err(None),
            Start::Refused(reason) => failed(reason),
        };
        self.tasks.calls.free(at);
        Polled::Ended(end)
    }

    #[inline]
    fn start(&mut self, at: u32, outgoing: Outgoing) -> Start {
        let Outgoing { session, kind, message, deadline_ns } = outgoing;
        let mut options = CallOptions::new();
        options.deadline_ns = (deadline_ns != u64::MAX).then_some(deadline_ns);
        let (reason, message) = match kind {
            Kind::Call(req_type) => {
                let cont = Cont::awaited(at);
                match self.proto.call_with(session, req_type, message, cont, options) {
                    Ok(call) => return Start::Started(call),
                    Err((reason, message, _)) => (reason, message),
                }
            }
            Kind::Message(msg_type) => {
                match self.proto.send(session, msg_type, message, options, Cont::none) {
                    Ok(()) => return Start::Sent,
                    Err(refused) => refused,
                }
            }
        };
        self.refused(reason, Outgoing { session, kind, message, deadline_ns })
    }

    #[cold]
    fn refused(&self, reason: RejectReason, outgoing: Outgoing) -> Start {
        if let RejectReason::QueueFull { .. } | RejectReason::MessagesFull { .. } = reason {
            return Start::Full(outgoing);
        }
        let Outgoing { session, message, .. } = outgoing;
        Start::Refused(self.rejected_call(session, reason, message).reason.into())
    }

    /// Queues an entry. Its deadline is kept by a timer of its own.
    #[cold]
    fn queue_entry(&mut self, at: u32, outgoing: Outgoing, waiter: Waiter) {
        let (session, due_ns) = (outgoing.session, outgoing.deadline_ns);
        let deadline = (due_ns != u64::MAX)
            .then(|| self.timers.once_at(due_ns, move |cx| cx.core.expire_queued(at)));
        let ticket = self.tasks.calls.enqueue(session, at);
        let queued = Queued { outgoing, waiter, deadline, ticket };
        self.tasks.calls.entries[at as usize] = Entry::Queued(Box::new(queued));
        self.queue.set_news();
    }

    /// The deadline of a queued entry has passed.
    fn expire_queued(&mut self, at: u32) {
        let calls = &mut self.tasks.calls;
        let end = failed(CallError::DeadlineExceeded(Executed::Never));
        if let Some(queued) = calls.unqueue(at, Entry::Ended(end)) {
            self.tasks.wake(queued.waiter);
        }
    }

    /// Starts queued entries for which there is room now. Whether there were any.
    #[cold]
    pub(crate) fn start_queued(&mut self) -> bool {
        let mut any = false;
        let mut lines = std::mem::take(&mut self.tasks.calls.lines);
        for line in &mut lines {
            while let Some(&entry) = line.entries.front() {
                if !self.tasks.calls.is_queued(entry) {
                    line.left -= 1;
                } else if self.start_from_queue(entry.0) {
                    any = true;
                } else {
                    break;
                }
                line.entries.pop_front();
            }
        }
        lines.retain(|line| !line.entries.is_empty());
        self.tasks.calls.lines = lines;
        any
    }

    /// Starts an entry; `false`: there still is no room.
    fn start_from_queue(&mut self, at: u32) -> bool {
        let Some(queued) = self.tasks.calls.replace_queued(at, Entry::Vacant) else { return true };
        let Queued { outgoing, waiter, deadline, ticket } = *queued;
        let end = match self.start(at, outgoing) {
            Start::Full(outgoing) => {
                let queued = Box::new(Queued { outgoing, waiter, deadline, ticket });
                self.tasks.calls.entries[at as usize] = Entry::Queued(queued);
                return false;
            }
            Start::Started(call) => Err(call),
            Start::Sent => Ok(Err(None)),
            Start::Refused(reason) => Ok(failed(reason)),
        };
        if let Some(timer) = deadline {
            self.timers.cancel(timer);
        }
        let entry = &mut self.tasks.calls.entries[at as usize];
        match end {
            Err(call) => *entry = Entry::Started(call, waiter),
            Ok(end) => {
                *entry = Entry::Ended(end);
                self.tasks.wake(waiter);
            }
        }
        true
    }

    /// The end of an entry, which is freed; `None`: `waiter` is woken when it ends.
    #[inline]
    pub(crate) fn poll_awaited(&mut self, at: u32, cx: &Context<'_>) -> Option<End> {
        let entry = &mut self.tasks.calls.entries[at as usize];
        if let Entry::Ended(_) = entry {
            let Entry::Ended(end) = self.tasks.calls.free(at) else { return None };
            return Some(end);
        }
        let new = self.tasks.waiter(cx);
        match &mut self.tasks.calls.entries[at as usize] {
            Entry::Started(_, waiter) => *waiter = new,
            Entry::Queued(queued) => queued.waiter = new,
            Entry::Vacant | Entry::Ended(_) | Entry::Dropped => {}
        }
        None
    }

    /// The completion of a call that a future awaits.
    #[inline(never)] // its arguments fit registers
    pub(crate) fn finish_awaited(
        &mut self,
        at: u32,
        request: MsgBuf,
        result: Result<Body<'_>, CallError>,
    ) {
        let entry = &self.tasks.calls.entries[at as usize];
        if matches!(entry, Entry::Dropped) {
            if !mutant::is_on(Mutant::DroppedEntryKept) {
                self.tasks.calls.free(at);
            }
            return;
        }
        let end = match result {
            Ok(body) => self.response(request, body),
            Err(e) => Err(e),
        };
        let end = end.or_else(failed);
        let entry = &mut self.tasks.calls.entries[at as usize];
        if let Entry::Started(_, waiter) = std::mem::replace(entry, Entry::Ended(end))
            && !mutant::is_on(Mutant::FutureNotWoken)
        {
            self.tasks.wake(waiter);
        }
    }

    /// The future of an entry was dropped: cancels its call.
    pub(crate) fn drop_awaited(&mut self, at: u32) {
        if let Some(queued) = self.tasks.calls.unqueue(at, Entry::Vacant) {
            if let Some(timer) = queued.deadline {
                self.timers.cancel(timer);
            }
            self.tasks.calls.free(at);
            return;
        }
        let entry = &mut self.tasks.calls.entries[at as usize];
        match std::mem::replace(entry, Entry::Dropped) {
            // The completion frees the entry.
            Entry::Started(call, _) => drop(self.proto.cancel(call)),
            _ => drop(self.tasks.calls.free(at)),
        }
    }
}
