//! Deadlines (ADR 15): at the client, at the server, in transit, and under overload.

use courser_proto::{CallError, Config, Executed, RxDrop, Status, serve_newest};

use crate::faults::{quiet, seeds, some_config, some_link};
use crate::support::{Action, DPP, Link, Rng, World, config, pattern};

const MS: u64 = 1_000_000;

/// A world with unsynchronised clocks, whose server has samples of the transit time.
fn warm(w: &mut World, s: courser_proto::SessionId) {
    for id in 60_000..60_003 {
        w.call(0, s, id, 10);
        w.finish(0, 1);
    }
}

#[test]
fn a_call_without_an_answer_ends_at_its_deadline() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    warm(&mut w, s);
    w.nodes[1].started.clear();
    w.nodes[1].requests.clear();
    w.nodes[1].handler = Box::new(|_, _| Action::Forget);
    for (id, len) in [(1, 10), (2, 4 * DPP)] {
        let start = w.now_ns;
        w.call_within(0, s, id, len, 3 * MS);
        let done = w.finish(0, 1);
        assert_eq!(done[0].result, Err(CallError::DeadlineExceeded(Executed::Maybe)));
        assert_eq!(w.now_ns, start + 3 * MS);
    }
    assert_eq!(w.ep(0).session_stats(s).unwrap().quarantined, 2);
    assert_eq!(w.ep(0).stats().expired, 2);
    let given: Vec<_> = w.nodes[1].started.iter().map(|s| s.2.unwrap()).collect();
    assert!(given[0] <= w.nodes[0].deadlines[&1] && given[0] + 5_000 > w.nodes[0].deadlines[&1]);
    for id in w.nodes[1].requests.clone() {
        w.ep(1).reply_bytes(id, b"late").unwrap();
    }
    w.settle();
    assert_eq!(w.ep(0).session_stats(s).unwrap().quarantined, 0);
}

#[test]
fn a_deadline_does_not_affect_a_call_answered_in_time() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    for id in 0..50 {
        w.call_within(0, s, id, 2_000 * usize::from(id % 3), MS);
        assert!(w.finish(0, 1)[0].result.is_ok());
    }
    w.settle();
    let all = w.ep(0).stats();
    assert_eq!((all.responses, all.errors, all.rollbacks, all.tx_kinds[5]), (50, 0, 0, 0));
    assert!(w.nodes[1].started.iter().all(|s| s.2.is_some()));
}

#[test]
fn a_deadline_too_far_ahead_applies_at_the_client_only() {
    let mut w = World::pair(Config { datapath_timeout_ns: u64::MAX / 2, ..config() });
    let s = w.connect(0, 1);
    w.call_within(0, s, 1, 10, 134_000 * MS);
    w.call_within(0, s, 2, 10, 135_000 * MS);
    w.finish(0, 2);
    let told: Vec<bool> = w.nodes[1].started.iter().map(|s| s.2.is_some()).collect();
    assert_eq!(told, [true, false]);
    w.nodes[1].handler = Box::new(|_, _| Action::Forget);
    let start = w.now_ns;
    w.call_within(0, s, 3, 10, 135_000 * MS);
    let done = w.finish(0, 1);
    assert_eq!(done[0].result, Err(CallError::DeadlineExceeded(Executed::Maybe)));
    assert_eq!(w.now_ns, start + 135_000 * MS);
}

#[test]
fn calls_expire_while_they_wait() {
    let mut w = World::pair(Config { slots: 1, ..config() });
    // Before the session exists.
    let d = w.dial(0, 77);
    w.call_within(0, d.session, 1, 10, MS);
    w.call_within(0, d.session, 2, 10, 50 * MS);
    let start = w.now_ns;
    let done = w.finish(0, 1);
    assert_eq!((done[0].id, w.now_ns), (1, start + MS));
    assert_eq!(done[0].result, Err(CallError::DeadlineExceeded(Executed::Never)));
    let a = w.accept(1, 0, &d.request).unwrap();
    let path = courser_buf::PathId(1);
    w.ep(0).established(&a, crate::support::addr(1), path).unwrap();
    assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(2, 10)));
    // Behind a slow one, in any order of deadlines; the others keep theirs.
    w.nodes[1].handler = Box::new(|_, req| Action::Defer(20 * MS, req.to_vec()));
    w.call(0, d.session, 3, 10);
    for (id, ms) in [(4, 9), (5, 3), (6, 7), (7, 1), (8, 90)] {
        w.call_within(0, d.session, id, 10, ms * MS);
    }
    let done = w.finish(0, 6);
    let order: Vec<u64> = done.iter().map(|d| d.id).collect();
    assert_eq!(order, [7, 5, 6, 4, 3, 8]);
    assert!(done[4].result.is_ok() && done[5].result.is_ok());
    assert!((4..8).all(|id| !w.nodes[1].executed.contains_key(&id)));
    w.settle();
    assert_eq!(w.ep(0).next_deadline(), None, "the queue's timer is off");
}

