//! Response fan-in: one client asks many servers at once, and all responses meet at its link.
//!
//! A client requests the packets of a response after the first, so its own budget decides how many
//! of all servers are in flight. Without congestion control each session requests as many as it has
//! credits for.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Control, Nexus, Recovery, SessionId};
use courser_bench::report::Unit;
use courser_kit::units::show_bytes;
use courser_sim::fabric::{Buffer, HOST_RATE_BPS, Topology};
use courser_sim::observe::{Tap, Times};
use courser_sim::{HostId, NicConfig, World};
use serde::Serialize;

use crate::declare::column::Column;
use crate::declare::parameter::{bytes, count, name, parameters};
use crate::declare::points::{self, SHARE, TIME};
use crate::declare::seeds::Row;
use crate::declare::special::Special;
use crate::declare::{Experiment, Recorded, Simulation, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::app;
use crate::scenario::flows::{Flows, Recorder};
use crate::scenario::{
    Latency, OWN_AND_NONE, ScenarioError, data_per_packet, uncontrolled, wire_bytes, wire_ns,
};

pub(crate) const EXPERIMENT: Experiment<FanIn, Rounds> = Experiment {
    name: "fan-in",
    aliases: &[],
    about: "Responses of many servers to one client at once",
    run: Simulation::One(simulate),
    network: None,
    columns: COLUMNS,
    caption: |s, _| {
        let response = show_bytes(s.response_bytes as u64);
        format!(
            "responses of {response} to one client, {} rounds, {}, 480 kB of switch buffer",
            s.rounds, s.recovery
        )
    },
    table: Table::Columns,
    picture,
    recorded: &[Recorded {
        id: "fan-in",
        results: include_str!("../../recorded/fan-in.json"),
        title: "Responses of many servers to one client",
        source: "Courser ADR 35",
        model: "Servers at one switch with 25 Gbit/s and 480 kB for each port; a client calls all \
            of them at once, and each answers 64 kB. 32 credits, frames of 1,072 bytes, CPUs that \
            take no time. Calculated: all responses on the client's link, and an idle round trip.",
        axis: points::Axis { label: "servers", unit: Unit::Count, log: true },
        x: |s, _| s.servers.into(),
        series: |s, _| s.control.name().to_owned(),
        only: &[],
        runs: |size| {
            let rounds = size.pick(3, 10);
            let of = |control, servers| FanIn { control, servers, rounds, ..FanIn::default() };
            let servers = size.pick(&[20][..], &[20, 100]);
            OWN_AND_NONE.iter().flat_map(|&c| servers.iter().map(move |&n| of(c, n))).collect()
        },
        more: |_, _| {},
        paper: &[],
    }],
    special: Special::NONE,
};

type Col = Column<FanIn, Rounds>;

const COLUMNS: &[Col] = &[
    Col::text("control", |s, _| s.control.name().to_owned()),
    Col::text("servers", |s, _| s.servers.to_string()),
    Col::figure("p50", Unit::Time, |_, o| Some(o.completion.p50_ns as f64))
        .recorded_as(points::quantity("median round / calculated", Unit::Plain, SHARE), |_, o| {
            Some(o.ratio(o.completion.p50_ns))
        }),
    Col::figure("longest", Unit::Time, |_, o| Some(o.completion.max_ns as f64)),
    Col::figure("calculated", Unit::Time, |_, o| Some(o.expected_ns as f64)),
    Col::figure("ratio", Unit::Plain, |_, o| Some(o.ratio(o.completion.max_ns)))
        .digits(2)
        .recorded("longest round / calculated", SHARE),
    Col::figure("queue", Unit::Bytes, |_, o| Some(o.queue_max_bytes as f64)),
    Col::figure("drops", Unit::Count, |_, o| Some(o.drops as f64)).recorded("drops", TIME),
];

/// Completion as a multiple of the calculated time, by servers.
fn picture(rows: &[Row<FanIn, Rounds>]) -> Chart {
    let mut chart = Chart::lines(
        "Responses of many servers to one client, by control and recovery",
        Axis::log("servers", Unit::Count),
        Axis::linear("completion / calculated", Unit::Plain),
    );
    for (s, o) in rows {
        let name = format!("{}, {}", s.control.name(), s.recovery);
        for (style, of, ns) in [
            (Style::Main, "longest", o.completion.max_ns),
            (Style::Second, "p50", o.completion.p50_ns),
        ] {
            let line = chart.line(style, format!("{name}: {of}"));
            line.points.push((s.servers.into(), o.ratio(ns)));
        }
    }
    chart
}

/// The client's host.
const CLIENT: HostId = HostId(0);
/// Longest time of a round, ns.
const ROUND_MAX_NS: u64 = 1_000_000_000;
/// Time between two rounds, ns.
const PAUSE_NS: u64 = 1_000_000;

parameters! {
    /// Settings of the experiment.
    #[derive(Copy, Eq)]
    pub struct FanIn {
        /// Decides all random choices.
        seed: u64 = 1, count(0..=u64::MAX);
        /// Congestion controls, with commas
        control: Control = Control::default(), name::<Control>().option("control").each("none,default");
        /// Numbers of servers, with commas
        servers: u32 = 100, count(1..=999).option("servers").each("20,100");
        /// Loss recovery
        recovery: Recovery = Recovery::default(), name::<Recovery>().option("recovery");
        /// Bytes of a response
        response_bytes: usize = 64_000, bytes(1..=8 << 20).option("size");
        /// Calls to each server, one after the other
        rounds: u32 = 20, count(1..=10_000).option("rounds");
        /// Credits of each session
        credits: u32 = 32, count(1..=65_535);
        /// Largest datagram payload
        max_frame: usize = 1_072, bytes(304..=9_000);
        /// The switch's buffer
        buffer: Buffer = Buffer::PerPort { bytes: 480_000 };
    }
}

/// Results of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Rounds {
    /// From the first call of a round to its last response.
    pub completion: Latency,
    /// All responses on the client's link, and an idle round trip before them.
    pub expected_ns: u64,
    /// Datagrams dropped anywhere.
    pub drops: u64,
    /// Largest number of bytes in the queue of the client's link.
    pub queue_max_bytes: u64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

impl Rounds {
    /// A time as a multiple of the calculated one.
    fn ratio(&self, ns: u64) -> f64 {
        ns as f64 / self.expected_ns.max(1) as f64
    }
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
pub fn run(settings: &FanIn) -> Result<Rounds, ScenarioError> {
    EXPERIMENT.once(settings, None)
}

fn simulate(settings: &FanIn, tap: Option<Box<dyn Tap>>) -> Result<Rounds, ScenarioError> {
    let bytes = settings.response_bytes as u64;
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
    Ok(Rounds {
        completion: Latency::from(&times),
        expected_ns: wire_ns(headers + data, HOST_RATE_BPS) + idle_ns(settings),
        drops,
        queue_max_bytes,
        digest: world.digest(),
    })
}

/// A round trip of a small request and a full packet: two links and a switch each way.
fn idle_ns(settings: &FanIn) -> u64 {
    let packet = wire_bytes(data_per_packet(settings.max_frame));
    let way = |bytes| 2 * wire_ns(bytes, HOST_RATE_BPS) + 600;
    way(wire_bytes(32)) + way(packet)
}

fn config(settings: &FanIn) -> courser_sim::WorldConfig {
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
    config.clocks_differ = false; // as the recorder requires
    config
}

fn failed(error: &impl ToString) -> ScenarioError {
    ScenarioError::Calls { count: 1, first: error.to_string() }
}

fn connect(world: &mut World, settings: &FanIn) -> Result<Vec<SessionId>, ScenarioError> {
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
    settings: &FanIn,
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
