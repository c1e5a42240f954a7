//! Unresponsive peers, and peers that only seem to be.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use courser_proto::ControlMsg;
use socket2::SockRef;

use super::support::*;
use crate::control::{Command, Limits, Mail};
use crate::error::LostReason;

fn limits(failure_timeout: Duration) -> Limits {
    Limits { failure_timeout, ..Limits::default() }
}

/// Answers `pings` pings and keeps the connection open; returns the time before the last answer.
fn answer(peer: &mut Peer, pings: usize) -> Instant {
    let mut last = Instant::now();
    for _ in 0..pings {
        assert_eq!(peer.recv_any(), Some(ControlMsg::Ping));
        last = Instant::now();
        peer.send(&ControlMsg::Pong);
    }
    last
}

/// A server that passes its one connection, after the greetings, to `f`.
fn server(f: impl FnOnce(Peer) + Send + 'static) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let mut peer = Peer::new(listener.accept().unwrap().0);
        peer.greet();
        f(peer);
    });
    (port, thread)
}

fn assert_silent(reason: &LostReason, timeout: Duration) {
    assert!(matches!(reason, LostReason::Silent { after, .. } if *after >= timeout), "{reason:?}");
    assert!(reason.to_string().contains("not stopped or starved"), "{reason}");
}

#[test]
fn a_client_that_stops_sending_is_lost() {
    let timeout = Duration::from_secs(1);
    let node = Node::start("127.0.0.1:0", limits(timeout));
    let (used, unused) = (node.register(0, true), node.register(1, true));
    let mut peer = Peer::connect(node.port);
    peer.greet();
    peer.send(&connect(PEER_ENDPOINT, Some(0), 1));
    let (control, ..) = used.msg();
    let last = answer(&mut peer, 6);
    // From here on it sends nothing, like a stopped process, whose kernel still acknowledges.
    let (lost, reason) = used.lost();
    assert_eq!(lost, control);
    assert!(last.elapsed() >= timeout, "lost before the timeout");
    assert_silent(&reason, timeout);
    assert!(!unused.mailbox.has_mail());
    eventually("the connection is removed", || node.tables().conns == 0);
    assert_eq!((node.tables().timers, node.control.stats().silent_peers), (0, 1));
    // When the process continues, it finds at most three pings, and a reset.
    let mut bytes = Vec::new();
    let end = peer.stream.read_to_end(&mut bytes).unwrap_err();
    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(bytes.len() <= 3 * ControlMsg::Ping.encode().len(), "{bytes:?}");
    let mut again = Peer::connect(node.port);
    again.greet();
    again.send(&connect(PEER_ENDPOINT, Some(0), 2));
    assert_eq!(requested_session(&used.msg().3), 2);
}

#[test]
fn a_server_that_stops_sending_is_lost() {
    let timeout = Duration::from_secs(1);
    let node = Node::start("127.0.0.1:0", limits(timeout));
    let e = node.register(0, false);
    let (port, thread) = server(|mut peer| {
        answer(&mut peer, 6);
        let mut asked = 0;
        while peer.recv_any().is_some() {
            asked += 1;
        }
        assert!(asked <= 3, "{asked} pings");
    });
    let dialed = node.dial(&e, "127.0.0.1", port).unwrap();
    let (lost, reason) = e.lost();
    assert_eq!(lost, dialed.control);
    assert_silent(&reason, timeout);
    thread.join().unwrap();
    assert_eq!(node.tables().targets, 0, "the next dial opens another connection");
}

#[test]
fn a_peer_that_answers_stays() {
    let timeout = Duration::from_secs(2);
    let node = Node::start("127.0.0.1:0", limits(timeout));
    let e = node.register(0, true);
    let mut peer = Peer::connect(node.port);
    peer.greet();
    peer.send(&connect(PEER_ENDPOINT, Some(0), 1));
    e.msg();
    answer(&mut peer, 6);
    // Any received byte restarts the timeout; these are not even a complete message yet.
    let msg = connect(PEER_ENDPOINT, Some(0), 2).encode();
    for byte in &msg[..12] {
        std::thread::sleep(timeout / 6);
        peer.stream.write_all(&[*byte]).unwrap();
    }
    assert!(!e.mailbox.has_mail());
    peer.stream.write_all(&msg[12..]).unwrap();
    assert_eq!(requested_session(&e.msg().3), 2);
}

