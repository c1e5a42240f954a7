//! Cost of MELO's data structures per packet, compared with receivers and senders that keep and
//! search one flag per packet `[MELO §3.2]` (M12, M20).
//!
//! Usage: `melo [--quick]` prints nanoseconds, medians of interleaved runs: per packet received, or
//! per NACK with its retransmissions. `melo SCENARIO SCHEME ROUNDS` runs one scenario, for counting
//! instructions: `in-order`, `loss` (1 %), `nacks` (those of the same loss), `returns` (holes
//! reported with every packet while there are any), `kept` and `kept-8` (the same loss, with the state
//! among those of an endpoint, without a limit and with one of 8 that hold bits, all in use), or
//! `swaps-8` and `swaps-128` (a state with a bitmap of this many packets leaves the pool and returns,
//! M32); the last four for `melo` only. Scheme `melo` or `plain`.
//!
//! ```text
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no \
//!     --toggle-collect='melo::measured_*' target/release/examples/melo loss melo 10
//! ```
//! The message has 8,192 packets (8 MiB at 1 KiB each), a lost one is received 256 packets after
//! its hole was detected, and no retransmission is lost.

// This program measures time; the protocol itself reads no clock.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

#[path = "../src/loss/papers/melo/mod.rs"]
#[allow(dead_code)] // functions that are not measured
mod melo;

#[path = "../src/loss/papers/resident.rs"]
#[allow(dead_code)] // functions that are not measured
mod resident;

use melo::pool::{BLOCK_BYTES, BitsPool, PAPER_BITS};
use melo::{Arrival, Hole, Reorder, SenderMap};
use resident::Residents;

/// The pool of the paper: pointers of a byte.
type Pool = BitsPool<u8>;

fn pool() -> Pool {
    Pool::new(PAPER_BITS, BLOCK_BYTES)
}

const PACKETS: u32 = 8192;
const ROUND_TRIP: u32 = 256;
const HOLES: usize = 3;

type Failure = Box<dyn std::error::Error>;

/// Feedback of a receiver.
struct Nack {
    rcv_nxt: u32,
    rcv_high: u32,
    holes: Vec<Hole>,
}

/// A receiver with one flag per packet.
struct PlainReceiver {
    received: Vec<bool>,
    nxt: usize,
    high: usize,
    holes: [Hole; HOLES],
}

impl PlainReceiver {
    fn new() -> Self {
        let holes = [Hole { first: 0, len: 0 }; HOLES];
        PlainReceiver { received: vec![false; PACKETS as usize], nxt: 0, high: 0, holes }
    }

    fn on_packet(&mut self, psn: u32) {
        let psn = psn as usize;
        self.received[psn] = true;
        while self.nxt < self.received.len() && self.received[self.nxt] {
            self.nxt += 1;
        }
        let new_hole = psn > self.high;
        self.high = self.high.max(psn + 1);
        if new_hole {
            self.find_holes();
        }
    }

    /// The three most recent, from the highest packet down.
    fn find_holes(&mut self) {
        self.holes = [Hole { first: 0, len: 0 }; HOLES];
        let (mut at, mut found) = (self.high, 0);
        while at > self.nxt && found < HOLES {
            at -= 1;
            if self.received[at] {
                continue;
            }
            let end = at + 1;
            while at > self.nxt && !self.received[at - 1] {
                at -= 1;
            }
            self.holes[found] = Hole { first: at as u32, len: (end - at) as u32 };
            found += 1;
        }
    }
}

/// A sender with one flag per packet.
struct PlainSender {
    received: Vec<bool>,
    una: usize,
    next: usize,
    high: usize,
}

impl PlainSender {
    fn new() -> Self {
        PlainSender { received: vec![false; PACKETS as usize], una: 0, next: 0, high: 0 }
    }

    fn on_nack(&mut self, nack: &Nack) {
        self.una = self.una.max(nack.rcv_nxt as usize);
        self.high = self.high.max(nack.rcv_high as usize);
        let mut top = nack.rcv_high as usize;
        for hole in &nack.holes {
            self.received[(hole.first + hole.len) as usize..top].fill(true);
            top = hole.first as usize;
        }
    }

