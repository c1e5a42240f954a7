//! Puts a benchmark together: two processes, two workloads, the harness, the report.

use std::net::SocketAddr;
use std::ops::ControlFlow;

use courser::parts::buf::Addr;
use courser::{Nexus, Transport};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Map, Value, json};

use super::calls::Calls;
use super::child::Child;
use super::raw::{EchoTrains, Link, Other, PingPong, SinkTrains, best_window};
use super::spec::{BenchError, BenchSpec, Kind};
use super::{figures, peer};
use crate::harness::affinity::{self, Cores};
use crate::harness::clock::Clock;
use crate::harness::environment::Environment;
use crate::harness::line::Line;
use crate::harness::probe::Prober;
use crate::harness::report::{self, Report};
use crate::harness::window::{Outcome, Progress, RunError, Runner, Workload, WorkloadError};

/// Frames in a train of the raw rate.
pub(super) const RATE_TRAIN: usize = 32;

/// What a small RPC adds to its data on the wire, at most: a raw frame is this much larger.
const RPC_HEADER: usize = 16;

/// Trains in flight that are tried for the raw rate and the raw bandwidth.
const RATE_WINDOWS: [usize; 6] = [1, 2, 3, 4, 6, 8];
const BANDWIDTH_WINDOWS: [usize; 4] = [2, 4, 8, 16];

type Config = Map<String, Value>;

/// Runs a benchmark; the calling thread is pinned meanwhile. `progress` is called after each
/// pair of windows.
///
/// # Errors
/// [`BenchError`], in one line each.
pub(crate) fn run(
    spec: &BenchSpec,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    spec.check()?;
    if spec.transport != "udp" {
        return Err(BenchError::Transport(spec.transport.clone()));
    }
    let clock = Clock::new();
    let cores = affinity::choose()?;
    let mut config = described(spec, &cores);
    let outcome = match &spec.connect {
        Some(uri) => against(uri, spec, &clock, &mut config, progress),
        None => between(spec, &clock, &cores, &mut config, progress),
    }?;
    Ok(Report {
        bench: spec.kind.name().to_owned(),
        transport: spec.transport.clone(),
        config,
        results: report::results(&outcome, spec.kind.metric()),
        environment: Environment::collect(&clock, &cores),
    })
}

