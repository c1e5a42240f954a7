//! Rounds of windows: in each round every contestant gets new processes, and for each case the
//! contestants take turns.

use std::time::Duration;

use anyhow::Result;
use courser_bench::placement::Tag;
use courser_bench::probe::Between;
use courser_bench::window::{self, RunError, Sample, Seen, Workload, WorkloadError};
use courser_kit::affinity::Cores;

use crate::contestants::{self, Contestant};
use crate::kv;
use crate::pair::Pair;
use crate::work::{Kind, Work};

/// What is measured: one shape of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Stable name, for reports.
    pub key: &'static str,
    /// For people.
    pub title: &'static str,
    /// What servers do.
    pub kind: Kind,
    /// Bytes of a request.
    pub size: usize,
    /// Requests in flight.
    pub in_flight: usize,
}

const MIB: usize = 1 << 20;

/// Loads, and the contestants that are compared by them.
#[derive(Debug)]
pub struct Suite {
    /// Stable name.
    pub name: &'static str,
    /// In the order of the tables.
    pub cases: &'static [Case],
    /// In the order of the tables and of the rounds.
    pub contestants: &'static [Contestant],
}

impl Suite {
    /// Where a round has the window of a case and a contestant.
    pub fn place(&self, case: usize, contestant: &Contestant) -> usize {
        let of_name = self.contestants.iter().position(|c| c.name == contestant.name);
        case * self.contestants.len() + of_name.unwrap_or_default()
    }

    /// Windows of a round, none made yet.
    pub fn round(&self) -> Vec<Seen> {
        vec![Seen::MISSING; self.cases.len() * self.contestants.len()]
    }
}

/// All contestants under loads of bytes.
pub static PEERS: Suite = Suite { name: "peers", cases: CASES, contestants: contestants::ALL };

/// The loads of [`PEERS`]. Those of kind [`Kind::Sink`] are one load with different numbers in flight, of
/// which the best counts.
const CASES: &[Case] = &[
    echo("echo_32b_1", "32 B echo, 1 in flight", 32, 1),
    echo("echo_32b_64", "32 B echo, 64 in flight", 32, 64),
    echo("echo_1kib_1", "1 KiB echo, 1 in flight", 1024, 1),
    echo("echo_1kib_64", "1 KiB echo, 64 in flight", 1024, 64),
    sink("sink_1mib_1", "1 MiB request, 32 B answer, 1 in flight", 1),
    sink("sink_1mib_4", "1 MiB request, 32 B answer, 4 in flight", 4),
];

const fn echo(key: &'static str, title: &'static str, size: usize, in_flight: usize) -> Case {
    Case { key, title, kind: Kind::Echo, size, in_flight }
}

const fn sink(key: &'static str, title: &'static str, in_flight: usize) -> Case {
    Case { key, title, kind: Kind::Sink, size: MIB, in_flight }
}

/// How much is measured.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Plan {
    /// Rounds; medians are over them
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// Length of a window, ms
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(5..=10_000))]
    pub window_ms: u64,
    /// Load before each window that does not count, ms
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub warm_ms: u64,
}

impl Plan {
    /// The longest that processes of one round can be of use.
    fn round_limit(&self, windows: usize) -> Duration {
        let windows = (windows * ATTEMPTS) as u64;
        Duration::from_millis(windows * (self.warm_ms + self.window_ms + 1_000))
            + Duration::from_secs(60)
    }
}

/// Times that a window is made until its two probes agree.
const ATTEMPTS: usize = 3;

/// Everything that was measured.
#[derive(Debug)]
pub struct Measured {
    /// Of what.
    pub suite: &'static Suite,
    /// Whether each side had a core of its own choice.
    pub pinned: bool,
    /// By round, the windows in the places of [`Suite::place`].
    pub rounds: Vec<Vec<Seen>>,
    /// Windows left out because the cores moved in every attempt.
    pub dropped: usize,
    /// Contestants that failed, and why; their earlier windows are left out.
    pub failed: Vec<(&'static str, String)>,
}

/// Windows of one case for a running contestant.
struct Load<'p> {
    pair: &'p mut Pair,
    work: Work,
}

impl Workload for Load<'_> {
    fn name(&self) -> &str {
        self.pair.contestant.name
    }

    fn run(&mut self, duration: Duration) -> Result<Sample, WorkloadError> {
        self.work.window_ms = u64::try_from(duration.as_millis())?;
        Ok(self.pair.run(&self.work)?)
    }
}

