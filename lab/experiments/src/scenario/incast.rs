//! Incast: N senders, one receiver `[eRPC §6.5]` (E81, E82), with any congestion control.
//!
//! Each of N clients keeps one large request outstanding to the same server. Without congestion
//! control a session always has C packets in flight, in total N C; those not on cables or with CPUs
//! are in the queue of the server's link. A packet leaves there every `8 b / rate`, so the round
//! trip is N C times that, if it exceeds that of the idle network (otherwise the link is not full).

use std::rc::Rc;
use std::time::Duration;

use courser::{Control, Recovery};
use serde::Serialize;

use super::app::{self, SharedTally};
use super::flows::{Flows, Recorded, Recorder};
use super::uncontrolled;
use super::{Cpu, Latency, MAX_HOSTS, ScenarioError, Traffic};
use super::{
    check, check_time, check_warm_up, control_name, data_per_packet, per_second, recovery_name,
    wire_bytes, wire_ns,
};
use crate::declare::parameter::named;
use courser_sim::fabric::{Buffer, HOST_RATE_BPS, SWITCH_LATENCY_NS, Topology};
use courser_sim::observe::{DropReason, Tap, Times};
use courser_sim::{HostId, NicConfig, World, WorldConfig};

/// The server's host.
const SERVER: HostId = HostId(0);

/// The network of an incast.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// All hosts at one switch.
    OneSwitch,
    /// The paper's cluster, [`Topology::cx4`].
    Cx4,
}

named!(Network {
    Network::OneSwitch => "one-switch", "All hosts at one switch";
    Network::Cx4 => "cx4", "The paper's cluster: five racks";
});

/// Settings of the experiment. The defaults are those of `[eRPC §6.5]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// Decides all random choices.
    pub seed: u64,
    /// The network.
    pub network: Network,
    /// Clients, N: 1 to 999. Default 20.
    pub senders: u32,
    /// Credits of each session, C. Default 32.
    pub credits: u32,
    /// Largest datagram payload, bytes: 304 to 9,000. Default 1,472.
    pub max_frame: usize,
    /// Bytes of a request, at most 8 MiB, and 960 MiB for all senders, since the server stores them
    /// all; rounded down to full packets. Default 8 MiB.
    pub request_bytes: usize,
    /// Congestion control of the clients and the server. Default none.
    #[serde(serialize_with = "control_name")]
    pub control: Control,
    /// Loss recovery. Default go-back-N, as in the paper; without congestion control others consider
    /// packets lost that are only queued.
    #[serde(serialize_with = "recovery_name")]
    pub recovery: Recovery,
    /// The switches' buffers; `None`: 12 MB with alpha 8, as [`Buffer::default`].
    #[serde(skip)]
    pub buffer: Option<Buffer>,
    /// The CPUs. Default: no CPU costs.
    pub cpu: Cpu,
    /// Warm-up, ns. Default 10 ms.
    pub warm_up_ns: u64,
    /// Measured time, ns. Default 20 ms.
    pub time_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 1,
            network: Network::OneSwitch,
            senders: 20,
            credits: 32,
            max_frame: 1_472,
            request_bytes: 8 << 20,
            control: Control::None,
            recovery: Recovery::GoBackN,
            buffer: None,
            cpu: Cpu::None,
            warm_up_ns: 10_000_000,
            time_ns: 20_000_000,
        }
    }
}

impl Settings {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let (senders, credits) = (self.senders, self.credits);
        check((1..MAX_HOSTS).contains(&senders), "senders", senders, "1 to 999")?;
        check((1..=65_535).contains(&credits), "credits", credits, "1 to 65,535")?;
        let frame = self.max_frame;
        check((304..=9_000).contains(&frame), "max_frame", frame as u64, "304 to 9,000 bytes")?;
        let (bytes, packet) = (self.request_bytes, data_per_packet(frame));
        let range = "one packet to 8 MiB, 960 MiB for all senders";
        let held = bytes as u64 * u64::from(senders);
        let fits = (packet..=8 << 20).contains(&bytes) && held <= 960 << 20;
        check(fits, "request_bytes", bytes as u64, range)?;
        check_time(self.time_ns)?;
        check_warm_up(self.warm_up_ns)
    }

    /// The network that it runs on.
    pub fn topology(&self) -> Topology {
        let hosts = self.senders + 1;
        let topology = match self.network {
            Network::OneSwitch => Topology::one_switch(hosts),
            Network::Cx4 => Topology::cx4(hosts),
        };
        match self.buffer {
            None => topology,
            Some(buffer) => topology.each_switch(|_, switch| switch.buffer = buffer),
        }
    }

    /// Data bytes of a packet.
    pub fn packet_data(&self) -> usize {
        data_per_packet(self.max_frame)
    }
}

/// Results of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// Data that the server has accepted, bit/s.
    pub goodput_bps: u64,
    /// Goodput of a link that is never idle.
    pub expected_goodput_bps: u64,
    /// Round trips measured by the clients: every sample.
    pub rtt: Latency,
    /// Calls that ended in the measured time, from call to completion: the time that packets wait
    /// at their sender is included.
    pub completion: Latency,
    /// N C packets, each with its time on the server's link, ns.
    pub expected_rtt_ns: u64,
    /// Largest number of bytes in the queue of the server's link.
    pub queue_max_bytes: u64,
    /// Their mean.
    pub queue_mean_bytes: u64,
    /// The number that the queue exceeded in 1 % of the time.
    pub queue_p99_bytes: u64,
    /// Datagrams dropped anywhere.
    pub drops: u64,
    /// Bytes of the slowest sender as a share of the mean; 0: one sent nothing.
    pub slowest_share: f64,
    /// Jain's index of the senders' bytes.
    pub jain: f64,
    /// All counters.
    pub traffic: Traffic,
    /// The same from the end of the first round trip on, with the warm-up.
    #[serde(skip)]
    pub after_first_rtt: Traffic,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "super::hex")]
    pub digest: u64,
}

