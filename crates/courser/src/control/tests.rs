//! Control planes on loopback, connected to each other and to scripted peers.
//!
//! Time limits are seconds: they end a hanging test and measure nothing.

mod accepting;
mod dialing;
mod heartbeat;
mod hostile;
mod limits;
mod refused;
mod scripted;
mod support;
mod unix;
mod usage;

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use courser_proto::{
    CONTROL_GREETING, CONTROL_PREAMBLE, ConnectRefuseReason, ControlError, ControlMsg,
};

use super::mailbox::MAIL_MAX;
use super::*;
use crate::control::mailbox::Mailbox;
use crate::error::{DialError, LostReason};
use crate::platform::random_u64;
use support::*;

#[test]
fn messages_of_a_session_arrive_in_both_directions() {
    let server = Node::start("[::]:0", Limits::default());
    let client = Node::start("127.0.0.1:0", Limits::default());
    let s = server.register(3, true);
    let c = client.register(7, false);

    let dialed = client.dial(&c, "127.0.0.1", server.port).unwrap();
    assert_eq!(dialed.remote, server.at_loopback());
    let ask = connect(c.me(), Some(3), 11);
    client.send(dialed.control, ask.clone());
    let (back, remote, local, msg) = s.msg();
    assert_eq!(msg, ask);
    // The peers' addresses are IPv4, not mapped IPv6, which the datapath could not reach.
    assert_eq!((remote, local), (dialed.local.ip(), dialed.remote.ip()));

    let yes = accept(c.me(), s.me(), 5);
    server.send(back, yes.clone());
    let (over, remote, _, msg) = c.msg();
    assert_eq!((over, remote, msg), (dialed.control, dialed.remote.ip(), yes));

    let end = disconnect(c.me(), s.me(), 5);
    client.send(dialed.control, end.clone());
    assert_eq!(s.msg().3, end);

    client.control.send(Command::Unregister { index: 7 });
    assert_eq!(s.msg().3, ControlMsg::EndpointGone { from: c.me() });
    assert_eq!(server.control.stats(), ControlStats::default());
}

#[test]
fn a_nexus_dials_itself() {
    let node = Node::start("127.0.0.1:0", Limits::default());
    let a = node.register(0, true);
    let b = node.register(1, false);
    let dialed = node.dial(&b, "127.0.0.1", node.port).unwrap();
    node.send(dialed.control, connect(b.me(), None, 1));
    let (back, _, _, msg) = a.msg();
    assert_eq!(msg, connect(b.me(), None, 1));
    assert_ne!(back, dialed.control, "the two ends are two connections");
    node.send(back, accept(b.me(), a.me(), 9));
    assert_eq!(b.msg().3, accept(b.me(), a.me(), 9));
}

#[test]
fn endpoints_share_one_connection_per_nexus() {
    let server = Node::start("127.0.0.1:0", Limits::default());
    let client = Node::start("127.0.0.1:0", Limits::default());
    let a = client.register(0, false);
    let b = client.register(1, false);
    // One dial while the connection is being opened, and one afterwards.
    client.ask(&a, 1, "127.0.0.1", server.port);
    client.ask(&b, 2, "127.0.0.1", server.port);
    let first = a.dialed(1).unwrap();
    assert_eq!(b.dialed(2).unwrap(), first);
    assert_eq!(client.dial(&a, "127.0.0.1", server.port).unwrap(), first);

    // Its loss is reported to every endpoint that used it. The next dial opens another one with a
    // new number.
    let addr = server.at_loopback();
    drop(server);
    for e in [&a, &b] {
        let (control, reason) = e.lost();
        assert_eq!(control, first.control);
        assert!(matches!(reason, LostReason::Closed | LostReason::Io(_)), "{reason}");
    }
    let _server = Node::start(&addr.to_string(), Limits::default());
    let second = client.dial(&a, "127.0.0.1", addr.port()).unwrap();
    assert_ne!(second.control, first.control);
}

