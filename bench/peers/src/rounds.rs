//! Rounds of windows: in each round every contestant gets new processes, and for each case the
//! contestants take turns.

use std::time::Duration;

use anyhow::Result;
use courser_bench::placement::Tag;
use courser_bench::probe::{self, BetweenError, ProbeError};
use serde::Serialize;

use crate::contestants::Contestant;
use crate::pair::{Cores, Pair};
use crate::work::{Kind, Sample, Work};

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

/// All of them. Those of kind [`Kind::Sink`] are one load with different numbers in flight, of
/// which the best counts.
pub const CASES: &[Case] = &[
    Case {
        key: "echo_32b_1",
        title: "32 B echo, 1 in flight",
        kind: Kind::Echo,
        size: 32,
        in_flight: 1,
    },
    Case {
        key: "echo_32b_64",
        title: "32 B echo, 64 in flight",
        kind: Kind::Echo,
        size: 32,
        in_flight: 64,
    },
    Case {
        key: "echo_1kib_1",
        title: "1 KiB echo, 1 in flight",
        kind: Kind::Echo,
        size: 1024,
        in_flight: 1,
    },
    Case {
        key: "echo_1kib_64",
        title: "1 KiB echo, 64 in flight",
        kind: Kind::Echo,
        size: 1024,
        in_flight: 64,
    },
    Case {
        key: "sink_1mib_1",
        title: "1 MiB request, 32 B answer, 1 in flight",
        kind: Kind::Sink,
        size: MIB,
        in_flight: 1,
    },
    Case {
        key: "sink_1mib_4",
        title: "1 MiB request, 32 B answer, 4 in flight",
        kind: Kind::Sink,
        size: MIB,
        in_flight: 4,
    },
];

/// How much is measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    /// Rounds.
    pub rounds: usize,
    /// Length of a window, ms.
    pub window_ms: u64,
    /// Load before each window that does not count, ms.
    pub warm_ms: u64,
}

impl Plan {
    fn work(&self, case: &Case) -> Work {
        Work {
            kind: case.kind,
            size: case.size,
            in_flight: case.in_flight,
            warm_ms: self.warm_ms,
            window_ms: self.window_ms,
            check_all: false,
        }
    }

    /// The longest that processes of one round can be of use.
    fn round_limit(&self, contestants: usize) -> Duration {
        let windows = (contestants * CASES.len() * ATTEMPTS) as u64;
        Duration::from_millis(windows * (self.warm_ms + self.window_ms + 1_000))
            + Duration::from_secs(60)
    }
}

/// Times that a window is made until its two probes agree.
const ATTEMPTS: usize = 3;

/// A window that counts.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Round, from 0.
    pub round: usize,
    /// Which case, of [`CASES`].
    pub case: usize,
    /// Who.
    pub contestant: &'static str,
    /// The placement of the cores; never [`Tag::Mixed`].
    pub placement: Tag,
    /// Mean of the probes around it; 0 if there are none.
    pub probe_ns: u64,
    /// What it gave.
    pub sample: Sample,
}

