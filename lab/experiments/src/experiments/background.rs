//! Incast with background traffic `[eRPC §6.5]` (E83, E94): one more thread on each node that is not
//! the victim keeps one call with a large request and response outstanding to such a thread of a
//! random other node. The result is their latency, with the incast and without it.
//!
//! One more node makes small calls to the victim's thread, one at a time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Nexus, Rpc, SessionId};
use serde::Serialize;

use crate::scenario::app::{self, SharedTally};
use crate::scenario::caller::{Caller, SharedCaller};
use crate::scenario::hosts::Hosts;
use crate::scenario::incast::Network;
use crate::scenario::{Cpu, Latency, MAX_HOSTS, ScenarioError, Traffic, observed};
use crate::scenario::{check, check_time, check_warm_up, data_per_packet, per_second};
use courser_sim::SetupError;
use courser_sim::fabric::{HOST_RATE_BPS, Topology};
use courser_sim::observe::{DropReason, Tap, Times};
use courser_sim::{Checks, HostId, Rng, World, WorldConfig};

/// The host of the incast's server.
const VICTIM: HostId = HostId(0);

/// Bytes of a small call, and of its response.
const SMALL_BYTES: usize = 32;

/// Message memory of an endpoint, bytes: the victim stores the requests of all senders.
const MEMORY: usize = 2 << 30;

/// Settings of the experiment. The defaults are those of `[eRPC §6.5]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// All hosts.
    #[serde(flatten)]
    pub hosts: Hosts,
    /// The network. Default the paper's.
    pub network: Network,
    /// Senders of the incast: 2 to 200. Default 100.
    pub senders: u32,
    /// Bytes of a request of the incast: at most 8 MiB, the default.
    pub incast_bytes: usize,
    /// Bytes of a request and of a response of the background calls. Default 64,000.
    pub background_bytes: usize,
    /// Warm-up, ns. Default 10 ms.
    pub warm_up_ns: u64,
    /// Measured time, ns. Default 20 ms.
    pub time_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            // Packets of 1,024 bytes of data.
            hosts: Hosts { max_frame: 1_068, cpu: Cpu::Erpc, ..Hosts::default() },
            network: Network::Cx4,
            senders: 100,
            incast_bytes: 8 << 20,
            background_bytes: 64_000,
            warm_up_ns: 10_000_000,
            time_ns: 20_000_000,
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), ScenarioError> {
        self.hosts.check()?;
        check((2..=200).contains(&self.senders), "senders", self.senders, "2 to 200")?;
        for (name, bytes) in
            [("incast_bytes", self.incast_bytes), ("background_bytes", self.background_bytes)]
        {
            check((1..=8 << 20).contains(&bytes), name, bytes as u64, "1 byte to 8 MiB")?;
        }
        check_time(self.time_ns)?;
        check_warm_up(self.warm_up_ns)
    }

    /// The network that it runs on: the victim, the senders, and the node of the small calls.
    pub fn topology(&self) -> Topology {
        let hosts = self.senders + 2;
        match self.network {
            Network::OneSwitch => Topology::one_switch(hosts),
            Network::Cx4 => Topology::cx4(hosts),
        }
    }

    fn prober(&self) -> HostId {
        HostId(self.senders + 1)
    }

    fn config(&self) -> WorldConfig {
        // A background thread has sessions with all others, in both roles.
        let mut config = self.hosts.config(self.topology(), 2 * self.senders.min(MAX_HOSTS));
        config.nexus.line_rate_bps = HOST_RATE_BPS;
        config.nexus.memory_limit = MEMORY;
        // Ten thousand sessions are checked.
        config.checks = Checks { at_most_once: false, every_passes: 4_096, ..Checks::default() };
        config
    }
}

/// The calls of one run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Calls {
    /// Latency of the background calls.
    pub background: Latency,
    /// Latency of the small calls to the victim.
    pub to_victim: Latency,
    /// Data of the incast that the victim has accepted, bit/s.
    pub goodput_bps: u64,
    /// Datagrams dropped by switches for lack of buffer.
    pub overflows: u64,
    /// Retransmitted packets.
    pub retransmitted: u64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

