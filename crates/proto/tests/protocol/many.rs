//! Many sessions, each used now and then: what the timers then do otherwise.

use courser_proto::{Config, Recovery};

use crate::support::{World, config, pattern};

/// More than those from which on first looks are forgotten.
const SESSIONS: usize = 2_100;
/// The longest wait for an acknowledgement is half of it.
const IDLE_NS: u64 = 4_000_000;

/// `count` calls on each session, one after the other, so that each session's come a part of
/// [`IDLE_NS`] after each other; each call's response is right, each request ran once.
fn rounds(w: &mut World, count: u64) {
    let sessions: Vec<_> = (0..SESSIONS).map(|_| w.connect(0, 1)).collect();
    for round in 0..count {
        for (i, &s) in sessions.iter().enumerate() {
            let id = round * SESSIONS as u64 + i as u64;
            w.call(0, s, id as u16, 32);
            if i % 56 == 55 {
                w.run_until(w.now_ns + 20_000);
            }
        }
    }
    let all = SESSIONS * count as usize;
    let done = w.finish(0, all);
    assert!(done.iter().all(|d| d.result == Ok(pattern(d.id, 32))));
    assert!((0..all as u16).all(|id| w.nodes[1].executed[&id] == 1));
}

/// Until there is nothing left to look at, which does not take long.
fn rest(w: &mut World) {
    w.run_until(w.now_ns + 10 * IDLE_NS);
    assert_eq!(w.ep(0).next_deadline(), None);
}

#[test]
fn a_session_that_is_used_again_costs_no_acknowledgements() {
    // F6: but one for each session when all are quiet, and then nobody keeps anything.
    let mut w = World::pair(Config { idle_after_ns: IDLE_NS, ..config() });
    let empty = w.nodes[1].arena.stats().in_use_bytes;
    rounds(&mut w, 30);
    let acks = w.ep(1).stats().rx_kinds[4];
    assert!(acks < 4 * SESSIONS as u64, "{acks}");
    rest(&mut w);
    assert_eq!(w.nodes[1].arena.stats().in_use_bytes, empty);
    assert!(w.ep(1).stats().rx_kinds[4] - acks >= SESSIONS as u64 / 2);
}

#[test]
fn calls_of_many_sessions_outlive_loss_and_reordering() {
    for recovery in [Recovery::GoBackN, Recovery::Selective] {
        for seed in 1..3 {
            let config = Config { recovery, idle_after_ns: IDLE_NS, ..config() };
            let mut w = World::new(&[config.clone(), config], seed);
            w.link.loss = 50_000;
            w.link.duplicate = 20_000;
            (w.link.reorder, w.link.late_ns) = (50_000, 30_000);
            rounds(&mut w, 12);
            rest(&mut w);
        }
    }
}

#[test]
fn calls_that_are_deferred_leave_as_the_others_do() {
    let run = |far_sessions| {
        let config = Config { far_sessions, ..config() };
        let mut w = World::new(&[config.clone(), config], 7);
        w.link.loss = 20_000;
        rounds(&mut w, 3);
        (format!("{:?}", w.ep(0).stats()), format!("{:?}", w.ep(1).stats()), w.now_ns)
    };
    assert_eq!(run(512), run(usize::MAX));
}
