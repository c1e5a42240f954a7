//! The part of an endpoint that a [`Context`] can reach: the protocol and the application's timers,
//! without the transport, whose receive memory is lent out while handlers run.

pub(crate) mod alarms;
pub(crate) mod app;
pub(crate) mod awaited;
pub(crate) mod by_request;
pub(crate) mod calls;
pub(crate) mod clock;
pub(crate) mod context;
pub(crate) mod continuations;
pub(crate) mod counting;
pub(crate) mod deadline;
pub(crate) mod drain;
pub(crate) mod executor;
pub(crate) mod handled;
pub(crate) mod handler;
pub(crate) mod lenders;
pub(crate) mod lent;
pub(crate) mod message;
mod on_thread;
pub(crate) mod queue;
pub(crate) mod sessions;
pub(crate) mod shares;
pub(crate) mod tasks;
pub(crate) mod timer;

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use courser_buf::{Lent, MsgBuf, PathId, Shown, TxBurst, copy_short};
use courser_net::{ThisProcess, Uri};
use courser_proto::{
    Body, CallError, Dialed, Endpoint, ReceiveLink, RejectReason, RemoteSession, SessionId,
};

use crate::control::mailbox::Mailbox;
use crate::core::app::{App, Kept, OnThread};
use crate::core::clock::SystemClock;
use crate::core::continuations::Cont;
use crate::core::deadline::Deadline;
use crate::core::handled::HandlerStats;
use crate::error::{CallRejected, SessionError};
use crate::machine::{Thread, VirtualClock};
use crate::platform::{Clock, Platform};

/// How many session failures are remembered for [`crate::Rpc::session_error`].
const FAILURES_KEPT: usize = 1024;

/// Commands of handlers, continuations and timers that need the transport or the control thread.
#[derive(Debug)]
pub(crate) enum PendingCommand {
    /// A session is begun: it needs a control connection.
    Dial(Uri, Dialed),
    /// A session was closed: the server's number for it, and its path if no other session uses it.
    Close(SessionId, Option<(RemoteSession, Option<PathId>)>),
}

/// The properties of the transport that a connect needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub(crate) scheme: &'static str,
    pub(crate) port: u32,
    pub(crate) max_frame: usize,
}

/// Counts from when the endpoint was made.
enum Time {
    System(SystemClock),
    Virtual { clock: Arc<VirtualClock>, start_ns: u64 },
}

impl Time {
    #[inline]
    fn now_ns(&self) -> u64 {
        match self {
            Time::System(clock) => clock.now_ns(),
            Time::Virtual { clock, start_ns } => clock.now_ns() - start_ns,
        }
    }
}

/// Bytes of the largest buffer that is kept for the next request.
const MOST_SPARE: usize = 1024;

/// The loans of an endpoint to the futures that it polls. Clones lend the same.
#[derive(Clone, Default)]
pub(crate) struct Lender(Rc<Loans>);

#[derive(Default)]
struct Loans {
    endpoint: Lent<Core>,
    response: Shown<[u8]>,
    /// The buffer of the last request of a typed call, for the next one.
    spare: Cell<Option<MsgBuf>>,
    /// The time at which a task of a request is dropped.
    dropped_ns: Cell<u64>,
}

impl Lender {
    /// The endpoint, while it polls a future.
    #[inline]
    pub(crate) fn endpoint(&self) -> &Lent<Core> {
        &self.0.endpoint
    }

    /// The response of one packet that has ended the call of the task that is polled.
    #[inline]
    pub(crate) fn response(&self) -> &Shown<[u8]> {
        &self.0.response
    }

    /// Keeps the buffer of a request that has ended. Larger ones return to the arena.
    #[inline]
    pub(crate) fn keep_spare(&self, buffer: MsgBuf) {
        if buffer.capacity() <= MOST_SPARE {
            drop(self.0.spare.replace(Some(buffer)));
        }
    }

