//! The world: hosts and network in virtual time, and the event loop.
//!
//! One seed decides everything. Time advances from event to event; events of equal time run in the
//! order in which they were scheduled. An endpoint's event loop makes a pass when a packet has
//! arrived, when its mailbox is not empty, when a deadline is due, and when the CPU has finished
//! the previous pass. A pass is the same `Rpc::poll` as over sockets.

mod check;
mod disks;
mod faults;
mod life;
mod pass;
mod plain;
mod thread;
mod traffic;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use courser::{Config, Control, Integrity, Nexus, Packing, Recovery, Rpc};

use crate::disk::{Begun, SimDisk};
use crate::event::{EventQueue, nanos};
use crate::fabric::{Fabric, FabricEvent, Schedule, Topology, TopologyError};
use crate::host::clock::Oscillator;
use crate::host::costs::{Costs, CpuCosts};
use crate::host::life::Life;
use crate::host::machine::{Numbers, Wakes};
use crate::host::port::{NicConfig, lock};
use crate::host::process::{Process, Setup};
use crate::observe::{DropReason, Place, Tap};
use crate::packet::{HostId, Packet};
use crate::rng::Rng;
use crate::streams::{Sent, SharedStreams, Streams};

pub(crate) use check::panic_text;
pub use check::{Checks, Counts, Invariant, Violation};
pub use plain::{PlainQueue, Sink};
pub use thread::spend;
pub use thread::thread_now_ns;
pub(crate) use thread::{handler_began_ns, handler_begins};

/// End of virtual time: over a hundred years.
const LATEST_NS: u64 = 1 << 62;

/// Control port of every host's nexus.
pub(crate) const CONTROL_PORT: u16 = 31_850;

/// Settings of a world.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Decides all random choices.
    pub seed: u64,
    /// Hosts, switches and cables.
    pub topology: Topology,
    /// CPU costs of the hosts.
    pub costs: CpuCosts,
    /// The hosts' NICs.
    pub nic: NicConfig,
    /// Settings of every nexus. The default number of workers is 2: the simulating machine must
    /// have no influence. By default frames have no checksum of their own, which would only take
    /// time: the simulated NICs find all changes.
    pub nexus: Config,
    /// Loss recovery of single hosts, by number, repeated when there are more hosts; empty: as in
    /// `nexus`.
    pub recovery: Vec<Recovery>,
    /// Congestion control of single hosts, in the same way.
    pub control: Vec<Control>,
    /// Packing of single hosts, in the same way.
    pub packing: Vec<Packing>,
    /// One-way latency between two hosts for the control plane, whatever the distance, ns. Default
    /// 20 us.
    pub control_latency_ns: u64,
    /// Interval of connection requests to a machine that is down, ns. Default 1 s, Linux's first
    /// retransmission of a SYN.
    pub connect_retry_ns: u64,
    /// First request numbers of sessions. Default uniform.
    pub numbers: Numbers,
    /// True if hosts' clocks start at different times. Default true.
    pub clocks_differ: bool,
    /// Checks during the run.
    pub checks: Checks,
}

impl WorldConfig {
    /// The defaults, for a seed and a topology.
    pub fn new(seed: u64, topology: Topology) -> Self {
        WorldConfig {
            seed,
            topology,
            costs: CpuCosts::default(),
            nic: NicConfig::default(),
            nexus: Config { workers: 2, integrity: Some(Integrity::None), ..Config::default() },
            recovery: Vec::new(),
            control: Vec::new(),
            packing: Vec::new(),
            control_latency_ns: 20_000,
            connect_retry_ns: 1_000_000_000,
            numbers: Numbers::Anywhere,
            clocks_differ: true,
            checks: Checks::default(),
        }
    }
}

/// Why a world or an application could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    /// The topology is invalid.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The application's set-up failed.
    #[error("the set-up of n{host} failed at {at_ns} ns: {cause}; correct its function")]
    Setup {
        /// The host.
        host: u32,
        /// When.
        at_ns: u64,
        /// The cause.
        cause: String,
    },
}

/// Events.
enum Event {
    /// Inside the network.
    Fabric(FabricEvent),
    /// A packet has passed the NIC and reaches memory.
    Arrive(HostId, Box<Packet>),
    /// A NIC checks its transmit queues.
    Kick(HostId),
    /// An endpoint's event loop makes a pass.
    Pass(Life, u32),
    /// An endpoint's deadlines are checked.
    Look(Life, u32),
    /// A control loop makes a pass.
    Control(Life),
    /// A worker has finished a job.
    WorkerDone(Life, u64),
    /// A segment of a control connection arrives.
    Segment(Sent),
    /// An operation of a disk ends.
    Disk(HostId, u64),
    /// A function planned with [`World::at`].
    Plan(Plan),
}