/// Two processes, raw and RPC in turn.
fn between(
    spec: &BenchSpec,
    clock: &Clock,
    cores: &Cores,
    config: &mut Config,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Outcome, BenchError> {
    // Our side first: what is wrong with the settings is said once and plainly.
    let nexus = Nexus::bind_with("udp://127.0.0.1:0", spec.config())?;
    let rpc = nexus.endpoint()?;
    let socket = peer::bind_raw(spec.frame)?;
    let line = Line::create()?;
    let mut child = Child::start(spec, &line, cores)?;
    let _pinned = Pinned::to(cores.client)?;
    let other = Other { line: Some(line.clone()), yields: !cores.distinct() };
    let prober = cores.distinct().then(|| Prober::new(line, clock.clone()));
    let measured = || -> Result<Outcome, BenchError> {
        let mut calls = Calls::new(rpc, &child.uri, spec, clock.clone(), other.clone())?;
        let mut raw = Raw::new(spec, socket, child.raw, clock, other)?;
        agreed(&calls, config);
        raw.describe(config);
        let outcome =
            Runner::new(spec.plan, prober)?
                .run(&mut calls, Some(raw.workload()), &mut |now| keep_on(progress, now))?;
        if spec.stats {
            let figures = json!({
                "rpc": figures::of_endpoint(calls.rpc()),
                "raw": figures::of_transport(&raw.link().transport.stats()),
                "raw_lost": raw.link().lost,
            });
            config.insert("diagnostics".to_owned(), json!({ "client": figures }));
        }
        Ok(outcome)
    };
    let outcome = measured().map_err(|error| child.explain(error))?;
    let server = child.finish();
    if let Some(diagnostics) = config.get_mut("diagnostics") {
        diagnostics["server"] = server.into();
    }
    Ok(outcome)
}

/// RPCs only, against a server that runs elsewhere.
fn against(
    uri: &str,
    spec: &BenchSpec,
    clock: &Clock,
    config: &mut Config,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Outcome, BenchError> {
    let nexus = Nexus::bind_with("udp://[::]:0", spec.config())?;
    let rpc = nexus.endpoint()?;
    // The server may be on this machine and on any core of it: wherever the scheduler wakes it, it
    // must not wait for our spinning to end. So we are not pinned, and yield.
    let other = Other { line: None, yields: true };
    let mut calls = Calls::new(rpc, uri, spec, clock.clone(), other)?;
    agreed(&calls, config);
    let mut runner = Runner::<Prober>::new(spec.plan, None)?;
    let outcome = runner.run(&mut calls, None, &mut |now| keep_on(progress, now))?;
    if spec.stats {
        let figures = json!({ "rpc": figures::of_endpoint(calls.rpc()) });
        config.insert("diagnostics".to_owned(), json!({ "client": figures }));
    }
    Ok(outcome)
}

fn keep_on(progress: &mut dyn FnMut(&Progress), now: &Progress) -> ControlFlow<()> {
    progress(now);
    ControlFlow::Continue(())
}

/// The parameters as asked for.
fn described(spec: &BenchSpec, cores: &Cores) -> Config {
    object(json!({
        "server": spec.connect.as_deref().unwrap_or("a process of its own on this machine"),
        "size": spec.size,
        "sessions": spec.sessions,
        "in_flight": spec.in_flight,
        "batch": spec.batch,
        "window_ms": spec.plan.window.as_secs_f64() * 1e3,
        "pairs_wanted": spec.plan.pairs,
        "max_time_s": spec.plan.max_time.as_secs_f64(),
        "warmup_windows": spec.plan.warmup,
        "cores_warning": cores.warning,
    }))
}

/// Adds what the two endpoints agreed on and the system granted.
fn agreed<T: Transport>(calls: &Calls<T>, config: &mut Config) {
    let rpc = calls.rpc();
    let (caps, session) = (rpc.transport().caps(), rpc.session_stats(calls.session()));
    let mut add = |key: &str, value: Value| config.insert(key.to_owned(), value);
    add("credits", session.as_ref().map(|s| s.credit_limit).into());
    add("slots", session.as_ref().map(|s| s.slots).into());
    add("data_per_packet", session.as_ref().map(|s| s.data_per_packet).into());
    add("max_frame", caps.max_frame.into());
    add("train_frames", caps.train_frames.into());
    add("rx_queue_frames", caps.rx_queue_frames.into());
    add("receive_buffer_bytes", figures::receive_buffer(rpc.transport()).into());
    add("warnings", rpc.warnings().into());
}

/// The raw workload of each kind.
enum Raw {
    Latency(PingPong),
    Rate(EchoTrains, usize),
    Bandwidth(SinkTrains, usize),
}

impl Raw {
    /// Makes it, and tries out how much it should keep in flight.
    fn new(
        spec: &BenchSpec,
        socket: courser::parts::net::UdpTransport,
        peer: SocketAddr,
        clock: &Clock,
        other: Other,
    ) -> Result<Self, BenchError> {
        let link = Link::new(socket, Addr::from_socket(peer), clock.clone(), other)?;
        let failed = |source: WorkloadError| RunError::Workload { name: "raw".to_owned(), source };
        Ok(match spec.kind {
            Kind::Latency => Self::Latency(PingPong::new(link, spec.size)),
            Kind::Rate => {
                let mut trains = EchoTrains::new(link, RATE_TRAIN, spec.size + RPC_HEADER);
                let best = best_window(&mut trains, &RATE_WINDOWS).map_err(failed)?;
                Self::Rate(trains, best)
            }
            Kind::Bandwidth => {
                let mut trains = SinkTrains::new(link);
                let best = best_window(&mut trains, &BANDWIDTH_WINDOWS).map_err(failed)?;
                Self::Bandwidth(trains, best)
            }
        })
    }

    fn workload(&mut self) -> &mut dyn Workload {
        match self {
            Self::Latency(raw) => raw,
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
pub(super) fn object(value: Value) -> Config {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The calling thread on one core; where it was before when dropped.
pub(super) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    pub(super) fn to(cpu: usize) -> Result<Self, BenchError> {
        let before = sched_getaffinity(None).map_err(affinity::AffinityError::Read)?;
        affinity::pin_current_thread(cpu)?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // It was allowed before; if it no longer is, the thread stays where it can run.
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::window::Plan;

    #[test]
    fn the_description_holds_every_parameter() {
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
    fn wrong_descriptions_are_refused_before_anything_starts() {
        let mut spec = BenchSpec::new(Kind::Latency, Plan::quick());
        spec.transport = "carrier-pigeon".to_owned();
        let error = run(&spec, &mut |_| {}).expect_err("no such transport").to_string();
        assert!(error.contains("carrier-pigeon"), "{error}");
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
