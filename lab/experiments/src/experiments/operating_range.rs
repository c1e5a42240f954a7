//! An incast over networks of many rates, lengths and frame sizes, without any change of the
//! control's settings.
//!
//! The base round trip is that of an empty packet: the delay of four cables. NICs and switches add
//! no latency, so that one microsecond is possible; packets take their time on the cables in
//! addition. Credits are two bandwidth-delay products of that round trip, with the packet's time on
//! both cables and the jitter, and at least 32.
//!
//! **Jitter**: every frame, in both directions, is delayed at its receiver by a time drawn from 0 to
//! the setting. Frames stay in order, as in a receive queue: one that is drawn a shorter time waits
//! for those before it.

use std::rc::Rc;
use std::time::Duration;

use courser::Control;
use serde::Serialize;

use crate::scenario::app::{self, SharedTally};
use crate::scenario::flows::{Flows, Recorder};
use crate::scenario::hosts::Hosts;
use crate::scenario::{
    Latency, ScenarioError, check, data_per_packet, per_second, wire_bytes, wire_ns,
};
use courser_sim::fabric::{CableSpec, Crossing, Fate, Topology};
use courser_sim::{Checks, HostId, LinkId, Packet, Rng, World, WorldConfig};

/// The server's host.
const SERVER: HostId = HostId(0);

/// Purpose of the generator of a host's jitter.
const JITTER: u64 = 1 << 40;

/// Bytes of a request, rounded down to full packets.
const REQUEST_BYTES: usize = 4 << 20;

/// Requests that a sender keeps outstanding: two, so that it is not idle for the round trip between
/// them.
const OUTSTANDING: u32 = 2;

/// Smallest number of credits.
const LEAST_CREDITS: u64 = 32;

/// Settings of one point.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// All hosts; credits follow from the network.
    #[serde(flatten)]
    pub hosts: Hosts,
    /// Senders: 1 to 100. Default 20.
    pub senders: u32,
    /// Rate of the cables, bit/s: 1 Gbit/s to 1.6 Tbit/s. Default 25 Gbit/s.
    pub rate_bps: u64,
    /// Round trip of an empty packet, ns: at most 1 ms. Default 5 us.
    pub base_rtt_ns: u64,
    /// Longest delay of a frame at its receiver, ns: at most 1 ms. Default 0.
    pub jitter_ns: u64,
    /// True if hosts are configured with the rate of their link; false: their setting is the
    /// default, 25 Gbit/s, whatever the rate. Default false.
    pub rate_known: bool,
    /// Warm-up, in base round trips and the jitter; at least 5 ms. Default 200.
    pub warm_up_rtts: u32,
    /// Measured time, likewise. Default 200.
    pub time_rtts: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            hosts: Hosts::default(),
            senders: 20,
            rate_bps: 25_000_000_000,
            base_rtt_ns: 5_000,
            jitter_ns: 0,
            rate_known: false,
            warm_up_rtts: 200,
            time_rtts: 200,
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), ScenarioError> {
        self.hosts.check()?;
        check((1..=100).contains(&self.senders), "senders", self.senders, "1 to 100")?;
        let range = "1 Gbit/s to 1.6 Tbit/s";
        let rates = 1_000_000_000..=1_600_000_000_000;
        check(rates.contains(&self.rate_bps), "rate_bps", self.rate_bps, range)?;
        check(self.base_rtt_ns <= 1_000_000, "base_rtt_ns", self.base_rtt_ns, "at most 1 ms")?;
        check(self.jitter_ns <= 1_000_000, "jitter_ns", self.jitter_ns, "at most 1 ms")?;
        check(
            (1..=10_000).contains(&self.warm_up_rtts),
            "warm_up_rtts",
            self.warm_up_rtts,
            "1 to 10,000",
        )?;
        check((1..=10_000).contains(&self.time_rtts), "time_rtts", self.time_rtts, "1 to 10,000")
    }

    fn packet_ns(&self) -> u64 {
        wire_ns(wire_bytes(data_per_packet(self.hosts.max_frame)), self.rate_bps)
    }

    /// Round trip of a full packet on the idle network, without jitter, ns.
    pub fn full_rtt_ns(&self) -> u64 {
        // Switches are cut-through: a packet takes its time once.
        self.base_rtt_ns + self.packet_ns() + wire_ns(wire_bytes(0), self.rate_bps)
    }

    /// Credits of a session, C.
    pub fn credits(&self) -> u32 {
        let rtt_ns = self.full_rtt_ns() + self.packet_ns() + 2 * self.jitter_ns;
        let packets = (2 * rtt_ns).div_ceil(self.packet_ns().max(1));
        packets.clamp(LEAST_CREDITS, 65_535) as u32
    }

    fn time_ns(&self, rtts: u32) -> u64 {
        (u64::from(rtts) * (self.full_rtt_ns() + 2 * self.jitter_ns)).max(5_000_000)
    }

    /// The network.
    pub fn topology(&self) -> Topology {
        let spec = CableSpec { rate_bps: self.rate_bps, delay_ns: self.base_rtt_ns / 4 };
        Topology::one_switch(self.senders + 1)
            .each_cable(|cable| cable.spec = spec)
            .each_switch(|_, switch| switch.latency_ns = 0)
    }

    fn config(&self) -> WorldConfig {
        let hosts = Hosts { credits: self.credits(), ..self.hosts };
        let mut config = hosts.config(self.topology(), self.senders);
        (config.nic.rx_latency_ns, config.nic.tx_latency_ns) = (0, 0);
        config.checks = Checks { every_passes: 1_024, ..Checks::default() };
        if self.rate_known || self.hosts.control != Control::default() {
            config.nexus.line_rate_bps = self.rate_bps;
        }
        config
    }
}

