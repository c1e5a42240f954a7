//! Lifetime of sessions and their memory: idle sessions, draining sessions, quotas, shutdown.

use courser_proto::wire::{FRAME_HEADER, PACKET_HEADER};
use courser_proto::{
    CallError, Config, ConnectRefuseReason, ConnectRequest, Executed, SessionState, Status,
};

use crate::support::{Action, DPP, World, config, pattern};

/// An idle session's time, long after its last acknowledgement was due.
const IDLE_NS: u64 = 5_000_000;

fn pair() -> World {
    World::pair(Config { idle_after_ns: IDLE_NS, ..config() })
}

/// A message whose buffer has exactly its length: a size class of the arena.
const BIG: usize = 96 << 10;

/// Delivers the messages of the control connection.
fn notify_idle(w: &mut World) -> usize {
    let mut n = 0;
    while let Some(idle) = w.ep(0).poll_idle() {
        w.ep(1).on_idle(idle.remote, 0xe0, 7, &idle.done);
        n += 1;
    }
    n
}

#[test]
fn a_session_is_small_until_it_is_used_and_once_it_is_idle() {
    // ADR 6, E18
    let mut w = pair();
    let sizes = courser_proto::Endpoint::<u64>::session_bytes(8);
    let s = w.connect(0, 1);
    assert_eq!((w.ep(0).memory().slots_bytes, w.ep(1).memory().slots_bytes), (32, 32));
    for round in 0..3u16 {
        for id in 0..8 {
            w.call(0, s, round * 8 + id, 2 * DPP);
        }
        w.finish(0, 8);
        let m = w.ep(1).memory();
        assert_eq!(m.slots_bytes, 16 << 10, "the first block of slots");
        assert!(m.slots_bytes >= sizes.server - sizes.idle, "{sizes:?}");
        assert!(m.held_bytes >= 8 * 2 * DPP, "unacknowledged responses: {m:?}");
        w.settle();
        assert_eq!(notify_idle(&mut w), 1);
        let (client, server) = (w.ep(0).memory(), w.ep(1).memory());
        assert_eq!((client.slots_bytes, server.slots_bytes), (32, 32));
        assert_eq!((server.prealloc_bytes, server.held_bytes), (0, 0));
        assert_eq!(w.nodes[1].arena.stats().in_use_buffers, 1, "the transmit stage's own");
    }
    assert_eq!(w.nodes[1].executed.len(), 24);
    let session = w.nodes[1].requests[0].session();
    assert_eq!(w.ep(1).session_state(session), SessionState::Connected);
}

#[test]
fn an_idle_report_replaces_a_lost_acknowledgement() {
    // ADR 6
    let mut w = pair();
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|_, _| Action::ReplyMsg(pattern(3, 100_000)));
    w.call(0, s, 1, 10);
    w.finish(0, 1);
    // Acknowledgements have frames of their own here.
    w.filter =
        Some(Box::new(|from, bytes| from != 0 || bytes.len() != FRAME_HEADER + PACKET_HEADER));
    w.settle();
    assert!(w.ep(1).memory().held_bytes >= 100_000, "the acknowledgement was lost");
    assert_eq!(notify_idle(&mut w), 1);
    assert_eq!(w.ep(1).memory().held_bytes, 0);
}

#[test]
fn a_late_idle_report_affects_no_later_request() {
    let mut w = pair();
    let s = w.connect(0, 1);
    w.call(0, s, 1, 10);
    w.finish(0, 1);
    w.settle();
    let late = w.ep(0).poll_idle().expect("idle");
    // The next request overtakes the message; its response is not complete yet.
    w.nodes[1].handler = Box::new(|_, _| Action::ReplyMsg(pattern(3, 50 * DPP)));
    w.call(0, s, 2, 10);
    for _ in 0..6 {
        w.step();
    }
    w.ep(1).on_idle(late.remote, 0xe0, 7, &late.done);
    assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(3, 50 * DPP)));
    assert_eq!(w.nodes[1].executed[&2], 1);
}

#[test]
fn idle_reports_are_accepted_only_from_the_sessions_connection() {
    let mut w = pair();
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|_, _| Action::ReplyMsg(pattern(3, 50 * DPP)));
    w.call(0, s, 1, 10);
    w.finish(0, 1);
    let held = w.ep(1).memory().held_bytes;
    assert!(held > 0);
    let done: Vec<u32> = (0..8).collect();
    w.ep(1).on_idle(0, 0xe0, 8, &done);
    w.ep(1).on_idle(0, 0xbad, 7, &done);
    w.ep(1).on_idle(0, 0xe0, 7, &done[..7]);
    w.ep(1).on_idle(99, 0xe0, 7, &done);
    assert_eq!(w.ep(1).memory().held_bytes, held);
    w.ep(1).on_idle(0, 0xe0, 7, &done);
    assert_eq!(w.ep(1).memory().held_bytes, 0);
}

