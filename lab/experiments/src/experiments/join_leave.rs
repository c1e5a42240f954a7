//! Senders that join an incast one after the other and leave in the same order: how soon they share
//! the link.
//!
//! Each sender keeps one large request outstanding to the same server while it takes part. A sender
//! that leaves completes its last request, which is not counted in the fairness of the others.

use std::cell::RefCell;
use std::rc::Rc;

use courser::{Nexus, Rpc};
use courser_bench::report::Unit;
use courser_kit::units::show_bytes;
use serde::Serialize;

use crate::declare::column::Column;
use crate::declare::parameter::{Nested, bytes, count, parameters, time};
use crate::declare::seeds::{Cell, Row, Runs};
use crate::declare::special::Special;
use crate::declare::text::ns;
use crate::declare::{Experiment, Simulation, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::app::{self, SharedTally};
use crate::scenario::caller::{Caller, SharedCaller};
use crate::scenario::flows::{Flows, Recorded, Recorder};
use crate::scenario::hosts::Hosts;
use crate::scenario::{Latency, ScenarioError, data_per_packet, per_second, wire_bytes};
use courser_sim::SetupError;
use courser_sim::fabric::{HOST_RATE_BPS, Topology};
use courser_sim::observe::Times;
use courser_sim::{HostId, Rng, World, WorldConfig};

pub(crate) const EXPERIMENT: Experiment<JoinLeave, Fairness> = Experiment {
    name: "join-leave",
    aliases: &[],
    about: "Senders that join an incast one after the other and leave",
    run: Simulation::One(|settings, _| simulate(settings)),
    network: None,
    columns: COLUMNS,
    caption: |s, _| {
        format!(
            "{} senders join, one every {}, and leave; requests of {}; {}",
            s.senders,
            ns(s.every_ns),
            show_bytes(s.request_bytes as u64),
            s.hosts.caption(),
        )
    },
    table: Table::Followed(changes),
    picture,
    recorded: &[],
    special: Special::NONE,
};

type Col = Column<JoinLeave, Fairness>;

const COLUMNS: &[Col] = &[
    Col::text("control, recovery", |s, _| s.hosts.names()),
    Col::figure("least Jain, joins", Unit::Plain, |_, o| Some(o.jain_after_join)),
    Col::figure("leaves", Unit::Plain, |_, o| Some(o.jain_after_leave)),
    Col::figure("fair within", Unit::Time, |_, o| o.fair_within_ns()).or("not"),
    Col::figure("goodput", Unit::Plain, |_, o| Some(o.goodput_share)),
    Col::figure("RTT p50", Unit::Time, |_, o| Some(o.rtt.p50_ns as f64)),
    Col::figure("RTT p99", Unit::Time, |_, o| Some(o.rtt.p99_ns as f64)),
    Col::figure("drops", Unit::Count, |_, o| {
        Some(o.windows.iter().map(|w| w.drops).sum::<u64>() as f64)
    }),
];

/// A table for each control and recovery with a row for each change.
fn changes(runs: &Runs<Row<JoinLeave, Fairness>>) -> String {
    let row = |w: &Window| {
        vec![
            if w.joined { "join" } else { "leave" }.into(),
            w.senders.to_string().into(),
            Cell::decimal(w.jain, 3),
            Cell::decimal(w.slowest_share, 3),
            Cell::or(w.fair_after_ns, ns, "not"),
            Cell::decimal(w.goodput_share, 3),
            Cell::of(w.rtt.p99_ns, ns),
            Cell::count(w.drops),
        ]
    };
    let head =
        ["", "senders", "Jain", "slowest / mean", "fair after", "goodput", "RTT p99", "drops"];
    let table = |(case, (s, _)): (usize, &Row<JoinLeave, Fairness>)| {
        let rows = |cases: &[Row<_, Fairness>]| cases[case].1.windows.iter().map(row).collect();
        format!("\n{}", runs.table_of(&s.hosts.names(), &head, rows))
    };
    runs.cases().iter().enumerate().map(table).collect()
}

/// Jain's index after each change.
fn picture(rows: &[Row<JoinLeave, Fairness>]) -> Chart {
    let mut chart = Chart::lines(
        "Senders that join one after the other and leave, by control and recovery",
        Axis::linear("time of the change", Unit::Time),
        Axis::linear("Jain's index until the next", Unit::Plain),
    );
    for (s, o) in rows {
        let at_ns = |change: usize| (change as u64 * s.every_ns) as f64;
        let points = o.windows.iter().enumerate().map(|(n, w)| (at_ns(n), w.jain));
        chart.line(Style::Main, s.hosts.names()).points.extend(points);
    }
    chart
}

/// The server's host.
const SERVER: HostId = HostId(0);

/// Parts of a window in which fairness is measured, to find when it is reached.
const PARTS: u64 = 10;

/// Jain's index from which on senders share the link.
const FAIR: f64 = 0.95;

parameters! {
    /// Settings of the experiment.
    #[derive(Copy, Eq)]
    pub struct JoinLeave {
        /// All hosts
        hosts: Hosts = Hosts::default(), Nested;
        /// Senders
        senders: u32 = 10, count(2..=100).option("senders").reported();
        /// Bytes of a request
        request_bytes: usize = 512 << 10, bytes(1..=8 << 20).option("size");
        /// Time between two changes
        every_ns: u64 = 10_000_000, time(100_000..=1_000_000_000).option("every");
    }
}

impl JoinLeave {
    fn config(&self) -> WorldConfig {
        let topology = Topology::one_switch(self.senders + 1);
        self.hosts.config(topology, self.senders)
    }
}

/// The time from one change to the next.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Window {
    /// True if a sender has joined; false: one has left.
    pub joined: bool,
    /// Senders that take part.
    pub senders: u32,
    /// Jain's index of their bytes.
    pub jain: f64,
    /// Bytes of the slowest as a share of the mean.
    pub slowest_share: f64,
    /// The end of the first tenth of the window in which the index is at least 0.95, ns after the
    /// change; `None`: in none.
    pub fair_after_ns: Option<u64>,
    /// Data that the server has received in full frames, bit/s.
    pub goodput_bps: u64,
    /// Its share of that of a link that is never idle.
    pub goodput_share: f64,
    /// Round trips measured by the clients: every sample.
    pub rtt: Latency,
    /// Datagrams dropped anywhere.
    pub drops: u64,
}

