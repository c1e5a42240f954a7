//! `courser-lab bench packing`: the ways to send small packets to one peer, side by side (S4, S6, S15,
//! S22) `[SG section IV]`.
//!
//! Each size and batch is a run of its own with a pair of endpoints for each way, whose windows
//! alternate. With `copy` and `gather` all sizes of which a frame holds two are packed, above the
//! limits of the defaults too: the table shows where those should be.

use courser::Packing;
use courser_bench::report::{Metric, PlacementResult, Report, Unit};
use courser_bench::rpc::error::BenchError;
use courser_bench::rpc::side::{Over, Variant};
use courser_bench::rpc::spec::{BenchSpec, Kind};
use courser_bench::rpc::steps::{Steps, Windows};
use courser_bench::rpc::switch::Switch;
use courser_bench::window::{Plan, Progress};

/// Bytes in a request, and in its response. The last fills a packet of a link of 1500 bytes.
pub(crate) const SIZES: [u64; 6] = [64, 128, 256, 512, 1024, 1428];

/// Calls that are issued together.
pub(crate) const BATCHES: [u32; 3] = [4, 16, 32];

/// Calls in flight: two batches of the largest kind, so that both sides work.
const IN_FLIGHT: u32 = 64;

/// Packets up to this size are packed: the largest setting.
const ALL: usize = 2_048;

/// A way to send packets: its name, packing, and whether trains are off.
type Way = (&'static str, Option<Packing>, bool);

/// The first one is the base.
const WAYS: [Way; 4] = [
    ("off", Some(Packing::Off), false),
    ("copy", Some(Packing::Copy), false),
    ("gather", Some(Packing::Gather), false),
    ("default", None, false),
];

/// A datagram for each packet, as before batching.
const SINGLE: Way = ("single", Some(Packing::Off), true);

/// Runs the benchmark; the calling thread is pinned meanwhile.
///
/// # Errors
/// [`BenchError`], in one line each.
pub(crate) fn run(
    over: Over,
    plan: Plan,
    (sizes, batches): (&[u64], &[u32]),
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    let mut ways = WAYS.to_vec();
    ways.extend((over == Over::Udp).then_some(SINGLE));
    let mut all: Option<Report> = None;
    for &size in sizes {
        for &batch in batches {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            let report = one((over, plan), &ways, (size, batch), progress)?;
            match &mut all {
                Some(all) => all.results.extend(report.results),
                None => all = Some(report),
            }
        }
    }
    all.ok_or_else(|| BenchError::Raw("no size or no batch; give at least one of each".to_owned()))
}

fn one(
    (over, plan): (Over, Plan),
    ways: &[Way],
    (size, batch): (usize, u32),
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    let mut spec = BenchSpec::new(Kind::Rate, plan);
    (spec.size, spec.batch, spec.in_flight) = (size, batch, IN_FLIGHT.max(batch));
    spec.check()?;
    let variant = |(_, packing, alone): &Way| Variant {
        size,
        packing: *packing,
        packs: packing.filter(|packing| *packing != Packing::Off).map(|_| (1, ALL)),
        off: if *alone { vec![Switch::Trains] } else { Vec::new() },
        ..Variant::default()
    };
    let variants = ways.iter().map(variant).collect();
    let loads = vec![(spec.kind, spec.loads().remove(0))];
    let steps = Steps { name: "packing", over, plan, variants, loads };
    steps.run(progress, &|step, windows, result| {
        let name = ways[step].0;
        result.at_point("packing", name, format!("{size} B by {batch}, {name}"));
        result.extra.insert("size".to_owned(), size.into());
        result.extra.insert("batch".to_owned(), batch.into());
        add_counters(step, windows, result);
        let bases = [
            ("off", "of_off", "of off"),
            ("copy", "of_copy", "of copy"),
            ("gather", "of_gather", "of gather"),
            ("single", "of_single", "of single"),
        ];
        for (base, key, label) in bases {
            let at = ways.iter().position(|way| way.0 == base).filter(|&at| at != step);
            let share = at.and_then(|at| windows.ratio(step, at, Metric::Rate, result));
            if let Some(share) = share {
                result.add(key, label, Unit::Percent, share);
            }
        }
    })
}

/// Adds the number of packets in a frame of this side.
fn add_counters(step: usize, windows: &Windows<'_, '_>, result: &mut PlacementResult) {
    let stats = windows.client(step);
    let packets = stats.tx_packets as f64 / stats.tx_frames.max(1) as f64;
    result.extra.insert("packets_per_frame".to_owned(), packets.into());
}
