//! Runs several workloads alternately, and computes the results of the points of a series.

use std::ops::ControlFlow;

use crate::probe::Probe;
use crate::report::{self, Metric, PlacementResult};
use crate::stats::Summary;
use crate::window::{Compared, Outcome, Plan, Progress, RunError, Runner, Seen, Workload};

/// The windows of a round, and the points that compare them.
#[derive(Default)]
pub struct Series<'a> {
    workloads: Vec<&'a mut dyn Workload>,
    order: Vec<usize>,
    points: Vec<Compared>,
    rounds: Vec<Vec<Seen>>,
}

impl<'a> Series<'a> {
    /// Adds a workload and returns its number.
    pub fn workload(&mut self, workload: &'a mut dyn Workload) -> usize {
        self.workloads.push(workload);
        self.workloads.len() - 1
    }

    /// Adds a window of a workload to the round and returns its position.
    pub fn window(&mut self, workload: usize) -> usize {
        self.order.push(workload);
        self.order.len() - 1
    }

    /// Adds a point: a window, and a window of its baseline right before.
    pub fn point(&mut self, measured: usize, baseline: Option<usize>) -> Compared {
        let baseline = baseline.map(|workload| self.window(workload));
        let measured = self.window(measured);
        let point = Compared { measured, baseline };
        self.points.push(point);
        point
    }

    /// Runs all rounds.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn run<P: Probe>(
        &mut self,
        runner: &mut Runner<P>,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<(), RunError> {
        let mut keep_on = |now: &Progress| {
            progress(now);
            ControlFlow::Continue(())
        };
        self.rounds =
            runner.rounds(&mut self.workloads, &self.order, &self.points, &mut keep_on)?;
        Ok(())
    }

    /// The pairs of a point or of any other two windows.
    pub fn outcome(&self, compared: Compared) -> Outcome {
        compared.outcome(&self.rounds)
    }

    /// The pairs of a point and of another window of the round, which uses a single core.
    pub fn beside(&self, point: Compared, other: usize) -> Outcome {
        point.beside(other, &self.rounds)
    }

    /// The results of a point, one for each placement. The baseline is called raw.
    pub fn results(&mut self, point: Compared, metric: Metric) -> Vec<PlacementResult> {
        let mut results = report::results(&self.outcome(point), metric);
        for result in &mut results {
            let placement = result.placement();
            let sides = [("latency", Some(point.measured)), ("raw", point.baseline)];
            for (prefix, at) in sides {
                let workload = at.map(|at| &mut self.workloads[self.order[at]]);
                if let Some(workload) = &workload
                    && prefix == "latency"
                {
                    workload.add_counters(result);
                }
                if let Some(tail) = workload.and_then(|workload| workload.tail(placement)) {
                    result.add_tail(prefix, tail);
                }
            }
        }
        results
    }

    /// Ratio of a quantity to that of the baseline within each pair, at the placement of a result.
    pub fn ratio(
        &self,
        compared: Compared,
        metric: Metric,
        result: &PlacementResult,
    ) -> Option<Summary> {
        report::ratio(&self.outcome(compared), metric, result.placement())
    }
}

/// The plan of a series: the same number of pairs for each point, and up to six times the time limit.
pub fn plan_for(plan: Plan, points: usize) -> Plan {
    let times = u32::try_from(points).unwrap_or(MOST_TIMES).clamp(1, MOST_TIMES);
    Plan { max_time: plan.max_time * times, ..plan }
}

/// Most time of a series, as a multiple of that of a single point.
const MOST_TIMES: u32 = 6;
