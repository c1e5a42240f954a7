//! Packets per second from memory at one node to a counter at another.
//!
//! Two threads on cores of their own: the first node takes packets from memory, looks them up in a
//! table of the Internet's size and sends them over the interconnect; the last one counts them, and
//! checks their order and their port. Destinations are random over the table, so that look-ups miss
//! the caches; the packets themselves are in them, as those are that a network card has just written.
//!
//! Five workloads alternate in short windows of one run, so that what slows the machine down slows
//! all of them, and ratios are taken within a round (see `courser_bench`):
//!
//! * `baseline`: the same packets from the same memory, copied into frames of the same transport,
//!   each with its length before it, and counted in the same way: no look-up, no protocol.
//! * `batching`: a node with its default settings.
//! * `no_batching`: a node whose packets have a frame each. Over UDP, the frames of a burst still
//!   leave by one system call, as a train that the kernel does not cut on the loopback.
//! * `one_by_one`: as `no_batching`, and each frame has a system call, also to send.
//! * `look_up`: only the checks, the look-up and the rewriting of packets, in one thread.
//!
//! The sender waits while the window of the link is full: nothing is dropped, and overload costs
//! nothing. Each window ends when its last packet has been counted.

mod baseline;
mod ends;
mod sink;
mod table;

use std::time::Duration;

use courser_bench::clock::Clock;
use courser_bench::contention::Contention;
use courser_bench::stats::{Ratio, Summary};
use courser_kit::affinity::{self, AffinityError};
use courser_kit::environment::Environment;
use serde_json::{Map, Value, json};

use crate::run::NodeError;

pub use table::{Table, TableError};

/// Transport between the two nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// UDP on the loopback.
    Udp,
    /// Shared memory.
    Shm,
    /// Memory of one process.
    Mem,
}

impl Over {
    /// The scheme of its addresses.
    pub const fn scheme(self) -> &'static str {
        match self {
            Over::Udp => "udp",
            Over::Shm => "shm",
            Over::Mem => "mem",
        }
    }
}

/// Settings of a run.
#[derive(Debug)]
pub struct Settings {
    /// The transport.
    pub over: Over,
    /// Bytes of the IP packets, [`SMALLEST`] to 1,500.
    pub sizes: Vec<usize>,
    /// Time for each size.
    pub time: Duration,
    /// Length of a window.
    pub window: Duration,
    /// The routes.
    pub table: Table,
}

/// Bytes of the smallest packet: headers, and what the counter checks.
pub const SMALLEST: usize = 40;

/// Ratio to the baseline that is wanted.
pub const TARGET_RATIO: f64 = 0.7;
/// Ratio of the rates of small packets with and without batching that is wanted.
pub const TARGET_BATCHING: f64 = 3.0;

/// MTU of the interconnect.
const MTU: usize = 9_000;
/// Messages that wait for a link.
const QUEUE: usize = 1_024;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The cores are not known.
    #[error(transparent)]
    Cores(#[from] AffinityError),
    /// A node does not start.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The table cannot be used.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The transport of the baseline cannot be used.
    #[error("the transport of the baseline: {0}; choose another one by --transport")]
    Transport(String),
    /// The nodes did not find each other.
    #[error("the nodes are not connected after {0:?}; end other programs and repeat")]
    NotConnected(Duration),
    /// A thread has panicked.
    #[error("a thread of the benchmark ended early; this is a defect of the program")]
    Thread,
}

/// The workloads, in the order of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Workload {
    Baseline,
    Batching,
    NoBatching,
    OneByOne,
    LookUp,
}

/// A window of each workload.
type Round = [Window; 5];

impl Workload {
    const ALL: [Workload; 5] = [
        Workload::Baseline,
        Workload::Batching,
        Workload::NoBatching,
        Workload::OneByOne,
        Workload::LookUp,
    ];

    /// Those with nodes of their own.
    const NODES: [Workload; 3] = [Workload::Batching, Workload::NoBatching, Workload::OneByOne];

    fn of(number: usize) -> Option<Workload> {
        Workload::ALL.get(number).copied()
    }

    /// The number of its node in each thread.
    fn node(self) -> Option<usize> {
        Workload::NODES.iter().position(|workload| *workload == self)
    }
}

/// A window.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    sent: u64,
    counted: u64,
    elapsed_ns: u64,
}

impl Window {
    fn rate(&self) -> f64 {
        self.counted as f64 * 1e9 / self.elapsed_ns as f64
    }
}

/// Frames that a workload has sent.
#[derive(Clone, Copy, Debug, Default)]
struct Frames {
    packets: u64,
    frames: u64,
    bytes: u64,
    /// Frames and bytes in the other direction, mostly acknowledgements.
    back: (u64, u64),
}

/// What a run of one size found.
#[derive(Debug, Default)]
struct Measured {
    /// Windows by round, in the order of [`Workload::ALL`].
    rounds: Vec<Round>,
    frames: [Frames; 4],
    disordered: u64,
    misrouted: u64,
    drops: Map<String, Value>,
    destinations: usize,
    routes: usize,
    table_bytes: usize,
    baseline_window: u64,
}