/// Results of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Fairness {
    /// The time after each change: first the joins, then the leaves.
    pub windows: Vec<Window>,
    /// The smallest of Jain's indices after a join.
    pub jain_after_join: f64,
    /// The smallest after a leave.
    pub jain_after_leave: f64,
    /// The mean of the windows' share of the link's goodput.
    pub goodput_share: f64,
    /// Round trips of all windows.
    pub rtt: Latency,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

impl Fairness {
    /// The longest time from a join until its senders shared the link, ns; `None`: once they did not.
    fn fair_within_ns(&self) -> Option<f64> {
        let joins = self.windows.iter().filter(|w| w.joined);
        let times: Option<Vec<u64>> = joins.map(|w| w.fair_after_ns).collect();
        times?.into_iter().max().map(|ns| ns as f64)
    }
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &JoinLeave) -> Result<Fairness, ScenarioError> {
    EXPERIMENT.once(settings, None)
}

fn simulate(settings: &JoinLeave) -> Result<Fairness, ScenarioError> {
    let mut world = World::new(settings.config())?;
    let link = world.fabric().uplink(SERVER).reverse();
    let flows = Flows::new(SERVER, link);
    world.set_tap(Box::new(Recorder { flows: Rc::clone(&flows), inner: None }));
    let tally = SharedTally::default();
    let callers = start(&mut world, settings, &tally)?;
    app::connect_all(&mut world)?;
    let (mut windows, mut all) = (Vec::new(), Times::default());
    for (host, caller) in callers.borrow().iter() {
        caller.borrow_mut().issue(&mut world.rpc(*host).context());
        windows.push(window(&mut world, settings, &flows, 1..=host.0, true, &mut all));
    }
    // The last sender stays alone.
    for (host, caller) in callers.borrow().iter().take(settings.senders as usize - 1) {
        caller.borrow_mut().stop();
        let stay = host.0 + 1..=settings.senders;
        windows.push(window(&mut world, settings, &flows, stay, false, &mut all));
    }
    tally.borrow().check()?;
    let least = |joined: bool| {
        let of = windows.iter().filter(|w| w.joined == joined).map(|w| w.jain);
        of.fold(1.0, f64::min)
    };
    let shares: f64 = windows.iter().map(|w| w.goodput_share).sum();
    Ok(Fairness {
        jain_after_join: least(true),
        jain_after_leave: least(false),
        goodput_share: shares / windows.len() as f64,
        rtt: Latency::from(&all),
        windows,
        digest: world.digest(),
    })
}

