//! Speed of the simulator: two hosts on a cable, and datagrams that reach a receive queue per
//! second of real time, which the caller measures.

use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;

use super::ScenarioError;
use super::app::{self, SharedTally};
use super::uncontrolled;
use super::{Cpu, data_per_packet};
use courser_sim::fabric::Topology;
use courser_sim::{Checks, HostId, World};

const SERVER: HostId = HostId(0);
const CLIENT: HostId = HostId(1);

/// Load of the two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// 32-byte echoes, one at a time: each datagram has one packet, and batching has no effect.
    Single,
    /// 32-byte echoes, 60 in flight: datagrams have several packets.
    Small,
    /// 8 MiB requests, two in flight, with 32 credits: full packets one way, credit returns the
    /// other.
    Bulk,
}

impl Load {
    /// All loads.
    pub const ALL: [Load; 3] = [Load::Single, Load::Small, Load::Bulk];

    /// Its name in options and results.
    pub const fn name(self) -> &'static str {
        match self {
            Load::Single => "single",
            Load::Small => "small",
            Load::Bulk => "bulk",
        }
    }
}

/// Settings of the world.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// Decides all random choices.
    pub seed: u64,
    /// The load of the hosts.
    pub load: Load,
    /// The CPUs. Default: Courser's.
    pub cpu: Cpu,
    /// True if the default checks of every simulation run. Default true.
    pub checks: bool,
}

impl Settings {
    /// The defaults, for a load.
    pub fn new(load: Load) -> Self {
        Settings { seed: 1, load, cpu: Cpu::Courser, checks: true }
    }
}

/// The two hosts under load.
#[derive(Debug)]
pub struct TwoHosts {
    world: World,
    tally: SharedTally,
}

impl TwoHosts {
    /// Connects them and advances time by a millisecond.
    ///
    /// # Errors
    /// The session was not connected, or a call has failed.
    pub fn new(settings: &Settings) -> Result<TwoHosts, ScenarioError> {
        let mut config = uncontrolled(settings.seed, Topology::two_hosts());
        config.costs = settings.cpu.costs();
        config.nexus.credits = Some(32);
        config.nexus.slots = 32;
        if !settings.checks {
            config.checks = Checks { at_most_once: false, every_passes: 0, ..Checks::default() };
        }
        let packet = data_per_packet(config.nic.max_frame);
        let (req_type, bytes, outstanding) = match settings.load {
            Load::Single => (app::ECHO, 32, 1),
            Load::Small => (app::ECHO, 32, 60),
            Load::Bulk => (app::SINK, (8 << 20) / packet * packet, 2),
        };
        let mut world = World::new(config)?;
        let tally = SharedTally::default();
        world.start(SERVER, app::server)?;
        let (uri, to) = (world.uri(SERVER), Rc::clone(&tally));
        world.start(CLIENT, move |nexus| {
            app::closed_loop(nexus, &uri, req_type, bytes, outstanding, to.clone())
        })?;
        app::connect_all(&mut world)?;
        let mut hosts = TwoHosts { world, tally };
        hosts.advance(1_000_000)?;
        Ok(hosts)
    }

    /// Advances virtual time; returns the datagrams delivered in it.
    ///
    /// # Errors
    /// A call has failed.
    pub fn advance(&mut self, time_ns: u64) -> Result<u64, ScenarioError> {
        let before = self.world.counts().delivered;
        self.world.run_for(Duration::from_nanos(time_ns));
        self.tally.borrow().check()?;
        Ok(self.world.counts().delivered - before)
    }

    /// A hash over all events.
    pub fn digest(&self) -> u64 {
        self.world.digest()
    }
}
