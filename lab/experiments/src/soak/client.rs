//! A client process of the soak test: the hidden command `courser-lab soak-client`.
//!
//! It keeps sessions to the servers, calls them at a given rate, checks each byte of each response,
//! and appends the outcome of every call to its [ledger](super::ledger). It prints `ready`, then its
//! [`Level`] several times per second. When its standard input is closed, it makes no further calls,
//! waits for the open ones and ends.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use courser::{
    CallError, CallId, Completion, Context, Executed, Nexus, Recovery, Rpc, SessionId,
    SessionState, Status,
};

use super::ledger::{Event, Ledger, Record, now_ns};
use super::message::{self, ECHO, HEADER, HELLO, Header, NESTED, Rng, TINY, WORK};
use super::process::{LEVEL_EVERY, Level};
use super::server::config;
use courser_kit::Failure;
use courser_kit::parent::{say, stop_with_stdin};

/// Arguments from the parent process.
#[derive(Debug, clap::Args)]
pub struct ClientArgs {
    /// The servers, separated by commas
    #[arg(long, value_delimiter = ',')]
    servers: Vec<String>,
    /// Number of this process, the upper 16 bits of the numbers of its calls
    #[arg(long)]
    number: u16,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    ledger: PathBuf,
    #[arg(long, default_value_t)]
    recovery: Recovery,
    /// Calls per second
    #[arg(long)]
    load: f64,
    /// Largest message, bytes
    #[arg(long)]
    max_size: u64,
    /// A call that takes longer counts as hung
    #[arg(long)]
    hang_ms: u64,
    /// Instead of calls: number of connects and disconnects
    #[arg(long, default_value_t = 0)]
    connects: u64,
}

/// Names of the errors of calls; a [`Record`] contains the index.
pub(super) const ERRORS: [&str; 21] = [
    "none",
    "not connected",
    "peer failed",
    "datapath silent",
    "closed",
    "deadline exceeded",
    "cancelled",
    "no memory",
    "response too large",
    "server: unknown type",
    "server: request too large",
    "server: no memory",
    "server: no reply",
    "server: response failed",
    "server: refused",
    "server: workers busy",
    "server: panicked",
    "server: deadline exceeded",
    "server: cancelled",
    "server: shutting down",
    "server: other",
];

fn error_index(error: &CallError) -> u8 {
    match error {
        CallError::NotConnected(_) => 1,
        CallError::PeerFailed(_) => 2,
        CallError::DatapathSilent(_) => 3,
        CallError::Closed(_) => 4,
        CallError::DeadlineExceeded(_) => 5,
        CallError::Cancelled(_) => 6,
        CallError::NoMemory { .. } => 7,
        CallError::ResponseTooLarge { .. } => 8,
        CallError::Server(status) => match status {
            Status::UnknownType => 9,
            Status::TooLarge => 10,
            Status::NoMemory => 11,
            Status::NoReply => 12,
            Status::ResponseFailed => 13,
            Status::Rejected => 14,
            Status::WorkersBusy => 15,
            Status::Panicked => 16,
            Status::DeadlineExceeded => 17,
            Status::Cancelled => 18,
            Status::ShuttingDown => 19,
            // `Other`, and statuses of later versions.
            _ => 20,
        },
        _ => 20,
    }
}

/// Sessions to each server; several share a peer.
const SESSIONS: usize = 2;

/// Most open calls of a session: more than its slots, so that calls are queued.
const OPEN_PER_SESSION: usize = 48;

/// Time after its deadline at which a call may end: scheduling delays of a loaded machine.
const LATE_NS: u64 = 1_500_000_000;

/// Time after which some calls are cancelled.
const CANCEL_AFTER: Duration = Duration::from_millis(2);

/// Time between two attempts to connect to a server.
const RETRY: Duration = Duration::from_millis(50);

/// Connects in flight in the experiment `connects`.
const LANES: usize = 16;

/// State of a lane.
#[derive(Clone, Copy)]
enum Stage {
    Down {
        retry: Instant,
    },
    Connecting(SessionId),
    /// The server is asked for its incarnation.
    Greeting(SessionId),
    Up(SessionId),
}

