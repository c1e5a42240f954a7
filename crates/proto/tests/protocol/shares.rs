//! Shares of the session table: a client process, an address, all; and eviction of unused sessions.

use courser_buf::PathId;
use courser_proto::{
    CallError, Config, ConnectAccept, ConnectOffer, ConnectRefuseReason, Executed, Integrity,
    SessionState,
};

use crate::support::{DPP, World, addr, config, pattern, port};

const SECOND: u64 = 1_000_000_000;

/// A connect of endpoint `id` at host `host`, over control connection `control`.
fn connect(
    w: &mut World,
    (host, id, control): (u8, u64, u64),
) -> Result<ConnectAccept, ConnectRefuseReason> {
    let mut request = w.dial(0, id).request;
    request.endpoint_id = id;
    let mut at = addr(0);
    at.host = u128::from(host);
    let offer = ConnectOffer {
        addr: at,
        path: Some((PathId(id as u32), 1472)),
        local_port: port(1),
        control,
        client_index: 3,
        random: 1,
        integrity: Integrity::None,
        credits: u32::MAX,
    };
    w.ep(1).accept(&request, offer)
}

/// A client whose session table is large, and a server.
fn world(server: Config) -> World {
    World::new(&[Config { max_sessions: 10_000, ..config() }, server], 1)
}

#[test]
fn two_connections_of_an_address_leave_room_for_another_address() {
    let server = Config {
        max_sessions: 320,
        max_sessions_per_peer: 60,
        max_sessions_per_address: 100,
        ..config()
    };
    let mut w = world(server);
    let taken = |w: &mut World, host, control| {
        let mut n = 0;
        loop {
            match connect(w, (host, 1, control)) {
                Ok(_) => n += 1,
                Err(reason) => return (n, reason),
            }
        }
    };
    let of_peer = ConnectRefuseReason::TooManyOfPeer { limit: 60 };
    let of_address = ConnectRefuseReason::TooManyOfAddress { limit: 100 };
    assert_eq!(taken(&mut w, 1, 11), (60, of_peer));
    assert_eq!(taken(&mut w, 1, 12), (40, of_address));
    for host in [2, 3] {
        assert_eq!(taken(&mut w, host, 20 + u64::from(host)), (60, of_peer));
        assert_eq!(taken(&mut w, host, 30 + u64::from(host)).1, of_address);
    }
    // A sixteenth is for addresses without a session.
    let all = ConnectRefuseReason::TooManySessions { limit: 300 };
    assert_eq!(taken(&mut w, 4, 44), (1, all));
    for host in 5..24 {
        assert_eq!(taken(&mut w, host, 50 + u64::from(host)), (1, all), "{host}");
    }
    let full = ConnectRefuseReason::TooManySessions { limit: 320 };
    assert_eq!(connect(&mut w, (99, 1, 99)).unwrap_err(), full);
    w.ep(1).check();
}

#[test]
fn one_address_can_use_the_whole_table() {
    let server = Config {
        max_sessions: 320,
        max_sessions_per_address: 320,
        reserved_sessions: 0,
        ..config()
    };
    let mut w = world(server);
    for n in 0..320 {
        connect(&mut w, (1, n, n)).unwrap();
    }
}

#[test]
fn endpoints_of_one_process_are_limited_and_counted_until_they_leave() {
    let mut w = world(Config { max_paths_per_peer: 3, ..config() });
    let first = connect(&mut w, (1, 0, 7)).unwrap();
    for id in 1..3 {
        connect(&mut w, (1, id, 7)).unwrap();
    }
    let limit = ConnectRefuseReason::TooManyPathsOfPeer { limit: 3 };
    assert_eq!(connect(&mut w, (1, 9, 7)).unwrap_err(), limit);
    connect(&mut w, (1, 9, 8)).unwrap();
    assert_eq!(connect(&mut w, (1, 9, 7)).unwrap_err(), limit, "it is another path");
    assert!(w.ep(1).disconnected(first.session, 0, 7).is_some());
    connect(&mut w, (1, 8, 7)).unwrap();
    assert_eq!(connect(&mut w, (1, 10, 7)).unwrap_err(), limit);
    let mut paths = Vec::new();
    w.ep(1).peer_lost(7, &mut paths);
    connect(&mut w, (1, 10, 7)).unwrap();
}

#[test]
fn the_oldest_unused_session_of_another_client_makes_room() {
    let server = Config { max_sessions: 4, max_sessions_per_address: 3, ..config() };
    let mut w = world(server);
    let firsts: Vec<_> = (0..3).map(|n| connect(&mut w, (1, n, 10 + n)).unwrap()).collect();
    let of_address = ConnectRefuseReason::TooManyOfAddress { limit: 3 };
    assert_eq!(connect(&mut w, (1, 5, 15)).unwrap_err(), of_address, "too young");
    w.ep(1).advance(SECOND);
    assert_eq!(connect(&mut w, (1, 0, 10)).unwrap_err(), of_address, "it is its own");
    connect(&mut w, (1, 5, 15)).unwrap();
    let e = w.ep(1).poll_evicted().unwrap();
    assert_eq!((e.control, e.client.id, e.client.index), (10, 0, 3));
    assert_eq!((e.session, e.own), (firsts[0].client_session, firsts[0].session.number));
    assert!(w.ep(1).poll_evicted().is_none() && w.ep(1).poll_unused_path().is_some());
    // The table is full with the fourth: the oldest of any address ends for the fifth.
    connect(&mut w, (2, 6, 16)).unwrap();
    connect(&mut w, (3, 7, 17)).unwrap();
    assert_eq!(w.ep(1).poll_evicted().unwrap().own, firsts[1].session.number);
    assert_eq!(w.ep(1).live_sessions(), 4);
    w.ep(1).check();
}