/// Everything that was measured.
#[derive(Debug, Default)]
pub struct Measured {
    /// In the order of time.
    pub windows: Vec<Window>,
    /// Windows left out because the cores moved, again and again.
    pub dropped: usize,
    /// Contestants that failed, and why; what they gave before is left out.
    pub failed: Vec<(&'static str, String)>,
}

/// Runs all rounds. A contestant that fails is left out from then on.
///
/// # Errors
/// The cores cannot be probed.
pub fn measure(
    contestants: &[&'static Contestant],
    cores: Cores,
    plan: &Plan,
    mut progress: impl FnMut(&str),
) -> Result<Measured> {
    let mut measured = Measured::default();
    for round in 0..plan.rounds {
        progress(&format!("round {} of {}", round + 1, plan.rounds));
        let mut pairs = Vec::new();
        for contestant in contestants {
            if measured.failed.iter().any(|(name, _)| *name == contestant.name) {
                continue;
            }
            match Pair::start(contestant, cores, plan.round_limit(contestants.len())) {
                Ok(pair) => pairs.push(pair),
                Err(error) => measured.fail(contestant.name, &error, &mut progress),
            }
        }
        if !pairs.is_empty() {
            // Rotate, so that no contestant always follows the same one.
            let first = round % pairs.len();
            pairs.rotate_left(first);
        }
        for case in 0..CASES.len() {
            pairs = one_case(&mut measured, pairs, round, case, cores, plan, &mut progress)?;
        }
    }
    Ok(measured)
}

/// One window of a case for every pair; returns those that live on.
fn one_case(
    measured: &mut Measured,
    pairs: Vec<Pair>,
    round: usize,
    case: usize,
    cores: Cores,
    plan: &Plan,
    progress: &mut impl FnMut(&str),
) -> Result<Vec<Pair>> {
    let work = plan.work(&CASES[case]);
    let mut alive = Vec::with_capacity(pairs.len());
    for mut pair in pairs {
        let contestant = pair.contestant;
        if !contestant.can(&work) {
            alive.push(pair);
            continue;
        }
        match window(&mut pair, &work, cores)? {
            Ok(Some((placement, probe_ns, sample))) => {
                let contestant = contestant.name;
                measured.windows.push(Window {
                    round,
                    case,
                    contestant,
                    placement,
                    probe_ns,
                    sample,
                });
                alive.push(pair);
            }
            Ok(None) => {
                measured.dropped += 1;
                alive.push(pair);
            }
            Err(error) => measured.fail(contestant.name, &error, progress),
        }
    }
    Ok(alive)
}

type Probed = Option<(Tag, u64, Sample)>;

/// A window between two probes that agree; `None` if they never do. The inner error is the
/// contestant's, the outer one the probe's.
fn window(pair: &mut Pair, work: &Work, cores: Cores) -> Result<Result<Probed>> {
    for _ in 0..ATTEMPTS {
        let before = probe(cores)?;
        let sample = match pair.run(work) {
            Ok(sample) => sample,
            Err(error) => return Ok(Err(error)),
        };
        let placement = match (before, probe(cores)?) {
            (Err(ProbeError::OneCpu), _) => Some((Tag::Unprobed, 0)),
            (Ok(before), Ok(after)) => {
                let tag = Tag::of(&Ok(before)).and(Tag::of(&Ok(after)));
                (tag != Tag::Mixed).then_some((tag, (before + after) / 2))
            }
            _ => None,
        };
        if let Some((placement, probe_ns)) = placement {
            return Ok(Ok(Some((placement, probe_ns, sample))));
        }
    }
    Ok(Ok(None))
}

/// The round trip between the cores; the inner error is that of a probe without a result.
fn probe(cores: Cores) -> Result<Result<u64, ProbeError>> {
    match probe::between(cores.client, cores.server) {
        Ok(ns) => Ok(Ok(ns)),
        Err(BetweenError::Probe(error)) => Ok(Err(error)),
        Err(error) => Err(error.into()),
    }
}

impl Measured {
    fn fail(&mut self, name: &'static str, error: &anyhow::Error, progress: &mut impl FnMut(&str)) {
        progress(&format!("{error:#}"));
        self.failed.push((name, format!("{error:#}")));
        self.windows.retain(|window| window.contestant != name);
    }
}

/// Whether every contestant answers rightly, byte by byte, requests of all sizes, alone and
/// several at a time.
///
/// # Errors
/// The first that does not.
pub fn check(contestant: &'static Contestant, cores: Cores) -> Result<usize> {
    let mut pair = Pair::start(contestant, cores, Duration::from_secs(300))?;
    let mut loads = 0;
    for kind in [Kind::Echo, Kind::Sink] {
        for size in [1, 32, 1024, 60_000, MIB] {
            for in_flight in [1, 8] {
                let (warm_ms, window_ms) = (0, 5);
                let work = Work { kind, size, in_flight, warm_ms, window_ms, check_all: true };
                if contestant.can(&work) {
                    pair.run(&work)?;
                    loads += 1;
                }
            }
        }
    }
    Ok(loads)
}
