//! Response fan-in: one client asks many servers at once, and all responses meet at its link.
//!
//! A client requests the packets of a response after the first, so its own budget decides how many
//! of all servers are in flight. Without congestion control each session requests as many as it has
//! credits for.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Control, Nexus, Recovery, SessionId};
use serde::Serialize;

use super::app;
use super::flows::{Flows, Recorder};
use super::uncontrolled;
use super::{
    Latency, MAX_HOSTS, ScenarioError, check, control_name, data_per_packet, recovery_name,
    wire_bytes, wire_ns,
};
use courser_sim::fabric::{Buffer, HOST_RATE_BPS, Topology};
use courser_sim::observe::{Tap, Times};
use courser_sim::{HostId, NicConfig, World};

/// The client's host.
const CLIENT: HostId = HostId(0);
/// Longest time of a round, ns.
const ROUND_MAX_NS: u64 = 1_000_000_000;
/// Time between two rounds, ns.
const PAUSE_NS: u64 = 1_000_000;

/// Settings of the experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// Decides all random choices.
    pub seed: u64,
    /// Servers: 1 to 999. Default 100.
    pub servers: u32,
    /// Bytes of a response. Default 64 kB.
    pub response_bytes: usize,
    /// Rounds of a call to each server. Default 20.
    pub rounds: u32,
    /// Credits of each session, C. Default 32.
    pub credits: u32,
    /// Largest datagram payload, bytes. Default 1,072.
    pub max_frame: usize,
    /// Congestion control of all hosts.
    #[serde(serialize_with = "control_name")]
    pub control: Control,
    /// Loss recovery.
    #[serde(serialize_with = "recovery_name")]
    pub recovery: Recovery,
    /// The switch's buffer. Default 480 kB for each port.
    #[serde(skip)]
    pub buffer: Buffer,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 1,
            servers: 100,
            response_bytes: 64_000,
            rounds: 20,
            credits: 32,
            max_frame: 1_072,
            control: Control::default(),
            recovery: Recovery::default(),
            buffer: Buffer::PerPort { bytes: 480_000 },
        }
    }
}

/// Results of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// From the first call of a round to its last response.
    pub completion: Latency,
    /// All responses on the client's link, and an idle round trip before them.
    pub expected_ns: u64,
    /// Datagrams dropped anywhere.
    pub drops: u64,
    /// Largest number of bytes in the queue of the client's link.
    pub queue_max_bytes: u64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "super::hex")]
    pub digest: u64,
}

/// Calls of a round that have not ended, and the first error.
#[derive(Debug, Default)]
struct Round {
    left: u32,
    error: Option<String>,
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &Settings, tap: Option<Box<dyn Tap>>) -> Result<Outcome, ScenarioError> {
    check((1..MAX_HOSTS).contains(&settings.servers), "servers", settings.servers, "1 to 999")?;
    let bytes = settings.response_bytes as u64;
    check((1..=8 << 20).contains(&bytes), "response_bytes", bytes, "1 byte to 8 MiB")?;
    check((1..=10_000).contains(&settings.rounds), "rounds", settings.rounds, "1 to 10,000")?;
    let mut world = World::new(config(settings))?;
    let link = world.fabric().uplink(CLIENT).reverse();
    let flows = Flows::new(CLIENT, link);
    world.set_tap(Box::new(Recorder { flows: Rc::clone(&flows), inner: tap }));
    let sessions = connect(&mut world, settings)?;
    let mut times = Times::default();
    // The first round is a warm-up: servers and client allocate memory.
    for round in 0..=settings.rounds {
        let took_ns = one_round(&mut world, settings, &sessions)?;
        match round {
            0 => flows.borrow_mut().restart(world.now_ns()),
            _ => times.record(took_ns),
        }
        world.run_for(Duration::from_nanos(PAUSE_NS));
    }
    let packet = data_per_packet(settings.max_frame);
    let packets = settings.response_bytes.div_ceil(packet) as u64;
    let headers = wire_bytes(0) * packets * u64::from(settings.servers);
    let data = bytes * u64::from(settings.servers);
    let queue_max_bytes = flows.borrow_mut().queue_quantile_bytes(1_000, world.now_ns());
    let drops = flows.borrow().drops;
    Ok(Outcome {
        completion: Latency::from(&times),
        expected_ns: wire_ns(headers + data, HOST_RATE_BPS) + idle_ns(settings),
        drops,
        queue_max_bytes,
        digest: world.digest(),
    })
}

