//! Ten thousand hostile control connections and a flood of datagrams, from other addresses of this
//! host: established clients lose no call, and new ones connect. A program of its own, because it
//! uses most of the descriptors that a process may have.

#[path = "common/mod.rs"]
mod common;

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::*;
use courser::{Config, Nexus, SessionError};
use courser_proto::CONTROL_GREETING;
use courser_proto::wire::WIRE_VERSION;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

const ECHO: u16 = 1;
/// Hostile connections, if the limit of descriptors allows it.
const CONNECTIONS: usize = 10_000;
/// Addresses that they come from.
const ADDRESSES: u8 = 10;
const TIME: Duration = Duration::from_secs(3);
/// Datagrams for each second, while the processor has time for them.
const DATAGRAMS_PS: u64 = 200_000;

/// A new client connects and makes a call within this time.
const WITHIN: Duration = Duration::from_secs(2);

/// Connects of hostile connections for each second.
const CONNECTS_PS: f64 = 8_000.0;

/// Ends the threads of the test, also when one of them panics.
struct Ends<'a>(&'a AtomicBool, courser::EndpointHandle);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.stop();
    }
}

/// Raises the limit of descriptors; returns how many connections both of whose ends may be here.
fn connections() -> usize {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let most = limit.maximum.map_or(usize::MAX, |n| n as usize);
    CONNECTIONS.min(most.saturating_sub(1_000) / 2)
}

/// Connects to the control port from another address of this host, and greets.
fn attacker(n: usize, to: SocketAddr) -> Option<TcpStream> {
    let from = Ipv4Addr::new(127, 0, 1, 1 + (n % usize::from(ADDRESSES)) as u8);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
    socket.bind(&SocketAddr::from((from, 0)).into()).ok()?;
    socket.connect_timeout(&to.into(), Duration::from_millis(200)).ok()?;
    socket.set_nonblocking(true).ok()?;
    let mut stream = TcpStream::from(socket);
    stream.write_all(&CONTROL_GREETING).ok()?;
    Some(stream)
}

/// What a hostile connection does: a third of them each.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Sends nothing.
    Silent,
    /// Answers pings, so that it is not silent, and asks for nothing.
    Answers,
    /// Answers pings, and connects sessions that it never uses, each from another endpoint.
    Connects,
}

const KINDS: [Kind; 3] = [Kind::Silent, Kind::Answers, Kind::Connects];

/// Holds as many connections as the server lets it; returns their number, and how many sessions it
/// asked for.
fn hold_connections(count: usize, to: SocketAddr, done: &AtomicBool) -> (usize, u32) {
    // A `Pong`: its length, and the number of its variant.
    let pong = courser_proto::ControlMsg::Pong.encode();
    let (mut streams, mut most, mut buf) = (Vec::new(), 0, [0; 256]);
    let (mut next, mut connects, begin) = (0, 0_u32, Instant::now());
    while !done.load(Ordering::Relaxed) {
        for _ in 0..200 {
            if next < count {
                streams.extend(attacker(next, to).map(|stream| (KINDS[next % 3], stream)));
                next += 1;
            }
        }
        streams.retain_mut(|(kind, stream): &mut (Kind, TcpStream)| {
            let alive = !matches!(stream.read(&mut buf), Ok(0));
            let due = begin.elapsed().as_secs_f64() * CONNECTS_PS;
            if *kind == Kind::Connects && alive && f64::from(connects) < due {
                connects += 1;
                // If the socket takes a part only, the server closes the connection at the next byte.
                let _ = stream.write_all(&connect_request(connects).encode());
            }
            alive && (*kind == Kind::Silent || stream.write_all(&pong).is_ok())
        });
        most = most.max(streams.len());
    }
    (most, connects)
}

