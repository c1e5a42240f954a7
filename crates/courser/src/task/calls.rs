//! Calls and one-way messages that futures await.
//!
//! Each has an entry from the first poll of its future until both the future and the call have
//! ended. A dropped future leaves the entry to its cancelled call. When the queue of the session is
//! full, the call waits here, in order, so that it is delayed and not refused.

use std::collections::VecDeque;
use std::task::Context;

use courser_buf::MsgBuf;
use courser_proto::{Body, CallError, CallId, CallOptions, Executed, RejectReason, SessionId};

use super::executor::Waiter;
use crate::continuations::Cont;
use crate::core::Core;
use crate::failure::CallFailure;
use crate::timer::TimerId;

/// The end of a call, or of a message: that one has no response, `Err(None)`. Two words, which stay
/// in registers.
pub(super) type End = Result<MsgBuf, Option<Box<CallFailure>>>;

const _: () = assert!(size_of::<End>() == 16);

/// What a future starts.
pub(super) struct Outgoing {
    pub(super) session: SessionId,
    pub(super) kind: Kind,
    pub(super) message: MsgBuf,
    /// ns; `u64::MAX`: none.
    pub(super) deadline_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
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
    /// The future was dropped. The entry is freed by its completion, or when it is taken from the
    /// queue.
    Dropped,
}

struct Queued {
    outgoing: Outgoing,
    waiter: Waiter,
    deadline: Option<TimerId>,
}

/// The state of a poll.
pub(super) enum Polled {
    Ended(End),
    /// The number of the entry.
    Waits(u32),
}

#[derive(Default)]
pub(crate) struct AwaitedCalls {
    entries: Vec<Entry>,
    vacant: Vec<u32>,
    /// Entries that wait, by session, each in order. No list is empty.
    queues: Vec<(SessionId, VecDeque<u32>)>,
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
    pub(super) fn any_queued(&self) -> bool {
        !self.queues.is_empty()
    }

    pub(super) fn in_use(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    pub(super) fn queued(&self) -> usize {
        self.queues.iter().map(|(_, queue)| queue.len()).sum()
    }

    fn queue_of(&mut self, session: SessionId) -> Option<&mut VecDeque<u32>> {
        self.queues.iter_mut().find(|(of, _)| *of == session).map(|(_, queue)| queue)
    }

    fn has_queue(&self, outgoing: &Outgoing) -> bool {
        self.queues.iter().any(|(of, _)| *of == outgoing.session)
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

    /// Takes an entry out of its queue.
    fn unqueue(&mut self, at: u32, by: Entry) -> Option<Box<Queued>> {
        let queued = self.replace_queued(at, by)?;
        let session = queued.outgoing.session;
        if let Some(queue) = self.queue_of(session) {
            queue.retain(|entry| *entry != at);
        }
        self.queues.retain(|(_, queue)| !queue.is_empty());
        Some(queued)
    }

    fn enqueue(&mut self, session: SessionId, at: u32) {
        match self.queue_of(session) {
            Some(queue) => queue.push_back(at),
            None => self.queues.push((session, VecDeque::from([at]))),
        }
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
    pub(super) fn start_awaited(
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
        let queued = Queued { outgoing, waiter, deadline };
        self.tasks.calls.entries[at as usize] = Entry::Queued(Box::new(queued));
        self.tasks.calls.enqueue(session, at);
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
        let mut queues = std::mem::take(&mut self.tasks.calls.queues);
        for (_, queue) in &mut queues {
            while let Some(&at) = queue.front() {
                if !self.start_from_queue(at) {
                    break;
                }
                queue.pop_front();
                any = true;
            }
        }
        queues.retain(|(_, queue)| !queue.is_empty());
        self.tasks.calls.queues = queues;
        any
    }

    /// Starts an entry; `false`: there still is no room.
    fn start_from_queue(&mut self, at: u32) -> bool {
        let Some(queued) = self.tasks.calls.replace_queued(at, Entry::Vacant) else { return true };
        let Queued { outgoing, waiter, deadline } = *queued;
        let end = match self.start(at, outgoing) {
            Start::Full(outgoing) => {
                let queued = Box::new(Queued { outgoing, waiter, deadline });
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
    pub(super) fn poll_awaited(&mut self, at: u32, cx: &Context<'_>) -> Option<End> {
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
            self.tasks.calls.free(at);
            return;
        }
        let end = match result {
            Ok(body) => self.response(request, body),
            Err(e) => failed(e),
        };
        let entry = &mut self.tasks.calls.entries[at as usize];
        if let Entry::Started(_, waiter) = std::mem::replace(entry, Entry::Ended(end)) {
            self.tasks.wake(waiter);
        }
    }

    /// The response in a buffer of its own. One of a single packet is copied, into the buffer of the
    /// request if it fits.
    #[inline]
    fn response(&self, mut request: MsgBuf, body: Body<'_>) -> End {
        let bytes = match body {
            Body::Owned(response) => return Ok(response),
            Body::Borrowed(bytes) => bytes,
        };
        if request.set_len_recycled(bytes.len()).is_ok()
            && let Some(data) = request.get_mut()
        {
            data.copy_from_slice(bytes);
            return Ok(request);
        }
        let response_bytes = bytes.len() as u32;
        let Ok(mut response) = self.proto.alloc(bytes.len()) else {
            return failed(CallError::NoMemory { response_bytes });
        };
        response.copy_from_slice(bytes);
        Ok(response)
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
