//! Runs windows: probes around them, raw and RPC in turn, until there are enough.
//!
//! A benchmark is one or two [`Workload`]s: the one measured and, where there is one, its
//! raw baseline. [`Runner::run`] lets them take turns and keeps, per pair of windows,
//! what both did and the placement that all four probes agreed on. [`report`](super::report)
//! makes results of the pairs.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::contention::Contention;
use super::latency::{Percentiles, Tail};
use super::placement::{Placement, Tag};
use super::probe::Probe;
use super::report::PlacementResult;

/// Error of a workload, whatever its kind.
pub type WorkloadError = Box<dyn std::error::Error + Send + Sync>;

/// One thing that can be measured for a while.
pub trait Workload {
    /// Name for progress and errors, as `rpc` or `raw`.
    fn name(&self) -> &str;

    /// Called before each window's first probe: switch the other side's role, refill,
    /// drain. Not timed. The other side must answer probes when this returns.
    ///
    /// # Errors
    /// Ends the run.
    fn prepare(&mut self) -> Result<(), WorkloadError> {
        Ok(())
    }

    /// Works for about `duration` and says what was done in the time it really took. At
    /// the end nothing may be in flight that would disturb the next window.
    ///
    /// # Errors
    /// Ends the run.
    fn run(&mut self, duration: Duration) -> Result<Sample, WorkloadError>;

    /// What the probes around the last window agreed on. Not called for windows that are thrown
    /// away at the start. A workload that pools what it saw by placement does so here.
    fn tagged(&mut self, tag: Tag) {
        let _ = tag;
    }

    /// Rare latencies, pooled over all windows of a placement; `None` if it has none.
    fn tail(&mut self, placement: Option<Placement>) -> Option<Tail> {
        let _ = placement;
        None
    }

    /// Adds what else the workload counted in its windows of a placement to their result.
    fn tell(&self, result: &mut PlacementResult) {
        let _ = result;
    }
}

/// What a workload did in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Operations completed: calls, or packets of a raw baseline.
    pub operations: u64,
    /// Payload bytes moved by them, one direction.
    pub bytes: u64,
    /// Time they took, ns.
    pub elapsed_ns: u64,
    /// From [`Latency::take`](super::latency::Latency::take), if latency was measured.
    pub latency: Option<Percentiles>,
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
}

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Length of one window. 10-40 ms: placement lasts for 0.5-10 s, so that most
    /// windows see one only, and the probes around them stay below 5 %.
    pub window: Duration,
    /// Pairs wanted at each placement that occurs.
    pub pairs: u32,
    /// The run ends after this even with fewer pairs (the pair under way is finished).
    pub max_time: Duration,
    /// Windows of each workload run first and thrown away: first touch of memory, cold
    /// caches, connection set-up.
    pub warmup: u32,
}

/// Most pairs of one placement; with the dropped ones, bounds the memory of a run to about 80 MB.
const MAX_PAIRS: u32 = 100_000;
/// Most windows thrown away at the start.
const MAX_WARMUP: u32 = 1_000;
/// Windows much longer than this would nearly always span a change of placement.
const MAX_WINDOW: Duration = Duration::from_secs(1);
/// Below this, the probes would take longer than what they bracket.
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

/// Smallest and largest round trip that the probes around something saw.
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

/// Two probe ranges together; what failed adds nothing.
fn join(a: Option<ProbeRange>, b: Option<ProbeRange>) -> Option<ProbeRange> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.and(b)),
        (one, other) => one.or(other),
    }
}

/// One window as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What its two probes agreed on.
    pub tag: Tag,
    /// What they measured.
    pub probes: Option<ProbeRange>,
    /// What the workload did.
    pub sample: Sample,
}

impl Seen {
    /// In place of a window that was not run or is left out: no result counts it.
    pub const MISSING: Self = Self {
        tag: Tag::Mixed,
        probes: None,
        sample: Sample { operations: 0, bytes: 0, elapsed_ns: 0, latency: None },
    };
}

/// A point of a series: which window of a round is compared with which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared {
    /// Place in the round of what is measured.
    pub measured: usize,
    /// Place of its baseline, if it has one.
    pub baseline: Option<usize>,
}

impl Compared {
    /// What the probes around its windows agreed on.
    fn tag(self, round: &[Seen]) -> Tag {
        let tag = round[self.measured].tag;
        self.baseline.map_or(tag, |at| round[at].tag.and(tag))
    }