impl Measured {
    fn rates(&self, workload: Workload) -> Option<Summary> {
        Summary::of(self.rounds.iter().map(|round| round[workload as usize].rate()))
    }

    fn ratio(&self, measured: Workload, to: Workload) -> Option<Summary> {
        let pair = |round: &Round| (round[measured as usize].rate(), round[to as usize].rate());
        Ratio::of(self.rounds.iter().map(pair)).map(|ratio| ratio.per_pair)
    }

    fn json(&self, packet_bytes: usize) -> Value {
        let lost = |w: &Window| w.sent.saturating_sub(w.counted);
        let lost: u64 = self
            .rounds
            .iter()
            .flat_map(|round| &round[..Workload::LookUp as usize])
            .map(lost)
            .sum();
        let mut result = Map::new();
        result.insert("packet_bytes".into(), packet_bytes.into());
        for (name, workload) in [
            ("baseline", Workload::Baseline),
            ("batching", Workload::Batching),
            ("no_batching", Workload::NoBatching),
            ("one_by_one", Workload::OneByOne),
        ] {
            let mut of = Map::new();
            put(&mut of, "rate_pps", self.rates(workload));
            of.append(&mut self.frames[workload as usize].json(packet_bytes));
            result.insert(name.into(), of.into());
        }
        let ns = |round: &Round| 1e9 / round[Workload::LookUp as usize].rate();
        put(&mut result, "look_up_and_rewrite_ns", Summary::of(self.rounds.iter().map(ns)));
        let ratio = self.ratio(Workload::Batching, Workload::Baseline);
        put(&mut result, "ratio_to_baseline", ratio);
        let ratio = self.ratio(Workload::Batching, Workload::NoBatching);
        put(&mut result, "batching_over_none", ratio);
        let ratio = self.ratio(Workload::Batching, Workload::OneByOne);
        put(&mut result, "batching_over_one_by_one", ratio);
        let counts = json!({
            "rounds": self.rounds.len(), "lost": lost, "out_of_order": self.disordered,
            "misrouted": self.misrouted, "drops": self.drops,
            "destinations": self.destinations, "routes": self.routes,
            "table_bytes": self.table_bytes, "baseline_packets_in_flight": self.baseline_window,
        });
        if let Value::Object(mut counts) = counts {
            result.append(&mut counts);
        }
        result.into()
    }
}

impl Frames {
    fn json(&self, packet_bytes: usize) -> Map<String, Value> {
        let per_packet = |n: u64| n as f64 / self.packets.max(1) as f64;
        let headers = per_packet(self.bytes) - packet_bytes as f64;
        let values = [
            ("packets", self.packets.into()),
            ("packets_per_frame", (self.packets as f64 / self.frames.max(1) as f64).into()),
            ("header_bytes_per_packet", headers.into()),
            ("bytes_per_packet_byte", (per_packet(self.bytes) / packet_bytes as f64).into()),
            ("frames_back_per_packet", per_packet(self.back.0).into()),
            ("bytes_back_per_packet", per_packet(self.back.1).into()),
        ];
        values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// A quantity: its median, range and interval.
fn put(object: &mut Map<String, Value>, name: &str, summary: Option<Summary>) {
    let Some(s) = summary else {
        object.insert(name.to_owned(), Value::Null);
        return;
    };
    let (low, high) = (s.ci.map(|ci| ci.low), s.ci.map(|ci| ci.high));
    let values = [("", Some(s.median)), ("_min", Some(s.min)), ("_max", Some(s.max))];
    for (end, value) in values.into_iter().chain([("_ci_low", low), ("_ci_high", high)]) {
        object.insert(format!("{name}{end}"), value.into());
    }
}

/// Runs the benchmark. `step` gets a text before each size.
///
/// # Errors
/// [`BenchError`].
pub fn run(settings: &Settings, step: &mut dyn FnMut(&str)) -> Result<Value, BenchError> {
    let (clock, cores) = (Clock::new(), affinity::choose()?);
    let contention = Contention::begin();
    let mut results = Vec::new();
    for &bytes in &settings.sizes {
        step(&format!("packets of {bytes} bytes"));
        results.push(ends::run(settings, bytes, &clock, &cores)?.json(bytes));
    }
    let share = contention.and_then(|contention| contention.share());
    Ok(json!({
        "bench": "router",
        "transport": settings.over.scheme(),
        "config": {
            "window_ms": settings.window.as_millis() as u64,
            "time_ms": settings.time.as_millis() as u64,
            "table": settings.table.name(),
            "mtu": MTU, "message_queue": QUEUE,
            "cores_distinct": cores.distinct(),
            "cpu_wait_share": share,
            "target_ratio_to_baseline": TARGET_RATIO,
            "target_batching_over_none_64": TARGET_BATCHING,
        },
        "results": results,
        "environment": Environment::collect(clock.error_ppm(), &cores),
    }))
}
