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
use courser_bench::report::Unit;
use courser_kit::units::show_bytes;
use serde::Serialize;

use crate::declare::parameter::{Nested, bytes, count, flag, parameters, rate, time};
use crate::declare::seeds::{Cell, Row, Runs};
use crate::declare::special::Special;
use crate::declare::text::{bps, ns};
use crate::declare::{Experiment, Simulation, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::app::{self, SharedTally};
use crate::scenario::flows::{Flows, Recorder};
use crate::scenario::hosts::Hosts;
use crate::scenario::jitter::delay_at_receiver;
use crate::scenario::{Latency, ScenarioError, data_per_packet, per_second, wire_bytes, wire_ns};
use courser_sim::fabric::{CableSpec, Topology};
use courser_sim::{Checks, HostId, Rng, World, WorldConfig};

pub(crate) const EXPERIMENT: Experiment<OperatingRange, Point> = Experiment {
    name: "operating-range",
    aliases: &[],
    about: "Goodput of an incast by link rate, round trip, frame size and jitter",
    run: Simulation::One(|settings, _| simulate(settings)),
    network: None,
    columns: &[],
    caption: |s, _| {
        let know = if s.rate_known { "know" } else { "do not know" };
        format!("two BDPs of credits; hosts {know} the rate of their link")
    },
    table: Table::Other(table),
    picture,
    recorded: &[],
    special: Special::NONE,
};

type Points = [Row<OperatingRange, Point>];

/// A row for each rate and round trip; each frame size and jitter has a column with the lowest share
/// of all numbers of senders.
fn table(caption: &str, runs: &Runs<Row<OperatingRange, Point>>) -> String {
    let cases = runs.cases();
    let titles: Vec<String> = distinct(cases.iter().map(|(s, _)| column_of(s)))
        .map(|(frame, jitter_ns)| format!("{}, jitter {}", show_bytes(frame as u64), ns(jitter_ns)))
        .collect();
    let mut head = vec!["control, recovery", "rate", "base RTT"];
    head.extend(titles.iter().map(String::as_str));
    let mut senders: Vec<u32> = cases.iter().map(|(s, _)| s.senders).collect();
    senders.sort_unstable();
    senders.dedup();
    let caption = format!(
        "Lowest goodput with {senders:?} senders as a share of the link's, by frame size and \
         jitter; {caption}"
    );
    runs.table_of(&caption, &head, lowest_goodput)
}

/// Frame size and jitter.
fn column_of(s: &OperatingRange) -> (usize, u64) {
    (s.max_frame, s.jitter_ns)
}

/// Control and recovery, rate and base round trip.
fn line_of(s: &OperatingRange) -> (String, u64, u64) {
    (s.hosts.names(), s.rate_bps, s.base_rtt_ns)
}

fn lowest_goodput(rows: &Points) -> Vec<Vec<Cell>> {
    let columns: Vec<_> = distinct(rows.iter().map(|(s, _)| column_of(s))).collect();
    let lines = distinct(rows.iter().map(|(s, _)| line_of(s)));
    let cells = lines.map(|line| {
        let least = |column: &(usize, u64)| {
            let same = |s: &OperatingRange| (line_of(s), column_of(s)) == (line.clone(), *column);
            let of = rows.iter().filter(|(s, _)| same(s));
            of.map(|(_, o)| o.goodput_share).fold(f64::MAX, f64::min)
        };
        let (names, rate_bps, base_rtt_ns) = &line;
        let mut cells = vec![names.as_str().into(), bps(*rate_bps).into(), ns(*base_rtt_ns).into()];
        cells.extend(columns.iter().map(|column| Cell::decimal(least(column), 3)));
        cells
    });
    cells.collect()
}

/// Each value once, in the order of its first place.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    let mut all = Vec::new();
    for value in values {
        if !all.contains(&value) {
            all.push(value);
        }
    }
    all.into_iter()
}

/// The lowest goodput by round trip: a line for each rate, frame size and jitter.
fn picture(rows: &Points) -> Chart {
    let mut chart = Chart::lines(
        "Lowest goodput of all numbers of senders, by control and recovery",
        Axis::log("base round trip", Unit::Time),
        Axis::linear("goodput, share of the link", Unit::Percent),
    );
    for (s, o) in rows {
        let name = format!(
            "{}, {} Gbit/s, {}, jitter {}",
            s.hosts.names(),
            s.rate_bps / 1_000_000_000,
            show_bytes(s.max_frame as u64),
            ns(s.jitter_ns),
        );
        let (x, y) = (s.base_rtt_ns.max(1) as f64, o.goodput_share);
        let points = &mut chart.line(Style::Main, name).points;
        match points.iter_mut().find(|point| point.0 == x) {
            Some(point) => point.1 = point.1.min(y),
            None => points.push((x, y)),
        }
    }
    chart
}

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
/// Rate of a link that is not known: the default of the protocol.
const UNKNOWN_RATE_BPS: u64 = 25_000_000_000;