#[test]
fn only_the_connection_of_a_session_can_end_it() {
    let mut w = pair();
    let (_, accept) = w.try_connect(0, 1, 9).unwrap();
    let session = accept.session;
    assert!(w.ep(1).disconnected(session, 0xe0, 8).is_none(), "another connection");
    let mut paths = Vec::new();
    w.ep(1).peer_lost(8, &mut paths);
    w.ep(1).endpoint_lost(0xe0, 8, &mut paths);
    assert_eq!(w.ep(1).live_sessions(), 1);
    w.ep(1).endpoint_lost(0xe0, 7, &mut paths);
    assert_eq!((w.ep(1).live_sessions(), paths.len()), (0, 1));
}

#[test]
fn a_lost_clients_session_counts_until_its_handlers_have_answered() {
    // E68: without blocking; and reconnecting does not circumvent the limit.
    let server = Config { max_sessions: 2, ..config() };
    let mut w = World::new(&[config(), server], 1);
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|_, _| Action::Forget);
    for id in 0..3 {
        w.call(0, s, id, 3 * DPP);
    }
    w.run_until(1_000_000);
    assert_eq!(w.nodes[1].requests.len(), 3);
    w.ep(1).peer_lost(7, &mut Vec::new());
    assert_eq!((w.ep(1).live_sessions(), w.ep(1).executing()), (1, 3));
    assert_eq!(w.ep(1).memory().held_bytes, 0, "buffers go at once");
    assert_eq!(w.ep(1).sessions_from(0).next(), None, "no peer can use it");

    w.connect(0, 1);
    let refused = w.try_connect(0, 1, 9).unwrap_err();
    assert_eq!(refused, ConnectRefuseReason::TooManySessions { limit: 2 });
    let requests = w.nodes[1].requests.clone();
    for (i, &id) in requests.iter().enumerate() {
        assert_eq!(w.ep(1).live_sessions(), 2, "after {i} answers");
        // Twice: the second reply to one request must not count for another.
        assert!(w.ep(1).reply_bytes(id, b"late").is_err());
        assert!(w.ep(1).reply_bytes(id, b"later").is_err());
        w.ep(1).check();
    }
    assert_eq!((w.ep(1).live_sessions(), w.ep(1).executing()), (1, 0));
    w.connect(0, 1);
}

#[test]
fn one_process_stays_within_its_quota_of_sessions() {
    let server = Config { max_sessions_per_peer: 3, ..config() };
    let mut w = World::new(&[config(), server], 1);
    let sessions: Vec<_> = (0..3).map(|_| w.connect(0, 1)).collect();
    let refused = w.try_connect(0, 1, 9).unwrap_err();
    assert_eq!(refused, ConnectRefuseReason::TooManyOfPeer { limit: 3 });
    let (remote, _) = w.ep(0).close(sessions[0]).unwrap();
    w.ep(1).disconnected(remote, 0xe0, 7);
    w.connect(0, 1);
}

#[test]
fn the_servers_slots_and_credits_bound_the_clients() {
    let (many, few) = (Config { slots: 32, credits: 64, ..config() }, 4);
    let server = Config { slots: few, credits: 16, ..config() };
    let mut w = World::new(&[many, server], 1);
    let (s, accept) = w.try_connect(0, 1, 0xffff_ffff_0000_0001).unwrap();
    assert_eq!((accept.slots, accept.credits), (4, 16));
    let stats = w.ep(0).session_stats(s).unwrap();
    assert_eq!((stats.slots, stats.credit_limit), (4, 16));
    for id in 0..50 {
        w.call(0, s, id, 100);
    }
    assert!(w.finish(0, 50).iter().all(|d| d.result == Ok(pattern(d.id, 100))));
}

#[test]
fn unfinished_messages_stay_within_the_quota_of_bytes() {
    let big = BIG;
    let server = Config { max_held_per_peer: 3 * big, ..config() };
    let mut w = World::new(&[config(), server], 1);
    let s = w.connect(0, 1);
    // Every packet but the first of each message is lost.
    let first = |packets: &[u8]| packets[12..14] == [0, 0];
    w.filter = Some(Box::new(move |from, bytes| from == 1 || first(&bytes[FRAME_HEADER..])));
    for id in 0..8 {
        w.call(0, s, id, big);
    }
    w.run_until(2_000_000);
    let held = w.ep(1).memory().held_bytes;
    assert!((3 * big..4 * big).contains(&held), "{held}");
    // The others were refused, and are made again.
    assert!(w.ep(0).stats().held_back >= 5 && w.take_done(0).is_empty());
    // After the arrival of the first ones there is room again.
    w.filter = None;
    for d in w.finish(0, 8) {
        assert_eq!(d.result, Ok(pattern(d.id, big)));
    }
    assert!(w.nodes[1].executed.values().all(|&times| times == 1));
}

