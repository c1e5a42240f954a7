//! Many rarely used sessions, and their effect on timers.

use courser_proto::{Config, Recovery};

use crate::support::{World, config, pattern};

/// Above the number from which first timers are cancelled.
const SESSIONS: usize = 2_100;
/// The longest delay of an acknowledgement is half of it.
const IDLE_NS: u64 = 4_000_000;

/// `count` sequential calls on each session, so that each session's calls are a part of [`IDLE_NS`]
/// apart; each response is right, each request ran once.
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

/// Runs until no timer is left, which does not take long.
fn rest(w: &mut World) {
    w.run_until(w.now_ns + 10 * IDLE_NS);
    assert_eq!(w.ep(0).next_deadline(), None);
}

#[test]
fn a_session_that_stays_in_use_costs_no_acknowledgements() {
    // ADR 6: only one for each session when all are quiet; then no response is stored.
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
fn deferred_calls_are_sent_like_the_others() {
    let run = |prefetch_min_sessions| {
        let config = Config { prefetch_min_sessions, ..config() };
        let mut w = World::new(&[config.clone(), config], 7);
        w.link.loss = 20_000;
        rounds(&mut w, 3);
        (format!("{:?}", w.ep(0).stats()), format!("{:?}", w.ep(1).stats()), w.now_ns)
    };
    assert_eq!(run(512), run(usize::MAX));
}
