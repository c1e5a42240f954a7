//! Cost of multi-packet responses `[eRPC §5.1]` (E44): the server sends a response's first packet
//! unprompted, the others when they are requested, one round trip later.
//!
//! One host calls another, one call at a time. L(k) is the time of a call whose response has k full
//! packets. Without requests-for-response the packets would follow each other at the rate of the
//! cable: L(1) + (k - 1) s, with s the time of a packet on the slowest cable. The extra is the time
//! beyond that, in units of the round trip L(1), which like that of a request-for-response has a
//! small packet one way and a full one back.

use courser::{Nexus, SessionId};
use courser_bench::report::Unit;
use courser_sim::fabric::{CableSpec, HOST_RATE_BPS, Topology};
use courser_sim::{HostId, World};
use serde::Serialize;
use serde_json::json;

use crate::declare::column::Column;
use crate::declare::parameter::{count, flag, name, parameters, rate};
use crate::declare::points::{self, Better, Figure, Paper, Stated, TIGHT};
use crate::declare::seeds::Row;
use crate::declare::special::{Results, Special};
use crate::declare::text::{bps, ns};
use crate::declare::{Experiment, Observer, Recorded, Simulation, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::{
    Cpu, ScenarioError, app, data_per_packet, observed, uncontrolled, wire_bytes, wire_ns,
};

pub(crate) const EXPERIMENT: Experiment<ResponseRtt, Response> = Experiment {
    name: "response-rtt",
    aliases: &[],
    about: "Latency that a response of several packets adds [eRPC §5.1]",
    run: Simulation::Observed(simulate),
    network: Some(ResponseRtt::topology),
    columns: COLUMNS,
    caption: |s, p| {
        format!(
            "{} cables, {}, {} CPUs: a call of 32 B takes {}, one with a response of a full packet \
             {} (1 RTT)",
            bps(s.rate_bps),
            s.racks(),
            s.cpu.name(),
            ns(p.idle.small_ns),
            ns(p.idle.rtt_ns),
        )
    },
    table: Table::Columns,
    picture,
    recorded: &[Recorded {
        id: "E44",
        results: include_str!("../../recorded/E44.json"),
        title: "Cost of responses of several packets",
        source: "eRPC section 5.1",
        model: "One call at a time with CPUs as fast as the paper's. The extra is beyond a call with \
            one full packet back and the other packets as fast as the cable takes them.",
        axis: points::Axis { label: "packets of the response", unit: Unit::Count, log: false },
        x: |_, p| p.packets.into(),
        series: |s, _| match s.rate_bps {
            HOST_RATE_BPS => s.racks().to_owned(),
            rate_bps => format!("{}, {} Gbit/s", s.racks(), rate_bps / 1_000_000_000),
        },
        only: &[],
        runs: |_| {
            let default = ResponseRtt::default();
            let slow = ResponseRtt { rate_bps: 5_000_000_000, ..default };
            vec![default, slow, ResponseRtt { two_racks: true, ..default }]
        },
        more: |_, _| {},
        paper: PAPER,
    }],
    special: Special { results: Results::Together(together), ..Special::NONE },
};

const ROUND_TRIPS: &str = "extra, round trips";
const OF_THE_CALL: &str = "extra, share of the call";

const PAPER: &[Paper] = &[
    Paper::new(ROUND_TRIPS, "one rack", None, Stated::AtMost(1.0)),
    Paper::new(ROUND_TRIPS, "two racks", None, Stated::AtMost(1.0)),
    Paper::new(OF_THE_CALL, "one rack", Some(4.0), Stated::AtMost(0.2)).because(
        "The share is (RTT - s) / (2 RTT + (k - 2) s) with a packet's time s: 20 % take 16 packets \
         at 25 Gbit/s, or a cable of 5 Gbit/s.",
    ),
    Paper::new(OF_THE_CALL, "one rack, 5 Gbit/s", Some(4.0), Stated::AtMost(0.2)),
];

type Col = Column<ResponseRtt, Response>;

const COLUMNS: &[Col] = &[
    Col::text("packets", |_, p| p.packets.to_string()),
    Col::figure("call", Unit::Time, |_, p| Some(p.latency_ns as f64)),
    Col::figure("without RFRs", Unit::Time, |_, p| Some(p.without_rfr_ns as f64)),
    Col::figure("extra", Unit::Time, |_, p| Some(p.extra_ns as f64)),
    Col::figure("in RTTs", Unit::Plain, |_, p| Some(p.extra_rtt_ppm as f64 / 1e6))
        .digits(2)
        .recorded_as(points::quantity(ROUND_TRIPS, Unit::Plain, TIGHT), |_, p| {
            p.is_recorded().then_some(p.extra_rtt_ppm as f64 / 1e6)
        })
        .better(Better::Lower),
    Col::figure("of the call", Unit::Percent, |_, p| Some(p.extra_share_ppm as f64 / 1e6))
        .recorded_as(points::quantity(OF_THE_CALL, Unit::Percent, TIGHT), |_, p| {
            p.is_recorded().then_some(p.extra_share_ppm as f64 / 1e6)
        })
        .better(Better::Lower)
        .drawn(Figure::Linear),
];

/// The result in JSON.
fn together(_: &ResponseRtt, points: &[&Response]) -> serde_json::Value {
    let mut result = json!(points.first().map(|point| point.idle));
    result["points"] = json!(points);
    result
}

/// Latency by the packets of the response.
fn picture(rows: &[Row<ResponseRtt, Response>]) -> Chart {
    let network = |s: &ResponseRtt| format!("{}, {}", bps(s.rate_bps), s.racks());
    let network = rows.first().map(|(s, _)| network(s)).unwrap_or_default();
    let mut chart = Chart::lines(
        format!("Calls with large responses, {network}"),
        Axis::linear("packets of the response", Unit::Count),
        Axis::linear("latency", Unit::Time),
    );
    for (_, p) in rows {
        let x = f64::from(p.packets);
        chart.line(Style::Main, "simulated").points.push((x, p.latency_ns as f64));
        let without = chart.line(Style::Calculated, "calculated, without RFRs");
        without.points.push((x, p.without_rfr_ns as f64));
    }
    chart
}

const SERVER: HostId = HostId(0);
const CLIENT: HostId = HostId(1);

parameters! {
    /// Settings of the experiment.
    #[derive(Copy, Eq)]
    pub struct ResponseRtt {
        /// Decides all random choices.
        seed: u64 = 1, count(0..=u64::MAX);
        /// Packets of the largest response
        max_packets: u32 = 32, count(1..=1_000).option("max-packets");
        /// Credits of the session. By default all packets of a response are requested at once.
        credits: u32 = 32, count(1..=65_535);
        /// Rate of the hosts' cables, Gbit/s
        rate_bps: u64 = HOST_RATE_BPS, rate(1_000_000_000..=100_000_000_000).option("gbps");
        /// Put the hosts into two racks instead of one
        two_racks: bool = false, flag().option("two-racks");
        /// Model of CPU costs
        cpu: Cpu = Cpu::Erpc, name::<Cpu>().option("cpu");
    }
}

/// Calls without queueing, from which the cost of a response is calculated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Idle {
    /// A call with 32 bytes each way, ns.
    pub small_ns: u64,
    /// L(1), the unit of the extras, ns.
    pub rtt_ns: u64,
    /// Time of a full packet on a host's cable, ns.
    pub packet_ns: u64,
}

