//! A swarm of typed clients: calls and streams of each kind, in worlds that are drawn from seeds, whose
//! networks lose, repeat and reorder packets, and whose hosts crash, stop, pause and are cut off.
//!
//! The rules, which are compared when all faults have ended: the items of a stream have their order, and
//! none follows an end; a stream that ends without an error is complete; an end that states whether its
//! handler ran is right ([`service::Ledger`]); calls without a token do not run, handlers have the trace that
//! middleware adds, and it sees the end of each call that it let pass ([`gate::Gate`]); and nothing is left.

mod client;
mod gate;
mod rate;
mod service;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use courser::{Nexus, TaskStats};
use courser_sim::fabric::{LinkFaults, Topology};
use courser_sim::{HostId, LinkId, Rng, World, WorldConfig};

use client::{Client, retries};
use gate::Gate;
use service::{Broken, Ledger, WorkServer, Worker};

const SERVER: HostId = HostId(0);
const MS: Duration = Duration::from_millis(1);
/// Faults begin and end, and clients begin calls, before this time.
const BUSY: Duration = Duration::from_millis(400);
/// Virtual time in which everything ends afterwards.
const LIMIT: Duration = Duration::from_secs(100);

/// Seeds of the ordinary test run. One that fails stays in it.
const SEEDS: std::ops::Range<u64> = 0..40;

/// The outcome of a seed.
struct Outcome {
    wrong: Vec<String>,
    ends: BTreeMap<(&'static str, &'static str), u64>,
    /// Calls without a token that were refused.
    refused: u64,
    digest: u64,
}

/// A world of a seed.
struct Swarm {
    world: World,
    rng: Rng,
    clients: Vec<HostId>,
    ledger: Rc<RefCell<Ledger>>,
    gate: Gate,
    alive: Rc<()>,
    /// Clients' tasks that have not ended.
    running: Rc<()>,
}

impl Swarm {
    fn draw(seed: u64, broken: Broken) -> Swarm {
        let mut rng = Rng::stream(seed, 77);
        let clients: Vec<_> = (1..=rng.between(1, 3) as u32).map(HostId).collect();
        let topology = Topology::one_switch(clients.len() as u32 + 1);
        let mut world = World::new(WorldConfig::new(seed, topology)).unwrap();
        let (ledger, alive) = (Rc::<RefCell<Ledger>>::default(), Rc::new(()));
        let (of_server, lives) = (ledger.clone(), alive.clone());
        let gate = Gate::new(broken);
        let middleware = gate.clone();
        let start = move |nexus: &Nexus| -> Result<_, Box<dyn std::error::Error>> {
            let mut rpc = nexus.endpoint()?;
            let (ledger, alive) = (of_server.clone(), lives.clone());
            let worker = Worker { local: rpc.local(), ledger, broken, alive };
            rpc.add_service(WorkServer::local(worker))?;
            rpc.middleware(middleware.clone());
            Ok(rpc)
        };
        world.start(SERVER, move |nexus| start(nexus).map_err(|e| e.to_string())).unwrap();
        let mut swarm = Swarm { world, rng, clients, ledger, gate, alive, running: Rc::new(()) };
        swarm.start_clients(seed);
        swarm.plan_faults();
        swarm
    }

    fn start_clients(&mut self, seed: u64) {
        let uri = self.world.uri(SERVER);
        for host in self.clients.clone() {
            self.world.start(host, Nexus::endpoint).unwrap();
            for task in 0..2 {
                let rpc = self.world.rpc(host);
                let (local, handle) = (rpc.local(), rpc.handle());
                let number = u64::from(host.0) * 2 + task;
                let client = Client {
                    local: local.clone(),
                    uri: uri.clone(),
                    ledger: self.ledger.clone(),
                    rng: Rng::stream(seed, number),
                    next: number << 32,
                    retries: (task == 1).then(retries),
                };
                let running = self.running.clone();
                drop(local.spawn(async move {
                    client.run(BUSY).await;
                    drop(running);
                }));
                handle.wake();
            }
        }
    }

    fn plan_faults(&mut self) {
        let rng = &mut self.rng;
        let rate = |rng: &mut Rng| [0, 0, 1_000, 10_000][rng.below(4) as usize];
        let faults = LinkFaults {
            loss_ppm: rate(rng),
            duplicate_ppm: rate(rng),
            reorder_ppm: rate(rng),
            reorder_max_ns: 50_000,
            ..LinkFaults::default()
        };
        for link in 0..self.world.fabric().links() {
            self.world.set_link_faults(LinkId(link), faults);
        }
        for _ in 0..self.rng.below(4) {
            self.plan_fault();
        }
        self.world.after(BUSY, |world| {
            world.heal();
            for link in 0..world.fabric().links() {
                world.set_link_faults(LinkId(link), LinkFaults::default());
            }
        });
    }