    /// A buffer of `len` bytes that was kept, with the contents of an earlier message.
    #[inline]
    pub(crate) fn take_spare(&self, len: usize) -> Option<MsgBuf> {
        let mut buffer = self.0.spare.take()?;
        buffer.set_len_recycled(len).ok()?;
        Some(buffer)
    }

    /// The time at which the task of a request is dropped, ns.
    pub(crate) fn dropped_ns(&self) -> u64 {
        self.0.dropped_ns.get()
    }

    pub(crate) fn set_dropped_ns(&self, now_ns: u64) {
        self.0.dropped_ns.set(now_ns);
    }

    /// The endpoint is gone: frees the buffer that was kept.
    pub(crate) fn close(&self) {
        drop(self.0.spare.take());
    }
}

pub(crate) struct Core<A: App = OnThread> {
    pub(crate) proto: Endpoint<Cont>,
    /// Of the calls that `proto` has.
    pub(crate) continuations: A::Continuations,
    pub(crate) queue: A::Queue,
    pub(crate) lender: A::Lender,
    pub(crate) tasks: A::Tasks,
    pub(crate) stop: bool,
    pub(crate) failures: VecDeque<(SessionId, SessionError)>,
    /// Without the panics of workers.
    pub(crate) handled: HandlerStats,
    pub(crate) platform: Platform,
    /// The process that made the endpoint.
    pub(crate) process: ThisProcess,
    pub(crate) local: Local,
    /// In order; done before the pass ends.
    pub(crate) pending_commands: Vec<PendingCommand>,
    clock: Clock,
    time: Time,
    random: u64,
    pub(crate) timers: A::Timers,
}

impl<A: App> Core<A> {
    pub(crate) fn new(
        proto: Endpoint<Cont>,
        platform: Platform,
        index: u16,
        local: Local,
        mailbox: Mailbox,
        max_streams: usize,
    ) -> Self {
        let (clock, seed) = (platform.clock(Thread::Endpoint(index)), platform.random_u64());
        let time = match &clock {
            Clock::System => Time::System(SystemClock::new()),
            Clock::Virtual(c) => Time::Virtual { clock: c.clone(), start_ns: c.now_ns() },
        };
        let Kept { continuations, queue, lender, tasks, timers } = A::kept(mailbox, max_streams);
        Core {
            proto,
            continuations,
            queue,
            lender,
            tasks,
            stop: false,
            failures: VecDeque::new(),
            handled: HandlerStats::default(),
            platform,
            process: ThisProcess::new(),
            local,
            pending_commands: Vec::new(),
            clock,
            time,
            random: seed,
            timers,
        }
    }

    /// The clock of the endpoint's thread.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Shares the receiver's budget of a link with its other endpoints.
    pub(crate) fn share_link(&mut self, link: Arc<ReceiveLink>) {
        let epoch_ns = Clock::virtual_ns(self.clock.now()).saturating_sub(self.now_ns());
        self.proto.share_link(link, epoch_ns);
    }

