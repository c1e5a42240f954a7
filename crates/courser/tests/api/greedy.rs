//! Clients that hold as many handlers as they can, beside clients that lose no call.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use courser::{
    CallError, Client, Config, Endpoints, MsgBuf, Nexus, Rpc, Server, ServerHandle, ServerStats,
    SessionId, Status,
};

use crate::common::{LOOPBACK, Log, PATIENCE, call, connect, drive, drive_until, message};

const ECHO: u16 = 1;
/// Its handlers never end.
const STUCK: u16 = 2;

/// Another address of this machine.
const OTHER_ADDRESS: &str = "udp://127.0.1.1:0";

/// Time after which a test fails: it takes a second of CPU time, of which a loaded machine may give
/// it little.
const LONG: Duration = Duration::from_secs(5 * PATIENCE.as_secs());

/// Sessions of an attacker, and its requests on each.
const SESSIONS: u32 = 2_100;
const REQUESTS: u8 = 8;

/// A client with a control connection of its own.
fn client(local: &str, uri: &str) -> Client {
    let config = Config { connect_timeout: LONG, ..Config::default() };
    let endpoints = Endpoints::bind(local, 1, config).unwrap();
    Client::connect_on(&endpoints, uri).wait().unwrap()
}

fn request(client: &Client) -> MsgBuf {
    let mut m = client.alloc(8).unwrap();
    m.copy_from_slice(b"a caller");
    m
}

/// Calls that all have to succeed.
fn lose_no_call(client: &Client, calls: u32) {
    for n in 0..calls {
        let answer = client.call(ECHO, request(client)).wait();
        assert!(answer.is_ok_and(|bytes| bytes[..] == *b"a caller"), "call {n} is lost");
    }
}

fn run(rpc: &mut Rpc, what: &str, mut until: impl FnMut(&mut Rpc) -> bool) {
    let end = Instant::now() + LONG;
    while !until(rpc) {
        rpc.poll();
        assert!(Instant::now() < end, "{what} takes too long: {rpc:?}");
    }
}

/// A hostile client process.
struct Attacker {
    rpc: Rpc,
    sessions: Vec<SessionId>,
    refused: Arc<AtomicU64>,
    _nexus: Nexus,
}

impl Attacker {
    fn connect(local: &str, uri: &str, sessions: u32) -> Attacker {
        let config = Config { slots: REQUESTS, connect_timeout: LONG, ..Config::default() };
        let nexus = Nexus::bind_with(local, config).unwrap();
        let mut rpc = nexus.endpoint().unwrap();
        let sessions: Vec<_> = (0..sessions).map(|_| rpc.connect(uri).unwrap()).collect();
        for &session in &sessions {
            rpc.wait_connected(session).unwrap();
        }
        Attacker { rpc, sessions, refused: Arc::default(), _nexus: nexus }
    }

    /// Sends as many requests as it can; each is refused or never ends. Returns when the server has
    /// seen those of that number of attackers. Calls of others are in progress too, at any time, so
    /// a difference of two counts of handlers would be no count of an attacker's.
    fn call_all(&mut self, server: &ServerHandle, attackers: u64) {
        for n in 0..self.sessions.len() * usize::from(REQUESTS) {
            let session = self.sessions[n % self.sessions.len()];
            let (request, refused) = (message(&self.rpc, n as u64, 8), self.refused.clone());
            let ended = move |_: &mut courser::Context<'_>, done: courser::Completion<'_>| {
                assert_eq!(done.result.err(), Some(CallError::Server(Status::WorkersBusy)));
                refused.fetch_add(1, Ordering::Relaxed);
            };
            self.rpc.call(session, STUCK, request, ended).unwrap();
            if n % 64 == 0 {
                self.rpc.poll();
            }
        }
        let all = attackers * u64::from(SESSIONS) * u64::from(REQUESTS);
        run(&mut self.rpc, "the attack", |_| {
            let stats = server.stats();
            stats.in_progress as u64 + stats.handlers.workers_busy >= all
        });
    }