/// A session that is connected again after each failure.
struct Lane {
    uri: String,
    stage: Stage,
    /// Incarnation of the server, from the response to `HELLO`.
    incarnation: Rc<RefCell<Option<u64>>>,
    open: Rc<RefCell<usize>>,
}

/// A call that has not ended.
#[derive(Clone, Copy)]
struct Open {
    req_type: u16,
    incarnation: u64,
    began_ns: u64,
    /// Deadline of the call, relative to its start.
    deadline_ns: Option<u64>,
    request: usize,
    response: usize,
}

/// State that the continuations share.
struct Shared {
    ledger: Ledger,
    open: BTreeMap<u64, Open>,
    ended: u64,
}

impl Shared {
    fn note(&mut self, event: Event, error: u8, id: u64, call: Open) {
        let at_ns = now_ns();
        let took_us = u32::try_from((at_ns - call.began_ns) / 1000).unwrap_or(u32::MAX);
        let bytes = (call.request + call.response) as u32;
        let Open { req_type, incarnation, .. } = call;
        let record = Record { event, req_type, error, id, incarnation, at_ns, took_us, bytes };
        if let Err(error) = self.ledger.append(record) {
            courser_kit::out::error(&format!("cannot write the ledger: {error}"));
            std::process::abort();
        }
    }

    /// Checks and records the outcome of a call.
    fn end(&mut self, id: u64, done: &Completion<'_>) {
        let Some(call) = self.open.remove(&id) else {
            let nothing = Open {
                req_type: 0,
                incarnation: 0,
                began_ns: now_ns(),
                deadline_ns: None,
                request: 0,
                response: 0,
            };
            return self.note(Event::EndedTwice, 0, id, nothing);
        };
        self.ended += 1;
        if call.deadline_ns.is_some_and(|d| now_ns() > call.began_ns + d + LATE_NS) {
            self.note(Event::Late, 0, id, call);
        }
        let (event, error) = match &done.result {
            Ok(response) if is_right(id, &call, response) => (Event::Succeeded, 0),
            Ok(_) => (Event::CorruptResponse, 0),
            Err(error) => {
                let event = match error.executed() {
                    Executed::Never => Event::Never,
                    Executed::Maybe => Event::Maybe,
                    Executed::Yes => Event::Ran,
                };
                (event, error_index(error))
            }
        };
        self.note(event, error, id, call);
    }
}

fn is_right(id: u64, call: &Open, response: &[u8]) -> bool {
    match call.req_type {
        TINY => message::is_tiny_response(id, call.response, response),
        _ => message::is_response(id, call.incarnation, call.response, response),
    }
}

struct Client {
    rpc: Rpc,
    lanes: Vec<Lane>,
    shared: Rc<RefCell<Shared>>,
    rng: Rng,
    next_id: u64,
    max_size: u64,
    /// Calls to cancel, with their times.
    to_cancel: VecDeque<(Instant, CallId)>,
}

/// Runs until standard input is closed and all calls have ended.
///
/// # Errors
/// The process cannot start, or its event loop fails.
pub(crate) fn main(args: &ClientArgs) -> Result<(), Failure> {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let stop = stop_with_stdin()?;
    let mut rpc = Nexus::bind_with("udp://127.0.0.1:0", config(args.recovery))?.endpoint()?;
    if args.connects > 0 {
        say("ready");
        return connects(&mut rpc, args, &stop);
    }
    let ledger = Ledger::create(&args.ledger)?;
    let mut client = Client {
        rpc,
        lanes: (0..SESSIONS).flat_map(|_| args.servers.iter()).map(|uri| Lane::new(uri)).collect(),
        shared: Rc::new(RefCell::new(Shared { ledger, open: BTreeMap::new(), ended: 0 })),
        rng: Rng::new(args.seed ^ (u64::from(args.number) << 32)),
        next_id: u64::from(args.number) << 48,
        max_size: args.max_size,
        to_cancel: VecDeque::new(),
    };
    say("ready");
    let (start, mut made, mut level_due) = (Instant::now(), 0.0, Instant::now());
    let hang = Duration::from_millis(args.hang_ms);
    loop {
        client.pass(Duration::from_millis(1))?;
        let stopping = stop.load(Ordering::Relaxed);
        if stopping && client.shared.borrow().open.is_empty() {
            break;
        }
        client.record_hung(hang);
        client.cancel();
        client.lanes_forward();
        // Calls that were not made while servers were unreachable are made up for at most 50 ms.
        let due = start.elapsed().as_secs_f64() * args.load;
        made = f64::max(made, due - args.load / 20.0);
        while !stopping && made < due {
            made += 1.0;
            client.call();
        }
        if Instant::now() >= level_due {
            level_due = Instant::now() + LEVEL_EVERY;
            client.say_level();
        }
    }
    client.say_level();
    Ok(())
}

