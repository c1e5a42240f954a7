//! Peers with another version, another protocol, no answers, slow answers, or too many connections
//! or messages.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use courser_proto::{
    CONTROL_GREETING, CONTROL_MAX, CONTROL_PREAMBLE, ControlError, ControlMsg, EndpointRef,
};

use super::support::*;
use crate::control::Limits;
use crate::error::{DialError, LostReason};

/// A listener that passes one connection to `f`.
fn listener(f: impl FnOnce(Peer) + Send + 'static) -> (u16, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || f(Peer::new(listener.accept().unwrap().0)));
    (port, thread)
}

/// A greeting of other versions.
fn greeting(oldest: u16, newest: u16) -> [u8; 8] {
    let ([a, b], [c, d]) = (oldest.to_le_bytes(), newest.to_le_bytes());
    [b'C', b'R', b'S', b'R', a, b, c, d]
}

#[test]
fn both_sides_report_an_incompatible_version() {
    let node = Node::start("127.0.0.1:0", Limits::default());
    let e = node.register(0, false);
    let (port, thread) = listener(|mut peer| {
        peer.stream.write_all(&greeting(90, 91)).unwrap();
        let mut hello = [0; 8];
        assert_eq!(peer.read(&mut hello), 8);
        assert_eq!(hello, CONTROL_PREAMBLE);
        assert_eq!(peer.read(&mut hello), 0, "closed");
    });
    let error = node.dial(&e, "127.0.0.1", port).unwrap_err();
    let cause = ControlError::Version { theirs_oldest: 90, theirs_newest: 91, ours: 13 };
    assert!(matches!(error, DialError::Handshake { cause: c, .. } if c == cause), "{error:?}");
    assert!(error.to_string().contains("upgrade the older one"), "{error}");
    thread.join().unwrap();

    // In the other direction, the client gets the server's versions and can report the same error.
    let mut peer = Peer::connect(node.port);
    peer.stream.write_all(&greeting(90, 91)).unwrap();
    let mut hello = [0; 8];
    assert_eq!(peer.read(&mut hello), 8);
    assert_eq!(hello, CONTROL_PREAMBLE);
    assert_eq!(peer.read(&mut hello), 0, "closed");
    assert_eq!(node.control.stats().failed_greetings, 1);
}

#[test]
fn another_protocol_and_a_dead_host_have_different_errors() {
    let node = Node::start("127.0.0.1:0", Limits::default());
    let e = node.register(0, false);
    let (port, thread) = listener(|mut peer| {
        peer.stream.write_all(b"SSH-2.0-whatever\r\n").unwrap();
        while peer.read(&mut [0; 64]) > 0 {}
    });
    let error = node.dial(&e, "127.0.0.1", port).unwrap_err();
    let foreign = |c: &ControlError| *c == ControlError::NotCourser;
    assert!(matches!(&error, DialError::Handshake { cause, .. } if foreign(cause)), "{error:?}");
    thread.join().unwrap();

    // An alert of TLS, which is shorter than a greeting.
    let (port, thread) = listener(|mut peer| {
        peer.stream.write_all(&[0x15, 3, 1, 0, 2, 2, 0x46]).unwrap();
        while peer.read(&mut [0; 64]) > 0 {}
    });
    let error = node.dial(&e, "127.0.0.1", port).unwrap_err();
    assert!(matches!(&error, DialError::Handshake { cause, .. } if foreign(cause)), "{error:?}");
    thread.join().unwrap();

    let (port, thread) = listener(drop);
    let error = node.dial(&e, "127.0.0.1", port).unwrap_err();
    assert!(error.to_string().contains("closed the connection before it greeted"), "{error}");
    thread.join().unwrap();
}

#[test]
fn a_silent_server_ends_a_dial_in_time() {
    let limits = Limits { dial: Duration::from_millis(200), ..Limits::default() };
    let node = Node::start("127.0.0.1:0", limits);
    let e = node.register(0, false);
    // The kernel completes the connection, but no process accepts it.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let error = node.dial(&e, "127.0.0.1", port).unwrap_err();
    assert!(matches!(error, DialError::NoGreeting { .. }), "{error:?}");
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
    assert!(error.to_string().contains("200ms"), "{error}");
}

