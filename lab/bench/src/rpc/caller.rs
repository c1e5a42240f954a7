//! Makes calls in a closed loop, which keeps a fixed number in flight from one endpoint.
//!
//! Calls are made in **chains** `[eRPC section 6.2]`. A chain is a batch of B requests that are sent
//! together, each on its own session. When all B responses have arrived, the next batch is sent in the
//! same pass of the event loop and with the returned buffers, without allocation. With B = 1 each
//! response starts the next call.
//!
//! A window begins with no call in flight and ends with the last response; it counts all calls and the
//! whole time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use courser::{CallRejected, Completion, Context, MsgBuf, Rpc, SessionId, SessionState};

use super::error::BenchError;
use super::load::{CallsError, Load};
use super::raw::Other;
use super::sender::Sender;
use super::service::{self, Stamps};
use super::tasks::Tasks;
use crate::clock::Clock;
use courser_kit::latency::Latency;

/// A window fails after this time without a response. The limit is above the endpoint's limit for a
/// silent peer, whose error is more specific, and sufficient for one message of 64 MiB on a machine
/// with other load.
const STALL_NS: u64 = 60_000_000_000;

/// Passes of the event loop between two clock reads. A clock read costs an eighth of an empty pass, and
/// 16 passes take microseconds of a window of milliseconds.
const PASSES: u32 = 16;

/// Connects in flight, so that their round trips overlap.
const CONNECTING: usize = 64;

/// A load with its request buffers, which are reused for all calls.
pub struct Loaded {
    /// The load.
    pub load: Load,
    requests: Vec<MsgBuf>,
}

impl Loaded {
    /// Allocates the requests.
    ///
    /// # Errors
    /// No memory.
    pub fn new(load: Load, rpc: &Rpc) -> Result<Self, BenchError> {
        let calls = if load.one_way() || load.awaited() { 0 } else { load.chains().1 };
        let mut requests = Vec::with_capacity(calls);
        for _ in 0..calls {
            let mut request = rpc.alloc(load.size)?;
            // Page faults must not occur within a window.
            request.fill(0x5a);
            requests.push(request);
        }
        Ok(Self { load, requests })
    }
}

/// State of the loop, shared with the completion function.
struct State {
    clock: Clock,
    load: Load,
    sessions: Vec<SessionId>,
    /// By tag: the request while its call is not in flight, and when it was issued, ns.
    parked: Vec<Option<MsgBuf>>,
    issued: Vec<u64>,
    /// By tag: its chain. By chain: missing responses of its batch.
    chain_of: Vec<u32>,
    missing: Vec<u32>,
    /// State of the random generator for sessions; every run has the same seed.
    random: u64,
    latency: Latency,
    running: bool,
    in_flight: u32,
    completed: u64,
    failed: Option<CallsError>,
}

impl State {
    /// A random session of those in use.
    #[inline]
    fn draw(&mut self) -> SessionId {
        // Knuth's linear congruential generator; the upper half of its state is used.
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let at = ((self.random >> 32) * self.load.sessions as u64) >> 32;
        self.sessions[at as usize]
    }

    /// The session of the next call.
    #[inline]
    fn session(&mut self, tag: usize) -> SessionId {
        match self.load.random {
            true => self.draw(),
            false => self.sessions[(tag as u32 % self.load.sessions as u32) as usize],
        }
    }

    #[inline]
    fn issue(&mut self, cx: &mut Context<'_>, tag: usize, now_ns: u64) {
        let Some(request) = self.parked[tag].take() else { return };
        self.issued[tag] = now_ns;
        let session = self.session(tag);
        match cx.request(session, self.load.req_type, request).tag(tag as u64).send() {
            Ok(_) => self.in_flight += 1,
            Err(CallRejected { reason, request }) => {
                self.parked[tag] = Some(request);
                self.fail(CallsError::Rejected(reason.to_string()));
            }
        }
    }

