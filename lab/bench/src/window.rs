//! Runs windows with probes around them, raw and RPC alternately, until a plan is fulfilled.
//!
//! A benchmark has one or two [`Workload`]s: the measured one and optionally its raw baseline.
//! [`Runner::run`] alternates them. For each pair of windows it keeps both samples and the placement
//! on which all four probes agreed. [`report`](super::report) computes results from the pairs.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::contention::Contention;
use super::placement::{Placement, Tag};
use super::probe::Probe;
use super::report::PlacementResult;
use courser_kit::latency::{Percentiles, Tail};

/// Error of a workload.
pub type WorkloadError = Box<dyn std::error::Error + Send + Sync>;

/// A workload that can be measured in windows.
pub trait Workload {
    /// Name for progress and errors, as `rpc` or `raw`.
    fn name(&self) -> &str;

    /// Prepares a window before its first probe, for example by changing the other side's role. Not
    /// timed. The other side must answer probes when this returns.
    ///
    /// # Errors
    /// An error ends the run.
    fn prepare(&mut self) -> Result<(), WorkloadError> {
        Ok(())
    }

    /// Works for about `duration`; returns the operations and the exact time. At the end no operation
    /// may be in flight, because it would disturb the next window.
    ///
    /// # Errors
    /// An error ends the run.
    fn run(&mut self, duration: Duration) -> Result<Sample, WorkloadError>;

    /// Called with the tag of the last window, except for warm-up windows. Workloads that pool values
    /// by placement do it here.
    fn tagged(&mut self, tag: Tag) {
        let _ = tag;
    }

    /// High percentiles over all windows of a placement; `None` without latencies.
    fn tail(&mut self, placement: Option<Placement>) -> Option<Tail> {
        let _ = placement;
        None
    }

    /// Adds further counters of the windows of a placement to their result.
    fn add_counters(&self, result: &mut PlacementResult) {
        let _ = result;
    }
}

/// Operations of a workload in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Completed operations: calls, or packets of a raw baseline.
    pub operations: u64,
    /// Payload bytes of the operations, in one direction.
    pub bytes: u64,
    /// Duration of the operations, ns.
    pub elapsed_ns: u64,
    /// Percentiles from [`Latency::take`](courser_kit::latency::Latency::take), if latency was measured.
    pub latency: Option<Percentiles>,
    /// Processor time of both sides, user and system, if it was measured, ns.
    #[serde(default)]
    pub cpu_ns: Option<u64>,
}

impl Sample {
    /// Operations per second; not finite if no time passed.
    pub fn rate(&self) -> f64 {
        self.operations as f64 * 1e9 / self.elapsed_ns as f64
    }

    /// Payload bits per second; not finite if no time passed.
    pub fn goodput_bps(&self) -> f64 {
        self.bytes as f64 * 8e9 / self.elapsed_ns as f64
    }

    /// Processor time of an operation, ns; `None` if it was not measured or there was no operation.
    pub fn cpu_per_operation_ns(&self) -> Option<f64> {
        self.cpu_ns.filter(|_| self.operations > 0).map(|ns| ns as f64 / self.operations as f64)
    }
}

/// Duration of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Length of one window, 10-40 ms. A placement lasts for 0.5-10 s, so most windows have a single
    /// one, and the probes take less than 5 % of the time.
    pub window: Duration,
    /// Required pairs at each placement that occurs.
    pub pairs: u32,
    /// Time limit: the run ends after the current pair even with fewer pairs.
    pub max_time: Duration,
    /// Warm-up windows of each workload, which are not counted: page faults, cold caches, connection
    /// set-up.
    pub warmup: u32,
}

/// Most pairs of one placement. With the dropped windows, it limits the memory of a run to about
/// 80 MB.
const MAX_PAIRS: u32 = 100_000;
/// Most warm-up windows.
const MAX_WARMUP: u32 = 1_000;
/// Longest window: the placement would change in nearly every longer one.
const MAX_WINDOW: Duration = Duration::from_secs(1);
/// Shortest window: the probes would take longer than a shorter one.
const MIN_WINDOW: Duration = Duration::from_millis(1);