/// The other side's control thread may be starved of CPU time while its endpoints are served.
#[test]
fn frames_on_the_datapath_are_a_sign_of_life() {
    let timeout = Duration::from_secs(1);
    let node = Node::start("127.0.0.1:0", limits(timeout));
    let (used, unused) = (node.register(0, true), node.register(1, true));
    let mut peer = Peer::connect(node.port);
    peer.greet();
    peer.send(&connect(PEER_ENDPOINT, Some(0), 1));
    let (control, ..) = used.msg();
    // It answers no ping, and its frames arrive for three timeouts.
    let start = Instant::now();
    while start.elapsed() < 3 * timeout {
        match used.next_any() {
            Mail::Unanswered { control: n } if n == control => {
                assert!(node.control.send(Command::SignOfLife { control, at: Instant::now() }));
            }
            other => panic!("{other:?}"),
        }
    }
    let (lost, reason) = used.lost();
    assert_eq!(lost, control);
    assert_silent(&reason, timeout);
    assert!(!unused.mailbox.has_mail(), "it has no session with that side");
}

#[test]
fn two_idle_nexuses_keep_their_connection() {
    let timeout = Duration::from_secs(2);
    let server = Node::start("127.0.0.1:0", limits(timeout));
    let client = Node::start("127.0.0.1:0", limits(timeout));
    let (s, c) = (server.register(0, true), client.register(0, false));
    let dialed = client.dial(&c, "127.0.0.1", server.port).unwrap();
    std::thread::sleep(2 * timeout);
    assert!(!c.mailbox.has_mail() && !s.mailbox.has_mail());
    client.send(dialed.control, connect(c.me(), None, 3));
    assert_eq!(requested_session(&s.msg().3), 3);
    assert_eq!((client.tables().timers, server.tables().timers), (1, 1), "one timer each");
}

#[test]
fn a_reset_is_detected_without_waiting_for_the_timeout() {
    let node = Node::start("127.0.0.1:0", limits(Duration::from_secs(3600)));
    let e = node.register(0, true);
    for reset in [true, false] {
        let mut peer = Peer::connect(node.port);
        peer.greet();
        peer.send(&connect(PEER_ENDPOINT, Some(0), 1));
        let (control, ..) = e.msg();
        if reset {
            // A kernel resets the connections of a process that had unread data.
            SockRef::from(&peer.stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
        drop(peer);
        let (lost, reason) = e.lost();
        assert_eq!(lost, control);
        assert_eq!(matches!(reason, LostReason::Io(_)), reset, "{reason}");
        assert_eq!(matches!(reason, LostReason::Closed), !reset, "{reason}");
    }
}

#[test]
fn floods_of_heartbeats_cost_no_memory_and_delay_no_connection() {
    let node = Node::start("127.0.0.1:0", Limits::default());
    let e = node.register(0, true);
    let mut good = Peer::connect(node.port);
    good.greet();
    let mut loud = Peer::connect(node.port);
    loud.greet();
    // It never reads: its answers fill the kernel's buffers, and then one `Pong` is queued.
    let burst: Vec<u8> = (0..16_384)
        .flat_map(|_| [ControlMsg::Ping, ControlMsg::Pong])
        .flat_map(|m| m.encode())
        .collect();
    for round in 0..100 {
        loud.stream.write_all(&burst).unwrap();
        good.send(&connect(PEER_ENDPOINT, Some(0), round));
        assert_eq!(requested_session(&e.msg().3), round);
    }
    let tables = node.tables();
    assert!(tables.conns == 2 && tables.pending <= 64, "{tables:?}");
    // Every ping of the other peer is answered.
    for _ in 0..100 {
        good.send(&ControlMsg::Ping);
        assert_eq!(good.recv_any(), Some(ControlMsg::Pong));
    }
}
