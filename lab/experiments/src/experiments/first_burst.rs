//! The first burst of an incast: senders that were idle begin one request each at the same time.
//!
//! No sender has received its share, so that each sends what it may before the first answer.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Context, Nexus, Rpc};
use courser_bench::report::Unit;
use courser_kit::units::show_bytes;
use serde::Serialize;

use crate::declare::column::Column;
use crate::declare::parameter::{Nested, bytes, count, parameters, time};
use crate::declare::seeds::Row;
use crate::declare::special::Special;
use crate::declare::text::ns;
use crate::declare::{Experiment, Simulation, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::app;
use crate::scenario::flows::{Flows, Recorder};
use crate::scenario::hosts::Hosts;
use crate::scenario::{Latency, ScenarioError, data_per_packet, wire_bytes, wire_ns};
use courser_sim::SetupError;
use courser_sim::fabric::{Buffer, HOST_RATE_BPS, Topology};
use courser_sim::observe::{DropReason, Times};
use courser_sim::{HostId, World, WorldConfig};

pub(crate) const EXPERIMENT: Experiment<FirstBurst, Bursts> = Experiment {
    name: "first-burst",
    aliases: &[],
    about: "First requests of many idle senders to one server",
    run: Simulation::One(|settings, _| simulate(settings)),
    network: None,
    columns: COLUMNS,
    caption: |s, _| {
        format!(
            "First bursts of {} idle senders, {} of them with {} between; {}",
            s.senders,
            s.rounds,
            ns(s.idle_ns),
            s.hosts.caption(),
        )
    },
    table: Table::Columns,
    picture,
    recorded: &[],
    special: Special::NONE,
};

type Col = Column<FirstBurst, Bursts>;

const COLUMNS: &[Col] = &[
    Col::text("control, recovery", |s, _| s.hosts.names()),
    Col::text("request", |s, _| show_bytes(s.request_bytes as u64)),
    Col::text("buffer", |s, _| format!("{} kB", s.buffer_bytes / 1_000)),
    Col::figure("p50", Unit::Time, |_, o| Some(o.round.p50_ns as f64)),
    Col::figure("longest", Unit::Time, |_, o| Some(o.round.max_ns as f64)),
    Col::text("ideal", |s, _| ns(s.ideal_ns())),
    Col::figure("ratio", Unit::Plain, |_, o| Some(o.ratio)).digits(2),
    Col::figure("queue", Unit::Bytes, |_, o| Some(o.queue_max_bytes as f64)),
    Col::figure("drops", Unit::Count, |_, o| Some(o.overflows as f64)),
];

/// The longest and the median burst, as multiples of the ideal time.
fn picture(rows: &[Row<FirstBurst, Bursts>]) -> Chart {
    let request = Axis::log("request", Unit::Bytes);
    let ideal = Axis::linear("burst / its ideal time", Unit::Plain);
    let senders = rows.first().map_or(0, |(s, _)| s.senders);
    let title = format!("First bursts of {senders} idle senders, by control and recovery");
    let mut chart = Chart::lines(title, request, ideal);
    for (s, o) in rows {
        let name = format!("{}, {} kB", s.hosts.names(), s.buffer_bytes / 1_000);
        let (x, ideal_ns) = (s.request_bytes as f64, o.ideal_ns.max(1) as f64);
        chart.line(Style::Main, format!("{name}: longest")).points.push((x, o.ratio));
        let median = o.round.p50_ns as f64 / ideal_ns;
        chart.line(Style::Second, format!("{name}: p50")).points.push((x, median));
    }
    chart
}

/// The server's host.
const SERVER: HostId = HostId(0);

/// Longest time of a round, ns.
const ROUND_MAX_NS: u64 = 2_000_000_000;

parameters! {
    /// Settings of the experiment.
    #[derive(Copy, Eq)]
    pub struct FirstBurst {
        /// All hosts
        hosts: Hosts = Hosts::default(), Nested;
        /// Senders
        senders: u32 = 100, count(1..=999).option("senders");
        /// Switch buffers of each port in bytes, with commas
        buffer_bytes: u64 = 480_000, bytes(1..=u64::MAX).option("buffer-bytes").each("480000");
        /// Bytes of a request, with commas
        request_bytes: usize = 64_000,
            bytes(1..=1 << 20).option("size").each("1000,4000,64000");
        /// Bursts, with 150 ms between them
        rounds: u32 = 10, count(1..=1_000).option("rounds");
        /// Time between two rounds in which all are idle: longer than a sender keeps its estimates
        idle_ns: u64 = 150_000_000, time(0..=1_000_000_000);
    }
}

impl FirstBurst {
    fn config(&self) -> WorldConfig {
        let buffer = Buffer::PerPort { bytes: self.buffer_bytes };
        let topology = Topology::one_switch(self.senders + 1);
        let topology = topology.each_switch(|_, switch| switch.buffer = buffer);
        self.hosts.config(topology, self.senders)
    }

    /// All requests on the server's link, and an idle round trip with a small response, ns.
    pub fn ideal_ns(&self) -> u64 {
        let data = data_per_packet(self.hosts.max_frame);
        let (whole, rest) = (self.request_bytes / data, self.request_bytes % data);
        let last = if rest == 0 { 0 } else { wire_bytes(rest) };
        let request = whole as u64 * wire_bytes(data) + last;
        // Two NICs, two cables and a switch each way, as the presets have them.
        let way_ns = 2 * 400 + 2 * 15 + 300;
        let answer_ns = wire_ns(wire_bytes(32), HOST_RATE_BPS);
        // The switch is cut-through, so that a packet takes its time once, in the sum.
        wire_ns(request * u64::from(self.senders), HOST_RATE_BPS) + 2 * way_ns + answer_ns
    }
}

/// Results of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Bursts {
    /// From the first request of a round to its last response.
    pub round: Latency,
    /// Calls, from call to completion.
    pub completion: Latency,
    /// All requests on the server's link, and an idle round trip, ns.
    pub ideal_ns: u64,
    /// The longest round as a multiple of that.
    pub ratio: f64,
    /// Largest number of bytes in the queue of the server's link.
    pub queue_max_bytes: u64,
    /// Datagrams dropped by the switch for lack of buffer.
    pub overflows: u64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

/// Calls of a round that have not ended, the times of those that have, and the first error.
#[derive(Debug, Default)]
struct Round {
    left: u32,
    last_ns: u64,
    times: Times,
    error: Option<String>,
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &FirstBurst) -> Result<Bursts, ScenarioError> {
    EXPERIMENT.once(settings, None)
}

fn simulate(settings: &FirstBurst) -> Result<Bursts, ScenarioError> {
    let mut world = World::new(settings.config())?;
    let link = world.fabric().uplink(SERVER).reverse();
    let flows = Flows::new(SERVER, link);
    world.set_tap(Box::new(Recorder { flows: Rc::clone(&flows), inner: None }));
    world.start(SERVER, app::server)?;
    let uri = world.uri(SERVER);
    for host in (1..=settings.senders).map(HostId) {
        let uri = uri.clone();
        world.start(host, move |nexus: &Nexus| -> Result<Rpc, SetupError> {
            let mut rpc = nexus.endpoint()?;
            rpc.connect(&uri)?;
            Ok(rpc)
        })?;
    }
    app::connect_all(&mut world)?;
    let (mut rounds, mut times) = (Times::default(), Times::default());
    flows.borrow_mut().restart(world.now_ns());
    for _ in 0..settings.rounds {
        rounds.record(one_round(&mut world, settings, &mut times)?);
        world.run_for(Duration::from_nanos(settings.idle_ns));
    }
    let queue_max_bytes = flows.borrow_mut().queue_quantile_bytes(1_000, world.now_ns());
    let ideal_ns = settings.ideal_ns();
    let round = Latency::from(&rounds);
    Ok(Bursts {
        ratio: round.max_ns as f64 / ideal_ns as f64,
        round,
        completion: Latency::from(&times),
        ideal_ns,
        queue_max_bytes,
        overflows: world.fabric().drops()[DropReason::BufferFull as usize],
        digest: world.digest(),
    })
}

/// A call of each sender at once. Returns the time until all have ended.
fn one_round(
    world: &mut World,
    settings: &FirstBurst,
    times: &mut Times,
) -> Result<u64, ScenarioError> {
    let failed = |first: String| ScenarioError::Calls { count: 1, first };
    let round = Rc::new(RefCell::new(Round::default()));
    let begin_ns = world.now_ns();
    for host in (1..=settings.senders).map(HostId) {
        let ended = Rc::clone(&round);
        let rpc = world.rpc(host);
        let begin_ns = rpc.context().now_ns();
        let request =
            app::message(rpc, settings.request_bytes).map_err(|e| failed(e.to_string()))?;
        let session = rpc.sessions_from(0).next();
        let session = session.ok_or_else(|| failed("a session has ended".to_owned()))?;
        round.borrow_mut().left += 1;
        let done = move |cx: &mut Context<'_>, done: courser::Completion<'_>| {
            let mut round = ended.borrow_mut();
            round.left -= 1;
            round.last_ns = cx.now_ns() - begin_ns;
            round.times.record(cx.now_ns() - begin_ns);
            if let Err(error) = &done.result {
                round.error.get_or_insert_with(|| error.to_string());
            }
        };
        let call = world.rpc(host).call(session, app::SINK, request, done);
        call.map_err(|rejected| failed(rejected.reason.to_string()))?;
    }
    let left = || round.borrow().left;
    while left() > 0 && world.now_ns() < begin_ns + ROUND_MAX_NS {
        world.run_for(Duration::from_micros(10));
    }
    let round = round.borrow();
    times.merge(&round.times);
    match round.error.clone().or_else(|| (round.left > 0).then(|| "no answer in 2 s".to_owned())) {
        Some(first) => Err(failed(first)),
        None => Ok(round.last_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short() -> FirstBurst {
        let (senders, rounds, idle_ns) = (4, 2, 1_000_000);
        FirstBurst { senders, rounds, idle_ns, ..FirstBurst::default() }
    }

    #[test]
    fn a_burst_takes_at_least_the_ideal_time() {
        for request_bytes in [100, 1_028, 64_000] {
            let settings = FirstBurst { request_bytes, ..short() };
            let seen = run(&settings).expect("runs");
            assert_eq!((seen.round.count, seen.completion.count), (2, 8));
            // Times on cables are rounded packet by packet.
            assert!(seen.round.min_ns + 10 >= seen.ideal_ns && seen.ratio < 1.5, "{seen:?}");
            assert_eq!(run(&settings).expect("runs"), seen);
        }
    }
}
