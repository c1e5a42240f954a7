//! Incast with background traffic `[eRPC §6.5]` (E83, E94): one more thread on each node that is not
//! the victim keeps one call with a large request and response outstanding to such a thread of a
//! random other node. The result is their latency, with the incast and without it.
//!
//! One more node makes small calls to the victim's thread, one at a time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Control, Nexus, Rpc, SessionId};
use courser_bench::report::Unit;
use courser_kit::units::show_bytes;
use serde::Serialize;

use crate::declare::column::Column;
use crate::declare::parameter::{Nested, bytes, count, name, parameters, time};
use crate::declare::points::{self, Paper, Stated, TIME, Tolerance};
use crate::declare::seeds::{Cell, Row, Runs};
use crate::declare::special::Special;
use crate::declare::text::{bps, counted, ns};
use crate::declare::{Experiment, Recorded, Simulation, Table};
use crate::experiments::incast::Network;
use crate::picture::{Axis, Chart, Style};
use crate::scenario::app::{self, SharedTally};
use crate::scenario::caller::{Caller, SharedCaller};
use crate::scenario::hosts::Hosts;
use crate::scenario::{
    Cpu, Latency, MAX_TIME_NS, ScenarioError, Traffic, data_per_packet, per_second,
};
use courser_sim::SetupError;
use courser_sim::fabric::Topology;
use courser_sim::observe::{DropReason, Times};
use courser_sim::{Checks, HostId, Rng, World, WorldConfig};

pub(crate) const EXPERIMENT: Experiment<Background, Beside> = Experiment {
    name: "background",
    aliases: &["e83"],
    about: "Latency of other calls during an incast [eRPC §6.5]",
    run: Simulation::One(|settings, _| simulate(settings)),
    network: None,
    columns: COLUMNS,
    caption: |s, _| {
        format!(
            "{}-way incast beside background calls of {} each way, and calls of 32 B to the victim; \
             the paper's background p99 is 274 µs; {}",
            s.senders,
            show_bytes(s.background_bytes as u64),
            s.hosts.caption(),
        )
    },
    table: Table::Other(table),
    picture,
    recorded: &[Recorded {
        id: "E83",
        results: include_str!("../../recorded/E83.json"),
        title: "Latency-sensitive calls during an incast",
        source: "eRPC section 6.5 (incast with background traffic)",
        model: "The CX4 cluster with N senders of 8 MiB requests to one server, and one more thread \
            on each of their nodes that keeps one call of 64 kB each way to such a thread of a \
            random other node. CPUs as fast as the paper's, 32 credits, packets of 1,024 data \
            bytes. One more node makes calls of 32 B to the victim's thread.",
        axis: points::Axis { label: "senders", unit: Unit::Count, log: false },
        x: |s, _| s.senders.into(),
        series: |s, _| s.hosts.control.name().to_owned(),
        only: &[],
        runs: |size| {
            let default = Background::default();
            let of = |control| Background {
                hosts: Hosts { control, ..default.hosts },
                senders: size.pick(8, 100),
                warm_up_ns: size.pick(1_000_000, 5_000_000),
                time_ns: size.pick(2_000_000, 10_000_000),
                ..default
            };
            [Control::None, Control::default()].map(of).to_vec()
        },
        more: |_, _| {},
        paper: &[Paper {
            quantity: "latency p99",
            series: "default",
            x: Some(100.0),
            value: Stated::Value(274_000.0),
            reason: "The agreement is a coincidence: without the incast the 99th percentile is the \
                same, since calls of random partners meet at a host anyway.",
        }],
    }],
    special: Special::NONE,
};

type Col = Column<Background, Beside>;

const RATIO: Tolerance = Tolerance { relative: 0.2, absolute: 0.1 };

const COLUMNS: &[Col] = &[
    Col::quantity("latency p50", Unit::Time, TIME, |_, o| Some(o.incast.background.p50_ns as f64)),
    Col::quantity("latency p99", Unit::Time, Tolerance::relative(0.2), |_, o| {
        Some(o.incast.background.p99_ns as f64)
    }),
    Col::quantity("latency p99, incast / none", Unit::Plain, RATIO, |_, o| {
        Some(o.background_ratio())
    })
    .key("background_p99_ratio"),
    Col::quantity("32 B to the victim, incast / none", Unit::Plain, RATIO, |_, o| {
        Some(o.to_victim_ratio())
    })
    .key("to_victim_p99_ratio"),
];

/// Two rows for each run: with the incast and without.
fn table(caption: &str, runs: &Runs<Row<Background, Beside>>) -> String {
    let lines = |(s, o): &Row<Background, Beside>| {
        let line = |incast: &str, calls: &Calls, ratios: [Cell; 2]| {
            let [background, to_victim] = ratios;
            vec![
                s.hosts.names().into(),
                incast.into(),
                Cell::of(calls.background.p50_ns, ns),
                Cell::of(calls.background.p99_ns, ns),
                background,
                Cell::of(calls.to_victim.p50_ns, ns),
                Cell::of(calls.to_victim.p99_ns, ns),
                to_victim,
                Cell::of(calls.goodput_bps, bps),
                Cell::count(calls.overflows),
            ]
        };
        let ratios = [o.background_ratio(), o.to_victim_ratio()].map(|r| Cell::decimal(r, 2));
        [line("yes", &o.incast, ratios), line("no", &o.quiet, ["".into(), "".into()])]
    };
    let head = [
        "control, recovery",
        "incast",
        "p50",
        "p99",
        "ratio",
        "32 B p50",
        "32 B p99",
        "ratio ",
        "goodput",
        "drops",
    ];
    runs.table_of(caption, &head, |rows| rows.iter().flat_map(lines).collect())
}

