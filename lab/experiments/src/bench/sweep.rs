//! `courser-lab bench sweep`: whether the rate of small calls falls off a cliff when more of them are in
//! flight.
//!
//! Each frame size has a pair of endpoints. For each of them the benchmark measures 32-byte echoes with
//! an increasing number of calls in flight, on eight sessions or as many as have slots for the calls.
//! The windows alternate; the points of a frame size are adjacent. Each point is compared with the best
//! point with fewer calls in flight, because more calls in flight must not lower the rate.

mod picture;
mod text;

use serde_json::json;

use courser_bench::clock::Clock;
use courser_bench::report::{self, Metric, PlacementResult, Report, Unit};
use courser_bench::rpc::calls::Calls;
use courser_bench::rpc::error::BenchError;
use courser_bench::rpc::ground::Ground;
use courser_bench::rpc::load::Load;
use courser_bench::rpc::run::{agreed, object};
use courser_bench::rpc::series::{Series, plan_for};
use courser_bench::rpc::service;
use courser_bench::rpc::side::{Over, Variant};
use courser_bench::rpc::spec::MAX_IN_FLIGHT;
use courser_bench::window::{Compared, Plan, Progress};
use courser_kit::affinity;
use courser_kit::environment::Environment;
use courser_kit::units::show_bytes;

pub(crate) use picture::chart;
pub(crate) use text::render;

