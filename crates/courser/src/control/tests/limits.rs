//! Resources that strangers can make a nexus hold: connections, memory, table entries.

use std::io::Write;
use std::mem::size_of;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use courser_buf::Addr;
use courser_net::ControlSockets;
use courser_proto::{CONTROL_PREAMBLE, ControlMsg};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::support::*;
use crate::control::conn::Conn;
use crate::control::driver::Timer;
use crate::control::sockets::{ControlStream, Sockets};
use crate::control::{Command, ControlStats, Limits, Mail, Tables};
use crate::error::LostReason;

/// Whether this process may open `wanted` descriptors. Raises its limit where that is allowed.
fn descriptors(wanted: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|c| c >= wanted) {
        return true;
    }
    let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
    limit.maximum.is_none_or(|m| m >= wanted) && setrlimit(Resource::Nofile, raised).is_ok()
}

/// The limit is 4 KiB per connection. `BTreeMap` and `BTreeSet` may have three times as many places
/// as entries. A silent peer has no buffers, as `conn.rs` allocates them on the first byte.
#[test]
fn a_connection_is_small() {
    let places = 3
        * (size_of::<(u64, Conn<ControlStream>)>() + 1 + size_of::<(std::time::Instant, Timer)>());
    assert!(places < 2048, "{places} bytes");
}

#[test]
fn a_thousand_silent_peers_are_dropped_at_the_timeout() {
    if !descriptors(3000) {
        println!("skipped: 3,000 descriptors are needed, and the hard limit is lower");
        return;
    }
    let limits = Limits { greeting: Duration::from_millis(500), ..Limits::default() };
    let node = Node::start("127.0.0.1:0", limits);
    let e = node.register(0, true);
    let mut real = Peer::connect(node.port);
    real.greet();
    let mut silent: Vec<Peer> = (0..1000).map(|_| Peer::connect(node.port)).collect();
    real.send(&connect(PEER_ENDPOINT, None, 1));
    assert_eq!(requested_session(&e.msg().3), 1, "a client can connect meanwhile");
    for peer in &mut silent {
        let mut hello = [0; 8];
        assert_eq!(peer.read(&mut hello), 8);
        assert_eq!(peer.read(&mut hello), 0, "closed");
    }
    let stats = node.control.stats();
    assert_eq!((stats.failed_greetings, stats.excess_connections), (1000, 0));
    let tables = node.tables();
    assert_eq!((tables.conns, tables.hosts, tables.timers), (1, 1, 1), "{tables:?}");
    Peer::connect(node.port).greet();
    real.send(&connect(PEER_ENDPOINT, None, 2));
    assert_eq!(requested_session(&e.msg().3), 2);
}

/// As after a restart, when the control thread does not run yet. One more than fit is repeated by its
/// kernel after a second, and again.
#[test]
fn fifteen_hundred_connections_may_wait_to_be_accepted() {
    const WAITING: usize = 1_500;
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap_or_default();
    if most.trim().parse().is_ok_and(|most: usize| most < WAITING) {
        return println!("skipped: the kernel queues {} connections", most.trim());
    }
    if !descriptors(WAITING as u64 + 500) {
        return println!("skipped: 2,000 descriptors are needed, and the hard limit is lower");
    }
    let (events, _queue) = std::sync::mpsc::channel();
    let bind = "127.0.0.1:0".parse().unwrap();
    let listening = Sockets::listen(&ControlSockets::Tcp, bind, events).ok();
    let (_sockets, bound) = listening.expect("a free port");
    let connect = |_| TcpStream::connect_timeout(&bound, PATIENCE / 4).expect("it waits");
    let waiting: Vec<_> = (0..WAITING).map(connect).collect();
    assert_eq!(waiting.len(), WAITING);
}

#[test]
fn ten_thousand_connections_leave_nothing_behind() {
    let server = Node::start("127.0.0.1:0", Limits::default());
    let s = server.register(0, true);
    // Connections are accepted in order, so all were accepted when the last one is answered.
    for round in 0..10_003_u32 {
        // From many addresses, as the ports of one would run out in TIME_WAIT. It also tests the
        // table of hosts.
        let host = [127, 0, (round >> 8) as u8, round as u8 | 1];
        let mut peer = Peer::connect_from(host, server.port);
        match round % 4 {
            0 => {}
            1 => peer.greet(),
            2 => {
                peer.greet();
                peer.send(&connect(PEER_ENDPOINT, None, round));
                assert_eq!(requested_session(&s.msg().3), round);
                drop(peer);
                s.lost();
            }
            _ => peer.stream.write_all(&CONTROL_PREAMBLE[..5]).unwrap(),
        }
    }
    eventually("all are gone", || server.tables().conns == 0);
    assert_eq!(server.tables(), Tables::default());
}

