//! Demonstrations of the harness, which take seconds and are run by hand:
//! `cargo test -p courser-bench -- --ignored --nocapture demo::demo` prints the table of two trivial
//! workloads, `... demo::survey` a histogram of probe results, to check the limits in
//! [`placement`](super::placement).

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::line::Line;
use super::probe::{Probe, Prober, Responder};
use super::report::{self, Metric, Report};
use super::table;
use super::window::{Plan, Runner, Sample, Workload, WorkloadError};
use courser_kit::affinity;
use courser_kit::environment::Environment;
use courser_kit::latency::Latency;

const ECHO: u32 = 1;
const STOP: u32 = 2;

/// Sends a number over one cache line and waits for its echo, `hops` times per operation.
struct PingPong<'a> {
    name: &'static str,
    hops: u64,
    ball: &'a AtomicU64,
    clock: Clock,
    latency: Latency,
}

impl Workload for PingPong<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn run(&mut self, duration: Duration) -> Result<Sample, WorkloadError> {
        let start = self.clock.now_ns();
        let end = start + u64::try_from(duration.as_nanos())?;
        let mut sample = Sample::default();
        let mut now = start;
        while now < end {
            for _ in 0..self.hops {
                let next = self.ball.load(Acquire) + 1;
                self.ball.store(next, Release);
                while self.ball.load(Acquire) != next + 1 {}
            }
            let done = self.clock.now_ns();
            self.latency.record(done - now);
            now = done;
            sample.operations += 1;
            sample.bytes += 8;
        }
        sample.elapsed_ns = now - start;
        sample.latency = self.latency.take();
        Ok(sample)
    }
}

fn echo(line: &Line, clock: Clock, ball: &AtomicU64, cpu: usize) {
    affinity::pin_current_thread(cpu).expect("pin");
    let mut responder = Responder::new(line.clone(), clock);
    line.take_role(ECHO);
    while line.role() != STOP {
        responder.serve_if_asked();
        let value = ball.load(Acquire);
        if value % 2 == 1 {
            ball.store(value + 1, Release);
        }
    }
}

#[test]
#[ignore = "takes 2.5 s and two cores; run by hand to see the table"]
fn demo() {
    let cores = affinity::choose().expect("cores");
    if !cores.distinct() {
        println!("skipped: two threads that spin need two cores, one is usable");
        return;
    }
    let (line, clock) = (Line::create().expect("page"), Clock::new());
    let ball = AtomicU64::new(0);
    let ping = |name, hops| PingPong {
        name,
        hops,
        ball: &ball,
        clock: clock.clone(),
        latency: Latency::new(),
    };
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| echo(&line, clock.clone(), &ball, cores.server));
        affinity::pin_current_thread(cores.client).expect("pin");
        line.ask_role(ECHO, Duration::from_secs(5)).expect("starts");
        let prober = Prober::new(line.clone(), clock.clone());
        let outcome = Runner::new(Plan::quick(), Some(prober)).expect("valid plan").run(
            &mut ping("two hops", 2),
            Some(&mut ping("one hop", 1)),
            &mut |_| ControlFlow::Continue(()),
        );
        line.give_role(STOP);
        outcome
    })
    .expect("no failure");
    let report = Report {
        bench: "two hops against one".to_owned(),
        transport: "one cache line".to_owned(),
        config: serde_json::Map::new(),
        results: report::results(&outcome, Metric::Latency),
        environment: Environment::collect(clock.error_ppm(), &cores),
    };
    print!("{}", table::render(&report));
    courser_kit::file::write_json("-".as_ref(), &report).expect("written");
    assert!(!report.results.is_empty());
}

/// Width of a bar of the survey, ns.
const BAR_NS: u64 = 20;

#[test]
#[ignore = "takes 5 s and two cores; run by hand to check the limits of near and far"]
fn survey() {
    let cores = affinity::choose().expect("cores");
    if !cores.distinct() {
        println!("skipped: a probe needs two cores, one is usable");
        return;
    }
    let (line, clock) = (Line::create().expect("page"), Clock::new());
    let ball = AtomicU64::new(0);
    let (mut bars, mut failures) = (BTreeMap::new(), BTreeMap::new());
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&line, clock.clone(), &ball, cores.server));
        affinity::pin_current_thread(cores.client).expect("pin");
        line.ask_role(ECHO, Duration::from_secs(5)).expect("starts");
        let mut prober = Prober::new(line.clone(), clock.clone());
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            match prober.measure() {
                Ok(ns) => *bars.entry(ns / BAR_NS * BAR_NS).or_insert(0) += 1,
                Err(error) => *failures.entry(error.to_string()).or_insert(0) += 1,
            }
        }
        line.give_role(STOP);
    });
    let show = |label: &dyn std::fmt::Display, count: &i32| println!("{label:>24} {count:6}");
    bars.iter().for_each(|(ns, count)| show(&format!("{ns} ns"), count));
    failures.iter().for_each(|(error, count)| show(error, count));
    assert!(!bars.is_empty(), "not one probe succeeded");
}
