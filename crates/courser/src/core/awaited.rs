//! The calls and one-way messages that futures await: see [`crate::core::calls`].

use std::task::Context;

use courser_buf::MsgBuf;
use courser_proto::mutant::{self, Mutant};
use courser_proto::{Body, CallError, CallId, CallOptions, Executed, RejectReason, SessionId};

use crate::core::Core;
use crate::core::calls::{End, Entry, Kind, Outgoing, Polled, Queued, failed};
use crate::core::context::OnceFn;
use crate::core::continuations::Cont;
use crate::core::queue::Waiter;
use crate::error::failure::CallFailure;

/// The outcome of a start.
enum Start {
    Started(CallId),
    /// A message is in the queue of its session.
    Sent,
    /// There is no room.
    Full(Outgoing),
    Refused(CallFailure),
}

/// The poll of a task with a response. At its end, and also after a panic, the response is kept if
/// it was not read.
struct Answered<'a> {
    core: &'a mut Core,
    at: u32,
    response: &'a [u8],
}

impl Drop for Answered<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(request) = self.core.tasks.calls.answered.take() {
            self.core.keep_response(self.at, request, self.response);
        }
    }
}

impl Core {
    /// Starts a call, or queues it.
    #[inline]
    pub(crate) fn start_call(
        &mut self,
        session: SessionId,
        req_type: u16,
        request: MsgBuf,
        deadline_ns: u64,
        cx: &Context<'_>,
    ) -> Polled {
        if self.tasks.calls.any_queued() {
            return self.start_behind(session, req_type, request, deadline_ns, cx);
        }
        // Not after the deadline of the request that this task answers.
        let deadline_ns = deadline_ns.min(self.tasks.deadline_ns);
        let at = self.tasks.calls.take_vacant();
        let waiter = self.tasks.starts(at, cx);
        let mut options = CallOptions::new();
        options.deadline_ns = (deadline_ns != u64::MAX).then_some(deadline_ns);
        match self.proto.call_with(session, req_type, request, Cont::awaited(at), options) {
            Ok(call) => {
                self.tasks.calls.set(at, Entry::Started(call, waiter));
                Polled::Waits(at)
            }
            Err((reason, message, _)) => {
                let kind = Kind::Call(req_type);
                let outgoing = Outgoing { session, kind, message, deadline_ns };
                self.call_refused(at, reason, outgoing, waiter)
            }
        }
    }

    fn call_refused(
        &mut self,
        at: u32,
        reason: RejectReason,
        outgoing: Outgoing,
        waiter: Waiter,
    ) -> Polled {
        let started = self.refused(reason, outgoing);
        self.not_started(at, started, waiter)
    }

    /// [`Core::start_call`] while other calls are queued.
    fn start_behind(
        &mut self,
        session: SessionId,
        req_type: u16,
        request: MsgBuf,
        deadline_ns: u64,
        cx: &Context<'_>,
    ) -> Polled {
        let kind = Kind::Call(req_type);
        self.start_awaited(Outgoing { session, kind, message: request, deadline_ns }, cx)
    }

    /// Starts a call or message, or queues it.
    pub(crate) fn start_awaited(&mut self, mut outgoing: Outgoing, cx: &Context<'_>) -> Polled {
        // The deadline of the request that this task answers.
        outgoing.deadline_ns = outgoing.deadline_ns.min(self.tasks.deadline_ns);
        let at = self.tasks.calls.take_vacant();
        let waiter = self.tasks.starts(at, cx);
        let first = !self.tasks.calls.any_queued() || !self.tasks.calls.has_queue(&outgoing);
        let started = if first { self.start(at, outgoing) } else { Start::Full(outgoing) };
        self.not_started(at, started, waiter)
    }

