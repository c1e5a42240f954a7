//! A bottleneck inside the network: the hosts of one leaf send to hosts of another over an uplink
//! with half of their rate. Every receiver has one sender, so that no receiver's budget applies.
//!
//! An innocent flow between two other hosts of the first leaf shares the switch and its buffer, and
//! not the uplink.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Nexus, Rpc};
use courser_bench::report::Unit;
use courser_kit::units::show_bytes;
use serde::Serialize;

use crate::declare::column::Column;
use crate::declare::parameter::{Nested, bytes, count, parameters, time};
use crate::declare::seeds::Row;
use crate::declare::special::Special;
use crate::declare::text::bps;
use crate::declare::{Experiment, Simulation, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::app::{self, SharedTally};
use crate::scenario::caller::{Caller, SharedCaller};
use crate::scenario::flows::{Flows, Recorder};
use crate::scenario::hosts::Hosts;
use crate::scenario::{
    Latency, MAX_TIME_NS, ScenarioError, Traffic, check, data_per_packet, per_second, wire_bytes,
};
use courser_sim::SetupError;
use courser_sim::fabric::{Buffer, CableSpec, HOST_RATE_BPS, LeafSpine, Marking, Node, Topology};
use courser_sim::observe::DropReason;
use courser_sim::{HostId, LinkId, Rng, World, WorldConfig};

pub(crate) const EXPERIMENT: Experiment<Uplink, Shares> = Experiment {
    name: "uplink",
    aliases: &[],
    about: "Flows that share an uplink with half of their rate",
    run: Simulation::One(|settings, _| simulate(settings)),
    network: None,
    columns: COLUMNS,
    caption: |s, _| {
        format!(
            "{} flows over an uplink of {}, each between hosts of its own at 25 Gbit/s, and an \
             innocent flow at the senders' switch; requests of {}; {}",
            s.flows,
            bps(s.uplink_bps()),
            show_bytes(s.request_bytes as u64),
            s.hosts.caption(),
        )
    },
    table: Table::Columns,
    picture,
    recorded: &[],
    special: Special::NONE,
};

type Col = Column<Uplink, Shares>;

const COLUMNS: &[Col] = &[
    Col::text("control, recovery", |s, _| s.hosts.names()),
    Col::text("buffer", |s, _| s.buffer()),
    Col::text("marks", |s, _| s.marks()),
    Col::figure("goodput", Unit::Plain, |_, o| Some(o.goodput_share)),
    Col::figure("Jain", Unit::Plain, |_, o| Some(o.jain)),
    Col::figure("slowest", Unit::Plain, |_, o| Some(o.slowest_share)),
    Col::figure("innocent", Unit::Plain, |_, o| Some(o.innocent_share())).key("innocent_share"),
    Col::figure("RTT p99", Unit::Time, |_, o| Some(o.rtt.p99_ns as f64)),
    Col::figure("queue", Unit::Bytes, |_, o| Some(o.queue_p99_bytes as f64)),
    Col::figure("drops", Unit::Count, |_, o| Some(o.overflows as f64)),
];

/// Goodput and fairness of the flows over an uplink, and of the one beside it.
fn picture(rows: &[Row<Uplink, Shares>]) -> Chart {
    let share = Axis::linear("share", Unit::Plain);
    let Some((first, _)) = rows.first() else { return Chart::bars("", share) };
    let title = format!(
        "{} flows over an uplink with half of their rate, by control and recovery",
        first.flows
    );
    let mut chart = Chart::bars(title, share);
    for (s, o) in rows {
        let row = format!("{}, {}, marks: {}", s.hosts.names(), s.buffer(), s.marks());
        for (name, value) in [
            ("goodput, share of the uplink", o.goodput_share),
            ("Jain's index", o.jain),
            ("innocent flow, share of its rate", o.innocent_share()),
        ] {
            chart.bar(Style::Main, name, &row, value);
        }
    }
    chart
}

parameters! {
    /// Settings of the experiment.
    #[derive(Copy, Eq)]
    pub struct Uplink {
        /// All hosts
        hosts: Hosts = Hosts::default(), Nested;
        /// Flows over the uplink: an even number
        flows: u32 = 8, count(2..=64).option("flows");
        /// Bytes of a request
        request_bytes: usize = 1 << 20, bytes(1..=8 << 20).option("size");
        /// Switch buffers of each port in bytes, with commas; 0 for 12 MB of shared buffer
        buffer_bytes: u64 = 0, bytes(0..=u64::MAX).option("buffer-bytes").each("0,480000");
        /// Queues from which on switches mark in bytes, with commas; 0 for never
        mark_bytes: u64 = 0, bytes(0..=u64::MAX).option("mark-bytes").each("0,65000");
        /// Virtual time before the measurement
        warm_up_ns: u64 = 10_000_000, time(0..=MAX_TIME_NS);
        /// Virtual time of the measurement, which begins after 10 ms
        time_ns: u64 = 20_000_000, time(1..=MAX_TIME_NS).option("time");
    }
}

impl Uplink {
    /// The switch buffer of a port.
    fn buffer(&self) -> String {
        match self.buffer_bytes {
            0 => "12 MB".to_owned(),
            bytes => format!("{} kB", bytes / 1_000),
        }
    }

    /// The queue from which on switches mark.
    fn marks(&self) -> String {
        match self.mark_bytes {
            0 => "no".to_owned(),
            bytes => format!("{} kB", bytes / 1_000),
        }
    }

    /// Rate of the uplink: half of that of the senders' cables, bit/s.
    pub fn uplink_bps(&self) -> u64 {
        HOST_RATE_BPS * u64::from(self.flows) / 2
    }

    /// Two leaves and a spine: the senders, the two hosts of the innocent flow, the receivers.
    pub fn topology(&self) -> Topology {
        let uplink = CableSpec { rate_bps: self.uplink_bps(), ..CableSpec::uplink() };
        let topology = Topology::leaf_spine(LeafSpine {
            leaves: 2,
            hosts_per_leaf: self.flows + 2,
            spines: 1,
            cables_per_spine: 1,
            uplink,
            ..LeafSpine::default()
        });
        topology.each_switch(|_, switch| {
            if self.buffer_bytes > 0 {
                switch.buffer = Buffer::PerPort { bytes: self.buffer_bytes };
            }
            if self.mark_bytes > 0 {
                switch.marking = Marking::Step { k_bytes: self.mark_bytes };
            }
        })
    }

    fn config(&self) -> WorldConfig {
        self.hosts.config(self.topology(), 2)
    }

    /// Sender and receiver of each flow; the innocent one is the last.
    fn pairs(&self) -> Vec<(HostId, HostId)> {
        let other_leaf = self.flows + 2;
        let mut pairs: Vec<_> =
            (0..self.flows).map(|n| (HostId(n), HostId(other_leaf + n))).collect();
        pairs.push((HostId(self.flows), HostId(self.flows + 1)));
        pairs
    }
}

/// Results of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Shares {
    /// Data that the receivers behind the uplink have accepted, bit/s.
    pub goodput_bps: u64,
    /// Its share of that of an uplink that is never idle.
    pub goodput_share: f64,
    /// Jain's index of these flows.
    pub jain: f64,
    /// The slowest of these flows as a share of the mean.
    pub slowest_share: f64,
    /// Data that the receiver of the innocent flow has accepted, bit/s.
    pub innocent_bps: u64,
    /// The same without the other flows.
    pub innocent_alone_bps: u64,
    /// Round trips of the flow of the first sender: every sample.
    pub rtt: Latency,
    /// The number of bytes that the queue of the uplink exceeded in 1 % of the time.
    pub queue_p99_bytes: u64,
    /// Datagrams dropped by switches for lack of buffer.
    pub overflows: u64,
    /// Calls, from call to completion.
    pub completion: Latency,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

impl Shares {
    /// The part of its rate that the innocent flow keeps.
    pub fn innocent_share(&self) -> f64 {
        self.innocent_bps as f64 / self.innocent_alone_bps as f64
    }
}

/// Runs it, and the innocent flow alone.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &Uplink) -> Result<Shares, ScenarioError> {
    EXPERIMENT.once(settings, None)
}

