//! Runs seeds: one, or many in parallel.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use super::coverage::{Coverage, Harvest};
use super::crowd::{self, Crowd};
use super::draw::Scenario;
use super::ending::Play;
use super::faults::Weather;
use super::oracle::Oracle;
use super::workload::{Shared, set_up};
use crate::host::hash::Mix;
use crate::host::port::lock;
use crate::observe::Tap;
use crate::world::panic_text;
use crate::{Invariant, Violation, World};

/// Options of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Continues after a violation, instead of stopping at the first seed that has one.
    pub keep_going: bool,
    /// A planted bug, in every endpoint.
    #[cfg(feature = "mutants")]
    pub mutant: Option<courser_proto::mutant::Mutant>,
}

/// Result of a seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeedReport {
    /// The seed.
    pub seed: u64,
    /// Calls that have ended in any way; those of processes that ended with them are not counted.
    pub rpcs: u64,
    /// Calls that ended with a response.
    pub responses: u64,
    /// Packets (frames) sent by hosts.
    pub packets: u64,
    /// Hash over the event log.
    pub digest: u64,
    /// Its duration in virtual time, ns.
    pub virtual_ns: u64,
    /// Its coverage.
    pub coverage: Coverage,
    /// The first violated invariant.
    pub violation: Option<Violation>,
}

/// Results of many seeds, in the order of their numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SwarmReport {
    /// Number of seeds.
    pub seeds: u64,
    /// Sums of the seeds' reports.
    pub rpcs: u64,
    /// Calls with a response.
    pub responses: u64,
    /// Packets.
    pub packets: u64,
    /// Simulated time, ns.
    pub virtual_ns: u64,
    /// Hash over the seeds' digests, in the order of the seeds.
    pub digest: u64,
    /// Their coverage together.
    pub coverage: Coverage,
    /// Seeds with a violation, at most [`MOST_FAILED`] of them.
    pub failed: Vec<(u64, Violation)>,
    /// Number of seeds with a violation.
    pub violations: u64,
}

/// Failed seeds that a report names.
pub const MOST_FAILED: usize = 100;

/// Runs one seed. Panics of the simulation are caught and count as violations.
pub fn run_seed(seed: u64, options: Options) -> SeedReport {
    run_observed(seed, options, |_| None)
}

/// Runs one seed with an observer of its packets, which `tap` creates for its world.
pub fn run_observed(
    seed: u64,
    options: Options,
    tap: impl FnOnce(&mut World) -> Option<Box<dyn Tap>>,
) -> SeedReport {
    let _planted = Planted::new(options);
    let scenario = Scenario::draw(seed);
    let mut report = SeedReport {
        seed,
        rpcs: 0,
        responses: 0,
        packets: 0,
        digest: 0,
        virtual_ns: 0,
        coverage: Coverage::default(),
        violation: None,
    };
    let run = AssertUnwindSafe(|| match &scenario.crowd {
        Some(crowd) => play_crowd(crowd, tap, &mut report),
        None => play(&scenario, tap, &mut report),
    });
    if let Err(panic) = catch_unwind(run) {
        let detail = format!("a panic: {}", panic_text(&*panic));
        let invariant = Invariant::Internal;
        report.violation = Some(Violation { invariant, at_ns: report.virtual_ns, detail });
    }
    report
}

fn play_crowd(
    crowd: &Crowd,
    tap: impl FnOnce(&mut World) -> Option<Box<dyn Tap>>,
    report: &mut SeedReport,
) {
    match crowd::play(crowd, tap) {
        Ok(played) => {
            (report.rpcs, report.responses) = (played.calls, played.calls);
            (report.packets, report.digest) = (played.packets, played.digest);
            (report.virtual_ns, report.violation) = (played.virtual_ns, played.violation);
        }
        Err(e) => {
            let detail = e.to_string();
            report.violation = Some(Violation { invariant: Invariant::Internal, at_ns: 0, detail });
        }
    }
}

/// A planted bug, for the duration of a seed.
struct Planted;

impl Planted {
    #[cfg(feature = "mutants")]
    fn new(options: Options) -> Self {
        courser_proto::mutant::plant(options.mutant);
        Planted
    }

    #[cfg(not(feature = "mutants"))]
    fn new(_: Options) -> Self {
        Planted
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        #[cfg(feature = "mutants")]
        courser_proto::mutant::plant(None);
    }
}

/// Breaks the reference cycle of the clients and their shared state.
struct Owned(Rc<Shared>);

impl Drop for Owned {
    fn drop(&mut self) {
        let clients = std::mem::take(&mut *self.0.clients.borrow_mut());
        for client in clients.into_iter().flatten() {
            client.tags.borrow_mut().clear();
            client.pool.borrow_mut().clear();
        }
    }
}

