//! An uncongested network `[eRPC §5.2.2]` (E55): in the datacenters that the paper cites, 99 % of links
//! are used by less than a tenth. Here every host calls random others at random times, so that links
//! have a stated small load; most calls are small, some large.
//!
//! The calls, their sizes and their times are the same for every control, so that a difference of
//! their completion times is the cost of the control.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Completion, Context, Control, Nexus, Rpc, SessionId};
use courser_bench::report::Unit;
use courser_kit::units::show_bytes;
use serde::Serialize;

use crate::declare::column::Column;
use crate::declare::parameter::{Nested, bytes, chance, count, parameters, time};
use crate::declare::points::{self, TIME, Tolerance};
use crate::declare::seeds::Row;
use crate::declare::special::Special;
use crate::declare::{Experiment, Recorded, Simulation, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::app::{self, SharedTally};
use crate::scenario::hosts::Hosts;
use crate::scenario::{Cpu, Latency, ScenarioError, Traffic};
use crate::scenario::{MAX_TIME_NS, data_per_packet, per_second, wire_bytes};
use courser_sim::SetupError;
use courser_sim::fabric::{HOST_RATE_BPS, Topology};
use courser_sim::observe::{DropReason, Times};
use courser_sim::web_search::gap_ns;
use courser_sim::{HostId, Rng, World, WorldConfig};

pub(crate) const EXPERIMENT: Experiment<Uncongested, CallTimes> = Experiment {
    name: "uncongested",
    aliases: &["e55"],
    about: "Completion times on links with little load, with and without control [eRPC §5.2.2]",
    run: Simulation::One(|settings, _| simulate(settings)),
    network: None,
    columns: COLUMNS,
    caption: |s, o| {
        format!(
            "{} hosts that call random others at random times, {:.1} % of the calls with {}, the \
             others with 32 B; links {:.1} % loaded; {}",
            s.nodes,
            f64::from(s.large_ppm) / 1e4,
            show_bytes(s.large_bytes as u64),
            o.load * 100.0,
            s.hosts.caption(),
        )
    },
    table: Table::Columns,
    picture,
    recorded: &[Recorded {
        id: "E55",
        results: include_str!("../../recorded/E55.json"),
        title: "Completion times without congestion",
        source: "eRPC section 5.2.2",
        model: "Hosts at one switch that call random others at random times, 1 % of the calls with \
            64 kB and the others with 32 B, CPUs as calibrated on a machine. The calls and their \
            times are the same with and without control.",
        axis: points::Axis { label: "load of the links", unit: Unit::Percent, log: false },
        x: |s, _| f64::from(s.load_ppm) / 1e6,
        series: |s, _| s.hosts.control.name().to_owned(),
        only: &[],
        runs: |size| {
            let default = Uncongested::default();
            let of = |control, load_ppm| Uncongested {
                hosts: Hosts { control, ..default.hosts },
                nodes: size.pick(10, 40),
                load_ppm,
                time_ns: size.pick(2_000_000, 10_000_000),
                ..default
            };
            let loads = size.pick(&[100_000][..], &[50_000, 100_000, 200_000]);
            let controls = [Control::None, Control::default()];
            controls.iter().flat_map(|&c| loads.iter().map(move |&ppm| of(c, ppm))).collect()
        },
        more: |_, _| {},
        paper: &[],
    }],
    special: Special::NONE,
};

type Col = Column<Uncongested, CallTimes>;

const COLUMNS: &[Col] = &[
    Col::text("control, recovery", |s, _| s.hosts.names()),
    Col::figure("32 B p50", Unit::Time, |_, o| Some(o.small.p50_ns as f64))
        .recorded("32 B p50", Tolerance::relative(0.02)),
    Col::figure("p99", Unit::Time, |_, o| Some(o.small.p99_ns as f64)).recorded("32 B p99", TIME),
    Col::figure("large p50", Unit::Time, |_, o| Some(o.large.p50_ns as f64))
        .recorded("64 kB p50", Tolerance::relative(0.05)),
    Col::figure("p99 ", Unit::Time, |_, o| Some(o.large.p99_ns as f64)).recorded("64 kB p99", TIME),
    Col::figure("calls", Unit::PerSecond, |_, o| Some(o.calls_rps as f64))
        .recorded("calls per second", Tolerance::relative(0.02)),
    Col::figure("packets", Unit::PerSecond, |_, o| Some(o.packets_per_s as f64)),
    Col::figure("paced", Unit::Count, |_, o| Some(o.paced as f64)),
    Col::figure("resent", Unit::Count, |_, o| Some(o.retransmitted as f64)),
];

/// Completion times of small and large calls: a colour for each control and recovery.
fn picture(rows: &[Row<Uncongested, CallTimes>]) -> Chart {
    let time = Axis::linear("completion time", Unit::Time);
    let Some((first, o)) = rows.first() else { return Chart::bars("", time) };
    let title = format!(
        "{} hosts, links {:.1} % loaded, by control and recovery",
        first.nodes,
        o.load * 100.0
    );
    let mut chart = Chart::bars(title, time);
    for (s, o) in rows {
        let large = show_bytes(s.large_bytes as u64);
        for (calls, latency) in [("32 B", &o.small), (&large, &o.large)] {
            let percentiles = [("p50", latency.p50_ns), ("p99", latency.p99_ns)];
            // A short run may have no call of a kind.
            for (percentile, ns) in percentiles.into_iter().filter(|_| latency.count > 0) {
                let row = format!("{calls}: {percentile}");
                chart.bar(Style::Main, &s.hosts.names(), &row, ns as f64);
            }
        }
    }
    chart
}

/// Bytes of a small call, and of the response to every call.
const SMALL_BYTES: usize = 32;

parameters! {
    /// Settings of the experiment.
    #[derive(Copy, Eq)]
    pub struct Uncongested {
        /// All hosts, with CPUs as calibrated on a machine
        hosts: Hosts = Hosts { cpu: Cpu::Measured, ..Hosts::default() }, Nested;
        /// Hosts, at one switch
        nodes: u32 = 40, count(2..=200).option("nodes").reported();
        /// Mean load of the hosts' links
        load_ppm: u32 = 100_000, chance(1_000..=900_000).option("load");
        /// Bytes of a large request
        large_bytes: usize = 64_000, bytes(1..=1 << 20).option("size");
        /// Large calls as a share of all
        large_ppm: u32 = 10_000, chance(0..=1_000_000).option("large");
        /// Virtual time before the measurement
        warm_up_ns: u64 = 1_000_000, time(0..=MAX_TIME_NS);
        /// Virtual time of the measurement, which begins after 1 ms
        time_ns: u64 = 10_000_000, time(1..=MAX_TIME_NS).option("time");
    }
}

impl Uncongested {
    fn config(&self) -> WorldConfig {
        let mut config = self.hosts.config(Topology::one_switch(self.nodes), 2 * self.nodes);
        config.checks.every_passes = 1_024;
        config
    }

    /// Mean time between two calls of a host, ns. Responses and credit returns are in the load of
    /// the other direction, so that they are added.
    fn gap_ns(&self) -> f64 {
        let data = data_per_packet(self.hosts.max_frame);
        let (whole, rest) = (self.large_bytes / data, self.large_bytes % data);
        let last = if rest == 0 { 0 } else { wire_bytes(rest) };
        let packets = whole as u64 + u64::from(rest > 0);
        let answer = wire_bytes(SMALL_BYTES);
        let large = whole as u64 * wire_bytes(data) + last + packets * wire_bytes(0) + answer;
        let share = f64::from(self.large_ppm) / 1e6;
        let small = (wire_bytes(SMALL_BYTES) + answer) as f64;
        let mean = share * large as f64 + (1.0 - share) * small;
        mean * 8e9 / (HOST_RATE_BPS as f64 * f64::from(self.load_ppm) / 1e6)
    }
}

/// Results of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CallTimes {
    /// Small calls, from call to completion.
    pub small: Latency,
    /// Large calls, likewise.
    pub large: Latency,
    /// Calls that ended, per second, of all hosts.
    pub calls_rps: u64,
    /// Load of the hosts' links: bits sent, as a share of their rate.
    pub load: f64,
    /// Packets per second of all hosts.
    pub packets_per_s: u64,
    /// Packets that were paced.
    pub paced: u64,
    /// Retransmitted packets.
    pub retransmitted: u64,
    /// Datagrams dropped by the switch for lack of buffer.
    pub overflows: u64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

/// The client side of a host.
struct Calls {
    sessions: Vec<SessionId>,
    settings: Uncongested,
    rng: Rng,
    /// Time of the next call on the host's clock, with its fraction, ns.
    next_ns: f64,
    small: SharedTally,
    large: SharedTally,
}

type SharedCalls = Rc<RefCell<Calls>>;

impl Calls {
    /// Starts the calls that are due, and a timer for the next one.
    fn go_on(shared: &SharedCalls, cx: &mut Context<'_>) {
        let mut calls = shared.borrow_mut();
        let now_ns = cx.now_ns() as f64;
        if calls.next_ns == 0.0 {
            calls.next_ns = now_ns;
        }
        while calls.next_ns <= now_ns {
            calls.call(cx);
            let mean_ns = calls.settings.gap_ns();
            calls.next_ns += gap_ns(&mut calls.rng, mean_ns);
        }
        let wait = Duration::from_nanos((calls.next_ns - now_ns).ceil() as u64);
        let own = Rc::clone(shared);
        cx.after(wait, move |cx| Calls::go_on(&own, cx));
    }

    fn call(&mut self, cx: &mut Context<'_>) {
        let Some(&session) = self.rng.pick(&self.sessions) else { return };
        let is_large = self.rng.chance_ppm(self.settings.large_ppm);
        let (bytes, tally) = match is_large {
            true => (self.settings.large_bytes, Rc::clone(&self.large)),
            false => (SMALL_BYTES, Rc::clone(&self.small)),
        };
        let mut request = match cx.alloc(bytes) {
            Ok(request) => request,
            Err(error) => return tally.borrow_mut().failed(&error),
        };
        request.fill(0xa5);
        let (start_ns, to) = (cx.now_ns(), Rc::clone(&tally));
        let done = move |cx: &mut Context<'_>, done: Completion<'_>| {
            to.borrow_mut().ended(&done.result, cx.now_ns() - start_ns);
        };
        if let Err(rejected) = cx.call(session, app::SINK, request, done) {
            tally.borrow_mut().failed(&rejected.reason);
        }
    }
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &Uncongested) -> Result<CallTimes, ScenarioError> {
    EXPERIMENT.once(settings, None)
}

fn simulate(settings: &Uncongested) -> Result<CallTimes, ScenarioError> {
    let mut world = World::new(settings.config())?;
    let (small, large) = (SharedTally::default(), SharedTally::default());
    let clients = start(&mut world, settings, &small, &large)?;
    app::connect_all(&mut world)?;
    for (host, calls) in clients.borrow().iter() {
        Calls::go_on(calls, &mut world.rpc(*host).context());
    }
    world.run_for(Duration::from_nanos(settings.warm_up_ns));
    let paced = |world: &World| -> u64 {
        world.hosts().filter_map(|h| world.peek(h, 0)).map(|rpc| rpc.stats().paced).sum()
    };
    let before = (Traffic::of(&mut world), paced(&world));
    for tally in [&small, &large] {
        tally.borrow_mut().latency = Times::default();
    }
    world.run_for(Duration::from_nanos(settings.time_ns));
    for tally in [&small, &large] {
        tally.borrow().check()?;
    }
    let traffic = Traffic::of(&mut world).since(&before.0);
    let time_ns = settings.time_ns;
    let all_bps = HOST_RATE_BPS as f64 * f64::from(settings.nodes);
    Ok(CallTimes {
        small: Latency::from(&small.borrow().latency),
        large: Latency::from(&large.borrow().latency),
        calls_rps: per_second(traffic.responses, time_ns),
        load: per_second(traffic.wire_bytes_sent * 8, time_ns) as f64 / all_bps,
        packets_per_s: per_second(traffic.packets_made, time_ns),
        paced: paced(&world) - before.1,
        retransmitted: traffic.retransmitted,
        overflows: traffic.dropped(DropReason::BufferFull),
        digest: world.digest(),
    })
}

type Made = Rc<RefCell<Vec<(HostId, SharedCalls)>>>;

fn start(
    world: &mut World,
    settings: &Uncongested,
    small: &SharedTally,
    large: &SharedTally,
) -> Result<Made, ScenarioError> {
    let made = Made::default();
    let uris: Vec<String> = world.hosts().map(|host| world.uri(host)).collect();
    for host in world.hosts() {
        let (settings, made) = (*settings, Rc::clone(&made));
        let (small, large) = (Rc::clone(small), Rc::clone(large));
        let mut others = uris.clone();
        others.remove(host.0 as usize);
        world.start(host, move |nexus: &Nexus| -> Result<Rpc, SetupError> {
            let mut rpc = nexus.endpoint()?;
            app::answer(&mut rpc);
            let sessions = others.iter().map(|uri| rpc.connect(uri));
            let calls = Calls {
                sessions: sessions.collect::<Result<_, _>>()?,
                settings,
                rng: Rng::stream(settings.hosts.seed, u64::from(host.0) << 8),
                next_ns: 0.0,
                small: Rc::clone(&small),
                large: Rc::clone(&large),
            };
            made.borrow_mut().push((host, Rc::new(RefCell::new(calls))));
            Ok(rpc)
        })?;
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short() -> Uncongested {
        Uncongested { nodes: 4, warm_up_ns: 100_000, time_ns: 1_000_000, ..Uncongested::default() }
    }

    #[test]
    fn links_have_the_load_of_the_settings() {
        for load_ppm in [50_000, 200_000] {
            let settings = Uncongested { load_ppm, large_ppm: 100_000, ..short() };
            let seen = run(&settings).expect("runs");
            let ratio = seen.load * 1e6 / f64::from(load_ppm);
            assert!((0.7..1.3).contains(&ratio), "{load_ppm} {seen:?}");
            assert!(seen.small.count > seen.large.count && seen.large.count > 0, "{seen:?}");
            assert_eq!(run(&settings).expect("runs"), seen);
        }
    }
}
