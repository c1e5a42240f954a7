//! Runs the benchmarks latency, rate and bandwidth: windows of calls and of raw packets alternate.

use courser::{Nexus, Transport};
use courser_buf::Addr;
use courser_net::AnyTransport;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::rc::Rc;

use super::caller::Caller;
use super::calls::{Calls, SharedCaller};
use super::copy::Copies;
use super::error::BenchError;
use super::figures;
use super::ground::Ground;
use super::load::Load;
use super::raw::{EchoTrains, Link, Other, PingPong, RATE_TRAIN, SinkTrains, best_window};
use super::series::{Series, plan_for};
use super::side::Back;
use super::spec::{BenchSpec, Kind};
use crate::clock::Clock;
use crate::probe::Prober;
use crate::report::{self, Metric, PlacementResult, Report, Unit};
use crate::window::{Compared, Outcome, Progress, RunError, Runner, Workload, WorkloadError};
use courser_kit::affinity::{self, Cores};
use courser_kit::environment::Environment;
use courser_kit::units::show_bytes;

/// Largest overhead of a small RPC on the wire; raw frames are larger by this.
const RPC_HEADER: usize = 16;

/// Trains in flight that are tried for the raw rate and the raw bandwidth.
const RATE_WINDOWS: [usize; 6] = [1, 2, 3, 4, 6, 8];
const BANDWIDTH_WINDOWS: [usize; 4] = [2, 4, 8, 16];

/// The settings in a report.
pub type Config = Map<String, Value>;

/// Results and settings of a run.
type Measured = (Vec<PlacementResult>, Config);

/// Runs a benchmark; the calling thread is pinned meanwhile. `progress` is called after each
/// round of windows.
///
/// # Errors
/// [`BenchError`], in one line each.
pub fn run(spec: &BenchSpec, progress: &mut dyn FnMut(&Progress)) -> Result<Report, BenchError> {
    spec.check()?;
    let clock = Clock::new();
    let cores = affinity::choose()?;
    let mut config = described(spec, &cores);
    let (results, more) = match &spec.connect {
        Some(uri) => against(uri, spec, &clock, &cores, progress),
        None => between(spec, &clock, &cores, progress),
    }?;
    config.extend(more);
    Ok(Report {
        bench: spec.kind.name().to_owned(),
        transport: spec.transport.name().to_owned(),
        config,
        results,
        environment: Environment::collect(clock.error_ppm(), &cores),
    })
}

