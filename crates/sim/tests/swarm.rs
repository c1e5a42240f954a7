//! A small swarm in every test run, and what makes a large one worth running: the same seed is the
//! same run, on any number of threads.

use courser_sim::swarm::{Options, Scenario, run_seed, run_swarm};

/// Seeds of the ordinary test run.
const SEEDS: u64 = 60;

#[test]
fn many() {
    let get = |k: &str, d: u64| std::env::var(k).map_or(d, |s| s.parse().unwrap());
    let (from, n) = (get("FROM", 0), get("N", 0));
    let report =
        run_swarm(from, n, 2, Options { keep_going: true, ..Options::default() }, |_| true);
    for (seed, violation) in &report.failed {
        eprintln!("{seed}: {violation}");
    }
    eprintln!(
        "{} violations {} rpcs {} responses {} packets {} ms",
        report.violations,
        report.rpcs / n.max(1),
        report.responses / n.max(1),
        report.packets / n.max(1),
        report.virtual_ns / n.max(1) / 1_000_000
    );
    for line in report.coverage.table() {
        eprintln!("{line:?}");
    }
}

#[test]
fn every_invariant_holds() {
    let report =
        run_swarm(0, SEEDS, 2, Options { keep_going: true, ..Options::default() }, |_| true);
    for (seed, violation) in &report.failed {
        eprintln!("{}{violation}", Scenario::draw(*seed));
    }
    assert_eq!((report.seeds, report.violations), (SEEDS, 0));
    eprintln!(
        "{} rpcs {} responses {} packets",
        report.rpcs / SEEDS,
        report.responses / SEEDS,
        report.packets / SEEDS
    );
    for line in report.coverage.table() {
        eprintln!("{line:?}");
    }
}

#[test]
fn one() {
    let Ok(seed) = std::env::var("SEED") else { return };
    let seed = seed.parse().unwrap();
    eprintln!("{}", Scenario::draw(seed));
    let began = std::time::Instant::now();
    use courser_sim::observe::*;
    let keep = std::env::var("KEEP").map_or(40, |s| s.parse().unwrap());
    let mut o = None;
    let report = courser_sim::swarm::run_observed(seed, Options::default(), |w| {
        let trace = Some(TraceSettings { keep, ..TraceSettings::default() });
        let ob = std::rc::Rc::new(std::cell::RefCell::new(Observer::new(
            Settings { trace, ..Settings::default() },
            Names::of(&w.config().topology),
        )));
        o = Some(ob.clone());
        Some(Box::new(ob))
    });
    for l in o.unwrap().borrow().last_lines() {
        eprintln!("{l}");
    }
    eprintln!("{report:?} {:?}", began.elapsed());
}
