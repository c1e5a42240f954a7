//! CPU cost of restoring packet order by copies at 40 Gbit/s, and of direct placement instead
//! `[MELO §4.2.1]` (M25, M27).
//!
//! Usage: `reorder_cpu [--quick] [--json -]`.
//!
//! One flow sends 1,024-byte packets at 40 Gbit/s (204.8 ns each, headers excluded) over a path of
//! 512 KB, so that a lost packet is retransmitted 512 packets later, and may be lost again. For the
//! resulting order of arrival, one thread measures on this machine:
//!
//! - With a reorder buffer: every packet after a hole is copied into a reorder buffer, and out of
//!   it to its message when the hole is filled. Receive ring, reorder buffer and message have 64
//!   MiB each and are used in rotation, so that every copy misses the caches.
//! - Placed directly: each packet is copied to its message at once, which is necessary in any case
//!   and not counted. The cost is the tracking: the receiver's bits, and the sender's scoreboard.
//!
//! A share is the time spent divided by the transmission time of the packets: 1 is a whole core.
//! The paper counts only the copies out of the buffer.

// This program measures time; the protocol itself reads no clock.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

#[path = "../src/loss/arrived.rs"]
#[allow(dead_code)] // functions that are not measured
mod arrived;
#[path = "../src/loss/feedback.rs"]
#[allow(dead_code)]
mod feedback;
#[path = "../src/loss/melo/mod.rs"]
#[allow(dead_code, unused_imports)]
mod melo;
#[path = "../src/loss/scoreboard.rs"]
#[allow(dead_code)]
mod scoreboard;

/// Wire constants used by the modules above.
mod wire {
    pub(crate) use courser_proto::wire::{Holes, MAX_HOLES};
}

use arrived::Arrived;
use feedback::{AckInfo, LossFeedback, Nack};
use scoreboard::Scoreboard;

const PACKET: usize = 1024;
const LINK_BPS: u64 = 40_000_000_000;
/// Packets of a bandwidth-delay product.
const ROUND_TRIP: u64 = 512;
const BUFFER: usize = 64 << 20;
const PLACES: usize = BUFFER / PACKET;
/// Losses per million, and the paper's statement about them.
const LOSSES: [(u64, &str); 7] = [
    (100, ""),
    (500, ""),
    (1_000, ""),
    (2_000, "about 30 % of a core"),
    (10_000, ""),
    (20_000, ""),
    (50_000, "bound: 82.2 % of a core"),
];

type Failure = Box<dyn std::error::Error>;

/// Packets in order of arrival, each with its send time in packet times.
fn arrivals(packets: u32, loss_ppm: u64) -> Vec<(u32, u64)> {
    let (mut order, mut again) = (Vec::new(), BTreeMap::<u64, u32>::new());
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let (mut next, mut slot) = (0, 0_u64);
    while next < packets || !again.is_empty() {
        let due = again.first_key_value().is_some_and(|(&due, _)| due <= slot);
        let lost = if due || next == packets { again.pop_first() } else { None };
        let psn = lost.map_or(next, |(_, psn)| psn);
        match lost {
            Some((due, _)) => slot = slot.max(due),
            None => next += 1,
        }
        random ^= random << 13; // Marsaglia's xorshift64
        random ^= random >> 7;
        random ^= random << 17;
        if (random >> 20) % 1_000_000 < loss_ppm {
            again.insert(slot + ROUND_TRIP, psn);
        } else {
            order.push((psn, slot));
        }
        slot += 1;
    }
    order
}

struct Buffers {
    ring: Vec<u8>,
    reorder: Vec<u8>,
    message: Vec<u8>,
}

/// Time spent, ns, and number of packets.
#[derive(Clone, Copy, Default)]
struct Spent {
    copied: u64,
    into_ns: u64,
    out_ns: u64,
}

fn place(at: usize) -> std::ops::Range<usize> {
    let at = at % PLACES * PACKET;
    at..at + PACKET
}

/// A receiver with a reorder buffer. Only copies are timed, successive ones together.
fn with_a_buffer(order: &[(u32, u64)], packets: u32, b: &mut Buffers) -> Spent {
    let mut had = vec![false; packets as usize + 1];
    let (mut next, mut spent) = (0_usize, Spent::default());
    let mut waiting: Vec<(usize, usize)> = Vec::new();
    for (at, &(psn, _)) in order.iter().enumerate() {
        let psn = psn as usize;
        had[psn] = true;
        if psn != next {
            waiting.push((at, psn));
            continue;
        }
        spent.into_ns += copy_in(&mut waiting, b, &mut spent.copied);
        let first = psn + 1;
        while had[next] {
            next += 1;
        }
        let start = Instant::now();
        for psn in first..next {
            b.message[place(psn)].copy_from_slice(&b.reorder[place(psn)]);
        }
        if next > first {
            spent.out_ns += start.elapsed().as_nanos() as u64;
        }
    }
    black_box(&b.message);
    spent
}

/// Copies the packets that have arrived after a hole since the last call.
fn copy_in(waiting: &mut Vec<(usize, usize)>, b: &mut Buffers, copied: &mut u64) -> u64 {
    if waiting.is_empty() {
        return 0;
    }
    *copied += waiting.len() as u64;
    let start = Instant::now();
    for (at, psn) in waiting.drain(..) {
        b.reorder[place(psn)].copy_from_slice(&b.ring[place(at)]);
    }
    start.elapsed().as_nanos() as u64
}

