//! The experiments of the soak test, and their results.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;

use super::SoakArgs;
use super::cluster::{Cluster, SLACK, detection};
use super::ledger::now_ns;
use super::process::{Level, Memory, Process};
use courser_bench::clock::Clock;
use courser_kit::Failure;
use courser_kit::text::labelled;
use courser_kit::{json, out};

/// An experiment of the soak test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Experiment {
    Mixed,
    KillServer,
    KillClient,
    StopServer,
    Connects,
}

impl Experiment {
    pub(crate) const ALL: [Experiment; 5] = [
        Experiment::Mixed,
        Experiment::KillServer,
        Experiment::KillClient,
        Experiment::StopServer,
        Experiment::Connects,
    ];

    /// Name on the command line, and its help text.
    pub(crate) fn words(self) -> (&'static str, &'static str) {
        match self {
            Experiment::Mixed => ("mixed", "calls of all kinds"),
            Experiment::KillServer => ("kill-server", "kill a server under load, repeatedly"),
            Experiment::KillClient => {
                ("kill-client", "kill a client; servers must free its sessions")
            }
            Experiment::StopServer => {
                ("stop-server", "stop a server until its peers give it up, then continue it")
            }
            Experiment::Connects => ("connects", "connect and disconnect; memory must not grow"),
        }
    }
}

/// Increase of message memory in use that is accepted: idle sessions keep some buffers.
const LEVEL_SLACK: u64 = 64 << 10;

/// Time in which servers must free the state of a client: failure detection, the rest of its handlers,
/// and the idle timeout of sessions between servers.
const LEVEL_LIMIT: Duration = Duration::from_secs(10);

/// Growth of a process over the second half of a run above which it is a violation: a part of its
/// largest size plus the memory of single large messages.
const GROWTH_PART: f64 = 0.1;
const GROWTH_BYTES: f64 = (48 << 20) as f64;

/// Growth over many connects above which it is a violation.
const CONNECTS_GROWTH: u64 = 4 << 20;

/// Runs an experiment.
///
/// # Errors
/// It cannot run, or a guarantee was violated.
pub(crate) fn run(args: &SoakArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    let clock = Clock::new();
    let seed = args.seed.unwrap_or_else(now_ns);
    let directory = Directory::new()?;
    let mut cluster = Cluster::start(args, seed, &directory.0)?;
    let mut quiet = Quiet::of(&mut cluster)?;
    let began = Instant::now();
    match args.what {
        Experiment::Mixed => mixed(&mut cluster, args)?,
        Experiment::KillServer => kill_server(&mut cluster, args.times)?,
        Experiment::KillClient => kill_client(&mut cluster, args.times, &mut quiet)?,
        Experiment::StopServer => stop_server(&mut cluster, args.times)?,
        Experiment::Connects => connects(&mut cluster, args.times)?,
    }
    let mut gone = cluster.end_clients()?;
    let back = quiet.is_back(&mut cluster, now_ns())?;
    let mut survivors = memory_of(&gone);
    let servers = std::mem::take(&mut gone);
    drop(servers);
    survivors.extend(cluster.servers.iter().filter_map(|s| memory(&s.process)));
    for (name, memory) in &survivors {
        judge_growth(&mut cluster, name, memory, began.elapsed());
    }
    cluster.settle()?;
    if cluster.checker.totals.succeeded == 0 {
        // The other checks need successful calls.
        cluster.checker.violation("no call has succeeded".to_owned());
    }
    let summary = Summary {
        seconds: began.elapsed().as_secs_f64(),
        calls: cluster.checker.totals.calls,
        succeeded: cluster.checker.totals.succeeded,
        errors: cluster.checker.totals.errors.clone(),
        executions: cluster.checker.totals.executions,
        bytes_checked: cluster.checker.totals.bytes,
        kills: cluster.kills,
        stops: cluster.stops,
        calls_hit: cluster.checker.totals.hit,
        max_end_after_fault_ms: cluster.checker.totals.max_end_after_fault_ns as f64 / 1e6,
        end_limit_ms: (detection() + SLACK).as_millis() as u64,
        longest_call_ms: f64::from(cluster.checker.totals.longest_us) / 1e3,
        in_use_before_bytes: quiet.levels.iter().map(|l| l.in_use).collect(),
        in_use_after_bytes: back.iter().map(|l| l.in_use).collect(),
        sessions_before: quiet.levels.iter().map(|l| l.sessions).collect(),
        sessions_after: back.iter().map(|l| l.sessions).collect(),
        memory: survivors,
        violations: cluster.checker.violations,
        described: cluster.checker.described.clone(),
    };
    drop(cluster);
    finish(args, seed, &summary, &clock)
}

