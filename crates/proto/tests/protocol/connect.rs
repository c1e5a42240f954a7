//! The handshake: requests and answers that are invalid, late, or of another session.

use courser_buf::{Addr, PathId};
use courser_proto::{
    CallError, Config, ConnectAccept, ConnectError, ConnectOffer, ConnectOver, ConnectRefuseReason,
    ConnectRequest, Dialed, Integrity, SessionEnd, SessionState,
};

use crate::support::{DPP, World, addr, config, port};

fn offer(client: usize) -> ConnectOffer {
    let path = Some((PathId(client as u32), 1472));
    let (addr, local_port) = (addr(client), port(1));
    ConnectOffer {
        addr,
        path,
        local_port,
        control: 7,
        client_index: 3,
        random: 99,
        integrity: Integrity::None,
        credits: u32::MAX,
    }
}

fn over(control: u64, same_host: bool) -> ConnectOver {
    ConnectOver { control, integrity: Integrity::None, same_host }
}

/// The request of node 0 is sent over this control connection.
fn bind(w: &mut World, d: &Dialed, control: u64) {
    w.ep(0).connect_over(d.session, &mut d.request.clone(), over(control, false));
}

#[test]
fn a_bad_request_is_refused_and_changes_nothing() {
    let mut w = World::pair(config());
    let good = w.dial(0, 5).request;
    let cases: [fn(&mut ConnectRequest); 10] = [
        |r| r.pool = r.credits + 1,
        |r| r.slots = 0,
        |r| r.slots = 3,
        |r| r.slots = 64,
        |r| r.credits = 0,
        |r| r.credits = 1 << 20,
        |r| r.session = 1 << 24,
        |r| r.first_req_num = 1,
        |r| r.port = 0,
        |r| r.max_frame = 299,
    ];
    for (n, spoil) in cases.into_iter().enumerate() {
        let mut r = good.clone();
        spoil(&mut r);
        assert!(w.ep(1).accept(&r, offer(0)).is_err(), "case {n}");
        assert_eq!(w.ep(1).live_sessions(), 0);
        assert!(!w.ep(1).knows_endpoint(good.endpoint_id));
    }
    assert!(w.ep(1).accept(&good, offer(0)).is_ok());
}

#[test]
fn a_bad_answer_ends_the_session() {
    let cases: [fn(&mut ConnectAccept); 7] = [
        |a| a.pool = 0,
        |a| a.credits = 0,
        |a| a.credits += 1,
        |a| a.session.number = 1 << 24,
        |a| a.data_per_packet = 255,
        |a| a.data_per_packet = DPP as u16 + 1, // larger than any frame here
        |a| a.client_peer = 1234,
    ];
    for (n, spoil) in cases.into_iter().enumerate() {
        let mut w = World::pair(config());
        let d = w.dial(0, 5);
        w.call(0, d.session, 1, 10);
        let mut a = w.accept(1, 0, &d.request).unwrap();
        spoil(&mut a);
        let e = w.ep(0).established(&a, addr(1), PathId(1)).unwrap_err();
        assert_eq!(e, ConnectError::BadAnswer, "case {n}");
        assert_eq!(w.ep(0).session_state(d.session), SessionState::Gone);
        assert_eq!(w.finish(0, 1)[0].result, Err(CallError::NotConnected(SessionEnd::BadAnswer)));
        assert_eq!(w.ep(0).live_sessions(), 0);
    }
}

#[test]
fn an_answer_to_an_earlier_connect_is_ignored() {
    let mut w = World::pair(config());
    let first = w.dial(0, 5);
    let late = w.accept(1, 0, &first.request).unwrap();
    assert_eq!(w.ep(0).close(first.session), None);
    let second = w.dial(0, 6);
    assert_eq!(first.session.index(), second.session.index());
    let e = w.ep(0).established(&late, addr(1), PathId(1)).unwrap_err();
    assert_eq!(e, ConnectError::Closed);
    assert_eq!(w.ep(0).session_state(second.session), SessionState::Connecting, "untouched");
    w.ep(1).disconnected(late.session, first.request.endpoint_id, 7);
    let a = w.accept(1, 0, &second.request).unwrap();
    w.ep(0).established(&a, addr(1), PathId(1)).unwrap();
    w.call(0, second.session, 1, 10);
    assert!(w.finish(0, 1)[0].result.is_ok());
    let again = w.ep(0).established(&a, addr(1), PathId(1)).unwrap_err();
    assert_eq!(again, ConnectError::Closed);
    assert_eq!(w.ep(0).session_state(second.session), SessionState::Connected);
}