/// One point.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// Data that the server has accepted, bit/s.
    pub goodput_bps: u64,
    /// Its share of that of a link that is never idle.
    pub goodput_share: f64,
    /// Credits of each session.
    pub credits: u32,
    /// Round trips measured by the clients: every sample, jitter included.
    pub rtt: Latency,
    /// Round trip of a full packet on the idle network, without jitter, ns.
    pub full_rtt_ns: u64,
    /// The number of bytes that the queue of the server's link exceeded in 1 % of the time.
    pub queue_p99_bytes: u64,
    /// Jain's index of the senders' bytes.
    pub jain: f64,
    /// Datagrams dropped anywhere.
    pub drops: u64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &Settings) -> Result<Outcome, ScenarioError> {
    settings.check()?;
    let mut world = World::new(settings.config())?;
    let link = world.fabric().uplink(SERVER).reverse();
    let flows = Flows::new(SERVER, link);
    world.set_tap(Box::new(Recorder { flows: Rc::clone(&flows), inner: None }));
    let tally = start(&mut world, settings)?;
    app::connect_all(&mut world)?;
    world.run_for(Duration::from_nanos(settings.time_ns(settings.warm_up_rtts)));
    let accepted = |world: &World| world.peek(SERVER, 0).map_or(0, |rpc| rpc.stats().rx_kinds[0]);
    let before = accepted(&world);
    flows.borrow_mut().restart(world.now_ns());
    let time_ns = settings.time_ns(settings.time_rtts);
    world.run_for(Duration::from_nanos(time_ns));
    tally.borrow().check()?;
    let data = data_per_packet(settings.hosts.max_frame) as u64;
    let goodput_bps = per_second((accepted(&world) - before) * data * 8, time_ns);
    let full_bps = settings.rate_bps as f64 * data as f64 / wire_bytes(data as usize) as f64;
    let mut flows = flows.borrow_mut();
    Ok(Outcome {
        goodput_bps,
        goodput_share: goodput_bps as f64 / full_bps,
        credits: settings.credits(),
        rtt: Latency::from(&flows.rtts),
        full_rtt_ns: settings.full_rtt_ns(),
        queue_p99_bytes: flows.queue_quantile_bytes(990, world.now_ns()),
        jain: flows.fairness(settings.senders).0,
        drops: flows.drops,
        digest: world.digest(),
    })
}

