//! Runs of many seeds.

use std::collections::BTreeSet;

use courser_example_openraft_sim::scenario::{Outcome, run};

const SEEDS: u64 = 20;

fn checked(seed: u64) -> Outcome {
    let outcome = run(seed).unwrap();
    assert_eq!(outcome.faults(), Vec::<String>::new(), "seed {seed}: {:#?}", outcome.story);
    assert_eq!(outcome.nodes.len(), 3);
    assert!(outcome.acknowledged.len() >= 120);
    // A read may fail while there is no leader, after a write that was answered.
    let (reads, writes) = (outcome.reads, outcome.acknowledged.len());
    assert!(10 * reads > 9 * writes, "seed {seed}: {reads} of {writes} reads were answered");
    outcome
}

#[test]
fn acknowledged_writes_survive_and_a_seed_has_one_digest() {
    let mut digests = BTreeSet::new();
    let (mut installed, mut handed_over, mut leaders, mut reads) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let outcome = checked(seed);
        let again = checked(seed);
        assert_eq!(outcome.story, again.story, "seed {seed}");
        assert_eq!(outcome.digest, again.digest, "seed {seed}");
        println!("seed {seed}: {:016x}\n{}", outcome.digest, outcome.story.join("\n"));
        installed += outcome.installed;
        handed_over += u64::from(outcome.handed_over);
        leaders += u64::from(outcome.leader_crashed);
        reads += outcome.reads;
        digests.insert(outcome.digest);
    }
    assert_eq!(digests.len() as u64, SEEDS, "two seeds have the same digest");
    println!(
        "{installed} snapshots installed, {handed_over} leaders handed over, {leaders} leaders \
         crashed, {reads} reads answered"
    );
    assert!(installed > 0 && handed_over > 0);
    assert!((1..SEEDS).contains(&leaders), "{leaders} of {SEEDS} crashes are of a leader");
}

#[test]
fn a_write_that_a_node_lacks_is_found() {
    let mut outcome = checked(0);
    let key = outcome.acknowledged.keys().next().unwrap().clone();
    outcome.nodes.get_mut(&2).unwrap().remove(&key);
    let faults = outcome.faults();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert_eq!(faults[0], "node 2 has lost 1 acknowledged writes");
}
