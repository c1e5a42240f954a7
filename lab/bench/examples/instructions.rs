//! Small RPCs in memory, over shared memory or over UDP, client and server on one thread, for counting
//! instructions: `scripts/instructions.sh` runs this under callgrind, whose counts do not depend on
//! the machine's load.
//!
//! Usage: `instructions mem|shm|udp RPCS IN_FLIGHT [SESSIONS [RTO_MS]] [deadline] [marked]
//! [uncontrolled] [timely] [paced] [messages] [bulk] [size=BYTES] [line=BPS] [packing=HOW] [peers=N]
//! [active=N]` (32 bytes each way, on 8 sessions or as many as there are calls in flight; with
//! SESSIONS, each call on one of them at random), or `instructions mem|shm empty PASSES`: passes of an
//! event loop without work. As many RPCs or passes before them are not counted: [`begin`] and [`end`]
//! are called between passes, and it prints the number of RPCs between the two. With `RTO_MS` timers and
//! acknowledgements count too: callgrind is about 50 times slower than a CPU, so 50 is like the
//! default of 1.
//!
//! With `messages`, one-way messages take the place of the calls. With `futures`, each call in flight is
//! a task that awaits one call after another, and the handler is async. With `typed`, it is a method of a
//! service; with `counted`, the server counts the calls of the method. The client is a session, which counts
//! none. With `middleware`, the server has one that lets all calls pass.
//!
//! With `deadline`, each call has a deadline that it does not reach. With `marked`, each side
//! receives one frame with a congestion mark before counting starts, so that all counted frames
//! carry ECN counts. With `uncontrolled`, calls have no congestion control; with `timely` that of the
//! eRPC paper, and with `paced` that without the bypass of the pacer, on a link of `line=BPS`.
//! `size=BYTES` changes the 32 bytes, and `packing=off`, `copy` or `gather` how packets share frames: with the last two, all of
//! which two fit.
//!
//! With `bulk`, calls have requests of 8 MiB in packets of about 1 KiB and answers of 32 bytes, and
//! packets of requests are counted in place of RPCs. With `peers=N`, the sessions are spread over N
//! servers of this process, all on its one thread. Both are without congestion control. With `active=N`, only the first N sessions have calls.
//!
//! `instructions client RPCS IN_FLIGHT` counts those calls of a [`Client`] over shared memory whose tasks
//! drive its endpoint, polled by this thread in place of a runtime ([`client_polls`]).
//!
//! These functions are counted: [`client_sends`], [`client_pass`] and [`server_pass`], and their transport parts
//! [`client_tx`], [`client_rx`], [`server_tx`], [`server_rx`]; [`empty_passes`].

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use courser::service::{Denied, IncomingCall, ServerMiddleware};
use courser::{
    CallId, CallRejected, Client, ClientCall, Config, Context, Control, MsgBuf, Nexus, Packing,
    Request, Rpc, Session, SessionId, TimelyConstants, Tuning,
};
use courser_buf::{Ecn, PathId, RxBurst, TxBurst};
use courser_net::{
    MemConfig, MemNetwork, ShmConfig, ShmTransport, Transport, UdpConfig, UdpTransport,
};

const ECHO: u16 = 1;
const SESSIONS: usize = 8;
/// Sessions that connect at a time.
const CONNECTING: usize = 64;
const CLIENT: u8 = 0;
const SERVER: u8 = 1;
/// Requests of `bulk`, and the frames of their packets.
const BULK_BYTES: usize = 8 << 20;
const BULK_FRAME: usize = 1_072;
/// Not reached by a call, even under callgrind.
const DEADLINE: Duration = Duration::from_secs(30);

type Failure = Box<dyn std::error::Error>;

/// One pass of the client's event loop, including continuations.
#[inline(never)]
fn client_pass<T: Transport>(rpc: &mut Rpc<T>) {
    // The two functions must differ, or the compiler merges them.
    std::hint::black_box("client");
    rpc.poll();
}

/// Sends one-way messages until `in_flight` are not acknowledged. Returns how many.
#[inline(never)]
fn client_sends<T: Transport>(
    rpc: &mut Rpc<T>,
    session: SessionId,
    in_flight: u64,
) -> Result<u64, Failure> {
    let count = in_flight.saturating_sub(rpc.outstanding_messages());
    for _ in 0..count {
        let message = rpc.alloc_recycled(32)?;
        rpc.send(session, ECHO, message)?;
    }
    Ok(count)
}

