//! One-way messages.

use std::cell::RefCell;
use std::rc::Rc;

use courser_proto::wire::Packet;
use courser_proto::{Notice, RejectReason, RxDrop, SessionState};

use super::support::forge::packets;
use super::support::{Action, DPP, Link, World, config, expect_drop, messages_arrive};

#[test]
fn messages_arrive_once_in_time_and_in_order_whatever_the_link_does() {
    (0..400).for_each(messages_arrive);
}

/// Several messages leave in one frame, and one acknowledgement answers them.
#[test]
fn a_burst_is_one_frame_and_one_acknowledgement() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    w.tracing = true;
    for id in 0..20 {
        w.send_message(0, s, id, 32, None).unwrap();
    }
    w.settle();
    let [sender, receiver] = [0, 1].map(|node| w.ep(node).stats().clone());
    assert_eq!((sender.tx_frames, receiver.tx_frames), (1, 1));
    assert_eq!(sender.messages_acknowledged, 20);
    assert_eq!(w.story().last().unwrap(), "1: MACK 20+0");
    assert!(w.nodes[1].messages.iter().map(|m| m.0).eq(0..20));
}

/// No more are in flight than C, and than the pool has room for; the rest follows in order.
#[test]
fn credits_limit_messages_in_flight() {
    let mut w = World::pair(courser_proto::Config { credits: 4, ..config() });
    let s = w.connect(0, 1);
    for id in 0..10 {
        w.send_message(0, s, id, 32, None).unwrap();
    }
    w.pump();
    assert_eq!(w.ep(0).stats().tx_packets, 4);
    assert_eq!(w.ep(0).outstanding_messages(), 10);
    w.settle();
    assert!(w.nodes[1].messages.iter().map(|m| m.0).eq(0..10));
}

#[test]
fn a_full_queue_is_refused_and_its_room_is_reported_once() {
    let mut w = World::pair(courser_proto::Config { message_queue: 4, ..config() });
    let s = w.connect(0, 1);
    for id in 0..4 {
        w.send_message(0, s, id, 32, None).unwrap();
    }
    let refused = w.send_message(0, s, 4, 32, None);
    assert_eq!(refused, Err(RejectReason::MessagesFull { limit: 4 }));
    assert_eq!(w.notices(0), []);
    w.settle();
    assert_eq!(w.notices(0), [Notice::Freed { session: s, messages: true }]);
    w.send_message(0, s, 5, 32, None).unwrap();
    w.settle();
    assert_eq!(w.notices(0), [], "nothing was refused");
}

/// A lost message is sent again when later ones have arrived, long before a timeout.
#[test]
fn a_lost_message_is_found_by_later_ones() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    // A round trip is known.
    w.call(0, s, 100, 8);
    w.finish(0, 1);
    let mut frames = 0;
    w.filter = Some(Box::new(move |from, _| {
        frames += usize::from(from == 0);
        from != 0 || frames != 1
    }));
    let begin_ns = w.now_ns;
    for id in 0..4 {
        w.send_message(0, s, id, 32, None).unwrap();
        w.pump();
        w.run_to(w.now_ns + 700);
    }
    while w.nodes[1].messages.len() < 4 {
        assert!(w.step());
    }
    assert!(w.now_ns < begin_ns + 10_000, "{}", w.now_ns - begin_ns);
    assert_eq!((w.ep(0).stats().lost, w.ep(0).stats().probes), (1, 0));
    w.settle();
    assert_eq!(w.ep(0).stats().retransmitted, 1);
}

/// The only message, or its acknowledgement, is lost.
#[test]
fn a_lost_tail_is_probed() {
    for lossy in [0, 1] {
        let mut w = World::pair(config());
        let s = w.connect(0, 1);
        let mut lost = false;
        w.filter =
            Some(Box::new(move |from, _| from != lossy || std::mem::replace(&mut lost, true)));
        w.send_message(0, s, 0, 32, None).unwrap();
        w.settle();
        assert_eq!(w.nodes[1].messages.len(), 1);
        assert_eq!(w.ep(0).outstanding_messages(), 0);
        assert_eq!(w.ep(1).stats().dropped(RxDrop::Duplicate), lossy as u64);
    }
}