/// Runs all rounds. A contestant that fails is left out from then on. Without cores the processes
/// are not pinned, and nothing is probed.
///
/// # Errors
/// The cores cannot be probed.
pub fn measure(
    suite: &'static Suite,
    chosen: &[&'static Contestant],
    cores: Option<&Cores>,
    plan: &Plan,
    progress: impl Fn(&str),
) -> Result<Measured> {
    let apart = cores.filter(|cores| cores.distinct());
    let mut prober = apart.map(|cores| Between::new(cores.client, cores.server)).transpose()?;
    let mut measured = Measured::new(suite, cores.is_some());
    let limit = plan.round_limit(chosen.len() * suite.cases.len());
    for round in 0..usize::from(plan.rounds) {
        progress(&format!("round {} of {}", round + 1, plan.rounds));
        measured.rounds.push(suite.round());
        let mut pairs = Vec::new();
        for contestant in chosen {
            if measured.failed.iter().any(|(name, _)| *name == contestant.name) {
                continue;
            }
            match Pair::start(suite, contestant, cores, limit) {
                Ok(pair) => pairs.push(pair),
                Err(error) => {
                    measured.fail(contestant, format!("{}: {error:#}", contestant.name), &progress);
                }
            }
        }
        // No contestant always follows the same one.
        let first = round % pairs.len().max(1);
        pairs.rotate_left(first);
        for case in 0..suite.cases.len() {
            pairs.retain_mut(|pair| {
                measured
                    .one(case, pair, plan, prober.as_mut())
                    .map_err(|error| measured.fail(pair.contestant, error.to_string(), &progress))
                    .is_ok()
            });
        }
    }
    Ok(measured)
}

impl Measured {
    /// Nothing yet.
    pub fn new(suite: &'static Suite, pinned: bool) -> Self {
        Self { suite, pinned, rounds: Vec::new(), dropped: 0, failed: Vec::new() }
    }

    /// A window of a case between two probes that agree, in the present round.
    fn one(
        &mut self,
        case: usize,
        pair: &mut Pair,
        plan: &Plan,
        mut prober: Option<&mut Between>,
    ) -> Result<(), RunError> {
        let Case { kind, size, in_flight, .. } = self.suite.cases[case];
        let Plan { warm_ms, window_ms, .. } = *plan;
        let work = Work { kind, size, in_flight, warm_ms, window_ms, check_all: false };
        if !pair.contestant.can(&work) {
            return Ok(());
        }
        let at = self.suite.place(case, pair.contestant);
        let mut load = Load { pair, work };
        for _ in 0..ATTEMPTS {
            let length = Duration::from_millis(window_ms);
            let seen = window::probed(prober.as_deref_mut(), &mut load, length)?;
            let counts = match seen.tag {
                Tag::At(_) => true,
                Tag::Unprobed => prober.is_none(),
                Tag::Mixed => false,
            };
            if let (true, Some(round)) = (counts, self.rounds.last_mut()) {
                round[at] = seen;
                return Ok(());
            }
        }
        self.dropped += 1;
        Ok(())
    }

    fn fail(&mut self, contestant: &Contestant, error: String, progress: &impl Fn(&str)) {
        progress(&error);
        self.failed.push((contestant.name, error));
        for round in &mut self.rounds {
            for case in 0..self.suite.cases.len() {
                round[self.suite.place(case, contestant)] = Seen::MISSING;
            }
        }
    }
}

/// Whether a contestant answers rightly, byte by byte, requests of all kinds of the suite and of all
/// sizes, alone and several at a time.
///
/// # Errors
/// The first that it does not.
pub fn check(
    suite: &Suite,
    contestant: &'static Contestant,
    cores: Option<&Cores>,
) -> Result<usize> {
    let mut pair = Pair::start(suite, contestant, cores, Duration::from_secs(300))?;
    let mut loads = 0;
    for kind in [Kind::Echo, Kind::Sink, Kind::Get] {
        if !suite.cases.iter().any(|case| case.kind == kind) {
            continue;
        }
        let sizes = [1, 32, 1024, 60_000, MIB];
        for size in if kind == Kind::Get { &[kv::KEY][..] } else { &sizes } {
            for in_flight in [1, 8] {
                let (warm_ms, window_ms) = (0, 5);
                let work =
                    Work { kind, size: *size, in_flight, warm_ms, window_ms, check_all: true };
                if contestant.can(&work) {
                    pair.run(&work)?;
                    loads += 1;
                }
            }
        }
    }
    Ok(loads)
}
