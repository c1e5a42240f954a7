//! Windows of RPCs: a closed loop of tagged calls that keeps a fixed number in flight.
//!
//! A call is repeated from the completion of the one before, with the buffer that came back:
//! nothing is allocated, and the new request leaves in the same pass of the event loop. A
//! window begins with nothing in flight and ends when the last answer is there; all of it
//! counts, time and calls.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use courser::{CallError, Context, Done, MsgBuf, Refused, Rpc, SessionId, SessionState, Transport};

use super::raw::Other;
use super::role;
use super::service;
use super::spec::{BenchError, BenchSpec, Kind};
use crate::harness::clock::Clock;
use crate::harness::latency::Latency;
use crate::harness::window::{Sample, Workload, WorkloadError};

/// A window without a single answer for this long has failed. Above the endpoint's own limit
/// for a silent peer, whose error says more.
const STALL_NS: u64 = 8_000_000_000;

/// Why a window of calls failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallsError {
    /// A call ended with an error.
    #[error("a call failed: {0}")]
    Call(#[from] CallError),
    /// A call was not accepted.
    #[error("a call was refused: {0}")]
    Refused(String),
    /// The answer is not what the service gives.
    #[error("a call of {sent} bytes got a wrong answer: the server is of another kind or version")]
    Answer {
        /// Length of the request.
        sent: usize,
    },
    /// Nothing came back.
    #[error("no answer for {0} s")]
    Stall(u64),
}

/// State of the loop, shared with the completion function.
struct Loop {
    clock: Clock,
    kind: Kind,
    sessions: Vec<SessionId>,
    batch: usize,
    /// Latency of each call is recorded. Not for rates: two clock reads a call would show.
    timed: bool,
    /// By tag: when the call was issued, ns.
    issued: Vec<Cell<u64>>,
    latency: RefCell<Latency>,
    running: Cell<bool>,
    in_flight: Cell<u32>,
    completed: Cell<u64>,
    failed: RefCell<Option<CallsError>>,
    /// Calls that wait to be issued: all of them between windows.
    waiting: RefCell<Vec<(u64, MsgBuf)>>,
}

impl Loop {
    fn issue(&self, cx: &mut Context<'_>, tag: u64, request: MsgBuf) {
        if self.timed {
            self.issued[tag as usize].set(self.clock.now_ns());
        }
        let session = self.sessions[tag as usize % self.sessions.len()];
        match cx.call_tagged(session, self.kind.req_type(), request, tag) {
            Ok(_) => self.in_flight.set(self.in_flight.get() + 1),
            Err(Refused { reason, request }) => {
                self.fail(CallsError::Refused(reason.to_string()));
                self.waiting.borrow_mut().push((tag, request));
            }
        }
    }

    fn issue_waiting(&self, cx: &mut Context<'_>) {
        let mut waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for (tag, request) in waiting.drain(..) {
            self.issue(cx, tag, request);
        }
        // Keeps the memory of the list, and what was refused in between.
        let mut refused = self.waiting.borrow_mut();
        waiting.append(&mut refused);
        *refused = waiting;
    }

    fn on_completion(&self, cx: &mut Context<'_>, tag: u64, done: Done<'_>) {
        self.in_flight.set(self.in_flight.get() - 1);
        match &done.result {
            Ok(answer) if self.is_right(done.request.len(), answer) => {
                self.completed.set(self.completed.get() + 1);
                if self.timed {
                    let took = self.clock.now_ns() - self.issued[tag as usize].get();
                    self.latency.borrow_mut().record(took);
                }
            }
            Ok(_) => self.fail(CallsError::Answer { sent: done.request.len() }),
            Err(error) => self.fail((*error).into()),
        }
        let request = done.request;
        if self.running.get() && self.batch == 1 {
            return self.issue(cx, tag, request);
        }
        self.waiting.borrow_mut().push((tag, request));
        if self.running.get() && self.waiting.borrow().len() >= self.batch {
            self.issue_waiting(cx);
        }
    }

    fn is_right(&self, sent: usize, answer: &[u8]) -> bool {
        match self.kind {
            Kind::Latency | Kind::Rate => answer.len() == sent,
            Kind::Bandwidth => service::receipt_len(answer) == Some(sent as u64),
        }
    }