#[test]
fn garbage_ends_its_own_connection_only() {
    let node = Node::start("127.0.0.1:0", Limits::default());
    let e = node.register(0, true);
    let mut good = Peer::connect(node.port);
    good.greet();
    let mut trailing = connect(PEER_ENDPOINT, None, 1).encode();
    trailing[0] += 1;
    trailing.push(0);
    let garbage: [&[u8]; 5] = [
        &(CONTROL_MAX as u32 + 1).to_le_bytes(),
        &[0xff; 64],
        &[0, 0, 0, 0],
        &[1, 0, 0, 0, 0xee],
        &trailing,
    ];
    for (i, bytes) in garbage.into_iter().enumerate() {
        // In one segment with the greeting, and after it.
        for split in [false, true] {
            let mut bad = Peer::connect(node.port);
            if split {
                bad.greet();
                bad.stream.write_all(bytes).unwrap();
            } else {
                bad.stream.write_all(&[&CONTROL_GREETING, bytes].concat()).unwrap();
            }
            assert_eq!(bad.recv(), None, "garbage {i}");
        }
    }
    assert_eq!(node.control.stats().protocol_errors, 10);
    assert_eq!(node.control.stats().failed_greetings, 0);
    good.send(&connect(PEER_ENDPOINT, None, 42));
    assert_eq!(requested_session(&e.msg().3), 42);
}

#[test]
fn garbage_on_an_open_connection_ends_its_sessions() {
    let node = Node::start("127.0.0.1:0", Limits::default());
    let used = node.register(0, true);
    let unused = node.register(1, true);
    let mut peer = Peer::connect(node.port);
    peer.greet();
    peer.send(&connect(PEER_ENDPOINT, Some(0), 1));
    let (control, ..) = used.msg();
    peer.stream.write_all(&[0xff; 8]).unwrap();
    let (lost, reason) = used.lost();
    assert_eq!(lost, control);
    assert!(matches!(reason, LostReason::Protocol(ControlError::TooLong(_))), "{reason}");
    // An endpoint that did not use the connection is not notified, so strangers cannot fill its
    // mailbox.
    assert!(!unused.mailbox.has_mail());
}

#[test]
fn half_a_greeting_is_dropped() {
    let limits = Limits { greeting: Duration::from_millis(100), ..Limits::default() };
    let node = Node::start("127.0.0.1:0", limits);
    for sent in [0, 4, 7, 8, 23] {
        let mut peer = Peer::connect(node.port);
        peer.stream.write_all(&CONTROL_GREETING[..sent]).unwrap();
        let mut hello = Vec::new();
        peer.stream.read_to_end(&mut hello).unwrap(); // until it is closed
        assert_eq!(hello.len(), if sent < 8 { 8 } else { 24 });
    }
    assert_eq!(node.control.stats().failed_greetings, 5);
    // The same limit does not end an open connection.
    let mut peer = Peer::connect(node.port);
    peer.greet();
    std::thread::sleep(Duration::from_millis(300));
    peer.send(&connect(PEER_ENDPOINT, None, 1));
    assert!(matches!(peer.recv(), Some(ControlMsg::Refuse { .. })));
}

#[test]
fn connections_beyond_the_limit_are_refused_and_counted() {
    let node =
        Node::start("127.0.0.1:0", Limits { inbound: 3, idle: PATIENCE, ..Limits::default() });
    let mut inside: Vec<Peer> = Vec::new();
    for _ in 0..3 {
        let mut peer = Peer::connect(node.port);
        peer.greet();
        inside.push(peer);
    }
    for _ in 0..2 {
        assert!(Peer::connect(node.port).is_refused());
    }
    assert_eq!(node.control.stats().excess_connections, 2);
    // A freed place is used again.
    inside.pop();
    eventually("a connection is accepted again", || !Peer::connect(node.port).is_refused());
    for peer in &mut inside {
        peer.send(&connect(PEER_ENDPOINT, None, 1));
        assert!(matches!(peer.recv(), Some(ControlMsg::Refuse { .. })));
    }
}

#[test]
fn messages_arrive_however_the_stream_is_cut() {
    let node = Node::start("127.0.0.1:0", Limits::default());
    let e = node.register(0, true);
    let mut peer = Peer::connect(node.port);
    for byte in [&CONTROL_GREETING[..], &connect(PEER_ENDPOINT, None, 7).encode()].concat() {
        peer.stream.write_all(&[byte]).unwrap();
    }
    assert_eq!(requested_session(&e.msg().3), 7);
    // More than one pass reads from one connection.
    let burst: Vec<u8> =
        (0..20_000).flat_map(|i| connect(PEER_ENDPOINT, None, i).encode()).collect();
    peer.stream.write_all(&burst).unwrap();
    for i in 0..20_000 {
        assert_eq!(requested_session(&e.msg().3), i);
    }
}

#[test]
fn a_peer_that_does_not_read_is_lost() {
    not_reading(Limits { pending_write: 16 << 10, ..Limits::default() });
}

#[test]
fn unsent_bytes_of_all_peers_are_limited() {
    not_reading(Limits { pending_total: 16 << 10, ..Limits::default() });
}