impl Plan {
    /// Enough for a claim: 200 pairs at each placement seen, or two minutes.
    pub fn full() -> Self {
        Self {
            window: Duration::from_millis(20),
            pairs: 200,
            max_time: Duration::from_secs(120),
            warmup: 5,
        }
    }

    /// Takes 2-3 s: enough for a first look, not for a claim.
    pub fn quick() -> Self {
        Self {
            window: Duration::from_millis(10),
            pairs: 100,
            max_time: Duration::from_millis(2_500),
            warmup: 2,
        }
    }

    fn check(&self) -> Result<(), RunError> {
        let invalid = |what, limits| Err(RunError::Plan { what, limits });
        if !(MIN_WINDOW..=MAX_WINDOW).contains(&self.window) {
            return invalid("window length", "1 ms to 1 s");
        }
        if !(1..=MAX_PAIRS).contains(&self.pairs) {
            return invalid("number of pairs", "1 to 100000");
        }
        if self.warmup > MAX_WARMUP {
            return invalid("number of warm-up windows", "0 to 1000");
        }
        Ok(())
    }
}

/// Smallest and largest round trip of several probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeRange {
    /// Smallest, ns.
    pub min_ns: u64,
    /// Largest, ns.
    pub max_ns: u64,
}

impl ProbeRange {
    fn and(self, other: Self) -> Self {
        Self { min_ns: self.min_ns.min(other.min_ns), max_ns: self.max_ns.max(other.max_ns) }
    }
}

/// Combines two probe ranges; failed probes have none.
fn join(a: Option<ProbeRange>, b: Option<ProbeRange>) -> Option<ProbeRange> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.and(b)),
        (one, other) => one.or(other),
    }
}

/// The observation of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Tag on which the two probes agreed.
    pub tag: Tag,
    /// Round trips of the probes.
    pub probes: Option<ProbeRange>,
    /// Operations of the workload.
    pub sample: Sample,
}

impl Seen {
    /// In place of a window that was not run or is left out: no result counts it.
    pub const MISSING: Self = Self {
        tag: Tag::Mixed,
        probes: None,
        sample: Sample { operations: 0, bytes: 0, elapsed_ns: 0, latency: None, cpu_ns: None },
    };
}

/// A point of a series: two windows of a round that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared {
    /// Position of the measured window in the round.
    pub measured: usize,
    /// Position of the baseline, if there is one.
    pub baseline: Option<usize>,
}

impl Compared {
    /// Tag on which the probes around its windows agreed.
    fn tag(self, round: &[Seen]) -> Tag {
        let tag = round[self.measured].tag;
        self.baseline.map_or(tag, |at| round[at].tag.and(tag))
    }

    /// The pair of this point in a round.
    fn pair(self, round: &[Seen]) -> Pair {
        let (measured, raw) = (&round[self.measured], self.baseline.map(|at| &round[at]));
        Pair {
            tag: self.tag(round),
            probes: join(raw.and_then(|raw| raw.probes), measured.probes),
            measured: measured.sample,
            raw: raw.map(|raw| raw.sample),
        }
    }

    /// The pairs of the measured window and the window at position `other` in all rounds. The tag comes
    /// from this point only, because the other workload uses a single core.
    pub fn beside(self, other: usize, rounds: &[Vec<Seen>]) -> Outcome {
        let pair = |round: &Vec<Seen>| Pair { raw: Some(round[other].sample), ..self.pair(round) };
        Outcome { pairs: rounds.iter().map(pair).collect() }
    }

    /// The pairs of this point in all rounds.
    pub fn outcome(self, rounds: &[Vec<Seen>]) -> Outcome {
        Outcome { pairs: rounds.iter().map(|round| self.pair(round)).collect() }
    }
}

