//! Frames without send time (`Config::timestamp_interval_ns`).

use std::cell::RefCell;
use std::rc::Rc;

use courser_proto::wire::{FRAME_HEADER, FrameHeader};
use courser_proto::{Config, Recovery, SessionId};

use crate::support::link::describe;
use crate::support::{Action, Link, World, config, pattern};

fn is_untimed(frame: &[u8]) -> bool {
    FrameHeader::parse(frame).unwrap().0.sent_at.is_none()
}

const EVERY_NS: u64 = 4_000;

fn settings(timestamp_interval_ns: u64) -> Config {
    Config { recovery: Recovery::Selective, timestamp_interval_ns, ..config() }
}

/// The sender of each frame, and whether it carried a time.
type Sent = Rc<RefCell<Vec<(usize, bool)>>>;

/// Nodes with a round trip of `rtt_ns`.
fn world(nodes: usize, rtt_ns: u64, cfg: &Config) -> (World, Sent) {
    let mut w = World::new(&vec![cfg.clone(); nodes], 1);
    w.link = Link { latency_ns: rtt_ns / 2, ..Link::default() };
    let sent = Sent::default();
    let seen = Rc::clone(&sent);
    w.filter = Some(Box::new(move |from, bytes| {
        assert!(!is_untimed(bytes) || describe(from, bytes).len() == 1, "more than one packet");
        seen.borrow_mut().push((from, !is_untimed(bytes)));
        true
    }));
    (w, sent)
}

/// Sequential calls, on the sessions in rotation, each made by the continuation of the previous
/// one.
fn calls(w: &mut World, sessions: &[SessionId], count: u16) {
    let in_turn = |id: u16| (sessions[usize::from(id) % sessions.len()], id, 32);
    w.nodes[0].next = (1..count).map(in_turn).collect();
    w.call(0, sessions[0], 0, 32);
    let done = w.finish(0, count.into());
    assert!(done.iter().all(|d| d.result == Ok(pattern(d.id, 32))));
}

fn timed(sent: &Sent, node: usize) -> usize {
    sent.borrow().iter().filter(|(from, timed)| *from == node && *timed).count()
}

#[test]
fn single_packets_carry_the_time_periodically_and_round_trips_stay_exact() {
    const RTT_NS: u64 = 500;
    for (every_ns, least, most) in [(0, 1_000, 1_000), (EVERY_NS, 110, 130)] {
        let (mut w, sent) = world(2, RTT_NS, &settings(every_ns));
        let s = w.connect(0, 1);
        sent.borrow_mut().clear();
        calls(&mut w, &[s], 1_000);
        for node in 0..2 {
            let told = timed(&sent, node);
            assert!((least..=most).contains(&told), "every {every_ns} ns: node {node} {told}");
        }
        let srtt_ns = w.ep(0).session_stats(s).unwrap().srtt_ns.unwrap();
        assert!(srtt_ns.abs_diff(RTT_NS) <= RTT_NS / 50, "every {every_ns} ns: {srtt_ns}");
        let stats = w.ep(0).session_stats(s).unwrap();
        assert_eq!((stats.rollbacks, stats.retransmitted), (0, 0));
    }
}

#[test]
fn frames_that_a_transport_copies_are_the_same() {
    let run = |copies| {
        let (mut w, _) = world(2, 500, &settings(EVERY_NS));
        let frames = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&frames);
        w.filter = Some(Box::new(move |from, bytes| {
            seen.borrow_mut().push((from, bytes.to_vec()));
            bytes.len() > 1_000 || seen.borrow().len() % 50 != 0 // some are lost
        }));
        w.nodes.iter_mut().for_each(|n| n.copies = copies);
        let s = w.connect(0, 1);
        calls(&mut w, &[s], 300);
        let lone = w.nodes.iter().map(|n| n.lone).sum::<u64>();
        let ends = w.nodes.iter().map(|n| (n.ep.stats().clone(), n.ep.session_stats(s)));
        (format!("{:?}", ends.collect::<Vec<_>>()), frames.take(), lone)
    };
    let (held, copied) = (run(false), run(true));
    assert_eq!((held.2, &held.0), (0, &copied.0));
    assert!(copied.2 > 400, "{} frames", copied.2);
    assert!(held.1 == copied.1, "frames differ");
}

