//! `courser-lab bench futures`: the small-RPC rate of calls that are futures, and of a typed service,
//! compared with callbacks.
//!
//! All use the same two endpoints and sessions, in windows that alternate. Each of the 64 calls in
//! flight is a task, and its handler is async; with callbacks, a completion starts the next call.

use courser_bench::clock::Clock;
use courser_bench::report::{self, Metric, Report, Unit};
use courser_bench::rpc::calls::Calls;
use courser_bench::rpc::error::BenchError;
use courser_bench::rpc::ground::Ground;
use courser_bench::rpc::run::agreed;
use courser_bench::rpc::series::{Series, plan_for};
use courser_bench::rpc::service;
use courser_bench::rpc::side::{Over, Variant};
use courser_bench::rpc::spec::{BenchSpec, Kind};
use courser_bench::window::{Compared, Plan, Progress};
use courser_kit::affinity;
use courser_kit::environment::Environment;

/// Calls in flight, and their sessions.
const IN_FLIGHT: u32 = 64;
const SESSIONS: u32 = 8;

/// The ways to call. The others are compared with the first one.
const WAYS: [(&str, u16); 3] =
    [("callbacks", service::ECHO), ("futures", service::AWAITED), ("typed", service::TYPED)];

/// Runs the benchmark; the calling thread is pinned meanwhile.
///
/// # Errors
/// [`BenchError`], in one line each.
pub(crate) fn run(
    over: Over,
    plan: Plan,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    let mut spec = BenchSpec::new(Kind::Rate, plan);
    (spec.sessions, spec.in_flight) = (SESSIONS, IN_FLIGHT);
    spec.check()?;
    let (clock, cores) = (Clock::new(), affinity::choose()?);
    let mut ground = Ground::open(over, &[Variant::default()], &|_| Vec::new(), &clock, &cores)?;
    ground.connect(0, SESSIONS as usize)?;
    let mut calls = Vec::new();
    for (_, req_type) in WAYS {
        let mut load = spec.loads().remove(0);
        load.req_type = req_type;
        calls.push(Calls::new(&ground.callers[0], load, 0, &clock, &ground.other)?);
    }
    let mut config = agreed(&ground.callers[0]);
    config.insert("in_flight".to_owned(), IN_FLIGHT.into());
    config.insert("sessions".to_owned(), SESSIONS.into());
    config.insert("size".to_owned(), spec.size.into());
    config.insert("cores_warning".to_owned(), cores.warning.clone().into());
    let mut runner = ground.runner(plan_for(plan, WAYS.len()))?;
    let mut series = Series::default();
    let mut points = Vec::new();
    for of_way in &mut calls {
        let workload = series.workload(of_way);
        points.push(series.point(workload, None));
    }
    let ran = series.run(&mut runner, progress);
    ran.map_err(|error| ground.child.explain(error.into()))?;
    config.insert(report::CPU_WAIT.to_owned(), runner.cpu_wait().into());
    let mut results = Vec::new();
    for ((name, _), &point) in WAYS.iter().zip(&points) {
        let base = Compared { baseline: Some(points[0].measured), ..point };
        for mut result in series.results(point, Metric::Rate) {
            result.at_point("interface", *name, (*name).to_owned());
            if point.measured != points[0].measured
                && let Some(share) = series.ratio(base, Metric::Rate, &result)
            {
                result.add("of_callbacks", "of callbacks", Unit::Percent, share);
            }
            results.push(result);
        }
    }
    drop(series);
    drop(calls);
    config.insert("diagnostics".to_owned(), ground.diagnostics());
    Ok(Report {
        bench: "futures".to_owned(),
        transport: over.name().to_owned(),
        config,
        results: report::by_placement(results),
        environment: Environment::collect(clock.error_ppm(), &cores),
    })
}
