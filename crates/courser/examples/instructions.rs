//! Small RPCs in memory or over shared memory, client and server on one thread, for counting
//! instructions: `scripts/instructions.sh` runs this under callgrind, which gives the same number
//! on a noisy machine.
//!
//! Usage: `instructions mem|shm RPCS IN_FLIGHT [SESSIONS [RTO_MS]]` (32 bytes each way, on 8
//! sessions or as many as there are calls in flight; or on so many, each call on one drawn at
//! random), or `instructions mem|shm empty PASSES`: passes of an event loop that find nothing. With
//! `RTO_MS` the looks of the timers and the acknowledgements count too: callgrind makes everything
//! some 50 times slower, so 50 is like the default of 1.
//!
//! What is counted is named by function: [`client_pass`], [`server_pass`], and of each what the
//! transport does, [`client_tx`], [`client_rx`], [`server_tx`], [`server_rx`]; [`empty_passes`].

use std::cell::Cell;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use courser::parts::buf::{Addr, PathId, RxBurst, TxBurst};
use courser::parts::net::{Caps, MemConfig, MemNetwork, Path, PathError};
use courser::parts::net::{ShmConfig, ShmTransport, Transport, TransportStats};
use courser::{Config, Context, Nexus, Request, Rpc, SessionId, Tuning};

const ECHO: u16 = 1;
const SESSIONS: usize = 8;
/// Sessions that are being connected at a time.
const CONNECTING: usize = 64;
const CLIENT: u8 = 0;
const SERVER: u8 = 1;

type Failure = Box<dyn std::error::Error>;

/// Everything the client does in one pass of its event loop, continuations included.
#[inline(never)]
fn client_pass<T: Transport>(rpc: &mut Rpc<T>) {
    // The two functions must differ, or the compiler makes one of them.
    std::hint::black_box("client");
    rpc.poll();
}

/// Everything the server does in one pass, the handler included.
#[inline(never)]
fn server_pass<T: Transport>(rpc: &mut Rpc<T>) {
    std::hint::black_box("server side");
    rpc.poll();
}

/// Passes that find nothing: how soon a spinning endpoint sees a packet depends on their length.
#[inline(never)]
fn empty_passes<T: Transport>(rpc: &mut Rpc<T>, passes: u64) {
    for _ in 0..passes {
        rpc.poll();
    }
}

/// Whether the transport is called through the functions that are counted: not while sessions are
/// connected, which takes as many passes as it takes time.
static COUNTS: AtomicBool = AtomicBool::new(false);

/// The transport, with a function for each direction and side that callgrind can tell apart.
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

impl<const SIDE: u8, T: Transport> Transport for Side<SIDE, T> {
    fn caps(&self) -> &Caps {
        self.0.caps()
    }
    fn local_addr(&self) -> Addr {
        self.0.local_addr()
    }
    fn path_open(&mut self, remote: Addr, local: Option<Addr>) -> Result<Path, PathError> {
        self.0.path_open(remote, local)
    }
    fn path_close(&mut self, path: PathId) {
        self.0.path_close(path);
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
    fn tx_reclaim(&mut self) -> usize {
        self.0.tx_reclaim()
    }
    fn tx_flush(&mut self) {
        self.0.tx_flush();
    }
    #[inline]
    fn rx_burst<'a>(&'a mut self, out: &mut RxBurst<'a>) {
        match SIDE {
            _ if !COUNTS.load(Ordering::Relaxed) => self.0.rx_burst(out),
            CLIENT => client_rx(&mut self.0, out),
            _ => server_rx(&mut self.0, out),
        }
    }
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.event_fd()
    }
    fn wait(&mut self, wake: RawFd, timeout_ns: Option<u64>) -> io::Result<()> {
        self.0.wait(wake, timeout_ns)
    }
    fn stats(&self) -> TransportStats {
        self.0.stats()
    }
}

fn connect<T: Transport>(
    client: &mut Rpc<Side<CLIENT, T>>,
    server: &mut Rpc<Side<SERVER, T>>,
    uri: &str,
    count: usize,
) -> Result<Vec<SessionId>, Failure> {
    let mut sessions = Vec::with_capacity(count);
    while sessions.len() < count {
        let some = CONNECTING.min(count - sessions.len());
        let dialed = (0..some).map(|_| client.connect(uri)).collect::<Result<Vec<_>, _>>()?;
        for session in dialed {
            while client.session_state(session) == courser::SessionState::Connecting {
                client.poll();
                server.poll();
            }
            if let Some(e) = client.session_error(session) {
                return Err(e.into());
            }
            sessions.push(session);
        }
    }
    Ok(sessions)
}

/// Chooses sessions at random, or in turn: the same ones in every run.
struct Choice {
    sessions: Vec<SessionId>,
    random: Option<u64>,
    next: usize,
}