    /// The state of an entry after a start. In most cases the entry has not started.
    fn not_started(&mut self, at: u32, started: Start, waiter: Waiter) -> Polled {
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

    fn refused(&mut self, reason: RejectReason, outgoing: Outgoing) -> Start {
        if let RejectReason::QueueFull { .. } | RejectReason::MessagesFull { .. } = reason {
            self.proto.await_room(outgoing.session, &reason);
            return Start::Full(outgoing);
        }
        let Outgoing { session, message, .. } = outgoing;
        Start::Refused(self.rejected_call(session, reason, message).reason.into())
    }

    /// Queues an entry. Its deadline is kept by a timer of its own.
    fn queue_entry(&mut self, at: u32, outgoing: Outgoing, waiter: Waiter) {
        let (session, due_ns) = (outgoing.session, outgoing.deadline_ns);
        let deadline = (due_ns != u64::MAX).then(|| {
            let expire: OnceFn = Box::new(move |cx| cx.core.expire_queued(at));
            self.timers.add_once(due_ns, expire)
        });
        let ticket = self.tasks.calls.enqueue(session, at);
        let queued = Queued { session, outgoing: Some(outgoing), waiter, deadline, ticket };
        self.tasks.calls.entries[at as usize] = Entry::Queued(Box::new(queued));
    }

    /// The deadline of a queued entry has passed.
    fn expire_queued(&mut self, at: u32) {
        let calls = &mut self.tasks.calls;
        let end = failed(CallError::DeadlineExceeded(Executed::Never));
        if let Some((queued, is_first)) = calls.unqueue(at, Entry::Ended(end)) {
            let session = queued.session;
            self.tasks.wake(queued.waiter);
            self.first_left(session, is_first);
        }
    }

    /// The first entry of a session has left: the next one may wait for room of another kind.
    fn first_left(&mut self, session: SessionId, is_first: bool) {
        if is_first {
            self.start_queued(session);
        }
    }

    /// Starts queued entries of a session as far as there is room. Whether there were any.
    pub(crate) fn start_queued(&mut self, session: SessionId) -> bool {
        let mut any = false;
        while let Some(&entry) = self.tasks.calls.waiters.front(session) {
            let has_left = !self.tasks.calls.is_queued(entry);
            if !has_left && !self.start_from_queue(entry.0) {
                break;
            }
            self.tasks.calls.waiters.pop(session, has_left);
            any |= !has_left;
        }
        any
    }

    /// Starts an entry; `false`: there still is no room.
    fn start_from_queue(&mut self, at: u32) -> bool {
        let calls = &mut self.tasks.calls;
        #[cfg(test)]
        {
            calls.tries += 1;
        }
        let Some(mut queued) = calls.replace_queued(at, Entry::Vacant) else { return true };
        let Some(outgoing) = queued.outgoing.take() else { return true };
        let end = match self.start(at, outgoing) {
            Start::Full(outgoing) => {
                queued.outgoing = Some(outgoing);
                self.tasks.calls.entries[at as usize] = Entry::Queued(queued);
                return false;
            }
            Start::Started(call) => Err(call),
            Start::Sent => Ok(Err(None)),
            Start::Refused(reason) => Ok(failed(reason)),
        };
        let Queued { waiter, deadline, .. } = *queued;
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

    /// The response that is shown to this poll, in a buffer of its own.
    #[inline]
    pub(crate) fn take_response(&mut self, at: u32) -> Option<End> {
        let request = self.tasks.calls.take_answered(at)?;
        let copy = |bytes: &[u8]| self.response(request, Body::Borrowed(bytes)).or_else(failed);
        self.lender.response().with(copy)
    }

    /// The buffer of the request whose response is shown to this poll.
    #[inline]
    pub(crate) fn take_answered(&mut self, at: u32) -> Option<MsgBuf> {
        self.tasks.calls.take_answered(at)
    }

    /// The end of an entry, which is freed; `None`: the task of `cx` is woken when it ends.
    pub(crate) fn poll_awaited(&mut self, at: u32, cx: &Context<'_>) -> Option<End> {
        if let Entry::Ended(_) = &self.tasks.calls.entries[at as usize] {
            let Entry::Ended(end) = self.tasks.calls.free(at) else { return None };
            return Some(end);
        }
        let new = self.tasks.waiter(cx);
        match &mut self.tasks.calls.entries[at as usize] {
            Entry::Started(_, waiter) => *waiter = new,
            Entry::Queued(queued) => queued.waiter = new,
            Entry::Vacant | Entry::Answered | Entry::Ended(_) | Entry::Dropped => {}
        }
        None
    }

    /// The response of one packet to a call that a future awaits. Its task is polled at once and
    /// reads the response where it was received.
    pub(crate) fn answer_awaited(&mut self, at: u32, request: MsgBuf, response: &[u8]) {
        let polled = self.tasks.polled_at_end(at);
        let Some(task) = polled.filter(|_| !mutant::is_on(Mutant::FutureNotWoken)) else {
            return self.finish_awaited(at, request, Ok(Body::Borrowed(response)));
        };
        self.tasks.calls.set(at, Entry::Answered);
        std::mem::forget(self.tasks.calls.answered.replace(request));
        let lender = self.lender.clone();
        let answered = Answered { core: self, at, response };
        lender.response().show(response, || answered.core.run_task(&lender, task));
    }

    /// Keeps a response that the poll of its task has not read.
    #[cold]
    fn keep_response(&mut self, at: u32, request: MsgBuf, response: &[u8]) {
        let end = self.response(request, Body::Borrowed(response)).or_else(failed);
        self.tasks.calls.set(at, Entry::Ended(end));
    }

    /// The completion of a call that a future awaits.
    #[cold]
    #[inline(never)]
    pub(crate) fn finish_awaited(
        &mut self,
        at: u32,
        request: MsgBuf,
        result: Result<Body<'_>, CallError>,
    ) {
        let polled = self.tasks.polled_at_end(at);
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
            match polled {
                Some(task) => {
                    let lender = self.lender.clone();
                    self.run_task(&lender, task);
                }
                None => self.tasks.wake(waiter),
            }
        }
    }

    /// The future of an entry was dropped: cancels its call.
    pub(crate) fn drop_awaited(&mut self, at: u32) {
        if let Some((queued, is_first)) = self.tasks.calls.unqueue(at, Entry::Vacant) {
            if let Some(timer) = queued.deadline {
                self.timers.cancel(timer);
            }
            self.tasks.calls.free(at);
            self.first_left(queued.session, is_first);
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
