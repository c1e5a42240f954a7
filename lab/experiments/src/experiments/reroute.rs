//! A path that becomes longer: senders of large requests, and from one moment on every packet to
//! the server arrives later, as after a change of routes.
//!
//! A controller that takes the longer path for a queue holds the senders back for as long as it
//! remembers the shorter one.

use courser_bench::report::Unit;
use courser_kit::units::show_ns;
use courser_sim::fabric::{HOST_RATE_BPS, LinkFaults, Topology};
use courser_sim::{HostId, World, WorldConfig};
use serde::Serialize;

use crate::declare::column::Column;
use crate::declare::parameter::{Nested, count, parameters, time};
use crate::declare::points::{self, SHARE, TIME};
use crate::declare::seeds::Row;
use crate::declare::special::Special;
use crate::declare::text::counted;
use crate::declare::{Experiment, Recorded, Simulation, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::app::{self, SharedTally};
use crate::scenario::{
    Hosts, OWN_AND_NONE, ScenarioError, data_per_packet, per_second, wire_bytes,
};

pub(crate) const EXPERIMENT: Experiment<Reroute, Goodput> = Experiment {
    name: "reroute",
    aliases: &[],
    about: "Goodput after a path has become longer",
    run: Simulation::One(|settings, _| simulate(settings)),
    network: None,
    columns: COLUMNS,
    caption: |s, _| {
        let (longer, slice) = (show_ns(s.longer_ns as f64), show_ns(s.slice_ns as f64));
        let hosts = s.hosts.caption();
        format!(
            "Packets to the server take {longer} longer from one moment on; goodput in slices of \
             {slice} after it; {hosts}"
        )
    },
    table: Table::Columns,
    picture,
    recorded: &[Recorded {
        id: "reroute",
        results: include_str!("../../recorded/reroute.json"),
        title: "Goodput after a path has become longer",
        source: "Courser ADR 35",
        model: "Senders of 8 MiB requests at one switch with 25 Gbit/s, 64 credits; from one moment \
            on packets to the server take 10 us longer. Goodput in slices of 1 ms. The time until \
            the last slice below 0.95 of the goodput before; all slices if that is the last one.",
        axis: points::Axis { label: "senders", unit: Unit::Count, log: true },
        x: |s, _| s.senders.into(),
        series: |s, _| s.hosts.control.name().to_owned(),
        only: &[],
        runs: |size| {
            let default = Reroute::default();
            let (warm_up_ns, slices) =
                size.pick((5_000_000, 10), (default.warm_up_ns, default.slices));
            let of = |control, senders| Reroute {
                hosts: Hosts { control, ..default.hosts },
                senders,
                warm_up_ns,
                slices,
                ..default
            };
            let senders = size.pick(&[1][..], &[1, 2, 20]);
            let controls = size.pick(&OWN_AND_NONE[..1], &OWN_AND_NONE);
            controls.iter().flat_map(|&c| senders.iter().map(move |&n| of(c, n))).collect()
        },
        more: |_, _| {},
        paper: &[],
    }],
    special: Special::NONE,
};

type Col = Column<Reroute, Goodput>;

const COLUMNS: &[Col] = &[
    Col::text("control, recovery", |s, _| s.hosts.names()),
    Col::text("senders", |s, _| s.senders.to_string()),
    Col::figure("before", Unit::Bits, |_, o| Some(o.before_bps as f64)),
    Col::figure("of the link", Unit::Plain, |_, o| Some(o.before_share))
        .recorded("goodput before, share of the link", SHARE),
    Col::figure("lowest / before", Unit::Plain, |_, o| Some(o.lowest_share))
        .recorded("lowest 1 ms / before", SHARE),
    Col::figure("at 0.95 after", Unit::Time, |_, o| o.recovered_after_ns.map(|ns| ns as f64))
        .or("not")
        .recorded_as(
            points::quantity("at 0.95 after", Unit::Time, TIME.or_absolute(1e6)),
            |s, o| {
                let all_ns = u64::from(s.slices) * s.slice_ns;
                Some(o.recovered_after_ns.unwrap_or(all_ns) as f64)
            },
        ),
];

/// The goodput after the change of routes.
fn picture(rows: &[Row<Reroute, Goodput>]) -> Chart {
    let mut chart = Chart::lines(
        "Goodput after the path has become longer, by control and recovery",
        Axis::linear("time since the change", Unit::Time),
        Axis::linear("goodput", Unit::Bits),
    );
    for (s, o) in rows {
        let at_ns = |slice: usize| ((slice as u64 + 1) * s.slice_ns) as f64;
        let points = o.after_bps.iter().enumerate().map(|(n, &bps)| (at_ns(n), bps as f64));
        let name = format!("{}, {}", s.hosts.names(), counted(s.senders, "sender"));
        chart.line(Style::Main, name).points.extend(points);
    }
    chart
}

/// The server's host.
const SERVER: HostId = HostId(0);

/// Goodput of the longer path as a share of that before, at which it has recovered, per million.
const RECOVERED_PPM: u64 = 950_000;

parameters! {
    /// Settings of the experiment.
    #[derive(Copy, Eq)]
    pub struct Reroute {
        /// All hosts: more credits than the longer path holds
        hosts: Hosts = Hosts { credits: 64, ..Hosts::default() }, Nested;
        /// Numbers of senders
        senders: u32 = 1, count(1..=100).option("senders").each("1,2,20");
        /// Additional time of a packet to the server
        longer_ns: u64 = 10_000, time(0..=1_000_000).option("longer");
        /// Time before the change
        warm_up_ns: u64 = 50_000_000, time(0..=10_000_000_000);
        /// Length of a measured slice
        slice_ns: u64 = 1_000_000, time(100_000..=100_000_000);
        /// Slices after the change
        slices: u32 = 100, count(1..=1_000);
    }
}

impl Reroute {
    fn config(&self) -> WorldConfig {
        let topology = Topology::one_switch(self.senders + 1);
        self.hosts.config(topology, self.senders)
    }
}

/// Results of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Goodput {
    /// Goodput before the change, bit/s.
    pub before_bps: u64,
    /// Its share of that of a link that is never idle.
    pub before_share: f64,
    /// Goodput of each slice after it, bit/s.
    pub after_bps: Vec<u64>,
    /// The end of the last slice with less than 0.95 of the goodput before, ns after the change;
    /// `None`: the last slice is one.
    pub recovered_after_ns: Option<u64>,
    /// The lowest slice as a share of the goodput before.
    pub lowest_share: f64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &Reroute) -> Result<Goodput, ScenarioError> {
    EXPERIMENT.once(settings, None)
}

