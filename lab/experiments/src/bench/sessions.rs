//! `courser-lab bench sessions`: many sessions of one endpoint (E18, E38) `[eRPC sections 4.1.2, 6.3]`.
//!
//! One endpoint connects an increasing number of sessions to another one. At each number, windows of
//! small calls on random sessions alternate with the same calls on eight sessions of a second pair of
//! endpoints; the ratio is the cost of many sessions. The calls may use only some of the open sessions,
//! and the sessions may be spread over several endpoints of the other side. Then the benchmark waits until all sessions are
//! idle and reads their memory, by component, on both sides.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use courser_bench::clock::Clock;
use courser_bench::report::{self, Metric, PlacementResult, Report, Unit};
use courser_bench::rpc::calls::Calls;
use courser_bench::rpc::error::BenchError;
use courser_bench::rpc::ground::Ground;
use courser_bench::rpc::run::object;
use courser_bench::rpc::series::Series;
use courser_bench::rpc::side::{Over, Variant};
use courser_bench::rpc::steps::small_rate;
use courser_bench::rpc::{figures, role};
use courser_bench::window::{Compared, Plan, Progress, Runner, Workload, WorkloadError};
use courser_kit::affinity;
use courser_kit::environment::Environment;

/// Default numbers of sessions.
pub(crate) const COUNTS: [u32; 6] = [1, 8, 100, 1_000, 10_000, 20_000];
/// Most sessions.
pub(crate) const MOST: u32 = 1_000_000;
/// Number of sessions of the reference.
const REFERENCE: usize = 8;
/// The two pairs of endpoints.
const FEW: u16 = 0;
const MANY: u16 = 1;
/// Time limit for the sessions to become idle, in addition to the idle timeout.
const SETTLE: Duration = Duration::from_secs(10);
/// Warm-up: mean number of calls on each session, its time limit, and the length of its steps.
const WARM_CALLS: u64 = 40;
const WARM_MOST: Duration = Duration::from_secs(20);
const WARM_STEP: Duration = Duration::from_millis(10);
/// Interval between two checks of the memory.
const CHECK: Duration = Duration::from_millis(200);

/// The sessions that are compared with the reference.
#[derive(Clone, Debug)]
pub(crate) struct Compare<'a> {
    /// Open sessions, in ascending order.
    pub(crate) counts: &'a [u32],
    /// Only this many of them have calls.
    pub(crate) in_use: Option<u32>,
    /// Endpoints of the other side that the sessions are spread over, also those of the reference.
    pub(crate) peers: u32,
}

/// Runs the benchmark for each count of sessions; the calling thread is pinned meanwhile.
///
/// # Errors
/// [`BenchError`], in one line each.
pub(crate) fn run(
    over: Over,
    plan: Plan,
    compare: &Compare<'_>,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    let Compare { counts, in_use, peers } = *compare;
    let (clock, cores) = (Clock::new(), affinity::choose()?);
    let most = counts.iter().copied().max().unwrap_or(1) as usize;
    let more_peers = peers.saturating_sub(1) as usize;
    let variants = [0, most].map(|sessions| Variant { sessions, more_peers, ..Variant::default() });
    let (_, load) = small_rate(plan);
    let mut ground = Ground::open(over, &variants, &|_| Vec::new(), &clock, &cores)?;
    let mut runner = ground.runner(plan)?;
    ground.connect(FEW, REFERENCE)?;
    let mut few = Calls::new(&ground.callers[0], load.clone(), FEW, &clock, &ground.other)?;
    let mut results = Vec::new();
    for &count in counts {
        let stage = || -> Result<Vec<PlacementResult>, BenchError> {
            let connected = connect(&mut ground, count as usize)?;
            let used = in_use.map_or(count, |most| most.min(count));
            let load = courser_bench::rpc::load::Load { sessions: used as usize, ..load.clone() };
            let caller = &ground.callers[usize::from(MANY)];
            let mut many = Calls::new(caller, load, MANY, &clock, &ground.other)?;
            warm_up(&mut many, used)?;
            let mut stage = measure([&mut few, &mut many], &mut runner, progress)?;
            let memory = idle_memory(&mut ground, peers)?;
            for result in &mut stage {
                add_counters(result, count, &connected, &memory);
                result.extra.insert("in_use".to_owned(), used.into());
            }
            Ok(stage)
        }();
        results.extend(stage.map_err(|error| ground.child.explain(error))?);
    }
    drop(few);
    let config = object(json!({
        "size": load.size,
        "in_flight": load.in_flight,
        "batch": load.batch,
        "reference_sessions": REFERENCE,
        "sessions": counts,
        "peers": peers,
        "cores_warning": cores.warning,
        (report::CPU_WAIT): runner.cpu_wait(),
        "diagnostics": ground.diagnostics(),
    }));
    Ok(Report {
        bench: "sessions".to_owned(),
        transport: over.name().to_owned(),
        config,
        results,
        environment: Environment::collect(clock.error_ppm(), &cores),
    })
}

/// The connects of a stage and their duration.
struct Connected {
    sessions: usize,
    seconds: f64,
}