    /// Sends the next batch of a chain.
    #[inline]
    fn issue_chain(&mut self, cx: &mut Context<'_>, chain: usize, now_ns: u64) {
        let batch = self.load.batch as usize;
        let stamped = self.load.req_type == service::STAMP;
        let now_ns = if stamped { self.clock.now_ns() } else { now_ns };
        self.missing[chain] = self.load.batch;
        for tag in chain * batch..(chain + 1) * batch {
            self.issue(cx, tag, now_ns);
        }
    }

    fn now_if_timed(&self) -> u64 {
        if self.load.timed { self.clock.now_ns() } else { 0 }
    }

    #[inline]
    fn on_completion(&mut self, cx: &mut Context<'_>, tag: u64, done: Completion<'_>) {
        self.in_flight -= 1;
        let (now_ns, tag) = (self.now_if_timed(), tag as usize);
        match &done.result {
            Ok(answer) if self.is_right(done.request.len(), answer) => {
                self.completed += 1;
                if self.load.timed {
                    let ns = self.latency_ns(self.issued[tag], now_ns, answer);
                    self.latency.record(ns);
                }
            }
            Ok(_) => self.fail(CallsError::Answer { sent: done.request.len() }),
            Err(error) => self.fail((*error).into()),
        }
        self.parked[tag] = Some(done.request);
        let chain = self.chain_of[tag] as usize;
        self.missing[chain] -= 1;
        if self.missing[chain] == 0 && self.running {
            self.issue_chain(cx, chain, now_ns);
        }
    }

    /// The latency of a call: of its round trip, or of one way if the server has stamped the answer.
    #[inline]
    fn latency_ns(&self, issued_ns: u64, now_ns: u64, answer: &[u8]) -> u64 {
        let stamps = (self.load.req_type == service::STAMP).then(|| Stamps::read(answer)).flatten();
        stamps.map_or(now_ns - issued_ns, |stamps| stamps.one_way_ns(issued_ns, now_ns))
    }

    fn is_right(&self, sent: usize, answer: &[u8]) -> bool {
        match self.load.req_type {
            service::SINK => service::receipt_len(answer) == Some(sent as u64),
            _ => answer.len() == sent,
        }
    }

    /// Records the first error and ends the loop.
    fn fail(&mut self, error: CallsError) {
        self.running = false;
        self.failed.get_or_insert(error);
    }
}

/// An endpoint that makes calls and also runs its handlers.
pub struct Caller {
    rpc: Rpc,
    state: Rc<RefCell<State>>,
    other: Other,
    /// During a load of one-way messages.
    sender: Option<Sender>,
    /// During a load of futures.
    tasks: Option<Tasks>,
    /// Further endpoints of this thread.
    besides: Vec<Rpc>,
}

/// The calls of one window.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// Calls with a response.
    pub calls: u64,
    /// Time from the first call to the last response.
    pub elapsed_ns: u64,
}

impl Caller {
    /// Registers the completion function of the endpoint.
    pub fn new(mut rpc: Rpc, clock: Clock, other: Other) -> Self {
        let load = Load {
            req_type: service::ECHO,
            size: 0,
            sessions: 0,
            in_flight: 0,
            batch: 1,
            random: false,
            timed: false,
        };
        let state = Rc::new(RefCell::new(State {
            clock,
            load,
            sessions: Vec::new(),
            parked: Vec::new(),
            issued: Vec::new(),
            chain_of: Vec::new(),
            missing: Vec::new(),
            random: 0x9e37_79b9_7f4a_7c15,
            latency: Latency::new(),
            running: false,
            in_flight: 0,
            completed: 0,
            failed: None,
        }));
        let shared = Rc::clone(&state);
        rpc.on_completion(move |cx, tag, done| shared.borrow_mut().on_completion(cx, tag, done));
        Self { rpc, state, other, sender: None, tasks: None, besides: Vec::new() }
    }

    /// The endpoint, for its counters.
    pub fn rpc(&self) -> &Rpc {
        &self.rpc
    }

    /// Number of connected sessions.
    pub fn sessions(&self) -> usize {
        self.state.borrow().sessions.len()
    }