#[test]
fn two_hundred_dials_to_as_many_addresses() {
    let server = Node::start("0.0.0.0:0", Limits::default());
    let s = server.register(0, true);
    let client = Node::start("127.0.0.1:0", Limits::default());
    let c = client.register(0, false);
    for i in 0..200 {
        client.ask(&c, i, &format!("127.0.1.{i}"), server.port);
    }
    let mut numbers = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let Mail::Dialed { ticket, result } = c.next() else { panic!("not a dial's result") };
        let dialed = result.unwrap();
        assert_eq!(dialed.remote.ip().to_string(), format!("127.0.1.{ticket}"));
        numbers.insert(dialed.control);
        client.send(dialed.control, connect(c.me(), None, ticket as u32));
    }
    assert_eq!(numbers.len(), 200);
    let mut sessions: Vec<u32> = (0..200).map(|_| requested_session(&s.msg().3)).collect();
    sessions.sort_unstable();
    assert!(sessions.into_iter().eq(0..200));
}

#[test]
fn clients_are_spread_over_the_endpoints_that_accept() {
    let server = Node::start("127.0.0.1:0", Limits::default());
    let ends = [server.register(2, true), server.register(4, false), server.register(6, true)];
    let mut peer = Peer::connect(server.port);
    peer.greet();
    for i in 0..4 {
        peer.send(&connect(PEER_ENDPOINT, None, i));
    }
    let sessions = |e: &End| [requested_session(&e.msg().3), requested_session(&e.msg().3)];
    assert_eq!((sessions(&ends[0]), sessions(&ends[2])), ([0, 2], [1, 3]));

    for index in [2, 6] {
        server.control.send(Command::SetAccepts { index, accepts: false });
    }
    for (i, to) in [None, Some(2), Some(4), Some(999)].into_iter().enumerate() {
        peer.send(&connect(PEER_ENDPOINT, to, i as u32));
        let (session, reason) = (i as u32, ConnectRefuseReason::NoEndpoint);
        assert_eq!(
            peer.recv(),
            Some(ControlMsg::Refuse { to: PEER_ENDPOINT, session, client_cookie: 1, reason })
        );
    }
    assert_eq!(server.control.stats().refused, 4);
    assert!(!ends[1].mailbox.has_mail());
}

#[test]
fn an_accept_for_a_client_that_is_gone_closes_the_session() {
    let node = Node::start("127.0.0.1:0", Limits::default());
    let old = node.register(0, false);
    let new = node.register(0, false);
    assert_ne!(old.id, new.id);
    let mut peer = Peer::connect(node.port);
    peer.greet();
    peer.send(&accept(old.me(), PEER_ENDPOINT, 77));
    let undo = disconnect(old.me(), PEER_ENDPOINT, 77);
    assert_eq!(peer.recv(), Some(undo));
    peer.send(&disconnect(PEER_ENDPOINT, old.me(), 1));
    // Mail is ordered, so if this is the first message, the successor got no earlier one.
    let own = disconnect(PEER_ENDPOINT, new.me(), 2);
    peer.send(&own);
    assert_eq!(new.msg().3, own);
    assert_eq!(node.control.stats().misdirected, 2);
    assert!(!old.mailbox.has_mail());
}

#[test]
fn errors_of_failed_dials_name_the_remedy() {
    let node = Node::start("127.0.0.1:0", Limits::default());
    let e = node.register(0, false);

    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = node.dial(&e, "127.0.0.1", closed).unwrap_err();
    assert!(matches!(error, DialError::Connect { .. }), "{error:?}");
    let text = format!(
        "nothing listens on 127.0.0.1:{closed}; start the server there, or check the address"
    );
    assert_eq!(error.to_string(), text);

    // An empty label: no resolver needs the network to reject it.
    let error = node.dial(&e, "no..such..host", 1).unwrap_err();
    assert!(matches!(error, DialError::Resolve { .. }), "{error:?}");
    assert!(error.to_string().contains("no..such..host"), "{error}");

    // A failed dial leaves no state: the same target can be dialed again.
    let again = node.dial(&e, "127.0.0.1", closed).unwrap_err();
    assert_eq!(again.to_string(), text);
}