/// Results of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Outcome {
    /// During the incast.
    pub incast: Calls,
    /// With the same seed and no incast.
    pub quiet: Calls,
}

impl Outcome {
    /// The background calls' 99th percentile during the incast as a multiple of that without.
    pub fn background_ratio(&self) -> f64 {
        self.incast.background.p99_ns as f64 / self.quiet.background.p99_ns as f64
    }

    /// The same of the small calls.
    pub fn to_victim_ratio(&self) -> f64 {
        self.incast.to_victim.p99_ns as f64 / self.quiet.to_victim.p99_ns as f64
    }
}

/// Runs it, with the incast and without.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &Settings, tap: Option<Box<dyn Tap>>) -> Result<Outcome, ScenarioError> {
    settings.check()?;
    Ok(Outcome { incast: calls(settings, true, tap)?, quiet: calls(settings, false, None)? })
}

fn calls(
    settings: &Settings,
    incast: bool,
    tap: Option<Box<dyn Tap>>,
) -> Result<Calls, ScenarioError> {
    let mut world = observed(World::new(settings.config())?, tap);
    let tallies: [SharedTally; 3] = Default::default();
    let [background, small, large] = &tallies;
    let callers = start(&mut world, settings, incast, [background, small, large])?;
    app::connect_all(&mut world)?;
    for (host, endpoint, caller) in callers.borrow().iter() {
        if let Some(rpc) = world.endpoint(*host, *endpoint) {
            caller.borrow_mut().issue(&mut rpc.context());
        }
    }
    world.run_for(Duration::from_nanos(settings.warm_up_ns));
    let before = Traffic::of(&mut world);
    let accepted = |world: &World| world.peek(VICTIM, 0).map_or(0, |rpc| rpc.stats().rx_kinds[0]);
    let accepted_before = accepted(&world);
    background.borrow_mut().latency = Times::default();
    small.borrow_mut().latency = Times::default();
    world.run_for(Duration::from_nanos(settings.time_ns));
    let traffic = Traffic::of(&mut world).since(&before);
    for tally in &tallies {
        tally.borrow().check()?;
    }
    // Without the small calls, of one packet each.
    let all = accepted(&world) - accepted_before;
    let packets = all.saturating_sub(small.borrow().latency.count());
    let bits = packets * data_per_packet(settings.hosts.max_frame) as u64 * 8;
    Ok(Calls {
        background: Latency::from(&background.borrow().latency),
        to_victim: Latency::from(&small.borrow().latency),
        goodput_bps: per_second(bits, settings.time_ns),
        overflows: traffic.dropped(DropReason::BufferFull),
        retransmitted: traffic.retransmitted,
        digest: world.digest(),
    })
}

/// The clients, each with its host and the order of its endpoint.
type Made = Rc<RefCell<Vec<(HostId, usize, SharedCaller)>>>;