/// One size of response.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Response {
    /// Calls of the same run without queueing.
    #[serde(skip)]
    pub idle: Idle,
    /// Packets of the response, k.
    pub packets: u32,
    /// L(k), ns.
    pub latency_ns: u64,
    /// L(1) + (k - 1) s, ns.
    pub without_rfr_ns: u64,
    /// The difference, ns.
    pub extra_ns: u64,
    /// The difference in round trips, per million.
    pub extra_rtt_ppm: u64,
    /// The difference as a part of L(k), per million.
    pub extra_share_ppm: u64,
}

impl Response {
    fn is_recorded(&self) -> bool {
        [2, 4, 8, 16, 32].contains(&self.packets)
    }
}

impl ResponseRtt {
    fn racks(&self) -> &'static str {
        if self.two_racks { "two racks" } else { "one rack" }
    }

    /// The network: two hosts at one top-of-rack switch, or at two with three switches between them.
    fn topology(&self) -> Topology {
        let topology = if self.two_racks { Topology::cx4(5) } else { Topology::one_switch(2) };
        let rate_bps = self.rate_bps;
        topology.each_cable(|cable| {
            if cable.spec == CableSpec::default() {
                cable.spec.rate_bps = rate_bps;
            }
        })
    }
}

/// Runs it; returns a result for each size of response.
///
/// # Errors
/// A setting is out of range, the session was not connected, or a call has failed.
pub fn run(settings: &ResponseRtt) -> Result<Vec<Response>, ScenarioError> {
    EXPERIMENT.all(settings, &mut |_, _| {})
}

fn simulate(settings: &ResponseRtt, observer: Observer) -> Result<Vec<Response>, ScenarioError> {
    let mut config = uncontrolled(settings.seed, settings.topology());
    config.costs = settings.cpu.costs();
    config.nexus.credits = Some(settings.credits);
    let packet = data_per_packet(config.nic.max_frame);
    let mut world = observed(World::new(config)?, observer);
    world.start(SERVER, app::sized_server)?;
    world.start(CLIENT, Nexus::endpoint)?;
    let uri = world.uri(SERVER);
    let connected = world.rpc(CLIENT).connect(&uri);
    let session = connected.map_err(|e| ScenarioError::Calls { count: 1, first: e.to_string() })?;
    app::connect_all(&mut world)?;
    let packet_bytes = wire_bytes(packet);
    let idle = Idle {
        small_ns: settled(&mut world, session, 32)?,
        rtt_ns: settled(&mut world, session, packet)?,
        packet_ns: wire_ns(packet_bytes, settings.rate_bps),
    };
    let mut points = Vec::with_capacity(settings.max_packets as usize);
    for packets in 1..=settings.max_packets {
        let latency_ns = settled(&mut world, session, packets as usize * packet)?;
        let more = wire_ns(u64::from(packets - 1) * packet_bytes, settings.rate_bps);
        let without_rfr_ns = idle.rtt_ns + more;
        let extra_ns = latency_ns.saturating_sub(without_rfr_ns);
        points.push(Response {
            idle,
            packets,
            latency_ns,
            without_rfr_ns,
            extra_ns,
            extra_rtt_ppm: extra_ns * 1_000_000 / idle.rtt_ns,
            extra_share_ppm: extra_ns * 1_000_000 / latency_ns,
        });
    }
    Ok(points)
}

/// Time of a call for `bytes` bytes. The first of its kind is discarded: it may allocate memory.
fn settled(world: &mut World, session: SessionId, bytes: usize) -> Result<u64, ScenarioError> {
    let mut request = [0; 32];
    request[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
    app::one_call(world, CLIENT, session, app::WANT, &request)?;
    app::one_call(world, CLIENT, session, app::WANT, &request)
}