/// Measures a server side on this machine; windows of raw packets and of RPCs alternate.
fn between(
    spec: &BenchSpec,
    clock: &Clock,
    cores: &Cores,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Measured, BenchError> {
    let loads = spec.loads();
    let back = |uris: &[String]| -> Vec<Back> {
        let back = |load: &Load| Back { variant: 0, uri: uris[0].clone(), load: load.clone() };
        let both = loads.iter().filter(|_| spec.symmetric);
        both.map(back).collect()
    };
    let mut ground = Ground::open(spec.transport, &[spec.variant()], &back, clock, cores)?;
    let measured = with_raw(spec, &loads, &mut ground, progress);
    let (results, mut config) = match measured {
        Ok(measured) => measured,
        Err(error) => return Err(ground.child.explain(error)),
    };
    let raw = config.remove("raw_client").unwrap_or_default();
    let mut diagnostics = ground.diagnostics();
    if spec.stats {
        diagnostics["client"]["raw"] = raw["raw"].clone();
        diagnostics["client"]["raw_lost"] = raw["raw_lost"].clone();
        config.insert("diagnostics".to_owned(), diagnostics);
    }
    Ok((results, config))
}

fn with_raw(
    spec: &BenchSpec,
    loads: &[Load],
    ground: &mut Ground,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Measured, BenchError> {
    ground.connect(0, spec.sessions as usize)?;
    let (caller, clock) = (Rc::clone(&ground.callers[0]), ground.clock.clone());
    let mut calls = Vec::new();
    for (at, load) in loads.iter().enumerate() {
        let made = Calls::new(&caller, load.clone(), 0, &clock, &ground.other)?;
        let made = if spec.kind == Kind::Rate { made.with_waits() } else { made };
        calls.push(if spec.symmetric { made.both_ways(at as u16) } else { made });
    }
    let mut copies = Vec::new();
    for load in loads.iter().filter(|_| spec.kind == Kind::Bandwidth) {
        copies.push(Copies::new(caller.borrow().rpc(), load.size, &clock)?);
    }
    let socket = ground.raw.take().ok_or_else(|| BenchError::Raw("it is in use".to_owned()))?;
    let mut raw = Raw::new(spec, socket, ground.child.raw, &clock, ground.other.clone())?;
    let mut config = agreed(&caller);
    raw.describe(&mut config);

    let mut runner = ground.runner(plan_for(spec.plan, loads.len()))?;
    let mut series = Series::default();
    let baseline = series.workload(raw.workload());
    let (points, places) = lay_out(&mut series, &mut calls, &mut copies, Some(baseline));
    series.run(&mut runner, progress)?;
    config.insert(report::CPU_WAIT.to_owned(), runner.cpu_wait().into());
    let results = results(spec, loads, &mut series, &points, &places);
    drop(series);
    let raw = json!({
        "raw": figures::of_transport(&raw.link().transport.stats()),
        "raw_lost": raw.link().lost,
    });
    config.insert("raw_client".to_owned(), raw);
    Ok((results, config))
}

/// Measures RPCs to a server that runs already, without raw packets and without probes.
fn against(
    uri: &str,
    spec: &BenchSpec,
    clock: &Clock,
    cores: &Cores,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Measured, BenchError> {
    let loads = spec.loads();
    let local = if spec.transport == super::Over::Udp { "[::]" } else { "127.0.0.1" };
    let any = || format!("{}://{local}:0", spec.transport.name());
    let local = spec.bind.clone().unwrap_or_else(any);
    let nexus = Nexus::bind_with(&local, spec.variant().config())?;
    // The server may run on any core of this machine. This thread is not pinned and yields, so that
    // the server does not wait for a core that this thread polls on.
    let other = Other { line: None, yields: true };
    let mut caller = Caller::new(nexus.endpoint()?, clock.clone(), other.clone());
    caller.connect(uri, spec.sessions as usize)?;
    let caller = Rc::new(RefCell::new(caller));
    let mut calls = Vec::new();
    for load in &loads {
        let made = Calls::new(&caller, load.clone(), 0, clock, &other)?;
        calls.push(if spec.kind == Kind::Rate { made.with_waits() } else { made });
    }
    let mut config = agreed(&caller);
    let mut runner = Runner::<Prober>::new(plan_for(spec.plan, loads.len()), None)?;
    if cores.distinct() {
        // On a single core, waiting for a server of this machine is no contention.
        runner = runner.counting_cpu_wait();
    }
    let mut series = Series::default();
    let (points, places) = lay_out(&mut series, &mut calls, &mut [], None);
    series.run(&mut runner, progress)?;
    config.insert(report::CPU_WAIT.to_owned(), runner.cpu_wait().into());
    let results = results(spec, &loads, &mut series, &points, &places);
    drop(series);
    if spec.stats {
        let figures = json!({ "rpc": figures::of_endpoint(caller.borrow().rpc()) });
        config.insert("diagnostics".to_owned(), json!({ "client": figures }));
    }
    Ok((results, config))
}

/// Adds for each load a window of copies (if any), of the baseline and of the load. Returns the points
/// and the positions of the copies.
fn lay_out<'a>(
    series: &mut Series<'a>,
    calls: &'a mut [Calls],
    copies: &'a mut [Copies],
    baseline: Option<usize>,
) -> (Vec<Compared>, Vec<usize>) {
    let mut copies = copies.iter_mut();
    let (mut points, mut places) = (Vec::new(), Vec::new());
    for load in calls {
        places.extend(copies.next().map(|copy| {
            let copy = series.workload(copy);
            series.window(copy)
        }));
        let load = series.workload(load);
        points.push(series.point(load, baseline));
    }
    (points, places)
}

fn results(
    spec: &BenchSpec,
    loads: &[Load],
    series: &mut Series<'_>,
    points: &[Compared],
    copies: &[usize],
) -> Vec<PlacementResult> {
    let mut all = Vec::new();
    for (at, (load, &point)) in loads.iter().zip(points).enumerate() {
        for mut result in series.results(point, spec.kind.metric()) {
            match spec.kind {
                Kind::Latency => add_difference(series, point, &mut result),
                Kind::Rate => {
                    let words =
                        if loads.len() > 1 { format!("B = {}", load.batch) } else { String::new() };
                    result.at_point("batch", load.batch, words);
                }
                Kind::Bandwidth => {
                    let several = (loads.len() > 1).then(|| show_bytes(load.size as u64));
                    let no_copy = spec.no_copy.then(|| "no copy".to_owned());
                    let words: Vec<_> = several.into_iter().chain(no_copy).collect();
                    result.at_point("request_bytes", load.size, words.join(", "));
                    if let Some(&copies) = copies.get(at) {
                        add_copies(&series.beside(point, copies), &mut result);
                    }
                }
            }
            all.push(result);
        }
    }
    report::by_placement(all)
}

/// Adds the latency difference between calls and raw packets within each pair.
fn add_difference(series: &Series<'_>, point: Compared, result: &mut PlacementResult) {
    let outcome = series.outcome(point);
    let difference = report::over_pairs(&outcome, result.placement(), |pair| {
        let (rpc, raw) = (pair.measured.latency?, pair.raw.as_ref()?.latency?);
        Some(rpc.p50_ns as f64 - raw.p50_ns as f64)
    });
    if let Some(difference) = difference {
        result.add("difference_ns", "p50 - raw p50", Unit::Difference, difference);
    }
}

/// Adds the rate of copies of the same bytes within one process, and the calls' share of it.
fn add_copies(outcome: &Outcome, result: &mut PlacementResult) {
    let copied = report::over_pairs(outcome, result.placement(), |pair| {
        Some(pair.raw.as_ref()?.goodput_bps())
    });
    let Some(copied) = copied else { return };
    result.add("memcpy_bps", "memcpy", Unit::Bits, copied);
    if let Some(share) = report::ratio(outcome, Metric::Goodput, result.placement()) {
        result.add("share_of_memcpy", "share of memcpy", Unit::Percent, share);
    }
    if let Some(goodput) = result.goodput {
        let share = goodput.goodput_bps / copied.max;
        let note = "median over the best window of copies";
        result.add_value("share_of_best_memcpy", "of best memcpy", Unit::Percent, share, note);
    }
}

/// The requested parameters.
fn described(spec: &BenchSpec, cores: &Cores) -> Config {
    let server = match (&spec.connect, spec.transport) {
        (Some(uri), _) => uri,
        (None, super::Over::Mem) => "a thread of its own in this process",
        (None, _) => "a process of its own on this machine",
    };
    let mut config = object(json!({
        "server": server,
        "size": spec.size,
        "sessions": spec.sessions,
        "in_flight": spec.in_flight,
        "batch": spec.batch,
        "window_ms": spec.plan.window.as_secs_f64() * 1e3,
        "pairs_wanted": spec.plan.pairs,
        "max_time_s": spec.plan.max_time.as_secs_f64(),
        "warmup_windows": spec.plan.warmup,
        "cores_warning": cores.warning,
    }));
    let loads = spec.loads();
    config.insert("random_sessions".to_owned(), spec.random.into());
    config.insert("symmetric".to_owned(), spec.symmetric.into());
    if spec.kind == Kind::Bandwidth {
        config.insert("server_copies".to_owned(), (!spec.no_copy).into());
    }
    if spec.kind == Kind::Latency {
        config.insert("raw_copy".to_owned(), spec.raw_copy.into());
    }
    config.insert("batches".to_owned(), loads.iter().map(|load| load.batch).collect());
    config.insert("sizes".to_owned(), loads.iter().map(|load| load.size).collect());
    config
}

/// The negotiated parameters of a session and the limits of the system.
pub fn agreed(caller: &SharedCaller) -> Config {
    let caller = caller.borrow();
    let rpc = caller.rpc();
    let caps = rpc.transport().caps();
    let session = caller.first_session().and_then(|session| rpc.session_stats(session));
    object(json!({
        "credits": session.as_ref().map(|s| s.credit_limit),
        "slots": session.as_ref().map(|s| s.slots),
        "data_per_packet": session.as_ref().map(|s| s.data_per_packet),
        "control": rpc.control().name(),
        "recovery": session.as_ref().map(|s| s.recovery.name()),
        "max_frame": caps.max_frame,
        "train_frames": caps.train_frames,
        "rx_queue_frames": caps.rx_queue_frames,
        "rx_queue_small_frames": caps.rx_queue_small_frames,
        "small_frame": caps.small_frame,
        "receive_buffer_bytes": figures::receive_buffer(rpc.transport()),
        "warnings": rpc.warnings(),
    }))
}

/// The raw workload of each kind.
enum Raw {
    Latency(Box<PingPong>),
    Rate(EchoTrains, usize),
    Bandwidth(SinkTrains, usize),
}

impl Raw {
    /// Creates the workload and determines its trains in flight by trials.
    fn new(
        spec: &BenchSpec,
        socket: AnyTransport,
        peer: Addr,
        clock: &Clock,
        other: Other,
    ) -> Result<Self, BenchError> {
        let link = Link::new(socket, peer, clock.clone(), other)?;
        let failed = |source: WorkloadError| RunError::Workload { name: "raw".to_owned(), source };
        Ok(match spec.kind {
            Kind::Latency => Self::Latency(Box::new(PingPong::new(link, spec.size, spec.raw_copy))),
            Kind::Rate => {
                let mut trains = EchoTrains::new(link, RATE_TRAIN, spec.size + RPC_HEADER);
                let windows = trains.link().windows(trains.shape(), &RATE_WINDOWS);
                let best = best_window(&mut trains, &windows).map_err(failed)?;
                Self::Rate(trains, best)
            }
            Kind::Bandwidth => {
                let mut trains = SinkTrains::new(link);
                let windows = trains.link().windows(trains.shape(), &BANDWIDTH_WINDOWS);
                let best = best_window(&mut trains, &windows).map_err(failed)?;
                Self::Bandwidth(trains, best)
            }
        })
    }

    fn workload(&mut self) -> &mut dyn Workload {
        match self {
            Self::Latency(raw) => &mut **raw,
            Self::Rate(raw, _) => raw,
            Self::Bandwidth(raw, _) => raw,
        }
    }

    fn link(&self) -> &Link {
        match self {
            Self::Latency(raw) => raw.link(),
            Self::Rate(raw, _) => raw.link(),
            Self::Bandwidth(raw, _) => raw.link(),
        }
    }

    fn describe(&self, config: &mut Config) {
        let (window, (train, size)) = match self {
            Self::Latency(raw) => (1, (1, raw.size())),
            Self::Rate(raw, window) => (*window, raw.shape()),
            Self::Bandwidth(raw, window) => (*window, raw.shape()),
        };
        let mut add = |key: &str, value: usize| config.insert(key.to_owned(), value.into());
        add("raw_frame_bytes", size);
        add("raw_train_frames", train);
        add("raw_trains_in_flight", window);
    }
}

/// A JSON object as a map.
pub fn object(value: Value) -> Config {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Pins the calling thread to a core; dropping this restores its affinity.
pub struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Pins the calling thread.
    ///
    /// # Errors
    /// The affinity cannot be set.
    pub fn to(cpu: usize) -> Result<Self, BenchError> {
        let before = sched_getaffinity(None).map_err(affinity::AffinityError::Read)?;
        affinity::pin_current_thread(cpu)?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // If the former cores are no longer allowed, the thread stays pinned.
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Plan;

    #[test]
    fn the_description_has_every_parameter() {
        let cores = affinity::choose().expect("cores");
        let mut spec = BenchSpec::new(Kind::Rate, Plan::quick());
        let map = described(&spec, &cores);
        assert_eq!((&map["size"], &map["sessions"]), (&json!(32), &json!(16)));
        assert_eq!((&map["in_flight"], &map["batch"]), (&json!(128), &json!(1)));
        assert_eq!(map["window_ms"], json!(10.0));
        spec.connect = Some("udp://db1:1".to_owned());
        assert_eq!(described(&spec, &cores)["server"], json!("udp://db1:1"));
    }

    #[test]
    fn invalid_descriptions_are_refused_before_the_start() {
        let mut spec = BenchSpec::new(Kind::Latency, Plan::quick());
        spec.size = 0;
        assert!(matches!(run(&spec, &mut |_| {}), Err(BenchError::Spec { .. })));
    }

    #[test]
    fn a_pin_ends_with_its_guard() {
        let seen = std::thread::spawn(|| {
            let before = affinity::usable_cpus().expect("mask");
            let pinned = Pinned::to(before[0]).expect("allowed core");
            let during = affinity::usable_cpus().expect("mask");
            drop(pinned);
            (before, during, affinity::usable_cpus().expect("mask"))
        });
        let (before, during, after) = seen.join().expect("no panic");
        assert_eq!(during, before[..1]);
        assert_eq!(after, before);
    }
}