impl Schedule for EventQueue<Event> {
    fn at(&mut self, at_ns: u64, event: FabricEvent) {
        self.push(at_ns, Event::Fabric(event));
    }
}

/// A host.
struct Host {
    oscillator: Oscillator,
    /// Its machine runs; its process may have ended.
    up: bool,
    paused_until_ns: u64,
    /// The number of its last process.
    life: u32,
    process: Option<Process>,
    setup: Option<Setup>,
    costs: Costs,
    nic: NicConfig,
    /// The endpoint whose transmit queue is served next.
    next_tx: usize,
    kick_at_ns: Option<u64>,
    /// Takes the packets of a host outside.
    sink: Option<plain::Sink>,
    /// Made when it is first used.
    disk: Option<SimDisk>,
}

/// A function to run at a time.
type Plan = Box<dyn FnOnce(&mut World)>;

/// A simulated datacenter; see the [crate's documentation](crate).
pub struct World {
    cfg: WorldConfig,
    now_ns: u64,
    events: EventQueue<Event>,
    fabric: Fabric,
    hosts: Vec<Host>,
    streams: SharedStreams,
    wakes: Wakes,
    begun: Begun,
    /// Segments that a partition delays.
    held: Vec<Sent>,
    /// One segment of each connection to a machine that is down.
    unanswered: Vec<Sent>,
    /// Group of each host while the network is partitioned.
    groups: Option<Vec<u32>>,
    next_packet: u64,
    rng: Rng,
    checker: check::Checker,
    /// Endpoints that were borrowed by the caller, and that may have work.
    touched: Vec<(Life, usize)>,
    /// Spare packets with their boxes.
    #[expect(clippy::vec_box, reason = "packets travel in their boxes")]
    spare: Vec<Box<Packet>>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("seed", &self.cfg.seed)
            .field("now_ns", &self.now_ns)
            .field("hosts", &self.hosts.len())
            .field("events", &self.events.len())
            .finish_non_exhaustive()
    }
}

/// Purposes of random streams.
pub(crate) mod purpose {
    pub(crate) const FABRIC: u64 = 1;
    pub(crate) const CLOCKS: u64 = 2;
    pub(crate) const WORLD: u64 = 3;
    /// Plus the life of a process, by host.
    pub(crate) const PROCESS: u64 = 1 << 32;
    /// Plus the host.
    pub(crate) const DISK: u64 = 1 << 60;
}

impl World {
    /// A world without processes.
    ///
    /// # Errors
    /// The topology is invalid.
    pub fn new(cfg: WorldConfig) -> Result<World, WorldError> {
        let fabric_seed = Rng::stream(cfg.seed, purpose::FABRIC).next_u64();
        let fabric = Fabric::new(&cfg.topology, fabric_seed)?;
        let count = cfg.topology.hosts() as usize;
        let mut clocks = Rng::stream(cfg.seed, purpose::CLOCKS);
        let hosts = (0..cfg.topology.hosts()).map(|host| {
            // Up to a day of uptime; some start so that the wire's 32-bit time wraps soon.
            let shown_ns = if cfg.clocks_differ { clocks.below(86_400_000_000_000) } else { 0 };
            let line_rate_bps = cfg.nic.line_rate_bps.or_else(|| cfg.topology.rate_of_host(host));
            Host {
                oscillator: Oscillator::new(shown_ns),
                up: true,
                paused_until_ns: 0,
                life: 0,
                process: None,
                setup: None,
                costs: Costs::new(cfg.costs.clone()),
                nic: NicConfig { line_rate_bps, ..cfg.nic.clone() },
                next_tx: 0,
                kick_at_ns: None,
                sink: None,
                disk: None,
            }
        });
        Ok(World {
            now_ns: 0,
            events: EventQueue::default(),
            fabric,
            hosts: hosts.collect(),
            streams: Arc::new(Mutex::new(Streams::new(count))),
            wakes: Wakes::default(),
            begun: Begun::default(),
            held: Vec::new(),
            unanswered: Vec::new(),
            groups: None,
            next_packet: 0,
            rng: Rng::stream(cfg.seed, purpose::WORLD),
            checker: check::Checker::new(cfg.checks.clone(), cfg.seed),
            touched: Vec::new(),
            spare: Vec::new(),
            cfg,
        })
    }

    // ---- inspection ---------------------------------------------------------------------------