fn simulate(settings: &Reroute) -> Result<Goodput, ScenarioError> {
    let mut world = World::new(settings.config())?;
    let tally = start(&mut world, settings)?;
    app::connect_all(&mut world)?;
    let begin_ns = world.now_ns();
    let measured_ns = settings.warm_up_ns / 2;
    let accepted = |world: &World| world.peek(SERVER, 0).map_or(0, |rpc| rpc.stats().rx_kinds[0]);
    let data = data_per_packet(settings.hosts.max_frame) as u64;
    let bps = |packets: u64, time_ns| per_second(packets * data * 8, time_ns);
    world.run_to(begin_ns + settings.warm_up_ns - measured_ns);
    let mut packets = accepted(&world);
    world.run_to(begin_ns + settings.warm_up_ns);
    let before_bps = bps(accepted(&world) - packets, measured_ns);
    let faults = LinkFaults { extra_delay_ns: settings.longer_ns, ..LinkFaults::default() };
    for host in world.hosts().filter(|&h| h != SERVER) {
        let link = world.fabric().uplink(host);
        world.set_link_faults(link, faults);
    }
    let change_ns = world.now_ns();
    let mut after_bps = Vec::new();
    for slice in 1..=u64::from(settings.slices) {
        packets = accepted(&world);
        world.run_to(change_ns + slice * settings.slice_ns);
        after_bps.push(bps(accepted(&world) - packets, settings.slice_ns));
    }
    tally.borrow().check()?;
    let slow = |bps: &u64| bps * 1_000_000 < before_bps * RECOVERED_PPM;
    let low = after_bps.iter().rposition(slow).map_or(0, |at| at + 1);
    let lowest = after_bps.iter().min().copied().unwrap_or(0);
    let full_bps = HOST_RATE_BPS as f64 * data as f64 / wire_bytes(data as usize) as f64;
    Ok(Goodput {
        before_bps,
        before_share: before_bps as f64 / full_bps,
        recovered_after_ns: (low < after_bps.len()).then(|| low as u64 * settings.slice_ns),
        lowest_share: lowest as f64 / before_bps as f64,
        after_bps,
        digest: world.digest(),
    })
}

fn start(world: &mut World, settings: &Reroute) -> Result<SharedTally, ScenarioError> {
    let data = data_per_packet(settings.hosts.max_frame);
    app::closed_loops(world, SERVER, (8 << 20) / data * data, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short() -> Reroute {
        Reroute { warm_up_ns: 2_000_000, slices: 3, ..Reroute::default() }
    }

    #[test]
    fn credits_alone_fill_the_longer_path() {
        let hosts = Hosts { control: courser::Control::None, ..short().hosts };
        let settings = Reroute { hosts, ..short() };
        let seen = run(&settings).expect("runs");
        assert!(seen.before_share > 0.98, "{seen:?}");
        assert_eq!((seen.recovered_after_ns, seen.after_bps.len()), (Some(0), 3), "{seen:?}");
        assert_eq!(run(&settings).expect("runs"), seen);
    }

    #[test]
    fn a_path_that_holds_more_than_the_credits_does_not_recover() {
        let hosts = Hosts { control: courser::Control::None, credits: 16, ..short().hosts };
        let seen = run(&Reroute { hosts, ..short() }).expect("runs");
        assert_eq!(seen.recovered_after_ns, None, "{seen:?}");
        assert!(seen.lowest_share < 0.7, "{seen:?}");
    }
}
