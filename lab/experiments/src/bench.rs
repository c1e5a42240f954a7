//! The long benchmarks: each is a series of windows in which one setting changes.

mod bucket;
mod credits;
mod factors;
mod futures;
mod gather;
mod integrity;
mod memory;
mod overload;
mod packing;
mod sessions;
mod sweep;
mod threads;
mod txqueue;
mod workers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use courser::Control;
use courser_bench::plan::{self, PlanArgs};
use courser_bench::progress;
use courser_bench::report::Report;
use courser_bench::rpc::{BenchError, Over};
use courser_bench::table;
use courser_bench::window::{Plan, Progress};
use courser_kit::{Failure, ResultArgs, units};

use self::bucket::BucketPlan;
use self::gather::{Between, Gather, Link};
use self::overload::OverloadPlan;
use self::sweep::{FRAMES, IN_FLIGHT, Sweep};
use crate::picture;

/// Window length of the workers benchmark: ten handlers.
const WORKERS_WINDOW: Duration = Duration::from_millis(40);

/// A long benchmark.
#[derive(Debug, Subcommand)]
pub enum Series {
    /// Round trip while a worker runs handlers of 4 ms
    Workers(WorkersArgs),
    /// Calls answered before their deadline at twice the capacity of a worker
    Overload(OverloadArgs),
    /// The queue in front of a link of 1 Gbit/s, with and without congestion control
    Bucket(BucketArgs),
    /// The rate with optimizations switched off one after another
    Factors(SeriesArgs),
    /// The rate and the bandwidth with a checksum of each frame, compared with none
    Integrity(SeriesArgs),
    /// The bandwidth of 64 large requests at a time with little memory at the server
    Memory(SeriesArgs),
    /// The rate of calls that are futures, and of a typed service, compared with callbacks
    Futures(SeriesArgs),
    /// The rate of packets that leave alone, are copied together, or gathered
    Packing(PackingArgs),
    /// One-way messages by size and batch, as in the paper on scatter-gather batching
    Gather(GatherArgs),
    /// The rate on 1 to 20,000 sessions compared with 8, and their memory
    Sessions(SessionsArgs),
    /// Latency, rate and bandwidth with 1 to 64 credits
    Credits(CreditsArgs),
    /// The rate with 1 to 1,024 calls in flight, by frame size
    Sweep(SweepArgs),
    /// The rate with transmit bursts of 1 to 256 packets
    #[command(name = "txqueue")]
    TxQueue(SeriesArgs),
    /// The rate of 1, 2, 4... threads of one process that all call each other
    Threads(SeriesArgs),
}

/// Flags of a series.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  courser-lab bench factors --transport shm --quick --json -

The rate is that of `courser bench rate --batch 3`: 60 calls in flight on eight \
randomly chosen sessions, as in eRPC (NSDI '19), section 6.2.")]
pub struct SeriesArgs {
    /// The transport: udp and shm connect two processes, mem two threads of one process
    #[arg(long, value_name = "NAME", value_enum, default_value = "udp")]
    transport: Over,
    #[command(flatten)]
    plan: PlanArgs,
    #[command(flatten)]
    output: ResultArgs,
}

/// Flags of `sessions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  courser-lab bench sessions --sessions 8,1000 --quick
  courser-lab bench sessions --transport shm --sessions 20000 --in-use 8 --peers 16")]
pub struct SessionsArgs {
    /// Numbers of sessions in ascending order
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = sessions::COUNTS)]
    sessions: Vec<u32>,
    /// Sessions that have calls, at most the largest of --sessions; default all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    in_use: Option<u32>,
    /// Server endpoints, on one thread, that the sessions are spread over; at most as many as sessions
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    peers: u32,
    #[command(flatten)]
    series: SeriesArgs,
}

/// Flags of `packing`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  courser-lab bench packing --transport shm --size 64,512 --batch 32 --quick

off: a frame for each packet. copy: small packets share frames by copy. gather: they \
share them without a copy. single, over udp: off, without trains of datagrams. These \
pack all sizes of which a frame holds two; default is what endpoints do.")]
pub struct PackingArgs {
    /// Bytes in a request and in its response
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = units::bytes, default_values_t = packing::SIZES)]
    size: Vec<u64>,
    /// Calls that are issued together
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = packing::BATCHES, value_parser = clap::value_parser!(u32).range(1..=256))]
    batch: Vec<u32>,
    #[command(flatten)]
    series: SeriesArgs,
}

