//! `courser bench`: latency, rate and bandwidth of calls, compared with the same packets without
//! the protocol. The long benchmarks are in `courser-lab`.

use courser::{Control, Nexus, Packing, Recovery, Uri};
use courser_bench::plan::{self, PlanArgs};
use courser_bench::progress;
use courser_bench::report::Report;
use courser_bench::rpc::{self, BenchSpec, Faults, Kind, Over, SERIES_SIZES};
use courser_bench::table;
use courser_kit::{Failure, ResultArgs, out, units};
use indicatif::ProgressBar;

use clap::{Args, Subcommand, ValueEnum};

/// Batch of the small-call rate under faults, as in the other series.
const FAULT_BATCH: u32 = 3;

#[derive(Debug, Args)]
#[command(subcommand_value_name = "WHAT", subcommand_help_heading = "Benchmarks")]
#[command(after_help = "\
Without --connect, both sides run on this machine, on one core each. Windows of raw \
packets and windows of RPCs alternate; a pair is one of each. A claim needs at least 200 \
pairs of one placement; --quick measures fewer. Longer benchmarks, such as the rate by \
number of sessions, are in the program `courser-lab`.

Examples:
  courser bench latency --transport mem
  courser bench rate --sessions 8 --in-flight 64 --json -
  courser bench rate --batch 3 --symmetric --transport mem
  courser bench bandwidth --size 1MiB --quick
  courser bench bandwidth --fault loss=1e-3,loss=1e-2
  courser bench latency --connect udp://10.0.0.5:31850
  courser bench latency --connect udp://10.0.0.5:31850 --bind udp://10.0.0.7:0
  courser bench rate --help                   every flag of this benchmark")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Round trip of one call at a time, and of one raw packet
    Latency(LatencyArgs),
    /// Small calls per second
    Rate(RateArgs),
    /// Bytes per second of large requests, compared with memory copies
    Bandwidth(BandwidthArgs),
}

/// Flags of all three benchmarks.
#[derive(Debug, Args)]
struct CallArgs {
    /// The transport: udp and shm connect two processes, mem two threads of one process [default:
    /// udp, or that of --connect]
    #[arg(long, value_name = "NAME", value_enum)]
    transport: Option<Over>,
    /// Measure calls to this `courser serve` instead of starting a server process
    #[arg(long, value_name = "URI")]
    connect: Option<String>,
    /// Local address of the client with --connect, as udp://HOST:0; port 0: any free port. Default:
    /// any address
    #[arg(long, value_name = "URI", requires = "connect")]
    bind: Option<String>,
    #[command(flatten)]
    plan: PlanArgs,
    /// Bytes in a request; bandwidth takes several sizes, as 1KiB,8MiB. Default 32, for bandwidth
    /// 8MiB, which is the limit of `courser serve`
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = units::bytes)]
    size: Vec<u64>,
    /// Sessions to the server. Default 1, for rate 16, with --batch 8
    #[arg(long, value_name = "N")]
    sessions: Option<u32>,
    /// Calls in flight over all sessions. Default 1, for rate 128, with --batch 60
    #[arg(long, value_name = "N", visible_alias = "outstanding")]
    in_flight: Option<u32>,
    /// Packets that a session may have in flight. Default: six trains or 256 KiB of full frames
    /// within a host, three trains across a network, as the receive buffer allows
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    credits: Option<u32>,
    /// Calls that a session may have in flight: 1, 2, 4, 8, 16 or 32. Default 16
    #[arg(long, value_name = "N", value_parser = units::slots)]
    slots: Option<u8>,
    /// Largest datagram payload. Default: the payload of a link with an MTU of 1500 bytes
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    frame_size: Option<u64>,
    /// Inject faults into the frames of both sides, and compare with windows without faults. SPEC
    /// is loss=1e-3, or several parts separated by commas: loss, duplicate, reorder (by up to
    /// span=N frames), corrupt. Values are shares of frames, from 1e-6. A part that occurs again
    /// begins another SPEC
    #[arg(long, value_name = "SPEC", conflicts_with = "connect")]
    fault: Vec<Faults>,
    /// Congestion control: default, none, timely, timely-patched, dcqcn or swift; none is applied
    /// over shm
    #[arg(long, value_name = "NAME", default_value_t)]
    control: Control,
    /// Loss recovery: go-back-n, go-back-n-nack, melo, default; several are compared
    #[arg(long, value_name = "SCHEME", value_delimiter = ',')]
    recovery: Vec<Recovery>,
    /// Small packets to one peer: off (a frame for each), copy or gather. Default: the fastest that
    /// was measured on the transport, copy
    #[arg(long, value_name = "HOW")]
    packing: Option<Packing>,
    #[command(flatten)]
    output: ResultArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  courser bench latency
  courser bench latency --transport shm --quick
  courser bench latency --connect udp://10.0.0.5:31850")]