#[test]
fn frames_farther_apart_than_the_interval_all_carry_a_time() {
    let (mut w, sent) = world(2, EVERY_NS, &settings(EVERY_NS));
    let s = w.connect(0, 1);
    calls(&mut w, &[s], 100);
    assert!(sent.borrow().iter().all(|(_, timed)| *timed));
}

#[test]
fn only_a_single_small_packet_without_deadline_omits_the_time() {
    let (mut w, sent) = world(2, 500, &settings(100_000));
    let s = w.connect(0, 1);
    calls(&mut w, &[s], 2);
    // Sent when the first of the client's calls ends.
    let told = |w: &mut World, next: &[usize]| {
        w.nodes[0].next = next.iter().map(|&len| (s, 9, len)).collect();
        w.call(0, s, 8, 32);
        w.pump();
        sent.borrow_mut().clear();
        w.finish(0, 1 + next.len());
        timed(&sent, 0)
    };
    assert_eq!(told(&mut w, &[]), 0);
    assert_eq!(told(&mut w, &[32]), 0);
    assert!(told(&mut w, &[5_000]) >= 5, "a large one");
    sent.borrow_mut().clear();
    w.call(0, s, 3, 32);
    w.call(0, s, 4, 32);
    w.finish(0, 2);
    assert_eq!((timed(&sent, 0), timed(&sent, 1)), (1, 1), "two in a frame");
    sent.borrow_mut().clear();
    w.call_within(0, s, 6, 32, 1_000_000);
    w.finish(0, 1);
    assert_eq!(timed(&sent, 0), 1, "with a deadline");
}

#[test]
fn a_call_deferred_beside_a_single_answer_carries_the_time() {
    let far = Config { prefetch_min_sessions: 0, inline_max: 40, ..settings(100_000) };
    let (mut w, sent) = world(2, 500, &far);
    let (s, back) = (w.connect(0, 1), w.connect(1, 0));
    calls(&mut w, &[s], 10);
    for id in [20, 21] {
        w.call(1, back, id, 32); // the next call is deferred
        w.finish(1, 1);
    }
    w.nodes[1].handler = Box::new(move |kind, req| match kind {
        12 => Action::Nest(back, 500, 32),
        _ => Action::Reply(req.to_vec()),
    });
    sent.borrow_mut().clear();
    w.call(0, s, 11, 32);
    w.call(0, s, 12, 32);
    w.finish(0, 2);
    assert!(sent.borrow().contains(&(1, true)), "the filter of the world looks at the rest");
}

#[test]
fn each_peer_receives_the_time() {
    // Calls to two servers in rotation: with one interval for both, one of them would receive none.
    let (mut w, _) = world(3, 500, &settings(EVERY_NS));
    let sessions = [w.connect(0, 1), w.connect(0, 2)];
    calls(&mut w, &sessions, 400);
    for s in sessions {
        let srtt_ns = w.ep(0).session_stats(s).unwrap().srtt_ns.unwrap();
        assert!(srtt_ns.abs_diff(500) <= 10, "{srtt_ns}");
    }
}

#[test]
fn losing_the_first_frame_costs_a_peer_only_its_echo() {
    let (mut w, sent) = world(2, 500, &settings(100_000));
    let s = w.connect(0, 1);
    // The frame with the time is lost; the next ones have none.
    let seen = Rc::clone(&sent);
    w.filter = Some(Box::new(move |from, bytes| {
        seen.borrow_mut().push((from, !is_untimed(bytes)));
        from == 1 || is_untimed(bytes) || seen.borrow().len() > 8
    }));
    calls(&mut w, &[s], 40);
    assert!((0..40).all(|id| w.nodes[1].executed[&id] == 1));
}