/// Flags of `credits`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  courser-lab bench credits --size 1MiB --quick")]
pub struct CreditsArgs {
    /// Bytes in a large request
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = units::message_size)]
    size: usize,
    #[command(flatten)]
    series: SeriesArgs,
}

/// Flags of `sweep`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  courser-lab bench sweep --transport shm --frame-size 1KiB,8KiB --svg sweep.svg")]
pub struct SweepArgs {
    /// Calls in flight in ascending order. Default 1 to 1024
    #[arg(long, value_name = "N", visible_alias = "outstanding", value_delimiter = ',')]
    in_flight: Vec<u32>,
    /// Largest datagram payload of each series. Default 1KiB to 64KiB
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = units::bytes)]
    frame_size: Vec<u64>,
    /// Draw the rates as an SVG file
    #[arg(long, value_name = "PATH")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    series: SeriesArgs,
}

/// Flags of `gather`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  courser-lab bench gather --transport shm --size 64,1500 --batch 1,32 --quick

A batch is sent together before the transmitter runs. Throughput: both sides send, 128 \
messages in flight in each direction (512 beside calls), all headers counted. Latency: half \
of the round trip of a batch of calls without the server's time, which needs no synchronized clocks. off: a \
frame for each packet. copy: packets up to 1280 bytes, of which two fit, are copied into \
shared frames. gather: frames refer to packets instead. single, over UDP: a datagram for \
each packet, without UDP_SEGMENT. A message that is larger than a frame (UDP: 1438 bytes) \
takes two packets; raise --frame-size. --svg x.svg draws x-throughput.svg, x-gain.svg and \
x-latency.svg, with the values that the paper states. veth needs root and ip.

sim: hosts of the simulator in virtual time, a window of each, 2 ms or 1 ms with --quick. The \
same seed gives the same results. CPU costs of a pass, a frame and a packet are those counted \
and timed over shared memory (`CpuCosts::measured`); a NIC takes time, but has no limit of \
frames, and copying or gathering packets takes none.")]
pub struct GatherArgs {
    /// What connects the two sides
    #[arg(long, value_name = "NAME", value_enum, default_value = "udp")]
    transport: Between,
    /// Bytes in a message
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = units::bytes, default_values_t = gather::SIZES)]
    size: Vec<u64>,
    /// Messages that are sent together
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = gather::BATCHES)]
    batch: Vec<u32>,
    /// Largest datagram payload. Default: that of the transport, 8972 for veth and sim
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    frame_size: Option<u64>,
    /// Rate of the simulated links, Gbit/s. Default 40, as in the paper
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    gbps: Option<u64>,
    /// Decides the random choices of the simulator. Default 1
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Draw the results as SVG files
    #[arg(long, value_name = "PATH")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    plan: PlanArgs,
    #[command(flatten)]
    output: ResultArgs,
}

/// Flags of `workers`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  courser-lab bench workers --quick")]
pub struct WorkersArgs {
    #[command(flatten)]
    plan: PlanArgs,
    #[command(flatten)]
    output: ResultArgs,
}

/// Flags of `overload`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  courser-lab bench overload --quick")]
pub struct OverloadArgs {
    /// Three rounds of two seconds instead of seven rounds of eight seconds
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: ResultArgs,
}

/// Flags of `bucket`.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs root, ip and tc: two network namespaces are joined by a virtual link, which a token \
bucket limits to 1 Gbit/s, with a queue of 12 MB. Runs with the control and without any \
alternate. While threads wait for a core the link is idle, unless packets are queued: on \
a busy machine the goodput says little about the control.

Example:
  courser-lab bench bucket --pairs 2")]
pub struct BucketArgs {
    /// The control that is compared with none: default, timely, timely-patched, dcqcn or swift
    #[arg(long, value_name = "NAME", default_value_t)]
    control: Control,
    /// Pairs of runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Client endpoints, which all send
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    senders: u32,
    /// Bytes in a request
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = units::message_size)]
    size: usize,
    /// Measured time of each run
    #[arg(long, value_name = "TIME", default_value = "4s", value_parser = units::nonzero_time)]
    time: Duration,
    #[command(flatten)]
    output: ResultArgs,
}