#[test]
fn unacknowledged_responses_stay_within_the_quota_of_bytes() {
    let big = BIG;
    let server = Config { max_held_per_peer: 2 * big, ..config() };
    let mut w = World::new(&[config(), server], 1);
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(move |_, _| Action::ReplyMsg(pattern(3, big)));
    // The response never arrives, so it is never acknowledged.
    w.filter = Some(Box::new(|from, _| from == 0));
    for id in 0..4 {
        w.call(0, s, id, 10);
    }
    w.run_until(500_000);
    assert_eq!(w.nodes[1].executed.len(), 2, "the share is full then");
    w.call(0, s, 5, 3 * DPP);
    w.run_until(1_000_000);
    w.filter = None;
    for d in w.finish(0, 5) {
        match d.id {
            // One of several packets is made again, after the acknowledgement.
            0 | 1 | 5 => assert_eq!(d.result, Ok(pattern(3, big))),
            _ => assert_eq!(d.result, Err(CallError::Server(Status::NoMemory))),
        }
    }
    // After the acknowledgement there is room again.
    w.settle();
    w.call(0, s, 6, 10);
    assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(3, big)));
}

#[test]
fn shutdown_finishes_work_in_progress_and_rejects_new_work() {
    let mut w = pair();
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|_, _| Action::Defer(1_000_000, pattern(9, 5 * DPP)));
    w.call(0, s, 1, 10);
    w.run_until(500_000);
    assert!(!w.ep(1).is_drained());
    w.ep(1).shut_down();
    assert_eq!(w.try_connect(0, 1, 9).unwrap_err(), ConnectRefuseReason::ShuttingDown);
    for (id, len) in [(2, 10), (3, 5 * DPP)] {
        w.call(0, s, id, len);
    }
    let mut done = w.finish(0, 3);
    done.sort_by_key(|d| d.id);
    assert_eq!(done[0].result, Ok(pattern(9, 5 * DPP)));
    for d in &done[1..] {
        let Err(e) = d.result else { panic!("{d:?}") };
        assert_eq!((e, e.executed()), (CallError::Server(Status::ShuttingDown), Executed::Never));
    }
    assert_eq!(w.nodes[1].executed.len(), 1);
    w.settle();
    assert!(w.ep(1).is_drained(), "acknowledged");
}

#[test]
fn at_the_end_of_the_grace_each_request_is_answered() {
    let mut w = pair();
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|_, _| Action::Forget);
    w.call(0, s, 1, 10);
    w.run_to(500_000);
    // Without credit returns this request arrives in part.
    w.filter = Some(Box::new(|from, _| from == 0));
    w.call(0, s, 2, 200 * DPP);
    w.run_to(700_000);
    assert_eq!(w.ep(1).executing(), 2);
    w.ep(1).shut_down();
    w.ep(1).end_unanswered();
    assert_eq!((w.ep(1).executing(), w.ep(1).unacknowledged()), (0, 2));
    w.filter = None;
    let mut done = w.finish(0, 2);
    done.sort_by_key(|d| d.id);
    for (d, status) in done.iter().zip([Status::GraceEnded, Status::ShuttingDown]) {
        assert_eq!(d.result, Err(CallError::Server(status)));
    }
    let verdicts: Vec<_> = done.iter().map(|d| d.result.clone().unwrap_err().executed()).collect();
    assert_eq!(verdicts, [Executed::Maybe, Executed::Never]);
    w.settle();
    assert_eq!(w.nodes[1].executed.len(), 1);
    assert!(w.ep(1).is_drained());
}

