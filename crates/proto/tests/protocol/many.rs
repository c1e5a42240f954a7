//! Many rarely used sessions, and their effect on timers.

use courser_proto::{Config, Recovery, SessionId};

use crate::support::{World, addr, config, pattern};

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

/// Sessions from which on calls are deferred in the following tests.
const MANY: usize = 16;

/// Calls in turn on these sessions, each of which ends before the next one begins.
fn turns(w: &mut World, sessions: &[SessionId], calls: usize) {
    for &session in sessions.iter().cycle().take(calls) {
        w.call(0, session, 1, 32);
        assert!(w.finish(0, 1)[0].result.is_ok());
    }
    w.ep(0).check();
    w.ep(1).check();
}

/// Returns whether the next call on a session in use is deferred; ends the call.
fn defers(w: &mut World, session: SessionId) -> bool {
    turns(w, &[session], 2);
    w.call(0, session, 1, 32);
    let stats = w.nodes[0].ep.session_stats(session).unwrap();
    assert!(w.finish(0, 1)[0].result.is_ok());
    stats.queued == 1
}

#[test]
fn calls_are_deferred_by_the_sessions_in_use_and_not_by_those_that_are_open() {
    let mut w = World::pair(Config { prefetch_min_sessions: MANY, ..config() });
    let sessions: Vec<_> = (0..6 * MANY).map(|_| w.connect(0, 1)).collect();
    // A window has 4 * MANY packets, and one in 16 is counted.
    let period = 16 * 4 * MANY + 1;
    let (few, half, many) = (MANY / 2 - 1, MANY - 1, MANY);

    turns(&mut w, &sessions[..few], 2 * period);
    assert!(!defers(&mut w, sessions[0]), "few of many are in use");
    turns(&mut w, &sessions[..half], 2 * period);
    assert!(!defers(&mut w, sessions[0]), "not as many as it begins with");
    turns(&mut w, &sessions[20..20 + many], 2 * period);
    assert!(defers(&mut w, sessions[20]), "as many as it begins with");
    turns(&mut w, &sessions, 2 * period);
    assert!(defers(&mut w, sessions[20]), "all are in use");
    turns(&mut w, &sessions[..half], 2 * period);
    assert!(defers(&mut w, sessions[0]), "more than it ends with");
    turns(&mut w, &sessions[..few], 2 * period);
    assert!(!defers(&mut w, sessions[0]), "few of many are in use again");
}

#[test]
fn calls_that_are_deferred_when_deferral_ends_keep_their_order() {
    let mut w = World::pair(Config { prefetch_min_sessions: MANY, slots: 1, ..config() });
    let sessions: Vec<_> = (0..2 * MANY).map(|_| w.connect(0, 1)).collect();
    turns(&mut w, &sessions, 40 * MANY);
    assert!(defers(&mut w, sessions[1]));
    w.nodes[1].started.clear();
    w.call(0, sessions[1], 1, 32);
    // Packets count before they are checked: these name session 0, and are refused.
    let now_ns = w.now_ns;
    (0..16 * 4 * MANY).for_each(|_| w.nodes[0].receive(addr(1), &[0; 64], now_ns));
    w.ep(0).check();
    assert_eq!(w.nodes[0].ep.session_stats(sessions[1]).unwrap().queued, 1);
    for id in 2..5 {
        w.call(0, sessions[1], id, 32);
    }
    let stats = w.nodes[0].ep.session_stats(sessions[1]).unwrap();
    assert_eq!((stats.in_flight, stats.queued), (1, 3), "the first one was put on the slot");
    assert!(w.finish(0, 4).iter().map(|d| d.id).eq(1..5));
    assert!(w.nodes[1].started.iter().map(|started| started.0).eq(1..5));
}
