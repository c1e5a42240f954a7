//! What one frame tells of several packets, and of packets that were sent again.

use super::*;

const WINDOW_NS: u64 = 4_000;

fn heard(now_ns: u64) -> Heard {
    Heard { now_ns, round_trip_ns: 16_000, window_ns: WINDOW_NS }
}

/// Packets 0 to 9 are sent, one in 10 us, and packet 2 is lost: found so when 3 is heard of.
fn with_a_loss() -> (Scoreboard, Seen) {
    let (mut b, mut seen) = (Scoreboard::new(0), Seen::default());
    (0..10).for_each(|index| b.sent(index, u64::from(index) * 10_000));
    b.in_order(2, heard(30_000), &mut seen);
    assert!(b.arrived(3, heard(50_000), &mut seen));
    assert_eq!((b.judge(WINDOW_NS), b.next_lost(u32::MAX >> 8)), (1, Some((2, 1))));
    b.sent(2, 100_000);
    (b, seen)
}

#[test]
fn what_one_frame_tells_of_has_no_order() {
    let (mut b, mut seen) = with_a_loss();
    // The retransmission is the newest of all, and has a lower number than those before it.
    b.in_order(10, heard(120_000), &mut seen);
    assert_eq!(seen, Seen { useful: 1, ..Seen::default() });
}

#[test]
fn a_packet_that_arrives_after_one_that_was_sent_later_is_late() {
    let (mut b, mut seen) = with_a_loss();
    assert!(b.arrived(7, heard(90_000), &mut seen));
    b.judge(u64::MAX / 2);
    assert!(b.arrived(5, heard(91_000), &mut seen));
    assert_eq!(seen.late_ns, 20_000);
}

#[test]
fn a_hasty_retransmission_is_one_that_the_window_was_too_short_for() {
    let (mut b, mut seen) = with_a_loss();
    b.in_order(4, heard(105_000), &mut seen);
    assert_eq!((seen.spurious, seen.hasty, seen.useful), (1, 1, 0));
    // Nothing was heard for long, since the other side had no core: that says nothing of order.
    b.time_out();
    let (first, count) = b.next_lost(u32::MAX >> 8).expect("all of them");
    (first..first + count).for_each(|index| b.sent(index, 500_000));
    b.in_order(10, heard(505_000), &mut seen);
    assert_eq!((seen.spurious, seen.hasty, seen.useful), (7, 1, 0));
    b.check();
}

#[test]
fn a_packet_that_is_found_lost_after_a_timeout_is_judged_by_the_window_again() {
    let (mut b, mut seen) = with_a_loss();
    b.time_out();
    b.sent(2, 200_000);
    b.sent(4, 210_000);
    assert!(b.arrived(4, heard(230_000), &mut seen));
    assert_eq!(b.judge(WINDOW_NS), 1);
    b.sent(2, 240_000);
    b.in_order(3, heard(245_000), &mut seen);
    assert_eq!((seen.spurious, seen.hasty, seen.useful), (1, 1, 1));
}