/// One pass of the server's event loop, including the handler.
#[inline(never)]
fn server_pass<T: Transport>(rpc: &mut Rpc<T>) {
    std::hint::black_box("server side");
    rpc.poll();
}

/// The servers of a run: one, or with `peers=N` several.
type Servers<T> = [Rpc<Side<SERVER, T>>];

/// One pass of each server.
fn servers_pass<T: Transport>(servers: &mut Servers<T>) {
    servers.iter_mut().for_each(server_pass);
}

/// One pass of all endpoints that is not counted.
fn poll_all<T: Transport>(client: &mut Rpc<Side<CLIENT, T>>, servers: &mut Servers<T>) {
    client.poll();
    servers.iter_mut().for_each(|server| _ = server.poll());
}

/// Called where counting begins.
#[inline(never)]
fn begin() {
    std::hint::black_box("begin");
}

/// Called where counting ends.
#[inline(never)]
fn end() {
    std::hint::black_box("end");
}

/// Passes that find nothing: how soon a spinning endpoint sees a packet depends on their length.
#[inline(never)]
fn empty_passes<T: Transport>(rpc: &mut Rpc<T>, passes: u64) {
    for _ in 0..passes {
        rpc.poll();
    }
}

/// Polls the calls of a client once, and begins others until `in_flight` are in progress. Returns how many
/// have ended.
#[inline(never)]
fn client_polls(
    client: &Client,
    calls: &mut Vec<ClientCall>,
    in_flight: usize,
) -> Result<u64, Failure> {
    let mut cx = std::task::Context::from_waker(Waker::noop());
    let before = calls.len();
    let mut failed = None;
    calls.retain_mut(|call| match Pin::new(call).poll(&mut cx) {
        Poll::Ready(ended) => {
            failed = failed.take().or(ended.err());
            false
        }
        Poll::Pending => true,
    });
    let ended = before - calls.len();
    while calls.len() < in_flight {
        let mut call = client.call(ECHO, client.alloc_recycled(32)?);
        if Pin::new(&mut call).poll(&mut cx).is_ready() {
            return Err("a call without an answer has ended".into());
        }
        calls.push(call);
    }
    failed.map_or(Ok(ended as u64), |e| Err(e.into()))
}

/// Calls of a client with a server on the same thread.
fn run_client(rpcs: u64, in_flight: usize) -> Result<(), Failure> {
    let nexus = Nexus::bind("shm://127.0.0.1:0")?;
    let mut server = nexus.endpoint()?;
    server.on(ECHO, |cx: &mut Context<'_>, request: Request<'_>| cx.reply(&request[..]));
    let mut connecting = pin!(Client::connect(&nexus.local_uri()).into_future());
    let mut cx = std::task::Context::from_waker(Waker::noop());
    let client = loop {
        server.poll();
        if let Poll::Ready(client) = connecting.as_mut().poll(&mut cx) {
            break client?;
        }
    };
    let (mut calls, mut ended) = (Vec::with_capacity(in_flight), 0);
    let mut run = |until| -> Result<u64, Failure> {
        let from = ended;
        while ended < until {
            ended += client_polls(&client, &mut calls, in_flight)?;
            while server.poll() {}
        }
        Ok(ended - from)
    };
    run(rpcs)?;
    begin();
    let counted = run(2 * rpcs)?;
    end();
    println!("{counted} RPCs");
    Ok(())
}

/// True while the transport is called through the counted functions: not while sessions connect, which
/// takes a varying number of passes.
static COUNTS: AtomicBool = AtomicBool::new(false);

/// Sides ([`CLIENT`], [`SERVER`]) whose next received frame gets a congestion mark.
static TO_MARK: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// Receives before counting starts; marks the first frame if requested.
#[inline(never)]
fn uncounted_rx<'a, T: Transport>(side: u8, t: &'a mut T, out: &mut RxBurst<'a>) {
    let before = out.len();
    t.rx_burst(out);
    let to_mark = &TO_MARK[usize::from(side)];
    if let Some(frame) = out.get_mut(before)
        && to_mark.swap(false, Ordering::Relaxed)
    {
        frame.ecn = Ecn::Ce;
    }
}

/// The transport, with one function per direction and side so that callgrind can distinguish them.
struct Side<const SIDE: u8, T>(T);

#[inline(never)]
fn client_tx<T: Transport>(t: &mut T, burst: &mut TxBurst) {
    std::hint::black_box("client tx");
    t.tx_burst(burst);
}

