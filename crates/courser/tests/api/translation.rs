//! Sessions through a translation of addresses (NAT) on the way: another port at the server, and sources
//! that change.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use courser::{Config, Nexus, Rpc, SessionId, SessionState};
use courser_proto::RxDrop;

use crate::common::*;

/// A translation: TCP connections and datagrams to its port go to the server, datagrams of each client
/// from a port of their own.
struct Translation {
    port: u16,
    /// Counts up for each change of all ports of clients.
    changes: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    datagrams: Option<JoinHandle<()>>,
}

impl Translation {
    fn to(server: SocketAddr) -> Self {
        let (listener, inner) = loop {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            if let Ok(inner) = UdpSocket::bind(listener.local_addr().unwrap()) {
                break (listener, inner);
            }
        };
        let port = listener.local_addr().unwrap().port();
        let (changes, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(server) else { return };
                let pairs =
                    [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)];
                for (from, to) in pairs {
                    std::thread::spawn(move || copy(from, to));
                }
            }
        });
        let (seen, over) = (changes.clone(), ended.clone());
        let datagrams = std::thread::spawn(move || translate(&inner, server, &seen, &over));
        Translation { port, changes, ended, datagrams: Some(datagrams) }
    }

    fn uri(&self) -> String {
        format!("udp://127.0.0.1:{}", self.port)
    }

    /// The clients have other ports from now on.
    fn change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Translation {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        let _ = self.datagrams.take().map(JoinHandle::join);
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn translate(inner: &UdpSocket, server: SocketAddr, changes: &AtomicU64, ended: &AtomicBool) {
    inner.set_nonblocking(true).unwrap();
    let (mut seen, mut outer, mut bytes) = (0, BTreeMap::new(), [0; 65_536]);
    while !ended.load(Ordering::SeqCst) {
        let now = changes.load(Ordering::SeqCst);
        if now != std::mem::replace(&mut seen, now) {
            // Answers to the old ports are lost.
            outer.clear();
        }
        let mut idle = true;
        while let Ok((n, client)) = inner.recv_from(&mut bytes) {
            let socket = outer.entry(client).or_insert_with(|| {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.set_nonblocking(true).unwrap();
                socket
            });
            let _ = socket.send_to(&bytes[..n], server);
            idle = false;
        }
        for (client, socket) in &outer {
            while let Ok((n, _)) = socket.recv_from(&mut bytes) {
                let _ = inner.send_to(&bytes[..n], client);
                idle = false;
            }
        }
        if idle {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

const ECHO: u16 = 1;

/// A server and a client behind a translation in front of it, on this thread.
struct Pair {
    server: Rpc,
    client: Rpc,
    way: Translation,
    session: SessionId,
    /// They keep the control threads.
    _nexus: Nexus,
}

impl Pair {
    fn new() -> Self {
        let nexus = Nexus::bind(LOOPBACK).unwrap();
        let mut server = nexus.endpoint().unwrap();
        server.on(ECHO, |cx, req| cx.reply(req));
        let way = Translation::to(nexus.local_uri().trim_start_matches("udp://").parse().unwrap());
        let mut client = client(Config::default());
        let session = connect(&mut client, &mut [&mut server], &way.uri());
        Pair { server, client, way, session, _nexus: nexus }
    }

    fn echo(&mut self, seed: u64, len: usize) {
        let request = message(&self.client, seed, len);
        let (session, others) = (self.session, &mut [&mut self.server]);
        let ended = call_and_wait(&mut self.client, others, session, ECHO, request);
        assert!(ended.result.expect("an answer") == expected(seed, len));
    }

    fn moves(&self) -> u64 {
        self.server.stats().moves
    }
}

#[test]
fn a_client_whose_datagrams_have_another_source_calls() {
    let mut pair = Pair::new();
    for (seed, len) in [(1, 0), (2, 100), (3, 1 << 20)] {
        pair.echo(seed, len);
    }
    assert_eq!((pair.moves(), pair.client.stats().moves), (1, 0));
    assert_eq!(pair.server.stats().dropped(RxDrop::WrongSource), 0, "no frame is lost");
}

#[test]
fn a_session_follows_its_client_to_other_ports() {
    let mut pair = Pair::new();
    pair.echo(0, 100);
    for n in 1..=20 {
        pair.way.change();
        pair.echo(n, if n % 2 == 0 { 100 } else { 300_000 });
    }
    assert_eq!(pair.moves(), 21);
    let state = pair.client.session_state(pair.session);
    assert_eq!(state, SessionState::Connected);
}

#[test]
fn ports_may_change_in_the_middle_of_a_message() {
    let mut pair = Pair::new();
    pair.echo(0, 100);
    let log = Log::default();
    let request = message(&pair.client, 1, 8 << 20);
    call(&mut pair.client, pair.session, ECHO, request, &log, 1);
    let (begun, mut changes) = (Instant::now(), 0);
    while log.borrow().is_empty() {
        pair.client.poll();
        pair.server.poll();
        if begun.elapsed() > Duration::from_millis(5) * (changes + 1) && changes < 10 {
            pair.way.change();
            changes += 1;
        }
        assert!(begun.elapsed() < PATIENCE, "the call does not end");
    }
    let (_, ended) = log.borrow_mut().pop().unwrap();
    assert!(ended.result.unwrap() == expected(1, 8 << 20));
    assert!(pair.moves() > 1);
}

#[test]
fn clients_behind_one_translation_are_told_apart() {
    let mut pair = Pair::new();
    let mut second = client(Config::default());
    let uri = pair.way.uri();
    let session = connect(&mut second, &mut [&mut pair.server], &uri);
    for n in 0..10 {
        pair.echo(n, 2_000);
        let request = message(&second, 100 + n, 2_000);
        let others = &mut [&mut pair.server];
        let ended = call_and_wait(&mut second, others, session, ECHO, request);
        assert!(ended.result.unwrap() == expected(100 + n, 2_000));
        if n == 4 {
            pair.way.change();
        }
    }
    assert_eq!(pair.moves(), 4);
}
