//! Seeded faults: loss, duplication, reordering, corruption, a transport that holds frames, slow
//! handlers. A failing seed is printed; `COURSER_SEEDS` runs more seeds.
//!
//! Checked besides the checks of [`crate::support`] at every step: a request runs at most once, and
//! exactly once when its call succeeds; every call ends once, and successfully, since no fault ends
//! a session; it gets its own response; credits in flight never exceed C; afterwards no resource is
//! in use.

use courser_proto::{
    CallError, Config, Control, Packing, Recovery, Role, RxDrop, SessionStats, Status,
};

use crate::support::node::Handler;
use crate::support::{Action, DPP, Link, Node, Rng, World, config, pattern};

/// The size of a response, known to both sides.
fn response_len(id: u16, scale: usize) -> usize {
    let mut rng = Rng(0xbeef ^ u64::from(id));
    match rng.below(4) {
        0 => rng.below(40) as usize,
        1 => rng.below(2 * DPP as u64) as usize,
        _ => rng.below(scale as u64) as usize,
    }
}

fn answer(id: u16, scale: usize) -> Vec<u8> {
    pattern(0xa000_0000 | u64::from(id), response_len(id, scale))
}

pub fn some_config(rng: &mut Rng) -> Config {
    Config {
        slots: rng.pick(&[1, 8, 32]),
        credits: rng.pick(&[1, 2, 8, 32]),
        train_frames: rng.pick(&[1, 4, 64]),
        recovery: rng.pick(&Recovery::ALL),
        inline_max: rng.pick(&[0, 512, 2048]),
        tx_frames: rng.pick(&[1, 7, 128]),
        packing: rng.pick(&Packing::ALL),
        gather_from: rng.pick(&[1, 64, 300]),
        batch_budget_ns: rng.pick(&[0, 0, 0, 1_000, 12_000]),
        ..config()
    }
}

pub fn some_link(rng: &mut Rng) -> Link {
    Link {
        loss: rng.pick(&[0, 1_000, 50_000, 200_000]),
        duplicate: rng.pick(&[0, 20_000, 200_000]),
        reorder: rng.pick(&[0, 20_000, 200_000]),
        corrupt: rng.pick(&[0, 20_000]),
        flip: 0,
        latency_ns: rng.pick(&[0, 1_000, 30_000]),
        late_ns: rng.pick(&[2_000, 200_000]),
        hold: rng.below(2) == 0,
    }
}

/// Replies at once, with a buffer of its own, or later.
fn handler(seed: u64, scale: usize) -> Handler {
    let mut rng = Rng(seed);
    Box::new(move |id, req| {
        assert!(req == pattern(id.into(), req.len()), "request {id} arrived changed");
        let bytes = answer(id, scale);
        match rng.below(4) {
            0 => Action::Defer(rng.below(1_000_000), bytes),
            1 => Action::ReplyMsg(bytes),
            _ => Action::Reply(bytes),
        }
    })
}

fn run(seed: u64, calls: u16, scale: usize) {
    let mut rng = Rng(seed);
    let (a, b) = (some_config(&mut rng), some_config(&mut rng));
    let mut w = World::new(&[a, b], seed);
    w.link = some_link(&mut rng);
    for i in 0..2 {
        w.nodes[i].handler = handler(seed + i as u64, scale);
        w.nodes[i].front = Rng(seed ^ i as u64).pick(&[usize::MAX, 48, 256, 1000]);
    }
    // Both directions at once, and a second session of the same peer.
    let first = rng.next();
    let sessions = [
        (0, w.try_connect(0, 1, first).unwrap().0),
        (0, w.try_connect(0, 1, first ^ 0x1111).unwrap().0),
        (1, w.try_connect(1, 0, rng.next()).unwrap().0),
    ];
    for id in 0..calls {
        let (node, s) = rng.pick(&sessions);
        let len = response_len(id ^ 0x5555, scale);
        w.call(node, s, id, len);
        for _ in 0..rng.below(30) {
            w.step();
        }
    }
    let mut done = Vec::new();
    while done.len() < usize::from(calls) {
        let calm = w.now_ns > 200_000_000;
        if calm {
            w.link = Link { hold: w.link.hold, ..Link::perfect() };
        }
        assert!(w.now_ns < 20_000_000_000, "calls hang: {} of {calls} ended", done.len());
        assert!(w.step(), "nothing is left to happen: {} of {calls} ended", done.len());
        done.extend(w.take_done(0));
        done.extend(w.take_done(1));
    }
    for d in &done {
        let got = d.result.as_ref().unwrap_or_else(|e| panic!("call {}: {e}", d.id));
        assert!(*got == answer(d.id as u16, scale), "call {}: a wrong response", d.id);
    }
    done.clear();
    for id in 0..calls {
        let times: u32 = w.nodes.iter().filter_map(|n| n.executed.get(&id)).sum();
        assert_eq!(times, 1, "executions of request {id}");
    }
    quiet(&mut w, &sessions);
}