#[test]
fn dials_and_their_connections_leave_nothing_behind() {
    let client = Node::start("127.0.0.1:0", Limits::default());
    let e = client.register(0, false);
    for _ in 0..50 {
        let server = Node::start("127.0.0.1:0", Limits::default());
        let dialed = client.dial(&e, "127.0.0.1", server.port).unwrap();
        let port = server.port;
        drop(server);
        assert_eq!(e.lost().0, dialed.control);
        client.dial(&e, "127.0.0.1", port).unwrap_err();
    }
    assert_eq!(client.tables(), Tables::default());
}

#[test]
fn one_host_cannot_take_all_connections() {
    let limits = Limits { inbound: 4, inbound_per_host: 2, idle: PATIENCE, ..Limits::default() };
    let node = Node::start("0.0.0.0:0", limits);
    let (one, other) = ([127, 0, 0, 7], [127, 0, 0, 8]);
    let mut inside: Vec<Peer> = Vec::new();
    for host in [one, one, other] {
        let mut peer = Peer::connect_from(host, node.port);
        peer.greet();
        inside.push(peer);
    }
    assert!(Peer::connect_from(one, node.port).is_refused());
    assert_eq!(node.control.stats().excess_connections, 1);
    let mut fourth = Peer::connect_from(other, node.port);
    fourth.greet();
    // A freed place is used again, also by the same host.
    drop(inside.remove(0));
    eventually("a connection is accepted again", || {
        Peer::connect_from(one, node.port).read(&mut [0; 8]) == 8
    });
    for peer in &mut inside {
        peer.send(&connect(PEER_ENDPOINT, None, 1));
        assert!(matches!(peer.recv(), Some(ControlMsg::Refuse { .. })));
    }
}

#[test]
fn an_unused_connection_is_closed_by_the_side_that_dialed_it() {
    let failure_timeout = Duration::from_secs(2);
    let unused = Duration::from_millis(300);
    let server =
        Node::start("127.0.0.1:0", Limits { failure_timeout: PATIENCE, ..Limits::default() });
    let s = server.register(0, true);
    let limits = Limits { failure_timeout, unused, ..Limits::default() };
    let client = Node::start("127.0.0.1:0", limits);
    let (c, other) = (client.register(0, false), client.register(1, false));
    let dialed = client.dial(&c, "127.0.0.1", server.port).unwrap();
    let ask = |from: &End| {
        client.send(dialed.control, connect(from.me(), None, 1));
        s.msg().0
    };
    let quiet = || {
        std::thread::sleep(3 * unused);
        assert!(!c.mailbox.has_mail() && !other.mailbox.has_mail(), "it is in use, so it stays");
    };
    // An unanswered connect; then two sessions, of which one is closed and the other ends with its
    // endpoint. An answer without a request does not count as a session.
    let back = ask(&c);
    quiet();
    server.send(back, accept(c.me(), s.me(), 5));
    c.msg();
    ask(&other);
    server.send(back, accept(other.me(), s.me(), 6));
    other.msg();
    server.send(back, accept(c.me(), s.me(), 7));
    c.msg();
    client.send(dialed.control, disconnect(c.me(), s.me(), 5));
    s.msg();
    quiet();
    client.control.send(Command::Unregister { index: 1 });
    s.msg();
    let (control, reason) = c.lost();
    assert_eq!(control, dialed.control);
    assert!(matches!(reason, LostReason::Unused(after) if after == unused), "{reason:?}");
    // The server is notified, and the next dial opens another connection.
    assert_eq!(s.lost().0, back);
    assert_ne!(client.dial(&c, "127.0.0.1", server.port).unwrap().control, dialed.control);
    eventually("the unused connection is closed, too", || client.tables().conns == 0);
    assert_eq!(client.tables().targets, 0);
}

#[test]
fn two_thousand_connections_that_only_answer_pings_do_not_stop_a_new_client() {
    if !descriptors(4500) {
        println!("skipped: 4,500 descriptors are needed, and the hard limit is lower");
        return;
    }
    let node = Node::start("127.0.0.1:0", Limits::default());
    let e = node.register(0, true);
    let mut idle: Vec<Peer> = Vec::new();
    let mut used = Peer::connect(node.port);
    used.greet();
    used.send(&connect(PEER_ENDPOINT, None, 1));
    let (control, ..) = e.msg();
    node.send(control, accept(PEER_ENDPOINT, e.me(), 5));
    assert!(matches!(used.recv(), Some(ControlMsg::Accept { .. })));
    for _ in 0..2047 {
        let mut peer = Peer::connect(node.port);
        peer.greet();
        idle.push(peer);
    }
    std::thread::sleep(Duration::from_millis(600));
    let start = Instant::now();
    let mut fresh = Peer::connect(node.port);
    fresh.greet();
    fresh.send(&connect(PEER_ENDPOINT, None, 2));
    assert_eq!(requested_session(&e.msg().3), 2);
    assert!(start.elapsed() < Duration::from_secs(2));
    assert_eq!(idle.remove(0).recv(), None, "the oldest was closed for it");
    assert_eq!(node.control.stats().evicted_connections, 1);
    // Sessions end with a disconnect; until then their connection is never closed.
    used.send(&connect(PEER_ENDPOINT, None, 3));
    assert_eq!(requested_session(&e.msg().3), 3);
    assert_eq!((node.tables().conns, node.tables().idle), (2048, 2047));
}