#[inline(never)]
fn client_rx<'a, T: Transport>(t: &'a mut T, out: &mut RxBurst<'a>) {
    std::hint::black_box("client rx");
    t.rx_burst(out);
}

#[inline(never)]
fn server_tx<T: Transport>(t: &mut T, burst: &mut TxBurst) {
    std::hint::black_box("server side tx");
    t.tx_burst(burst);
}

#[inline(never)]
fn client_tx_copy<T: Transport>(t: &mut T, path: PathId, frame: &[u8]) -> bool {
    std::hint::black_box("client side tx_copy");
    t.tx_copy(path, frame)
}

#[inline(never)]
fn server_tx_copy<T: Transport>(t: &mut T, path: PathId, frame: &[u8]) -> bool {
    std::hint::black_box("server side tx_copy");
    t.tx_copy(path, frame)
}

#[inline(never)]
fn server_rx<'a, T: Transport>(t: &'a mut T, out: &mut RxBurst<'a>) {
    std::hint::black_box("server side rx");
    t.rx_burst(out);
}

impl<const SIDE: u8, T: Transport> courser_net::Middleware for Side<SIDE, T> {
    type Inner = T;
    fn inner(&self) -> &T {
        &self.0
    }
    fn inner_mut(&mut self) -> &mut T {
        &mut self.0
    }
    #[inline]
    fn tx_burst(&mut self, burst: &mut TxBurst) {
        match SIDE {
            _ if !COUNTS.load(Ordering::Relaxed) => self.0.tx_burst(burst),
            CLIENT => client_tx(&mut self.0, burst),
            _ => server_tx(&mut self.0, burst),
        }
    }
    #[inline]
    fn tx_copy(&mut self, path: PathId, frame: &[u8]) -> bool {
        match SIDE {
            _ if !COUNTS.load(Ordering::Relaxed) => self.0.tx_copy(path, frame),
            CLIENT => client_tx_copy(&mut self.0, path, frame),
            _ => server_tx_copy(&mut self.0, path, frame),
        }
    }
    #[inline]
    fn rx_burst<'a>(&'a mut self, out: &mut RxBurst<'a>) {
        match SIDE {
            _ if !COUNTS.load(Ordering::Relaxed) => uncounted_rx(SIDE, &mut self.0, out),
            CLIENT => client_rx(&mut self.0, out),
            _ => server_rx(&mut self.0, out),
        }
    }
}

fn connect<T: Transport>(
    client: &mut Rpc<Side<CLIENT, T>>,
    servers: &mut Servers<T>,
    uris: &[String],
    count: usize,
) -> Result<Vec<SessionId>, Failure> {
    let mut sessions = Vec::with_capacity(count);
    while sessions.len() < count {
        let some = CONNECTING.min(count - sessions.len());
        let uris = uris.iter().cycle().skip(sessions.len() % uris.len());
        let dialed =
            uris.take(some).map(|uri| client.connect(uri)).collect::<Result<Vec<_>, _>>()?;
        for session in dialed {
            while client.session_state(session) == courser::SessionState::Connecting {
                poll_all(client, servers);
            }
            if let Some(e) = client.session_error(session) {
                return Err(e.into());
            }
            sessions.push(session);
        }
    }
    Ok(sessions)
}

/// Selects sessions at random or round robin, identically in every run.
struct Choice {
    sessions: Vec<SessionId>,
    random: Option<u64>,
    next: usize,
    /// Bytes of a call.
    size: usize,
}

impl Choice {
    fn next(&mut self) -> SessionId {
        let count = self.sessions.len() as u64;
        let at = match &mut self.random {
            Some(state) => {
                // Marsaglia's xorshift64: a few instructions, independent of the number of
                // sessions.
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                ((u128::from(*state) * u128::from(count)) >> 64) as usize
            }
            None => {
                self.next = (self.next + 1) % count as usize;
                self.next
            }
        };
        self.sessions[at]
    }
}