#[test]
fn a_name_and_a_bracketed_address_are_resolved() {
    let server = Node::start("[::]:0", Limits::default());
    let client = Node::start("127.0.0.1:0", Limits::default());
    let e = client.register(0, false);
    let named = client.dial(&e, "localhost", server.port).unwrap();
    assert_eq!(client.dial(&e, "LOCALHOST", server.port).unwrap(), named);
    match client.dial(&e, "[::1]", server.port) {
        Ok(dialed) => assert!(dialed.remote.is_ipv6()),
        // A host without IPv6 parses the address nevertheless.
        Err(error) => assert!(matches!(error, DialError::Connect { .. }), "{error:?}"),
    }
}

#[test]
fn a_dial_beyond_the_limit_is_refused_here() {
    let server = Node::start("0.0.0.0:0", Limits::default());
    let client = Node::start("127.0.0.1:0", Limits { outbound: 1, ..Limits::default() });
    let e = client.register(0, false);
    client.dial(&e, "127.0.0.1", server.port).unwrap();
    let error = client.dial(&e, "127.0.0.2", server.port).unwrap_err();
    assert!(matches!(error, DialError::TooManyConnections { limit: 1 }), "{error:?}");
    client.dial(&e, "127.0.0.1", server.port).unwrap();
}

#[test]
fn stopping_answers_dials_and_closes_connections() {
    let server = Node::start("127.0.0.1:0", Limits::default());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = Node::start("127.0.0.1:0", Limits::default());
    let e = client.register(0, false);
    let dialed = client.dial(&e, "127.0.0.1", server.port).unwrap();
    client.ask(&e, 50, "127.0.0.1", silent.local_addr().unwrap().port());
    assert!(client.control.send(Command::Stop));
    assert!(matches!(e.dialed(50), Err(DialError::Stopped)));
    let (control, reason) = e.lost();
    assert_eq!(control, dialed.control);
    assert!(matches!(reason, LostReason::Stopped));
    eventually("the queue is closed", || !client.control.send(Command::Unregister { index: 0 }));
}

/// Returns whether a node takes a peer at this address, with this greeting, for one on its host.
fn is_on_host(node: &Node, e: &End, from: [u8; 4], greeting: &[u8]) -> bool {
    let mut peer = Peer::connect_from(from, node.port);
    peer.greet_as(greeting);
    peer.send(&connect(PEER_ENDPOINT, Some(0), 1));
    loop {
        match e.next() {
            Mail::Msg { same_host, .. } => return same_host,
            Mail::Lost { .. } => {} // the one before
            other => panic!("{other:?}"),
        }
    }
}

/// With a proxy beside each of two processes both see the loopback address at the other end.
#[test]
fn a_host_is_known_by_its_identity_and_not_by_addresses_alone() {
    let node = Node::start("127.0.0.1:0", Limits::default());
    let e = node.register(0, true);
    let (here, there) = ([127, 0, 0, 1], [127, 0, 0, 2]);
    let mut own = [0; 24];
    let mut peer = Peer::connect(node.port);
    peer.stream.write_all(&CONTROL_PREAMBLE).unwrap();
    peer.stream.read_exact(&mut own).unwrap();
    assert_ne!(own[8..], [0; 16], "this machine has no identity");
    assert!(is_on_host(&node, &e, here, &own));
    assert!(!is_on_host(&node, &e, there, &own), "another address");
    let mut other = own;
    other[23] ^= 1;
    assert!(!is_on_host(&node, &e, here, &other), "another host");
    assert!(!is_on_host(&node, &e, here, &CONTROL_GREETING), "an unknown host");
    let old = [&own[..4], &[10, 0, 10, 0]].concat();
    assert!(!is_on_host(&node, &e, here, &old), "a version that does not state its host");

    let client = Node::start("127.0.0.1:0", Limits::default());
    let dialed = client.dial(&client.register(0, false), "127.0.0.1", node.port).unwrap();
    assert!(dialed.same_host);
}