/// Two neighbouring windows of one placement, or one window where there is no baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Tag on which the probes around both windows agreed.
    pub tag: Tag,
    /// Round trips of the probes. They distinguish several states of a machine within one placement.
    pub probes: Option<ProbeRange>,
    /// The measured window.
    pub measured: Sample,
    /// The window of the baseline right before it.
    pub raw: Option<Sample>,
}

/// All windows of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// In the order of the run, including dropped ones.
    pub pairs: Vec<Pair>,
}

impl Outcome {
    /// The pairs of one placement.
    pub fn at(&self, placement: Placement) -> impl Iterator<Item = &Pair> + Clone {
        let tag = Tag::At(placement);
        self.pairs.iter().filter(move |pair| pair.tag == tag)
    }
}

/// Progress of a run, passed to the callback after each pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Time since the run began.
    pub elapsed: Duration,
    /// Pairs so far at near.
    pub near: u32,
    /// Pairs so far at far.
    pub far: u32,
    /// Pairs so far without any probe.
    pub unprobed: u32,
    /// Pairs so far whose probes disagreed.
    pub mixed: u32,
    /// Required pairs at each placement.
    pub wanted: u32,
}

impl Progress {
    fn count(&mut self, tag: Tag) {
        let counter = match tag {
            Tag::At(Placement::Near) => &mut self.near,
            Tag::At(Placement::Far) => &mut self.far,
            Tag::Unprobed => &mut self.unprobed,
            Tag::Mixed => &mut self.mixed,
        };
        *counter += 1;
    }

    /// True if every placement that has occurred has enough pairs; the time limit of the plan ends the
    /// run otherwise. Pairs without a probe count only if there are no others.
    fn enough(&self) -> bool {
        let done = |count| count == 0 || count >= self.wanted;
        if self.near == 0 && self.far == 0 {
            return self.unprobed >= self.wanted;
        }
        done(self.near) && done(self.far)
    }

    /// Pairs of the placement with the fewest pairs.
    fn enough_of(&self) -> u32 {
        let seen = [self.near, self.far].into_iter().filter(|&count| count > 0).min();
        seen.unwrap_or(self.unprobed)
    }
}

/// Error of a run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The plan is outside its limits.
    #[error("{what} must be {limits}")]
    Plan {
        /// Name of the field.
        what: &'static str,
        /// Permitted values.
        limits: &'static str,
    },
    /// A workload failed.
    #[error("{name}: {source}")]
    Workload {
        /// Name of the workload.
        name: String,
        /// Error of the workload.
        source: WorkloadError,
    },
}

/// Runs workloads according to a plan. `P` is a [`Prober`](super::probe::Prober) on the thread that
/// calls [`Runner::run`].
#[derive(Debug)]
pub struct Runner<P> {
    plan: Plan,
    prober: Option<P>,
    counts_cpu_wait: bool,
    cpu_wait: Option<f64>,
}

impl<P: Probe> Runner<P> {
    /// Creates a runner; without a prober all windows are untagged.
    ///
    /// # Errors
    /// [`RunError::Plan`] if a field is outside its limits.
    pub fn new(plan: Plan, prober: Option<P>) -> Result<Self, RunError> {
        plan.check()?;
        let counts_cpu_wait = prober.is_some();
        Ok(Self { plan, prober, counts_cpu_wait, cpu_wait: None })
    }

    /// Counts the time for which threads wait for a CPU also without a prober. For a benchmark whose
    /// threads do not share a CPU with each other.
    #[must_use]
    pub fn counting_cpu_wait(self) -> Self {
        Self { counts_cpu_wait: true, ..self }
    }

    /// The largest share of a run's time for which its threads waited for a CPU
    /// ([`Contention`]); `None` if it was not counted.
    pub fn cpu_wait(&self) -> Option<f64> {
        self.cpu_wait
    }