const USAGE: &str = "usage: instructions (mem | shm | udp) \
    (RPCS IN_FLIGHT [SESSIONS [RTO_MS]] [deadline] [marked] [uncontrolled] [timely] [paced] [messages] \
    [futures] [typed [counted] [middleware]] [bulk] [size=BYTES] [line=BPS] [packing=HOW] [peers=N] [active=N] \
    | empty PASSES)";

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let transport = args.next().ok_or(USAGE)?;
    if transport == "client" {
        let mut number = || -> Result<u64, Failure> { Ok(args.next().ok_or(USAGE)?.parse()?) };
        return run_client(number()?, number()? as usize);
    }
    let load = Load::parse(args)?;
    match transport.as_str() {
        "mem" => {
            let network = MemNetwork::new();
            let loopback = u128::from(std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped());
            let defaults = MemConfig { host: loopback, ..MemConfig::default() };
            let max_frame = load.frame().unwrap_or(defaults.max_frame);
            let host = MemConfig { max_frame, ..defaults };
            run("mem://127.0.0.1:0", || Ok(network.endpoint(host)?), &load)
        }
        "udp" => {
            let bind = || {
                let config = UdpConfig::new(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
                Ok(UdpTransport::bind(config)?)
            };
            run("udp://127.0.0.1:0", bind, &load)
        }
        "shm" => {
            let defaults = ShmConfig::default();
            let max_frame = load.frame().unwrap_or(defaults.max_frame);
            let config = ShmConfig { max_frame, ..defaults };
            let bind = || Ok(ShmTransport::bind(&config)?);
            run("shm://127.0.0.1:0", bind, &load)
        }
        _ => Err(USAGE.into()),
    }
}

/// The parameters of a run.
struct Load {
    /// RPCs; `None`: empty passes.
    rpcs: Option<u64>,
    /// Calls in flight, or the number of empty passes.
    number: u64,
    /// Number of sessions from which each call selects one at random.
    drawn: Option<usize>,
    rto_ms: Option<u64>,
    deadline: bool,
    marked: bool,
    uncontrolled: bool,
    timely: bool,
    paced: bool,
    messages: bool,
    futures: bool,
    typed: bool,
    /// The calls of typed methods are counted.
    counted: bool,
    /// Middleware sees them.
    middleware: bool,
    bulk: bool,
    size: usize,
    packing: Option<Packing>,
    /// Rate of the link with `paced`, bit/s.
    line_bps: Option<u64>,
    peers: usize,
    /// Sessions with calls; `None`: all.
    active: Option<usize>,
}

const WORDS: &str =
    "deadline marked uncontrolled timely paced messages futures typed counted middleware bulk";

impl Load {
    /// Parses the arguments after the transport.
    fn parse(args: impl Iterator<Item = String>) -> Result<Load, Failure> {
        let (values, args): (Vec<_>, Vec<_>) = args.partition(|a| a.contains('='));
        let value = |name: &str| values.iter().find_map(|v| v.strip_prefix(name));
        let (words, numbers): (Vec<_>, Vec<_>) =
            args.into_iter().partition(|a| WORDS.split(' ').any(|word| word == a));
        let mut numbers = numbers.into_iter();
        let (first, second) = (numbers.next().ok_or(USAGE)?, numbers.next().ok_or(USAGE)?);
        let load = Load {
            rpcs: if first == "empty" { None } else { Some(first.parse()?) },
            number: second.parse()?,
            drawn: numbers.next().map(|n| n.parse()).transpose()?,
            rto_ms: numbers.next().map(|n| n.parse()).transpose()?,
            deadline: words.iter().any(|w| w == "deadline"),
            marked: words.iter().any(|w| w == "marked"),
            uncontrolled: words.iter().any(|w| w == "uncontrolled"),
            timely: words.iter().any(|w| w == "timely"),
            paced: words.iter().any(|w| w == "paced"),
            messages: words.iter().any(|w| w == "messages"),
            futures: words.iter().any(|w| w == "futures"),
            typed: words.iter().any(|w| w == "typed"),
            counted: words.iter().any(|w| w == "counted"),
            middleware: words.iter().any(|w| w == "middleware"),
            bulk: words.iter().any(|w| w == "bulk"),
            size: value("size=").map_or(Ok(32), str::parse)?,
            packing: value("packing=").map(str::parse).transpose()?,
            line_bps: value("line=").map(str::parse).transpose()?,
            peers: value("peers=").map_or(Ok(1), str::parse)?,
            active: value("active=").map(str::parse).transpose()?,
        };
        let is_valid = numbers.next().is_none() && load.peers > 0 && load.active != Some(0);
        if is_valid { Ok(load) } else { Err(USAGE.into()) }
    }

    /// The largest frame, if it is not the default.
    fn frame(&self) -> Option<usize> {
        self.bulk.then_some(BULK_FRAME)
    }
}