/// A client cancels a connect and connects again, and the server accepts both before the disconnect
/// of the first arrives: the second must not share the peer of the first, whose cookie the client
/// has dropped although the peer's number is the same.
#[test]
fn a_connect_after_a_cancelled_one_does_not_get_its_cookie() {
    let mut w = World::pair(config());
    let first = w.dial(0, 5);
    w.ep(0).refused(first.session.index(), SessionEnd::Unanswered);
    let second = w.dial(0, 6);
    assert_eq!(first.request.peer, second.request.peer, "the number is used again");
    let late = w.accept(1, 0, &first.request).unwrap();
    assert!(!w.ep(1).knows_peer(&second.request, addr(0), 7));
    let a = w.accept(1, 0, &second.request).unwrap();
    assert_ne!((late.peer, late.cookie), (a.peer, a.cookie));
    let e = w.ep(0).established(&late, addr(1), PathId(1)).unwrap_err();
    assert_eq!(e, ConnectError::Closed);
    w.ep(0).established(&a, addr(1), PathId(1)).unwrap();
    let id = w.ep(0).id();
    assert!(w.ep(1).disconnected(late.session, id, 7).is_some(), "the path of the first");
    assert!(w.ep(1).knows_endpoint(id));
    w.sessions.push((0, second.session));
    w.call(0, second.session, 1, 10);
    assert!(w.finish(0, 1)[0].result.is_ok());
}

#[test]
fn sessions_that_connect_at_once_share_one_peer() {
    let mut w = World::pair(config());
    let (a, b) = (w.dial(0, 5), w.dial(0, 6));
    let first = w.accept(1, 0, &a.request).unwrap();
    let second = w.accept(1, 0, &b.request).unwrap();
    assert_eq!((first.peer, first.cookie), (second.peer, second.cookie));
    assert!(!w.ep(0).established(&first, addr(1), PathId(1)).unwrap().path_unused);
    assert!(w.ep(0).established(&second, addr(1), PathId(1)).unwrap().path_unused);
    w.call(0, a.session, 1, 10);
    w.call(0, b.session, 2, 10);
    assert_eq!(w.finish(0, 2).len(), 2);
    // The path is released with the last session.
    assert!(matches!(w.ep(0).close(a.session), Some((_, None))));
    assert!(matches!(w.ep(0).close(b.session), Some((_, Some(PathId(1))))));
}

#[test]
fn an_endpoint_number_from_another_address_is_another_peer() {
    // Sharing a peer would reveal its cookie.
    let mut w = World::pair(config());
    let (_, f) = w.connect_forge(0, 1);
    let mut r = w.dial(0, 6).request;
    let thief = Addr { host: 0xbad, port: port(0) };
    assert!(w.ep(1).knows_peer(&r, addr(0), 7));
    assert!(!w.ep(1).knows_peer(&r, thief, 7));
    let stolen = ConnectOffer { addr: thief, path: None, ..offer(0) };
    assert_eq!(w.ep(1).accept(&r, stolen), Err(ConnectRefuseReason::NoPath));
    r.peer = 17;
    let own = w.ep(1).accept(&r, ConnectOffer { addr: thief, ..offer(0) }).unwrap();
    assert_ne!((own.peer, own.cookie), (f.accept.peer, f.accept.cookie));
}

#[test]
fn an_endpoint_number_over_another_control_connection_is_another_peer() {
    // Two processes may have one address, behind a translation of addresses or a proxy.
    let mut w = World::pair(config());
    let (s, f) = w.connect_forge(0, 1);
    let mut r = w.dial(0, 6).request;
    assert!(w.ep(1).knows_peer(&r, addr(0), 7));
    assert!(!w.ep(1).knows_peer(&r, addr(0), 8));
    let other = ConnectOffer { control: 8, ..offer(0) };
    let unpathed = ConnectOffer { path: None, ..other };
    assert_eq!(w.ep(1).accept(&r, unpathed), Err(ConnectRefuseReason::NoPath));
    r.peer = 17;
    let own = w.ep(1).accept(&r, other).unwrap();
    assert_ne!((own.peer, own.cookie), (f.accept.peer, f.accept.cookie));
    // Either connection has the peer of its own, whichever is the later one.
    for (control, of) in [(7, f.accept.peer), (8, own.peer)] {
        let mut again = w.dial(0, 6).request;
        again.peer = 20 + control as u32;
        assert_eq!(w.ep(1).accept(&again, ConnectOffer { control, ..offer(0) }).unwrap().peer, of);
    }
    // The end of the other connection does not touch this session.
    w.ep(1).peer_lost(8, &mut Vec::new());
    w.call(0, s, 1, 10);
    assert!(w.finish(0, 1)[0].result.is_ok());
}

