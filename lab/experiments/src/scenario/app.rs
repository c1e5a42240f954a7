//! The applications of the experiments: servers, and closed-loop clients with a constant number of
//! requests in flight.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{CallError, Context, MsgBuf, Nexus, Rpc, SessionId, SessionState};

use super::ScenarioError;
use courser_sim::SetupError;
use courser_sim::observe::Times;
use courser_sim::{HostId, Rng, World};

/// Answered with its own bytes.
pub(crate) const ECHO: u16 = 1;

/// Answered with 32 bytes, whatever its size `[eRPC §6.4]`.
pub(crate) const SINK: u16 = 2;

/// Answered with as many bytes as its first four bytes state.
pub(crate) const WANT: u16 = 3;

/// Bytes of the response to [`SINK`].
const ANSWER: [u8; 32] = [0x5a; 32];

/// Limit of virtual time to connect sessions.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Interval of the checks for it.
const CONNECT_STEP: Duration = Duration::from_micros(50);

/// Measurements of the clients.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) latency: Times,
    pub(crate) failed: u64,
    first_error: Option<String>,
}

/// Shared by the clients of a world.
pub(crate) type SharedTally = Rc<RefCell<Tally>>;

impl Tally {
    pub(crate) fn ended<R>(&mut self, result: &Result<R, CallError>, after_ns: u64) {
        match result {
            Ok(_) => self.latency.record(after_ns),
            Err(error) => self.failed(error),
        }
    }

    pub(crate) fn failed(&mut self, error: &impl ToString) {
        self.failed += 1;
        self.first_error.get_or_insert_with(|| error.to_string());
    }

    /// Fails when a call has failed.
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        match &self.first_error {
            None => Ok(()),
            Some(first) => Err(ScenarioError::Calls { count: self.failed, first: first.clone() }),
        }
    }
}

/// A server for all request types.
pub(crate) fn server(nexus: &Nexus) -> Result<Rpc, SetupError> {
    let mut rpc = nexus.endpoint()?;
    answer(&mut rpc);
    Ok(rpc)
}

/// A server for [`WANT`].
pub(crate) fn sized_server(nexus: &Nexus) -> Result<Rpc, courser::BindError> {
    let mut rpc = nexus.endpoint()?;
    rpc.on(WANT, |cx, request| {
        let bytes = request.first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        match cx.alloc(bytes as usize) {
            Ok(mut response) => {
                response.fill(0x5a);
                cx.reply(response);
            }
            Err(_) => cx.reject(),
        }
    });
    Ok(rpc)
}

/// Registers the server's handlers at an endpoint.
pub(crate) fn answer(rpc: &mut Rpc) {
    rpc.on(ECHO, |cx, request| cx.reply(request));
    rpc.on(SINK, |cx, _| cx.reply(ANSWER));
}

/// Message memory with fixed content, so that runs are identical to the last bit.
pub(crate) fn message(rpc: &Rpc, bytes: usize) -> Result<MsgBuf, SetupError> {
    let mut message = rpc.alloc(bytes)?;
    message.fill(0xa5);
    Ok(message)
}

/// Sends the first requests of a client.
type Begin = Box<dyn FnOnce(&mut Context<'_>)>;

/// A client that keeps `outstanding` requests of `bytes` bytes in flight on one session, once that
/// is connected.
pub(crate) fn closed_loop(
    nexus: &Nexus,
    server: &str,
    req_type: u16,
    bytes: usize,
    outstanding: u32,
    tally: SharedTally,
) -> Result<Rpc, SetupError> {
    let call = (req_type, bytes);
    let (mut rpc, begin) = closed_loop_later(nexus, server, call, outstanding, tally)?;
    begin(&mut rpc.context());
    Ok(rpc)
}

/// The same from the call of the function on that it returns.
fn closed_loop_later(
    nexus: &Nexus,
    server: &str,
    (req_type, bytes): (u16, usize),
    outstanding: u32,
    tally: SharedTally,
) -> Result<(Rpc, Begin), SetupError> {
    let mut rpc = nexus.endpoint()?;
    let session = rpc.connect(server)?;
    let starts = Rc::new(RefCell::new(vec![0; outstanding as usize]));
    let requests = (0..outstanding).map(|_| message(&rpc, bytes));
    let requests: Vec<MsgBuf> = requests.collect::<Result<_, _>>()?;
    let send = move |cx: &mut Context<'_>, starts: &mut Vec<u64>, tag: u64, request: MsgBuf| {
        let start_ns = starts.get_mut(tag as usize)?;
        *start_ns = cx.now_ns();
        let sent = cx.request(session, req_type, request).tag(tag).send();
        sent.err().map(|rejected| rejected.reason)
    };
    let (first, of_first) = (Rc::clone(&starts), Rc::clone(&tally));
    rpc.on_completion(move |cx, tag, done| {
        let mut starts = starts.borrow_mut();
        let mut tally = tally.borrow_mut();
        let Some(start_ns) = starts.get(tag as usize) else { return };
        tally.ended(&done.result, cx.now_ns() - start_ns);
        if let Some(rejected) = send(cx, &mut starts, tag, done.request) {
            tally.failed(&rejected);
        }
    });
    let begin = move |cx: &mut Context<'_>| {
        for (tag, request) in requests.into_iter().enumerate() {
            if let Some(rejected) = send(cx, &mut first.borrow_mut(), tag as u64, request) {
                of_first.borrow_mut().failed(&rejected);
            }
        }
    };
    Ok((rpc, Box::new(begin)))
}