/// Runs the load between two endpoints.
fn run<T: Transport>(
    bind: &str,
    transport: impl Fn() -> Result<T, Failure>,
    load: &Load,
) -> Result<(), Failure> {
    let eight = SESSIONS.min(usize::try_from(load.number)?);
    let count = load.drawn.unwrap_or(eight).max(1);

    let mut config = config(count, load.rto_ms);
    // Pacing follows the time, and packets would pass in fewer or more at once under callgrind.
    if load.uncontrolled || load.bulk || load.peers > 1 {
        config.control = Control::None;
    }
    if load.timely || load.paced {
        config.control = Control::Timely;
        // Callgrind's delays are no congestion.
        let longest_ns = 1_000_000_000;
        let erpc = TimelyConstants::ERPC;
        config.timely = Some(TimelyConstants { low_ns: longest_ns, high_ns: longest_ns, ..erpc });
    }
    if load.paced {
        // The pacer is not to limit the rate, and makes up for 10 us of each slow pass.
        config.line_rate_bps = Some(load.line_bps.unwrap_or(25_000_000_000));
        config.tuning.factors.pacing_bypass = false;
    }
    (config.packing, config.count_methods) = (load.packing, load.counted);
    if matches!(load.packing, Some(Packing::Copy | Packing::Gather)) {
        (config.inline_max, config.tuning.gather_from) = (2_048, 1);
    }
    let received = Rc::new(Cell::new(0_u64));
    let (mut nexuses, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..load.peers {
        let nexus = Nexus::bind_with(bind, config.clone())?;
        servers.push(server_on(&nexus, transport()?, load, &received)?);
        nexuses.push(nexus);
    }
    let nexus = Nexus::bind_with(bind, config)?;
    let mut client = nexus.endpoint_on(Side::<CLIENT, T>(transport()?))?;
    let uris: Vec<_> = nexuses.iter().map(Nexus::local_uri).collect();
    let mut sessions = connect(&mut client, &mut servers, &uris, count)?;
    sessions.truncate(load.active.unwrap_or(count));
    if load.marked {
        mark(&mut client, &mut servers, sessions[0])?;
    }
    COUNTS.store(true, Ordering::Relaxed);
    let Some(rpcs) = load.rpcs else {
        empty_passes(&mut client, load.number);
        begin();
        empty_passes(&mut client, load.number);
        end();
        println!("{} passes", load.number);
        return Ok(());
    };
    if load.messages {
        return messages(&mut client, &mut servers, sessions[0], rpcs, load.number, &received);
    }
    let (sides, loads) = ((&mut client, &mut servers[..]), (rpcs, load.number));
    if load.bulk {
        return bulk(sides, sessions[0], loads);
    }
    if load.typed {
        return tasks(sides, &sessions, loads, echo_typed);
    }
    if load.futures {
        return tasks(sides, &sessions, loads, echo_messages);
    }
    let random = load.drawn.map(|_| 0x9e37_79b9_7f4a_7c15);
    let choice = Choice { sessions, random, next: 0, size: load.size };
    if load.deadline {
        echoes::<_, true>(&mut client, &mut servers, choice, rpcs, load.number)
    } else {
        echoes::<_, false>(&mut client, &mut servers, choice, rpcs, load.number)
    }
}

/// An endpoint with the handlers of the load. It counts one-way messages in `received`.
fn server_on<T: Transport>(
    nexus: &Nexus,
    transport: T,
    load: &Load,
    received: &Rc<Cell<u64>>,
) -> Result<Rpc<Side<SERVER, T>>, Failure> {
    let mut server = nexus.endpoint_on(Side::<SERVER, T>(transport))?;
    if load.typed {
        server.add_service(EchoServer::local(Answers))?;
        if load.middleware {
            server.middleware(LetsPass);
        }
    } else if load.futures {
        server.on_async(ECHO, |request| {
            let answer = *request.first_chunk::<32>().expect("32 bytes");
            async move { answer }
        });
    } else if load.bulk {
        server.on(ECHO, |cx, _| _ = cx.reply_with(32, |answer| answer.fill(0)));
    } else {
        server.on(ECHO, echo);
    }
    let count_of = received.clone();
    server.on_message(ECHO, move |_, message| {
        assert_eq!(message.len(), 32);
        count_of.set(count_of.get() + 1);
    });
    Ok(server)
}

/// Twice `packets` packets, or a few more, of requests of [`BULK_BYTES`], `in_flight` requests at a time.
fn bulk<T: Transport>(
    (client, servers): (&mut Rpc<Side<CLIENT, T>>, &mut Servers<T>),
    session: SessionId,
    (packets, in_flight): (u64, u64),
) -> Result<(), Failure> {
    let stats = client.session_stats(session).ok_or("the session has ended")?;
    let each = BULK_BYTES.div_ceil(usize::from(stats.data_per_packet)) as u64;
    let done = Rc::new(Cell::new(0_u64));
    let count = done.clone();
    client.on_completion(move |cx, tag, ended| {
        assert!(ended.result.is_ok_and(|answer| answer.len() == 32));
        count.set(count.get() + each);
        if count.get() < 2 * (packets + each) {
            let sent = cx.request(session, ECHO, ended.request).tag(tag).send();
            assert!(sent.is_ok());
        }
    });
    for tag in 0..in_flight {
        let request = client.alloc(BULK_BYTES)?;
        client.request(session, ECHO, request).tag(tag).send()?;
    }
    count_until(client, servers, &done, packets)
}

/// Twice `count` one-way messages, `in_flight` at a time.
fn messages<T: Transport>(
    client: &mut Rpc<Side<CLIENT, T>>,
    servers: &mut Servers<T>,
    session: SessionId,
    count: u64,
    in_flight: u64,
    received: &Cell<u64>,
) -> Result<(), Failure> {
    let mut until = |count: u64| -> Result<u64, Failure> {
        while received.get() < count {
            client_sends(client, session, in_flight)?;
            client_pass(client);
            servers_pass(servers);
        }
        Ok(received.get())
    };
    let before = until(count)?;
    begin();
    let after = until(2 * count)?;
    end();
    println!("{} RPCs", after - before);
    Ok(())
}

/// The service of `typed`.
#[courser::service(codec = courser::service::Bytes)]
trait Echo {
    /// Answers with the argument.
    async fn echo(&self, bytes: [u8; 32]) -> [u8; 32];
}

struct Answers;

/// The middleware of `middleware`.
struct LetsPass;

impl ServerMiddleware for LetsPass {
    fn before(&self, _: &mut IncomingCall<'_>) -> Result<(), Denied> {
        Ok(())
    }
}

impl Echo for Answers {
    async fn echo(&self, bytes: [u8; 32]) -> [u8; 32] {
        bytes
    }
}

/// Runs both sides until twice `rpcs` are done, and counts the second half.
fn count_until<T: Transport>(
    client: &mut Rpc<Side<CLIENT, T>>,
    servers: &mut Servers<T>,
    done: &Cell<u64>,
    rpcs: u64,
) -> Result<(), Failure> {
    let mut echo_until = |rpcs| {
        while done.get() < rpcs {
            client_pass(client);
            servers_pass(servers);
        }
        done.get()
    };
    let before = echo_until(rpcs);
    begin();
    let after = echo_until(2 * rpcs);
    end();
    println!("{} RPCs", after - before);
    Ok(())
}

/// Twice `rpcs` echoes of 32 bytes by `in_flight` tasks, each with its number, its session and the
/// count of echoes.
fn tasks<T: Transport, F: Future<Output = ()> + 'static>(
    (client, servers): (&mut Rpc<Side<CLIENT, T>>, &mut Servers<T>),
    sessions: &[SessionId],
    (rpcs, in_flight): (u64, u64),
    task: impl Fn(u8, Session, Rc<Cell<u64>>) -> F,
) -> Result<(), Failure> {
    let local = client.local();
    let done = Rc::new(Cell::new(0_u64));
    for n in 0..in_flight as usize {
        let session = local.session(sessions[n % sessions.len()]);
        drop(local.spawn(task(n as u8, session, done.clone())));
    }
    count_until(client, servers, &done, rpcs)
}