    fn next_lost(&mut self) -> Option<Hole> {
        let from = self.next.max(self.una);
        let first = (from..self.high).find(|&at| !self.received[at]);
        let Some(first) = first else {
            self.next = self.high;
            return None;
        };
        self.next = (first..self.high).find(|&at| self.received[at]).unwrap_or(self.high);
        Some(Hole { first: first as u32, len: (self.next - first) as u32 })
    }
}

/// Order of arrival when one packet of 100 is lost once.
fn arrivals() -> Vec<u32> {
    let (mut order, mut again) = (Vec::new(), VecDeque::new());
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for psn in 0..PACKETS {
        while let Some(&(due, lost)) = again.front()
            && due <= psn
        {
            again.pop_front();
            order.push(lost);
        }
        random ^= random << 13; // Marsaglia's xorshift64
        random ^= random >> 7;
        random ^= random << 17;
        if (random >> 20).is_multiple_of(100) {
            again.push_back((psn + ROUND_TRIP, psn));
        } else {
            order.push(psn);
        }
    }
    order.extend(again.into_iter().map(|(_, lost)| lost));
    order
}

/// Feedback for this order of arrival: at new holes, or always while there is one.
fn nacks(order: &[u32], always: bool) -> Vec<Nack> {
    let (mut pool, mut reorder) = (pool(), Reorder::new());
    let mut said = Vec::new();
    for &psn in order {
        let arrival = reorder.on_packet(&mut pool, psn);
        let (rcv_nxt, rcv_high) = (reorder.rcv_nxt(), reorder.rcv_high());
        let open = always && rcv_nxt < rcv_high;
        if open || matches!(arrival, Arrival::OutOfOrder { new_hole: true }) {
            said.push(Nack { rcv_nxt, rcv_high, holes: reorder.holes().collect() });
        }
    }
    said
}

#[inline(never)]
fn measured_melo_receiver(pool: &mut Pool, reorder: &mut Reorder<u8>, order: &[u32]) {
    for &psn in order {
        let arrival = reorder.on_packet(pool, psn);
        if matches!(arrival, Arrival::OutOfOrder { new_hole: true }) {
            let mut told = [Hole { first: 0, len: 0 }; HOLES];
            told.iter_mut().zip(reorder.holes()).for_each(|(told, hole)| *told = hole);
            black_box(told);
        }
        black_box(arrival);
    }
}

#[inline(never)]
fn measured_plain_receiver(receiver: &mut PlainReceiver, order: &[u32]) {
    for &psn in order {
        receiver.on_packet(psn);
        black_box(receiver.holes[0]);
    }
}

#[inline(never)]
fn measured_melo_sender(pool: &mut Pool, sender: &mut SenderMap<u8>, nacks: &[Nack]) {
    for nack in nacks {
        let learned = sender.on_nack(pool, nack.rcv_nxt, nack.rcv_high, &nack.holes);
        black_box(learned.is_ok());
        while let Some(hole) = sender.next_lost(pool) {
            black_box(hole);
        }
    }
}

#[inline(never)]
fn measured_plain_sender(sender: &mut PlainSender, nacks: &[Nack]) {
    for nack in nacks {
        sender.on_nack(nack);
        while let Some(hole) = sender.next_lost() {
            black_box(hole);
        }
    }
}

#[inline(never)]
fn measured_melo_kept(residents: &mut Residents<u8>, id: u32, order: &[u32]) {
    for &psn in order {
        let arrival = residents.on_packet(id, psn);
        if matches!(arrival, Arrival::OutOfOrder { new_hole: true }) {
            black_box(residents.holes(id));
        }
        black_box(arrival);
    }
}

/// Swaps of a state in a run.
const SWAPS: usize = 1_000;

#[inline(never)]
fn measured_melo_swaps(pool: &mut Pool, mut reorder: Reorder<u8>) -> Reorder<u8> {
    for _ in 0..SWAPS {
        let out = black_box(reorder.swap_out(pool));
        reorder = Reorder::swap_in(out, pool).unwrap_or_else(|_| Reorder::new());
    }
    reorder
}

/// Input of a scenario.
enum Scenario {
    Receive(Vec<u32>),
    /// With the most states that hold bits.
    Kept(u32, Vec<u32>),
    Send(Vec<Nack>),
    /// Packets of the bitmap.
    Swap(u32),
}