impl Choice {
    fn next(&mut self) -> SessionId {
        let count = self.sessions.len() as u64;
        let at = match &mut self.random {
            Some(state) => {
                // Marsaglia's xorshift64: a few instructions, the same for any number of sessions.
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

fn main() -> Result<(), Failure> {
    let usage =
        "usage: instructions (mem | shm) (RPCS IN_FLIGHT [SESSIONS [RTO_MS]] | empty PASSES)";
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("mem") => {
            let network = MemNetwork::new();
            let loopback = u128::from(std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped());
            let host = MemConfig { host: loopback, ..MemConfig::default() };
            run("mem://127.0.0.1:0", || Ok(network.endpoint(host)?), args, usage)
        }
        Some("shm") => {
            let bind = || Ok(ShmTransport::bind(&ShmConfig::default())?);
            run("shm://127.0.0.1:0", bind, args, usage)
        }
        _ => Err(usage.into()),
    }
}

/// The run that the arguments ask for, between two endpoints on such transports.
fn run<T: Transport>(
    bind: &str,
    transport: impl Fn() -> Result<T, Failure>,
    mut args: impl Iterator<Item = String>,
    usage: &str,
) -> Result<(), Failure> {
    let (first, second) = (args.next().ok_or(usage)?, args.next().ok_or(usage)?);
    let number: u64 = second.parse()?;
    let drawn: Option<usize> = args.next().map(|n| n.parse()).transpose()?;
    let rto_ms: Option<u64> = args.next().map(|n| n.parse()).transpose()?;
    let count = drawn.unwrap_or(SESSIONS.min(usize::try_from(number)?)).max(1);

    let config = config(count, rto_ms);
    let server_nexus = Nexus::bind_with(bind, config.clone())?;
    let mut server = server_nexus.endpoint_on(Side::<SERVER, T>(transport()?))?;
    server.on(ECHO, echo);
    let nexus = Nexus::bind_with(bind, config)?;
    let mut client = nexus.endpoint_on(Side::<CLIENT, T>(transport()?))?;
    let uri = server_nexus.local_uri();
    let sessions = connect(&mut client, &mut server, &uri, count)?;
    COUNTS.store(true, Ordering::Relaxed);
    if first == "empty" {
        empty_passes(&mut client, number);
        return Ok(());
    }
    let choice = Choice { sessions, random: drawn.map(|_| 0x9e37_79b9_7f4a_7c15), next: 0 };
    echoes(&mut client, &mut server, choice, first.parse()?, number)
}

/// Settings under which only the packets' path counts.
fn config(sessions: usize, rto_ms: Option<u64>) -> Config {
    // Calls last much longer here than outside of callgrind, and so often outlive the first look
    // at their timeout, which usually one call in a thousand does.
    let never = Duration::from_secs(60);
    let (max_sessions, max_sessions_per_peer) = (sessions + SESSIONS, sessions + SESSIONS);
    Config {
        connect_timeout: never,
        rto: (rto_ms.map_or(never, Duration::from_millis), never),
        idle_after: never,
        max_sessions,
        max_sessions_per_peer,
        failure_timeout: never, // one thread at a time runs there: heartbeats come late
        // Under callgrind two frames are further apart than the default; how many of them would say the
        // time depended on the machine.
        tuning: Tuning { time_every: Duration::from_secs(1), ..Tuning::default() },
        ..Config::default()
    }
}

/// One function for all transports, as a program has it.
fn echo(cx: &mut Context<'_>, req: Request<'_>) {
    cx.reply(req);
}

/// So many echoes, `in_flight` at a time.
fn echoes<T: Transport>(
    client: &mut Rpc<Side<CLIENT, T>>,
    server: &mut Rpc<Side<SERVER, T>>,
    mut choice: Choice,
    rpcs: u64,
    in_flight: u64,
) -> Result<(), Failure> {
    for i in 0..in_flight.min(rpcs) {
        let request = client.alloc(32)?;
        client.call_tagged(choice.next(), ECHO, request, i)?;
    }
    let done = Rc::new(Cell::new(0_u64));
    let count = done.clone();
    client.on_completion(move |cx, tag, ended| {
        assert_eq!(ended.result.map(|r| r.len()), Ok(32));
        count.set(count.get() + 1);
        let session = if choice.random.is_some() { choice.next() } else { ended.session };
        if count.get() + in_flight <= rpcs
            && let Err(e) = cx.call_tagged(session, ECHO, ended.request, tag)
        {
            panic!("{e}");
        }
    });
    // Both sides do something in every pass: with one call in flight this is the path of the
    // latency, pass by pass.
    while done.get() < rpcs {
        client_pass(client);
        server_pass(server);
    }
    println!("{} RPCs", done.get());
    Ok(())
}