/// Messages end with their session, and a silent path ends the session.
#[test]
fn messages_end_with_their_session() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    w.link = Link { loss: 1_000_000, ..Link::perfect() };
    for id in 0..8 {
        w.send_message(0, s, id, 32, None).unwrap();
    }
    w.settle();
    assert_eq!(w.ep(0).session_state(s), SessionState::Gone);
    assert_eq!(w.ep(0).poll_failed(), Some(s));
    let stats = w.ep(0).stats();
    assert_eq!((stats.messages_failed, stats.messages_acknowledged), (8, 0));
    assert_eq!(w.ep(0).outstanding_messages(), 0);
    assert!(matches!(w.send_message(0, s, 9, 32, None), Err(RejectReason::NoSession(_))));
}

/// A message whose deadline passes before it is sent is dropped; one that arrives after it is not
/// delivered, and both are counted.
#[test]
fn stale_messages_are_counted_and_not_delivered() {
    let mut w = World::pair(courser_proto::Config { credits: 1, ..config() });
    let s = w.connect(0, 1);
    w.call(0, s, 100, 8);
    w.finish(0, 1);
    w.link.latency_ns = 40_000;
    w.send_message(0, s, 0, 32, Some(30_000)).unwrap();
    w.send_message(0, s, 1, 32, Some(60_000)).unwrap();
    w.send_message(0, s, 2, 32, None).unwrap();
    w.settle();
    assert!(w.nodes[1].messages.iter().map(|m| m.0).eq([2]));
    assert_eq!(w.ep(1).stats().messages_expired, 1);
    assert_eq!(w.ep(0).stats().messages_unsent, 1);
}

/// A message in flight is not answered; of those that wait behind it the first has no deadline.
#[test]
fn messages_that_expire_while_the_peer_is_silent_make_room() {
    let mut w = World::pair(courser_proto::Config { credits: 1, message_queue: 8, ..config() });
    let s = w.connect(0, 1);
    w.filter = Some(Box::new(|_, _| false));
    let mut id = 0;
    while w.send_message(0, s, id, 32, (id > 1).then_some(1_000_000)).is_ok() {
        id += 1;
    }
    assert_eq!(id, 8);
    w.run_until(w.now_ns + 30_000_000);
    assert_eq!(w.ep(0).stats().messages_unsent, 6);
    w.send_message(0, s, id, 32, None).unwrap();
    w.filter = None;
    w.settle();
    assert!(w.nodes[1].messages.iter().map(|m| m.0).eq([0, 1, 8]));
}

/// A message that waits for the connect as if it were large, and fits a packet.
#[test]
fn messages_sent_before_the_connect_arrive() {
    let mut w = World::pair(config());
    let d = w.dial(0, 0);
    for (id, len) in [(0, 32), (1, 1_000), (2, 3 * DPP)] {
        w.send_message(0, d.session, id, len, None).unwrap();
    }
    let accept = w.accept(1, 0, &d.request).unwrap();
    w.ep(0).established(&accept, super::support::addr(1), courser_buf::PathId(1)).unwrap();
    w.settle();
    let mut arrived: Vec<u16> = w.nodes[1].messages.iter().map(|m| m.0).collect();
    arrived.sort_unstable();
    assert_eq!(arrived, [0, 1, 2]);
    assert!(w.nodes[1].messages.iter().all(|m| m.2) && w.nodes[0].given.is_empty());
    assert_eq!(w.ep(1).stats().requests, 0);
}