    /// Nanoseconds since the endpoint was made.
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.time.now_ns()
    }

    /// Readings of the system's clock so far.
    #[cfg(test)]
    pub(crate) fn clock_readings(&self) -> u64 {
        match &self.time {
            Time::System(clock) => clock.readings.get(),
            Time::Virtual { .. } => 0,
        }
    }

    /// The end of `after` from now.
    #[inline]
    pub(crate) fn deadline_ns(&self, after: Duration) -> u64 {
        self.now_ns().saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Steps 4 to 7 of a packet's path for one small packet and nothing else
    /// ([`Endpoint::is_lone`]), with an empty `out`. The clock is read again if `then_ns` is `None`,
    /// unless the frame has no time. Returns whether it was read.
    #[inline(always)] // into the event loop
    pub(crate) fn make_lone_frame(
        &mut self,
        then_ns: Option<u64>,
        out: &mut TxBurst,
        copy: impl FnOnce(PathId, &[u8]) -> bool,
    ) -> bool {
        let Core { proto, time, .. } = self;
        let is_timed = proto.transmit_lone(|| then_ns.unwrap_or_else(|| time.now_ns()), out, copy);
        is_timed && then_ns.is_none()
    }

    /// Steps 4 to 7 of a packet's path: makes frames of what has become ready. The clock is read
    /// again if `then_ns` is `None`. Returns whether it was read.
    #[inline(always)] // into the event loop
    pub(crate) fn make_frames(
        &mut self,
        then_ns: Option<u64>,
        out: &mut TxBurst,
        copy: impl FnOnce(PathId, &[u8]) -> bool,
    ) -> bool {
        let Core { proto, time, .. } = self;
        let mut read = false;
        let now = || {
            then_ns.unwrap_or_else(|| {
                read = true;
                time.now_ns()
            })
        };
        proto.transmit_batch(now, out, copy);
        read
    }

    /// The last reading of the clock.
    #[inline]
    pub(crate) fn last_ns(&self) -> u64 {
        match &self.time {
            Time::System(clock) => clock.last_ns(),
            Time::Virtual { .. } => self.now_ns(),
        }
    }

    /// Virtual time passes while frames are received; so it is read before. `None`: the time is
    /// real, and when there is nothing to receive or the frames are there is soon enough.
    #[inline]
    pub(crate) fn virtual_now_ns(&self) -> Option<u64> {
        match &self.time {
            Time::System(_) => None,
            Time::Virtual { .. } => Some(self.now_ns()),
        }
    }

    /// A deadline in the endpoint's time as other threads can read it; `None` when it is
    /// beyond the range of the system's clock.
    pub(crate) fn deadline(&self, deadline_ns: u64) -> Option<Deadline> {
        let (since, now_ns) = (self.clock.now(), self.now_ns());
        let until = since.checked_add(Duration::from_nanos(deadline_ns.saturating_sub(now_ns)))?;
        Some(Deadline { received: since, expires: until })
    }

    /// The instant that was `age_ns` before the last reading of the clock, as other threads read it.
    pub(crate) fn instant_before(&self, age_ns: u64) -> Option<std::time::Instant> {
        let since_ns = self.now_ns().saturating_sub(self.proto.now_ns());
        self.clock.now().checked_sub(Duration::from_nanos(since_ns.saturating_add(age_ns)))
    }

    /// The next number of the endpoint's generator (splitmix64: Steele et al., OOPSLA '14).
    pub(crate) fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The response of a call in a buffer of its own. One of a single packet is copied, into the
    /// buffer of the request if it fits.
    #[inline]
    pub(crate) fn response(
        &self,
        mut request: MsgBuf,
        body: Body<'_>,
    ) -> Result<MsgBuf, CallError> {
        let bytes = match body {
            Body::Owned(response) => return Ok(response),
            Body::Borrowed(bytes) => bytes,
        };
        if request.set_len_recycled(bytes.len()).is_ok()
            && let Some(data) = request.get_mut()
        {
            copy_short(data, bytes);
            return Ok(request);
        }
        let response_bytes = bytes.len() as u32;
        let response = self.proto.alloc(bytes.len());
        let mut response = response.map_err(|_| CallError::NoMemory { response_bytes })?;
        response.copy_from_slice(bytes);
        Ok(response)
    }

    /// The error of a call that was not accepted, with the cause that is kept with the session.
    pub(crate) fn rejected_call(
        &self,
        session: SessionId,
        reason: RejectReason,
        request: MsgBuf,
    ) -> CallRejected {
        let reason = match (reason, self.session_error(session)) {
            (RejectReason::NoSession(_), Some(e)) => RejectReason::NoSession(e.end()),
            _ => reason,
        };
        CallRejected { reason, request }
    }

    pub(crate) fn remember_failure(&mut self, session: SessionId, error: SessionError) {
        if self.failures.len() == FAILURES_KEPT {
            self.failures.pop_front();
        }
        self.failures.push_back((session, error));
    }
}