#[test]
fn a_deadline_in_a_frame_without_times_is_never_later_than_sent() {
    // Endpoints never send such frames; a receiver takes at most the remaining time as the
    // deadline.
    let (mut w, _) = world(2, 500, &settings(0));
    let s = w.connect(0, 1);
    calls(&mut w, &[s], 20);
    let caught = Rc::new(RefCell::new(Vec::new()));
    let trap = Rc::clone(&caught);
    w.filter = Some(Box::new(move |_, bytes| {
        trap.borrow_mut().push(bytes.to_vec());
        false
    }));
    // The previous frame has waited for long; this does not apply to this one.
    w.call(0, s, 21, 32);
    w.pump();
    w.now_ns += 40_000;
    let late = caught.borrow_mut().remove(0);
    w.inject(0, 1, &late);
    let sent_ns = w.now_ns;
    w.call_within(0, s, 20, 32, 50_000);
    w.pump();
    w.filter = None;
    let mut bytes = caught.borrow_mut().pop().unwrap();
    let (header, _) = FrameHeader::parse(&bytes).unwrap();
    let start = bytes.first_chunk_mut::<FRAME_HEADER>().unwrap();
    FrameHeader { sent_at: None, echo_at: None, ..header }.write(start);
    w.now_ns += 250;
    w.inject(0, 1, &bytes);
    let (_, _, deadline_ns) = *w.nodes[1].started.last().unwrap();
    let deadline_ns = deadline_ns.unwrap() - w.nodes[1].clock_ns;
    assert!((sent_ns + 45_000..=sent_ns + 50_000).contains(&deadline_ns), "{deadline_ns}");
}

/// Requests whose turn for room comes while a full batch waits share a frame of the next batch.
#[test]
fn a_frame_of_requests_that_waited_for_room_carries_the_time() {
    let cfg = Config { split_batches: true, slots: 8, ..settings(1_000_000_000) };
    let small = Config { rx_queue_frames: 4, ..cfg.clone() };
    let mut w = World::new(&[cfg.clone(), cfg, small], 1);
    let (free, short) = (w.connect(0, 1), w.connect(0, 2));
    let pool = w.ep(0).session_stats(short).expect("it is connected").pool as u16;
    assert!((2..=5).contains(&pool), "{pool}");
    // Both peers have received the time and have their buffers.
    w.call(0, short, 900, 32);
    w.call(0, free, 901, 32);
    w.finish(0, 2);
    (0..8).for_each(|id| _ = w.call(0, free, id, 32));
    (0..pool).for_each(|id| _ = w.call(0, short, 100 + id, 32));
    w.call(0, short, 200, 32);
    w.call_within(0, short, 201, 32, 500_000_000);
    let now_ns = w.now_ns;
    for _ in 0..6 {
        for (to, bytes) in w.nodes[0].transmit(now_ns, false, true) {
            w.deliver_only(0, to, &bytes);
        }
    }
    let answers = [1, 2].map(|node| w.nodes[node].transmit(now_ns, false, true));
    // The continuations make the maximum of calls of one batch.
    let half = w.ep(0).outstanding_calls() as u16 / 2;
    w.nodes[0].next = (0..half).map(|i| (free, 300 + i, 32)).collect();
    for (from, frames) in (1..).zip(&answers) {
        frames.iter().for_each(|(_, bytes)| w.deliver_only(from, 0, bytes));
    }
    let mut several = 0;
    for _ in 0..4 {
        for (to, bytes) in w.nodes[0].transmit(now_ns, false, true) {
            let packets = describe(0, &bytes).len();
            assert!(!is_untimed(&bytes) || packets == 1, "{packets} packets, and no time");
            several += usize::from(to == 2 && packets > 1);
        }
    }
    assert_eq!(several, 1, "the two that waited are together");
}