fn start(world: &mut World, settings: &Settings) -> Result<SharedTally, ScenarioError> {
    let tally = SharedTally::default();
    world.start(SERVER, app::server)?;
    let uri = world.uri(SERVER);
    let data = data_per_packet(settings.hosts.max_frame);
    let bytes = REQUEST_BYTES / data * data;
    for host in world.hosts().filter(|&h| h != SERVER) {
        let (uri, tally) = (uri.clone(), Rc::clone(&tally));
        world.start(host, move |nexus| {
            app::closed_loop(nexus, &uri, app::SINK, bytes, OUTSTANDING, tally.clone())
        })?;
    }
    if settings.jitter_ns > 0 {
        for host in world.hosts() {
            let link = world.fabric().uplink(host).reverse();
            let rng = Rng::stream(settings.hosts.seed, JITTER | u64::from(host.0));
            delay_at_receiver(world, link, settings.jitter_ns, rng);
        }
    }
    Ok(tally)
}

/// Delays every frame of a link by up to `most_ns`, in order.
fn delay_at_receiver(world: &mut World, link: LinkId, most_ns: u64, mut rng: Rng) {
    let rate_bps = world.fabric().cable(link).rate_bps;
    let mut free_ns = 0;
    let rule = move |packet: &Packet, crossing: &Crossing| {
        let at_ns = free_ns.max(crossing.now_ns + rng.between(0, most_ns));
        free_ns = at_ns + wire_ns(packet.wire_bytes().into(), rate_bps);
        Some(Fate::Delay(at_ns - crossing.now_ns))
    };
    world.set_link_rule(link, Some(Box::new(rule)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Spoilt, assert_refused};

    fn short() -> Settings {
        Settings { senders: 2, warm_up_rtts: 1, time_rtts: 1, ..Settings::default() }
    }

    #[test]
    fn the_idle_round_trip_is_as_calculated_and_jitter_adds_to_it() {
        let hosts = Hosts { control: Control::None, ..Hosts::default() };
        for jitter_ns in [0, 20_000] {
            let settings = Settings { hosts, senders: 1, jitter_ns, ..short() };
            let seen = run(&settings).expect("runs");
            assert!(seen.rtt.min_ns + 20 >= seen.full_rtt_ns, "{seen:?}");
            // All credits can be in a queue, and a frame can wait for others that were delayed.
            let queued_ns = u64::from(seen.credits) * settings.packet_ns();
            assert!(seen.rtt.max_ns <= seen.full_rtt_ns + queued_ns + 4 * jitter_ns, "{seen:?}");
            assert!(seen.rtt.p50_ns >= seen.full_rtt_ns + jitter_ns / 2, "{seen:?}");
            assert_eq!((seen.drops, run(&settings).expect("runs")), (0, seen));
        }
    }

    #[test]
    fn credits_are_two_bandwidth_delay_products() {
        // 5 us, and a packet of 1,138 bytes in 364 ns twice, with a credit return of 110 in 35.
        assert_eq!(short().credits(), 32, "32 are more than 2 x 5,763 / 364");
        let settings = Settings { base_rtt_ns: 100_000, ..short() };
        assert_eq!(settings.credits(), (2 * (100_000_u64 + 364 + 35 + 364)).div_ceil(364) as u32);
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let bad: &[Spoilt<Settings>] = &[
            ("senders", |s| s.senders = 0),
            ("rate_bps", |s| s.rate_bps = 1),
            ("base_rtt_ns", |s| s.base_rtt_ns = u64::MAX),
            ("jitter_ns", |s| s.jitter_ns = u64::MAX),
            ("warm_up_rtts", |s| s.warm_up_rtts = 0),
            ("time_rtts", |s| s.time_rtts = 0),
        ];
        assert_refused(bad, Settings::default, run);
    }
}