    /// The same with one-way messages, on one session.
    fn send_all(&mut self, count: u32, len: usize) {
        let session = self.sessions[0];
        for n in 0..count {
            let mut m = message(&self.rpc, n.into(), len);
            let end = Instant::now() + PATIENCE;
            while let Err(full) = self.rpc.send(session, STUCK, m) {
                m = full.request;
                self.rpc.poll();
                assert!(Instant::now() < end, "message {n} finds no room");
            }
        }
        run(&mut self.rpc, "sending", |rpc| rpc.outstanding_messages() == 0);
    }
}

fn server_with(config: Config) -> Server {
    let mut server = Server::bind_with("udp://0.0.0.0:0", config).unwrap();
    server.on(ECHO, |mut work| async move {
        let request = work.take().unwrap();
        work.reply(request);
    });
    server.on(STUCK, |work| async move {
        pending::<()>().await;
        drop(work);
    });
    server.on_message(STUCK, |work| async move {
        pending::<()>().await;
        drop(work);
    });
    server
}

#[test]
fn clients_whose_handlers_never_end_leave_handlers_for_others() {
    let server = server_with(Config { slots: 32, ..Config::default() });
    let uri = server.local_uri();
    let serving = server.serve().unwrap();
    let handle = serving.handle();
    let neighbour = client(OTHER_ADDRESS, &uri);
    let honest = client(LOOPBACK, &uri);
    let mut attackers = Vec::new();
    for n in 0..2 {
        let mut attacker = Attacker::connect(OTHER_ADDRESS, &uri, SESSIONS);
        std::thread::scope(|scope| {
            scope.spawn(|| lose_no_call(&honest, 500));
            scope.spawn(|| lose_no_call(&neighbour, 500));
            attacker.call_all(&handle, n as u64 + 1);
        });
        lose_no_call(&honest, 100);
        lose_no_call(&neighbour, 100);
        let stats = handle.stats();
        let held = [15_360..=15_361, 15_600..=15_700][n].clone();
        assert!(held.contains(&stats.in_progress), "{stats:?}");
        assert_eq!(stats.handlers.over_share, stats.handlers.workers_busy);
        attackers.push(attacker);
    }
    lose_no_call(&client(LOOPBACK, &uri), 100);
}