/// Cost of the receiver's bits, ns.
fn receiver_bits(order: &[(u32, u64)], packets: u32) -> u64 {
    let start = Instant::now();
    let (mut next, mut gaps) = (0, None);
    for &(psn, _) in order {
        if psn == next && gaps.is_none() {
            next += 1;
            continue;
        }
        let arrived = gaps.get_or_insert_with(|| Arrived::new(next, packets));
        arrived.insert(psn);
        if psn == next {
            next = arrived.in_order(next);
        }
        black_box(next);
    }
    start.elapsed().as_nanos() as u64
}

/// Cost of the sender's scoreboard, ns, when each packet is acknowledged separately a round trip
/// after its transmission.
fn sender_board(order: &[(u32, u64)], packets: u32) -> u64 {
    let mut board = Scoreboard::new(0);
    let start = Instant::now();
    let mut next = 0;
    for &(psn, slot) in order {
        while next < packets && next <= psn + ROUND_TRIP as u32 {
            board.sent(next, u64::from(next) * 205);
            next += 1;
        }
        let round_trip_ns = ROUND_TRIP * 205;
        let window_ns = round_trip_ns / 4;
        let ack = AckInfo { now_ns: slot * 205 + round_trip_ns, round_trip_ns, window_ns };
        board.arrived(psn, ack, &mut LossFeedback::default());
        board.advance();
        board.judge(window_ns);
        while let Some((first, run)) = board.next_lost(packets) {
            (first..first + run).for_each(|psn| board.sent(psn, ack.now_ns));
        }
    }
    black_box(board.lost());
    start.elapsed().as_nanos() as u64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Keys and values of one loss rate.
type Row = Vec<(&'static str, f64)>;

fn measure(loss_ppm: u64, packets: u32, rounds: usize, b: &mut Buffers) -> Row {
    let order = arrivals(packets, loss_ppm);
    let link_ns = f64::from(packets) * (PACKET * 8) as f64 * 1e9 / LINK_BPS as f64;
    let mut columns = vec![Vec::new(); 5];
    for _ in 0..rounds {
        let s = with_a_buffer(&order, packets, b);
        let (bits, board) = (receiver_bits(&order, packets), sender_board(&order, packets));
        let spent = [s.into_ns + s.out_ns, s.out_ns, bits, board];
        for (column, ns) in columns.iter_mut().zip(spent) {
            column.push(ns as f64 / link_ns);
        }
        columns[4].push(s.copied as f64 / f64::from(packets));
    }
    let keys = [
        "reorder_copies_in_and_out_core_fraction",
        "reorder_copies_out_core_fraction",
        "direct_receiver_bits_core_fraction",
        "direct_sender_board_core_fraction",
        "packets_behind_a_hole_fraction",
    ];
    let loss = [("loss_fraction", loss_ppm as f64 / 1e6)];
    loss.into_iter().chain(keys.into_iter().zip(columns.into_iter().map(median))).collect()
}

fn json(rows: &[Row]) -> String {
    let rows = rows.iter().map(|row| {
        let fields = row.iter().map(|(key, value)| format!("\"{key}\": {value}"));
        format!("    {{{}}}", fields.collect::<Vec<_>>().join(", "))
    });
    let rows = rows.collect::<Vec<_>>().join(",\n");
    format!(
        "{{\n  \"link_bps\": {LINK_BPS},\n  \"packet_bytes\": {PACKET},\n  \"bdp_bytes\": {},\n  \
         \"paper_core_fraction_at_loss_2e-3\": 0.30,\n  \"paper_core_fraction_bound\": 0.822,\n  \
         \"results\": [\n{rows}\n  ]\n}}",
        ROUND_TRIP * PACKET as u64
    )
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (mut quick, mut as_json) = (false, false);
    let mut args = args.iter().map(String::as_str);
    while let Some(arg) = args.next() {
        match arg {
            "--quick" => quick = true,
            "--json" if args.next() == Some("-") => as_json = true,
            _ => return Err("usage: reorder_cpu [--quick] [--json -]".into()),
        }
    }
    let (packets, rounds) = if quick { (1 << 17, 3) } else { (1 << 20, 7) };
    let mut b =
        Buffers { ring: vec![1; BUFFER], reorder: vec![2; BUFFER], message: vec![3; BUFFER] };
    let rows: Vec<Row> =
        LOSSES.iter().map(|&(loss, _)| measure(loss, packets, rounds, &mut b)).collect();
    if as_json {
        println!("{}", json(&rows));
        return Ok(());
    }
    println!("Percent of a core at 40 Gbit/s; {packets} packets, medians of {rounds}.");
    println!(
        "{:>7} {:>8} {:>11} {:>9} {:>9} {:>9}  paper",
        "loss", "behind", "in and out", "out only", "bits", "board"
    );
    for (row, (_, paper)) in rows.iter().zip(LOSSES) {
        let percent: Vec<f64> = row.iter().map(|(_, value)| value * 100.0).collect();
        let [loss, both, out, bits, board, behind] = percent[..] else { continue };
        println!(
            "{loss:>5.2} % {behind:>6.1} % {both:>9.1} % {out:>7.1} % {bits:>7.2} % {board:>7.2} %  \
             {paper}"
        );
    }
    Ok(())
}
