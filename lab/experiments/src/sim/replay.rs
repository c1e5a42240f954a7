//! `courser-lab sim replay`: runs one seed of `sim swarm` again and shows its packets.

use std::cell::RefCell;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::rc::Rc;

use clap::Args;
use courser_sim::observe::{
    CaptureSettings, Links, Names, Observer, Report, SeriesSettings, Settings, Sink, TraceFilter,
    TraceSettings,
};
use courser_sim::swarm::{Options, Scenario, SeedReport, THREAD, run_observed};
use courser_sim::{HostId, Tap, World};
use serde_json::json;

use super::swarm::{Planted, quiet_panics};
use courser_kit::Failure;
use courser_kit::text::labelled;
use courser_kit::{json, out};

#[derive(Debug, Args)]
#[command(after_help = "\
Repeats the run of `courser-lab sim swarm` with this seed, event by event; both need the same \
build. A line has

  time in us  event  place  sender > receiver  the frame and its packets

A host is n0, n1, ..., a link n0>s0. `send` is the start of a transmission on a link, \
`recv` the arrival in the receive queue of an endpoint, `drop` a loss with its reason.

Examples:
  courser-lab sim replay --seed 17 --trace           the last 200 lines
  courser-lab sim replay --seed 17 --trace --all     every line
  courser-lab sim replay --seed 17 --trace --all --host 2 --until 3ms
  courser-lab sim replay --seed 17 --pcapng seed17.pcapng")]
pub(crate) struct ReplayArgs {
    /// The seed
    #[arg(long, value_name = "N")]
    seed: u64,
    /// Print the packets
    #[arg(long)]
    trace: bool,
    /// With --trace: all packets, not only the last ones
    #[arg(long, requires = "trace")]
    all: bool,
    /// With --trace: number of last lines
    #[arg(long, value_name = "LINES", default_value_t = 200, conflicts_with = "all")]
    last: usize,
    /// With --trace: only packets from or to this host (2, or n2); may be repeated
    #[arg(long, value_name = "HOST", value_parser = host, requires = "trace")]
    host: Vec<u32>,
    /// With --trace: only packets of the request with this number
    #[arg(long, value_name = "NUMBER", requires = "trace")]
    request: Option<u32>,
    /// With --trace: from this time on, such as 1500us
    #[arg(long, value_name = "TIME", value_parser = courser_kit::units::time, requires = "trace")]
    since: Option<std::time::Duration>,
    /// With --trace: before this time
    #[arg(long, value_name = "TIME", value_parser = courser_kit::units::time, requires = "trace")]
    until: Option<std::time::Duration>,
    /// Write the packets of every link to a file for Wireshark
    #[arg(long, value_name = "PATH")]
    pcapng: Option<PathBuf>,
    /// Write the event log as text, to compare it with that of another run
    #[arg(long, value_name = "PATH")]
    log: Option<PathBuf>,
    #[command(flatten)]
    planted: Planted,
    /// Write the result as JSON, with time series of links and queues (- for standard output)
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

fn host(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix('n').unwrap_or(text);
    number.parse().map_err(|_| "a host is a number such as 2 or n2".to_owned())
}

/// Results of a run.
struct Shown {
    seed: SeedReport,
    observed: Option<Report>,
}

/// Runs the seed and prints the trace and the result.
///
/// # Errors
/// An invariant was violated, or a file could not be written.
pub(super) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    quiet_panics();
    check(args)?;
    let settings = settings(args)?;
    let only_json = json::only(args.json.as_deref());
    if !only_json {
        let mut out = out::stdout();
        for line in Scenario::draw(args.seed).to_string().lines() {
            let indent = if line.starts_with(' ') { "  " } else { "" };
            writeln!(out, "{}", labelled(indent, line))?;
        }
    }
    // The thread has the name prefix of the swarm's threads, so that a panic is reported once.
    let options = args.planted.options();
    let seed = args.seed;
    let thread = std::thread::Builder::new().name(format!("{THREAD} replay"));
    let thread = thread.spawn(move || play(seed, options, settings))?;
    let shown =
        thread.join().map_err(|_| Failure::Runtime("the replay has panicked".to_owned()))?;
    print(args, &shown, only_json)
}

