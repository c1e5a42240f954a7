//! The same calls over endpoints with different settings, called steps.
//!
//! Each step has its own pair of endpoints, and all pairs exist at the same time. Their windows
//! alternate, so that steps are compared within tens of milliseconds.

use courser::EndpointStats;
use serde_json::json;

use super::calls::{Calls, SharedCaller};
use super::error::BenchError;
use super::ground::Ground;
use super::load::Load;
use super::run::{agreed, object};
use super::series::{Series, plan_for};
use super::side::{Over, Variant};
use super::spec::{BenchSpec, Kind};
use crate::clock::Clock;
use crate::report::{self, Metric, PlacementResult, Report};
use crate::window::{Compared, Plan, Progress};
use courser_kit::affinity;
use courser_kit::environment::Environment;

/// A benchmark of steps.
pub struct Steps {
    /// Name.
    pub name: &'static str,
    /// The transport.
    pub over: Over,
    /// Duration of the measurement.
    pub plan: Plan,
    /// The settings of each step.
    pub variants: Vec<Variant>,
    /// The loads of each step, and the measured quantity.
    pub loads: Vec<(Kind, Load)>,
}

/// The windows of all steps.
pub struct Windows<'s, 'a> {
    series: &'s Series<'a>,
    callers: &'s [SharedCaller],
    points: &'s [Compared],
    per_step: usize,
}

impl Windows<'_, '_> {
    /// Counters of this side's endpoint of a step over all windows.
    pub fn client(&self, step: usize) -> EndpointStats {
        self.callers[step].borrow().rpc().stats().clone()
    }

    /// Packets that this side of a step has built for each call of its transport, over all windows: a
    /// call takes a transmit burst.
    pub fn packets_per_burst(&self, step: usize) -> f64 {
        let caller = self.callers[step].borrow();
        let (stats, transport) = (caller.rpc().stats(), caller.rpc().transport_stats());
        stats.tx_packets as f64 / transport.tx_calls.max(1) as f64
    }

    /// Ratio of the first quantity of a step to that of another step within each round.
    pub fn ratio(
        &self,
        step: usize,
        base: usize,
        metric: Metric,
        result: &PlacementResult,
    ) -> Option<crate::stats::Summary> {
        self.ratio_of(0, (step, base), metric, result)
    }

    /// Ratio of the quantity of load number `load` of one step to that of another step within each
    /// round.
    pub fn ratio_of(
        &self,
        load: usize,
        (step, base): (usize, usize),
        metric: Metric,
        result: &PlacementResult,
    ) -> Option<crate::stats::Summary> {
        let at = |step: usize| self.points[step * self.per_step + load].measured;
        let compared = Compared { measured: at(step), baseline: Some(at(base)) };
        self.series.ratio(compared, metric, result)
    }
}

/// The small-RPC rate as in the paper's factor analysis: B = 3, 60 in flight.
pub fn small_rate(plan: Plan) -> (Kind, Load) {
    let mut spec = BenchSpec::new(Kind::Rate, plan).paper_rate();
    (spec.batch, spec.batches) = (3, Vec::new());
    (spec.kind, spec.loads().remove(0))
}

impl Steps {
    /// Runs all steps; the calling thread is pinned meanwhile. `add_counters` adds a description of the step to
    /// its result.
    ///
    /// # Errors
    /// [`BenchError`], in one line each.
    pub fn run(
        &self,
        progress: &mut dyn FnMut(&Progress),
        add_counters: &dyn Fn(usize, &Windows<'_, '_>, &mut PlacementResult),
    ) -> Result<Report, BenchError> {
        let (clock, cores) = (Clock::new(), affinity::choose()?);
        let mut ground = Ground::open(self.over, &self.variants, &|_| Vec::new(), &clock, &cores)?;
        let mut calls = Vec::new();
        let sessions = self.loads.iter().map(|(_, load)| load.sessions).max().unwrap_or(1);
        for variant in 0..self.variants.len() as u16 {
            ground.connect(variant, sessions)?;
            let caller = &ground.callers[usize::from(variant)];
            for (_, load) in &self.loads {
                calls.push(Calls::new(caller, load.clone(), variant, &clock, &ground.other)?);
            }
        }
        let mut config = agreed(&ground.callers[0]);
        config.insert("credits_granted".to_owned(), credits(&ground).into());
        let loads: Vec<_> = self.loads.iter().map(|(kind, load)| described(*kind, load)).collect();
        config.insert("loads".to_owned(), loads.into());
        config.insert("window_ms".to_owned(), (self.plan.window.as_secs_f64() * 1e3).into());
        config.insert("cores_warning".to_owned(), cores.warning.clone().into());
        let mut runner = ground.runner(plan_for(self.plan, calls.len()))?;
        let mut series = Series::default();
        let points: Vec<Compared> = calls
            .iter_mut()
            .map(|calls| {
                let calls = series.workload(calls);
                series.point(calls, None)
            })
            .collect();
        let ran = series.run(&mut runner, progress);
        ran.map_err(|error| ground.child.explain(error.into()))?;
        config.insert(report::CPU_WAIT.to_owned(), runner.cpu_wait().into());
        let results = self.results(&mut series, &points, &ground.callers, add_counters);
        drop(series);
        drop(calls);
        config.insert("diagnostics".to_owned(), ground.diagnostics());
        Ok(Report {
            bench: self.name.to_owned(),
            transport: self.over.name().to_owned(),
            config,
            results,
            environment: Environment::collect(clock.error_ppm(), &cores),
        })
    }

    /// The quantities of each step as one result.
    fn results(
        &self,
        series: &mut Series<'_>,
        points: &[Compared],
        callers: &[SharedCaller],
        add_counters: &dyn Fn(usize, &Windows<'_, '_>, &mut PlacementResult),
    ) -> Vec<PlacementResult> {
        let per_step = self.loads.len();
        let mut all: Vec<PlacementResult> = Vec::new();
        for (step, of_step) in points.chunks(per_step).enumerate() {
            let mut these: Vec<PlacementResult> = Vec::new();
            for (&point, (kind, _)) in of_step.iter().zip(&self.loads) {
                for result in series.results(point, kind.metric()) {
                    match these.iter_mut().find(|other| other.placement == result.placement) {
                        Some(other) => merge(other, result),
                        None => these.push(result),
                    }
                }
            }
            let windows = Windows { series: &*series, callers, points, per_step };
            these.iter_mut().for_each(|result| add_counters(step, &windows, result));
            all.append(&mut these);
        }
        report::by_placement(all)
    }
}

/// Adds the quantities of another load of the same step.
fn merge(result: &mut PlacementResult, other: PlacementResult) {
    result.latency_p50 = result.latency_p50.or(other.latency_p50);
    result.latency_p99 = result.latency_p99.or(other.latency_p99);
    result.rate = result.rate.or(other.rate);
    result.goodput = result.goodput.or(other.goodput);
    result.windows = result.windows.min(other.windows);
    result.extra.extend(other.extra);
    result.rows.extend(other.rows);
}

/// Credits of a session of each step.
fn credits(ground: &Ground) -> Vec<Option<u32>> {
    let of = |caller: &SharedCaller| {
        let caller = caller.borrow();
        let session = caller.first_session()?;
        Some(caller.rpc().session_stats(session)?.credit_limit)
    };
    ground.callers.iter().map(of).collect()
}

fn described(kind: Kind, load: &Load) -> serde_json::Value {
    object(json!({
        "measured": kind.name(),
        "size": load.size,
        "sessions": load.sessions,
        "in_flight": load.in_flight,
        "batch": load.batch,
    }))
    .into()
}