    /// The world's time, ns.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Time of the next event; `None`: there is none.
    pub fn next_event_ns(&self) -> Option<u64> {
        self.events.next_ns()
    }

    /// The hosts, in order.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> + use<> {
        (0..self.hosts.len() as u32).map(HostId)
    }

    /// Address of the nexus of a host, for clients.
    pub fn uri(&self, host: HostId) -> String {
        format!("sim://n{}:{CONTROL_PORT}", host.0)
    }

    /// The network: counters, links. Its faults are set through the world.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The settings it was made with.
    pub fn config(&self) -> &WorldConfig {
        &self.cfg
    }

    /// A generator for random choices of the application.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// The counters so far.
    pub fn counts(&self) -> &Counts {
        self.checker.counts()
    }

    /// A hash over all events, in order: equal for equal seeds, settings and builds.
    pub fn digest(&self) -> u64 {
        self.checker.digest(&self.fabric.drops())
    }

    /// Violations; empty unless [`Checks::record`].
    pub fn violations(&self) -> &[Violation] {
        self.checker.violations()
    }

    /// Reports a violation found by an application's own check.
    ///
    /// # Panics
    /// Unless [`Checks::record`].
    pub fn violate(&mut self, invariant: Invariant, detail: String) {
        self.checker.violate(Violation { invariant, at_ns: self.now_ns, detail });
    }

    /// Adds a number of the application to the event log.
    pub fn note(&mut self, what: u64) {
        self.checker.note(self.now_ns, what);
    }

    /// Attaches an observer of all packets from now on.
    pub fn set_tap(&mut self, tap: Box<dyn Tap>) {
        self.fabric.tap = Some(tap);
    }

    /// Detaches the observer.
    pub fn take_tap(&mut self) -> Option<Box<dyn Tap>> {
        self.fabric.tap.take()
    }

    /// The nexus of a host's process.
    pub fn nexus(&self, host: HostId) -> Option<&Nexus> {
        Some(&self.hosts.get(host.0 as usize)?.process.as_ref()?.nexus)
    }

    /// Control connections that are not closed on both sides.
    pub fn control_connections(&self) -> usize {
        lock(&self.streams).open()
    }

    /// Control connections that were established so far.
    pub fn control_established(&self) -> u64 {
        lock(&self.streams).established
    }

    /// Returns whether a host's process runs.
    pub fn is_running(&self, host: HostId) -> bool {
        self.hosts.get(host.0 as usize).is_some_and(|h| h.process.is_some())
    }

    // ---- time ---------------------------------------------------------------------------------

    /// Advances time.
    ///
    /// # Panics
    /// When an invariant is violated, unless [`Checks::record`].
    pub fn run_for(&mut self, time: Duration) {
        let time_ns = nanos(time);
        self.run_to(self.now_ns.saturating_add(time_ns));
    }

    /// Advances time to a world time, ns.
    ///
    /// # Panics
    /// When an invariant is violated, unless [`Checks::record`].
    pub fn run_to(&mut self, end_ns: u64) {
        self.catch_up();
        let end_ns = end_ns.min(LATEST_NS);
        while !self.checker.has_stopped() && self.step_until(end_ns) {}
        if !self.checker.has_stopped() {
            self.now_ns = self.now_ns.max(end_ns);
        }
    }

    /// Advances time until `done` returns true; it is called after every event. False: `limit` was
    /// reached first.
    ///
    /// # Panics
    /// When an invariant is violated, unless [`Checks::record`].
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&mut World) -> bool) -> bool {
        let limit_ns = nanos(limit);
        let end_ns = self.now_ns.saturating_add(limit_ns).min(LATEST_NS);
        loop {
            if done(self) {
                return true;
            }
            self.catch_up();
            if self.checker.has_stopped() || !self.step_until(end_ns) {
                self.now_ns = self.now_ns.max(end_ns);
                return false;
            }
        }
    }

    /// Runs `plan` at a world time; at once when that has passed.
    pub fn at(&mut self, at_ns: u64, plan: impl FnOnce(&mut World) + 'static) {
        self.events.push(at_ns.max(self.now_ns), Event::Plan(Box::new(plan)));
    }

    /// Runs `plan` after a time.
    pub fn after(&mut self, time: Duration, plan: impl FnOnce(&mut World) + 'static) {
        let time_ns = nanos(time);
        self.at(self.now_ns.saturating_add(time_ns), plan);
    }

    /// Processes changes that were made from outside, before time advances.
    fn catch_up(&mut self) {
        while let Some((life, endpoint)) = self.touched.pop() {
            self.look(life, endpoint);
        }
        self.settle();
    }

    /// The next event, if it is not after `end_ns`.
    fn step_until(&mut self, end_ns: u64) -> bool {
        let Some((at_ns, event)) = self.events.pop_until(end_ns) else { return false };
        self.now_ns = at_ns;
        match event {
            // The usual case: events that involve no process and leave no work.
            Event::Fabric(e) => self.on_fabric(e),
            Event::Arrive(host, packet) => self.arrive(host, packet),
            Event::Kick(host) => {
                let h = &mut self.hosts[host.0 as usize];
                if h.kick_at_ns == Some(at_ns) {
                    h.kick_at_ns = None;
                    self.kick(host);
                }
            }
            Event::Look(life, endpoint) => self.look(life, endpoint as usize),
            Event::Pass(life, endpoint) => {
                self.pass(life, endpoint as usize);
                self.settle();
            }
            Event::Control(life) => {
                self.turn_control(life);
                self.settle();
            }
            Event::WorkerDone(life, job) => {
                self.worker_done(life, job);
                self.settle();
            }
            Event::Segment(sent) => {
                self.segment(sent);
                self.settle();
            }
            Event::Disk(host, operation) => {
                self.disk_ended(host, operation);
                self.settle();
            }
            Event::Plan(plan) => {
                plan(self);
                self.catch_up();
            }
        }
        true
    }

    /// The first endpoint of a host's process, to make calls, connect, inspect.
    ///
    /// # Panics
    /// When nothing runs on the host.
    pub fn rpc(&mut self, host: HostId) -> &mut Rpc {
        self.endpoint(host, 0).unwrap_or_else(|| panic!("nothing runs on n{}", host.0))
    }

    /// An endpoint of a host's process, by its order; `None` when there is none. Its next pass is
    /// now, which starts what the caller requests.
    pub fn endpoint(&mut self, host: HostId, endpoint: usize) -> Option<&mut Rpc> {
        let now_ns = self.now_ns;
        let h = self.hosts.get_mut(host.0 as usize)?;
        let p = h.process.as_mut()?;
        let life = p.life;
        let e = p.endpoints.get_mut(endpoint)?;
        e.clock.set(h.oscillator.shows(now_ns).max(e.clock.now_ns()));
        // Requests of the caller are processed when time advances.
        if self.touched.last() != Some(&(life, endpoint)) {
            self.touched.push((life, endpoint));
        }
        Some(&mut e.rpc)
    }

    /// An endpoint of a host's process, for inspection only.
    pub fn peek(&self, host: HostId, endpoint: usize) -> Option<&Rpc> {
        let p = self.hosts.get(host.0 as usize)?.process.as_ref()?;
        p.endpoints.get(endpoint).map(|e| &e.rpc)
    }

    fn host(&mut self, host: HostId) -> &mut Host {
        &mut self.hosts[host.0 as usize]
    }

    /// The process of a life, while it runs.
    fn process(&mut self, life: Life) -> Option<&mut Process> {
        let h = self.hosts.get_mut(life.host.0 as usize)?;
        h.process.as_mut().filter(|p| p.life == life)
    }

    fn drop_packet(&mut self, at: Place, why: DropReason, packet: Box<Packet>) {
        self.checker.dropped(self.now_ns, why, &packet);
        if let Some(tap) = &mut self.fabric.tap {
            tap.dropped(self.now_ns, &at, why, &packet);
        }
        self.recycle(packet);
    }

    fn recycle(&mut self, packet: Box<Packet>) {
        if self.spare.len() < 4096 {
            self.spare.push(packet);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Processes before the streams that they use; no peers are notified any more.
        for h in &mut self.hosts {
            h.process = None;
        }
        lock(&self.streams).sent.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_states_the_rate_of_its_cable_or_that_of_the_setting() {
        let mut topology = Topology::one_switch(3);
        topology = topology.each_cable(|cable| cable.spec.rate_bps = 10_000_000_000);
        let rates = |nic: NicConfig| {
            let world = World::new(WorldConfig { nic, ..WorldConfig::new(1, topology.clone()) });
            let world = world.expect("a world");
            world.hosts.iter().map(|host| host.nic.line_rate_bps).collect::<Vec<_>>()
        };
        assert_eq!(rates(NicConfig::default()), [Some(10_000_000_000); 3]);
        let nic = NicConfig { line_rate_bps: Some(7_000_000), ..NicConfig::default() };
        assert_eq!(rates(nic), [Some(7_000_000); 3]);
    }
}
