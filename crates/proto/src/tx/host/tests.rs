use super::*;
use crate::cc::Control;

mod link;

const FRAME: usize = 1_000;

fn entry(index: u32) -> Waiter {
    Waiter::Request { session: SessionId { index, generation: 0 }, slot: 0 }
}

/// A queue of a transport without trains, with a first report.
fn queue() -> HostQueue {
    let mut q = HostQueue::new(&Config::default(), FRAME);
    q.on_report(Some(0), 0);
    q
}

/// Begins the turn of the next entry; returns its number.
fn begin_turn(q: &mut HostQueue) -> Option<u32> {
    let item = q.next()?;
    q.begin_turn();
    let TxItem::RequestTurn { session, .. } = item else { panic!("{item:?}") };
    Some(session.index)
}

/// Sends a turn of the message in hand; returns its packets.
fn send(q: &mut HostQueue) -> u32 {
    let turn = q.turn(FRAME);
    q.on_sent_in_turn((turn, 0), FRAME);
    turn
}

#[test]
fn without_a_report_or_with_an_unknown_backlog_nothing_waits() {
    let mut q = HostQueue::new(&Config::default(), FRAME);
    assert_eq!((q.is_limited(), q.asks), (false, false));
    q.on_sent_in_turn((u32::MAX, 7), FRAME);
    q.on_report(Some(0), 0);
    assert_eq!((q.is_limited(), q.turn(FRAME)), (true, 6));
    q.on_report(None, 0);
    assert_eq!((q.is_limited(), q.asks), (false, false));
}

#[test]
fn only_the_default_congestion_control_bounds_the_queue() {
    for control in Control::ALL {
        let mut q = HostQueue::new(&Config { control, ..Config::default() }, FRAME);
        q.on_report(Some(0), 0);
        assert_eq!(q.is_limited(), control == Control::default(), "{control}");
    }
}

#[test]
fn a_message_alone_fills_the_queue_and_the_backlog_is_asked_for() {
    let mut q = queue();
    q.on_sent_in_turn((6, 4), FRAME);
    assert!(!q.asks, "it is less than half full");
    assert_eq!((send(&mut q), q.asks), (4, true));
    assert_eq!(send(&mut q), 0);
    q.on_report(Some(4_500), 1);
    assert_eq!((send(&mut q), send(&mut q)), (1, 1), "an uneven rest is used up");
    assert_eq!(send(&mut q), 0);
}

#[test]
fn messages_that_wait_take_turns_and_no_other_overtakes_them() {
    let mut q = queue();
    (1..4).for_each(|n| q.wait(entry(n), 500));
    assert_eq!(send(&mut q), 0, "it has no turn");
    for n in [1, 2, 3, 1, 2, 3] {
        assert_eq!(begin_turn(&mut q), Some(n));
        assert_eq!((send(&mut q), send(&mut q)), (1, 0));
        q.wait(entry(n), 499);
    }
    assert_eq!(begin_turn(&mut q), None, "the queue is full");
    assert!(!q.asks, "a timer asks");
    q.on_report(Some(5_999), 1);
    q.wait(entry(9), 1);
    assert_eq!(begin_turn(&mut q), Some(9), "few packets left are first");
}

#[test]
fn a_turn_ends_with_its_entry() {
    let mut q = queue();
    (1..4).for_each(|n| q.wait(entry(n), 500));
    assert_eq!(begin_turn(&mut q), Some(1));
    q.end_turn();
    assert_eq!(send(&mut q), 0, "the turn was that of an entry that had nothing to send");
    assert_eq!((begin_turn(&mut q), send(&mut q)), (Some(2), 1));
    q.sweep(|waiter| waiter != entry(3));
    assert!(!q.is_awaited());
}