    /// The first session, for its negotiated parameters.
    pub fn first_session(&self) -> Option<SessionId> {
        self.state.borrow().sessions.first().copied()
    }

    /// One pass of the event loop.
    #[inline]
    pub fn poll(&mut self) -> bool {
        match (&self.sender, &self.tasks) {
            (None, None) => self.rpc.poll(),
            (Some(_), _) => self.poll_sending(),
            (None, Some(_)) => self.poll_tasks(),
        }
    }

    /// Sends a batch of messages if they may be in flight, and makes one pass.
    fn poll_sending(&mut self) -> bool {
        let Some(sender) = &mut self.sender else { return false };
        if self.state.borrow().running
            && let Err(error) = sender.send(&mut self.rpc)
        {
            self.state.borrow_mut().fail(error);
        }
        let any = self.rpc.poll();
        let state = &mut *self.state.borrow_mut();
        state.completed += sender.acknowledged(&self.rpc);
        // The window has not ended while another batch may follow.
        state.in_flight = self.rpc.outstanding_messages() as u32 + u32::from(state.running);
        any
    }

    /// One pass while calls are futures.
    fn poll_tasks(&mut self) -> bool {
        let any = self.rpc.poll();
        let (Some(tasks), state) = (&mut self.tasks, &mut *self.state.borrow_mut()) else {
            return any;
        };
        let (new, live, failed) = tasks.progress();
        state.completed += new;
        state.in_flight = live;
        if let Some(error) = failed {
            state.fail(error);
        }
        if !state.running {
            tasks.stop();
        }
        any
    }

    /// Adds another endpoint to each pass.
    pub fn poll_besides(&mut self, rpc: Rpc) {
        self.besides.push(rpc);
    }

    /// One pass of the event loops of all endpoints.
    #[inline]
    pub fn poll_all(&mut self) -> bool {
        let besides = self.besides.iter_mut().fold(false, |any, rpc| rpc.poll() | any);
        self.poll() | besides
    }

    /// One pass of all endpoints. An empty pass yields if both sides share a core.
    #[inline]
    pub fn pass(&mut self) {
        if !self.poll_all() {
            self.other.idle();
        }
    }

    /// Connects until there are `count` sessions. The server must be polling.
    ///
    /// # Errors
    /// A session cannot be connected.
    pub fn connect(&mut self, uri: &str, count: usize) -> Result<(), BenchError> {
        self.connect_to(uri, 1, count)
    }

    /// [`Caller::connect`] to this number of endpoints of a nexus in turn.
    ///
    /// # Errors
    /// A session cannot be connected.
    pub fn connect_to(&mut self, uri: &str, peers: usize, count: usize) -> Result<(), BenchError> {
        let refused = |source| BenchError::Connect { uri: uri.to_owned(), source };
        let mut connecting: VecDeque<SessionId> = VecDeque::with_capacity(CONNECTING);
        loop {
            let connected = self.sessions();
            while connecting.len() < CONNECTING && connected + connecting.len() < count {
                let address = match peers {
                    0 | 1 => uri.to_owned(),
                    peers => format!("{uri}/{}", (connected + connecting.len()) % peers),
                };
                connecting.push_back(self.rpc.connect(&address).map_err(refused)?);
            }
            if connecting.is_empty() {
                return Ok(());
            }
            self.pass();
            // In their order, so that any of them in a row are spread over the peers.
            while let Some(&session) = connecting.front()
                && self.rpc.session_state(session) != SessionState::Connecting
            {
                connecting.pop_front();
                match self.rpc.session_error(session) {
                    Some(error) => return Err(refused(error)),
                    None => self.state.borrow_mut().sessions.push(session),
                }
            }
        }
    }

