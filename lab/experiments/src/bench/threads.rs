//! `courser-lab bench threads`: the rate of small calls by the number of threads, and memory per thread.
//!
//! The threads of one process, at most one for each core, have endpoints of one nexus. Each thread is a
//! client and a server of all others `[eRPC section 6.3]`. A single thread has two endpoints, a client
//! and a server. The teams of one, two, four... threads exist at the same time; their windows alternate,
//! and the other teams sleep.

mod team;

use std::time::Duration;

use serde_json::json;

use self::team::Team;
use courser_bench::clock::Clock;
use courser_bench::probe::{self, BetweenError, Probe, ProbeError};
use courser_bench::report::{self, Metric, Report, Unit};
use courser_bench::rpc::error::BenchError;
use courser_bench::rpc::run::{Pinned, object};
use courser_bench::rpc::series::{Series, plan_for};
use courser_bench::rpc::side::Over;
use courser_bench::rpc::steps::small_rate;
use courser_bench::window::{Compared, Plan, Progress, Runner, Sample, Workload, WorkloadError};
use courser_kit::affinity;
use courser_kit::environment::Environment;

/// Probes two cores by temporary threads while the teams sleep.
struct Between {
    client: usize,
    server: usize,
}

impl Probe for Between {
    fn measure(&mut self) -> Result<u64, ProbeError> {
        probe::between(self.client, self.server).map_err(|error| match error {
            BetweenError::Probe(error) => error,
            _ => ProbeError::NotAnswered,
        })
    }
}

/// Numbers of threads: powers of two, and one for each core.
fn counts(cores: usize) -> Vec<usize> {
    let mut counts: Vec<usize> =
        (0..usize::BITS).map(|shift| 1 << shift).take_while(|&count| count < cores).collect();
    counts.push(cores.max(1));
    counts
}

/// Runs the benchmark; the calling thread is pinned meanwhile.
///
/// # Errors
/// [`BenchError`], in one line each.
pub(crate) fn run(
    over: Over,
    plan: Plan,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    let (clock, cores) = (Clock::new(), affinity::choose()?);
    let usable = affinity::usable_cpus()?;
    let (_, load) = small_rate(plan);
    let mut teams = Vec::new();
    for count in counts(usable.len()) {
        teams.push(Team::start(over, &usable[..count], &load, &clock)?);
    }
    // Pinned after the teams were started, because threads inherit the affinity.
    let _pinned = Pinned::to(cores.client)?;
    let costs: Vec<_> = teams.iter().map(|team| (team.threads(), team.cost())).collect();
    let prober = cores.distinct().then_some(Between { client: cores.client, server: cores.server });
    let mut runner = Runner::new(plan_for(plan, teams.len()), prober)?;
    let mut windows: Vec<TeamWindow<'_>> = teams.iter_mut().map(TeamWindow).collect();
    let mut series = Series::default();
    let points: Vec<Compared> = windows
        .iter_mut()
        .map(|window| {
            let window = series.workload(window);
            series.point(window, None)
        })
        .collect();
    series.run(&mut runner, progress)?;
    let mut results = Vec::new();
    for (&point, (threads, cost)) in points.iter().zip(&costs) {
        for mut result in series.results(point, Metric::Rate) {
            result.at_point("threads", *threads, format!("{threads} threads"));
            if let Some(rate) = result.rate {
                let each = rate.rate_rps / *threads as f64;
                let note = "calls made; each thread also serves as many";
                result.add_value("rate_per_thread_rps", "of each", Unit::PerSecond, each, note);
            }
            let alone = Compared { measured: point.measured, baseline: Some(points[0].measured) };
            if let Some(times) = series.ratio(alone, Metric::Rate, &result) {
                result.add("times_one_thread", "times one thread", Unit::Plain, times);
            }
            let (key, label) = ("resident_bytes_per_thread", "resident, a thread");
            let note = format!("message memory {} B mapped", cost.arena);
            result.add_value(key, label, Unit::Bytes, cost.resident, &note);
            result.extra.insert("arena_bytes_per_thread".to_owned(), cost.arena.into());
            results.push(result);
        }
    }
    let config = object(json!({
        "size": load.size,
        "sessions": load.sessions,
        "in_flight": load.in_flight,
        "batch": load.batch,
        "cores": usable,
        "window_ms": plan.window.as_secs_f64() * 1e3,
        "cores_warning": cores.warning,
        (report::CPU_WAIT): runner.cpu_wait(),
    }));
    Ok(Report {
        bench: "threads".to_owned(),
        transport: over.name().to_owned(),
        config,
        results: report::by_placement(results),
        environment: Environment::collect(clock.error_ppm(), &cores),
    })
}

/// Windows of one team.
struct TeamWindow<'a>(&'a mut Team);

impl Workload for TeamWindow<'_> {
    fn name(&self) -> &str {
        "threads"
    }

    fn run(&mut self, duration: Duration) -> Result<Sample, WorkloadError> {
        self.0.window(duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_and_all_cores_are_always_measured() {
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(2), [1, 2]);
        assert_eq!(counts(6), [1, 2, 4, 6]);
        assert_eq!(counts(8), [1, 2, 4, 8]);
    }
}
