//! Frames that acknowledge several packets, and retransmitted packets.

use super::*;

const WINDOW_NS: u64 = 4_000;

fn ack(now_ns: u64) -> AckInfo {
    AckInfo { now_ns, round_trip_ns: 16_000, window_ns: WINDOW_NS }
}

/// Packets 0 to 9 are sent, one every 10 us; packet 2 is lost, which the arrival of 3 shows.
fn with_a_loss() -> (Scoreboard, LossFeedback) {
    let (mut b, mut feedback) = (Scoreboard::new(0), LossFeedback::default());
    (0..10).for_each(|index| b.sent(index, u64::from(index) * 10_000));
    b.in_order(2, ack(30_000), &mut feedback);
    assert!(b.arrived(3, ack(50_000), &mut feedback));
    assert_eq!((b.judge(WINDOW_NS), b.next_lost(u32::MAX >> 8)), (1, Some((2, 1))));
    b.sent(2, 100_000);
    (b, feedback)
}

#[test]
fn one_frame_tells_no_order_of_arrival() {
    let (mut b, mut feedback) = with_a_loss();
    // The retransmission is the newest transmission, and has a lower number than the others.
    b.in_order(10, ack(120_000), &mut feedback);
    assert_eq!(feedback, LossFeedback { useful: 1, ..LossFeedback::default() });
}

#[test]
fn a_packet_that_arrives_after_one_that_was_sent_later_is_late() {
    let (mut b, mut feedback) = with_a_loss();
    assert!(b.arrived(7, ack(90_000), &mut feedback));
    b.judge(u64::MAX / 2);
    assert!(b.arrived(5, ack(91_000), &mut feedback));
    assert_eq!(feedback.late_ns, 20_000);
}

#[test]
fn an_early_retransmission_is_one_that_a_short_window_caused() {
    let (mut b, mut feedback) = with_a_loss();
    b.in_order(4, ack(105_000), &mut feedback);
    assert_eq!((feedback.spurious, feedback.early, feedback.useful), (1, 1, 0));
    // A timeout because the other side had no CPU shows nothing about reordering.
    b.time_out();
    let (first, count) = b.next_lost(u32::MAX >> 8).expect("all of them");
    (first..first + count).for_each(|index| b.sent(index, 500_000));
    b.in_order(10, ack(505_000), &mut feedback);
    assert_eq!((feedback.spurious, feedback.early, feedback.useful), (7, 1, 0));
    b.check();
}

#[test]
fn after_a_timeout_retransmissions_are_judged_by_the_window_again() {
    let (mut b, mut feedback) = with_a_loss();
    b.time_out();
    b.sent(2, 200_000);
    b.sent(4, 210_000);
    assert!(b.arrived(4, ack(230_000), &mut feedback));
    assert_eq!(b.judge(WINDOW_NS), 1);
    b.sent(2, 240_000);
    b.in_order(3, ack(245_000), &mut feedback);
    assert_eq!((feedback.spurious, feedback.early, feedback.useful), (1, 1, 1));
}