/// Default of the largest frames, bytes.
pub(crate) const FRAMES: [usize; 7] =
    [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// Default of the calls in flight: powers of two, and values around the limits of credits and slots.
pub(crate) const IN_FLIGHT: [u32; 17] =
    [1, 2, 4, 8, 16, 32, 60, 64, 96, 104, 120, 128, 192, 256, 512, 768, 1024];
/// Bytes of a call.
const SIZE: usize = 32;
/// Fewest sessions.
const SESSIONS: usize = 8;
/// Largest datagram of UDP, which replaces frames of 64 KiB.
const MOST_UDP: usize = 65_507;

/// The parameters of a sweep.
#[derive(Clone, Debug)]
pub(crate) struct Sweep {
    /// The transport.
    pub(crate) over: Over,
    /// Duration of the measurement.
    pub(crate) plan: Plan,
    /// Largest frames, bytes.
    pub(crate) frames: Vec<usize>,
    /// Calls in flight in ascending order.
    pub(crate) in_flight: Vec<u32>,
}

/// A point: a frame size and calls in flight.
struct Point {
    frame: usize,
    in_flight: u32,
    compared: Compared,
}

/// Sessions that together have slots for all calls in flight.
fn sessions_for(in_flight: u32) -> usize {
    let slots = usize::from(courser::Config::default().slots);
    (in_flight as usize).div_ceil(slots).max(SESSIONS)
}

fn load(in_flight: u32) -> Load {
    Load {
        req_type: service::ECHO,
        size: SIZE,
        sessions: sessions_for(in_flight),
        in_flight,
        batch: 1,
        random: false,
        timed: false,
    }
}

impl Sweep {
    fn check(&self) -> Result<(), BenchError> {
        let ok = self.in_flight.iter().all(|n| (1..=MAX_IN_FLIGHT).contains(n))
            && self.in_flight.is_sorted_by(|a, b| a < b);
        let limits = format!("1 to {MAX_IN_FLIGHT} in ascending order");
        if ok { Ok(()) } else { Err(BenchError::Spec { what: "the calls in flight", limits }) }
    }

    /// The frame sizes, limited by the transport.
    fn frames(&self) -> Vec<usize> {
        let most = if self.over == Over::Udp { MOST_UDP } else { usize::MAX };
        let mut frames: Vec<usize> = self.frames.iter().map(|&frame| frame.min(most)).collect();
        frames.dedup();
        frames
    }

    /// Runs all points; the calling thread is pinned meanwhile.
    ///
    /// # Errors
    /// [`BenchError`], in one line each.
    pub(crate) fn run(&self, progress: &mut dyn FnMut(&Progress)) -> Result<Report, BenchError> {
        self.check()?;
        let (clock, cores, frames) = (Clock::new(), affinity::choose()?, self.frames());
        let sessions = self.in_flight.last().map_or(SESSIONS, |&most| sessions_for(most));
        let variant =
            |&frame: &usize| Variant { frame: Some(frame), sessions, ..Variant::default() };
        let variants: Vec<Variant> = frames.iter().map(variant).collect();
        let mut ground = Ground::open(self.over, &variants, &|_| Vec::new(), &clock, &cores)?;
        let mut calls = Vec::new();
        for at in 0..frames.len() as u16 {
            ground.connect(at, sessions)?;
            let caller = &ground.callers[usize::from(at)];
            for &in_flight in &self.in_flight {
                let made = Calls::new(caller, load(in_flight), at, &clock, &ground.other)?;
                calls.push(made.with_waits());
            }
        }
        let agreed: Vec<_> = ground.callers.iter().map(agreed).collect();
        let mut config = object(json!({
            "size": SIZE,
            "frame_bytes": frames,
            "in_flight": self.in_flight,
            "sessions": self.in_flight.iter().map(|&n| sessions_for(n)).collect::<Vec<_>>(),
            "endpoints": agreed,
            "window_ms": self.plan.window.as_secs_f64() * 1e3,
            "pairs_wanted": self.plan.pairs,
            "cores_warning": cores.warning,
        }));
        let mut runner = ground.runner(plan_for(self.plan, calls.len()))?;
        let mut series = Series::default();
        let mut points = Vec::new();
        for (at, calls) in calls.iter_mut().enumerate() {
            let calls = series.workload(calls);
            let (frame, in_flight) = (at / self.in_flight.len(), at % self.in_flight.len());
            points.push(Point {
                frame: frames[frame],
                in_flight: self.in_flight[in_flight],
                compared: series.point(calls, None),
            });
        }
        let ran = series.run(&mut runner, progress);
        ran.map_err(|error| ground.child.explain(error.into()))?;
        config.insert(report::CPU_WAIT.to_owned(), runner.cpu_wait().into());
        let of_frame = points.chunks(self.in_flight.len());
        let results = of_frame.flat_map(|points| of_one_frame(&mut series, points)).collect();
        drop(series);
        drop(calls);
        config.insert("diagnostics".to_owned(), ground.diagnostics());
        Ok(Report {
            bench: "sweep".to_owned(),
            transport: self.over.name().to_owned(),
            config,
            results: report::by_placement(results),
            environment: Environment::collect(clock.error_ppm(), &cores),
        })
    }
}

/// The results of a frame size; each point is compared with the best one with fewer calls in flight.
fn of_one_frame(series: &mut Series<'_>, points: &[Point]) -> Vec<PlacementResult> {
    let mut all: Vec<(usize, PlacementResult)> = Vec::new();
    for (at, point) in points.iter().enumerate() {
        for mut result in series.results(point.compared, Metric::Rate) {
            let words =
                format!("{}, {} in flight", show_bytes(point.frame as u64), point.in_flight);
            result.at_point("frame_bytes", point.frame, words);
            result.extra.insert("in_flight".to_owned(), point.in_flight.into());
            result.extra.insert("sessions".to_owned(), sessions_for(point.in_flight).into());
            let same = all.iter().filter(|(_, other)| other.placement == result.placement);
            let best = same.max_by(|(_, a), (_, b)| rate(a).total_cmp(&rate(b)));
            if let Some(&(best, _)) = best {
                of_best(series, &mut result, &points[best], point);
            }
            all.push((at, result));
        }
    }
    let mut results: Vec<PlacementResult> = all.into_iter().map(|(_, result)| result).collect();
    for placement in ["near", "far", "untagged"] {
        let here = results.iter_mut().filter(|result| result.placement == placement);
        let compared = here.filter_map(|result| Some((result.value("of_best_fewer")?, result)));
        if let Some((_, worst)) = compared.min_by(|(a, _), (b, _)| a.total_cmp(b)) {
            worst.extra.insert("worst_of_frame".to_owned(), true.into());
        }
    }
    results
}

fn rate(result: &PlacementResult) -> f64 {
    result.rate.map_or(0.0, |rate| rate.rate_rps)
}

/// Adds the ratio of a point to another one with fewer calls in flight, within rounds.
fn of_best(series: &Series<'_>, result: &mut PlacementResult, best: &Point, point: &Point) {
    let compared =
        Compared { measured: point.compared.measured, baseline: Some(best.compared.measured) };
    if let Some(share) = series.ratio(compared, Metric::Rate, result) {
        result.add("of_best_fewer", "of the best with fewer", Unit::Plain, share);
        result.extra.insert("best_fewer_in_flight".to_owned(), best.in_flight.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_slots_for_all_calls() {
        let sessions = [1, 60, 128, 129, 1024].map(sessions_for);
        assert_eq!(sessions, [8, 8, 8, 9, 64]);
        assert!(IN_FLIGHT.is_sorted_by(|a, b| a < b) && FRAMES.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn calls_in_flight_rise_and_frames_fit_the_transport() {
        let sweep = |over, in_flight: &[u32]| Sweep {
            over,
            plan: Plan::quick(),
            frames: FRAMES.to_vec(),
            in_flight: in_flight.to_vec(),
        };
        for bad in [&[0][..], &[2, 1], &[4, 4], &[1 << 20]] {
            assert!(sweep(Over::Shm, bad).check().is_err(), "{bad:?}");
        }
        assert!(sweep(Over::Shm, &IN_FLIGHT).check().is_ok());
        assert_eq!(sweep(Over::Shm, &[1]).frames(), FRAMES);
        assert_eq!(sweep(Over::Udp, &[1]).frames()[6], MOST_UDP);
    }
}