    fn plan_fault(&mut self) {
        let rng = &mut self.rng;
        let at = MS * rng.between(5, 350) as u32;
        let time = Duration::from_micros(rng.between(100, 60_000));
        let host = [SERVER, self.clients[0]][rng.below(2) as usize];
        let restart = move |world: &mut World| {
            world.after(time, |world| {
                if !world.is_running(SERVER) {
                    world.restart(SERVER).unwrap();
                }
            });
        };
        match rng.below(6) {
            0 => self.world.after(at, move |world| {
                world.partition(&[&[host]]);
                world.after(time, World::heal);
            }),
            1 => self.world.after(at, move |world| world.pause(host, time)),
            2 => self.world.after(at, move |world| {
                world.crash(SERVER);
                restart(world);
            }),
            3 => self.world.after(at, move |world| {
                world.kill(SERVER);
                restart(world);
            }),
            4 => self.world.after(at, move |world| {
                world.stop(SERVER, time / 2);
                world.after(time, restart);
            }),
            // The first client, for ever.
            _ => self.world.after(at, |world| world.kill(HostId(1))),
        }
    }

    /// Runs the world to its end.
    fn run(mut self) -> Outcome {
        let running = self.running.clone();
        self.world.run_for(BUSY);
        let ended = self.world.run_until(LIMIT, |_| Rc::strong_count(&running) == 2);
        self.world.run_for(Duration::from_secs(5));
        let mut wrong = self.ledger.borrow().judge();
        if !ended {
            wrong.push("a client hangs".to_owned());
        }
        for host in self.clients.iter().copied().chain([SERVER]) {
            if !self.world.is_running(host) {
                continue;
            }
            let rpc = self.world.rpc(host);
            rpc.check();
            let (tasks, streams) = (rpc.task_stats(), rpc.service_stats().streams);
            if tasks != TaskStats::default() || streams != 0 {
                wrong.push(format!("{host:?} is left with {tasks:?} and {streams} streams"));
            }
        }
        // References of the swarm, of the service, and of the function that starts the service again.
        let lives = 2 + usize::from(self.world.is_running(SERVER));
        if Rc::strong_count(&self.alive) != lives {
            wrong.push(format!("{} handlers are alive", Rc::strong_count(&self.alive) - lives));
        }
        wrong.extend(self.gate.judge());
        wrong.extend(self.world.violations().iter().map(ToString::to_string));
        let ends = self.ledger.borrow().ends.clone();
        Outcome { wrong, ends, refused: self.gate.refused(), digest: self.world.digest() }
    }
}

#[test]
fn typed_calls_and_streams_keep_their_rules_under_faults() {
    let (mut ends, mut refused) = (BTreeMap::<_, u64>::new(), 0);
    for seed in SEEDS {
        let outcome = Swarm::draw(seed, Broken::Nothing).run();
        assert!(outcome.wrong.is_empty(), "seed {seed}: {:#?}", outcome.wrong);
        refused += outcome.refused;
        for (end, count) in outcome.ends {
            *ends.entry(end).or_default() += count;
        }
    }
    // Otherwise nothing is compared.
    assert!(refused > 100, "{refused} calls without a token");
    for kind in ["add", "down", "up", "both"] {
        let of = |end| ends.get(&(kind, end)).copied().unwrap_or(0);
        let (values, failures) = (of("value"), of("maybe") + of("never"));
        assert!(values > 500 && failures >= 5, "{kind}: {ends:?}");
    }
    assert!(ends.iter().any(|((_, end), count)| *end == "never" && *count > 10), "{ends:?}");
}

#[test]
fn each_broken_handler_is_noticed() {
    for broken in Broken::ALL {
        let found = SEEDS.into_iter().any(|seed| !Swarm::draw(seed, broken).run().wrong.is_empty());
        assert!(found, "{broken:?} is not noticed");
    }
}

#[test]
fn a_swarm_of_a_seed_is_the_same_again() {
    let digest = |seed| Swarm::draw(seed, Broken::Nothing).run().digest;
    assert_eq!(digest(3), digest(3));
    assert_ne!(digest(3), digest(4));
}