#[test]
fn an_answer_over_another_control_connection_joins_no_peer_of_this_one() {
    let mut w = World::pair(config());
    let (_, f) = w.connect_forge(0, 1);
    let d = w.dial(0, 6);
    let mut a = w.accept(1, 0, &d.request).unwrap();
    assert_eq!(a.client_peer, f.accept.client_peer);
    bind(&mut w, &d, 8);
    a.cookie = f.accept.cookie;
    let e = w.ep(0).established(&a, addr(1), PathId(1)).unwrap_err();
    assert_eq!(e, ConnectError::BadAnswer);
}

#[test]
fn numbers_are_reused_and_nothing_grows() {
    let mut w = World::pair(config());
    for _ in 0..100 {
        let a = w.connect(0, 1);
        let b = w.connect(0, 1);
        for s in [a, b] {
            let (remote, _) = w.ep(0).close(s).unwrap();
            w.ep(1).disconnected(remote, 0xe0, 7);
        }
        let gone = w.dial(0, 1);
        w.ep(0).refused(gone.session.index(), SessionEnd::Unanswered);
    }
    let (s, f) = w.connect_forge(0, 1);
    assert!(s.index() < 2 && f.accept.session.number < 2 && f.accept.peer < 2);
    assert_eq!((w.ep(0).live_sessions(), w.ep(1).live_sessions()), (1, 1));
}

#[test]
fn the_smaller_frame_decides_the_packet_size() {
    let mut w = World::pair(config());
    let mut d = w.dial(0, 5);
    d.request.max_frame = 9_000; // more than the server's transport has
    let path = Some((PathId(0), 9_000));
    let a = w.ep(1).accept(&d.request, ConnectOffer { path, ..offer(0) }).unwrap();
    assert_eq!(usize::from(a.data_per_packet), DPP);
    let mut d = w.dial(0, 5);
    d.request.max_frame = 700;
    d.request.endpoint_id += 1;
    let a = w.ep(1).accept(&d.request, offer(0)).unwrap();
    assert_eq!(a.data_per_packet, 700 - 44);
}

#[test]
fn a_session_has_no_more_credits_than_its_path_is_for() {
    let mut w = World::pair(config());
    let wanted = config().credits;
    for (most, credits) in [(0, 1), (1, 1), (5, 5), (wanted, wanted), (u32::MAX, wanted)] {
        let d = w.dial(0, 5);
        let offer = ConnectOffer { credits: most, ..offer(0) };
        let a = w.ep(1).accept(&d.request, offer).unwrap();
        assert_eq!(a.credits, credits, "a path for {most}");
        assert!(a.pool >= 1);
    }
}

/// Six trains of credits within a host, three otherwise.
fn ample() -> Config {
    Config { credits: 264, credits_remote: 132, rx_queue_frames: 5_461, ..config() }
}

#[test]
fn pools_are_wide_only_within_a_host_and_while_there_is_plenty() {
    let pools = |wide: bool, count: usize| {
        let mut w = World::pair(ample());
        let requests = (0..count).map(|n| {
            let mut d = w.dial(0, 5 + n as u64);
            assert_eq!((d.request.credits, d.request.pool), (132, 132));
            if wide {
                w.ep(0).connect_over(d.session, &mut d.request, over(7, true));
            }
            w.ep(0).check();
            d.request
        });
        requests.collect::<Vec<_>>()
    };
    let across = pools(false, 40);
    assert!(across.iter().all(|r| (r.credits, r.pool) == (132, 132)), "{across:?}");
    let within = pools(true, 20);
    assert!(within.iter().all(|r| r.credits == 264 && r.pool >= 132), "{within:?}");
    assert_eq!(within[0].pool, 264);
    assert!(within[19].pool < 264, "the last ones find less");
}