fn start(
    world: &mut World,
    settings: &Settings,
    incast: bool,
    [background, small, large]: [&SharedTally; 3],
) -> Result<Made, ScenarioError> {
    let made = Made::default();
    world.start(VICTIM, app::server)?;
    let victim = world.uri(VICTIM);
    let nodes: Vec<HostId> = (1..=settings.senders).map(HostId).collect();
    let threads: Vec<String> = nodes.iter().map(|&h| format!("{}/1", world.uri(h))).collect();
    for (own, &host) in nodes.iter().enumerate() {
        let (settings, made) = (*settings, Rc::clone(&made));
        let (tally, large) = (Rc::clone(background), Rc::clone(large));
        let (victim, mut others) = (victim.clone(), threads.clone());
        others.remove(own);
        let setup = move |nexus: &Nexus| -> Result<Vec<Rpc>, SetupError> {
            let rng = Rng::stream(settings.hosts.seed, u64::from(host.0) << 8);
            let call = (app::SINK, settings.incast_bytes);
            let sender = Caller::of_server(nexus, &victim, call, rng, Rc::clone(&large))?;
            let rng = Rng::stream(settings.hosts.seed, u64::from(host.0) << 8 | 1);
            let (rpc, caller) = thread(nexus, &others, &settings, rng, Rc::clone(&tally))?;
            made.borrow_mut().push((host, 1, caller));
            if incast {
                made.borrow_mut().push((host, 0, sender.1));
            }
            Ok(vec![sender.0, rpc])
        };
        world.start(host, setup)?;
    }
    let (prober, seed) = (settings.prober(), settings.hosts.seed);
    let (tally, own) = (Rc::clone(small), Rc::clone(&made));
    world.start(prober, move |nexus: &Nexus| -> Result<Rpc, SetupError> {
        let rng = Rng::stream(seed, u64::from(prober.0) << 8);
        let call = (app::SINK, SMALL_BYTES);
        let (rpc, caller) = Caller::of_server(nexus, &victim, call, rng, Rc::clone(&tally))?;
        own.borrow_mut().push((prober, 0, caller));
        Ok(rpc)
    })?;
    Ok(made)
}

/// A node's thread of the background: a server, and a client of all others.
fn thread(
    nexus: &Nexus,
    others: &[String],
    settings: &Settings,
    rng: Rng,
    tally: SharedTally,
) -> Result<(Rpc, SharedCaller), SetupError> {
    let mut rpc = nexus.endpoint()?;
    app::answer(&mut rpc);
    let sessions = others.iter().map(|uri| rpc.connect(uri));
    let sessions: Vec<SessionId> = sessions.collect::<Result<_, _>>()?;
    let call = (app::ECHO, settings.background_bytes);
    let caller = Caller::attach(&mut rpc, sessions, call, rng, tally)?;
    Ok((rpc, caller))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Spoilt, assert_refused};

    fn short() -> Settings {
        let (warm_up_ns, time_ns) = (300_000, 300_000);
        Settings { senders: 3, warm_up_ns, time_ns, ..Settings::default() }
    }

    #[test]
    fn the_same_seed_is_the_same_run() {
        let of = |seed| {
            let hosts = Hosts { seed, ..short().hosts };
            run(&Settings { hosts, ..short() }, None).expect("runs")
        };
        let first = of(1);
        assert_eq!(first, of(1));
        assert_ne!(first.incast.digest, of(2).incast.digest);
        assert!(first.incast.goodput_bps > 0 && first.quiet.goodput_bps == 0, "{first:?}");
        assert!(first.incast.background.count > 0 && first.quiet.to_victim.count > 0, "{first:?}");
    }

    /// Two nodes call each other, so each background call has the links for itself and one other call.
    #[test]
    fn background_calls_carry_their_bytes_in_both_directions() {
        let settings = Settings { senders: 2, ..short() };
        let quiet = calls(&settings, false, None).expect("runs").background;
        let bits = 8 * settings.background_bytes as u64;
        let one_way_ns = bits * 1_000_000_000 / HOST_RATE_BPS;
        assert!(quiet.p50_ns > 2 * one_way_ns, "{quiet:?}, {one_way_ns} ns in each direction");
        let half = Settings { background_bytes: settings.background_bytes / 2, ..settings };
        let half = calls(&half, false, None).expect("runs").background;
        assert!(half.p50_ns < quiet.p50_ns * 7 / 10, "{half:?} of {quiet:?}");
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let bad: &[Spoilt<Settings>] = &[
            ("credits", |s| s.hosts.credits = 0),
            ("max_frame", |s| s.hosts.max_frame = 9_001),
            ("senders", |s| s.senders = 1),
            ("incast_bytes", |s| s.incast_bytes = 0),
            ("background_bytes", |s| s.background_bytes = 9 << 20),
            ("time_ns", |s| s.time_ns = 0),
            ("warm_up_ns", |s| s.warm_up_ns = u64::MAX),
        ];
        assert_refused(bad, Settings::default, |s| run(s, None));
    }
}
