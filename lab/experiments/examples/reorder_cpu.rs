//! CPU cost of reordering packets by copies at 40 Gbit/s, and of placing them directly instead
//! `[MELO §4.2.1]` (M25, M27).
//!
//! Usage: `reorder_cpu [--quick] [--json -]`.
//!
//! The order of arrival is the packet trace of simulated runs ([`courser_lab::experiments::loss::arrivals`]):
//! one flow at 40 Gbit/s with MELO's recovery, a bandwidth-delay product of 512 KB, and a switch that
//! loses packets. On each trace one thread of this machine is measured:
//!
//! - With a reorder buffer: every packet that arrives after a gap is copied into a reorder buffer, and
//!   from there to its message when the gap is filled. Receive ring, reorder buffer and message are 64
//!   MiB each and used in turn, so that every copy misses the caches.
//! - Placed directly: each packet is copied to its message at once, which is necessary in any case and
//!   not counted. The bookkeeping is counted: the receiver's bits and the sender's scoreboard.
//!
//! A share is CPU time over the virtual time of the trace: 1 is a whole core. The paper counts the
//! copies out of the buffer only. Medians over the seeds, with the range of the paper's share.

// This program measures; the protocol itself reads no clock.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::hint::black_box;
use std::time::Instant;

use courser_lab::experiments::loss::{Trace, TraceSettings, arrivals};

#[path = "../../../crates/proto/src/loss/arrived.rs"]
#[allow(dead_code)] // functions that are not measured
mod arrived;
#[path = "../../../crates/proto/src/loss/feedback.rs"]
#[allow(dead_code)]
mod feedback;
#[path = "../../../crates/proto/src/loss/papers/melo/mod.rs"]
#[allow(dead_code, unused_imports)]
mod melo;
#[path = "../../../crates/proto/src/loss/scoreboard.rs"]
#[allow(dead_code)]
mod scoreboard;

/// The part of the folder of published schemes that these modules use.
mod papers {
    pub(crate) use super::melo::Hole;
}

/// The part of the wire format that these modules use.
mod wire {
    pub(crate) use courser_proto::wire::{Holes, MAX_HOLES};
}

use arrived::Arrived;
use feedback::{AckInfo, LossFeedback, Nack};
use scoreboard::Scoreboard;

const PACKET: usize = 1024;
const LINK_BPS: u64 = 40_000_000_000;
/// A packet on the link, headers included, ns.
const PACKET_NS: u64 = 227;
/// Packets of a bandwidth-delay product.
const ROUND_TRIP: u64 = 512;
const BUFFER: usize = 64 << 20;
const PLACES: usize = BUFFER / PACKET;
/// Losses in a million, and the paper's results.
const LOSSES: [(u32, &str); 7] = [
    (100, ""),
    (500, ""),
    (1_000, ""),
    (2_000, "about 30 % of a core"),
    (10_000, ""),
    (20_000, ""),
    (50_000, "bound: 82.2 % of a core"),
];

type Failure = Box<dyn std::error::Error>;

struct Buffers {
    ring: Vec<u8>,
    reorder: Vec<u8>,
    message: Vec<u8>,
}

/// Time spent, ns, and the number of packets.
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

