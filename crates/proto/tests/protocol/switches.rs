//! Switches for measuring single optimisations (E75): each changes only its own effect.

use std::collections::VecDeque;

use courser_proto::{Config, Factors, Packing};

use super::support::link::describe;
use super::support::{Action, DPP, World, config, pattern};

/// Too long for a response that is kept in its slot.
const LEN: usize = 50;

fn echoes(cfg: Config) -> World {
    let mut w = World::pair(cfg);
    w.tracing = true;
    let s = w.connect(0, 1);
    for round in 0..3 {
        (0..4).for_each(|i| {
            let _ = w.call(0, s, 4 * round + i, LEN);
        });
        let mut done = w.finish(0, 4);
        done.sort_by_key(|d| d.id);
        for d in done {
            assert_eq!(d.result.expect("a response"), pattern(d.id, LEN));
        }
    }
    w
}

#[test]
fn without_preallocation_each_response_has_a_buffer_of_its_own() {
    let on = echoes(config());
    assert!(on.nodes[1].ep.memory().prealloc_bytes > 0 && on.nodes[1].ep.memory().held_bytes == 0);
    let factors = Factors { prealloc_responses: false, ..Factors::default() };
    let off = echoes(Config { factors, ..config() });
    assert!(
        off.nodes[1].ep.memory().prealloc_bytes == 0 && off.nodes[1].ep.memory().held_bytes > 0
    );
    assert_eq!(on.story(), off.story());
    assert_eq!(on.nodes[1].ep.stats(), off.nodes[1].ep.stats());
}

#[test]
fn without_zero_copy_each_request_has_a_buffer_of_its_own() {
    let on = echoes(config());
    let factors = Factors { zero_copy_rx: false, ..Factors::default() };
    let off = echoes(Config { factors, ..config() });
    assert_eq!((on.nodes[1].copied, off.nodes[1].copied), (0, 12));
    assert_eq!(on.story(), off.story());
    assert_eq!(on.nodes[1].ep.stats(), off.nodes[1].ep.stats());
}

#[test]
fn without_packing_each_packet_is_a_frame() {
    let on = echoes(config());
    let off = echoes(Config { packing: Packing::Off, ..config() });
    for node in 0..2 {
        let (on, off) = (on.nodes[node].ep.stats(), off.nodes[node].ep.stats());
        assert_eq!((on.tx_packets, on.tx_frames), (12, 3));
        assert_eq!((off.tx_packets, off.tx_frames), (12, 12));
    }
    assert_eq!(on.story(), off.story());
}

#[test]
fn prefetching_changes_no_behaviour() {
    let (on, off) = (echoes(config()), echoes(Config { prefetch: false, ..config() }));
    assert_eq!(on.story(), off.story());
    assert_eq!(on.nodes[1].ep.stats(), off.nodes[1].ep.stats());
}

#[test]
fn half_batches_let_the_server_start_with_the_first_calls() {
    for (split_batches, frames) in [(false, 1), (true, 2)] {
        let mut w = World::pair(Config { split_batches, slots: 8, ..config() });
        let s = w.connect(0, 1);
        (0..8).for_each(|id| _ = w.call(0, s, id, 32));
        let done = w.finish(0, 8);
        assert!(done.iter().all(|d| d.result == Ok(pattern(d.id, 32))));
        let client = w.nodes[0].ep.stats();
        assert_eq!((client.tx_packets, client.tx_frames), (8, frames), "halves: {split_batches}");
        w.nodes[0].ep.check();
    }
}

#[test]
fn without_the_copy_of_requests_handlers_get_the_right_length_and_nothing_else_changes() {
    let run = |copy_requests: bool| {
        let factors = Factors { copy_requests, ..Factors::default() };
        let mut w = World::pair(Config { factors, ..config() });
        w.tracing = true;
        let s = w.connect(0, 1);
        _ = w.call(0, s, 7, 5 * DPP);
        let done = w.finish(0, 1);
        let answer = done[0].result.as_ref().expect("an echo").clone();
        (answer, w)
    };
    let ((with, on), (without, off)) = (run(true), run(false));
    assert_eq!(with, pattern(7, 5 * DPP));
    assert_eq!(without.len(), with.len());
    assert_ne!(without, with, "nothing was copied");
    assert_eq!(on.story(), off.story());
    for node in 0..2 {
        assert_eq!(on.nodes[node].ep.stats(), off.nodes[node].ep.stats());
    }
}