/// As with callbacks: the response is the next request.
async fn echo_messages(_: u8, session: Session, count: Rc<Cell<u64>>) {
    let mut message = session.local().alloc(32).expect("memory");
    while let Ok(response) = session.call(ECHO, message).await {
        assert!(response.len() == 32);
        count.set(count.get() + 1);
        message = response;
    }
}

async fn echo_typed(n: u8, session: Session, count: Rc<Cell<u64>>) {
    let (echo, bytes) = (EchoClient::unchecked(session), [n; 32]);
    while let Ok(answer) = echo.echo(bytes).await {
        assert!(answer == bytes);
        count.set(count.get() + 1);
    }
}

/// Lets each side receive one frame with a congestion mark, by uncounted calls.
fn mark<T: Transport>(
    client: &mut Rpc<Side<CLIENT, T>>,
    servers: &mut Servers<T>,
    session: SessionId,
) -> Result<(), Failure> {
    TO_MARK.iter().for_each(|side| side.store(true, Ordering::Relaxed));
    // The frames of the second call carry ECN counts.
    for _ in 0..2 {
        let done = Rc::new(Cell::new(false));
        let is_done = done.clone();
        let request = client.alloc(32)?;
        client.call(session, ECHO, request, move |_, ended| {
            assert!(ended.result.is_ok());
            is_done.set(true);
        })?;
        while !done.get() {
            poll_all(client, servers);
        }
    }
    assert!(!TO_MARK.iter().any(|side| side.load(Ordering::Relaxed)), "no frame was marked");
    Ok(())
}

