//! Client slots alone: each packet kind in past, in-order and future position.

use courser_buf::Arena;

use super::*;
use crate::budget::Grant;
use crate::slot::{Position, ServerSlot};

/// Context of a frame without times.
const HEARD: AckInfo = AckInfo { now_ns: 0, round_trip_ns: 0, window_ns: 0 };

fn credit_return(s: &mut ClientSlot<u8>, count: u32, in_progress: bool) -> Result<u32, RxDrop> {
    s.on_credit_return(count, in_progress, Grant::default(), HEARD, &mut LossFeedback::default())
}

fn response(s: &mut ClientSlot<u8>, index: u32, size: u32, packets: u32) -> Result<u32, RxDrop> {
    s.on_response(index, size, packets, HEARD, &mut LossFeedback::default())
}

fn client(req_packets: u32) -> ClientSlot<u8> {
    let arena = Arena::heap();
    let mut s = ClientSlot::new(u32::MAX - 7);
    s.start(8, 1, arena.alloc(8).unwrap(), req_packets, 0);
    s
}

fn send(s: &mut ClientSlot<u8>, n: u32) {
    s.single = Single::No;
    s.req_sent += n;
    s.req_high = s.req_high.max(s.req_sent);
    s.check();
}

fn request(s: &mut ClientSlot<u8>, n: u32) {
    s.resp_requested += n;
    s.resp_high = s.resp_high.max(s.resp_requested);
    s.check();
}

#[test]
fn request_numbers_wrap() {
    assert_eq!(client(1).req_num, 0);
    let s = ServerSlot::new(u32::MAX - 7);
    assert_eq!(s.position(0, 8), Position::Next);
    assert_eq!(s.position(8, 8), Position::Future);
    assert_eq!(s.position(u32::MAX - 7, 8), Position::Current);
    assert_eq!(s.position(u32::MAX - 15, 8), Position::Past);
}

#[test]
fn credit_returns_past_in_order_future() {
    let mut s = client(4);
    send(&mut s, 3);
    assert_eq!(credit_return(&mut s, 1, false), Ok(1));
    assert_eq!(credit_return(&mut s, 1, false), Err(RxDrop::Duplicate), "past");
    assert_eq!(credit_return(&mut s, 3, false), Ok(2), "cumulative");
    assert_eq!(s.in_flight(), 0);
    send(&mut s, 1);
    assert_eq!(credit_return(&mut s, 4, false), Err(RxDrop::Inconsistent), "invariant 3");
    let mut t = client(4);
    send(&mut t, 2);
    assert_eq!(credit_return(&mut t, 3, false), Err(RxDrop::Inconsistent), "never sent");
}

#[test]
fn a_request_that_waits_for_a_grant_is_in_progress_before_it_is_whole() {
    let mut s = client(5);
    send(&mut s, 3);
    let held = |s: &mut ClientSlot<u8>, count| {
        let grant = Grant::new(3, 1);
        s.on_credit_return(count, true, grant, HEARD, &mut LossFeedback::default())
    };
    assert_eq!(held(&mut s, 3), Err(RxDrop::Inconsistent), "all of it may not be acknowledged");
    assert_eq!(held(&mut s, 2), Ok(2));
    assert_eq!(held(&mut s, 2), Ok(0));
    assert_eq!(held(&mut s, 1), Err(RxDrop::Duplicate), "late");
    assert!(s.awaits_grant() && s.in_flight() == 1);
    assert_eq!(credit_return(&mut s, 3, false), Ok(1), "without a limit");
    assert!(!s.awaits_grant() && s.sendable() == 2);
}

#[test]
fn a_request_with_its_handler_holds_no_credit_until_it_is_sent_again() {
    for packets in [1, 2] {
        let mut s = client(packets);
        send(&mut s, packets);
        assert_eq!(credit_return(&mut s, packets, true), Err(RxDrop::Inconsistent));
        assert_eq!(credit_return(&mut s, packets - 1, true), Ok(packets));
        assert_eq!(credit_return(&mut s, packets - 1, true), Ok(0), "still in progress");
        assert_eq!((s.in_flight(), s.sendable(), s.is_parked()), (0, 0, true));
        s.check();
        // A probe takes a credit, which an answer of either kind returns.
        assert_eq!(s.roll_back(), 0);
        assert_eq!((s.sendable(), s.is_parked()), (1, false));
        send(&mut s, 1);
        assert_eq!((s.in_flight(), credit_return(&mut s, packets - 1, true)), (1, Ok(1)));
        assert_eq!(response(&mut s, 0, 5, 1), Ok(0), "it held none");
        assert_eq!(s.in_flight(), 0);
    }
}