#[test]
fn clients_that_use_none_of_their_sessions_end_where_connections_are_scarce() {
    let mut w = world(config());
    let used = w.connect(0, 1); // from host 0, over control connection 7
    w.call(0, used, 1, 32);
    w.finish(0, 1);
    let start = w.ep(1).now_ns();
    let host = addr(0).host as u8;
    // A client with a used session and an unused one; twelve with two unused ones; another address.
    connect(&mut w, (host, 1, 7)).unwrap();
    for n in 0..12 {
        w.ep(1).advance(start + n);
        let young = connect(&mut w, (host, 20 + n, 20 + n)).unwrap();
        connect(&mut w, (host, 20 + n, 20 + n)).unwrap();
        assert!(young.session.number > 0);
    }
    connect(&mut w, (host + 1, 50, 50)).unwrap();
    let evicted = |w: &mut World, of| {
        w.ep(1).evict_clients(of);
        let mut all = Vec::new();
        while let Some(e) = w.ep(1).poll_evicted() {
            all.push(e.control);
        }
        w.ep(1).check();
        all
    };
    let this = Some(u128::from(host));
    assert_eq!(evicted(&mut w, this), [], "too young");
    w.ep(1).advance(start + 2 * SECOND);
    connect(&mut w, (host, 99, 99)).unwrap();
    let twice = |controls: std::ops::Range<u64>| controls.flat_map(|c| [c, c]).collect::<Vec<_>>();
    assert_eq!(evicted(&mut w, this), twice(20..28), "the oldest eight");
    assert_eq!(evicted(&mut w, this), twice(28..32));
    assert_eq!(evicted(&mut w, this), [], "one is young, one has used a session");
    assert_eq!(evicted(&mut w, None), [50]);
    assert_eq!(w.ep(1).live_sessions(), 3);
    w.call(0, used, 2, 32);
    assert!(w.finish(0, 1)[0].result.is_ok());
}

/// The client closes a session that the server has evicted; its number belongs to another session of
/// that client.
#[test]
fn a_disconnect_of_an_evicted_session_does_not_end_the_next_of_its_number() {
    let mut w = world(Config { max_sessions: 1, ..config() });
    let (first, accept) = w.try_connect(0, 1, 0x1000_0000_0009).unwrap();
    w.ep(1).advance(2 * SECOND);
    let other = connect(&mut w, (9, 1, 99)).unwrap();
    assert_eq!(w.ep(1).poll_evicted().unwrap().own, accept.session.number);
    assert!(w.ep(1).disconnected(other.session, 1, 99).is_some());
    let (second, accept) = w.try_connect(0, 1, 0x2000_0000_0008).unwrap();
    let (late, _) = w.ep(0).close(first).unwrap();
    assert_eq!(late.number, accept.session.number, "the same number, endpoint and connection");
    assert_eq!(w.ep(1).disconnected(late, 0xe0, 7), None);
    assert_eq!(w.ep(1).live_sessions(), 1);
    w.call(0, second, 1, 32);
    assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(1, 32)));
    let (remote, _) = w.ep(0).close(second).unwrap();
    assert!(w.ep(1).disconnected(remote, 0xe0, 7).is_some());
    w.ep(1).check();
}

#[test]
fn used_sessions_are_not_evicted_and_clients_of_evicted_ones_are_told() {
    let server = Config { max_sessions: 2, ..config() };
    let mut w = world(server);
    let used = w.connect(0, 1);
    w.call(0, used, 1, 3 * DPP);
    assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(1, 3 * DPP)));
    let (unused, accept) = w.try_connect(0, 1, 0x9_0000_0009).unwrap();
    let later = w.ep(1).now_ns() + 2 * SECOND;
    w.ep(1).advance(later);
    connect(&mut w, (9, 1, 99)).unwrap();
    let e = w.ep(1).poll_evicted().unwrap();
    assert_eq!((e.session, e.own), (unused.index(), accept.session.number));
    let full = ConnectRefuseReason::TooManySessions { limit: 2 };
    assert_eq!(connect(&mut w, (10, 1, 100)).unwrap_err(), full, "one is used, one is young");

    // Messages about other sessions are ignored.
    for (session, own, id, control) in [
        (e.session, e.own + 1, 0xe1, 7),
        (e.session, e.own, 0xe2, 7),
        (e.session, e.own, 0xe1, 8),
        (99, e.own, 0xe1, 7),
    ] {
        assert!(w.ep(0).evicted(session, own, id, control).is_none());
    }
    w.call(0, unused, 2, 32);
    let (ended, path) = w.ep(0).evicted(e.session, e.own, 0xe1, 7).unwrap();
    assert_eq!((ended, path), (unused, None), "the other session keeps the path");
    assert_eq!(w.ep(0).session_state(unused), SessionState::Gone);
    let done = w.finish(0, 1);
    assert_eq!(done[0].result, Err(CallError::PeerFailed(Executed::Never)));
    w.call(0, used, 3, 32);
    assert!(w.finish(0, 1)[0].result.is_ok());
    w.ep(0).check();
}