/// A receiver with a reorder buffer. Only copies are timed, those in a row together.
fn with_a_buffer(trace: &Trace, b: &mut Buffers) -> Spent {
    let (order, packets) = (&trace.order, trace.packets);
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

/// Copies the packets that have arrived after a gap since the last call.
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

/// Time of the receiver's bits, ns.
fn receiver_bits(trace: &Trace) -> u64 {
    let start = Instant::now();
    let (mut next, mut gaps) = (0, None);
    for &(psn, _) in &trace.order {
        if psn == next && gaps.is_none() {
            next += 1;
            continue;
        }
        let arrived = gaps.get_or_insert_with(|| Arrived::new(next, trace.packets));
        arrived.insert(psn);
        if psn == next {
            next = arrived.in_order(next);
        }
        black_box(next);
    }
    start.elapsed().as_nanos() as u64
}

/// Time of the sender's scoreboard, ns, when each packet is acknowledged by itself half a round trip
/// after its arrival.
fn sender_board(trace: &Trace) -> u64 {
    let mut board = Scoreboard::new(0);
    let start = Instant::now();
    let mut next = 0;
    for &(psn, at_ns) in &trace.order {
        while next < trace.packets && next <= psn + ROUND_TRIP as u32 {
            board.sent(next, u64::from(next) * PACKET_NS);
            next += 1;
        }
        let round_trip_ns = ROUND_TRIP * PACKET_NS;
        let window_ns = round_trip_ns / 4;
        let ack = AckInfo { now_ns: at_ns + round_trip_ns / 2, round_trip_ns, window_ns };
        board.arrived(psn, ack, &mut LossFeedback::default());
        board.advance();
        board.judge(window_ns);
        while let Some((first, run)) = board.next_lost(trace.packets) {
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

fn measure(
    loss_ppm: u32,
    time_ns: u64,
    seeds: u64,
    rounds: usize,
    b: &mut Buffers,
) -> Result<Row, Failure> {
    let mut columns = vec![Vec::new(); 5];
    for seed in 1..=seeds {
        let settings = TraceSettings { seed, loss_ppm, time_ns, ..TraceSettings::default() };
        let trace = arrivals(&settings)?;
        let mut of_seed = vec![Vec::new(); 5];
        for _ in 0..rounds {
            let s = with_a_buffer(&trace, b);
            let spent =
                [s.into_ns + s.out_ns, s.out_ns, receiver_bits(&trace), sender_board(&trace)];
            for (column, ns) in of_seed.iter_mut().zip(spent) {
                column.push(ns as f64 / time_ns as f64);
            }
            of_seed[4].push(s.copied as f64 / trace.order.len() as f64);
        }
        columns.iter_mut().zip(of_seed).for_each(|(column, seed)| column.push(median(seed)));
    }
    let out = columns[1].clone();
    let range = [
        ("reorder_copies_out_core_fraction_min", out.iter().copied().fold(f64::MAX, f64::min)),
        ("reorder_copies_out_core_fraction_max", out.iter().copied().fold(0.0, f64::max)),
    ];
    let keys = [
        "reorder_copies_in_and_out_core_fraction",
        "reorder_copies_out_core_fraction",
        "direct_receiver_bits_core_fraction",
        "direct_sender_board_core_fraction",
        "packets_behind_a_hole_fraction",
    ];
    let loss = [("loss_fraction", f64::from(loss_ppm) / 1e6)];
    let medians = keys.into_iter().zip(columns.into_iter().map(median));
    Ok(loss.into_iter().chain(medians).chain(range).collect())
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
    let (time_ns, seeds, rounds) = if quick { (20_000_000, 3, 1) } else { (100_000_000, 5, 3) };
    let mut b =
        Buffers { ring: vec![1; BUFFER], reorder: vec![2; BUFFER], message: vec![3; BUFFER] };
    let rows = LOSSES
        .iter()
        .map(|&(loss, _)| measure(loss, time_ns, seeds, rounds, &mut b))
        .collect::<Result<Vec<Row>, _>>()?;
    if as_json {
        println!("{}", json(&rows));
        return Ok(());
    }
    let ms = time_ns / 1_000_000;
    println!("Percent of a core at 40 Gbit/s; traces of {ms} ms, medians of {seeds} seeds.");
    println!(
        "{:>7} {:>8} {:>11} {:>9} {:>15} {:>8} {:>8}  paper",
        "loss", "behind", "in and out", "out only", "range", "bits", "board"
    );
    for (row, (_, paper)) in rows.iter().zip(LOSSES) {
        let percent: Vec<f64> = row.iter().map(|(_, value)| value * 100.0).collect();
        let [loss, both, out, bits, board, behind, low, high] = percent[..] else { continue };
        println!(
            "{loss:>5.2} % {behind:>6.1} % {both:>9.1} % {out:>7.1} % {low:>5.1} - {high:>5.1} % \
             {bits:>6.2} % {board:>6.2} %  {paper}"
        );
    }
    Ok(())
}