impl Scenario {
    fn named(name: &str) -> Result<Scenario, Failure> {
        Ok(match name {
            "in-order" => Scenario::Receive((0..PACKETS).collect()),
            "loss" => Scenario::Receive(arrivals()),
            "nacks" => Scenario::Send(nacks(&arrivals(), false)),
            "returns" => Scenario::Send(nacks(&arrivals(), true)),
            "kept" => Scenario::Kept(0, arrivals()),
            "kept-8" => Scenario::Kept(8, arrivals()),
            "swaps-8" => Scenario::Swap(8),
            "swaps-128" => Scenario::Swap(128),
            _ => return Err(format!("no scenario {name}").into()),
        })
    }

    fn steps(&self) -> usize {
        match self {
            Scenario::Receive(order) | Scenario::Kept(_, order) => order.len(),
            Scenario::Send(nacks) => nacks.len(),
            Scenario::Swap(_) => SWAPS,
        }
    }

    /// Processes one message; returns the nanoseconds.
    fn run(&self, plain: bool) -> u64 {
        let mut pool = pool();
        let ns = |start: Instant| start.elapsed().as_nanos() as u64;
        match (self, plain) {
            (Scenario::Swap(packets), _) => {
                let mut reorder = Reorder::new();
                (1..*packets).for_each(|psn| {
                    black_box(reorder.on_packet(&mut pool, psn));
                });
                let start = Instant::now();
                measured_melo_swaps(&mut pool, reorder).release(&mut pool);
                ns(start)
            }
            (Scenario::Kept(most, order), _) => {
                let mut residents = Residents::new(pool, *most);
                let id = residents.add(0);
                for _ in 1..*most {
                    let other = residents.add(0);
                    black_box(residents.on_packet(other, 1));
                }
                let start = Instant::now();
                measured_melo_kept(&mut residents, id, order);
                ns(start)
            }
            (Scenario::Receive(order), false) => {
                let mut reorder = Reorder::new();
                let start = Instant::now();
                measured_melo_receiver(&mut pool, &mut reorder, order);
                ns(start)
            }
            (Scenario::Receive(order), true) => {
                let mut receiver = PlainReceiver::new();
                let start = Instant::now();
                measured_plain_receiver(&mut receiver, order);
                ns(start)
            }
            (Scenario::Send(nacks), false) => {
                let mut sender = SenderMap::new();
                let start = Instant::now();
                measured_melo_sender(&mut pool, &mut sender, nacks);
                ns(start)
            }
            (Scenario::Send(nacks), true) => {
                let mut sender = PlainSender::new();
                let start = Instant::now();
                measured_plain_sender(&mut sender, nacks);
                ns(start)
            }
        }
    }
}

/// Medians of both schemes, in hundredths of a nanosecond per step.
fn compare(scenario: &Scenario, rounds: usize) -> [u64; 2] {
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..rounds {
        for (plain, times) in [false, true].into_iter().zip(&mut times) {
            times.push(scenario.run(plain));
        }
    }
    times.map(|mut times| {
        times.sort_unstable();
        times[rounds / 2] * 100 / scenario.steps() as u64
    })
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let rounds = match args[..] {
        [] => 2001,
        ["--quick"] => 101,
        [scenario, scheme @ ("melo" | "plain"), rounds] => {
            let (scenario, rounds) = (Scenario::named(scenario)?, rounds.parse::<usize>()?);
            for _ in 0..rounds {
                scenario.run(scheme == "plain");
            }
            println!("{} steps", scenario.steps() * rounds);
            return Ok(());
        }
        _ => return Err("usage: melo [--quick | SCENARIO (melo | plain) ROUNDS]".into()),
    };
    println!("{:<44} {:>8} {:>8}", "", "melo ns", "plain ns");
    for (name, what) in [
        ("in-order", "receiver, a packet, in order"),
        ("loss", "receiver, a packet, 1 % lost"),
        ("nacks", "sender, a NACK at a new hole, 1 % lost"),
        ("returns", "sender, holes told with each packet, 1 % lost"),
    ] {
        let [melo, plain] = compare(&Scenario::named(name)?, rounds);
        let decimal = |hundredths: u64| format!("{}.{:02}", hundredths / 100, hundredths % 100);
        println!("{what:<44} {:>8} {:>8}", decimal(melo), decimal(plain));
    }
    Ok(())
}
