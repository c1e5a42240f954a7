//! `courser-lab bench overload`: the goodput of a worker pool at twice its capacity.
//!
//! A round has two halves. In the first half a few calls in flight keep the worker busy, which measures
//! its capacity. In the second half calls are made at twice that rate, evenly spaced, each with a
//! deadline. Goodput counts the calls with a response, which arrives before the deadline. Client and
//! server have the same clock, so the handler checks that it starts before the client's deadline.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use courser::Work;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::workers::{BURN, Both};
use courser_bench::clock::Clock;
use courser_bench::rpc::error::BenchError;
use courser_bench::rpc::run::{Pinned, object};
use courser_bench::stats::Summary;
use courser_kit::affinity;
use courser_kit::counters;
use courser_kit::environment::Environment;

/// Duration of a handler.
const HANDLER: Duration = Duration::from_millis(1);
/// Deadline of a call.
const DEADLINE: Duration = Duration::from_millis(20);
/// Sessions; with sixteen slots each, the server has more calls than it can execute in time.
const SESSIONS: usize = 8;
/// Calls in flight while the capacity is measured.
const BUSY: u32 = 4;
/// Offered load as a multiple of the capacity.
const FACTOR: f64 = 2.0;

/// Duration of the measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverloadPlan {
    /// Rounds.
    pub(crate) rounds: u32,
    /// Length of each half.
    pub(crate) half: Duration,
}

/// One round.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Round {
    /// Capacity: calls per second of the busy worker.
    pub(crate) capacity_rps: f64,
    /// Calls made per second.
    pub(crate) offered_rps: f64,
    /// Calls per second with a response before the deadline.
    pub(crate) goodput_rps: f64,
    /// Goodput as a fraction of the capacity.
    pub(crate) goodput_fraction: f64,
    /// Started handlers.
    pub(crate) started: u64,
    /// Handlers that started after the deadline.
    pub(crate) started_late: u64,
    /// Shortest time from the start of a handler to its deadline, ns.
    pub(crate) least_left_ns: u64,
    /// Calls with an error, by its text.
    pub(crate) errors: BTreeMap<String, u64>,
}

/// The result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct OverloadReport {
    bench: &'static str,
    transport: &'static str,
    config: Map<String, Value>,
    results: Results,
    environment: Environment,
}

#[derive(Clone, Debug, Serialize)]
struct Results {
    goodput_fraction: f64,
    goodput_fraction_min: f64,
    goodput_fraction_max: f64,
    capacity_rps: f64,
    offered_rps: f64,
    goodput_rps: f64,
    started_late: u64,
    rounds: Vec<Round>,
}

/// Counters of handler starts, shared with the worker's thread.
#[derive(Debug)]
struct Starts {
    base: Instant,
    started: AtomicU64,
    late: AtomicU64,
    least_left_ns: AtomicU64,
}

impl Starts {
    /// Counts the start of a handler; the request contains the client's deadline.
    fn note(&self, work: &Work) {
        let Some(deadline) = work.get(4..12).and_then(|b| b.first_chunk()) else { return };
        let now_ns = self.base.elapsed().as_nanos() as u64;
        let left_ns = u64::from_le_bytes(*deadline).checked_sub(now_ns);
        self.started.fetch_add(1, Ordering::Relaxed);
        match left_ns {
            Some(left_ns) => _ = self.least_left_ns.fetch_min(left_ns, Ordering::Relaxed),
            None => _ = self.late.fetch_add(1, Ordering::Relaxed),
        }
    }
}

/// Outcomes of the calls of one half.
#[derive(Default)]
struct Tally {
    in_flight: Cell<u32>,
    answered: Cell<u64>,
    errors: RefCell<BTreeMap<String, u64>>,
}

struct Bench {
    both: Both,
    starts: Arc<Starts>,
    next: usize,
}