struct LatencyArgs {
    #[command(flatten)]
    calls: CallArgs,
    /// Over shm: copy raw packets into the ring, as calls of one packet do, instead of sending a
    /// burst of one
    #[arg(long)]
    raw_copy: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  courser bench rate
  courser bench rate --sessions 8 --in-flight 64 --json -
  courser bench rate --batch 3 --symmetric --transport mem")]
struct RateArgs {
    #[command(flatten)]
    calls: CallArgs,
    /// Calls issued together, each on a random session, as in eRPC (NSDI '19), section 6.2; several
    /// as 1,3,5. Default over shm and mem 1,3,5,8,11; over udp each response starts the next call
    #[arg(long, value_name = "B", value_delimiter = ',')]
    batch: Vec<u32>,
    /// Both sides call each other at the same time; shows the rate of one side
    #[arg(long)]
    symmetric: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  courser bench bandwidth
  courser bench bandwidth --size 1MiB --quick
  courser bench bandwidth --sizes --transport shm
  courser bench bandwidth --fault loss=1e-2 --recovery go-back-n,default")]
struct BandwidthArgs {
    #[command(flatten)]
    calls: CallArgs,
    /// Measure requests of 1KiB to 64MiB in a series
    #[arg(long, conflicts_with_all = ["size", "connect"])]
    sizes: bool,
    /// The server does not copy received data into the message buffer, so its bytes are arbitrary.
    /// Shows the cost of that copy
    #[arg(long)]
    no_copy: bool,
}

/// Runs the benchmark.
///
/// # Errors
/// It cannot run as given, or failed.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    match &args.what {
        What::Latency(args) => calls(&args.spec()?, &args.calls),
        What::Rate(args) => calls(&args.spec()?, &args.calls),
        What::Bandwidth(args) => calls(&args.spec()?, &args.calls),
    }
}

fn calls(spec: &BenchSpec, args: &CallArgs) -> Result<(), Failure> {
    args.output.check()?;
    let bar = progress::bar()?;
    if args.connect.is_none() && args.transport() == Over::Udp {
        machine_warnings().iter().for_each(|warning| out::warn(warning));
    }
    if args.compares_recovery() {
        return faults(spec, args, &bar);
    }
    let report = with_progress(spec, &bar, (0.0, 1.0))?;
    bar.finish_and_clear();
    plan::show(&args.output, &report, || {
        let elsewhere = "untagged: with --connect there are no probes and no raw baseline\n";
        table::render(&report) + args.connect.as_ref().map_or("", |_| elsewhere)
    })
}

/// Runs the benchmark with and without faults, under one or several schemes of recovery.
fn faults(spec: &BenchSpec, args: &CallArgs, bar: &ProgressBar) -> Result<(), Failure> {
    let schemes = match &args.recovery[..] {
        [] => &[Recovery::default()],
        schemes => schemes,
    };
    bar.set_prefix(spec.kind.name());
    let plans: Vec<_> = args.fault.iter().flat_map(|faults| faults.0.iter().cloned()).collect();
    let report = rpc::faults::run(spec, schemes, &plans, &mut |now| {
        progress::show(bar, &spec.plan, now);
    });
    bar.finish_and_clear();
    let report = report?;
    plan::show(&args.output, &report, || table::render(&report))
}

impl CallArgs {
    /// Returns whether the benchmark is a series over faults or schemes.
    fn compares_recovery(&self) -> bool {
        !self.fault.is_empty() || self.recovery.len() > 1
    }