fn simulate(settings: &Uplink) -> Result<Shares, ScenarioError> {
    check(settings.flows.is_multiple_of(2), "flows", settings.flows, "2 to 64, even")?;
    let (_, alone) = measure(settings, false)?;
    let (mut outcome, bps) = measure(settings, true)?;
    let [others @ .., innocent] = &bps[..] else { return Ok(outcome) };
    let rates = others.iter().map(|&bps| bps as f64);
    let (sum, squares): (f64, f64) =
        (rates.clone().sum(), rates.clone().map(|bps| bps * bps).sum());
    let n = others.len() as f64;
    let data = data_per_packet(settings.hosts.max_frame);
    let full_bps = settings.uplink_bps() as f64 * data as f64 / wire_bytes(data) as f64;
    outcome.goodput_bps = others.iter().sum();
    outcome.goodput_share = sum / full_bps;
    outcome.jain = sum * sum / (n * squares);
    outcome.slowest_share = rates.fold(f64::MAX, f64::min) * n / sum;
    outcome.innocent_bps = *innocent;
    outcome.innocent_alone_bps = alone.last().copied().unwrap_or(0);
    Ok(outcome)
}

/// Runs the innocent flow, and with `all` the others. Returns the rate of each flow.
fn measure(settings: &Uplink, all: bool) -> Result<(Shares, Vec<u64>), ScenarioError> {
    let mut world = World::new(settings.config())?;
    // The leaf of the senders is switch 0, the spine switch 2.
    let ends = (Node::Switch(0), Node::Switch(2));
    let mut links = (0..world.fabric().links()).map(LinkId);
    let uplink = links.find(|&link| world.fabric().ends(link) == ends);
    let pairs = settings.pairs();
    let flows = Flows::new(pairs[0].1, uplink.unwrap_or(LinkId(0)));
    world.set_tap(Box::new(Recorder { flows: Rc::clone(&flows), inner: None }));
    let tally = SharedTally::default();
    let callers = start(&mut world, settings, &pairs, &tally)?;
    app::connect_all(&mut world)?;
    let innocent = settings.flows;
    for (host, caller) in callers.borrow().iter().filter(|(h, _)| all || h.0 == innocent) {
        caller.borrow_mut().issue(&mut world.rpc(*host).context());
    }
    world.run_for(Duration::from_nanos(settings.warm_up_ns));
    let accepted = |world: &World| -> Vec<u64> {
        let of =
            |(_, to): &(HostId, HostId)| world.peek(*to, 0).map_or(0, |r| r.stats().rx_kinds[0]);
        pairs.iter().map(of).collect()
    };
    let before = (accepted(&world), Traffic::of(&mut world));
    tally.borrow_mut().latency = Default::default();
    flows.borrow_mut().restart(world.now_ns());
    world.run_for(Duration::from_nanos(settings.time_ns));
    tally.borrow().check()?;
    let traffic = Traffic::of(&mut world).since(&before.1);
    let data = data_per_packet(settings.hosts.max_frame) as u64;
    let now = accepted(&world);
    let packets = now.iter().zip(&before.0).map(|(now, before)| now - before);
    let bps = packets.map(|n| per_second(n * data * 8, settings.time_ns)).collect();
    let queue_p99_bytes = flows.borrow_mut().queue_quantile_bytes(990, world.now_ns());
    let outcome = Shares {
        goodput_bps: 0,
        goodput_share: 0.0,
        jain: 0.0,
        slowest_share: 0.0,
        innocent_bps: 0,
        innocent_alone_bps: 0,
        rtt: Latency::from(&flows.borrow().rtts),
        queue_p99_bytes,
        overflows: traffic.dropped(DropReason::BufferFull),
        completion: Latency::from(&tally.borrow().latency),
        digest: world.digest(),
    };
    Ok((outcome, bps))
}