impl Bench {
    /// Makes a call that keeps a worker busy for [`HANDLER`].
    fn call(&mut self, tally: &Rc<Tally>, deadline: Option<Duration>) -> Result<(), BenchError> {
        let mut request = self.both.client.alloc(12)?;
        request[..4].copy_from_slice(&(HANDLER.as_micros() as u32).to_le_bytes());
        let ends = self.starts.base.elapsed() + deadline.unwrap_or(Duration::from_secs(3600));
        request[4..].copy_from_slice(&(ends.as_nanos() as u64).to_le_bytes());
        self.next = (self.next + 1) % self.both.sessions.len();
        let session = self.both.sessions[self.next];
        let (ended, base) = (Rc::clone(tally), self.starts.base);
        tally.in_flight.set(tally.in_flight.get() + 1);
        let call = self.both.client.request(session, BURN, request).deadline(deadline);
        let called = call.then(move |_, done| {
            ended.in_flight.set(ended.in_flight.get() - 1);
            match done.result {
                // A response that this thread polls after the deadline does not count.
                Ok(_) if base.elapsed() > ends => {
                    *ended
                        .errors
                        .borrow_mut()
                        .entry("answered too late".to_owned())
                        .or_default() += 1;
                }
                Ok(_) => ended.answered.set(ended.answered.get() + 1),
                Err(e) => *ended.errors.borrow_mut().entry(e.to_string()).or_default() += 1,
            }
        });
        if let Err(rejected) = called {
            // A full queue is counted as an error.
            tally.in_flight.set(tally.in_flight.get() - 1);
            *tally.errors.borrow_mut().entry(rejected.reason.to_string()).or_default() += 1;
        }
        Ok(())
    }

    fn drain(&mut self, tally: &Tally) {
        while tally.in_flight.get() > 0 {
            self.both.poll();
        }
    }

    /// Measures calls per second with the worker always busy and a short queue.
    fn capacity(&mut self, time: Duration) -> Result<f64, BenchError> {
        let tally = Rc::new(Tally::default());
        let start = Instant::now();
        while start.elapsed() < time {
            while tally.in_flight.get() < BUSY {
                self.call(&tally, None)?;
                if !tally.errors.borrow().is_empty() {
                    return Err(Self::not_busy(&tally));
                }
            }
            self.both.poll();
        }
        self.drain(&tally);
        if tally.answered.get() == 0 {
            return Err(Self::not_busy(&tally));
        }
        Ok(tally.answered.get() as f64 / start.elapsed().as_secs_f64())
    }

    /// The error of a worker that could not be kept busy.
    fn not_busy(tally: &Tally) -> BenchError {
        let first = tally.errors.borrow().keys().next().cloned().unwrap_or_default();
        BenchError::Capacity(first)
    }

    /// Makes calls at [`FACTOR`] times the capacity, evenly spaced.
    fn overload(&mut self, time: Duration, capacity_rps: f64) -> Result<Round, BenchError> {
        let tally = Rc::new(Tally::default());
        self.starts.started.store(0, Ordering::Relaxed);
        self.starts.late.store(0, Ordering::Relaxed);
        self.starts.least_left_ns.store(u64::MAX, Ordering::Relaxed);
        let gap = Duration::from_secs_f64(1.0 / (FACTOR * capacity_rps));
        let start = Instant::now();
        let (mut next, mut offered) = (start, 0_u64);
        while start.elapsed() < time {
            // Calls that are due after a preemption of this thread are made at once.
            while next <= Instant::now() {
                self.call(&tally, Some(DEADLINE))?;
                offered += 1;
                next += gap;
            }
            self.both.poll();
        }
        let seconds = start.elapsed().as_secs_f64();
        // Counted before the drain, which adds at most the calls in the worker's queue.
        let goodput_rps = tally.answered.get() as f64 / seconds;
        self.drain(&tally);
        Ok(Round {
            capacity_rps,
            offered_rps: offered as f64 / seconds,
            goodput_rps,
            goodput_fraction: goodput_rps / capacity_rps,
            started: self.starts.started.load(Ordering::Relaxed),
            started_late: self.starts.late.load(Ordering::Relaxed),
            least_left_ns: self.starts.least_left_ns.load(Ordering::Relaxed),
            errors: tally.errors.take(),
        })
    }
}