// ---- experiments --------------------------------------------------------------------------------

/// Two clients; with `--kills`, one client and one server are killed or stopped.
fn mixed(cluster: &mut Cluster<'_>, args: &SoakArgs) -> Result<(), Failure> {
    let end = Instant::now() + args.time;
    for _ in 0..2 {
        cluster.add_client(0.5, 0)?;
    }
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let calm = Duration::from_millis(2000 + cluster.rng.below(3000));
        let calm = if args.kills { calm.min(left) } else { left };
        if !cluster.watch(calm)? || Instant::now() >= end {
            return Ok(());
        }
        match cluster.rng.below(4) {
            0 | 1 => cluster.kill_server(0, Duration::from_millis(100))?,
            2 => cluster.stop_server(0, detection() * 2)?,
            _ => {
                cluster.kill_client(1);
                cluster.add_client(0.5, 0)?;
                true
            }
        };
    }
}

fn kill_server(cluster: &mut Cluster<'_>, times: u64) -> Result<(), Failure> {
    cluster.add_client(0.5, 0)?;
    cluster.add_client(0.5, 0)?;
    for _ in 0..times {
        let calm = Duration::from_millis(500 + cluster.rng.below(1000));
        let pause = Duration::from_millis(cluster.rng.below(300));
        if !cluster.watch(calm)? || !cluster.kill_server(0, pause)? {
            break;
        }
    }
    cluster.watch(detection()).map(drop)
}

fn stop_server(cluster: &mut Cluster<'_>, times: u64) -> Result<(), Failure> {
    cluster.add_client(0.5, 0)?;
    cluster.add_client(0.5, 0)?;
    for _ in 0..times {
        let calm = Duration::from_millis(500 + cluster.rng.below(1000));
        let stop = detection() * 2 + Duration::from_millis(cluster.rng.below(500));
        if !cluster.watch(calm)? || !cluster.stop_server(0, stop)? {
            break;
        }
    }
    cluster.watch(detection() * 2).map(drop)
}

/// Kills clients under load; the servers must return to their level.
fn kill_client(cluster: &mut Cluster<'_>, times: u64, quiet: &mut Quiet) -> Result<(), Failure> {
    for _ in 0..times {
        cluster.add_client(1.0, 0)?;
        let load = Duration::from_millis(300 + cluster.rng.below(700));
        let go_on = cluster.watch(load)?;
        let killed_ns = cluster.kill_client(0);
        quiet.is_back(cluster, killed_ns)?;
        if !go_on {
            break;
        }
    }
    Ok(())
}

