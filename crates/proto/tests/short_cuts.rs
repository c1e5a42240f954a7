//! The short cuts for small RPCs do what the general code does: the same seeded worlds, with every
//! fault that the link knows, run with and without them, and nothing that can be seen differs.

#![allow(unreachable_pub)] // `support` is a module here, and of other programs too

#[allow(unused_imports)] // this program uses a part
#[path = "protocol/support/mod.rs"]
mod support;

use std::cell::RefCell;
use std::rc::Rc;

use courser_proto::mutant::take_short_cuts;
use courser_proto::{Config, EndpointStats, SessionStats, Status};
use support::{Action, DPP, Link, Rng, World, config, pattern};

const SEEDS: u64 = 200;
const CALLS: u16 = 120;
const MS: u64 = 1_000_000;

/// All that can be seen of a world.
#[derive(PartialEq, Debug, Default)]
struct Seen {
    /// Each frame: when, by whom, and its bytes.
    frames: Vec<(usize, Vec<u8>)>,
    /// Each call as it ended.
    ended: Vec<(u64, usize, String)>,
    stats: Vec<EndpointStats>,
    sessions: Vec<Option<SessionStats>>,
    now_ns: u64,
}

fn size(rng: &mut Rng) -> usize {
    match rng.below(8) {
        0 => rng.below(4 * DPP as u64) as usize,
        1 => DPP - 1 + rng.below(3) as usize,
        2 => rng.below(DPP as u64 + 1) as usize,
        _ => rng.below(70) as usize,
    }
}

fn some_config(rng: &mut Rng) -> Config {
    Config {
        slots: rng.pick(&[1, 2, 8]),
        credits: rng.pick(&[1, 2, 8, 32]),
        inline_max: rng.pick(&[0, 40, 512]),
        // Some messages are too large, and some processes hold too much.
        max_msg_size: rng.pick(&[50, 1_000, 1 << 20]),
        max_held_per_peer: rng.pick(&[3 * DPP, 256 << 20, 256 << 20]),
        tx_frames: rng.pick(&[1, 128]),
        tx_items: rng.pick(&[2, 64]),
        prealloc_responses: rng.below(8) != 0,
        zero_copy_rx: rng.below(8) != 0,
        packing: rng.below(4) != 0,
        ..config()
    }
}

fn some_link(rng: &mut Rng) -> Link {
    Link {
        loss: rng.pick(&[0, 0, 10_000, 100_000]),
        duplicate: rng.pick(&[0, 20_000, 200_000]),
        reorder: rng.pick(&[0, 20_000, 200_000]),
        corrupt: rng.pick(&[0, 10_000]),
        latency_ns: rng.pick(&[1_000, 30_000]),
        late_ns: rng.pick(&[2_000, 200_000]),
        hold: rng.below(2) == 0,
    }
}

fn world(seed: u64, rng: &mut Rng) -> World {
    let configs = [some_config(rng), some_config(rng)];
    let mut w = World::new(&configs, seed);
    for node in &mut w.nodes {
        let mut rng = rng.clone();
        node.handler = Box::new(move |_, req| {
            let answer = match rng.below(2) {
                0 => req.to_vec(),
                _ => pattern(3, size(&mut rng)),
            };
            match rng.below(12) {
                0 => Action::Defer(rng.below(MS), answer),
                1 => Action::Status(Status::Refused),
                // What is too large is refused where it is allocated.
                2 if answer.len() <= 50 => Action::ReplyMsg(answer),
                _ => Action::Reply(answer),
            }
        });
    }
    w.link = some_link(rng);
    w
}

fn run(seed: u64, pulls: bool) -> Seen {
    let mut rng = Rng(seed);
    let mut w = world(seed, &mut rng);
    w.nodes.iter_mut().for_each(|n| n.pulls = pulls);
    let frames = Rc::new(RefCell::new(Vec::new()));
    let log = frames.clone();
    w.filter = Some(Box::new(move |from, bytes| {
        log.borrow_mut().push((from, bytes.to_vec()));
        true
    }));
    let sessions = [(0, w.connect(0, 1)), (1, w.connect(1, 0)), (0, w.connect(0, 1))];
    let mut seen = Seen::default();
    let collect = |w: &mut World, seen: &mut Seen| {
        for node in 0..2 {
            let done = w.take_done(node).into_iter();
            seen.ended.extend(done.map(|d| (d.id, d.request.len(), format!("{:?}", d.result))));
        }
    };
    let mut made = Vec::new();
    for id in 0..CALLS {
        let (node, s) = rng.pick(&sessions);
        let len = size(&mut rng);
        let call = match rng.below(10) {
            0 if len <= 50 => Ok(w.call_within(node, s, id, len, rng.below(2 * MS))),
            _ => w.try_call(node, s, id, len),
        };
        made.extend(call.map(|call| (node, call)));
        if rng.below(12) == 0 && !made.is_empty() {
            let (node, call) = rng.pick(&made);
            w.ep(node).cancel(call);
        }
        if rng.below(3) != 0 {
            let until_ns = w.now_ns + rng.below(100_000);
            w.run_until(until_ns);
            collect(&mut w, &mut seen);
        }
    }
    w.run_until(w.now_ns + 20 * MS);
    collect(&mut w, &mut seen);
    seen.frames = frames.take();
    seen.stats = w.nodes.iter().map(|n| n.ep.stats().clone()).collect();
    seen.sessions = sessions.iter().map(|&(node, s)| w.ep(node).session_stats(s)).collect();
    seen.now_ns = w.now_ns;
    seen
}

#[test]
fn the_short_cuts_do_what_the_general_code_does() {
    let (mut frames, mut ended) = (0, 0);
    for seed in 0..SEEDS {
        take_short_cuts(false);
        let general = run(seed, true);
        take_short_cuts(true);
        for pulls in [false, true] {
            let short = run(seed, pulls);
            for (at, (a, b)) in general.frames.iter().zip(&short.frames).enumerate() {
                assert_eq!(a, b, "seed {seed}, pulls {pulls}: frame {at}");
            }
            assert_eq!(general, short, "seed {seed}, pulls {pulls}");
        }
        frames += general.frames.len();
        ended += general.ended.len();
    }
    assert!(frames > 10_000 && ended > 10_000, "{frames} frames, {ended} calls: nothing happened");
}