type Made = Rc<RefCell<Vec<(HostId, SharedCaller)>>>;

fn start(
    world: &mut World,
    settings: &Uplink,
    pairs: &[(HostId, HostId)],
    tally: &SharedTally,
) -> Result<Made, ScenarioError> {
    let made = Made::default();
    let data = data_per_packet(settings.hosts.max_frame);
    // Full packets, so that counted packets are bytes.
    let bytes = settings.request_bytes.max(data) / data * data;
    let seed = settings.hosts.seed;
    for &(from, to) in pairs {
        world.start(to, app::server)?;
        let uri = world.uri(to);
        let (tally, made) = (Rc::clone(tally), Rc::clone(&made));
        world.start(from, move |nexus: &Nexus| -> Result<Rpc, SetupError> {
            let rng = Rng::stream(seed, u64::from(from.0) << 8);
            let call = (app::SINK, bytes);
            let (rpc, caller) = Caller::of_server(nexus, &uri, call, rng, Rc::clone(&tally))?;
            made.borrow_mut().push((from, caller));
            Ok(rpc)
        })?;
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short() -> Uplink {
        let (warm_up_ns, time_ns) = (500_000, 500_000);
        Uplink { flows: 2, warm_up_ns, time_ns, ..Uplink::default() }
    }

    #[test]
    fn two_flows_share_an_uplink_of_the_rate_of_one() {
        let settings = short();
        assert_eq!(settings.uplink_bps(), HOST_RATE_BPS);
        let seen = run(&settings).expect("runs");
        assert!(seen.goodput_share > 0.8 && seen.goodput_share <= 1.01, "{seen:?}");
        assert!(seen.innocent_share() > 0.9, "{seen:?}");
        assert_eq!(run(&settings).expect("runs"), seen);
    }
}
