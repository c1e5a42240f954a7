//! How far apart the two cores are at this moment: the round trip of a cache line between them.
//!
//! On virtual machines that changes every few seconds with nothing visible from within, and
//! results change with it. Each window is probed before and after; only windows of one placement
//! are compared with each other. The classes are those of `courser bench`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::child::pin;
use crate::pair::Cores;

/// Round trips up to this are near: the cores share a cache.
const NEAR_MAX_NS: u64 = 220;
/// Round trips from this on are far: the line crosses dies or sockets. Between the two lies a gap
/// in which no stable placement was seen.
const FAR_MIN_NS: u64 = 300;

/// Lines on pages of their own that are probed in turn: where memory has more than one home, the
/// page decides too.
const LINES: usize = 16;
/// Round trips on each, timed together.
const TRIPS: u64 = 64;
/// A probe that takes longer has failed: no thread spins for ever.
const LIMIT: Duration = Duration::from_secs(1);
/// Looks between two looks at the clock.
const SPINS: u32 = 1 << 12;

/// Where the cores are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// They share a cache.
    Near,
    /// They do not.
    Far,
    /// Not to be told: one core for both.
    Unprobed,
}

#[repr(align(4096))]
#[derive(Default)]
struct OwnPage(AtomicU64);

/// Spins until the line is `value`. False: it takes too long.
fn await_value(line: &OwnPage, value: u64, until: Instant) -> bool {
    loop {
        for _ in 0..SPINS {
            if line.0.load(Ordering::Acquire) == value {
                return true;
            }
        }
        if Instant::now() > until {
            return false;
        }
    }
}

/// What a probe says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The round trip in ns: the median over the lines.
    Took(u64),
    /// A core was busy with something else all the time.
    NotAnswered,
    /// Both sides have the same core: there is nothing between them.
    OneCore,
}

/// Probes now, for about 0.3 ms.
///
/// # Errors
/// A core or a thread is not to be had.
pub fn probe(cores: Cores) -> Result<Probe> {
    if cores.client == cores.server {
        return Ok(Probe::OneCore);
    }
    let lines: Vec<OwnPage> = (0..LINES).map(|_| OwnPage::default()).collect();
    let until = Instant::now() + LIMIT;
    let panicked = |_| anyhow!("a thread of the probe panicked");
    std::thread::scope(|scope| {
        let named = || std::thread::Builder::new().name("probe".to_owned());
        let answers = named().spawn_scoped(scope, || answer(&lines, cores.server, until))?;
        let asks = named().spawn_scoped(scope, || ask(&lines, cores.client, until))?;
        answers.join().map_err(panicked)??;
        let mut times = asks.join().map_err(panicked)??;
        if times.len() < LINES {
            return Ok(Probe::NotAnswered);
        }
        times.sort_unstable();
        Ok(Probe::Took(times[LINES / 2]))
    })
}

fn answer(lines: &[OwnPage], cpu: usize, until: Instant) -> Result<()> {
    pin(cpu)?;
    for line in lines {
        for trip in 0..TRIPS {
            if !await_value(line, 2 * trip + 1, until) {
                return Ok(());
            }
            line.0.store(2 * trip + 2, Ordering::Release);
        }
    }
    Ok(())
}

/// Round trips in ns, one for each line that was answered in time.
fn ask(lines: &[OwnPage], cpu: usize, until: Instant) -> Result<Vec<u64>> {
    pin(cpu)?;
    let mut times = Vec::with_capacity(LINES);
    for line in lines {
        let start = Instant::now();
        for trip in 0..TRIPS {
            line.0.store(2 * trip + 1, Ordering::Release);
            if !await_value(line, 2 * trip + 2, until) {
                return Ok(times);
            }
        }
        times.push(start.elapsed().as_nanos() as u64 / TRIPS);
    }
    Ok(times)
}

/// What the probes on both sides of a window say; `None`: they disagree, or saw something between.
pub fn placement(before_ns: u64, after_ns: u64) -> Option<Placement> {
    match (before_ns, after_ns) {
        (0..=NEAR_MAX_NS, 0..=NEAR_MAX_NS) => Some(Placement::Near),
        (FAR_MIN_NS.., FAR_MIN_NS..) => Some(Placement::Far),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes() {
        assert_eq!(placement(100, 220), Some(Placement::Near));
        assert_eq!(placement(300, 9_000), Some(Placement::Far));
        for (before, after) in [(100, 300), (300, 100), (221, 100), (299, 299)] {
            assert_eq!(placement(before, after), None, "{before} {after}");
        }
    }

    #[test]
    fn two_cores_have_a_round_trip() {
        let cpus = crate::child::usable_cpus().expect("affinity");
        let (client, server) = (cpus[0], *cpus.last().expect("a core"));
        let seen = probe(Cores { client, server }).expect("a probe");
        match (client == server, seen) {
            (true, seen) => assert_eq!(seen, Probe::OneCore),
            (false, Probe::Took(ns)) => assert!(ns > 0),
            // Busy with other work.
            (false, seen) => assert_eq!(seen, Probe::NotAnswered),
        }
    }

    #[test]
    fn a_core_that_does_not_exist_is_an_error() {
        let cores = Cores { client: 0, server: usize::MAX };
        let error = probe(cores).expect_err("no such core").to_string();
        assert!(error.contains("no core"), "{error}");
    }
}