/// Nothing is in flight, waiting, or in use; each server's timers are off.
pub fn quiet(w: &mut World, sessions: &[(usize, courser_proto::SessionId)]) {
    w.link = Link::perfect();
    w.settle();
    for n in &mut w.nodes {
        assert!(n.ep.is_quiet() && n.ep.next_deadline().is_none());
        assert!(n.given.is_empty() && n.done.is_empty());
        let limit = n.ep.config().credits;
        assert!(n.ep.stats().max_in_flight <= limit, "credits in flight beyond C (E33)");
    }
    for &(node, s) in sessions {
        let figures = w.nodes[node].ep.session_stats(s).unwrap();
        assert_eq!((figures.credits, figures.in_flight), (figures.credit_limit, 0));
    }
    w.nodes.iter().for_each(|n| sessions_add_up(&n.ep));
    let arenas: Vec<_> = w.nodes.iter().map(|n| n.arena.clone()).collect();
    w.nodes.iter_mut().for_each(Node::flush);
    w.nodes.clear();
    for a in arenas {
        assert_eq!(a.stats().in_use_bytes, 0, "leaked buffers");
    }
}

/// The sums of the sessions' counters equal the endpoint's counters.
fn sessions_add_up(ep: &courser_proto::Endpoint<u64>) {
    let all: Vec<_> = ep.sessions_from(0).filter_map(|s| ep.session_stats(s)).collect();
    assert_eq!(all.len(), ep.live_sessions());
    let sum = |role, of: fn(&SessionStats) -> u64| -> u64 {
        all.iter().filter(|s| s.role == role).map(of).sum()
    };
    let stats = ep.stats();
    // Calls that ended while they waited for a slot, and incomplete requests.
    let (begun, arrived) =
        (sum(Role::Client, |s| s.requests.into()), sum(Role::Server, |s| s.requests.into()));
    assert!((stats.responses..=stats.calls).contains(&begun), "{begun}");
    assert!(stats.errors > 0 || begun == stats.calls, "{begun}");
    assert!(arrived >= stats.requests, "{arrived}");
    assert_eq!(sum(Role::Client, |s| s.rollbacks), stats.rollbacks);
    assert_eq!(sum(Role::Client, |s| s.retransmitted), stats.retransmitted);
    assert_eq!(sum(Role::Server, |s| s.retransmitted), stats.responses_resent);
    let limits: u64 = all.iter().map(|s| u64::from(s.credit_limit)).sum();
    assert_eq!(limits, ep.credits_granted());
}

/// Runs seeds, and prints the one that fails.
pub fn seeds(default: u64, first: u64, run: impl Fn(u64) + std::panic::RefUnwindSafe) {
    let n = std::env::var("COURSER_SEEDS").ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    for seed in first..first + n {
        if let Err(cause) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("failed with seed {seed}");
            std::panic::resume_unwind(cause);
        }
    }
}

#[test]
fn small_and_medium_messages() {
    seeds(150, 1, |seed| run(seed, 60, 20_000));
}

#[test]
fn large_messages() {
    seeds(25, 10_000, |seed| run(seed, 15, 100_000));
}

#[test]
fn very_large_messages() {
    seeds(3, 20_000, |seed| run(seed, 4, 1 << 20));
}

#[test]
fn hundreds_of_large_messages_at_once() {
    seeds(2, 30_000, |seed| run(seed, 300, 30_000));
}

#[test]
fn corrupt_frames_fail_ingress_validation() {
    let mut w = World::pair(config());
    w.link.corrupt = 300_000;
    let s = w.connect(0, 1);
    for id in 0..200 {
        w.call(0, s, id, 100);
        assert_eq!(w.finish(0, 1)[0].result, Ok(pattern(id.into(), 100)));
    }
    let stats = w.ep(1).stats();
    let ingress = [RxDrop::Version, RxDrop::UnknownPeer, RxDrop::Cookie, RxDrop::PacketSize];
    let stopped: u64 = ingress.iter().map(|&d| stats.dropped(d)).sum();
    assert!(stopped > 20);
    assert_eq!(stats.rx_frames - stats.rx_frames_accepted, stopped);
}