/// Runs the benchmark; the calling thread is pinned meanwhile. `progress` gets the completed part.
///
/// # Errors
/// [`BenchError`], in one line each.
pub(crate) fn run(
    plan: OverloadPlan,
    progress: &mut dyn FnMut(f64),
) -> Result<OverloadReport, BenchError> {
    let clock = Clock::new();
    let cores = affinity::choose()?;
    let starts = Arc::new(Starts {
        base: Instant::now(),
        started: AtomicU64::new(0),
        late: AtomicU64::new(0),
        least_left_ns: AtomicU64::new(u64::MAX),
    });
    let noted = starts.clone();
    let both = Both::new(&cores, SESSIONS, move |work| noted.note(work))?;
    let _pinned = Pinned::to(cores.client)?;
    let mut bench = Bench { both, starts, next: 0 };
    bench.capacity(plan.half / 10)?;
    let mut rounds = Vec::new();
    for n in 0..plan.rounds {
        let capacity_rps = bench.capacity(plan.half)?;
        rounds.push(bench.overload(plan.half, capacity_rps)?);
        progress(f64::from(n + 1) / f64::from(plan.rounds));
    }
    let config = object(json!({
        "handler_us": HANDLER.as_micros() as u64,
        "deadline_us": DEADLINE.as_micros() as u64,
        "workers": 1,
        "sessions": SESSIONS,
        "factor": FACTOR,
        "rounds": plan.rounds,
        "half_s": plan.half.as_secs_f64(),
        "worker_stats": counters::object(&bench.both.nexus.worker_stats()),
        "cores_warning": cores.warning,
    }));
    Ok(OverloadReport {
        bench: "overload",
        transport: "udp",
        config,
        results: summed(rounds),
        environment: Environment::collect(clock.error_ppm(), &cores),
    })
}

fn summed(rounds: Vec<Round>) -> Results {
    let median = |value: &dyn Fn(&Round) -> f64| {
        Summary::of(rounds.iter().map(value)).map_or((0.0, 0.0, 0.0), |s| (s.median, s.min, s.max))
    };
    let (goodput_fraction, goodput_fraction_min, goodput_fraction_max) =
        median(&|r| r.goodput_fraction);
    Results {
        goodput_fraction,
        goodput_fraction_min,
        goodput_fraction_max,
        capacity_rps: median(&|r| r.capacity_rps).0,
        offered_rps: median(&|r| r.offered_rps).0,
        goodput_rps: median(&|r| r.goodput_rps).0,
        started_late: rounds.iter().map(|r| r.started_late).sum(),
        rounds,
    }
}

/// The time between the start of the latest handler and its deadline; `-` if no handler started in
/// time.
fn least_left(ns: u64) -> String {
    if ns == u64::MAX { "-".to_owned() } else { format!("{:.1} us", ns as f64 / 1e3) }
}

/// The result as a table.
pub(crate) fn render(report: &OverloadReport) -> String {
    table(&report.results)
}

fn table(results: &Results) -> String {
    let mut text = String::from(
        "round   capacity    offered    goodput  of capacity  late starts     least left\n",
    );
    for (n, r) in results.rounds.iter().enumerate() {
        text += &format!(
            "{:>5}  {:>7.0}/s  {:>7.0}/s  {:>7.0}/s  {:>10.1}%  {:>11}  {:>13}\n",
            n + 1,
            r.capacity_rps,
            r.offered_rps,
            r.goodput_rps,
            r.goodput_fraction * 100.0,
            r.started_late,
            least_left(r.least_left_ns),
        );
    }
    text + &format!("median: {:.1} % of capacity\n", results.goodput_fraction * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_80_columns() {
        let late = Round { least_left_ns: u64::MAX, ..Round::default() };
        let round = Round {
            capacity_rps: 1e6,
            offered_rps: 2e6,
            goodput_rps: 1e6,
            goodput_fraction: 1.0,
            started_late: 1_000_000,
            least_left_ns: 20_000_000,
            ..Round::default()
        };
        let text = table(&summed(vec![round, late]));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("20000.0 us") && text.contains(" -\n"), "{text}");
    }
}