#[test]
fn a_slot_whose_packets_never_pass_ends_its_session() {
    // ADR 13: the path's MTU has shrunk: small packets pass, large ones do not.
    let mut w = pair();
    let s = w.connect(0, 1);
    w.filter = Some(Box::new(|_, bytes| bytes.len() < 1_000));
    w.call(0, s, 1, 5 * DPP);
    let mut small = 2;
    while w.nodes[0].done.iter().all(|d| d.id != 1) {
        if w.ep(0).outstanding_calls() < 2 && w.ep(0).session_state(s) == SessionState::Connected {
            w.call(0, s, small, 10);
            small += 1;
        }
        w.step();
    }
    let done = w.take_done(0);
    let large = done.iter().find(|d| d.id == 1).unwrap();
    assert_eq!(large.result, Err(CallError::DatapathSilent(Executed::Maybe)));
    assert!(done.iter().filter(|d| d.result.is_ok()).count() > 10);
    let stuck_ns = 2 * config().datapath_timeout_ns;
    assert!((stuck_ns..2 * stuck_ns).contains(&w.now_ns), "{}", w.now_ns);
    assert_eq!(w.ep(0).poll_failed(), Some(s));
}

#[test]
fn requests_with_their_handlers_count_against_the_quota() {
    let big = BIG;
    let server = Config { max_held_per_peer: 2 * big + 2 * DPP, ..config() };
    let mut w = World::new(&[config(), server], 1);
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(move |id, _| match id {
        0 | 1 => Action::Defer(5_000_000, vec![1]),
        _ => Action::Reply(vec![2]),
    });
    for id in 0..2 {
        w.call(0, s, id, big);
    }
    w.run_until(2_000_000);
    assert_eq!(w.nodes[1].executed.len(), 2);
    w.call(0, s, 2, 3 * DPP);
    w.call(0, s, 3, DPP);
    let done = w.finish(0, 1);
    assert_eq!((done[0].id, &done[0].result), (3, &Ok(vec![2])), "small ones are not counted");
    assert!(w.ep(0).stats().held_back > 0 && !w.nodes[1].executed.contains_key(&2));
    assert!(w.finish(0, 3).iter().all(|d| d.result.is_ok()));
    w.settle();
    w.call(0, s, 4, 2 * big);
    assert_eq!(w.finish(0, 1)[0].result, Ok(vec![2]), "all is free again");
}

#[test]
fn a_lost_endpoint_does_not_end_connecting_sessions() {
    // The server endpoint of such a session is unknown before the handshake.
    let mut w = pair();
    let dialed = w.dial(0, 1);
    let request = ConnectRequest { endpoint_id: 0, ..w.dial(1, 2).request };
    w.accept(0, 1, &request).unwrap();
    let mut paths = Vec::new();
    w.ep(0).endpoint_lost(0, 7, &mut paths);
    assert_eq!(paths.len(), 1, "the endpoint of that number is gone");
    assert_eq!(w.ep(0).session_state(dialed.session), SessionState::Connecting);
    w.ep(0).peer_lost(7, &mut paths);
    assert_eq!(w.ep(0).session_state(dialed.session), SessionState::Gone);
}

#[test]
fn a_quota_full_of_short_responses_is_released() {
    // The quota is two packet buffers; the client is always busy, so it never acknowledges.
    let server = Config { max_held_per_peer: 2 * DPP, ..config() };
    let mut w = World::new(&[config(), server], 1);
    let s = w.connect(0, 1);
    let (mut answered, mut refused) = (Vec::new(), 0);
    for id in 0..400 {
        w.call(0, s, id, 50); // an answer of up to 40 bytes needs no buffer
        while w.ep(0).outstanding_calls() >= 8 {
            w.step();
        }
        for d in w.take_done(0) {
            match d.result {
                Ok(_) => answered.push(d.id),
                Err(e) => {
                    assert_eq!(e, CallError::Server(Status::NoMemory));
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 50 && answered.len() > 50, "{refused} {}", answered.len());
    assert!(answered.last() > Some(&350), "to the end: {answered:?}");
}

#[test]
fn an_answer_of_up_to_40_bytes_is_kept_without_a_buffer_and_sent_again() {
    for (len, has_buffers) in [(0, false), (1, false), (40, false), (41, true)] {
        let mut w = World::new(&[config(), config()], 3);
        w.link.loss = 100_000;
        let s = w.connect(0, 1);
        let empty = w.nodes[1].arena.stats().in_use_bytes;
        for id in 0..200 {
            w.call(0, s, id, len);
        }
        let done = w.finish(0, 200);
        assert!(done.iter().all(|d| d.result == Ok(pattern(d.id, len))), "{len}");
        assert!((0..200).all(|id| w.nodes[1].executed[&id] == 1), "{len}");
        assert!(w.ep(1).stats().responses_resent > 0, "an answer was lost");
        let memory = w.ep(1).memory();
        assert_eq!(memory.prealloc_bytes > 0, has_buffers, "{len}");
        let used = w.nodes[1].arena.stats().in_use_bytes > empty;
        assert_eq!(used, has_buffers, "{len}");
    }
}
