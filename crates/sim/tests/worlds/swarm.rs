//! A small swarm in every test run, and the properties that large ones rely on: equal seeds result
//! in equal runs, on any number of threads.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use courser_sim::Tap;
use courser_sim::observe::{Names, Observer, Settings, Sink, TraceSettings};
use courser_sim::swarm::{
    Options, Scenario, SeedReport, SwarmReport, run_observed, run_seed, run_swarm,
};

/// Seeds of the ordinary test run.
const SEEDS: u64 = 60;

/// Seeds that failed once, each with the defect.
const FOUND: &str = include_str!("../seeds.txt");

fn swarm(from: u64, count: u64, threads: usize) -> SwarmReport {
    #[allow(clippy::needless_update)] // builds with planted bugs have another field
    let options = Options { keep_going: true, ..Options::default() };
    run_swarm(from, count, threads, options, |_| true)
}

#[test]
fn every_invariant_holds() {
    let report = swarm(0, SEEDS, 2);
    for (seed, violation) in &report.failed {
        eprintln!("{}  {violation}", Scenario::draw(*seed));
    }
    assert_eq!((report.seeds, report.violations), (SEEDS, 0));
    // Most calls succeed: otherwise nothing is checked.
    assert!(report.rpcs > SEEDS * 2_000, "{} calls", report.rpcs);
    assert!(report.responses * 10 > report.rpcs * 8, "{} responses", report.responses);
    // Rarer drops and ends need more seeds.
    let missing = report.coverage.missing();
    let missing: Vec<_> =
        missing.iter().filter(|m| ["fault", "packet"].contains(&m.table)).collect();
    assert!(missing.is_empty(), "never seen: {missing:?}");
}

#[test]
fn seeds_that_failed_once_pass() {
    let lines = FOUND.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut count = 0;
    for line in lines {
        let (seed, why) = line.split_once(' ').expect("a seed and a reason");
        let report = run_seed(seed.parse().expect("a number"), Options::default());
        assert_eq!(report.violation, None, "seed {seed} had found: {why}");
        count += 1;
    }
    assert!(count > 0);
}

/// A file in memory.
#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A seed's report, its event log, and its trace.
fn observed(seed: u64) -> (SeedReport, String, String) {
    let (log, trace) = (Text::default(), Text::default());
    let to = Some(Sink::new(trace.clone()));
    let settings = Settings {
        log: Some(Sink::new(log.clone())),
        trace: Some(TraceSettings { to, ..TraceSettings::default() }),
        ..Settings::default()
    };
    let mut seen = None;
    let report = run_observed(seed, Options::default(), |world| {
        let names = Names::of(&world.config().topology);
        let observer = Rc::new(RefCell::new(Observer::new(settings, names)));
        seen = Some(observer.clone());
        Some(Box::new(observer) as Box<dyn Tap>)
    });
    let observer = seen.and_then(Rc::into_inner).expect("the world is gone").into_inner();
    assert!(observer.into_report(report.virtual_ns).errors.is_empty());
    let text = |t: Text| String::from_utf8(std::mem::take(&mut t.0.lock().unwrap())).unwrap();
    (report, text(log), text(trace))
}

#[test]
fn the_same_seed_is_the_same_run_to_the_byte() {
    // Faults of many kinds, two seeds that have none, and a congested world.
    for seed in [3, 21, 53, 891] {
        let first = observed(seed);
        assert!(first.1.lines().count() > 1_000 && first.2.lines().count() > 1_000);
        assert_eq!(first.0, run_seed(seed, Options::default()), "observed and not");
        assert!(first == observed(seed), "seed {seed}: two runs are not the same");
        assert_ne!(first.0.digest, run_seed(seed + 1, Options::default()).digest);
    }
}

#[test]
fn the_number_of_threads_does_not_change_the_report() {
    let one = swarm(100, 12, 1);
    assert_eq!(one, swarm(100, 12, 3));
    assert_ne!(one.digest, swarm(101, 12, 1).digest);
}

#[test]
fn the_first_seed_that_fails_ends_a_run() {
    // Stops after the fifth, whatever else is running.
    let report = run_swarm(0, 1_000, 2, Options::default(), |so_far| so_far.seeds < 5);
    assert_eq!(report.seeds, 5);
    assert_eq!(report.digest, swarm(0, 5, 1).digest);
}