#[test]
fn nested_calls_through_a_lossy_link() {
    // 0 calls 1, whose handler calls 2 before it replies (E9).
    let mut w = World::new(&[config(), config(), config()], 3);
    w.link = Link { loss: 100_000, duplicate: 100_000, hold: true, ..Link::perfect() };
    let outer = w.connect(0, 1);
    let inner = w.connect(1, 2);
    w.nodes[1].handler = Box::new(move |id, _| Action::Nest(inner, id + 1_000, 3_000));
    for id in 0..100 {
        w.call(0, outer, id, 2_000);
    }
    let done = w.finish(0, 100);
    for d in &done {
        assert_eq!(d.result.as_ref().unwrap(), &pattern(d.id + 1_000, 3_000));
        assert_eq!(w.nodes[1].executed[&(d.id as u16)], 1);
        assert_eq!(w.nodes[2].executed[&(d.id as u16 + 1_000)], 1);
    }
}

#[test]
fn copies_of_a_retransmission_keep_their_order() {
    // A transport that holds the first copies forces the next ones through staging buffers, and
    // unsent packets follow without a copy: they must not overtake (E58).
    let mut w = World::pair(Config { credits: 8, ..config() });
    w.link.hold = true;
    let s = w.connect(0, 1);
    let mut first = true;
    w.filter = Some(Box::new(move |from, _| from != 0 || !std::mem::take(&mut first)));
    w.call(0, s, 1, 40 * DPP);
    let done = w.finish(0, 1);
    assert_eq!(done[0].result.as_ref().unwrap().len(), 40 * DPP);
    let stats = w.ep(0).stats().clone();
    assert_eq!(stats.rollbacks, 1);
    // Only the seven packets after the lost one arrived out of order.
    assert_eq!(w.ep(1).stats().dropped(RxDrop::OutOfOrder), 7);
}

#[test]
fn a_lost_rejection_is_repeated() {
    // The server rejects a message at its first packet. With fewer credits than packets the client
    // never sends the last one, so a duplicate of any packet has to return the stored answer.
    let server = Config { max_held_per_peer: 1_000, ..config() };
    let mut w = World::new(&[Config { credits: 2, ..config() }, server], 1);
    let s = w.connect(0, 1);
    let mut lost = 0;
    w.filter = Some(Box::new(move |from, _| {
        lost += u32::from(from == 1);
        from == 0 || lost > 3
    }));
    w.call(0, s, 1, 6 * DPP);
    let done = w.finish(0, 1);
    assert_eq!(done[0].result, Err(CallError::Server(Status::NoMemory)));
    assert!(w.nodes[1].executed.is_empty());
    for node in 0..2 {
        assert_eq!(w.ep(node).stats().dropped(RxDrop::Inconsistent), 0);
    }
}

#[test]
fn late_packets_of_a_session_that_was_idle_are_stale() {
    // Its slots have kept only the numbers of their last requests.
    let mut w = World::pair(Config { idle_after_ns: 1_000_000, ..config() });
    let s = w.connect(0, 1);
    let frames = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let seen = frames.clone();
    w.filter = Some(Box::new(move |from, bytes| {
        if from == 0 {
            seen.borrow_mut().push(bytes.to_vec());
        }
        true
    }));
    w.nodes[1].handler = Box::new(|_, _| Action::Reply(vec![]));
    w.call(0, s, 1, 10);
    w.call(0, s, 2, 10);
    w.finish(0, 2);
    w.run_until(w.now_ns + 5_000_000);
    let idle = w.ep(0).poll_idle().expect("idle");
    w.ep(1).on_idle(idle.remote, 0xe0, 7, &idle.done);
    let late = std::mem::take(&mut *frames.borrow_mut());
    w.call(0, s, 3, 10); // wakes the slots, and uses one of the two
    w.finish(0, 1);
    for bytes in late {
        w.inject(0, 1, &bytes);
    }
    let stats = w.ep(1).stats();
    // Two requests, and their acknowledgements.
    assert_eq!((stats.dropped(RxDrop::Inconsistent), stats.dropped(RxDrop::Stale)), (0, 4));
    assert_eq!((w.nodes[1].executed[&1], w.nodes[1].executed[&2]), (1, 1));
}

/// Go-back-N drops packets that overtake others, and still makes progress.
#[test]
fn go_back_n_makes_progress_through_heavy_reordering() {
    for (reorder, late_ns) in [(100_000, 20_000), (300_000, 200_000), (800_000, 200_000)] {
        let cfg =
            Config { control: Control::None, recovery: Recovery::GoBackN, ..Config::default() };
        let mut w = World::pair(cfg);
        w.link = Link { reorder, late_ns, ..Link::perfect() };
        let s = w.connect(0, 1);
        let begin = w.now_ns;
        for id in 0..4 {
            w.call(0, s, id, 1_000_000);
        }
        let done = w.finish(0, 4);
        assert!(done.iter().all(|d| d.result.is_ok()));
        let took_ms = (w.now_ns - begin) / 1_000_000;
        assert!(took_ms < 4_000, "{reorder} ppm late by {late_ns} ns: {took_ms} ms");
    }
}