    /// Runs `raw` and `measured` alternately until the plan is fulfilled or `progress` returns `Break`;
    /// at least one pair.
    ///
    /// # Errors
    /// [`RunError::Workload`] with the first error of a workload.
    pub fn run(
        &mut self,
        measured: &mut dyn Workload,
        raw: Option<&mut dyn Workload>,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Outcome, RunError> {
        let compared = match raw {
            Some(_) => Compared { measured: 1, baseline: Some(0) },
            None => Compared { measured: 0, baseline: None },
        };
        let mut workloads: Vec<&mut dyn Workload> = match raw {
            Some(raw) => vec![raw, measured],
            None => vec![measured],
        };
        let order: Vec<usize> = (0..workloads.len()).collect();
        let rounds = self.rounds(&mut workloads, &order, &[compared], progress)?;
        Ok(compared.outcome(&rounds))
    }

    /// Runs rounds of windows in the given order, in which a workload may occur several times, until
    /// each of the `points` has enough pairs, the time limit is reached or `progress` returns `Break`; at
    /// least one round.
    ///
    /// # Errors
    /// [`RunError::Workload`] with the first error of a workload.
    pub fn rounds(
        &mut self,
        workloads: &mut [&mut dyn Workload],
        order: &[usize],
        points: &[Compared],
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<Seen>>, RunError> {
        let start = Instant::now();
        for _ in 0..self.plan.warmup {
            for &at in order {
                self.window(workloads[at])?;
            }
        }
        let contention = self.counts_cpu_wait.then(Contention::begin).flatten();
        let most = (4 * MAX_PAIRS as usize / order.len().max(1)).max(1);
        let mut rounds = Vec::new();
        let mut so_far =
            vec![Progress { wanted: self.plan.pairs, ..Progress::default() }; points.len()];
        loop {
            let mut round = Vec::with_capacity(order.len());
            for &at in order {
                let seen = self.window(workloads[at])?;
                workloads[at].tagged(seen.tag);
                round.push(seen);
            }
            for (so_far, point) in so_far.iter_mut().zip(points) {
                so_far.count(point.tag(&round));
                so_far.elapsed = start.elapsed();
            }
            rounds.push(round);
            let slowest = so_far.iter().min_by_key(|point| point.enough_of()).copied();
            let now = slowest.unwrap_or_default();
            let stop = progress(&now).is_break()
                || so_far.iter().all(Progress::enough)
                || start.elapsed() >= self.plan.max_time
                || rounds.len() >= most;
            if stop {
                let share = contention.and_then(|contention| contention.share());
                self.cpu_wait = share.into_iter().chain(self.cpu_wait).reduce(f64::max);
                return Ok(rounds);
            }
        }
    }

    fn window(&mut self, workload: &mut dyn Workload) -> Result<Seen, RunError> {
        probed(self.prober.as_mut(), workload, self.plan.window)
    }
}

/// One window between two probes; without a prober it is untagged.
///
/// # Errors
/// [`RunError::Workload`] if the workload failed.
pub fn probed<P: Probe>(
    mut prober: Option<&mut P>,
    workload: &mut dyn Workload,
    length: Duration,
) -> Result<Seen, RunError> {
    let name = workload.name().to_owned();
    let failed = |source| RunError::Workload { name, source };
    if let Err(source) = workload.prepare() {
        return Err(failed(source));
    }
    let mut probe = || {
        let Some(prober) = &mut prober else { return (Tag::Unprobed, None) };
        let result = prober.measure();
        let range = result.ok().map(|ns| ProbeRange { min_ns: ns, max_ns: ns });
        (Tag::of(&result), range)
    };
    let (tag_before, probe_before) = probe();
    let sample = workload.run(length).map_err(failed)?;
    let (tag_after, probe_after) = probe();
    Ok(Seen { tag: tag_before.and(tag_after), probes: join(probe_before, probe_after), sample })
}

#[cfg(test)]
mod tests;