impl Outcome {
    /// Datagrams dropped by switches for lack of buffer.
    pub fn overflows(&self) -> u64 {
        self.traffic.dropped(DropReason::BufferFull)
    }
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &Settings, tap: Option<Box<dyn Tap>>) -> Result<Outcome, ScenarioError> {
    settings.check()?;
    let mut world = World::new(config(settings))?;
    let link = world.fabric().uplink(SERVER).reverse();
    let flows = Flows::new(SERVER, link);
    world.set_tap(Box::new(Recorder { flows: Rc::clone(&flows), inner: tap }));
    let tally = start(&mut world, settings)?;
    app::connect_all(&mut world)?;
    let first_rtt_ns = base_rtt_ns(settings).min(settings.warm_up_ns);
    world.run_for(Duration::from_nanos(first_rtt_ns));
    let first = Traffic::of(&mut world);
    world.run_for(Duration::from_nanos(settings.warm_up_ns - first_rtt_ns));
    let before = Traffic::of(&mut world);
    tally.borrow_mut().latency = Times::default();
    let begin_ns = world.now_ns();
    let queue_before = world.fabric().queue_counters(link, begin_ns);
    flows.borrow_mut().restart(begin_ns);
    world.run_for(Duration::from_nanos(settings.time_ns));
    tally.borrow().check()?;
    let now_ns = world.now_ns();
    let all = Traffic::of(&mut world);
    let traffic = all.since(&before);
    let queue = world.fabric().queue_counters(link, now_ns);
    let byte_ns = queue.byte_ns - queue_before.byte_ns;
    let mut outcome = result(settings, &flows, traffic, now_ns - begin_ns, now_ns);
    outcome.queue_max_bytes = queue.max_bytes;
    outcome.queue_mean_bytes = (byte_ns / u128::from(now_ns - begin_ns)) as u64;
    outcome.completion = Latency::from(&tally.borrow().latency);
    outcome.after_first_rtt = all.since(&first);
    outcome.digest = world.digest();
    Ok(outcome)
}

/// The result, without the counters of the queue, the completion times and the digest.
fn result(
    settings: &Settings,
    flows: &Recorded,
    traffic: Traffic,
    time_ns: u64,
    now_ns: u64,
) -> Outcome {
    let mut flows = flows.borrow_mut();
    let data = settings.packet_data();
    let packet_wire = wire_bytes(data);
    let in_flight = u64::from(settings.senders) * u64::from(settings.credits);
    let goodput = u128::from(HOST_RATE_BPS) * data as u128 / u128::from(packet_wire);
    let (jain, slowest_share) = flows.fairness(settings.senders);
    Outcome {
        goodput_bps: per_second(traffic.request_packets * data as u64 * 8, time_ns),
        expected_goodput_bps: goodput as u64,
        rtt: Latency::from(&flows.rtts),
        expected_rtt_ns: wire_ns(in_flight * packet_wire, HOST_RATE_BPS),
        queue_max_bytes: 0,
        queue_mean_bytes: 0,
        queue_p99_bytes: flows.queue_quantile_bytes(990, now_ns),
        drops: flows.drops,
        slowest_share,
        jain,
        completion: Latency::default(),
        traffic,
        after_first_rtt: Traffic::default(),
        digest: 0,
    }
}

fn config(settings: &Settings) -> WorldConfig {
    let mut config = uncontrolled(settings.seed, settings.topology());
    config.costs = settings.cpu.costs();
    config.nic.max_frame = settings.max_frame;
    // Descriptors for all packets that can arrive: losses occur only in switches.
    let in_flight = settings.senders as usize * settings.credits as usize;
    config.nic.rx_queue = (2 * in_flight).max(NicConfig::default().rx_queue);
    config.nexus.credits = Some(settings.credits);
    config.nexus.recovery = settings.recovery;
    config.nexus.control = settings.control;
    config.nexus.line_rate_bps = HOST_RATE_BPS;
    config.nexus.tuning.base_rtt = Duration::from_nanos(base_rtt_ns(settings));
    config.clocks_differ = false; // the recorder compares times of the clients with the world's
    config
}

/// The round trip of the idle network: two links and a switch each way, and the packet.
fn base_rtt_ns(settings: &Settings) -> u64 {
    let packet_ns = wire_ns(wire_bytes(settings.packet_data()), HOST_RATE_BPS);
    2 * (packet_ns + wire_ns(wire_bytes(0), HOST_RATE_BPS) + SWITCH_LATENCY_NS) + 60
}

fn start(world: &mut World, settings: &Settings) -> Result<SharedTally, ScenarioError> {
    let tally = SharedTally::default();
    world.start(SERVER, app::server)?;
    let uri = world.uri(SERVER);
    let packet = settings.packet_data();
    let bytes = settings.request_bytes / packet * packet;
    for host in world.hosts().filter(|&h| h != SERVER) {
        let (uri, tally) = (uri.clone(), Rc::clone(&tally));
        world.start(host, move |nexus| {
            app::closed_loop(nexus, &uri, app::SINK, bytes, 1, tally.clone())
        })?;
    }
    Ok(tally)
}