#[test]
fn half_batches_limit_calls_and_not_replies() {
    let cfg = |split_batches| Config { split_batches, slots: 8, ..config() };
    let mut w = World::new(&[cfg(false), cfg(true)], 1);
    w.nodes[0].handler = Box::new(|_, req| Action::Defer(500_000, req.to_vec()));
    let (there, back) = (w.connect(0, 1), w.connect(1, 0));
    (0..8).for_each(|id| _ = w.call(1, back, id, 32));
    w.run_to(w.now_ns + 100_000);
    assert_eq!(w.nodes[1].ep.outstanding_calls(), 8, "its calls wait for their answers");
    let before = w.nodes[1].ep.stats().clone();
    (10..18).for_each(|id| _ = w.call(0, there, id, 32));
    w.finish(0, 8);
    let after = w.nodes[1].ep.stats();
    let sent = (after.tx_packets - before.tx_packets, after.tx_frames - before.tx_frames);
    assert_eq!(sent, (8, 1), "more than half of its calls");
}

#[test]
fn a_reply_is_not_delayed_by_a_request_of_the_next_batch() {
    for prealloc_responses in [true, false] {
        let factors = Factors { prealloc_responses, ..Factors::default() };
        a_reply_leaves_at_once(Config { slots: 8, factors, ..config() });
    }
}

fn a_reply_leaves_at_once(cfg: Config) {
    let halves = Config { split_batches: true, ..cfg.clone() };
    let mut w = World::new(&[cfg, halves], 1);
    let (there, back) = (w.connect(0, 1), w.connect(1, 0));
    w.call(0, there, 19, 32);
    w.finish(0, 1); // the buffer for responses of its slot is there
    w.call(0, there, 20, 32);
    let now_ns = w.now_ns;
    let frames = w.nodes[0].transmit(now_ns, false, true);
    // Half of these leave at a time, and then comes the request.
    (0..8).for_each(|id| _ = w.call(1, back, id, 32));
    w.deliver_only(0, 1, &frames[0].1);
    let kinds = |w: &mut World| -> Vec<_> {
        let frames = w.nodes[1].transmit(now_ns, false, true);
        let seen = frames.iter().flat_map(|(_, bytes)| describe(1, bytes));
        seen.map(|packet| packet.server_kind).collect()
    };
    assert_eq!(kinds(&mut w), [true, false, false, false, false], "the reply, and four requests");
    assert_eq!(kinds(&mut w), [false; 4], "the others");
}

#[test]
fn calls_of_continuations_do_not_starve_a_waiting_call() {
    let mut w = World::pair(Config { split_batches: true, slots: 16, ..config() });
    let s = w.connect(0, 1);
    (0..8).for_each(|id| _ = w.call(0, s, id, 32));
    let now_ns = w.now_ns;
    // Both halves are at the server; then comes one more call.
    let mut answers = VecDeque::new();
    let exchange = |w: &mut World, answers: &mut VecDeque<Vec<(usize, Vec<u8>)>>| {
        let sent = w.nodes[0].transmit(now_ns, false, true);
        sent.iter().for_each(|(_, bytes)| w.deliver_only(0, 1, bytes));
        answers.push_back(w.nodes[1].transmit(now_ns, false, true));
        sent.iter().map(|(_, bytes)| describe(0, bytes).len()).sum::<usize>()
    };
    assert_eq!([exchange(&mut w, &mut answers), exchange(&mut w, &mut answers)], [4, 4]);
    w.call(0, s, 99, 32);
    let answer = |w: &mut World, answers: &mut VecDeque<Vec<(usize, Vec<u8>)>>, id: u16| {
        w.nodes[0].next = (id..id + 4).map(|id| (s, id, 32)).collect();
        for (_, bytes) in answers.pop_front().expect("an answer") {
            w.deliver_only(1, 0, &bytes);
        }
    };
    answer(&mut w, &mut answers, 100);
    let mut sent = Vec::new();
    for id in (200..600).step_by(100) {
        answer(&mut w, &mut answers, id);
        sent.push(exchange(&mut w, &mut answers));
    }
    assert_eq!(sent.iter().sum::<usize>(), 17, "{sent:?}");
    w.nodes[0].ep.check();
}