/// Sends to a peer that does not read, until the connection is closed.
fn not_reading(limits: Limits) {
    let node = Node::start("127.0.0.1:0", limits);
    let e = node.register(0, false);
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    // A small window fills quickly.
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    socket.listen(1).unwrap();
    let listener = TcpListener::from(socket);
    let port = listener.local_addr().unwrap().port();
    node.ask(&e, 1, "127.0.0.1", port);
    let mut peer: TcpStream = listener.accept().unwrap().0;
    peer.write_all(&CONTROL_GREETING).unwrap();
    let control = e.dialed(1).unwrap().control;
    let end = Instant::now() + PATIENCE;
    while !e.mailbox.has_mail() {
        assert!(Instant::now() < end, "the buffer is not limited");
        for session in 0..1000 {
            node.send(control, connect(e.me(), None, session));
        }
    }
    let (lost, reason) = e.lost();
    assert_eq!(lost, control);
    assert!(matches!(reason, LostReason::NotReading { pending } if pending > 16 << 10), "{reason}");
}

#[test]
fn a_greeting_sent_byte_by_byte_has_the_same_timeout() {
    let limits = Limits { greeting: Duration::from_millis(300), ..Limits::default() };
    let node = Node::start("127.0.0.1:0", limits);
    let mut peer = Peer::connect(node.port);
    let mut hello = [0; 8];
    assert_eq!(peer.read(&mut hello), 8);
    let mut slow = peer.stream.try_clone().unwrap();
    let thread = std::thread::spawn(move || {
        // Every read returns a byte, but the eighth would arrive after 560 ms.
        for byte in &CONTROL_PREAMBLE[..7] {
            let _ = slow.write_all(&[*byte]);
            std::thread::sleep(Duration::from_millis(80));
        }
    });
    assert_eq!(peer.read(&mut hello), 0, "closed");
    thread.join().unwrap();
    assert_eq!(node.control.stats().failed_greetings, 1);
    assert_eq!(node.tables().conns, 0);
}

#[test]
fn the_longest_message_arrives_and_a_longer_one_closes_the_connection() {
    let node = Node::start("127.0.0.1:0", Limits::default());
    let e = node.register(0, true);
    // Current messages are shorter than the format allows, as a session has at most 32 slots.
    let done = vec![u32::MAX; 32];
    let longest = ControlMsg::Idle { from: PEER_ENDPOINT, to: e.me(), session: u32::MAX, done };
    let mut peer = Peer::connect(node.port);
    peer.greet();
    for _ in 0..100 {
        peer.send(&longest);
    }
    for _ in 0..100 {
        assert_eq!(e.msg().3, longest);
    }
    let mut bytes = vec![1; 4 + CONTROL_MAX + 1];
    bytes[..4].copy_from_slice(&(CONTROL_MAX as u32 + 1).to_le_bytes());
    peer.stream.write_all(&bytes).unwrap();
    assert_eq!(peer.recv(), None, "closed");
    let (_, reason) = e.lost();
    assert!(matches!(reason, LostReason::Protocol(ControlError::TooLong(_))), "{reason}");
}

#[test]
fn messages_about_endpoints_reach_only_endpoints_of_the_connection() {
    let node = Node::start("127.0.0.1:0", Limits::default());
    let (used, unused) = (node.register(0, true), node.register(1, true));
    let mut peer = Peer::connect(node.port);
    peer.greet();
    // Before it exchanged messages with any endpoint.
    peer.send(&ControlMsg::EndpointGone { from: used.me() });
    peer.send(&connect(PEER_ENDPOINT, Some(0), 1));
    let (control, _, _, msg) = used.msg();
    assert_eq!(requested_session(&msg), 1);
    // A notice about another nexus's endpoint is delivered with its connection number, and the
    // receiver checks which of its sessions use that connection.
    let gone = ControlMsg::EndpointGone { from: unused.me() };
    peer.send(&gone);
    let (over, _, _, msg) = used.msg();
    assert_eq!((over, msg), (control, gone));
    // An answer without a request; the endpoint detects it by its cookie.
    let forged = accept(used.me(), PEER_ENDPOINT, 9);
    peer.send(&forged);
    let (over, _, _, msg) = used.msg();
    assert_eq!((over, msg), (control, forged));
    peer.send(&accept(EndpointRef { id: !unused.id, ..unused.me() }, PEER_ENDPOINT, 9));
    let undone = peer.recv();
    assert!(matches!(undone, Some(ControlMsg::Disconnect { session, .. }) if session.number == 9));
    assert!(!unused.mailbox.has_mail());
    assert_eq!(node.control.stats().misdirected, 1);
}