#[test]
fn connections_with_sessions_are_not_closed_for_others() {
    let limits = Limits { inbound: 2, idle: Duration::from_millis(50), ..Limits::default() };
    let node = Node::start("127.0.0.1:0", limits);
    let e = node.register(0, true);
    let mut peers = [Peer::connect(node.port), Peer::connect(node.port)];
    for (n, peer) in (0..).zip(&mut peers) {
        peer.greet();
        peer.send(&connect(PEER_ENDPOINT, None, n));
        let (control, ..) = e.msg();
        node.send(control, accept(PEER_ENDPOINT, e.me(), n));
        assert!(matches!(peer.recv(), Some(ControlMsg::Accept { .. })));
    }
    std::thread::sleep(Duration::from_millis(100));
    for _ in 0..2 {
        assert!(Peer::connect(node.port).is_refused());
    }
    assert_eq!(node.tables().idle, 0);
    assert!(matches!(e.next(), Mail::Scarce { host: None }));
    assert!(!e.mailbox.has_mail(), "asked once in the time");
    let [mut first, second] = peers;
    first.send(&disconnect(PEER_ENDPOINT, e.me(), 0));
    e.msg();
    std::thread::sleep(Duration::from_millis(100));
    Peer::connect(node.port).greet();
    assert_eq!(first.recv(), None, "its session has ended");
    drop(second);
    let (_, reason) = e.lost();
    assert!(matches!(reason, LostReason::Scarce), "{reason}");
}

/// An endpoint ends sessions that were never used; here one of a connection with two, and the only
/// one of another.
#[test]
fn a_connection_without_its_evicted_sessions_is_closed_at_once_where_they_are_scarce() {
    let limits = Limits { inbound: 9, inbound_per_host: 2, ..Limits::default() };
    let node = Node::start("0.0.0.0:0", limits);
    let e = node.register(0, true);
    let (one, other) = ([127, 0, 0, 7], [127, 0, 0, 8]);
    let open = |host, sessions: u32| {
        let mut peer = Peer::connect_from(host, node.port);
        peer.greet();
        let mut number = 0;
        for n in 0..sessions {
            peer.send(&connect(PEER_ENDPOINT, None, n));
            number = e.msg().0;
            node.send(number, accept(PEER_ENDPOINT, e.me(), n));
            assert!(matches!(peer.recv(), Some(ControlMsg::Accept { .. })));
        }
        (number, peer)
    };
    let (mut two, mut single, mut elsewhere) = (open(one, 2), open(one, 1), open(other, 1));
    assert!(Peer::connect_from(one, node.port).is_refused(), "no room yet");
    let from_one = Addr::from_socket((one, 0).into()).host;
    assert!(matches!(e.next(), Mail::Scarce { host: Some(host) } if host == from_one));
    let evicted =
        ControlMsg::Evicted { to: PEER_ENDPOINT, from: e.me(), session: 0, server_session: 0 };
    for (number, peer) in [&mut two, &mut single, &mut elsewhere] {
        node.send(*number, evicted.clone());
        assert_eq!(peer.recv(), Some(evicted.clone()));
    }
    assert_eq!(single.1.recv(), None, "closed");
    assert_eq!((node.tables().conns, node.control.stats().evicted_connections), (2, 1));
    let mut next = Peer::connect_from(one, node.port);
    next.greet();
    assert_eq!(node.tables().conns, 3);
}

#[test]
fn one_address_may_have_more_connections_when_the_limits_are_raised() {
    if !descriptors(6500) {
        println!("skipped: 6,500 descriptors are needed, and the hard limit is lower");
        return;
    }
    // On a busy machine the first one greets late.
    let limits = Limits { inbound_per_host: 3000, greeting: 10 * PATIENCE, ..Limits::default() };
    let node = Node::start("127.0.0.1:0", limits);
    let mut peers: Vec<Peer> = (0..3000).map(|_| Peer::connect(node.port)).collect();
    peers.iter_mut().for_each(Peer::greet);
    assert_eq!(node.tables().conns, 3000);
    assert_eq!(node.control.stats(), ControlStats::default());
}
