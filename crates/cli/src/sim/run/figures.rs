//! What a simulation costs the machine that runs it.

use std::time::{Duration, Instant};

use courser_sim::scenario::speed::{Load, Settings, TwoHosts};
use courser_sim::scenario::{ScenarioError, Traffic};
use serde::Serialize;

use super::args::SpeedArgs;

/// Time and memory of this process.
#[derive(Debug, Serialize)]
pub(super) struct Wall {
    /// Time of the measured part, s.
    pub(super) wall_s: f64,
    /// Datagrams that reached a receive queue, per second of that.
    pub(super) deliveries_per_wall_s: f64,
    /// The most memory that the process ever had, bytes; `null` where the system does not say.
    pub(super) peak_rss_bytes: Option<u64>,
}

impl Wall {
    pub(super) fn of(wall: Duration, traffic: &Traffic) -> Self {
        let wall_s = wall.as_secs_f64();
        Wall {
            wall_s,
            deliveries_per_wall_s: traffic.datagrams_delivered as f64 / wall_s,
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

/// One load over all rounds.
#[derive(Debug, Serialize)]
pub(super) struct Speed {
    /// What the hosts do.
    pub(super) load: Load,
    /// Median over the rounds, datagrams delivered per second of the machine's time.
    pub(super) deliveries_per_wall_s: f64,
    /// The slowest round.
    pub(super) deliveries_per_wall_s_min: f64,
    /// The fastest round.
    pub(super) deliveries_per_wall_s_max: f64,
    /// Virtual time per real time, median.
    pub(super) virtual_s_per_wall_s: f64,
}

/// How far a world goes between two looks at the clock, ns of virtual time.
const SLICE_NS: u64 = 200_000;

/// Runs rounds of windows, one of each load: whatever else the machine does meets all of them.
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
    Ok(worlds.into_iter().map(|(load, _, seen)| summary(load, seen)).collect())
}

/// Deliveries and virtual seconds per real second.
fn window(hosts: &mut TwoHosts, time: Duration) -> Result<(f64, f64), ScenarioError> {
    let (mut delivered, mut slices) = (0, 0_u64);
    let begin = Instant::now();
    let wall_s = loop {
        delivered += hosts.advance(SLICE_NS)?;
        slices += 1;
        let elapsed = begin.elapsed();
        if elapsed >= time {
            break elapsed.as_secs_f64();
        }
    };
    let virtual_s = (slices * SLICE_NS) as f64 / 1e9;
    Ok((delivered as f64 / wall_s, virtual_s / wall_s))
}

fn summary(load: Load, mut seen: Vec<(f64, f64)>) -> Speed {
    seen.sort_by(|a, b| a.0.total_cmp(&b.0));
    let nothing = (0.0, 0.0);
    let median = seen.get(seen.len() / 2).copied().unwrap_or(nothing);
    Speed {
        load,
        deliveries_per_wall_s: median.0,
        deliveries_per_wall_s_min: seen.first().copied().unwrap_or(nothing).0,
        deliveries_per_wall_s_max: seen.last().copied().unwrap_or(nothing).0,
        virtual_s_per_wall_s: median.1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_that_of_the_middle_round() {
        let s = summary(Load::Bulk, vec![(3.0, 0.3), (1.0, 0.1), (2.0, 0.2)]);
        let all = [
            s.deliveries_per_wall_s,
            s.deliveries_per_wall_s_min,
            s.deliveries_per_wall_s_max,
            s.virtual_s_per_wall_s,
        ];
        assert_eq!(all, [2.0, 1.0, 3.0, 0.2]);
    }

    #[test]
    fn memory_is_known() {
        assert!(peak_rss_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