#[test]
fn a_deadline_in_the_past_ends_the_call_at_once() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    warm(&mut w, s);
    w.tracing = true;
    let call = w.call_within(0, s, 1, 10, 0);
    assert!(!w.ep(0).cancel(call), "it has ended");
    let done = w.finish(0, 1);
    assert_eq!(done[0].result, Err(CallError::DeadlineExceeded(Executed::Never)));
    assert!(!w.story().iter().any(|p| p.contains("REQ")));
}

#[test]
fn a_server_does_not_start_expired_requests() {
    let mut w = World::pair(config());
    let (_, f) = w.connect_forge(0, 1);
    w.link.loss = 1_000_000;
    w.tracing = true;
    w.inject(0, 1, &f.request_due(0, 0, b"none left"));
    w.inject(0, 1, &f.request_due(8, 1_000, b"enough"));
    assert_eq!(w.story(), ["1: ERR 0=9", "1: RESP 8#0/6"]);
    let all = w.ep(1).stats();
    assert_eq!((all.requests, all.requests_expired), (1, 1));
    // A duplicate with other contents is answered without another check.
    let again = f.request_due(0, 1_000, b"none left");
    crate::support::expect_drop(&mut w, 1, &again, RxDrop::Stale);
}

#[test]
fn a_deadline_rejection_ends_a_call_that_still_waits() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|id, _| {
        let both = [Status::DeadlineExceeded, Status::Cancelled];
        Action::Status(both[usize::from(id)])
    });
    w.call(0, s, 0, 10);
    w.call(0, s, 1, 10);
    let done = w.finish(0, 2);
    assert_eq!(done[0].result, Err(CallError::DeadlineExceeded(Executed::Never)));
    assert_eq!(done[1].result, Err(CallError::Cancelled(Executed::Never)));
    assert_eq!((w.ep(0).stats().expired, w.ep(0).stats().cancelled), (1, 1));
    assert_eq!((w.ep(1).stats().requests_expired, w.ep(1).stats().requests_cancelled), (1, 1));
}

#[test]
fn a_request_delayed_in_transit_arrives_expired() {
    // As in the socket buffer of a stopped server; of one packet and of several.
    for (id, len) in [(1u16, 10), (2, 5 * DPP)] {
        for skew in [0, 3_000_000_000, 1 << 40] {
            let patient = Config { datapath_timeout_ns: 5_000 * MS, credits: 8, ..config() };
            let mut w = World::pair(patient);
            w.nodes[1].clock_ns = skew;
            let s = w.connect(0, 1);
            warm(&mut w, s);
            w.link.latency_ns = 900 * MS;
            w.call_within(0, s, id, len, 500 * MS);
            assert!(w.finish(0, 1)[0].result.is_err());
            w.run_until(w.now_ns + 500 * MS);
            w.link.latency_ns = 1_000;
            w.settle();
            assert_eq!(w.nodes[1].executed.get(&id), None);
            assert!(w.ep(1).stats().requests_expired > 0);
            assert_eq!(w.ep(0).session_stats(s).unwrap().quarantined, 0);
            // The next one is not affected.
            w.call_within(0, s, id + 10, len, MS);
            assert!(w.finish(0, 1)[0].result.is_ok());
        }
    }
}

#[test]
fn replayed_frames_do_not_make_the_timeout_long() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let copy = seen.clone();
    w.filter = Some(Box::new(move |from, bytes| {
        copy.borrow_mut().push((from, bytes.to_vec()));
        true
    }));
    warm(&mut w, s);
    w.filter = None;
    let before = w.ep(0).session_stats(s).unwrap();
    w.now_ns += 1_500 * MS;
    for (from, bytes) in seen.take() {
        w.inject(from, 1 - from, &bytes);
    }
    let after = w.ep(0).session_stats(s).unwrap();
    assert_eq!((after.rto_ns, after.srtt_ns), (before.rto_ns, before.srtt_ns));
    assert!(w.nodes[1].executed.values().all(|&n| n == 1));
    w.call_within(0, s, 1, 10, MS);
    assert!(w.finish(0, 1)[0].result.is_ok());
}