/// Acknowledgements that contradict what was sent change nothing.
#[test]
fn forged_acknowledgements_are_dropped() {
    let mut w = World::pair(config());
    let (s, mut f) = w.connect_forge(0, 1);
    let session = f.accept.client_session;
    let ack = |next, later| Packet::MessageAck { session, next, later };
    let bytes = f.frame(0, &[ack(0, 0)]);
    expect_drop(&mut w, 0, &bytes, RxDrop::Inconsistent);
    for id in 0..3 {
        w.send_message(0, s, id, 32, None).unwrap();
    }
    w.pump();
    for (next, later) in [(4, 0), (3, 1), (0, 1 << 2), (0, 1 << 63), (u32::MAX, 0)] {
        let bytes = f.frame(0, &[ack(next, later)]);
        let reason = if next == u32::MAX { RxDrop::Stale } else { RxDrop::Inconsistent };
        expect_drop(&mut w, 0, &bytes, reason);
    }
    w.settle();
    assert_eq!(w.ep(0).stats().messages_acknowledged, 3);
}

/// Numbers far ahead are dropped without an acknowledgement; the memory of a session is bounded.
#[test]
fn numbers_ahead_of_the_window_are_dropped() {
    let mut w = World::pair(config());
    let (_, mut f) = w.connect_forge(0, 1);
    let session = f.accept.session.number;
    let message =
        |number| Packet::Message { session, number, msg_type: 1, remaining_us: None, data: b"" };
    for (number, reason) in [(1024, RxDrop::OutOfOrder), (1 << 30, RxDrop::OutOfOrder)] {
        let bytes = f.frame(1, &[message(number)]);
        expect_drop(&mut w, 1, &bytes, reason);
    }
    assert_eq!(w.ep(1).stats().tx_packets, 0);
    let bytes = f.frame(1, &[message(1023)]);
    w.inject(0, 1, &bytes);
    let bytes = f.frame(1, &[message(1023)]);
    expect_drop(&mut w, 1, &bytes, RxDrop::Duplicate);
    assert_eq!(w.nodes[1].messages.len(), 1);
}

/// A message of several packets that is on its way ends with its session too.
#[test]
fn large_messages_end_with_their_session() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    for (id, len) in [(0, 3 * DPP), (1, 32), (2, 2 * DPP)] {
        w.send_message(0, s, id, len, None).unwrap();
    }
    w.ep(0).close(s);
    w.settle();
    let stats = w.ep(0).stats();
    assert_eq!((stats.messages_failed, stats.messages_acknowledged), (3, 0));
    assert_eq!(w.ep(0).outstanding_messages(), 0);
}

/// Calls and messages of a session together can have more in flight than C, and than is left of the
/// pool when another session ends.
#[test]
fn a_pool_shrinks_below_what_is_in_flight() {
    let mut w = World::pair(courser_proto::Config { credits: 2, ..config() });
    let [s, other] = [w.connect(0, 1), w.connect(0, 1)];
    w.call(0, s, 0, 6 * DPP);
    for id in 1..4 {
        w.send_message(0, s, id, 32, None).unwrap();
    }
    w.pump();
    assert_eq!(w.ep(0).stats().tx_packets, 4);
    w.ep(0).close(other);
    w.ep(0).check();
    w.settle();
    let stats = w.ep(0).session_stats(s).unwrap();
    assert_eq!((stats.pool, stats.pool_left), (2, 2));
    assert_eq!(w.nodes[1].messages.len(), 3);
}

/// Calls that wait leave no room for messages of several packets: room is reported when they are
/// fewer.
#[test]
fn room_is_reported_when_only_calls_were_in_the_way() {
    let mut w = World::pair(courser_proto::Config { call_queue: 2, slots: 1, ..config() });
    let s = w.connect(0, 1);
    for id in 10..13 {
        w.call(0, s, id, 8);
    }
    let refused = w.send_message(0, s, 0, 3 * DPP, None);
    assert_eq!(refused, Err(RejectReason::QueueFull { limit: 2 }));
    w.settle();
    assert_eq!(w.notices(0), [Notice::Freed { session: s, messages: true }]);
}