#[test]
fn a_full_mailbox_refuses_clients_and_closes_connections() {
    let node = Node::start("127.0.0.1:0", Limits::default());
    let e = node.register(0, true);
    let mut peer = Peer::connect(node.port);
    peer.greet();
    peer.send(&connect(PEER_ENDPOINT, Some(0), 1));
    let Mail::Msg { control, remote, local, same_host, msg } = e.next() else { panic!() };
    for _ in 0..MAIL_MAX {
        assert!(e.mailbox.post(Mail::Msg { control, remote, local, same_host, msg: msg.clone() }));
    }
    assert!(!e.mailbox.post(Mail::Msg { control, remote, local, same_host, msg }));

    peer.send(&connect(PEER_ENDPOINT, Some(0), 2));
    let reason = ConnectRefuseReason::NoEndpoint;
    assert_eq!(
        peer.recv(),
        Some(ControlMsg::Refuse { to: PEER_ENDPOINT, session: 2, client_cookie: 1, reason })
    );
    peer.send(&disconnect(PEER_ENDPOINT, e.me(), 1));
    assert_eq!(peer.recv(), None, "closed");
    let mut mail = Vec::new();
    eventually("the loss arrives in a full mailbox", || {
        e.mailbox.take(&mut mail);
        mail.len() > MAIL_MAX
    });
    assert_eq!(mail.len(), MAIL_MAX + 1);
    let lost = mail.pop();
    assert!(matches!(lost, Some(Mail::Lost { reason: LostReason::NotRunning { .. }, .. })));
}

#[test]
fn a_mailbox_keeps_order_and_signals_its_descriptor() {
    let mailbox = Mailbox::new(&Platform::System, 0).unwrap();
    let readable = |timeout| poll_readable(mailbox.raw_fd().unwrap(), timeout);
    assert!(!mailbox.has_mail() && !readable(Duration::ZERO));
    for control in 0..3 {
        assert!(mailbox.post(Mail::Lost { control, reason: LostReason::Closed }));
    }
    assert!(mailbox.has_mail() && readable(Duration::ZERO));
    let mut out = Vec::new();
    mailbox.take(&mut out);
    let number = |m: &Mail| match m {
        Mail::Lost { control, .. } => *control,
        other => panic!("{other:?}"),
    };
    assert!(out.iter().map(number).eq(0..3));
    assert!(!mailbox.has_mail() && !readable(Duration::ZERO), "flag and descriptor agree");

    let other = mailbox.clone();
    let thread = std::thread::spawn(move || other.wake());
    assert!(readable(PATIENCE), "a wake-up from another thread");
    thread.join().unwrap();
    assert!(mailbox.has_mail());
    mailbox.take(&mut out);
    assert!(out.len() == 3 && !mailbox.has_mail() && !readable(Duration::ZERO));
}

#[test]
fn a_submission_wakes_a_thread_that_sleeps_and_no_other() {
    let mailbox = Mailbox::new(&Platform::System, 0).unwrap();
    let readable = || poll_readable(mailbox.raw_fd().unwrap(), Duration::ZERO);
    assert!(!mailbox.take_submitted());
    mailbox.submitted();
    assert!(!readable() && !mailbox.has_mail(), "the thread is awake");
    assert!(!mailbox.fall_asleep(), "there is something to take");
    mailbox.submitted();
    assert!(mailbox.take_submitted() && !mailbox.take_submitted());
    assert!(mailbox.fall_asleep());
    mailbox.submitted();
    assert!(readable() && mailbox.take_submitted());
    mailbox.wake_up();
    mailbox.take(&mut Vec::new());
    assert!(!readable() && !mailbox.has_mail());
}

#[test]
fn random_numbers_differ() {
    let drawn: std::collections::BTreeSet<u64> = (0..64).map(|_| random_u64()).collect();
    assert_eq!(drawn.len(), 64);
}

#[test]
fn errors_are_cheap_to_clone_and_keep_their_cause() {
    let error =
        DialError::Handshake { addr: ([127, 0, 0, 1], 1).into(), cause: ControlError::NotCourser };
    assert_eq!(error.clone().to_string(), error.to_string());
    let cause = Arc::new(io::Error::from(io::ErrorKind::UnexpectedEof));
    let closed = DialError::Connect { addr: ([127, 0, 0, 1], 1).into(), cause };
    assert!(closed.to_string().contains("before it greeted"), "{closed}");
}