/// Runs a benchmark.
///
/// # Errors
/// The benchmark cannot run as given, or failed.
pub fn run(series: &Series) -> Result<(), Failure> {
    match series {
        Series::Workers(args) => workers(args),
        Series::Overload(args) => overload(args),
        Series::Bucket(args) => bucket(args),
        Series::Sweep(args) => sweep(args),
        Series::Gather(args) => gather(args),
        Series::Factors(args) => of("factors", args, factors::run),
        Series::Integrity(args) => of("integrity", args, integrity::run),
        Series::Futures(args) => of("futures", args, futures::run),
        Series::Memory(args) => of("memory", args, memory::run),
        Series::Packing(args) => of("packing", &args.series, |over, plan, progress| {
            packing::run(over, plan, (&args.size, &args.batch), progress)
        }),
        Series::TxQueue(args) => of("txqueue", args, txqueue::run),
        Series::Threads(args) => of("threads", args, threads::run),
        Series::Sessions(args) => {
            check_counts(&args.sessions)?;
            check_spread(args)?;
            of("sessions", &args.series, |over, plan, progress| {
                let SessionsArgs { in_use, peers, .. } = *args;
                let compare = sessions::Compare { counts: &args.sessions, in_use, peers };
                sessions::run(over, plan, &compare, progress)
            })
        }
        Series::Credits(args) => of("credits", &args.series, |over, plan, progress| {
            credits::run(over, plan, args.size, progress)
        }),
    }
}

/// A series whose result is an ordinary report.
fn of(
    name: &'static str,
    args: &SeriesArgs,
    run: impl FnOnce(Over, Plan, &mut dyn FnMut(&Progress)) -> Result<Report, BenchError>,
) -> Result<(), Failure> {
    let plan = args.plan.plan();
    let report =
        with_bar(name, plan, &args.output, |progress| run(args.transport, plan, progress))?;
    plan::show(&args.output, &report, || table::render(&report))
}

/// Runs a plan under a progress bar.
fn with_bar<R>(
    name: &'static str,
    plan: Plan,
    output: &ResultArgs,
    run: impl FnOnce(&mut dyn FnMut(&Progress)) -> Result<R, BenchError>,
) -> Result<R, Failure> {
    output.check()?;
    let bar = progress::bar()?;
    bar.set_prefix(name);
    let result = run(&mut |now| progress::show(&bar, &plan, now));
    bar.finish_and_clear();
    Ok(result?)
}

fn sweep(args: &SweepArgs) -> Result<(), Failure> {
    picture::check_target(args.svg.as_deref())?;
    let plan = args.series.plan.plan();
    let frames: Vec<usize> =
        args.frame_size.iter().map(|&n| usize::try_from(n).unwrap_or(usize::MAX)).collect();
    let sweep = Sweep {
        over: args.series.transport,
        plan,
        frames: if frames.is_empty() { FRAMES.to_vec() } else { frames },
        in_flight: match &args.in_flight[..] {
            [] => IN_FLIGHT.to_vec(),
            given => given.to_vec(),
        },
    };
    let output = &args.series.output;
    let report = with_bar("sweep", plan, output, |progress| sweep.run(progress))?;
    if let Some(path) = &args.svg {
        sweep::chart(&report).write(path)?;
    }
    plan::show(output, &report, || sweep::render(&report))
}

impl GatherArgs {
    /// Refuses flags that have no meaning for the transport.
    fn check(&self) -> Result<(), Failure> {
        let PlanArgs { pairs, max_time, .. } = self.plan;
        let (given, why) = match self.transport {
            Between::Sim => (
                [("--pairs", pairs.is_some()), ("--max-time", max_time.is_some())],
                "has no meaning with --transport sim, where one window is exact: omit it",
            ),
            _ => (
                [("--gbps", self.gbps.is_some()), ("--seed", self.seed.is_some())],
                "is a setting of simulated links: add --transport sim, or omit it",
            ),
        };
        let wrong = given.into_iter().find(|(_, given)| *given);
        wrong.map_or(Ok(()), |(name, _)| Err(Failure::Usage(format!("{name} {why}"))))
    }

    fn link(&self) -> Link {
        let Link { gbps, seed } = Link::default();
        Link { gbps: self.gbps.unwrap_or(gbps), seed: self.seed.unwrap_or(seed) }
    }