parameters! {
    /// Settings of one point.
    #[derive(Copy, Eq)]
    pub struct OperatingRange {
        /// All hosts; credits follow from the network, and frames are below
        hosts: Hosts = Hosts::default(), Nested;
        /// Rates of all links, Gbit/s
        rate_bps: u64 = 25_000_000_000,
            rate(1_000_000_000..=1_600_000_000_000).option("gbps").each("10,25,100,400");
        /// Round trips of an empty packet
        base_rtt_ns: u64 = 5_000, time(0..=1_000_000).option("rtt").each("1us,5us,25us,100us");
        /// Largest datagram payloads; replaces --frame-size
        max_frame: usize = 1_072, bytes(304..=9_000).option("frames").each("1072,8KiB");
        /// Longest delays of a frame at its receiver
        jitter_ns: u64 = 0, time(0..=1_000_000).option("jitter").each("0us,20us");
        /// Numbers of senders
        senders: u32 = 20, count(1..=100).option("senders").each("2,5,20");
        /// Tell hosts the rate of their link; else they take it for the default, 25 Gbit/s
        rate_known: bool = false, flag().option("rate-known");
        /// Warm-up in base round trips and the jitter; at least 5 ms
        warm_up_rtts: u32 = 200, count(1..=10_000);
        /// Measured time in round trips; at least 5 ms
        time_rtts: u32 = 200, count(1..=10_000).option("rtts");
    }
}

impl OperatingRange {
    fn packet_ns(&self) -> u64 {
        wire_ns(wire_bytes(data_per_packet(self.max_frame)), self.rate_bps)
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
        let hosts = Hosts { credits: self.credits(), max_frame: self.max_frame, ..self.hosts };
        let mut config = hosts.config(self.topology(), self.senders);
        (config.nic.rx_latency_ns, config.nic.tx_latency_ns) = (0, 0);
        config.checks = Checks { every_passes: 1_024, ..Checks::default() };
        if !self.rate_known && self.hosts.control == Control::default() {
            config.nic.line_rate_bps = Some(UNKNOWN_RATE_BPS);
        }
        config
    }
}

/// One point.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Point {
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
pub fn run(settings: &OperatingRange) -> Result<Point, ScenarioError> {
    EXPERIMENT.once(settings, None)
}

fn simulate(settings: &OperatingRange) -> Result<Point, ScenarioError> {
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
    let data = data_per_packet(settings.max_frame) as u64;
    let goodput_bps = per_second((accepted(&world) - before) * data * 8, time_ns);
    let full_bps = settings.rate_bps as f64 * data as f64 / wire_bytes(data as usize) as f64;
    let mut flows = flows.borrow_mut();
    Ok(Point {
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

fn start(world: &mut World, settings: &OperatingRange) -> Result<SharedTally, ScenarioError> {
    let data = data_per_packet(settings.max_frame);
    let tally = app::closed_loops(world, SERVER, REQUEST_BYTES / data * data, OUTSTANDING)?;
    if settings.jitter_ns > 0 {
        for host in world.hosts() {
            let link = world.fabric().uplink(host).reverse();
            let rng = Rng::stream(settings.hosts.seed, JITTER | u64::from(host.0));
            delay_at_receiver(world, link, settings.jitter_ns, rng);
        }
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short() -> OperatingRange {
        OperatingRange { senders: 2, warm_up_rtts: 1, time_rtts: 1, ..OperatingRange::default() }
    }

    #[test]
    fn the_idle_round_trip_is_as_calculated_and_jitter_adds_to_it() {
        let hosts = Hosts { control: Control::None, ..Hosts::default() };
        for jitter_ns in [0, 20_000] {
            let settings = OperatingRange { hosts, senders: 1, jitter_ns, ..short() };
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
        let settings = OperatingRange { base_rtt_ns: 100_000, ..short() };
        assert_eq!(settings.credits(), (2 * (100_000_u64 + 364 + 35 + 364)).div_ceil(364) as u32);
    }
}