    /// Starts a load; its first calls are sent with the next pass.
    pub fn begin(&mut self, loaded: &mut Loaded) {
        let state = &mut *self.state.borrow_mut();
        let (chains, calls) = loaded.load.chains();
        state.load.clone_from(&loaded.load);
        state.load.sessions = loaded.load.sessions.min(state.sessions.len());
        state.parked.clear();
        state.parked.extend(loaded.requests.drain(..).map(Some));
        state.issued.clear();
        state.issued.resize(calls, 0);
        state.chain_of.clear();
        state.chain_of.extend((0..calls as u32).map(|tag| tag / loaded.load.batch));
        state.missing.clear();
        state.missing.resize(chains, 0);
        state.running = state.load.sessions > 0;
        if loaded.load.one_way() {
            let sessions = &state.sessions[..state.load.sessions];
            let sends = !sessions.is_empty();
            self.sender = sends.then(|| Sender::new(&loaded.load, sessions, &self.rpc));
            state.in_flight = u32::from(state.running);
            return;
        }
        if loaded.load.awaited() && state.running {
            let sessions = &state.sessions[..state.load.sessions];
            self.tasks = Some(Tasks::start(&loaded.load, sessions, &self.rpc));
            state.in_flight = loaded.load.in_flight;
            return;
        }
        let now_ns = state.now_if_timed();
        let mut cx = self.rpc.context();
        for chain in 0..chains {
            if state.running {
                state.issue_chain(&mut cx, chain, now_ns);
            }
        }
    }

    /// Stops making new calls.
    pub fn stop(&mut self) {
        self.state.borrow_mut().running = false;
    }

    /// Calls of all loads with a response, and messages that were acknowledged, so far.
    pub fn completed(&self) -> u64 {
        self.state.borrow().completed
    }

    /// Polls until no call is in flight; makes new calls until `end_ns`. Afterwards the load has its
    /// requests again.
    ///
    /// # Errors
    /// The first error of a call, or [`CallsError::Stall`].
    pub fn finish(&mut self, end_ns: u64, loaded: &mut Loaded) -> Result<(), CallsError> {
        let clock = self.state.borrow().clock.clone();
        let mut last = (self.completed(), clock.now_ns());
        let outcome = loop {
            for _ in 0..PASSES {
                self.pass();
                if self.state.borrow().in_flight == 0 {
                    break;
                }
            }
            let (state, now_ns) = (&mut *self.state.borrow_mut(), clock.now_ns());
            if let Some(error) = state.failed.take() {
                break Err(error);
            }
            if now_ns >= end_ns {
                state.running = false;
            }
            if state.in_flight == 0 {
                break Ok(());
            }
            if state.completed != last.0 {
                last = (state.completed, now_ns);
            } else if now_ns.saturating_sub(last.1) > STALL_NS {
                break Err(CallsError::Stall(STALL_NS / 1_000_000_000));
            }
        };
        (self.sender, self.tasks) = (None, None);
        let parked = &mut self.state.borrow_mut().parked;
        loaded.requests.extend(parked.drain(..).flatten());
        outcome
    }

    /// Runs a whole window.
    ///
    /// # Errors
    /// As [`Caller::finish`].
    pub fn run(&mut self, duration_ns: u64, loaded: &mut Loaded) -> Result<Ran, CallsError> {
        let clock = self.state.borrow().clock.clone();
        let before = self.completed();
        let start_ns = clock.now_ns();
        self.begin(loaded);
        self.finish(start_ns + duration_ns, loaded)?;
        Ok(Ran { calls: self.completed() - before, elapsed_ns: clock.now_ns() - start_ns })
    }

    /// Passes the latencies of the last window to `f`.
    pub fn with_latency<R>(&mut self, f: impl FnOnce(&mut Latency) -> R) -> R {
        f(&mut self.state.borrow_mut().latency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_fill_the_calls_in_flight() {
        let load = |in_flight, batch| Load {
            req_type: service::ECHO,
            size: 32,
            sessions: 8,
            in_flight,
            batch,
            random: true,
            timed: false,
        };
        let cases =
            [((60, 1), (60, 60)), ((60, 8), (7, 56)), ((60, 11), (5, 55)), ((2, 3), (1, 3))];
        for ((in_flight, batch), expected) in cases {
            assert_eq!(load(in_flight, batch).chains(), expected, "{in_flight} by {batch}");
        }
    }
}
