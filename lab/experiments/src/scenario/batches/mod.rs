//! One-way messages in batches between two hosts at a switch, and calls whose answers are stamped: the
//! evaluation of scatter-gather batching [Scatter-gather §III, IV] (S8, S9, S14, S15, S18).
//!
//! A batch is what is sent together before the transmitter runs: a thread sends one in each pass of
//! its event loop in which all of it may be in flight. The CPU costs of a frame and of each packet in
//! it are the same, however a frame is built: the model has no cost of copying packets into a frame,
//! nor of the pieces of a gathered one.

mod node;

use std::cell::RefCell;
use std::rc::Rc;

use courser::{Control, Packing, Rpc};
use serde::Serialize;

use super::hosts::Hosts;
use super::{Cpu, Latency, ScenarioError, app, check, check_time, check_warm_up};
use courser_sim::fabric::{CableSpec, DCQCN_MARKING, HOST_DELAY_NS, Topology};
use courser_sim::{HostId, World, WorldConfig};
use node::{SharedTally, Tally};

/// Traffic of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Traffic {
    /// Messages from both hosts to each other.
    Both,
    /// Messages from the first host to the second.
    One,
    /// Calls of the first host to the second, which stamps its answers. A batch follows when all calls
    /// of the one before have ended.
    Calls,
}

/// Settings of the experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// Both hosts. Default: measured CPU costs, frames of 8,972 bytes, 256 credits.
    #[serde(flatten)]
    pub hosts: Hosts,
    /// The messages that are sent.
    pub traffic: Traffic,
    /// Rate of the cables, bit/s.
    pub link_bps: u64,
    /// The way in which packets share frames, if they do. Packets of all sizes are gathered of
    /// which two fit.
    pub packing: Packing,
    /// Bytes of a message, or of a request and of its answer: 16 to 65,536.
    pub bytes: u32,
    /// Messages or calls that are sent together: 1 to 256.
    pub batch: u32,
    /// Most messages or calls in flight; at least one batch.
    pub in_flight: u32,
    /// Sessions, which batches of messages and the calls of a batch take in turn: 1 to 64. Default 16.
    pub sessions: u32,
    /// Warm-up, ns. Default 100 us.
    pub warm_up_ns: u64,
    /// Measured time, ns. Default 1 ms.
    pub time_ns: u64,
}

/// MTU of 9,000 bytes without the headers of IPv4 and UDP.
const JUMBO_FRAME: usize = 9_000 - 20 - 8;

impl Default for Settings {
    fn default() -> Self {
        let hosts =
            Hosts { credits: 256, max_frame: JUMBO_FRAME, cpu: Cpu::Measured, ..Hosts::default() };
        Settings {
            hosts,
            traffic: Traffic::Both,
            link_bps: 40_000_000_000,
            packing: Packing::Copy,
            bytes: 64,
            batch: 32,
            in_flight: 128,
            sessions: 16,
            warm_up_ns: 100_000,
            time_ns: 1_000_000,
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), ScenarioError> {
        self.hosts.check()?;
        let rate = (1_000_000_000..=1_000_000_000_000).contains(&self.link_bps);
        check(rate, "link_bps", self.link_bps, "1 Gbit/s to 1 Tbit/s")?;
        check((16..=65_536).contains(&self.bytes), "bytes", self.bytes, "16 to 65,536 bytes")?;
        check((1..=256).contains(&self.batch), "batch", self.batch, "1 to 256")?;
        let in_flight = (self.batch..=4_096).contains(&self.in_flight);
        check(in_flight, "in_flight", self.in_flight, "a batch to 4,096")?;
        check((1..=64).contains(&self.sessions), "sessions", self.sessions, "1 to 64")?;
        check_time(self.time_ns)?;
        check_warm_up(self.warm_up_ns)
    }

    fn config(&self) -> WorldConfig {
        let cable = CableSpec { rate_bps: self.link_bps, delay_ns: HOST_DELAY_NS };
        let mut topology = Topology::one_switch(2).each_cable(|each| each.spec = cable);
        if self.hosts.control != Control::None {
            topology = topology.each_switch(|_, switch| switch.marking = DCQCN_MARKING);
        }
        // A session in each direction.
        let mut config = self.hosts.config(topology, 2 * self.sessions);
        config.nexus.packing = Some(self.packing);
        config.nexus.tuning.gather_to = self.hosts.max_frame / 2;
        config
    }

    /// Hosts that send messages or calls.
    fn senders(&self) -> &'static [HostId] {
        if self.traffic == Traffic::Both { &HOSTS } else { &HOSTS[..1] }
    }
}

const HOSTS: [HostId; 2] = [HostId(0), HostId(1)];

/// Results of a run, of the measured time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// Messages of one direction that were acknowledged, the mean if both hosts send; or calls.
    pub operations: u64,
    /// Measured time, ns.
    pub time_ns: u64,
    /// Messages of the first host.
    pub first: Sent,
    /// Messages of the second host.
    pub second: Sent,
    /// Latency of one way of calls: half of the round trip without the time at the server.
    pub one_way: Latency,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "super::hex")]
    pub digest: u64,
}

/// Messages that a host has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Sent {
    /// Messages that were acknowledged.
    pub messages: u64,
    /// Frames on its cable.
    pub frames: u64,
    /// Their bytes on the wire, with headers, preamble and gap.
    pub wire_bytes: u64,
    /// Packets that are neither messages nor requests: acknowledgements, or answers of calls.
    pub acks: u64,
}

impl Sent {
    fn of(world: &World, host: HostId) -> Self {
        let link = world.fabric().link_counters(world.fabric().uplink(host));
        let stats = world.peek(host, 0).map(Rpc::stats);
        Sent {
            messages: stats.map_or(0, |stats| stats.messages_acknowledged),
            frames: link.packets,
            wire_bytes: link.bytes,
            acks: stats.map_or(0, |stats| stats.tx_acknowledging()),
        }
    }

    fn since(self, before: Self) -> Self {
        Sent {
            messages: self.messages - before.messages,
            frames: self.frames - before.frames,
            wire_bytes: self.wire_bytes - before.wire_bytes,
            acks: self.acks - before.acks,
        }
    }
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a message or call has failed.
pub fn run(settings: &Settings) -> Result<Outcome, ScenarioError> {
    settings.check()?;
    let mut world = World::new(settings.config())?;
    let tally: SharedTally = Rc::new(RefCell::new(Tally::default()));
    let sessions = node::start(&mut world, settings)?;
    app::connect_all(&mut world)?;
    node::send(&mut world, settings, sessions, &tally);
    let begin_ns = world.now_ns() + settings.warm_up_ns;
    world.run_to(begin_ns);
    let before = HOSTS.map(|host| Sent::of(&world, host));
    tally.borrow_mut().begin();
    world.run_to(begin_ns + settings.time_ns);
    let sent = |at: usize| Sent::of(&world, HOSTS[at]).since(before[at]);
    let (first, second) = (sent(0), sent(1));
    let tally = tally.borrow();
    tally.check()?;
    Ok(Outcome {
        operations: match settings.traffic {
            Traffic::Both => u64::midpoint(first.messages, second.messages),
            Traffic::One => first.messages,
            Traffic::Calls => tally.one_way.count(),
        },
        time_ns: settings.time_ns,
        first,
        second,
        one_way: Latency::from(&tally.one_way),
        digest: world.digest(),
    })
}

#[cfg(test)]
mod tests;