fn connects(cluster: &mut Cluster<'_>, times: u64) -> Result<(), Failure> {
    cluster.add_client(1.0, times)?;
    let limit = Duration::from_secs(20)
        + Duration::from_millis(5) * u32::try_from(times).unwrap_or(u32::MAX);
    let done = cluster.watch_until(limit, |cluster| {
        let level = cluster.clients.first().and_then(|c| c.process.level());
        level.is_some_and(|level| level.open == 0)
    })?;
    let level = cluster.clients.first().and_then(|c| c.process.level()).unwrap_or_default();
    cluster.checker.totals.calls += level.done;
    cluster.checker.totals.succeeded += level.done;
    if !done || level.done != times {
        let text = format!("{} of {times} connects succeeded", level.done);
        let complaints = cluster.clients.iter().flat_map(|c| c.process.complaints());
        let texts: Vec<_> = std::iter::once(text).chain(complaints).collect();
        texts.into_iter().for_each(|text| cluster.checker.violation(text));
    }
    let grown: Vec<_> = cluster
        .servers
        .iter()
        .take(1)
        .map(|s| &s.process)
        .chain(cluster.clients.iter().map(|c| &c.process))
        .filter_map(memory)
        .filter(|(_, m)| m.end_bytes > m.start_bytes + CONNECTS_GROWTH)
        .collect();
    for (name, m) in grown {
        let text = format!("{name} grew from {} to {} bytes", m.start_bytes, m.end_bytes);
        cluster.checker.violation(text);
    }
    Ok(())
}

// ---- levels -------------------------------------------------------------------------------------

/// The level of the servers without calls.
struct Quiet {
    levels: Vec<Level>,
}

impl Quiet {
    /// Waits until the servers are connected to each other.
    fn of(cluster: &mut Cluster<'_>) -> Result<Self, Failure> {
        let since = now_ns();
        let met = |levels: &Vec<Level>| levels.iter().all(|level| level.sessions == 2);
        let found =
            cluster.watch_until(LEVEL_LIMIT, |c| c.levels(since).is_some_and(|l| met(&l)))?;
        match cluster.levels(since) {
            Some(levels) if found => Ok(Self { levels }),
            _ => Err(Failure::Runtime("the servers did not connect to each other".to_owned())),
        }
    }

    /// Waits until the servers have returned to this level. A timeout is a violation.
    fn is_back(&self, cluster: &mut Cluster<'_>, since_ns: u64) -> Result<Vec<Level>, Failure> {
        let is_back = |levels: &Vec<Level>| {
            levels.iter().zip(&self.levels).all(|(now, before)| {
                now.sessions == before.sessions && now.in_use <= before.in_use + LEVEL_SLACK
            })
        };
        let back = cluster
            .watch_until(LEVEL_LIMIT, |c| c.levels(since_ns).is_some_and(|l| is_back(&l)))?;
        let now = cluster.levels(since_ns).unwrap_or_default();
        if !back {
            let say = |l: &Level| format!("{} sessions, {} bytes in use", l.sessions, l.in_use);
            let now: Vec<_> = now.iter().map(say).collect();
            let before: Vec<_> = self.levels.iter().map(say).collect();
            cluster.checker.violation(format!(
                "the servers have not returned to their level: {} instead of {}",
                now.join(" and "),
                before.join(" and "),
            ));
        }
        Ok(now)
    }
}

fn memory(process: &Process) -> Option<(String, Memory)> {
    Some((process.name.clone(), Memory::of(&process.rss)?))
}

fn memory_of(processes: &[Process]) -> Vec<(String, Memory)> {
    processes.iter().filter_map(memory).collect()
}

/// Checks the growth of a process over the second half of a run. A process that was started late, after
/// a kill, is not checked because it still warms up.
fn judge_growth(cluster: &mut Cluster<'_>, name: &str, memory: &Memory, time: Duration) {
    if memory.lived_s < 0.9 * time.as_secs_f64() {
        return;
    }
    let growth = memory.slope_bytes_per_min * time.as_secs_f64() / 120.0;
    // In a shorter run the process still warms up.
    if time > Duration::from_secs(120)
        && growth > GROWTH_BYTES + GROWTH_PART * memory.max_bytes as f64
    {
        cluster.checker.violation(format!(
            "{name} grows: by {growth:.0} bytes over the second half of the run, to {}",
            memory.end_bytes
        ));
    }
}

// ---- results ------------------------------------------------------------------------------------