    /// The transport of --transport, or that of the server's address.
    fn transport(&self) -> Over {
        let server = self.connect.as_deref().and_then(|uri| uri.parse::<Uri>().ok());
        let of_server = server.and_then(|uri| Over::from_str(&uri.scheme, false).ok());
        self.transport.or(of_server).unwrap_or(Over::Udp)
    }

    /// Adds the flags to the defaults of a benchmark.
    fn apply(&self, mut spec: BenchSpec) -> Result<BenchSpec, Failure> {
        let several = self.size.len() > 1 && spec.kind != Kind::Bandwidth;
        no_meaning(&[("--size with several values", several)], spec.kind.name())?;
        // A size above the address space is refused as too large.
        let count = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        match &self.size[..] {
            [] => {}
            [size] => spec.size = count(*size),
            sizes => spec.sizes = sizes.iter().copied().map(count).collect(),
        }
        spec.transport = self.transport();
        spec.connect.clone_from(&self.connect);
        spec.bind.clone_from(&self.bind);
        spec.sessions = self.sessions.unwrap_or(spec.sessions);
        spec.in_flight = self.in_flight.unwrap_or(spec.in_flight);
        spec.credits = self.credits;
        spec.slots = self.slots;
        spec.frame = self.frame_size.map(count);
        spec.control = self.control;
        spec.packing = self.packing;
        spec.recovery = self.recovery.first().copied().unwrap_or_default();
        if let [batch] = spec.batches[..] {
            (spec.batch, spec.batches) = (batch, Vec::new());
        }
        if !self.compares_recovery() {
            return Ok(spec);
        }
        let given = [
            ("--symmetric", spec.symmetric),
            ("--no-copy", spec.no_copy),
            ("--raw-copy", spec.raw_copy),
            ("--sizes or --size with several values", !spec.sizes.is_empty()),
            ("--batch with several values", !spec.batches.is_empty()),
            ("--connect", self.connect.is_some()),
        ];
        no_meaning(&given, &format!("{} with --fault or several schemes", spec.kind.name()))?;
        Ok(spec)
    }
}

impl LatencyArgs {
    fn spec(&self) -> Result<BenchSpec, Failure> {
        let mut spec = BenchSpec::new(Kind::Latency, self.calls.plan.plan());
        spec.raw_copy = self.raw_copy;
        self.calls.apply(spec)
    }
}

impl RateArgs {
    fn spec(&self) -> Result<BenchSpec, Failure> {
        let calls = &self.calls;
        let mut spec = BenchSpec::new(Kind::Rate, calls.plan.plan());
        // Over UDP trains of packets need more calls in flight, as in docs/performance.md.
        let batches = calls.transport() != Over::Udp && calls.connect.is_none();
        if !self.batch.is_empty() || batches {
            spec = spec.paper_rate();
        }
        if !self.batch.is_empty() {
            spec.batches.clone_from(&self.batch);
        } else if calls.compares_recovery() && !spec.batches.is_empty() {
            spec.batches = vec![FAULT_BATCH];
        }
        spec.symmetric = self.symmetric;
        calls.apply(spec)
    }
}

impl BandwidthArgs {
    fn spec(&self) -> Result<BenchSpec, Failure> {
        let mut spec = BenchSpec::new(Kind::Bandwidth, self.calls.plan.plan());
        if self.sizes {
            spec.sizes = SERIES_SIZES.to_vec();
        }
        spec.no_copy = self.no_copy;
        self.calls.apply(spec)
    }
}

fn no_meaning(given: &[(&str, bool)], name: &str) -> Result<(), Failure> {
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => Err(Failure::Usage(format!("{flag} has no meaning for bench {name}"))),
        None => Ok(()),
    }
}