    /// The pair that it makes of a round.
    fn pair(self, round: &[Seen]) -> Pair {
        let (measured, raw) = (&round[self.measured], self.baseline.map(|at| &round[at]));
        Pair {
            tag: self.tag(round),
            probes: join(raw.and_then(|raw| raw.probes), measured.probes),
            measured: measured.sample,
            raw: raw.map(|raw| raw.sample),
        }
    }

    /// What it measured in all rounds, each paired with the window at `other`, which is of the same
    /// round. Where the cores were is told by the windows of this point only: for a workload that
    /// keeps to one core.
    pub fn beside(self, other: usize, rounds: &[Vec<Seen>]) -> Outcome {
        let pair = |round: &Vec<Seen>| Pair { raw: Some(round[other].sample), ..self.pair(round) };
        Outcome { pairs: rounds.iter().map(pair).collect() }
    }

    /// The pairs that it makes of all rounds.
    pub fn outcome(self, rounds: &[Vec<Seen>]) -> Outcome {
        Outcome { pairs: rounds.iter().map(|round| self.pair(round)).collect() }
    }
}

/// Two neighbouring windows of one placement, or one window where there is no baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// What the probes around both windows agreed on.
    pub tag: Tag,
    /// What they measured. A class is a range: inside it, a machine may have several
    /// states, and only this tells them apart.
    pub probes: Option<ProbeRange>,
    /// The window of what is measured.
    pub measured: Sample,
    /// The window of its baseline, right before.
    pub raw: Option<Sample>,
}

/// All windows of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// In the order they ran, dropped ones too.
    pub pairs: Vec<Pair>,
}

impl Outcome {
    /// The pairs of one placement.
    pub fn at(&self, placement: Placement) -> impl Iterator<Item = &Pair> + Clone {
        let tag = Tag::At(placement);
        self.pairs.iter().filter(move |pair| pair.tag == tag)
    }
}

/// How far a run is; handed to the progress callback after each pair.
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
    /// Pairs wanted at each placement.
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

    /// True when every placement that has occurred has its pairs. A placement that was
    /// seen once is waited for; the plan's time limit ends that wait. Pairs without a
    /// probe count only while there are no others.
    fn enough(&self) -> bool {
        let done = |count| count == 0 || count >= self.wanted;
        if self.near == 0 && self.far == 0 {
            return self.unprobed >= self.wanted;
        }
        done(self.near) && done(self.far)
    }

    /// Pairs of the placement that has fewest.
    fn enough_of(&self) -> u32 {
        let seen = [self.near, self.far].into_iter().filter(|&count| count > 0).min();
        seen.unwrap_or(self.unprobed)
    }
}

/// Why a run ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The plan is outside its limits.
    #[error("{what} must be {limits}")]
    Plan {
        /// The field.
        what: &'static str,
        /// What it may be.
        limits: &'static str,
    },
    /// A workload failed.
    #[error("{name}: {source}")]
    Workload {
        /// Its name.
        name: String,
        /// Its error.
        source: WorkloadError,
    },
}

/// Runs workloads by a plan. `P` is a [`Prober`](super::probe::Prober), on the thread
/// that calls [`Runner::run`].
#[derive(Debug)]
pub struct Runner<P> {
    plan: Plan,
    prober: Option<P>,
    cpu_wait: Option<f64>,
}

impl<P: Probe> Runner<P> {
    /// A runner; without a prober all windows are untagged.
    ///
    /// # Errors
    /// [`RunError::Plan`] if a field is outside its limits.
    pub fn new(plan: Plan, prober: Option<P>) -> Result<Self, RunError> {
        plan.check()?;
        Ok(Self { plan, prober, cpu_wait: None })
    }

    /// The largest share of a run's time for which its threads waited for a CPU
    /// ([`Contention`]); `None` if that was not counted, or both sides have one CPU together.
    pub fn cpu_wait(&self) -> Option<f64> {
        self.cpu_wait
    }

    /// Runs `raw` and `measured` in turn until the plan is fulfilled or `progress` says
    /// `Break`; a run that was broken off returns what it has, at least one pair.
    ///
    /// # Errors
    /// [`RunError::Workload`] with the first failure of a workload.
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

    /// Runs the workloads in rounds, each in the given order (in which one may occur several
    /// times), until every one of the `points` has its pairs, the plan's time is over or
    /// `progress` says `Break`; at least one round.
    ///
    /// # Errors
    /// [`RunError::Workload`] with the first failure of a workload.
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
        let contention = self.prober.as_ref().and_then(|_| Contention::begin());
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