/// Rejects filters that no packet passes.
fn check(args: &ReplayArgs) -> Result<(), Failure> {
    let hosts = Scenario::draw(args.seed).hosts();
    if let Some(host) = args.host.iter().find(|&&host| host >= hosts) {
        let last = hosts - 1;
        let text = format!("there is no host n{host}: this seed has n0 to n{last}");
        return Err(Failure::Usage(text));
    }
    match (args.since, args.until) {
        (Some(since), Some(until)) if since >= until => {
            Err(Failure::Usage("--since must be before --until".to_owned()))
        }
        _ => Ok(()),
    }
}

fn settings(args: &ReplayArgs) -> Result<Settings, Failure> {
    let sink = |path: &PathBuf| Sink::file(path).map_err(|e| Failure::writing(path, &e));
    let ns = |t: std::time::Duration| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX);
    let mut settings = Settings::default();
    if args.trace {
        let to_stdout = args.all && !json::only(args.json.as_deref());
        let filter = TraceFilter {
            hosts: args.host.iter().map(|&n| HostId(n)).collect(),
            request: args.request,
            from_ns: args.since.map_or(0, ns),
            until_ns: args.until.map_or(u64::MAX, ns),
            ..TraceFilter::default()
        };
        settings.trace = Some(TraceSettings {
            to: to_stdout.then(|| Sink::new(BufWriter::new(io::stdout()))),
            keep: if args.all { 0 } else { args.last },
            filter,
        });
    }
    if let Some(path) = &args.pcapng {
        settings.captures.push(CaptureSettings { to: sink(path)?, links: Links::All });
    }
    settings.log = args.log.as_ref().map(sink).transpose()?;
    if args.json.is_some() {
        settings.series = Some(SeriesSettings::default());
    }
    Ok(settings)
}

fn play(seed: u64, options: Options, settings: Settings) -> Shown {
    let mut observer = None;
    let tap = |world: &mut World| {
        let names = Names::of(&world.config().topology);
        let shared = Rc::new(RefCell::new(Observer::new(settings, names)));
        observer = Some(shared.clone());
        Some(Box::new(shared) as Box<dyn Tap>)
    };
    let seed = run_observed(seed, options, tap);
    // The world was dropped, and its reference to the observer with it.
    let observer = observer.and_then(Rc::into_inner).map(RefCell::into_inner);
    let observed = observer.map(|o| o.into_report(seed.virtual_ns));
    Shown { seed, observed }
}

fn print(args: &ReplayArgs, shown: &Shown, only_json: bool) -> Result<(), Failure> {
    let seed = &shown.seed;
    if !only_json {
        let mut out = out::stdout();
        // A line of the trace has one hop of a frame with all of its packets, so that tools can
        // process it. Its length has no limit, and it is not wrapped.
        for line in shown.observed.iter().flat_map(|o| &o.last_lines) {
            writeln!(out, "{line}")?;
        }
        let (rpcs, packets, digest) = (seed.rpcs, seed.packets, seed.digest);
        let us = seed.virtual_ns as f64 / 1e3;
        writeln!(
            out,
            "seed {}: {rpcs} calls, {packets} packets, {us:.3} us; digest {digest:016x}",
            seed.seed
        )?;
        out.flush()?;
    }
    if let Some(target) = &args.json {
        let violation = seed.violation.as_ref().map(
            |v| json!({ "invariant": v.invariant.name(), "at_ns": v.at_ns, "detail": v.detail }),
        );
        let report = json!({
            "bench": "replay",
            "transport": "sim",
            "config": { "seed": seed.seed },
            "results": [{
                "seed": seed.seed,
                "rpcs": seed.rpcs,
                "packets": seed.packets,
                "digest": format!("{:016x}", seed.digest),
                "simulated_ns": seed.virtual_ns,
                "violation": violation,
                "observed": shown.observed.as_ref().map(Report::to_json),
            }],
            "environment": json::environment(None),
        });
        json::write(target, &report)?;
    }
    if let Some(error) = shown.observed.iter().flat_map(|o| &o.errors).next() {
        return Err(Failure::Runtime(error.clone()));
    }
    match &seed.violation {
        None => Ok(()),
        Some(violation) => Err(Failure::Runtime(violation.to_string())),
    }
}
