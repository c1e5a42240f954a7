//! Random histories under faults of network and processes, checked for linearizability.

use std::time::Duration;

use courser_sim::disturb::{self, Disturbance, disturb};
use courser_sim::history::{KvModel, Limits, Seeds, Verdict};
use courser_sim::{HostId, Rng, World};

use crate::world::{Bug, CLIENTS, Calls, MS, SERVER, Shared, start};

/// Time with faults.
const FAULTS: Duration = Duration::from_secs(2);
/// Time without, at the end.
const CALM: Duration = Duration::from_millis(1_200);
/// Time of a server that stops for requests in progress.
const GRACE: Duration = Duration::from_millis(20);

/// The histories of a seed, one for each life of the server.
struct Outcome {
    verdict: Verdict<usize>,
    text: String,
    lives: u64,
    answered: u64,
    unknown: u64,
    scans: u64,
}

/// Draws one fault.
fn fault(world: &mut World, rng: &mut Rng) {
    use Disturbance::{Crash, Drift, Heal, Kill, Links, Partition, Pause};
    let client = HostId(1 + rng.below(u64::from(CLIENTS)) as u32);
    let (kind, host) = match rng.below(15) {
        0 => (Kill, SERVER),
        1 => (Crash, SERVER),
        // Requests that run have time to end, and no others begin.
        2 => return world.stop(SERVER, GRACE),
        3 => (Kill, client),
        4 => (Crash, client),
        5..8 => (Partition, SERVER),
        8 => (Heal, SERVER),
        9..12 => (Links, SERVER),
        12 => (Pause, if rng.chance_ppm(500_000) { SERVER } else { client }),
        13 => (Drift, SERVER),
        _ => (Drift, client),
    };
    disturb(world, rng, kind, host, 1);
}

/// Starts hosts that do not run.
fn revive(world: &mut World, rng: &mut Rng, share_ppm: u32) {
    for host in world.hosts() {
        if !world.is_running(host) && rng.chance_ppm(share_ppm) {
            world.restart(host).unwrap();
        }
    }
}

fn run(seed: u64, bug: Bug) -> Outcome {
    let (mut world, shared) = start(seed, bug);
    let mut rng = Rng::stream(seed, 77);
    let end_ns = FAULTS.as_nanos() as u64;
    while world.now_ns() < end_ns {
        world.run_for(Duration::from_millis(rng.between(10, 200)));
        fault(&mut world, &mut rng);
        world.run_for(Duration::from_millis(rng.between(1, 100)));
        revive(&mut world, &mut rng, 700_000);
    }
    disturb::calm(&mut world);
    world.run_for(GRACE);
    revive(&mut world, &mut rng, 1_000_000);
    // The longest pause of a host and the failure detection end in it.
    world.run_for(CALM);
    let before = answered(&shared);
    world.run_for(100 * MS);
    shared.stop.set(true);
    let ended = world.run_until(Duration::from_secs(5), |_| shared.running.get() == 0);
    assert!(ended, "seed {seed}: a caller hangs");
    let outcome = outcome(&shared);
    assert!(outcome.answered > before, "seed {seed}: no answers after the faults");
    outcome
}

fn answered(shared: &Shared) -> u64 {
    let of_life = |calls: &Calls| {
        calls.with(|history| history.calls().iter().filter(|call| call.end.is_some()).count())
    };
    shared.lives.borrow().iter().map(of_life).sum::<usize>() as u64
}

fn outcome(shared: &Shared) -> Outcome {
    let lives = shared.lives.borrow();
    let mut outcome = Outcome {
        verdict: Verdict::Linearizable,
        text: String::new(),
        lives: lives.len() as u64,
        answered: answered(shared),
        unknown: 0,
        scans: shared.scans.get(),
    };
    for calls in lives.iter() {
        calls.with(|history| {
            let unknown = history.calls().iter().filter(|call| call.end.is_none());
            outcome.unknown += unknown.count() as u64;
            let verdict = history.check(&KvModel::default(), Limits::default());
            if outcome.verdict == Verdict::Linearizable {
                outcome.text = history.explain(&verdict);
                outcome.verdict = verdict;
            }
        });
    }
    outcome
}

#[test]
fn histories_under_faults_are_linearizable() {
    let seeds = Seeds::from_env("ORDERED_INDEX", 0, 100);
    let (mut lives, mut answered, mut unknown, mut scans) = (0, 0, 0, 0);
    for seed in &seeds {
        let outcome = run(seed, Bug::None);
        let is_linearizable = outcome.verdict == Verdict::Linearizable;
        assert!(is_linearizable, "seed {seed} ({}): {}", seeds.only(seed), outcome.text);
        lives += outcome.lives;
        answered += outcome.answered;
        unknown += outcome.unknown;
        scans += outcome.scans;
    }
    let count = seeds.count();
    println!(
        "{count} histories: {lives} lives of servers, {answered} answered reads and writes of a \
         key, {unknown} without an answer, {scans} scans"
    );
    // The faults leave some service, and each part was used, though not in each history.
    if count >= 10 {
        assert!(answered > 200 * count && scans > 20 * count, "{answered} answers, {scans} scans");
        assert!(lives > count && unknown > count, "{lives} lives, {unknown} without an answer");
    }
}

macro_rules! finds {
    ($($name:ident: $bug:ident,)*) => {
        $(
            #[test]
            fn $name() {
                /// Histories in which the bug has to show.
                const MOST: u64 = 500;
                let shows =
                    |seed: &u64| matches!(run(*seed, Bug::$bug).verdict, Verdict::Violation { .. });
                let found = (0..MOST).find(shows);
                println!("{:?}: found by history {found:?}", Bug::$bug);
                assert!(found.is_some(), "{:?} is not found by {MOST} histories", Bug::$bug);
            }
        )*
    };
}

finds! {
    a_put_that_is_applied_twice_is_found: AppliesTwice,
    a_put_that_is_repeated_as_though_it_had_failed_is_found: RepeatsPut,
    a_read_of_an_old_copy_is_found: StaleRead,
    an_unknown_outcome_that_is_taken_for_a_failure_is_found: UnknownIsFailed,
}