/// A round trip of a small request and a full packet: two links and a switch each way.
fn idle_ns(settings: &Settings) -> u64 {
    let packet = wire_bytes(data_per_packet(settings.max_frame));
    let way = |bytes| 2 * wire_ns(bytes, HOST_RATE_BPS) + 600;
    way(wire_bytes(32)) + way(packet)
}

fn config(settings: &Settings) -> courser_sim::WorldConfig {
    let topology = Topology::one_switch(settings.servers + 1);
    let buffer = settings.buffer;
    let topology = topology.each_switch(|_, switch| switch.buffer = buffer);
    let mut config = uncontrolled(settings.seed, topology);
    config.nic.max_frame = settings.max_frame;
    let in_flight = settings.servers as usize * settings.credits as usize;
    config.nic.rx_queue = (2 * in_flight).max(NicConfig::default().rx_queue);
    config.nexus.credits = Some(settings.credits);
    config.nexus.control = settings.control;
    config.nexus.recovery = settings.recovery;
    config.nexus.line_rate_bps = HOST_RATE_BPS;
    config.clocks_differ = false; // as the recorder requires
    config
}

fn failed(error: &impl ToString) -> ScenarioError {
    ScenarioError::Calls { count: 1, first: error.to_string() }
}

fn connect(world: &mut World, settings: &Settings) -> Result<Vec<SessionId>, ScenarioError> {
    let servers = || (1..=settings.servers).map(HostId);
    for host in servers() {
        world.start(host, app::sized_server)?;
    }
    world.start(CLIENT, Nexus::endpoint)?;
    let mut sessions = Vec::new();
    for host in servers() {
        let uri = world.uri(host);
        let connected = world.rpc(CLIENT).connect(&uri);
        sessions.push(connected.map_err(|e| failed(&e))?);
    }
    app::connect_all(world)?;
    Ok(sessions)
}

/// A call to each server at once. Returns the time until all have ended.
fn one_round(
    world: &mut World,
    settings: &Settings,
    sessions: &[SessionId],
) -> Result<u64, ScenarioError> {
    let round = Rc::new(RefCell::new(Round::default()));
    let begin_ns = world.now_ns();
    for &session in sessions {
        let ended = Rc::clone(&round);
        let mut request = app::message(world.rpc(CLIENT), 32).map_err(|e| failed(&e))?;
        request[..4].copy_from_slice(&(settings.response_bytes as u32).to_le_bytes());
        round.borrow_mut().left += 1;
        let call = world.rpc(CLIENT).call(session, app::WANT, request, move |_, done| {
            let mut round = ended.borrow_mut();
            round.left -= 1;
            if let Err(error) = &done.result {
                round.error.get_or_insert_with(|| error.to_string());
            }
        });
        call.map_err(|rejected| failed(&rejected.reason))?;
    }
    let left = || round.borrow().left;
    while left() > 0 && world.now_ns() < begin_ns + ROUND_MAX_NS {
        world.run_for(Duration::from_nanos(1_000));
    }
    let error = round.borrow().error.clone();
    match error.or_else(|| (left() > 0).then(|| "no answer in a second".to_owned())) {
        Some(first) => Err(ScenarioError::Calls { count: 1, first }),
        None => Ok(world.now_ns() - begin_ns),
    }
}