fn connect(ground: &mut Ground, count: usize) -> Result<Connected, BenchError> {
    let before = ground.callers[usize::from(MANY)].borrow().sessions();
    let start = Instant::now();
    ground.connect(MANY, count)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Connected { sessions: count.saturating_sub(before), seconds })
}

/// Makes several calls on all sessions, because the first calls allocate the slots of a session and
/// cause page faults.
fn warm_up(many: &mut Calls, count: u32) -> Result<(), BenchError> {
    let failed = |e: WorkloadError| BenchError::Raw(e.to_string());
    let (end, mut calls) = (Instant::now() + WARM_MOST, 0);
    many.prepare().map_err(failed)?;
    while calls < WARM_CALLS * u64::from(count) && Instant::now() < end {
        calls += many.run(WARM_STEP).map_err(failed)?.operations;
    }
    Ok(())
}

/// Measures calls on few and on many sessions in alternating windows.
fn measure(
    [few, many]: [&mut Calls; 2],
    runner: &mut Runner<courser_bench::probe::Prober>,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Vec<PlacementResult>, BenchError> {
    let mut series = Series::default();
    let (few, many) = (series.workload(few), series.workload(many));
    let point = series.point(many, Some(few));
    series.run(runner, progress)?;
    // The baseline is no raw transport, so the ratio has its own key.
    let alone = Compared { measured: point.measured, baseline: None };
    let mut results = series.results(alone, Metric::Rate);
    for result in &mut results {
        if let Some(share) = series.ratio(point, Metric::Rate, result) {
            result.add("of_8_sessions", "of the rate with 8", Unit::Percent, share);
        }
    }
    Ok(results)
}

/// Waits until the sessions are idle and have freed the memory of busy ones; returns the memory of the
/// client and of the server.
fn idle_memory(ground: &mut Ground, peers: u32) -> Result<[Value; 2], BenchError> {
    ground.other.request(role::serve(MANY)).map_err(|e| BenchError::Raw(e.to_string()))?;
    let caller = ground.callers[usize::from(MANY)].clone();
    let mut caller = caller.borrow_mut();
    let end = Instant::now() + courser_bench::rpc::side::idle_after() + SETTLE;
    let slots =
        |caller: &courser_bench::rpc::caller::Caller| caller.rpc().session_memory().slots_bytes;
    // An idle session keeps the numbers of its slots.
    let idle = caller.sessions() * 4 * usize::from(courser::Config::default().slots);
    let mut checked = Instant::now();
    loop {
        caller.pass();
        if checked.elapsed() < CHECK {
            continue;
        }
        checked = Instant::now();
        if slots(&caller) <= idle || checked > end {
            break;
        }
    }
    // The control connection informs the server of idle sessions.
    while checked.elapsed() < CHECK {
        caller.pass();
    }
    let client = figures::of_memory(caller.rpc());
    // Each of several servers has a part of the sessions, and only the first one reports.
    let server =
        if peers == 1 { ground.server_memory(MANY).unwrap_or_default() } else { Value::Null };
    Ok([client, server])
}

/// Adds the number of sessions, the connect rate and the memory to a result.
fn add_counters(
    result: &mut PlacementResult,
    count: u32,
    connected: &Connected,
    [client, server]: &[Value; 2],
) {
    result.at_point("sessions", count, format!("{count} sessions"));
    if connected.sessions > 0 {
        let rate = connected.sessions as f64 / connected.seconds;
        let note = format!("{} in {:.3} s", connected.sessions, connected.seconds);
        result.add_value("connects_per_s", "connects", Unit::PerSecond, rate, &note);
        result.extra.insert("connect_s".to_owned(), connected.seconds.into());
    }
    for (side, memory) in [("client", client), ("server", server)] {
        let Some(total) = memory["total_bytes"].as_f64() else { continue };
        let (key, label) = (format!("{side}_bytes_per_session"), format!("{side}, a session"));
        let each = total / f64::from(count.max(1));
        result.add_value(&key, &label, Unit::Bytes, each, &components(memory, count));
        result.extra.insert(format!("{side}_memory"), memory.clone());
    }
}

/// The components of a session's memory as text.
fn components(memory: &Value, count: u32) -> String {
    let each = |key: &str| memory[key].as_f64().unwrap_or(0.0) / f64::from(count.max(1));
    let parts = [
        ("entry", each("sessions_bytes")),
        ("peer", each("peers_bytes")),
        ("slots", each("slots_bytes")),
        ("queue", each("queues_bytes")),
        ("timers", each("timers_bytes")),
        ("responses", each("prealloc_bytes") + each("held_bytes")),
    ];
    let shown = parts.iter().filter(|(_, bytes)| *bytes >= 0.5);
    let texts: Vec<_> = shown.map(|(name, bytes)| format!("{name} {bytes:.0}")).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_per_session_and_empty_ones_are_omitted() {
        let memory = json!({ "sessions_bytes": 1920, "slots_bytes": 320, "held_bytes": 0 });
        assert_eq!(components(&memory, 10), "entry 192, slots 32");
    }
}