/// Runs a benchmark whose progress is the part of the bar from `start` to `start + share`.
///
/// # Errors
/// It cannot run as given, or failed; the bar is removed.
pub(crate) fn with_progress(
    spec: &BenchSpec,
    bar: &ProgressBar,
    (start, share): (f64, f64),
) -> Result<Report, Failure> {
    let at = |part: f64| ((start + share * part) * 1000.0) as u64;
    bar.set_prefix(spec.kind.name());
    bar.set_message("starting");
    bar.set_position(at(0.0));
    bar.tick();
    let report = rpc::run(spec, &mut |now| {
        bar.set_message(progress::counts(now));
        bar.set_position(at(progress::done(&spec.plan, now)));
    });
    report.map_err(|error| {
        bar.finish_and_clear();
        error.into()
    })
}

/// Warnings of an endpoint on this machine, each with the command that fixes its cause.
pub(crate) fn machine_warnings() -> Vec<String> {
    let endpoint = Nexus::bind("udp://127.0.0.1:0").and_then(|nexus| nexus.endpoint());
    endpoint.map(|rpc| rpc.warnings()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;
    use courser_bench::rpc::PAPER_BATCHES;
    use courser_bench::window::Plan;

    use super::*;
    use crate::args::{Cli, Command};

    fn try_spec(line: &str) -> Result<BenchSpec, String> {
        let cli = Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        let Command::Bench(args) = cli.command else { panic!("{line}") };
        let spec = match args.what {
            What::Latency(args) => args.spec(),
            What::Rate(args) => args.spec(),
            What::Bandwidth(args) => args.spec(),
        };
        spec.map_err(|failure| failure.text().unwrap_or_default().to_owned())
    }

    fn spec_of(line: &str) -> BenchSpec {
        try_spec(line).expect(line)
    }

    #[test]
    fn flags_reach_the_benchmark_and_defaults_stay() {
        let plain = spec_of("courser bench rate");
        let defaults = BenchSpec::new(Kind::Rate, Plan::full());
        assert_eq!(format!("{plain:?}"), format!("{defaults:?}"));
        let given = spec_of(
            "courser bench bandwidth --quick --pairs 7 --max-time 3s --size 1MiB --sessions 3 \
             --outstanding 5 --credits 64 --slots 4 --frame-size 4KiB --connect udp://a:1 \
             --control swift",
        );
        assert_eq!(given.variant().config().control, Control::Swift);
        assert_eq!(given.kind, Kind::Bandwidth);
        let max_time = Duration::from_secs(3);
        assert_eq!(given.plan, Plan { pairs: 7, max_time, ..Plan::quick() });
        assert_eq!((given.size, given.sessions, given.in_flight), (1 << 20, 3, 5));
        assert_eq!((given.credits, given.slots, given.frame), (Some(64), Some(4), Some(4096)));
        assert_eq!(given.connect.as_deref(), Some("udp://a:1"));
        let bound = spec_of("courser bench rate --connect udp://a:1 --bind udp://10.0.0.7:0");
        assert_eq!(bound.bind.as_deref(), Some("udp://10.0.0.7:0"));
        assert_eq!(spec_of("courser bench rate --connect shm://a:1").transport, Over::Shm);
        assert!(!given.no_copy && spec_of("courser bench bandwidth --no-copy").no_copy);
    }

    #[test]
    fn batches_are_the_papers_experiment_and_shared_memory_begins_with_it() {
        let one = spec_of("courser bench rate --batch 3 --symmetric");
        assert_eq!((one.sessions, one.in_flight, one.random), (8, 60, true));
        assert_eq!((one.batch, one.batches.len(), one.symmetric), (3, 0, true));
        let all = spec_of("courser bench rate --transport mem --sessions 4");
        assert_eq!((all.sessions, &all.batches[..]), (4, &PAPER_BATCHES[..]));
        let sizes = spec_of("courser bench bandwidth --size 1KiB,2KiB");
        assert_eq!(sizes.sizes, [1024, 2048]);
        assert_eq!(spec_of("courser bench bandwidth --sizes").sizes, SERIES_SIZES);
    }

    #[test]
    fn flags_without_a_meaning_are_refused() {
        for line in [
            "courser bench latency --batch 3",
            "courser bench rate --sizes",
            "courser bench rate --no-copy",
            "courser bench rate --raw-copy",
            "courser bench bandwidth --no-copy --fault loss=1e-3",
        ] {
            assert!(try_spec(line).is_err(), "{line}");
        }
    }
}