/// The counters of a server once it has accepted or refused this number of messages: the last ones may
/// still be on their way to its workers.
fn judged(handle: &ServerHandle, messages: u64) -> ServerStats {
    let end = Instant::now() + LONG;
    loop {
        let stats = handle.stats();
        let judged = stats.in_progress as u64 + stats.handlers.messages_over_share;
        if judged >= messages || Instant::now() > end {
            return stats;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn messages_whose_handlers_never_end_leave_handlers_and_memory_for_others() {
    const LIMIT: usize = 256;
    const MEMORY: usize = 64 << 20;
    let mut server = server_with(Config { memory_limit: MEMORY, slots: 32, ..Config::default() });
    let noted = Arc::new(AtomicU64::new(0));
    let own = noted.clone();
    server.on_message(ECHO, move |_work| {
        let noted = own.clone();
        async move {
            noted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let server = server.max_in_progress(LIMIT);
    let uri = server.local_uri();
    let serving = server.serve().unwrap();
    let handle = serving.handle();
    let honest = client(LOOPBACK, &uri);
    let attack = |len: usize, count: u32| {
        let mut attacker = Attacker::connect(OTHER_ADDRESS, &uri, 1);
        std::thread::scope(|scope| {
            scope.spawn(|| lose_no_call(&honest, 100));
            attacker.send_all(count, len);
        });
        attacker
    };
    // Large ones are bounded by their memory.
    let large = attack(1 << 20, 60);
    let stats = judged(&handle, 60);
    assert!((10..=16).contains(&stats.in_progress), "{stats:?}");
    assert_eq!(stats.handlers.messages_over_share, 60 - stats.in_progress as u64);
    // Small ones by their number.
    let small = attack(8, 2_000);
    let stats = judged(&handle, 2_060);
    assert!((LIMIT / 2..LIMIT).contains(&stats.in_progress), "{stats:?}");
    assert_eq!(stats.handlers.messages_busy, stats.handlers.messages_over_share);
    assert_eq!(stats.messages_received, stats.in_progress as u64 + stats.handlers.messages_busy);
    // Others: calls, of several megabytes too, and messages.
    lose_no_call(&honest, 100);
    let call = honest.call(ECHO, honest.alloc(4 << 20).unwrap());
    assert_eq!(call.wait().unwrap().len(), 4 << 20);
    // One at a time, as few places are left, and a message that finds none is dropped.
    for n in 1..=100 {
        honest.send(ECHO, request(&honest)).wait().unwrap();
        let end = Instant::now() + PATIENCE;
        while noted.load(Ordering::Relaxed) < n {
            assert!(Instant::now() < end, "{:?}", handle.stats());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    drop((large, small));
}

#[test]
fn a_client_that_fills_the_queue_of_workers_leaves_places_for_others() {
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let config = Config { workers: 1, worker_queue: 64, ..Config::default() };
    let nexus = Nexus::bind_with("udp://0.0.0.0:0", config).unwrap();
    let mut rpc = nexus.endpoint().unwrap();
    let stuck = move |work: courser::Work| {
        let _ = gate.lock().unwrap().recv();
        work.reply(b"late");
    };
    rpc.on_worker(STUCK, stuck).unwrap();
    let uri = nexus.local_uri();
    let ends: Vec<_> = [OTHER_ADDRESS, LOOPBACK]
        .into_iter()
        .map(|local| {
            let nexus = Nexus::bind(local).unwrap();
            let mut own = nexus.endpoint().unwrap();
            let sessions: Vec<_> =
                (0..8).map(|_| connect(&mut own, &mut [&mut rpc], &uri)).collect();
            (own, sessions, nexus)
        })
        .collect();
    let [(mut greedy, many, _n), (mut honest, few, _m)] = <[_; 2]>::try_from(ends).unwrap();
    let (log, honest_log) = (Log::default(), Log::default());
    for n in 0..=100 {
        let request = message(&greedy, n, 8);
        call(&mut greedy, many[n as usize % 8], STUCK, request, &log, n);
        if n == 0 {
            drive(&mut [&mut greedy, &mut rpc], || nexus.worker_stats().running == 1);
        }
    }
    drive(&mut [&mut greedy, &mut rpc], || log.borrow().len() >= 40);
    // One is with the worker, and 60 of 64 places are for one client.
    assert_eq!(nexus.worker_stats().queued, 60);
    let stats = rpc.handler_stats();
    assert_eq!((stats.workers_busy, stats.over_share), (40, 40));
    let request = message(&honest, 1, 8);
    call(&mut honest, few[0], STUCK, request, &honest_log, 1);
    drive(&mut [&mut honest, &mut rpc], || nexus.worker_stats().queued == 61);
    drop(open);
    drive(&mut [&mut honest, &mut greedy, &mut rpc], || !honest_log.borrow().is_empty());
    assert_eq!(honest_log.borrow()[0].1.result.as_deref(), Ok(&b"late"[..]));
}

#[test]
fn futures_of_messages_that_wait_are_limited_and_dropped_with_a_count() {
    let nexus = Nexus::bind("udp://0.0.0.0:0").unwrap();
    let mut rpc = nexus.endpoint().unwrap();
    rpc.on_message_async(STUCK, |_| pending());
    let other = Nexus::bind(LOOPBACK).unwrap();
    let mut greedy = other.endpoint().unwrap();
    let session = connect(&mut greedy, &mut [&mut rpc], &nexus.local_uri());
    for n in 0..16_384 {
        let mut m = message(&greedy, n, 8);
        while let Err(full) = greedy.send(session, STUCK, m) {
            m = full.request;
            greedy.poll();
            rpc.poll();
        }
    }
    drive_until(&mut [&mut greedy, &mut rpc], |all| all[0].outstanding_messages() == 0);
    assert_eq!(rpc.task_stats().tasks, 15_360);
    assert_eq!(rpc.handler_stats().messages_over_share, 1_024);
}