/// The calls beside an incast, with it and without.
fn picture(rows: &[Row<Background, Beside>]) -> Chart {
    let latency = Axis::linear("latency p99", Unit::Time);
    let senders = counted(rows.first().map_or(0, |(s, _)| s.senders), "sender");
    let title = format!("Calls beside an incast of {senders}, by control and recovery");
    let mut chart = Chart::bars(title, latency);
    for (s, o) in rows {
        let name = s.hosts.names();
        let large = format!("{name}: {}", show_bytes(s.background_bytes as u64));
        let small = format!("{name}: 32 B to the victim");
        for (style, series, calls) in
            [(Style::Main, "with the incast", &o.incast), (Style::Second, "without", &o.quiet)]
        {
            for (row, latency) in [(&large, &calls.background), (&small, &calls.to_victim)] {
                // A short run may have none of them.
                if latency.count > 0 {
                    chart.bar(style, series, row, latency.p99_ns as f64);
                }
            }
        }
        if s.hosts.control == Control::default() {
            let stated = EXPERIMENT.stated("latency p99", "default");
            let same = stated.into_iter().filter(|(senders, _)| *senders == f64::from(s.senders));
            let row = chart.row(&large);
            let line = chart.line(Style::Main, "with the incast");
            line.add_paper("the paper, with its control", same.map(|(_, ns)| (row, ns)));
        }
    }
    chart
}

/// The host of the incast's server.
const VICTIM: HostId = HostId(0);

/// Bytes of a small call, and of its response.
const SMALL_BYTES: usize = 32;

/// Message memory of an endpoint, bytes: the victim stores the requests of all senders.
const MEMORY: usize = 2 << 30;

parameters! {
    /// Settings of the experiment. The defaults are those of `[eRPC §6.5]`.
    #[derive(Copy, Eq)]
    pub struct Background {
        /// All hosts, with packets of 1,024 bytes of data
        hosts: Hosts = Hosts { max_frame: 1_068, cpu: Cpu::Erpc, ..Hosts::default() }, Nested;
        /// The network
        network: Network = Network::Cx4, name::<Network>().option("network");
        /// Senders of the incast; each has a thread of the background
        senders: u32 = 100, count(2..=200).option("senders");
        /// Bytes of a request of the incast
        incast_bytes: usize = 8 << 20, bytes(1..=8 << 20);
        /// Bytes of a background request and of its response
        background_bytes: usize = 64_000, bytes(1..=8 << 20).option("size");
        /// Virtual time before the measurement
        warm_up_ns: u64 = 10_000_000, time(0..=MAX_TIME_NS).option("warm-up");
        /// Virtual time of the measurement
        time_ns: u64 = 20_000_000, time(1..=MAX_TIME_NS).option("time");
    }
}

impl Background {
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
        let mut config = self.hosts.config(self.topology(), 2 * self.senders);
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
pub struct Beside {
    /// During the incast.
    pub incast: Calls,
    /// With the same seed and no incast.
    pub quiet: Calls,
}

impl Beside {
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
pub fn run(settings: &Background) -> Result<Beside, ScenarioError> {
    EXPERIMENT.once(settings, None)
}

fn simulate(settings: &Background) -> Result<Beside, ScenarioError> {
    Ok(Beside { incast: calls(settings, true)?, quiet: calls(settings, false)? })
}

fn calls(settings: &Background, incast: bool) -> Result<Calls, ScenarioError> {
    let mut world = World::new(settings.config())?;
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
    settings: &Background,
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
    settings: &Background,
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

    fn short() -> Background {
        let (warm_up_ns, time_ns) = (300_000, 300_000);
        Background { senders: 3, warm_up_ns, time_ns, ..Background::default() }
    }

    #[test]
    fn the_same_seed_is_the_same_run() {
        let of = |seed| {
            let hosts = Hosts { seed, ..short().hosts };
            run(&Background { hosts, ..short() }).expect("runs")
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
        let settings = Background { senders: 2, ..short() };
        let quiet = calls(&settings, false).expect("runs").background;
        let bits = 8 * settings.background_bytes as u64;
        let one_way_ns = bits * 1_000_000_000 / courser_sim::fabric::HOST_RATE_BPS;
        assert!(quiet.p50_ns > 2 * one_way_ns, "{quiet:?}, {one_way_ns} ns in each direction");
        let half = Background { background_bytes: settings.background_bytes / 2, ..settings };
        let half = calls(&half, false).expect("runs").background;
        assert!(half.p50_ns < quiet.p50_ns * 7 / 10, "{half:?} of {quiet:?}");
    }
}