impl Lane {
    fn new(uri: &str) -> Self {
        Self {
            uri: uri.to_owned(),
            stage: Stage::Down { retry: Instant::now() },
            incarnation: Rc::default(),
            open: Rc::default(),
        }
    }
}

impl Client {
    fn pass(&mut self, time: Duration) -> Result<(), Failure> {
        self.rpc.run_for(time).map_err(|error| Failure::Runtime(error.to_string()))
    }

    fn say_level(&self) {
        let shared = self.shared.borrow();
        say(&Level::of(&self.rpc, shared.ended, shared.open.len() as u64).line());
    }

    /// Records and forgets calls that are open for longer than `limit`.
    fn record_hung(&mut self, limit: Duration) {
        let mut shared = self.shared.borrow_mut();
        let before = now_ns().saturating_sub(limit.as_nanos() as u64);
        // Numbers ascend with time, so the first call is the oldest.
        while let Some((&id, &call)) = shared.open.first_key_value()
            && call.began_ns < before
        {
            shared.note(Event::Hung, 0, id, call);
            shared.open.remove(&id);
        }
    }

    /// Cancels the calls that are due; some of them have ended already.
    fn cancel(&mut self) {
        while let Some((due, call)) = self.to_cancel.front()
            && *due <= Instant::now()
        {
            self.rpc.context().cancel(*call);
            self.to_cancel.pop_front();
        }
    }

    /// Advances the state of every lane.
    fn lanes_forward(&mut self) {
        for at in 0..self.lanes.len() {
            let stage = self.lanes[at].stage;
            let gone = |s: SessionId| self.rpc.session_state(s) == SessionState::Gone;
            self.lanes[at].stage = match stage {
                Stage::Down { retry } if Instant::now() < retry => stage,
                Stage::Down { .. } => match self.rpc.connect(&self.lanes[at].uri) {
                    Ok(session) => Stage::Connecting(session),
                    Err(_) => Stage::Down { retry: Instant::now() + RETRY },
                },
                Stage::Connecting(s) | Stage::Greeting(s) | Stage::Up(s) if gone(s) => {
                    *self.lanes[at].incarnation.borrow_mut() = None;
                    Stage::Down { retry: Instant::now() + RETRY }
                }
                Stage::Connecting(s) if self.rpc.session_state(s) == SessionState::Connected => {
                    self.greet(at, s)
                }
                Stage::Greeting(s) if self.lanes[at].incarnation.borrow().is_some() => Stage::Up(s),
                other => other,
            };
        }
    }

    /// Asks a server for its incarnation; the session is used after the response.
    fn greet(&mut self, at: usize, session: SessionId) -> Stage {
        let told = self.lanes[at].incarnation.clone();
        *told.borrow_mut() = None;
        let retry = Stage::Down { retry: Instant::now() + RETRY };
        let Ok(empty) = self.rpc.alloc(0) else { return retry };
        let asked = self.rpc.call(session, HELLO, empty, move |_, done| {
            let name = done.result.ok().and_then(|r| r.as_ref().try_into().ok());
            *told.borrow_mut() = name.map(u64::from_le_bytes);
        });
        if asked.is_ok() { Stage::Greeting(session) } else { retry }
    }

