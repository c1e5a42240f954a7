//! Failures of peers and paths: the error, its statement about execution, and the remaining state.

use courser_proto::{
    CallError, Config, Executed, RejectReason, SessionEnd, SessionId, SessionState, Status,
};

use crate::support::{Action, DPP, World, config};

fn errors(w: &mut World, node: usize) -> Vec<(u64, CallError)> {
    w.nodes[node].collect();
    let mut all: Vec<_> =
        w.take_done(node).into_iter().map(|d| (d.id, d.result.expect_err("failed"))).collect();
    all.sort_by_key(|e| e.0);
    all
}

/// A session with calls in every state: 0 half answered, 1 sent, 2 half sent, 3 to 5 waiting.
fn stages() -> (World, SessionId) {
    let mut w = World::pair(Config { slots: 4, credits: 4, ..config() });
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|id, _| match id {
        0 => Action::Reply(vec![0; 100 * DPP]),
        _ => Action::Forget,
    });
    w.call(0, s, 0, 10);
    for _ in 0..6 {
        w.step();
    }
    w.filter = Some(Box::new(|_, _| false));
    w.settle_until_idle_link();
    w.call(0, s, 1, 10);
    w.call(0, s, 2, 40 * DPP);
    for id in 3..6 {
        w.call(0, s, id, 10);
    }
    // A timeout reclaims the credits, so that the others get theirs.
    let t = w.now_ns + 1_000_000;
    w.run_until(t);
    (w, s)
}

#[test]
fn a_lost_peer_fails_each_call_with_its_execution_state() {
    // E27
    let (mut w, s) = stages();
    let mut paths = Vec::new();
    w.ep(0).peer_lost(6, &mut paths);
    assert_eq!(w.ep(0).session_state(s), SessionState::Connected, "another connection");
    w.ep(0).peer_lost(7, &mut paths);
    assert_eq!(paths.len(), 1);
    assert_eq!(w.ep(0).session_state(s), SessionState::Gone);
    let errors = errors(&mut w, 0);
    assert_eq!(errors.len(), 6);
    let executed: Vec<Executed> = errors.iter().map(|e| e.1.executed()).collect();
    assert!(errors.iter().all(|e| matches!(e.1, CallError::PeerFailed(_))));
    assert_eq!(executed[0], Executed::Yes);
    assert_eq!(executed[2], Executed::Never, "a part of a request runs no handler");
    assert_eq!(executed[4..], [Executed::Never; 2], "these never had a slot");
    assert_eq!(w.ep(0).live_sessions(), 0);
    w.ep(1).peer_lost(7, &mut paths);
    w.settle();
    assert!(w.nodes.iter().all(|n| n.ep.next_deadline().is_none()));
}

#[test]
fn sent_requests_may_have_executed() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|_, _| Action::Forget);
    w.call(0, s, 0, 10);
    w.call(0, s, 1, 3 * DPP);
    w.step();
    w.ep(0).peer_lost(7, &mut Vec::new());
    let got = errors(&mut w, 0);
    assert!(got.iter().all(|e| e.1 == CallError::PeerFailed(Executed::Maybe)), "{got:?}");
}

#[test]
fn buffers_return_after_the_transport_releases_them() {
    // E27
    let mut w = World::pair(config());
    w.link.hold = true;
    let s = w.connect(0, 1);
    w.call(0, s, 0, 3 * DPP);
    w.pump();
    w.ep(0).peer_lost(7, &mut Vec::new());
    assert!(w.ep(0).needs_flush() && w.ep(0).poll_completion().is_none());
    assert_eq!(errors(&mut w, 0).len(), 1); // `support` checks that the buffer is not shared
}

#[test]
fn a_silent_datapath_is_named_and_ends_all_sessions_of_the_peer() {
    // ADR 13
    let mut w = World::new(&[config(), config(), config()], 1);
    let busy = w.connect(0, 1);
    let idle = w.connect(0, 1);
    let other = w.connect(0, 2);
    w.filter = Some(Box::new(|from, _| from == 0)); // no packet of the server arrives
    w.call(0, busy, 0, 10);
    w.call(0, busy, 1, 100 * DPP);
    let start = w.now_ns;
    let done = w.finish(0, 2);
    let waited = w.now_ns - start;
    let limit = config().datapath_timeout_ns;
    assert!((limit..limit + 2 * config().rto_max_ns).contains(&waited), "{waited}");
    for d in &done {
        let executed = if d.id == 0 { Executed::Maybe } else { Executed::Never };
        assert_eq!(d.result, Err(CallError::DatapathSilent(executed)));
    }
    assert_eq!(w.ep(0).poll_failed(), Some(busy));
    assert_eq!(w.ep(0).poll_failed(), Some(idle));
    assert_eq!(w.ep(0).poll_failed(), None);
    assert_eq!(w.ep(0).session_state(idle), SessionState::Gone);
    assert_eq!(w.try_call(0, busy, 9, 10), Err(RejectReason::NoSession(SessionEnd::Unknown)));
    // Their entries are freed by `close`, which also names the server to inform.
    assert!(matches!(w.ep(0).close(busy), Some((remote, None)) if remote.number == 0));
    assert!(matches!(w.ep(0).close(idle), Some((remote, Some(_))) if remote.number == 1));
    assert_eq!(w.ep(0).close(idle), None);
    assert_eq!(w.ep(0).live_sessions(), 1);
    w.filter = None;
    w.call(0, other, 5, 10);
    assert!(w.finish(0, 1)[0].result.is_ok());
    w.settle();
    assert_eq!(w.ep(0).next_deadline(), None);
}