#[test]
fn a_server_widens_pools_while_there_is_plenty_and_grants_the_request() {
    let mut w = World::pair(ample());
    for (wide, credits) in [(false, 132), (true, 264)] {
        let mut d = w.dial(0, 5);
        if wide {
            w.ep(0).connect_over(d.session, &mut d.request, over(7, true));
        }
        let a = w.accept(1, 0, &d.request).unwrap();
        assert_eq!(a.credits, credits);
        // More than requested, although this endpoint would have accepted it on request.
        let more = ConnectAccept { credits: credits + 1, ..a.clone() };
        let result = w.ep(0).established(&more, addr(1), PathId(1));
        assert_eq!(result, Err(ConnectError::BadAnswer), "{more:?}");
        // The error ended the session: an answer to it ends no other session, whatever it grants.
        let next = w.dial(0, 6);
        let late = ConnectAccept { client_session: next.session.index(), ..more };
        let result = w.ep(0).established(&late, addr(1), PathId(1));
        assert_eq!(result, Err(ConnectError::Closed));
        assert_eq!(w.ep(0).session_state(next.session), SessionState::Connecting);
        w.ep(0).refused(next.session.index(), SessionEnd::Unanswered);
        w.ep(0).check();
        assert_eq!(w.ep(0).credits_granted(), 0, "what was kept for them is free again");
    }
}

/// A client closes its last session with a server while the server accepts another: the answer
/// names the peer of the closed session, which must still exist.
#[test]
fn a_session_that_is_closed_while_another_connects_leaves_its_peer() {
    let mut w = World::pair(config());
    let first = w.dial(0, 5);
    bind(&mut w, &first, 7);
    let a = w.accept(1, 0, &first.request).unwrap();
    w.ep(0).established(&a, addr(1), PathId(1)).unwrap();
    let second = w.dial(0, 1 << 40 | 6);
    bind(&mut w, &second, 7);
    let answer = w.accept(1, 0, &second.request).unwrap();
    assert_eq!(answer.client_peer, a.client_peer);

    let (remote, path) = w.ep(0).close(first.session).unwrap();
    assert_eq!(path, None, "the connect under way may need it");
    // Its number is not assigned to a third connect meanwhile.
    let third = w.dial(0, 2 << 40 | 7);
    bind(&mut w, &third, 7);
    assert_ne!(third.request.peer, a.client_peer);

    let (id, control) = (w.ep(0).id(), 7);
    assert_eq!(w.ep(1).disconnected(remote, id, control), None, "the second session uses it");
    assert!(w.ep(0).established(&answer, addr(1), PathId(2)).unwrap().path_unused);
    w.sessions.push((0, second.session));
    w.call(0, second.session, 1, 10);
    assert!(w.finish(0, 1)[0].result.is_ok());
    // Refused: only the second session, which has its peer, remains.
    w.ep(0).refused(third.session.index(), SessionEnd::Unanswered);
    assert_eq!(w.ep(0).poll_unused_path(), None);
    assert_eq!(w.ep(0).close(second.session).unwrap().1, Some(PathId(1)));
}

/// A peer that was kept for a failed connect is removed with it, and its path is released.
#[test]
fn a_peer_kept_for_a_connect_is_removed_with_it() {
    let mut w = World::pair(config());
    let first = w.dial(0, 5);
    bind(&mut w, &first, 7);
    let a = w.accept(1, 0, &first.request).unwrap();
    w.ep(0).established(&a, addr(1), PathId(1)).unwrap();
    let [second, elsewhere] = [(1, 7), (2, 8)].map(|(n, control)| {
        let d = w.dial(0, n << 40 | 6);
        bind(&mut w, &d, control);
        d
    });
    assert_eq!(w.ep(0).close(first.session).unwrap().1, None);
    w.ep(0).refused(elsewhere.session.index(), SessionEnd::Unanswered);
    assert_eq!(w.ep(0).poll_unused_path(), None);
    w.ep(0).refused(second.session.index(), SessionEnd::Unanswered);
    assert_eq!(w.ep(0).poll_unused_path(), Some(PathId(1)));
    assert_eq!(w.ep(0).poll_unused_path(), None);
    assert!(!w.ep(0).knows_endpoint(a.endpoint_id));
    let next = w.dial(0, 9);
    assert_eq!(w.ep(0).close(next.session), None);
}