fn play(
    scenario: &Scenario,
    tap: impl FnOnce(&mut World) -> Option<Box<dyn Tap>>,
    report: &mut SeedReport,
) {
    let hosts = scenario.world.topology.hosts() as usize;
    let shared = Rc::new(Shared {
        oracle: Oracle::new(scenario.seed, hosts, scenario.allowed),
        seed: scenario.seed,
        mix: scenario.mix.clone(),
        messages: scenario.messages.clone(),
        lanes: scenario.lanes.clone(),
        endpoints: scenario.endpoints,
        idle_first_ns: scenario.edges.idle_first_ns,
        ended: Cell::new(false),
        protected: scenario.world.nexus.integrity == Some(courser::Integrity::Crc),
        changes_arrive: !scenario.world.nic.finds_changes,
        left: Cell::new(scenario.calls),
        stopped: Cell::new(false),
        parted: Cell::new(false),
        why_down: RefCell::default(),
        slow_ns: vec![Cell::new(0); hosts],
        lives: vec![Cell::new(0); hosts],
        paused_until_ns: vec![Cell::new(0); hosts],
        clients: RefCell::new(vec![Vec::new(); hosts]),
    });
    let owned = Owned(shared.clone());
    let failed = |e: crate::WorldError| Violation {
        invariant: Invariant::Internal,
        at_ns: 0,
        detail: e.to_string(),
    };
    let mut world = match World::new(scenario.world.clone()) {
        Ok(world) => world,
        Err(e) => return report.violation = Some(failed(e)),
    };
    if let Some(tap) = tap(&mut world) {
        world.set_tap(tap);
    }
    for host in world.hosts() {
        let shared = shared.clone();
        let started = world.start(host, move |nexus| set_up(nexus, &shared, host.0));
        if let Err(e) = started {
            return report.violation = Some(failed(e));
        }
    }
    let harvest = Rc::new(RefCell::new(Harvest::default()));
    let weather = Weather::new(&mut world, shared.clone(), harvest.clone());
    let play = Play { scenario, shared: shared.clone(), weather, harvest: harvest.clone() };
    play.run(&mut world);
    let oracle = lock(&shared.oracle);
    report.rpcs = oracle.ended();
    report.responses = oracle.answered;
    report.coverage = harvest.borrow().coverage(&mut world, &oracle);
    drop(oracle);
    report.packets = world.counts().sent;
    report.digest = world.digest();
    report.virtual_ns = world.now_ns();
    report.violation = world.violations().first().cloned();
    drop(play);
    drop(world);
    drop(owned);
}

impl SwarmReport {
    fn add(&mut self, digest: &mut Mix, seed: SeedReport) {
        self.seeds += 1;
        self.rpcs += seed.rpcs;
        self.responses += seed.responses;
        self.packets += seed.packets;
        self.virtual_ns += seed.virtual_ns;
        self.coverage.add(&seed.coverage);
        digest.mix(seed.digest);
        if let Some(violation) = seed.violation {
            self.violations += 1;
            if self.failed.len() < MOST_FAILED {
                self.failed.push((seed.seed, violation));
            }
        }
    }
}

/// Runs `count` seeds from `from` on, on `threads` threads, each seed on one. `progress` is called
/// after each seed, in their order, and ends the run by returning false. The report is the same for
/// any number of threads.
pub fn run_swarm(
    from: u64,
    count: u64,
    threads: usize,
    options: Options,
    mut progress: impl FnMut(&SwarmReport) -> bool,
) -> SwarmReport {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let (send, receive) = mpsc::channel();
    let mut report = SwarmReport::default();
    let mut digest = Mix::new(0);
    std::thread::scope(|scope| {
        for number in 0..threads.clamp(1, 1024) {
            let (send, next, stop) = (send.clone(), &next, &stop);
            let run = move || {
                while !stop.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        return;
                    }
                    if send.send((at, run_seed(from.wrapping_add(at), options))).is_err() {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new().name(format!("{THREAD} {number}"));
            if let Err(e) = thread.spawn_scoped(scope, run) {
                assert!(number > 0, "no thread can be started: {e}");
            }
        }
        drop(send);
        // Seeds end in any order; count them in the order of their numbers.
        let mut early = BTreeMap::new();
        let mut due = 0;
        'all: for (at, seed) in receive {
            early.insert(at, seed);
            while let Some(seed) = early.remove(&due) {
                due += 1;
                let failed = seed.violation.is_some();
                report.add(&mut digest, seed);
                let go_on = progress(&report);
                if !go_on || (failed && !options.keep_going) {
                    stop.store(true, Ordering::Relaxed);
                    break 'all;
                }
            }
        }
    });
    report.digest = digest.finish();
    report
}

/// Name of the threads that run seeds, followed by a number, for a panic hook: panics of a
/// simulation are caught and reported.
pub const THREAD: &str = "swarm";
