//! The short cuts for small RPCs do what the general code does: the same seeded worlds run with and
//! without them. Timers of short calls have times of their own, so that passes, acknowledgements and
//! retransmissions come at other times, and frames are not the same. With every fault that the link
//! knows, and with calls that are given up, the same calls end. Without, they end the same way, byte
//! for byte, and each side runs as many requests.

#![allow(unreachable_pub)] // `support` is a module here, and of other programs too

#[allow(unused_imports)] // this program uses a part
#[path = "protocol/support/mod.rs"]
mod support;

use courser_proto::mutant::take_short_cuts;
use courser_proto::{Config, Recovery, Status};
use support::{Action, DPP, Link, Rng, World, config, pattern};

const SEEDS: u64 = 200;
const CALLS: u16 = 120;
const MS: u64 = 1_000_000;

/// What can be seen of a world, whenever it happened.
#[derive(PartialEq, Debug, Default)]
struct Seen {
    /// Each call that has ended: its number, its length and, in calm worlds, how.
    ended: Vec<(u64, usize, String)>,
    /// In calm worlds, of each side: requests that ran, responses and errors that calls ended with.
    counts: Vec<[u64; 3]>,
}

fn size(rng: &mut Rng) -> usize {
    match rng.below(8) {
        0 => rng.below(4 * DPP as u64) as usize,
        1 => DPP - 1 + rng.below(3) as usize,
        2 => rng.below(DPP as u64 + 1) as usize,
        _ => rng.below(70) as usize,
    }
}

fn some_config(rng: &mut Rng, faults: bool) -> Config {
    let cfg = Config {
        slots: rng.pick(&[1, 2, 8, 16]),
        credits: rng.pick(&[1, 2, 8, 32]),
        // With little room sessions wait in line for credits.
        rx_queue_frames: rng.pick(&[2, 4, 8, 1024]),
        rx_queue_per_peer: rng.below(2) != 0,
        inline_max: rng.pick(&[0, 40, 512]),
        // Calls are deferred, or not.
        far_sessions: rng.pick(&[0, 512]),
        // Lone packets say when they were sent, or not.
        time_every_ns: rng.pick(&[0, 4_000, 100_000]),
        // Some messages are too large, and some processes hold too much.
        max_msg_size: rng.pick(&[50, 1_000, 1 << 20]),
        max_held_per_peer: rng.pick(&[3 * DPP, 256 << 20, 256 << 20]),
        tx_frames: rng.pick(&[1, 128]),
        tx_items: rng.pick(&[2, 64]),
        prealloc_responses: rng.below(8) != 0,
        zero_copy_rx: rng.below(8) != 0,
        packing: rng.below(4) != 0,
        tx_halves: rng.below(2) != 0,
        recovery: rng.pick(&[Recovery::GoBackN, Recovery::Selective]),
        ..config()
    };
    // What is refused for that depends on when the responses before were acknowledged.
    if faults { cfg } else { Config { max_held_per_peer: 256 << 20, ..cfg } }
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

fn world(seed: u64, rng: &mut Rng, faults: bool) -> World {
    let configs = [some_config(rng, faults), some_config(rng, faults)];
    let mut w = World::new(&configs, seed);
    for node in &mut w.nodes {
        node.copies = rng.below(2) != 0;
        let seed = rng.clone().below(1 << 32);
        node.handler = Box::new(move |_, req| {
            // Whatever was asked before.
            let mix = |sum: u64, &b: &u8| sum.wrapping_mul(31) ^ u64::from(b);
            let mut rng = Rng(req.iter().fold(seed, mix));
            let answer = match rng.below(2) {
                0 => req.to_vec(),
                _ => pattern(3, size(&mut rng)),
            };
            match rng.below(12) {
                0 => Action::Defer(rng.below(if faults { MS } else { MS / 50 }), answer),
                1 => Action::Status(Status::Refused),
                // What is too large is refused where it is allocated.
                2 if answer.len() <= 50 => Action::ReplyMsg(answer),
                _ => Action::Reply(answer),
            }
        });
    }
    let link = some_link(rng);
    w.link =
        if faults { link } else { Link { loss: 0, duplicate: 0, reorder: 0, corrupt: 0, ..link } };
    w
}

/// What was seen, and how many lone frames were copied.
fn run(seed: u64, pulls: bool, faults: bool) -> (Seen, u64) {
    let mut rng = Rng(seed);
    let mut w = world(seed, &mut rng, faults);
    w.nodes.iter_mut().for_each(|n| n.pulls = pulls);
    let sessions = [(0, w.connect(0, 1)), (1, w.connect(1, 0)), (0, w.connect(0, 1))];
    let mut seen = Seen::default();
    let collect = |w: &mut World, seen: &mut Seen| {
        for node in 0..2 {
            let how = |result| if faults { String::new() } else { format!("{result:?}") };
            let done = w.take_done(node).into_iter();
            seen.ended.extend(done.map(|d| (d.id, d.request.len(), how(d.result))));
        }
    };
    let mut made = Vec::new();
    for id in 0..CALLS {
        let (node, s) = rng.pick(&sessions);
        let len = size(&mut rng);
        let call = match rng.below(10) {
            0 if len <= 50 && faults => Ok(w.call_within(node, s, id, len, rng.below(2 * MS))),
            _ => w.try_call(node, s, id, len),
        };
        made.extend(call.map(|call| (node, call)));
        if faults && rng.below(12) == 0 && !made.is_empty() {
            let (node, call) = rng.pick(&made);
            w.ep(node).cancel(call);
        }
        if rng.below(3) != 0 {
            let until_ns = w.now_ns + rng.below(100_000);
            w.run_to(until_ns);
            collect(&mut w, &mut seen);
        }
    }
    w.run_to(w.now_ns + 20 * MS);
    collect(&mut w, &mut seen);
    assert_eq!(seen.ended.len(), made.len(), "seed {seed}");
    seen.ended.sort_unstable();
    for node in w.nodes.iter().filter(|_| !faults) {
        let stats = node.ep.stats();
        seen.counts.push([stats.requests, stats.responses, stats.errors]);
    }
    (seen, w.nodes.iter().map(|n| n.lone).sum())
}

#[test]
fn the_short_cuts_do_what_the_general_code_does() {
    let (mut calls, mut lone) = (0, 0);
    for (seed, faults) in (0..SEEDS).flat_map(|seed| [(seed, false), (seed, true)]) {
        take_short_cuts(false);
        let (general, _) = run(seed, true, faults);
        take_short_cuts(true);
        for pulls in [false, true] {
            let (short, copied) = run(seed, pulls, faults);
            assert_eq!(general, short, "seed {seed}, pulls {pulls}, faults {faults}");
            lone += copied;
        }
        calls += general.ended.len();
    }
    assert!(calls > 20_000, "{calls} calls: nothing happened");
    assert!(lone > 1_000, "{lone} frames were copied");
}