    /// Remembers the first failure and ends the loop.
    #[cold]
    fn fail(&self, error: CallsError) {
        self.running.set(false);
        self.failed.borrow_mut().get_or_insert(error);
    }
}

/// The RPC workload of all kinds.
pub(super) struct Calls<T: Transport> {
    rpc: Rpc<T>,
    state: Rc<Loop>,
    size: usize,
    other: Other,
}

impl<T: Transport> Calls<T> {
    /// Connects the sessions and makes the requests. The server must be polling.
    ///
    /// # Errors
    /// No session, or no memory.
    pub(super) fn new(
        mut rpc: Rpc<T>,
        uri: &str,
        spec: &BenchSpec,
        clock: Clock,
        other: Other,
    ) -> Result<Self, BenchError> {
        let refused = |source| BenchError::Connect { uri: uri.to_owned(), source };
        let mut sessions = Vec::new();
        for _ in 0..spec.sessions {
            let session = rpc.connect(uri).map_err(refused)?;
            while rpc.session_state(session) == SessionState::Connecting {
                if !rpc.poll() {
                    other.idle();
                }
            }
            if let Some(error) = rpc.session_error(session) {
                return Err(refused(error));
            }
            sessions.push(session);
        }
        let mut waiting = Vec::with_capacity(spec.in_flight as usize);
        for tag in 0..u64::from(spec.in_flight) {
            let mut request = rpc.alloc(spec.size)?;
            // The first touch of memory is slow: not within a window.
            request.fill(0x5a);
            waiting.push((tag, request));
        }
        let state = Rc::new(Loop {
            clock,
            kind: spec.kind,
            sessions,
            batch: spec.batch as usize,
            timed: spec.kind != Kind::Rate,
            issued: vec![Cell::new(0); spec.in_flight as usize],
            latency: RefCell::new(Latency::new()),
            running: Cell::new(false),
            in_flight: Cell::new(0),
            completed: Cell::new(0),
            failed: RefCell::new(None),
            waiting: RefCell::new(waiting),
        });
        let hears = Rc::clone(&state);
        rpc.on_completion(move |cx, tag, done| hears.on_completion(cx, tag, done));
        Ok(Self { rpc, state, size: spec.size, other })
    }

    /// The endpoint, for its counters.
    pub(super) fn rpc(&self) -> &Rpc<T> {
        &self.rpc
    }

    /// The first session, for what was agreed on.
    pub(super) fn session(&self) -> SessionId {
        self.state.sessions[0]
    }

    /// Polls until nothing is in flight; new calls are issued until `end_ns`.
    fn drive(&mut self, end_ns: u64) -> Result<(), CallsError> {
        let state = Rc::clone(&self.state);
        let mut last = (state.completed.get(), state.clock.now_ns());
        while state.in_flight.get() > 0 {
            if !self.rpc.poll() {
                self.other.idle();
            }
            let now_ns = state.clock.now_ns();
            if now_ns >= end_ns {
                state.running.set(false);
            }
            if state.completed.get() != last.0 {
                last = (state.completed.get(), now_ns);
            } else if now_ns.saturating_sub(last.1) > STALL_NS {
                return Err(CallsError::Stall(STALL_NS / 1_000_000_000));
            }
            if state.failed.borrow().is_some() {
                break;
            }
        }
        match state.failed.borrow_mut().take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl<T: Transport> Workload for Calls<T> {
    fn name(&self) -> &str {
        "rpc"
    }

    fn prepare(&mut self) -> Result<(), WorkloadError> {
        self.other.ask(role::RPC)
    }

    fn run(&mut self, duration: Duration) -> Result<Sample, WorkloadError> {
        let state = Rc::clone(&self.state);
        let before = state.completed.get();
        let start_ns = state.clock.now_ns();
        let end_ns = start_ns + u64::try_from(duration.as_nanos())?;
        state.running.set(true);
        state.issue_waiting(&mut self.rpc.context());
        let outcome = self.drive(end_ns);
        let elapsed_ns = state.clock.now_ns() - start_ns;
        outcome?;
        let operations = state.completed.get() - before;
        let latency = state.latency.borrow_mut().take();
        Ok(Sample { operations, bytes: operations * self.size as u64, elapsed_ns, latency })
    }
}