/// Runs the time after a change. `senders` take part.
fn window(
    world: &mut World,
    settings: &JoinLeave,
    flows: &Recorded,
    senders: std::ops::RangeInclusive<u32>,
    joined: bool,
    all: &mut Times,
) -> Window {
    let begin_ns = world.now_ns();
    let count = senders.clone().count() as u32;
    let (mut sum, mut rtts) = (Flows::default(), Times::default());
    let (mut bytes, mut fair_after_ns) = (0, None);
    for part in 1..=PARTS {
        flows.borrow_mut().restart(world.now_ns());
        world.run_to(begin_ns + settings.every_ns * part / PARTS);
        let mut part_of = flows.borrow_mut();
        rtts.merge(&part_of.rtts);
        bytes += part_of.bytes.values().sum::<u64>();
        part_of.bytes.retain(|sender, _| senders.contains(sender));
        if fair_after_ns.is_none() && part_of.fairness(count).0 >= FAIR {
            fair_after_ns = Some(world.now_ns() - begin_ns);
        }
        for (&sender, bytes) in &part_of.bytes {
            *sum.bytes.entry(sender).or_default() += bytes;
        }
        sum.drops += part_of.drops;
    }
    all.merge(&rtts);
    let (jain, slowest_share) = sum.fairness(count);
    // The recorder counts datagrams with their headers.
    let (frame, data) = (settings.hosts.max_frame, data_per_packet(settings.hosts.max_frame));
    let goodput_bps = per_second(bytes * 8, settings.every_ns) * data as u64 / frame as u64;
    let full_bps = HOST_RATE_BPS as f64 * data as f64 / wire_bytes(data) as f64;
    Window {
        joined,
        senders: count,
        jain,
        slowest_share,
        fair_after_ns,
        goodput_bps,
        goodput_share: goodput_bps as f64 / full_bps,
        rtt: Latency::from(&rtts),
        drops: sum.drops,
    }
}

type Made = Rc<RefCell<Vec<(HostId, SharedCaller)>>>;

fn start(
    world: &mut World,
    settings: &JoinLeave,
    tally: &SharedTally,
) -> Result<Made, ScenarioError> {
    let made = Made::default();
    world.start(SERVER, app::server)?;
    let uri = world.uri(SERVER);
    for host in world.hosts().filter(|&h| h != SERVER) {
        let (settings, uri) = (*settings, uri.clone());
        let (tally, made) = (Rc::clone(tally), Rc::clone(&made));
        world.start(host, move |nexus: &Nexus| -> Result<Rpc, SetupError> {
            let rng = Rng::stream(settings.hosts.seed, u64::from(host.0) << 8);
            let call = (app::SINK, settings.request_bytes);
            let (rpc, caller) = Caller::of_server(nexus, &uri, call, rng, Rc::clone(&tally))?;
            made.borrow_mut().push((host, caller));
            Ok(rpc)
        })?;
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short() -> JoinLeave {
        JoinLeave { senders: 3, every_ns: 500_000, ..JoinLeave::default() }
    }

    #[test]
    fn each_change_has_a_window_with_the_senders_that_stay() {
        let seen = run(&short()).expect("runs");
        let senders: Vec<_> = seen.windows.iter().map(|w| (w.joined, w.senders)).collect();
        assert_eq!(senders, [(true, 1), (true, 2), (true, 3), (false, 2), (false, 1)]);
        assert!(seen.windows.iter().all(|w| w.goodput_share > 0.5), "{seen:?}");
        assert_eq!(run(&short()).expect("runs"), seen);
    }
}