/// Without a queue of calls, a message of several packets waits for a slot.
#[test]
fn room_for_large_messages_without_a_queue_is_reported_when_a_slot_is_free() {
    let mut w = World::pair(courser_proto::Config { call_queue: 0, slots: 1, ..config() });
    let s = w.connect(0, 1);
    w.call(0, s, 10, 8);
    let refused = w.send_message(0, s, 0, 3 * DPP, None);
    assert_eq!(refused, Err(RejectReason::QueueFull { limit: 0 }));
    assert_eq!(w.notices(0), []);
    w.settle();
    assert_eq!(w.notices(0), [Notice::Freed { session: s, messages: true }]);
    w.send_message(0, s, 1, 3 * DPP, None).unwrap();
    w.settle();
    assert_eq!(w.notices(0), [], "nothing was refused");
}

/// A call and messages that were refused are reported together, and messages only if the session lives.
#[test]
fn one_notice_reports_all_that_a_session_has_refused() {
    for closes in [false, true] {
        let few = courser_proto::Config { message_queue: 4, call_queue: 1, slots: 1, ..config() };
        let mut w = World::pair(few);
        let s = w.connect(0, 1);
        for id in 10..12 {
            w.call(0, s, id, 8);
        }
        while w.send_message(0, s, 0, 32, None).is_ok() {}
        w.send_message(0, s, 1, 3 * DPP, None).unwrap_err();
        w.ep(0).await_room(s, &RejectReason::QueueFull { limit: 1 });
        if closes {
            w.ep(0).close(s);
        }
        w.settle();
        assert_eq!(w.notices(0), [Notice::Freed { session: s, messages: !closes }]);
    }
}

/// Room that is gone again before the application was told of it is not reported.
#[test]
fn room_is_reported_once_however_often_messages_are_refused() {
    let mut w = World::pair(courser_proto::Config { message_queue: 4, ..config() });
    let s = w.connect(0, 1);
    for round in 0..2 {
        while w.send_message(0, s, round, 32, None).is_ok() {}
        w.settle();
    }
    while w.send_message(0, s, 2, 32, None).is_ok() {}
    assert_eq!(w.notices(0), [], "the queue is full");
    w.settle();
    assert_eq!(w.notices(0), [Notice::Freed { session: s, messages: true }]);
}

/// A message in a frame of its own does not overtake one in a frame that waits for the batch before.
#[test]
fn messages_do_not_overtake_those_in_a_later_batch() {
    let split = courser_proto::Config { split_batches: true, inline_max: 64, ..config() };
    let mut w = World::pair(split);
    let s = w.connect(0, 1);
    // Two frames with four responses each.
    let answers = Rc::new(RefCell::new(Vec::new()));
    let seen = answers.clone();
    w.filter = Some(Box::new(move |from, bytes| {
        if from == 1 {
            seen.borrow_mut().push(bytes.to_vec());
        }
        from == 0
    }));
    for id in 0..8 {
        w.call(0, s, id, 8);
        if id % 4 == 3 {
            w.pump();
            w.run_to(w.now_ns + 10_000);
        }
    }
    assert_eq!(answers.borrow().len(), 2);
    // Their continuations make four calls each: a batch, and the message behind it is in the next.
    let mut frames = Vec::new();
    for (id, len) in [(0, 32), (1, 600)] {
        w.nodes[0].next = (0..4).map(|call| (s, 10 + 4 * id + call, 8)).collect();
        let answer = answers.borrow()[usize::from(id)].clone();
        w.deliver_only(1, 0, &answer);
        w.send_message(0, s, id, len, None).unwrap();
        frames.extend(w.nodes[0].transmit(w.now_ns, false, false));
    }
    frames.extend(w.nodes[0].transmit(w.now_ns, false, false));
    for (_, frame) in frames {
        w.inject(0, 1, &frame);
    }
    assert!(w.nodes[1].messages.iter().map(|m| m.0).eq([0, 1]));
}

