//! Each planted bug is found by the swarm within a thousand seeds, by an invariant that it breaks.

use std::time::Instant;

use courser::parts::proto::mutant::Mutant;
use courser_sim::swarm::{Options, run_swarm};

/// Seeds that it may take.
const SEEDS: u64 = 1_000;

#[test]
fn every_planted_bug_is_found() {
    std::panic::set_hook(Box::new(|_| {})); // panics are what is looked for
    let mut missed = Vec::new();
    for mutant in Mutant::ALL {
        let options = Options { mutant: Some(mutant), ..Options::default() };
        let began = Instant::now();
        let report = run_swarm(0, SEEDS, 2, options, |_| true);
        let took = began.elapsed().as_millis();
        match report.failed.first() {
            Some((seed, v)) => eprintln!("{:<28} seed {seed:<4} {v} ({took} ms)", mutant.name()),
            None => missed.push(mutant.name()),
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not found in {SEEDS} seeds: {missed:?}");
}