/// Sends frames of the right version for no peer.
fn flood(to: SocketAddr, done: &AtomicBool) -> u64 {
    let socket = UdpSocket::bind("127.0.1.1:0").unwrap();
    let mut frame = [0; 64];
    frame[0] = WIRE_VERSION;
    let (mut sent, begin) = (0, Instant::now());
    while !done.load(Ordering::Relaxed) {
        let due = (begin.elapsed().as_secs_f64() * DATAGRAMS_PS as f64) as u64;
        if sent < due {
            sent += u64::from(socket.send_to(&frame, to).is_ok());
        } else {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    sent
}

#[test]
fn established_clients_lose_no_call_and_new_ones_connect() {
    let count = connections();
    let nexus = Nexus::bind(LOOPBACK).unwrap();
    let uri = nexus.local_uri();
    let control: SocketAddr = uri.trim_start_matches("udp://").parse().unwrap();
    let (done, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let nexus = &nexus;
        let server = scope.spawn(move || {
            let mut rpc = nexus.endpoint().unwrap();
            rpc.on(ECHO, |cx, req| cx.reply(req));
            // While the attack goes on: after it they end with their connections.
            let most = Rc::new(Cell::new(0));
            let seen = most.clone();
            rpc.context().every(Duration::from_millis(500), move |cx| {
                seen.set(cx.sessions_from(0).count().max(seen.get()));
            });
            tell.send((rpc.handle(), rpc.port() as u16)).unwrap();
            rpc.run().unwrap();
            (rpc.stats().clone(), most.get())
        });
        let (handle, port) = told.recv().unwrap();
        let ends = Ends(&done, handle);
        let datapath = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut established = client(Config::default());
        let session = established.connect(&uri).unwrap();
        established.wait_connected(session).unwrap();
        let holders = scope.spawn(|| hold_connections(count, control, &done));
        let done_ref = &done;
        let flooder = scope.spawn(move || flood(datapath, done_ref));
        let newcomer = scope.spawn(|| {
            let (mut connected, mut refused, mut slowest) = (0, 0, Duration::ZERO);
            while !done.load(Ordering::Relaxed) {
                let begin = Instant::now();
                let mut rpc = client(Config::default());
                // A connection that is not older than those of the attackers may be refused.
                let session = loop {
                    let session = rpc.connect(&uri).unwrap();
                    match rpc.wait_connected(session) {
                        Ok(()) => break session,
                        Err(SessionError::Dial(_)) if begin.elapsed() < WITHIN => refused += 1,
                        Err(e) => panic!("a new client is refused: {e}"),
                    }
                };
                let request = message(&rpc, 9, 20_000);
                let answer = rpc.call_wait(session, ECHO, request, None).unwrap();
                assert!(*answer.response == *expected(9, 20_000));
                slowest = slowest.max(begin.elapsed());
                connected += 1;
                std::thread::sleep(Duration::from_millis(100));
            }
            println!("{refused} connections of new clients were refused");
            (connected, slowest)
        });
        let begin = Instant::now();
        while begin.elapsed() < TIME {
            let id = calls.fetch_add(1, Ordering::Relaxed);
            let len = [32, 3_000, 100_000][id as usize % 3];
            let request = message(&established, id, len);
            let answer = established.call_wait(session, ECHO, request, None);
            let answer = answer.unwrap_or_else(|e| panic!("call {id} is lost: {e}"));
            assert!(*answer.response == *expected(id, len), "call {id}");
        }
        done.store(true, Ordering::Relaxed);
        let (connected, slowest) = newcomer.join().unwrap();
        let ((held, connects), sent) = (holders.join().unwrap(), flooder.join().unwrap());
        drop(ends);
        let (stats, sessions) = server.join().unwrap();
        let seen = stats.rx_frames - stats.rx_frames_accepted;
        println!(
            "{} calls and {connected} new clients, the slowest within {slowest:?}; {held} of {count} \
             hostile connections were open at once and asked for {connects} sessions, of which \
             {sessions} stood at a time; {seen} of \
             {sent} datagrams reached the endpoint",
            calls.load(Ordering::Relaxed)
        );
        assert!(slowest < WITHIN, "a new client took {slowest:?}");
        assert!(sessions > 500, "{sessions} sessions of {connects} connects");
        assert!(connected > 3, "{connected} new clients");
    });
}