/// Calls arrive twice as fast as one slot serves them; returns the number of successes, and of
/// calls.
fn overload(time_ns: u64) -> (usize, usize, World) {
    let mut w = World::pair(Config { slots: 1, ..config() });
    let s = w.connect(0, 1);
    w.nodes[1].handler = Box::new(|_, req| Action::Defer(MS, req.to_vec()));
    let start = w.now_ns;
    for id in 0..600u64 {
        w.call_within(0, s, id as u16, 10, time_ns);
        w.run_until(start + (id + 1) * MS / 2);
        w.now_ns = start + (id + 1) * MS / 2;
    }
    let elapsed = w.now_ns - start;
    w.settle();
    let done = w.take_done(0);
    assert_eq!(done.len(), 600);
    let good = done.iter().filter(|d| d.result.is_ok()).count();
    (good, (elapsed / MS) as usize, w)
}

#[test]
fn at_twice_the_load_the_capacity_is_still_served() {
    let (good, capacity, w) = overload(5 * MS);
    assert!(good * 10 >= capacity * 9, "{good} of {capacity}");
    for (id, started_ns, _) in &w.nodes[1].started {
        assert!(*started_ns < w.nodes[0].deadlines[id]);
    }
    let all = w.nodes[0].ep.stats();
    assert_eq!((all.responses + all.expired, all.calls), (600, 600));
    // The order causes it: the oldest waiting call has used most of its time.
    assert!(serve_newest(3 * MS, 5 * MS));
}

fn run(seed: u64) {
    let mut rng = Rng(seed);
    let (a, b) = (some_config(&mut rng), some_config(&mut rng));
    let mut w = World::new(&[a, b], seed);
    for n in &mut w.nodes {
        n.clock_ns = rng.next() >> rng.pick(&[8, 20, 40]);
    }
    let sessions = [(0, w.connect(0, 1)), (0, w.connect(0, 1))];
    warm(&mut w, sessions[0].1);
    w.link = some_link(&mut rng);
    let scale = 20_000;
    let mut slow = Rng(seed ^ 0x51);
    w.nodes[1].handler = Box::new(move |id, _| match slow.below(3) {
        0 => Action::Defer(slow.below(3 * MS), pattern(id.into(), slow.below(scale) as usize)),
        _ => Action::Reply(pattern(id.into(), slow.below(scale) as usize)),
    });
    let calls = 80;
    let mut open = Vec::new();
    for id in 0..calls {
        let (node, s) = rng.pick(&sessions);
        let len = rng.pick(&[0, 10, 2_000, 20_000]);
        open.push(match rng.below(3) {
            0 => w.call(node, s, id, len),
            _ => {
                let time_ns = rng.pick(&[50_000, 300_000, 2 * MS, 20 * MS]);
                w.call_within(node, s, id, len, time_ns)
            }
        });
        for _ in 0..rng.below(20) {
            w.step();
        }
        if rng.below(4) == 0 {
            let call = open.swap_remove(rng.below(open.len() as u64) as usize);
            w.ep(0).cancel(call);
            assert!(!w.ep(0).cancel(call));
        }
    }
    let mut done = w.take_done(0);
    while done.len() < usize::from(calls) {
        if w.now_ns > 200 * MS {
            w.link = Link { hold: w.link.hold, ..Link::perfect() };
        }
        assert!(w.now_ns < 20_000 * MS && w.step(), "{} of {calls} ended", done.len());
        done.extend(w.take_done(0));
    }
    w.link = Link { hold: w.link.hold, ..Link::perfect() };
    w.settle();
    for d in &done {
        let id = d.id as u16;
        let ran = w.nodes[1].executed.get(&id).copied().unwrap_or(0);
        match &d.result {
            Ok(bytes) => assert!(ran == 1 && *bytes == pattern(d.id, bytes.len())),
            Err(e) => match e.executed() {
                Executed::Never => assert_eq!(ran, 0, "call {id}: {e}"),
                Executed::Maybe => assert!(ran <= 1),
                Executed::Yes => assert_eq!(ran, 1, "call {id}: {e}"),
            },
        }
    }
    for (id, started_ns, told_ns) in &w.nodes[1].started {
        let Some(deadline_ns) = w.nodes[0].deadlines.get(id) else { continue };
        let told_ns = told_ns.unwrap_or_else(|| panic!("call {id}: the server was not told"));
        assert!(told_ns <= *deadline_ns, "call {id}: {told_ns} is later than {deadline_ns}");
        assert!(started_ns < deadline_ns, "call {id} was started at {started_ns}");
    }
    let all = w.nodes[0].ep.stats();
    let sum = all.responses + all.expired + all.cancelled;
    assert_eq!((sum, all.errors), (u64::from(calls) + 3, all.expired + all.cancelled));
    drop(done);
    quiet(&mut w, &sessions);
}

#[test]
fn deadlines_and_cancellations_through_faults() {
    seeds(300, 1, run);
}