#[test]
fn one_entry_of_a_pool_stays_when_a_number_was_used_again() {
    let mut q = queue();
    for peer in [1, 2, 1, 3, 1] {
        q.wait(Waiter::Pool { peer }, 500);
    }
    q.sweep(|waiter| waiter != Waiter::Pool { peer: 3 });
    let left = std::iter::from_fn(|| q.next()).map(|item| match item {
        TxItem::PoolTurn { peer } => peer,
        other => panic!("{other:?}"),
    });
    assert_eq!(left.collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_device_that_reports_more_than_the_limit_at_once_has_a_larger_one() {
    let mut q = queue();
    q.wait(entry(1), 9);
    q.on_report(Some(4 * q.least), 0);
    q.on_report(Some(3 * q.least), 1);
    assert_eq!(q.limit, 2 * q.least);
    (2..9).for_each(|now_ns| q.on_report(Some((9 - now_ns) * q.least / 4 + q.least), now_ns));
    assert_eq!(q.limit, 2 * q.least, "less than the limit has left between two reports");
}

#[test]
fn the_limit_grows_when_the_queue_runs_empty_and_shrinks_by_what_is_never_used() {
    let mut q = queue();
    q.on_report(Some(0), 0);
    assert_eq!(q.limit, q.least, "nothing waited");
    q.wait(entry(1), 9);
    q.on_report(Some(0), 0);
    assert_eq!(q.limit, q.least, "nothing had waited until then");
    (0..3).for_each(|_| q.on_report(Some(0), 0));
    assert_eq!(q.limit, 8 * q.least);
    (0..2 * REPORTS).for_each(|_| q.on_report(Some(4 * q.least), 0));
    assert_eq!(q.limit, 4 * q.least);
    (0..5 * REPORTS).for_each(|_| q.on_report(Some(4 * q.least), 0));
    assert_eq!(q.limit, q.least);
    (0..64).for_each(|_| q.on_report(Some(0), 0));
    assert_eq!(q.limit, MOST_BYTES);
}

#[test]
fn the_next_report_is_due_when_half_of_the_limit_is_sent_at_the_rate_of_the_line() {
    let mut q = queue();
    q.on_report(Some(5_999), 0);
    assert_eq!(q.wait_ns(), 2_999 * 8 / 25);
    q.on_report(Some(1 << 20), 0);
    q.on_report(Some((1 << 20) - 1), 0);
    assert_eq!(q.wait_ns(), WAIT_NS.1);
    q.on_report(Some(3_001), 0);
    assert_eq!(q.wait_ns(), WAIT_NS.0);
}

/// Reports the same backlog until there is room. Returns the reports and the time, ns.
fn until_room(q: &mut HostQueue, bytes: u64, begin_ns: u64) -> (u32, u64) {
    let mut now_ns = begin_ns;
    for reports in 1.. {
        q.on_report(Some(bytes), now_ns);
        if q.turn(FRAME) > 0 {
            return (reports, now_ns - begin_ns);
        }
        now_ns += q.wait_ns();
    }
    unreachable!()
}

#[test]
fn a_backlog_that_does_not_drain_ends_the_wait_and_is_asked_for_ever_more_rarely() {
    let mut q = queue();
    q.on_report(Some(0), 50 * STALL_NS);
    let (reports, took_ns) = until_room(&mut q, 300_000, 60 * STALL_NS);
    assert!((STALL_NS..STALL_NS + IDLE_WAIT_NS).contains(&took_ns), "{took_ns} ns");
    assert!(reports < 16, "{reports} reports");
    // With those bytes in the queue, others leave as if they were not there.
    for n in 0..40 {
        q.on_report(Some(300_000), 62 * STALL_NS + n);
        assert_eq!(send(&mut q), 6, "after the {n}th");
    }
    // Others that do not drain either get another stall.
    let (_, took_ns) = until_room(&mut q, 306_000, 63 * STALL_NS);
    assert!(took_ns >= STALL_NS, "{took_ns} ns");
    q.on_report(Some(1_000), 90 * STALL_NS);
    q.on_report(Some(7_000), 90 * STALL_NS);
    assert_eq!(send(&mut q), 0, "what has left is not stuck");
}

#[test]
fn bytes_that_leave_after_all_are_not_stuck() {
    let mut q = queue();
    until_room(&mut q, 60_000, 0);
    q.on_report(Some(66_000), STALL_NS + 2 * IDLE_WAIT_NS);
    assert_eq!((q.turn(FRAME), q.progress.stuck), (0, 60_000));
    // After some time the queue is drained.
    let mut now_ns = 10 * STALL_NS;
    for left in (1..=60).rev() {
        q.on_report(Some(1_000 * left), now_ns);
        assert_eq!((q.turn(FRAME), q.progress.stuck), (0, 1_000 * left));
        now_ns += q.wait_ns();
    }
    q.on_report(Some(0), now_ns);
    assert_eq!((q.turn(FRAME), q.progress.stuck), (6, 0));
}

#[test]
fn the_queue_is_drained_rarely_and_for_a_short_time() {
    let mut q = queue();
    until_room(&mut q, 60_000, 0);
    let begin_ns = 10 * STALL_NS;
    let (mut now_ns, mut full_ns) = (begin_ns, 0);
    while now_ns < begin_ns + 10 * PROBE_NS.0 {
        q.on_report(Some(60_000), now_ns);
        let wait_ns = q.wait_ns();
        full_ns += if q.turn(FRAME) == 0 { wait_ns } else { 0 };
        now_ns += wait_ns;
    }
    assert!((9 * PROBE_NS.1..20 * PROBE_NS.1).contains(&full_ns), "{full_ns} ns");
}

#[test]
fn packets_that_never_wait_do_not_hold_large_messages_for_ever() {
    let mut q = queue();
    q.wait(entry(1), 100);
    let mut turns = 0;
    // Two packets leave between two reports, and single ones take their place.
    for round in 0..1_000 {
        q.on_report(Some(60_000), 2 * round * 1_000);
        q.on_report(Some(58_000), (2 * round + 1) * 1_000);
        if q.begins() {
            assert_eq!((begin_turn(&mut q), send(&mut q)), (Some(1), 1));
            q.end_turn();
            q.wait(entry(1), 100);
            turns += 1;
        }
    }
    let left = 1_000 * 2_000 / q.limit;
    assert!((left / 20..=left / 16).contains(&turns), "{turns} turns while {left} limits left");
}

#[test]
fn frames_of_small_messages_do_not_keep_the_limit_small() {
    let mut q = queue();
    q.wait(entry(1), 9);
    (0..8).for_each(|now_ns| q.on_report(Some(q.least / EMPTY_PART - 1), now_ns));
    assert!(q.limit > 64 * q.least, "{}", q.limit);
}

#[test]
fn the_smallest_limit_lasts_for_a_short_time_at_the_rate_of_the_line() {
    let least = |gbit: u64, train_frames: u32| {
        let line_rate_bps = gbit * 1_000_000_000;
        let cfg = Config { line_rate_bps, train_frames, ..Config::default() };
        let q = HostQueue::new(&cfg, FRAME);
        (q.least / FRAME as u64, q.quantum)
    };
    assert_eq!(least(100, 44), (88, 44));
    assert_eq!(least(25, 44), (62, 31), "20 us");
    assert_eq!((least(1, 44), least(25, 1)), ((6, 3), (6, 1)));
}