/// Starts a server, and a [`closed_loop`] of requests without a response on each other host, which
/// begins when its session is connected.
pub(crate) fn closed_loops(
    world: &mut World,
    server: HostId,
    bytes: usize,
    outstanding: u32,
) -> Result<SharedTally, ScenarioError> {
    each_closed_loop(world, server, bytes, outstanding, |rpc, _, begin| begin(&mut rpc.context()))
}

/// The same with clients that begin at random times within `within_ns` after all are connected.
pub(crate) fn closed_loops_apart(
    world: &mut World,
    server: HostId,
    bytes: usize,
    outstanding: u32,
    (within_ns, rng): (u64, impl Fn(HostId) -> Rng),
) -> Result<SharedTally, ScenarioError> {
    let begins = Rc::new(RefCell::new(Vec::new()));
    let all = Rc::clone(&begins);
    let later = move |_: &mut Rpc, host, begin| all.borrow_mut().push((host, begin));
    let tally = each_closed_loop(world, server, bytes, outstanding, later)?;
    connect_all(world)?;
    let from_ns = world.now_ns();
    for (host, begin) in begins.take() {
        let begin: Begin = begin;
        world.at(from_ns + rng(host).below(within_ns.max(1)), move |world| {
            if let Some(rpc) = world.endpoint(host, 0) {
                begin(&mut rpc.context());
            }
        });
    }
    Ok(tally)
}

fn each_closed_loop(
    world: &mut World,
    server: HostId,
    bytes: usize,
    outstanding: u32,
    made: impl Fn(&mut Rpc, HostId, Begin) + Clone + 'static,
) -> Result<SharedTally, ScenarioError> {
    let tally = SharedTally::default();
    world.start(server, self::server)?;
    let uri = world.uri(server);
    for host in world.hosts().filter(|&host| host != server) {
        let (uri, tally, made) = (uri.clone(), Rc::clone(&tally), made.clone());
        world.start(host, move |nexus| -> Result<Rpc, SetupError> {
            let call = (SINK, bytes);
            let (mut rpc, begin) =
                closed_loop_later(nexus, &uri, call, outstanding, tally.clone())?;
            made(&mut rpc, host, begin);
            Ok(rpc)
        })?;
    }
    Ok(tally)
}

/// Advances time until every session of every host is connected.
pub(crate) fn connect_all(world: &mut World) -> Result<(), ScenarioError> {
    let begin_ns = world.now_ns();
    let end_ns = begin_ns + CONNECT_LIMIT.as_nanos() as u64;
    loop {
        let missing = connecting(world);
        if missing == 0 {
            return Ok(());
        }
        if world.now_ns() >= end_ns {
            let after_ns = world.now_ns() - begin_ns;
            return Err(ScenarioError::NotConnected { missing, after_ns });
        }
        world.run_for(CONNECT_STEP);
    }
}

/// Number of sessions that are not connected.
fn connecting(world: &World) -> usize {
    let mut missing = 0;
    for host in world.hosts() {
        for endpoint in 0.. {
            let Some(rpc) = world.peek(host, endpoint) else { break };
            let unfinished = |&s: &SessionId| rpc.session_state(s) == SessionState::Connecting;
            missing += rpc.sessions_from(0).filter(unfinished).count();
        }
    }
    missing
}

/// Advances time until an idle world has no thread in the middle of a pass.
const REST: Duration = Duration::from_micros(10);

/// Time of one call on an idle network from call to continuation, ns.
pub(crate) fn one_call(
    world: &mut World,
    host: HostId,
    session: SessionId,
    req_type: u16,
    request: &[u8],
) -> Result<u64, ScenarioError> {
    type Ended = Rc<RefCell<Option<Result<u64, String>>>>;
    let failed = |first: String| ScenarioError::Calls { count: 1, first };
    let ended = Ended::default();
    let to = ended.clone();
    world.run_for(REST);
    let rpc = world.rpc(host);
    let mut message = rpc.alloc(request.len()).map_err(|e| failed(e.to_string()))?;
    message.copy_from_slice(request);
    let start_ns = rpc.context().now_ns();
    let done = move |cx: &mut Context<'_>, done: courser::Completion<'_>| {
        let latency = done.result.map(|_| cx.now_ns() - start_ns).map_err(|e| e.to_string());
        *to.borrow_mut() = Some(latency);
    };
    let called = rpc.call(session, req_type, message, done);
    called.map_err(|rejected| failed(rejected.reason.to_string()))?;
    let over = |_: &mut World| ended.borrow().is_some();
    if !world.run_until(CONNECT_LIMIT, over) {
        return Err(failed("no answer".to_owned()));
    }
    let latency = ended.take();
    latency.unwrap_or_else(|| Err("no answer".to_owned())).map_err(failed)
}