/// When a session ends, messages that have arrived behind a lost one are not counted as failed.
#[test]
fn messages_behind_a_lost_one_end_once() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    let mut frames = 0;
    w.filter = Some(Box::new(move |from, _| {
        frames += usize::from(from == 0);
        from != 0 || frames != 1
    }));
    for id in 0..3 {
        w.send_message(0, s, id, 32, None).unwrap();
        w.pump();
    }
    while w.ep(0).stats().messages_acknowledged == 0 {
        assert!(w.step());
    }
    w.ep(0).close(s);
    let stats = w.ep(0).stats();
    assert_eq!(stats.messages_failed + stats.messages_acknowledged, 3);
    assert_eq!(w.ep(0).outstanding_messages(), 0);
}

/// An acknowledgement names 64 messages behind the first missing one. Those behind them may have
/// arrived: they are not sent again.
#[test]
fn only_messages_that_an_acknowledgement_names_count_as_lost() {
    let many = courser_proto::Config { credits: 600, rx_queue_frames: 2048, ..config() };
    let mut w = World::pair(many);
    let s = w.connect(0, 1);
    w.call(0, s, 1_000, 8);
    w.finish(0, 1);
    let (mut frames, lost) = (0, Rc::new(RefCell::new(0)));
    let dropped = lost.clone();
    w.filter = Some(Box::new(move |from, bytes| {
        frames += usize::from(from == 0);
        let drops = from == 0 && (frames == 1 || frames == 6);
        if drops {
            *dropped.borrow_mut() += packets(bytes).count() as u64;
        }
        !drops
    }));
    for id in 0..384 {
        w.send_message(0, s, id, 32, None).unwrap();
    }
    w.settle();
    assert!(*lost.borrow() > 20, "two frames with many messages");
    assert_eq!(w.nodes[1].messages.len(), 384);
    assert_eq!(w.ep(0).stats().retransmitted, *lost.borrow());
    assert_eq!(w.ep(1).stats().dropped(RxDrop::Duplicate), 0);
}

/// Acknowledgements that state nothing new do not put off the timeout of a lost message.
#[test]
fn repeated_acknowledgements_do_not_delay_a_retransmission() {
    let mut w = World::pair(config());
    let s = w.connect(0, 1);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let acks = seen.clone();
    let mut frames = 0;
    w.filter = Some(Box::new(move |from, bytes| {
        if from == 1 {
            acks.borrow_mut().push(bytes.to_vec());
        }
        frames += usize::from(from == 0);
        from == 1 || frames != 2
    }));
    for id in 0..2 {
        w.send_message(0, s, id, 32, None).unwrap();
        w.run_to(w.now_ns + 10_000);
    }
    let ack = seen.borrow().first().cloned().unwrap();
    for _ in 0..200 {
        w.inject(1, 0, &ack);
        w.run_to(w.now_ns + 10_000);
    }
    assert_eq!(w.nodes[1].messages.len(), 2);
}

/// The memory of a client's large requests is used up: small messages need none.
#[test]
fn messages_arrive_while_their_client_has_no_memory_left() {
    let mut w = World::pair(courser_proto::Config { max_held_per_peer: 5_000, ..config() });
    w.nodes[1].handler = Box::new(|_, _| Action::Forget);
    let s = w.connect(0, 1);
    w.call(0, s, 100, 3 * DPP);
    w.run_to(w.now_ns + 100_000);
    w.send_message(0, s, 0, 32, None).unwrap();
    w.run_to(w.now_ns + 100_000);
    let stats = w.ep(1).stats();
    assert_eq!((stats.requests, stats.messages_received, stats.messages_refused), (1, 1, 0));
}

/// Each queue reports its own room: calls that wait do not keep small messages from being sent.
#[test]
fn room_for_small_messages_does_not_wait_for_calls() {
    let few = courser_proto::Config { message_queue: 4, call_queue: 2, slots: 1, ..config() };
    let mut w = World::pair(few);
    w.nodes[1].handler = Box::new(|_, _| Action::Forget);
    let s = w.connect(0, 1);
    for id in 10..13 {
        w.call(0, s, id, 8);
    }
    while w.send_message(0, s, 0, 32, None).is_ok() {}
    w.run_to(w.now_ns + 100_000);
    assert_eq!(w.notices(0), [Notice::Freed { session: s, messages: true }]);
}