    /// The plan; in virtual time windows are short, and of each there is one.
    fn plan(&self) -> Plan {
        match self.transport {
            Between::Sim => gather::virtual_plan(self.plan.quick),
            _ => self.plan.plan(),
        }
    }
}

fn gather(args: &GatherArgs) -> Result<(), Failure> {
    args.check()?;
    picture::check_target(args.svg.as_deref())?;
    let plan = args.plan();
    let gather = Gather {
        between: args.transport,
        plan,
        sizes: args.size.clone(),
        batches: args.batch.clone(),
        frame: args.frame_size.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
        link: args.link(),
    };
    let report = with_bar("gather", plan, &args.output, |progress| gather.run(progress))?;
    if let Some(path) = &args.svg {
        for (name, chart) in gather::charts(&report) {
            chart.write(&beside(path, name))?;
        }
    }
    plan::show(&args.output, &report, || gather::render(&report))
}

/// The path with a name before its extension.
fn beside(path: &Path, name: &str) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let end = path.extension().map(|end| format!(".{}", end.to_string_lossy()));
    path.with_file_name(format!("{stem}-{name}{}", end.unwrap_or_default()))
}

/// Checks that the counts ascend: a stage can add sessions but not remove them.
fn check_counts(counts: &[u32]) -> Result<(), Failure> {
    let most = sessions::MOST;
    if counts.iter().all(|n| (1..=most).contains(n)) && counts.is_sorted() {
        return Ok(());
    }
    Err(Failure::Usage(format!("--sessions must be 1 to {most} in ascending order")))
}

/// The sessions that are in use, and the peers, are at most as many as sessions are ever open.
fn check_spread(args: &SessionsArgs) -> Result<(), Failure> {
    let open = args.sessions.last().copied().unwrap_or_default();
    for (flag, number) in [("--in-use", args.in_use.unwrap_or(1)), ("--peers", args.peers)] {
        if number > open {
            let text = format!("{flag} {number} is more than the {open} sessions of --sessions");
            return Err(Failure::Usage(text));
        }
    }
    Ok(())
}

fn workers(args: &WorkersArgs) -> Result<(), Failure> {
    let plan = Plan { window: WORKERS_WINDOW, ..args.plan.plan() };
    let report = with_bar("workers", plan, &args.output, |progress| workers::run(plan, progress))?;
    args.output.show(&report, || {
        table::render(&report) + "untagged: the calls stay on one core; raw: with an idle worker\n"
    })
}

fn overload(args: &OverloadArgs) -> Result<(), Failure> {
    args.output.check()?;
    let (rounds, half) = if args.quick { (3, 1) } else { (7, 4) };
    let plan = OverloadPlan { rounds, half: Duration::from_secs(half) };
    let bar = progress::bar()?;
    bar.set_prefix("overload");
    let report = overload::run(plan, &mut |part| bar.set_position((part * 1000.0) as u64));
    bar.finish_and_clear();
    let report = report?;
    args.output.show(&report, || overload::render(&report))
}

fn bucket(args: &BucketArgs) -> Result<(), Failure> {
    args.output.check()?;
    let BucketArgs { control, pairs, senders, size, time, .. } = *args;
    if control == Control::None {
        return Err(Failure::Usage("--control none is what others are compared with".to_owned()));
    }
    let bar = progress::bar()?;
    bar.set_prefix("bucket");
    let plan = BucketPlan { control, pairs, senders, size, time };
    let report = bucket::run(plan, &mut |part| bar.set_position((part * 1000.0) as u64));
    bar.finish_and_clear();
    let report = report?;
    let disturbed = report.disturbed().filter(|_| !args.output.anyway);
    let text = || disturbed.map_or_else(|| bucket::render(&report), |_| String::new());
    args.output.show(&report, text)?;
    args.output.accept(disturbed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pictures_keep_the_extension() {
        let name = |path: &str| beside(Path::new(path), "gain").display().to_string();
        assert_eq!(name("out/x.svg"), "out/x-gain.svg");
        assert_eq!(name("x"), "x-gain");
    }

    #[test]
    fn session_counts_must_ascend() {
        for counts in [&sessions::COUNTS[..], &[8, 100]] {
            assert!(check_counts(counts).is_ok(), "{counts:?}");
        }
        for counts in [&[0][..], &[8, 1], &[2_000_000]] {
            assert!(check_counts(counts).is_err(), "{counts:?}");
        }
    }
}
