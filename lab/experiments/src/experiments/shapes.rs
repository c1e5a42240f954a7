//! Congestion in the shapes that hosts and networks have: several endpoints on a host, one sender to
//! many, small calls beside large requests, random starts and rests, jitter and pauses of hosts, slow
//! CPUs, slow links, an uplink that is the bottleneck, small buffers.
//!
//! A shape is a load with targets. It runs beside the same load without control, and the table states
//! which targets are missed.

mod clients;
mod judge;
mod load;
mod recorder;
mod rows;
mod simulate;

use clap::ArgMatches;
use courser::Control;
use courser_bench::report::Unit;
use courser_kit::text::labelled;
use courser_kit::units::show_ns;

pub use self::judge::{Aim, Figure, Judged};
pub use self::load::{Load, Source};
pub use self::rows::Pick;
use self::rows::Shape;
pub use self::simulate::Seen;
use crate::declare::column::Column;
use crate::declare::parameter::{self, Nested, flag, name, parameters};
use crate::declare::points::{self, Better, Figure as DrawnAs, SHARE, Tolerance};
use crate::declare::seeds::{Row, Runs};
use crate::declare::special::Special;
use crate::declare::{Experiment, Recorded, Simulation, Step, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::ScenarioError;
use crate::scenario::hosts::Hosts;

pub(crate) const EXPERIMENT: Experiment<Shapes, Judged> = Experiment {
    name: "shapes",
    aliases: &[],
    about: "Congestion in the shapes that hosts and networks have, with targets",
    run: Simulation::Several(simulate),
    network: None,
    columns: COLUMNS,
    caption: |s, _| {
        format!(
            "Times in us, the last above the limit (last) in ms, queues in kB, packets accepted as a \
             share of the link (line) and of those without control (none); {} each",
            show_ns(s.duration_ns() as f64)
        )
    },
    table: Table::Followed(below),
    picture,
    recorded: &[Recorded {
        id: "shapes",
        results: include_str!("../../recorded/shapes.json"),
        title: "Congestion in the shapes that hosts and networks have",
        source: "Courser ADR 35, ADR 56",
        model: "Loads with targets, one or more of each family: endpoints of a host, frames, sizes \
            of requests, senders that rest, small calls, jitter and pauses of hosts, slow hosts, uplinks, \
            paths of unequal rate, buffers of switches. 25 Gbit/s, frames of 1,472 bytes unless the load \
            says otherwise, random starts, 20 ms of which the first third is a warm-up. Beside the same \
            load without control, over switches with room for all windows. A target that is missed is \
            counted.",
        axis: points::Axis { label: "senders", unit: Unit::Count, log: true },
        x: |s, o| s.load_named(o.shape).senders.into(),
        series: |s, o| of_control(o.shape, s),
        only: &[],
        runs: |_| {
            let rows = Pick::of("gate").into_iter().collect();
            let changed = vec![("duration_ns", RECORDED_NS)];
            vec![Shapes { rows, changed, ..Shapes::default() }]
        },
        more: |_, _| {},
        paper: &[],
    }],
    special: Special {
        after_help: "\
`courser-lab verify --short --only shapes` compares the shapes of `gate` with their recorded \
figures, in runs of 20 ms with five seeds: about a minute on two cores. All shapes beside \
those without control and under the controls of papers, in runs of 200 ms with five seeds \
(the last example), take three hours or more.

Examples:
  courser-lab sim run shapes --control default         a choice of all shapes
  courser-lab sim run shapes --rows e8-n96 --short     one of them, short
  courser-lab sim run shapes --rows jitter --seeds 5   a family, with five seeds
  courser-lab sim run shapes --rows e1-n20 --jitter 3us   one, changed
  courser-lab sim run shapes --rows all --control swift,dcqcn,timely --seeds 5",
        adjust: |settings, arguments| settings.changed = changed(&settings.load, arguments),
        ..Special::NONE
    },
};

type Col = Column<Shapes, Judged>;

const COLUMNS: &[Col] = &[
    Col::text("shape", |s, o| of_control(o.shape, s)),
    Col::figure("base", Unit::Plain, |_, o| us(o.base_rtt_ns)).digits(1),
    Col::figure("p50", Unit::Plain, |_, o| us(o.seen.rtt.p50_ns)).digits(1),
    Col::figure("p99", Unit::Plain, |_, o| us(o.seen.rtt.p99_ns))
        .digits(1)
        .recorded_as(points::quantity("round trip p99", Unit::Time, TIMES), |_, o| {
            Some(o.seen.rtt.p99_ns as f64)
        })
        .no_worse(Better::Lower)
        .drawn(DrawnAs::Log),
    Col::figure("line", Unit::Plain, |_, o| Some(o.seen.line_share)),
    Col::figure("none", Unit::Plain, |_, o| o.of_none)
        .recorded("packets accepted, of none", SHARE)
        .no_worse(Better::Higher),
    Col::figure("slow", Unit::Plain, |_, o| Some(o.seen.slowest_share))
        .digits(2)
        .recorded("slowest sender / mean", SHARE)
        .no_worse(Better::Higher),
    Col::figure("Jain", Unit::Plain, |_, o| Some(o.seen.jain)).digits(2),
    Col::figure("queue", Unit::Plain, |_, o| Some(o.seen.queue_max_bytes as f64 / 1e3))
        .digits(0)
        .recorded_as(
            points::quantity("longest queue", Unit::Bytes, TIMES.or_absolute(5e3)),
            |_, o| Some(o.seen.queue_max_bytes as f64),
        )
        .no_worse(Better::Lower),
    Col::figure("drops", Unit::Count, |_, o| {
        (o.has_small_buffer || o.seen.overflows > 0).then_some(o.seen.overflows as f64)
    }),
    Col::figure("calls", Unit::Plain, |_, o| o.calls_ns.and_then(us))
        .digits(1)
        .recorded_as(points::quantity("calls p99", Unit::Time, TIMES), |_, o| {
            o.calls_ns.map(|ns| ns as f64)
        })
        .no_worse(Better::Lower),
    Col::figure("last", Unit::Plain, |_, o| o.settled_after_ns.map(|ns| ns as f64 / 1e6))
        .digits(0)
        .or("not"),
    Col::figure("miss", Unit::Count, |_, o| Some(missed(o) as f64))
        .recorded("targets missed", Tolerance::relative(0.0))
        .no_worse(Better::Lower),
];

/// Tolerance of percentiles and queues, which depend on the order of events.
const TIMES: Tolerance = Tolerance { relative: 0.05, absolute: 500.0 };

fn us(ns: u64) -> Option<f64> {
    Some(ns as f64 / 1e3)
}

fn missed(o: &Judged) -> usize {
    o.targets.iter().filter(|aim| !aim.met).count()
}

/// The name of a row: with the control, unless that is the default.
fn of_control(shape: &str, s: &Shapes) -> String {
    match s.load.hosts.control {
        Control::TwoWindow => shape.to_owned(),
        control => format!("{shape} {}", control.name()),
    }
}

/// The targets that a seed has missed, with the worst value.
fn below(runs: &Runs<Row<Shapes, Judged>>) -> String {
    let (mut text, mut met, mut all) = (String::new(), 0, 0);
    for (case, (s, first)) in runs.cases().iter().enumerate() {
        if s.load.hosts.control == Control::None {
            continue;
        }
        all += 1;
        let worst = |at: usize| {
            let aims = runs.of_case(case).filter_map(|(_, o)| o.targets.get(at));
            let order = |aim: &&Aim| if aim.figure.is_at_least() { -aim.value } else { aim.value };
            aims.max_by(|a, b| order(a).total_cmp(&order(b)))
        };
        let missed = (0..first.targets.len()).filter_map(worst).filter(|aim| !aim.met);
        let missed: Vec<String> = missed.map(aim_text).collect();
        if missed.is_empty() {
            met += 1;
            continue;
        }
        text += &labelled(&format!("{}: ", of_control(first.shape, s)), &missed.join("; "));
        text.push('\n');
    }
    let seeds = if runs.is_one() { "" } else { " with every seed" };
    format!("\n{text}{met} of {all} shapes meet their targets{seeds}\n")
}

/// A target as text: the figure, its value, its limit.
fn aim_text(aim: &Aim) -> String {
    let time = |ns: f64| if ns.is_finite() { show_ns(ns) } else { "never".to_owned() };
    let share = |share: f64| format!("{share:.3}");
    let kilobytes = |bytes: f64| format!("{:.0} kB", bytes / 1e3);
    let (name, show): (_, &dyn Fn(f64) -> String) = match aim.figure {
        Figure::Rtt => ("p99", &time),
        Figure::Calls => ("p99 of calls", &time),
        Figure::Small => ("p99 of small calls", &time),
        Figure::OfNone => ("of none", &share),
        Figure::Slowest => ("slowest", &share),
        Figure::Queue => ("queue", &kilobytes),
        Figure::Back => ("settled after", &time),
    };
    let bound = if aim.figure.is_at_least() { "least" } else { "most" };
    format!("{name} {}, at {bound} {}", show(aim.value), show(aim.limit))
}

/// Round trips of the shapes, by control.
fn picture(rows: &[Row<Shapes, Judged>]) -> Chart {
    let mut chart = Chart::bars(
        "Round trips of the shapes, by control",
        Axis::log("99th percentile as a multiple of the base round trip", Unit::Plain),
    );
    for (s, o) in rows {
        let times = o.seen.rtt.p99_ns as f64 / o.base_rtt_ns as f64;
        chart.bar(Style::Main, s.load.hosts.control.name(), o.shape, times);
    }
    chart
}

parameters! {
    /// Settings of the experiment.
    pub struct Shapes {
        /// Shapes, or groups of them
        rows: Vec<Pick> = vec![Pick::default()], name::<Pick>().option("rows");
        /// Runs of 30 ms
        short: bool = false, flag().option("short");
        /// Do not run the shapes without control: packets are compared with the link
        alone: bool = false, flag().option("alone");
        /// Options that change all shapes
        load: Load = Load::default(), Nested;
        /// Fields of the load that options have changed, with their values.
        changed: Vec<(&'static str, u64)> = Vec::new();
    }
}

/// Virtual time of a recorded run, ns.
const RECORDED_NS: u64 = 20_000_000;

/// Virtual time of a short run, ns.
const SHORT_NS: u64 = 30_000_000;

impl Shapes {
    /// The load of a shape with the changes of options.
    fn load_of(&self, shape: &Shape) -> Load {
        let load = (shape.load)();
        let Hosts { seed, control, recovery, .. } = self.load.hosts;
        let mut load = Load { hosts: Hosts { seed, control, recovery, ..load.hosts }, ..load };
        if self.short {
            load.duration_ns = SHORT_NS;
        }
        for &(field, value) in &self.changed {
            parameter::set(&mut load, field, value);
        }
        load
    }

    /// The load of the shape with this name, or that of no shape.
    fn load_named(&self, shape: &str) -> Load {
        rows::of_name(shape).map_or(self.load, |shape| self.load_of(shape))
    }

    fn duration_ns(&self) -> u64 {
        let of = |shape: &&'static Shape| self.load_of(shape).duration_ns;
        rows::picked(&self.rows).first().map_or(self.load.duration_ns, of)
    }
}

/// The fields of the load that options have changed.
fn changed(load: &Load, arguments: &ArgMatches) -> Vec<(&'static str, u64)> {
    let all = parameter::given(load, arguments).into_iter();
    all.filter_map(|(field, values)| Some((field, *values.first()?))).collect()
}

/// Runs the shapes.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &Shapes) -> Result<Vec<Judged>, ScenarioError> {
    EXPERIMENT.all(settings, &mut |_, _| {})
}

fn simulate(settings: &Shapes, step: Step<'_>) -> Result<Vec<Judged>, ScenarioError> {
    let shapes = rows::picked(&settings.rows);
    let mut all = Vec::new();
    for &shape in &shapes {
        step(all.len(), shapes.len());
        all.push(judge::judge(shape, &|shape| settings.load_of(shape), settings.alone)?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_contradict_each_other_or_plan_too_much_are_refused() {
        for changed in [
            &[("most_bytes", 65_536)][..],
            &[("least_bytes", 8 << 20)],
            &[("churn_ns", 1)],
            &[("pause_every_ns", 9_999)],
        ] {
            let refused = run(&short("e1-n1", changed));
            assert!(matches!(refused, Err(ScenarioError::Setting { .. })), "{changed:?}");
        }
        assert!(run(&short("e1-n1", &[("delay_ns", 100_000)])).is_ok());
    }

    fn short(row: &str, changed: &[(&'static str, u64)]) -> Shapes {
        let rows = vec![Pick::of(row).expect("a shape")];
        let mut changed = changed.to_vec();
        changed.push(("duration_ns", 3_000_000));
        Shapes { rows, changed, alone: true, ..Shapes::default() }
    }

    fn one(settings: &Shapes) -> Judged {
        let [seen] = &run(settings).expect("runs")[..] else { panic!("one shape") };
        seen.clone()
    }

    #[test]
    fn senders_of_several_endpoints_fill_the_link() {
        let seen = one(&short("e4-n8", &[("small", 8)])).seen;
        assert!(seen.line_share > 0.7 && seen.line_share <= 1.01, "{seen:?}");
        assert!(seen.small.count > 100, "{seen:?}");
    }

    #[test]
    fn a_sender_sends_to_all_receivers() {
        let seen = one(&short("to-100", &[("receivers", 3)])).seen;
        assert!(seen.line_share > 0.7 && seen.slowest_share > 0.0, "{seen:?}");
        assert!(seen.small.count > 10, "{seen:?}");
    }

    #[test]
    fn a_seed_decides_starts_and_jitter_and_runs_repeat() {
        for (row, changed) in [("e4-n20", &[][..]), ("e1-n2", &[("jitter_ns", 20_000)])] {
            let of = |seed| {
                let mut settings = short(row, changed);
                settings.load.hosts.seed = seed;
                let load = settings.load_of(rows::of_name(row).expect("a shape"));
                simulate::simulate(&load, 0).expect("runs")
            };
            let (first, second) = (of(1), of(2));
            assert_eq!(first, of(1), "{row}");
            assert_ne!(first.digest, second.digest, "{row}");
            assert_ne!(first.rtt, second.rtt, "{row}");
            assert_ne!(first.slowest_share, second.slowest_share, "{row}");
        }
    }

    #[test]
    fn every_option_of_a_load_changes_every_shape() {
        let settings = short("cpu", &[("senders", 3), ("jitter_ns", 7)]);
        let load = settings.load_of(rows::of_name("cpu").expect("a shape"));
        assert_eq!((load.senders, load.jitter_ns, load.packet_ns), (3, 7, 650));
    }
}
