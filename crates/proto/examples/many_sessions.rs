//! Small RPCs on many sessions between two endpoints, in virtual time, for counting instructions:
//! the cost of timers, acknowledgements and idle sessions depends on how often each session is
//! used, which real time does not reproduce under callgrind.
//!
//! Usage: `many_sessions SESSIONS RPCS [PER_SECOND]`: 32 bytes each way, 60 calls in flight, each
//! on a random session, at this rate of virtual time (default 2,000,000 RPCs/s).
//!
//! ```text
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='many_sessions::client_pass*' \
//!     target/release/examples/many_sessions 20000 1000000
//! ```
//! `client_pass` and `server_pass` contain all work of a side in a pass except the transport's.

use std::sync::Arc;

use courser_buf::{Addr, Arena, ArenaConfig, Ecn, Heap, MsgBuf, PathId, RxFrame, TxBurst};
use courser_proto::{
    Body, CallError, Config, ConnectOffer, Driver, Endpoint, EndpointStats, Integrity, RequestId,
    SessionId,
};

const MAX_FRAME: usize = 1472;
const IN_FLIGHT: u64 = 60;
const CONTROL: u64 = 1;

type Failure = Box<dyn std::error::Error>;

/// One side: its endpoint, its frames, and its application's state.
struct Side {
    ep: Endpoint<u64>,
    tx: TxBurst,
    sessions: Vec<SessionId>,
    requests: Vec<MsgBuf>,
    random: u64,
    done: u64,
    now_ns: u64,
}

impl Side {
    fn new(id: u64, config: Config) -> Result<Side, Failure> {
        let limits = ArenaConfig { data_per_packet: 1424, limit_bytes: 4 << 30, headroom: 0 };
        let arena = Arena::new(Arc::new(Heap::default()), limits)?;
        let ep = Endpoint::new(config, arena, id, MAX_FRAME)?;
        let (tx, sessions, requests) = Default::default();
        Ok(Side { ep, tx, sessions, requests, random: 0x9e37_79b9_7f4a_7c15, done: 0, now_ns: 0 })
    }

    /// A random session: Marsaglia's xorshift64.
    fn choose(&mut self) -> SessionId {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let count = self.sessions.len() as u128;
        self.sessions[((u128::from(self.random) * count) >> 64) as usize]
    }

    fn pass(&mut self, from: Addr, frames: &[Vec<u8>], now_ns: u64) {
        let frames: Vec<_> =
            frames.iter().map(|data| RxFrame::new(from, data, Ecn::NotEct)).collect();
        self.now_ns = now_ns;
        for (at, frame) in frames.iter().enumerate() {
            self.ep.prefetch_burst(&frames, at);
            Endpoint::receive(self, frame);
        }
        if self.ep.next_deadline().is_some_and(|due_ns| due_ns <= now_ns) {
            self.ep.on_deadline(now_ns);
        }
        self.ep.poll_transmit(|| now_ns, &mut self.tx, |_, _| false);
    }

    /// The work of a transport.
    fn take_frames(&mut self) -> Vec<Vec<u8>> {
        let bytes = |frame: courser_buf::TxFrame| {
            let mut bytes = Vec::with_capacity(MAX_FRAME);
            frame.copy_to(&mut bytes);
            bytes
        };
        self.tx.drain(..).map(bytes).collect()
    }
}

impl Driver<u64> for Side {
    fn endpoint(&mut self) -> &mut Endpoint<u64> {
        &mut self.ep
    }

    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn on_request(&mut self, id: RequestId, _: u16, body: Body<'_>, _: u64) {
        if let Err(e) = self.ep.reply_bytes(id, &body) {
            panic!("{e}");
        }
    }

    fn on_completion(
        &mut self,
        _: u64,
        _: SessionId,
        request: MsgBuf,
        result: Result<Body<'_>, CallError>,
    ) {
        assert!(result.is_ok_and(|r| r.len() == 32));
        self.done += 1;
        self.requests.push(request);
    }
}

#[inline(never)]
fn client_pass(client: &mut Side, server: Addr, frames: &[Vec<u8>], now_ns: u64) {
    std::hint::black_box("client");
    while let Some(request) = client.requests.pop() {
        let session = client.choose();
        if let Err((e, ..)) = client.ep.call(session, 1, request, 0) {
            panic!("{e}");
        }
    }
    client.pass(server, frames, now_ns);
}

#[inline(never)]
fn server_pass(server: &mut Side, client: Addr, frames: &[Vec<u8>], now_ns: u64) {
    std::hint::black_box("server side");
    server.pass(client, frames, now_ns);
}

fn connect(client: &mut Side, server: &mut Side, random: u64) -> Result<(), Failure> {
    let offer = ConnectOffer {
        addr: addr(1),
        path: Some((PathId(0), MAX_FRAME)),
        local_port: addr(2).port,
        control: CONTROL,
        client_index: 0,
        random: random as u32,
        integrity: Integrity::None,
        credits: u32::MAX,
    };
    let dialed = client.ep.dial(CONTROL, random, addr(1).port, MAX_FRAME)?;
    let accept = server.ep.accept(&dialed.request, offer)?;
    client.ep.established(&accept, addr(2), PathId(0))?;
    client.sessions.push(dialed.session);
    Ok(())
}

fn addr(side: u32) -> Addr {
    Addr { host: side.into(), port: side }
}

fn main() -> Result<(), Failure> {
    let usage = "usage: many_sessions SESSIONS RPCS [PER_SECOND]";
    let mut args = std::env::args().skip(1);
    let sessions: usize = args.next().ok_or(usage)?.parse()?;
    let rpcs: u64 = args.next().ok_or(usage)?.parse()?;
    let per_second: u64 = args.next().map_or(Ok(2_000_000), |n| n.parse())?;
    let config = Config {
        max_sessions: sessions,
        max_sessions_per_peer: sessions,
        max_sessions_per_address: sessions,
        reserved_sessions: 0,
        ..Config::default()
    };
    let (mut client, mut server) = (Side::new(1, config.clone())?, Side::new(2, config)?);
    let mut random = 0x9e37_79b9_u64;
    for _ in 0..sessions {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        connect(&mut client, &mut server, random)?;
    }
    for _ in 0..IN_FLIGHT {
        client.requests.push(client.ep.alloc(32)?);
    }
    let mut now_ns = 1_000_000;
    let (mut to_client, mut to_server);
    to_client = Vec::new();
    while client.done < rpcs {
        client_pass(&mut client, addr(2), &to_client, now_ns);
        to_server = client.take_frames();
        server_pass(&mut server, addr(1), &to_server, now_ns);
        to_client = server.take_frames();
        now_ns += IN_FLIGHT * 1_000_000_000 / per_second;
    }
    let EndpointStats { requests, tx_kinds, rollbacks, .. } = *client.ep.stats();
    println!(
        "{rpcs} RPCs, {requests} requests, sent by kind {tx_kinds:?}, {rollbacks} rolled back"
    );
    println!("client {:?}\nserver {:?}", client.ep.memory(), server.ep.memory());
    Ok(())
}