/// Settings without periodic work, so that only the packet path is counted.
fn config(sessions: usize, rto_ms: Option<u64>) -> Config {
    // Calls last much longer under callgrind, so without this setting most of them would outlive
    // the first check of their timeout; usually one in a thousand does.
    let never = Duration::from_secs(60);
    let (max_sessions, max_sessions_per_peer) = (sessions + SESSIONS, sessions + SESSIONS);
    Config {
        connect_timeout: never,
        rto: (rto_ms.map_or(never, Duration::from_millis), never),
        idle_after: never,
        max_sessions,
        max_sessions_per_peer,
        max_sessions_per_address: max_sessions,
        reserved_sessions: 0,
        failure_timeout: never, // callgrind runs one thread at a time, so heartbeats are late
        // The time of eight packets on such a link is longer than callgrind's delays, which would
        // otherwise count as congestion.
        line_rate_bps: Some(100_000_000),
        // Under callgrind two frames are further apart than the default interval, so the number of
        // timestamps would depend on the machine.
        tuning: Tuning { timestamp_interval: Duration::from_secs(1), ..Tuning::default() },
        ..Config::default()
    }
}

/// One function for all transports, as in a program.
fn echo(cx: &mut Context<'_>, req: Request<'_>) {
    cx.reply(req);
}

/// Makes an echo call from a continuation. Calls without a deadline do not set one.
#[inline(always)]
fn call<const WITH_DEADLINE: bool>(
    cx: &mut Context<'_>,
    session: SessionId,
    request: MsgBuf,
    tag: u64,
) -> Result<CallId, CallRejected> {
    if WITH_DEADLINE {
        cx.request(session, ECHO, request).deadline(DEADLINE).tag(tag).send()
    } else {
        cx.request(session, ECHO, request).tag(tag).send()
    }
}

/// Twice `rpcs` echoes, `in_flight` at a time, each with a deadline or none. A constant says
/// which, so that calls without one do not pay for the choice.
fn echoes<T: Transport, const WITH_DEADLINE: bool>(
    client: &mut Rpc<Side<CLIENT, T>>,
    servers: &mut Servers<T>,
    mut choice: Choice,
    rpcs: u64,
    in_flight: u64,
) -> Result<(), Failure> {
    for i in 0..in_flight.min(rpcs) {
        let request = client.alloc(choice.size)?;
        if WITH_DEADLINE {
            client.request(choice.next(), ECHO, request).deadline(DEADLINE).tag(i).send()?;
        } else {
            client.request(choice.next(), ECHO, request).tag(i).send()?;
        }
    }
    let done = Rc::new(Cell::new(0_u64));
    let count = done.clone();
    // As many are in flight at the end as at the beginning.
    let calls = 2 * rpcs + 2 * in_flight;
    client.on_completion(move |cx, tag, ended| {
        // Not `assert_eq`, which compares by a call that would be counted.
        assert!(ended.result.is_ok_and(|r| r.len() == choice.size));
        count.set(count.get() + 1);
        let session = if choice.random.is_some() { choice.next() } else { ended.session };
        if count.get() + in_flight <= calls
            && let Err(e) = call::<WITH_DEADLINE>(cx, session, ended.request, tag)
        {
            panic!("{e}");
        }
    });
    // Both sides do something in every pass: with one call in flight this is the path of the
    // latency, pass by pass.
    count_until(client, servers, &done, rpcs)
}