/// Steps until the endpoint has sent packets again, for lack of an answer.
fn until_retransmission(w: &mut World, node: usize) {
    let before = w.ep(node).stats().tx_packets;
    while w.ep(node).stats().tx_packets < before + 3 {
        assert!(w.step());
    }
}

#[test]
fn a_pause_of_this_endpoint_is_not_held_against_its_peer() {
    let limit = config().datapath_timeout_ns;
    for one_way in [false, true] {
        let mut w = World::pair(config());
        let s = w.connect(0, 1);
        w.filter = Some(Box::new(|from, _| from == 0));
        if one_way {
            w.send_message(0, s, 0, 10, None).unwrap();
        } else {
            w.call(0, s, 0, 10);
        }
        until_retransmission(&mut w, 0);
        // It is stopped, and what it had sent is lost.
        w.now_ns += 2 * limit;
        w.filter = None;
        let end = w.now_ns + limit;
        while w.now_ns < end && w.step() {}
        assert_eq!(w.ep(0).poll_failed(), None, "one-way: {one_way}");
        if !one_way {
            assert!(w.finish(0, 1)[0].result.is_ok());
        }
    }
}

#[test]
fn a_dead_datapath_is_found_after_a_pause_of_this_endpoint() {
    let limit = config().datapath_timeout_ns;
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    w.filter = Some(Box::new(|from, _| from == 0));
    w.call(0, s, 0, 10);
    until_retransmission(&mut w, 0);
    w.now_ns += 20 * limit;
    let start = w.now_ns;
    assert_eq!(w.finish(0, 1)[0].result, Err(CallError::DatapathSilent(Executed::Maybe)));
    let waited = w.now_ns - start;
    assert!((limit..limit + 2 * config().rto_max_ns).contains(&waited), "{waited}");
}

#[test]
fn a_closed_session_ends_its_calls_and_its_id_becomes_stale() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    w.call(0, s, 0, 10);
    let (remote, _) = w.ep(0).close(s).unwrap();
    w.ep(1).disconnected(remote, 0xe0, 7);
    assert_eq!(errors(&mut w, 0), [(0, CallError::Closed(Executed::Never))]);
    let t = w.connect(0, 1);
    assert_eq!(s.index(), t.index());
    assert_eq!(w.try_call(0, s, 1, 10), Err(RejectReason::NoSession(SessionEnd::Unknown)));
    assert_eq!((w.ep(0).close(s), w.ep(0).session_stats(s)), (None, None));
    w.call(0, t, 2, 10);
    assert!(w.finish(0, 1)[0].result.is_ok());
}

#[test]
fn timers_of_an_ended_session_do_not_touch_its_successor() {
    let mut w = World::pair(config());
    for id in 0..5_000 {
        let s = w.connect(0, 1);
        w.call(0, s, id, 10);
        w.finish(0, 1);
        let (remote, _) = w.ep(0).close(s).unwrap();
        w.ep(1).disconnected(remote, 0xe0, 7);
    }
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|_, _| Action::Defer(120_000, vec![]));
    w.call(0, s, 5_000, 10);
    let t = w.now_ns + 60_000;
    w.run_until(t);
    // They stay until they are due, in limited number: 5,000 would be 160,000 bytes.
    let bytes = w.ep(0).memory().timers_bytes;
    assert!(bytes <= 80 << 10, "timers of sessions that are gone: {bytes} bytes");
    w.finish(0, 1);
    assert!(w.ep(0).stats().rollbacks <= 2);
    w.settle();
    assert_eq!(w.ep(0).next_deadline(), None);
}

#[test]
fn a_reply_after_the_end_of_the_session_is_rejected() {
    // E68
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|_, _| Action::Forget);
    w.call(0, s, 0, 10);
    w.step();
    let id = w.nodes[1].requests[0];
    assert!(w.ep(1).is_answerable(id));
    let (remote, _) = w.ep(0).close(s).unwrap();
    w.ep(1).disconnected(remote, 0xe0, 7);
    assert!(!w.ep(1).is_answerable(id));
    assert_eq!(w.ep(1).reply_bytes(id, b"late"), Err(courser_proto::ReplyError::Gone));
    w.connect(0, 1); // reuses the number
    w.ep(1).reply_status(id, Status::NoReply);
    assert_eq!(w.ep(1).next_deadline(), None);
}

#[test]
fn a_second_reply_is_rejected() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|_, _| Action::Forget);
    w.call(0, s, 0, 10);
    w.step();
    let id = w.nodes[1].requests[0];
    w.ep(1).reply_bytes(id, b"first").unwrap();
    assert_eq!(w.ep(1).reply_bytes(id, b"second"), Err(courser_proto::ReplyError::Gone));
    assert_eq!(w.finish(0, 1)[0].result, Ok(b"first".to_vec()));
}

#[test]
fn statuses_reach_the_caller() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|_, _| Action::Status(Status::UnknownType));
    w.call(0, s, 0, 10);
    w.call(0, s, 1, 5 * DPP);
    for d in w.finish(0, 2) {
        assert_eq!(d.result, Err(CallError::Server(Status::UnknownType)));
    }
}