/// The result of a run; field names are the JSON keys.
#[derive(Serialize)]
struct Summary {
    seconds: f64,
    calls: u64,
    succeeded: u64,
    errors: BTreeMap<String, u64>,
    executions: u64,
    bytes_checked: u64,
    kills: u64,
    stops: u64,
    calls_hit: u64,
    #[serde(rename = "max_end_after_blow_ms")]
    max_end_after_fault_ms: f64,
    end_limit_ms: u64,
    longest_call_ms: f64,
    in_use_before_bytes: Vec<u64>,
    in_use_after_bytes: Vec<u64>,
    sessions_before: Vec<usize>,
    sessions_after: Vec<usize>,
    /// Resident memory of the processes that lived to the end.
    memory: Vec<(String, Memory)>,
    violations: u64,
    described: Vec<String>,
}

fn finish(args: &SoakArgs, seed: u64, summary: &Summary, clock: &Clock) -> Result<(), Failure> {
    if !args.json.as_deref().is_some_and(json::is_stdout) {
        print(args, seed, summary)?;
    }
    if let Some(target) = &args.json {
        let report = json!({
            "bench": "soak",
            "transport": "udp",
            "config": {
                "what": args.what.words().0,
                "time_ns": args.time.as_nanos() as u64,
                "times": args.times,
                "kills": args.kills,
                "load": args.load,
                "max_size": args.max_size,
                "recovery": args.recovery.name(),
                "seed": seed,
            },
            "results": [summary],
            "environment": json::environment(clock.error_ppm()),
        });
        json::write(target, &report)?;
    }
    match summary.violations {
        0 => Ok(()),
        n => Err(Failure::Runtime(format!("{n} violations; --seed {seed} has the same plan"))),
    }
}

fn print(args: &SoakArgs, seed: u64, s: &Summary) -> Result<(), Failure> {
    let mut out = out::stdout();
    let bold = out::BOLD;
    let errors: u64 = s.errors.values().sum();
    writeln!(out, "{bold}soak {}{bold:#}, {:.0} s, seed {seed}", args.what.words().0, s.seconds)?;
    let mut line = |label: &str, text: String| {
        writeln!(out, "{}", labelled(&format!("  {label:<10}  "), &text))
    };
    line(
        "calls",
        format!(
            "{}: {} succeeded, {errors} failed; {} MiB, each byte checked",
            s.calls,
            s.succeeded,
            s.bytes_checked >> 20
        ),
    )?;
    for (error, count) in &s.errors {
        line("", format!("{count} {error}"))?;
    }
    line("executions", format!("{}; a second execution is a violation", s.executions))?;
    line(
        "faults",
        format!(
            "{} kills, {} stops; {} affected calls, the last ended after {:.0} ms (limit {} ms)",
            s.kills, s.stops, s.calls_hit, s.max_end_after_fault_ms, s.end_limit_ms
        ),
    )?;
    line("longest", format!("call {:.0} ms", s.longest_call_ms))?;
    line(
        "servers",
        format!(
            "sessions {:?} before, {:?} after; bytes in use {:?} before, {:?} after",
            s.sessions_before, s.sessions_after, s.in_use_before_bytes, s.in_use_after_bytes
        ),
    )?;
    for (name, m) in &s.memory {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let growth = m.slope_bytes_per_min / f64::from(1 << 20);
        let (start, end, max) = (mib(m.start_bytes), mib(m.end_bytes), mib(m.max_bytes));
        line(
            name,
            format!(
                "resident {start:.1} MiB at first, {end:.1} at the end, {max:.1} at most, \
                 {growth:+.2} MiB/min"
            ),
        )?;
    }
    line("violations", s.violations.to_string())?;
    for text in &s.described {
        line("", text.clone())?;
    }
    Ok(out.flush()?)
}

/// A temporary directory, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self, Failure> {
        let name = format!("courser-soak-{}-{}", std::process::id(), now_ns());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).map_err(|e| Failure::writing(&path, &e))?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
