//! Time and memory of a simulation.

use std::time::{Duration, Instant};

use crate::scenario::speed::{Load, Settings, TwoHosts};
use crate::scenario::{ScenarioError, Traffic, sessions};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::args::SpeedArgs;

/// Measures real time and the CPU time of this thread.
pub(super) struct Stopwatch {
    wall: Instant,
    cpu: Duration,
}

impl Stopwatch {
    pub(super) fn start() -> Self {
        Stopwatch { wall: Instant::now(), cpu: cpu_time() }
    }

    /// Seconds since the start: real time and CPU time of this thread.
    pub(super) fn elapsed_s(&self) -> (f64, f64) {
        let cpu = cpu_time().saturating_sub(self.cpu);
        (self.wall.elapsed().as_secs_f64(), cpu.as_secs_f64())
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Time and memory of this process.
#[derive(Debug, Serialize)]
pub(super) struct Wall {
    /// Real time of the measured part, s.
    pub(super) wall_s: f64,
    /// CPU time of the measured part, s; lower than the real time if other programs used the core.
    pub(super) cpu_s: f64,
    /// Datagrams that reached a receive queue, per second of real time.
    pub(super) deliveries_per_wall_s: f64,
    /// Datagrams that reached a receive queue, per second of CPU time.
    pub(super) deliveries_per_cpu_s: f64,
    /// Peak resident memory of the process, bytes; `null` if unknown.
    pub(super) peak_rss_bytes: Option<u64>,
}

impl Wall {
    pub(super) fn of(begin: &Stopwatch, traffic: &Traffic) -> Self {
        let (wall_s, cpu_s) = begin.elapsed_s();
        let delivered = traffic.datagrams_delivered as f64;
        Wall {
            wall_s,
            cpu_s,
            deliveries_per_wall_s: delivered / wall_s,
            deliveries_per_cpu_s: delivered / cpu_s,
            peak_rss_bytes: peak_rss_bytes(),
        }
    }
}

fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Results of one load over all rounds.
#[derive(Debug, Serialize)]
pub(super) struct Speed {
    /// The load.
    pub(super) load: Load,
    /// Delivered datagrams per second of CPU time, median over the rounds.
    pub(super) deliveries_per_cpu_s: f64,
    /// The slowest round.
    pub(super) deliveries_per_cpu_s_min: f64,
    /// The fastest round.
    pub(super) deliveries_per_cpu_s_max: f64,
    /// Delivered datagrams per second of real time, median.
    pub(super) deliveries_per_wall_s: f64,
    /// The slowest round.
    pub(super) deliveries_per_wall_s_min: f64,
    /// The fastest round.
    pub(super) deliveries_per_wall_s_max: f64,
    /// Virtual time per real time, median.
    pub(super) virtual_s_per_wall_s: f64,
}

/// One window: deliveries per second of CPU time and of real time, and virtual seconds per real
/// second.
struct Window {
    per_cpu_s: f64,
    per_wall_s: f64,
    virtual_s: f64,
}

/// Virtual time between two clock reads, ns.
const SLICE_NS: u64 = 200_000;

/// Runs rounds with one window of each load, so that other programs affect all loads equally.
pub(super) fn speed(
    args: &SpeedArgs,
    step: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Speed>, ScenarioError> {
    let mut worlds = Vec::new();
    for load in Load::ALL {
        let settings = Settings { seed: args.seed, checks: !args.no_checks, ..Settings::new(load) };
        worlds.push((load, TwoHosts::new(&settings)?, Vec::new()));
    }
    let rounds = args.rounds as usize;
    for round in 0..rounds {
        step(round, rounds);
        for (_, hosts, seen) in &mut worlds {
            seen.push(window(hosts, args.window)?);
        }
    }
    Ok(worlds.into_iter().map(|(load, _, seen)| summary(load, &seen)).collect())
}

fn window(hosts: &mut TwoHosts, time: Duration) -> Result<Window, ScenarioError> {
    let (mut delivered, mut slices) = (0, 0_u64);
    let begin = Stopwatch::start();
    let (wall_s, cpu_s) = loop {
        delivered += hosts.advance(SLICE_NS)?;
        slices += 1;
        let elapsed_s = begin.elapsed_s();
        if elapsed_s.0 >= time.as_secs_f64() {
            break elapsed_s;
        }
    };
    let virtual_s = (slices * SLICE_NS) as f64 / 1e9;
    let delivered = delivered as f64;
    Ok(Window {
        per_cpu_s: delivered / cpu_s,
        per_wall_s: delivered / wall_s,
        virtual_s: virtual_s / wall_s,
    })
}

fn summary(load: Load, seen: &[Window]) -> Speed {
    let (cpu_min, cpu, cpu_max) = spread(seen.iter().map(|w| w.per_cpu_s));
    let (wall_min, wall, wall_max) = spread(seen.iter().map(|w| w.per_wall_s));
    Speed {
        load,
        deliveries_per_cpu_s: cpu,
        deliveries_per_cpu_s_min: cpu_min,
        deliveries_per_cpu_s_max: cpu_max,
        deliveries_per_wall_s: wall,
        deliveries_per_wall_s_min: wall_min,
        deliveries_per_wall_s_max: wall_max,
        virtual_s_per_wall_s: spread(seen.iter().map(|w| w.virtual_s)).1,
    }
}

/// Minimum, median and maximum of values; zeros without values.
fn spread(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |n: usize| values.get(n).copied().unwrap_or(0.0);
    (at(0), at(values.len() / 2), at(values.len().saturating_sub(1)))
}

/// An outcome with the time of the simulation.
#[derive(Serialize)]
pub(super) struct Timed {
    #[serde(flatten)]
    pub(super) outcome: sessions::Outcome,
    #[serde(flatten)]
    pub(super) wall: Wall,
    /// Time before the measured part, s.
    pub(super) prepare_wall_s: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_minimum_median_and_maximum() {
        assert_eq!(spread([3.0, 1.0, 2.0].into_iter()), (1.0, 2.0, 3.0));
        assert_eq!(spread(std::iter::empty()), (0.0, 0.0, 0.0));
    }

    #[test]
    fn memory_and_time_are_measured() {
        let begin = Stopwatch::start();
        assert!(peak_rss_bytes().is_some_and(|bytes| bytes > 1 << 20));
        let (wall_s, cpu_s) = begin.elapsed_s();
        assert!(wall_s > 0.0 && cpu_s >= 0.0);
    }
}
