use super::*;

const FRAME: usize = 1_000;

fn item(req_num: u32) -> TxItem {
    TxItem::Client { session: 0, slot: 0, req_num }
}

/// A queue of a transport without trains, with a first report.
fn queue() -> HostQueue {
    let mut q = HostQueue::new(&Config::default(), FRAME);
    q.on_report(Some(0));
    q
}

/// Sends a turn of the message in hand; returns its packets.
fn send(q: &mut HostQueue) -> u32 {
    let turn = q.turn(FRAME);
    q.end_turn((turn, 0), FRAME);
    turn
}

#[test]
fn without_a_report_or_with_an_unknown_backlog_nothing_waits() {
    let mut q = HostQueue::new(&Config::default(), FRAME);
    assert_eq!((q.turn(FRAME), q.asks), (u32::MAX, false));
    q.end_turn((u32::MAX, 7), FRAME);
    q.on_report(Some(0));
    assert_eq!(q.turn(FRAME), 6);
    q.on_report(None);
    assert_eq!((q.turn(FRAME), q.asks), (u32::MAX, false));
}

#[test]
fn a_message_alone_fills_the_queue_and_the_backlog_is_asked_for() {
    let mut q = queue();
    q.end_turn((6, 4), FRAME);
    assert!(!q.asks, "it is less than half full");
    assert_eq!((send(&mut q), q.asks), (4, true));
    assert_eq!(send(&mut q), 0);
    q.on_report(Some(4_500));
    assert_eq!((send(&mut q), send(&mut q)), (1, 1), "an uneven rest is used up");
    assert_eq!(send(&mut q), 0);
}

#[test]
fn messages_that_wait_take_turns_and_no_other_overtakes_them() {
    let mut q = queue();
    (1..4).for_each(|n| q.wait(item(n), 500));
    assert_eq!(send(&mut q), 0, "it has no turn");
    let mut order = Vec::new();
    for _ in 0..6 {
        let TxItem::Client { req_num, .. } = q.next().unwrap() else { unreachable!() };
        assert_eq!(send(&mut q), 1);
        q.wait(item(req_num), 499);
        order.push(req_num);
    }
    assert_eq!(order, [1, 2, 3, 1, 2, 3]);
    assert_eq!(q.next(), None, "the queue is full");
    assert!(!q.asks, "a timer asks");
    assert!(q.remove(item(2)) && !q.remove(item(2)));
    q.on_report(Some(5_999));
    q.wait(item(9), 1);
    assert_eq!(q.next(), Some(item(9)), "few packets left are first");
}

#[test]
fn the_limit_grows_when_the_queue_runs_empty_and_shrinks_by_what_is_never_used() {
    let mut q = queue();
    q.on_report(Some(0));
    assert_eq!(q.limit, q.least, "nothing waited");
    q.wait(item(1), 9);
    q.on_report(Some(0));
    assert_eq!(q.limit, q.least, "nothing had waited until then");
    (0..3).for_each(|_| q.on_report(Some(0)));
    assert_eq!(q.limit, 8 * q.least);
    (0..2 * REPORTS).for_each(|_| q.on_report(Some(4 * q.least)));
    assert_eq!(q.limit, 4 * q.least);
    (0..5 * REPORTS).for_each(|_| q.on_report(Some(4 * q.least)));
    assert_eq!(q.limit, q.least);
    (0..64).for_each(|_| q.on_report(Some(0)));
    assert_eq!(q.limit, MOST_BYTES);
}

#[test]
fn the_next_report_is_due_when_half_of_the_limit_is_sent_at_the_rate_of_the_line() {
    let mut q = queue();
    q.on_report(Some(6_000));
    assert_eq!(q.wait_ns(), 3_000 * 8 / 25);
    q.on_report(Some(1 << 20));
    assert_eq!(q.wait_ns(), WAIT_NS.1);
    q.on_report(Some(3_001));
    assert_eq!(q.wait_ns(), WAIT_NS.0);
}