    /// Makes one call on a connected session, unless all have the most open calls.
    fn call(&mut self) {
        let first = self.rng.below(self.lanes.len() as u64) as usize;
        let order = (first..self.lanes.len()).chain(0..first);
        let ready = |at: &usize| {
            let lane = &self.lanes[*at];
            matches!(lane.stage, Stage::Up(_)) && *lane.open.borrow() < OPEN_PER_SESSION
        };
        let Some(at) = order.into_iter().find(ready) else { return };
        let lane = &self.lanes[at];
        let (Stage::Up(session), Some(incarnation)) = (lane.stage, *lane.incarnation.borrow())
        else {
            return;
        };
        let size = self.rng.size(self.max_size);
        let (req_type, response) = match self.rng.below(100) {
            _ if size < HEADER => (TINY, size),
            0..20 => (WORK, self.rng.size(self.max_size)),
            20..35 => (NESTED, self.rng.size(self.max_size)),
            _ => (ECHO, self.rng.size(self.max_size)),
        };
        let id = self.next_id;
        let Ok(mut request) = self.rpc.alloc(size) else { return };
        let Some(bytes) = request.get_mut() else { return };
        match req_type {
            TINY => message::fill_tiny(id, bytes),
            _ => {
                let work_us = self.rng.below(4000) as u32;
                Header { id, resp_len: response as u32, work_us }.fill_request(bytes);
            }
        }
        self.next_id += 1;
        // 0.2 to 205 ms: some deadlines cannot be met, and some are rarely missed.
        let deadline =
            (self.rng.below(100) < 15).then(|| Duration::from_micros(200 << self.rng.below(11)));
        let deadline_ns = deadline.map(|d| d.as_nanos() as u64);
        let began_ns = now_ns();
        let call = Open { req_type, incarnation, began_ns, deadline_ns, request: size, response };
        self.shared.borrow_mut().open.insert(id, call);
        *lane.open.borrow_mut() += 1;
        let (shared, open) = (self.shared.clone(), lane.open.clone());
        let done = move |_: &mut Context<'_>, done: Completion<'_>| {
            *open.borrow_mut() -= 1;
            shared.borrow_mut().end(id, &done);
        };
        match self.rpc.request(session, req_type, request).deadline(deadline).then(done) {
            Ok(call) if self.rng.below(100) < 2 => {
                self.to_cancel.push_back((Instant::now() + CANCEL_AFTER, call));
            }
            Ok(_) => {}
            Err(_) => {
                // The session has failed since the last check; a rejected call needs no record.
                self.shared.borrow_mut().open.remove(&id);
                *self.lanes[at].open.borrow_mut() -= 1;
            }
        }
    }
}

/// Connects, greets and disconnects as often as requested, several sessions at a time; then prints
/// its level until the end.
fn connects(rpc: &mut Rpc, args: &ClientArgs, stop: &AtomicBool) -> Result<(), Failure> {
    let uri = args.servers.first().ok_or_else(|| Failure::Usage("no server".to_owned()))?;
    let greeted: Rc<RefCell<Vec<SessionId>>> = Rc::default();
    let (mut begun, mut done, mut failed) = (0, 0, 0);
    let mut under_way: Vec<SessionId> = Vec::new();
    let mut level_due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        while begun < args.connects && under_way.len() < LANES {
            let session = rpc.connect(uri)?;
            begun += 1;
            under_way.push(session);
            let told = greeted.clone();
            let empty = rpc.alloc(0).map_err(|e| Failure::Runtime(e.to_string()))?;
            let called = rpc.call(session, HELLO, empty, move |_, answer| {
                if answer.result.is_ok() {
                    told.borrow_mut().push(session);
                }
            });
            called.map_err(|e| Failure::Runtime(e.to_string()))?;
        }
        let time = if under_way.is_empty() { 50 } else { 1 };
        let ran = rpc.run_for(Duration::from_millis(time));
        ran.map_err(|error| Failure::Runtime(error.to_string()))?;
        for session in greeted.take() {
            under_way.retain(|&s| s != session);
            rpc.close(session);
            done += 1;
        }
        under_way.retain(|&s| {
            let error = rpc.session_error(s);
            if let Some(error) = &error {
                say(&format!("complaint connect: {error}"));
                failed += 1;
            }
            error.is_none()
        });
        if Instant::now() >= level_due {
            level_due = Instant::now() + LEVEL_EVERY;
            let open = args.connects - done - failed;
            say(&Level::of(rpc, done, open).line());
        }
    }
    Ok(())
}