#[test]
fn responses_past_in_order_future() {
    let mut s = client(1);
    assert_eq!(response(&mut s, 0, 5, 1), Err(RxDrop::Inconsistent), "nothing was sent");
    send(&mut s, 1);
    assert_eq!(response(&mut s, 1, 5000, 4), Err(RxDrop::OutOfOrder), "before the first");
    assert_eq!(response(&mut s, 0, 5000, 4), Ok(1));
    assert_eq!(response(&mut s, 0, 5000, 4), Err(RxDrop::Duplicate));
    assert_eq!(response(&mut s, 1, 5000, 4), Err(RxDrop::Inconsistent), "not asked for");
    request(&mut s, 2);
    assert_eq!(response(&mut s, 2, 5000, 4), Err(RxDrop::OutOfOrder), "future");
    assert_eq!(response(&mut s, 1, 5001, 4), Err(RxDrop::Inconsistent), "another size");
    assert_eq!(response(&mut s, 1, 5000, 4), Ok(1));
    assert_eq!(response(&mut s, 1, 5000, 4), Err(RxDrop::Duplicate), "past");
    assert_eq!(response(&mut s, 2, 5000, 4), Ok(1));
    assert_eq!(s.in_flight(), 0);
}

#[test]
fn after_a_rollback_late_answers_still_count_once() {
    let mut s = client(4);
    send(&mut s, 3);
    assert_eq!(credit_return(&mut s, 1, false), Ok(1));
    assert_eq!(s.roll_back(), 2);
    assert_eq!(credit_return(&mut s, 2, false), Ok(0), "its credit came back with the rollback");
    assert_eq!((s.req_acked, s.req_sent, s.in_flight()), (2, 2, 0));
    send(&mut s, 2);
    assert_eq!(response(&mut s, 0, 9000, 5), Ok(2));
    request(&mut s, 3);
    assert_eq!(s.roll_back(), 3);
    assert_eq!(response(&mut s, 1, 9000, 5), Ok(0));
    assert_eq!(s.in_flight(), 0);
    s.check();
}

#[test]
fn a_finished_slot_holds_nothing() {
    let mut s = client(3);
    send(&mut s, 2);
    assert!(s.finish().is_some());
    s.check();
    assert!(s.finish().is_none());
}

#[test]
fn a_slot_whose_call_ends_early_is_freed_rewound_or_quarantined() {
    // ADR 15
    let mut s = client(2);
    assert_eq!(s.ending(), (Ending::Rewind, Executed::Never));
    send(&mut s, 1);
    assert_eq!(s.ending(), (Ending::Quarantine, Executed::Never));
    send(&mut s, 1);
    assert_eq!(s.ending(), (Ending::Quarantine, Executed::Maybe));
    assert_eq!(s.roll_back(), 2);
    assert_eq!(
        s.ending(),
        (Ending::Quarantine, Executed::Maybe),
        "a sent request cannot be recalled"
    );
    assert_eq!(response(&mut s, 0, 9_000, 5), Ok(0));
    assert_eq!(s.ending(), (Ending::Free, Executed::Yes));
}

#[test]
fn an_unsent_request_number_is_used_again() {
    let mut s = client(1);
    assert_eq!(s.req_num, 0);
    s.queued = true;
    s.rewind(8);
    assert!(s.finish().is_some());
    assert_eq!((s.req_num, s.queued, s.queued_ahead), (u32::MAX - 7, false, true));
    s.check();
}

#[test]
fn the_remaining_time_is_rounded_down_and_a_long_one_is_omitted() {
    let mut s = client(1);
    assert_eq!(s.remaining_us(5), None);
    for (expires_ns, left) in [
        (10_999, Some(9)),
        (1_000, Some(0)),
        (0, Some(0)),
        (134_184_960_001_000, None),
        (134_184_961_000, Some(134_184_960)),
        (134_184_962_000, None),
        (u64::MAX - 1, None),
    ] {
        s.expires_ns = expires_ns;
        assert_eq!(s.remaining_us(1_000), left, "{expires_ns}");
    }
}
