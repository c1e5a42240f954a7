//! Loss against the size of switch buffers `[eRPC §2.1]` (E84): whether an incast of N windows of C
//! packets fits into a buffer.
//!
//! N windows of C packets are at most N C packets in a switch, less those on cables, in NICs and
//! with CPUs: about one bandwidth-delay product in total, since the queue is filled as fast as it
//! drains. With a window of one bandwidth-delay product, 12 MB suffice for 640 senders in theory;
//! the paper's target is 50.

use courser::{Control, Recovery};
use courser_bench::report::Unit;
use courser_sim::fabric::Buffer;
use courser_sim::observe::DropReason;
use courser_sim::{STORED_OVERHEAD, WIRE_OVERHEAD};
use serde::Serialize;

use super::incast::{self, Incast};
use crate::declare::column::Column;
use crate::declare::parameter::{count, name, parameters, time};
use crate::declare::points::{self, Better, Figure, Paper, Stated, Tolerance};
use crate::declare::seeds::Row;
use crate::declare::special::Special;
use crate::declare::text::{counted, ns};
use crate::declare::{Experiment, Recorded, Simulation, Step, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::{
    Cpu, MAX_TIME_NS, ScenarioError, Traffic, check, control_name, recovery_name, run_pairs,
    wire_bytes,
};

pub(crate) const EXPERIMENT: Experiment<Buffers, Loss> = Experiment {
    name: "buffers",
    aliases: &[],
    about: "Loss of an incast by size of the switch buffers [eRPC §2.1]",
    run: Simulation::Several(simulate),
    network: None,
    columns: COLUMNS,
    caption: |s, _| {
        let (time, warm_up) = (ns(s.time_ns), ns(s.warm_up_ns));
        format!(
            "N senders with {} credits each, {time} of virtual time after a warm-up of {warm_up}\n\
             Loss after the first round trip includes the warm-up; the longest queue",
            s.credits
        )
    },
    table: Table::Columns,
    picture,
    recorded: &[Recorded {
        id: "E84",
        results: include_str!("../../recorded/E84.json"),
        title: "Loss against switch buffers",
        source: "eRPC section 2.1",
        model: "An incast of N windows of 13 packets, a bandwidth-delay product of 19 kB; 512 KiB \
            requests, CPUs that take no time; go-back-N and no congestion control, unless the \
            series names others. Buffers are 12 MB with a dynamic threshold, of which one queue \
            gets eight ninths, or static for each port. Packets are lost where the windows are \
            larger than the queue may be.",
        axis: points::Axis { label: "senders", unit: Unit::Count, log: true },
        x: |_, p| p.senders.into(),
        series: |_, p| p.series(),
        only: &[],
        runs: |size| {
            let default = Buffers::default();
            let paper = Buffers {
                senders: size.pick(vec![10, 50], vec![10, 20, 50, 100, 640]),
                static_bytes: size
                    .pick(vec![60_000, 240_000], vec![60_000, 120_000, 240_000, 480_000]),
                controls: vec![Control::None],
                recoveries: vec![Recovery::GoBackN],
                time_ns: size.pick(5_000_000, default.time_ns),
                ..Buffers::default()
            };
            let own = Buffers {
                senders: size.pick(vec![50], default.senders),
                static_bytes: size.pick(vec![480_000], default.static_bytes),
                controls: vec![Control::default()],
                recoveries: size.pick(vec![Recovery::default()], default.recoveries),
                warm_up_ns: size.pick(5_000_000, default.warm_up_ns),
                time_ns: paper.time_ns,
                ..Buffers::default()
            };
            vec![paper, own]
        },
        more: |_, _| {},
        paper: &[
            Paper::new("loss", DYNAMIC_SERIES, Some(50.0), Stated::AtMost(0.0)),
            Paper::new("loss", DYNAMIC_SERIES, Some(640.0), Stated::AtMost(0.0)).because(
                "640 x 19 kB are 12 MB in theory. One queue never gets more than eight ninths of \
                 the buffer, which are 543 windows.",
            ),
        ],
    }],
    special: Special::NONE,
};

const DYNAMIC_SERIES: &str = "dynamic, 12 MB";

const LOST: Tolerance = Tolerance::relative(0.1).or_absolute(0.001);
const LOST_AFTER: Tolerance = Tolerance::relative(0.1).or_absolute(0.000_5);

type Col = Column<Buffers, Loss>;

const COLUMNS: &[Col] = &[
    Col::text("control, recovery", |_, p| p.names()),
    Col::text("N", |_, p| p.senders.to_string()),
    Col::text("queue limit", |_, p| {
        let kind = if p.is_static { "static" } else { "dynamic" };
        format!("{} kB {kind}", p.buffer_bytes / 1_000)
    }),
    Col::text("windows are larger", |_, p| {
        if p.overflow_expected { "yes" } else { "no" }.to_owned()
    }),
    Col::figure("lost", Unit::Count, |_, p| Some(p.overflows as f64)),
    Col::figure("loss", Unit::Percent, |_, p| Some(p.loss_ppm as f64 / 1e6))
        .recorded("loss", LOST)
        .better(Better::Lower)
        .drawn(Figure::Linear),
    Col::figure("after 1 RTT", Unit::Percent, |_, p| Some(p.loss_after_first_rtt_ppm as f64 / 1e6))
        .recorded_as(
            points::quantity("loss after the first round trip", Unit::Percent, LOST_AFTER),
            |_, p| (!p.is_paper()).then_some(p.loss_after_first_rtt_ppm as f64 / 1e6),
        )
        .better(Better::Lower),
    Col::figure("resent", Unit::Count, |_, p| Some(p.retransmitted as f64)),
    Col::figure("goodput", Unit::Bits, |_, p| Some(p.goodput_bps as f64))
        .recorded("goodput", Tolerance::relative(0.05))
        .better(Better::Higher)
        .drawn(Figure::Linear),
    Col::figure("queue, kB", Unit::Count, |_, p| Some((p.queue_max_bytes / 1_000) as f64)),
];

/// Loss by the limit of the queue: a line for each control, recovery and number of senders.
fn picture(rows: &[Row<Buffers, Loss>]) -> Chart {
    let mut chart = Chart::lines(
        "Loss of an incast, by control and recovery",
        Axis::log("largest queue", Unit::Bytes),
        Axis::linear("loss", Unit::Percent),
    );
    for (_, p) in rows {
        let name = format!("{}, {}", p.names(), counted(p.senders, "sender"));
        let point = (p.buffer_bytes as f64, p.loss_ppm as f64 / 1e6);
        chart.line(Style::Main, name).points.push(point);
    }
    chart
}

/// The paper's switch: 12 MB, of which one queue can use eight ninths.
pub const DYNAMIC: Buffer = Buffer::Shared { bytes: 12_000_000, alpha_num: 8, alpha_den: 1 };

/// Bytes of a request: many windows, and a thousand of them fit into a server.
const REQUEST_BYTES: usize = 512 << 10;

parameters! {
    /// Settings of the experiment: each number of senders runs with each buffer.
    #[derive(Eq)]
    pub struct Buffers {
        /// Decides all random choices.
        seed: u64 = 1, count(0..=u64::MAX);
        /// Numbers of senders, with commas
        senders: Vec<u32> = vec![20, 50, 100], count(1..=999).option("senders");
        /// Static buffers of each port in bytes, with commas; the dynamic buffer is always measured
        static_bytes: Vec<u64> = vec![120_000, 480_000, 1_920_000],
            count(2_000..=1 << 40).option("static-bytes");
        /// Congestion controls, with commas
        controls: Vec<Control> = vec![Control::None, Control::default()],
            name::<Control>().option("control");
        /// Schemes of loss recovery, with commas
        recoveries: Vec<Recovery> = vec![Recovery::GoBackN, Recovery::default()],
            name::<Recovery>().option("recovery");
        /// Credits of each session. The default is a bandwidth-delay product of 19 kB.
        credits: u32 = 13, count(1..=65_535).option("credits");
        /// The CPUs
        cpu: Cpu = Cpu::None, name::<Cpu>();
        /// Time before the measurement: the first timeouts occur after 20 ms
        warm_up_ns: u64 = 30_000_000, time(0..=MAX_TIME_NS);
        /// Virtual time of the measurement, which begins after 30 ms
        time_ns: u64 = 50_000_000, time(1..=MAX_TIME_NS).option("time");
    }
}

/// How the hosts send: congestion control and loss recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scheme {
    /// Congestion control.
    pub control: Control,
    /// Loss recovery.
    pub recovery: Recovery,
}

/// Loss of a number of senders with a buffer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Loss {
    /// Congestion control.
    #[serde(serialize_with = "control_name")]
    pub control: Control,
    /// Loss recovery.
    #[serde(serialize_with = "recovery_name")]
    pub recovery: Recovery,
    /// Senders, N.
    pub senders: u32,
    /// Capacity of one queue, bytes.
    pub buffer_bytes: u64,
    /// True if the capacity is a static part of the buffer, false if it is a share of a dynamic one.
    pub is_static: bool,
    /// Bytes of N windows of C packets.
    pub windows_bytes: u64,
    /// True if they exceed the capacity.
    pub overflow_expected: bool,
    /// Datagrams dropped by the switch for lack of buffer.
    pub overflows: u64,
    /// Overflows per million datagrams to the server.
    pub loss_ppm: u64,
    /// Datagrams dropped for lack of buffer after the first round trip, warm-up included.
    pub overflows_after_first_rtt: u64,
    /// Overflows per million datagrams to the server in that time.
    pub loss_after_first_rtt_ppm: u64,
    /// Retransmitted packets.
    pub retransmitted: u64,
    /// Goodput: data that the server has accepted, bit/s.
    pub goodput_bps: u64,
    /// Largest number of bytes in the queue.
    pub queue_max_bytes: u64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

impl Loss {
    fn names(&self) -> String {
        format!("{}, {}", self.control.name(), self.recovery)
    }

    /// True without congestion control and with go-back-N, as in the paper.
    fn is_paper(&self) -> bool {
        (self.control, self.recovery) == (Control::None, Recovery::GoBackN)
    }

    fn series(&self) -> String {
        let buffer = match self.is_static {
            true => format!("static, {} kB", self.buffer_bytes / 1_000),
            false => DYNAMIC_SERIES.to_owned(),
        };
        match self.is_paper() {
            true => buffer,
            false => {
                format!("{buffer}; control {}, recovery {}", self.control.name(), self.recovery)
            }
        }
    }
}

/// Runs all combinations, the dynamic buffer first; returns a result for each.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &Buffers) -> Result<Vec<Loss>, ScenarioError> {
    EXPERIMENT.all(settings, &mut |_, _| {})
}

fn simulate(settings: &Buffers, step: Step<'_>) -> Result<Vec<Loss>, ScenarioError> {
    let fixed = settings.static_bytes.iter().map(|&bytes| Buffer::PerPort { bytes });
    let buffers: Vec<Buffer> = std::iter::once(DYNAMIC).chain(fixed).collect();
    let all = buffers.len() * settings.senders.len();
    check(all <= 1_000, "combinations", all as u64, "1 to 1,000")?;
    let schemes = settings.controls.iter().flat_map(|&control| {
        settings.recoveries.iter().map(move |&recovery| Scheme { control, recovery })
    });
    let schemes: Vec<Scheme> = schemes.collect();
    let with = |&senders: &u32| buffers.iter().map(move |&buffer| (senders, buffer));
    let pairs: Vec<(u32, Buffer)> = settings.senders.iter().flat_map(with).collect();
    run_pairs(&schemes, &pairs, step, |scheme, (senders, buffer)| {
        point(settings, scheme, senders, buffer)
    })
}

/// Runs one combination.
///
/// # Errors
/// As [`run`].
pub fn point(
    settings: &Buffers,
    scheme: Scheme,
    senders: u32,
    buffer: Buffer,
) -> Result<Loss, ScenarioError> {
    let incast = Incast {
        seed: settings.seed,
        senders,
        credits: settings.credits,
        control: scheme.control,
        recovery: scheme.recovery,
        buffer: Some(buffer),
        cpu: settings.cpu,
        request_bytes: REQUEST_BYTES,
        warm_up_ns: settings.warm_up_ns,
        time_ns: settings.time_ns,
        ..Incast::default()
    };
    let seen = incast::run(&incast)?;
    let stored = wire_bytes(incast.packet_data()) - u64::from(WIRE_OVERHEAD - STORED_OVERHEAD);
    let windows_bytes = u64::from(senders) * u64::from(settings.credits) * stored;
    let (buffer_bytes, is_static) = match buffer {
        // Capacity of one queue that never empties.
        Buffer::Shared { bytes, alpha_num, alpha_den } => {
            let (num, den) = (u128::from(alpha_num), u128::from(alpha_den));
            ((u128::from(bytes) * num / (num + den)) as u64, false)
        }
        Buffer::PerPort { bytes } => (bytes, true),
    };
    let ppm = |traffic: &Traffic| {
        let lost = traffic.dropped(DropReason::BufferFull);
        let arrived = traffic.request_packets + lost;
        (lost, (lost * 1_000_000).checked_div(arrived).unwrap_or(0))
    };
    let (overflows_after_first_rtt, loss_after_first_rtt_ppm) = ppm(&seen.after_first_rtt);
    Ok(Loss {
        control: scheme.control,
        recovery: scheme.recovery,
        senders,
        buffer_bytes,
        is_static,
        windows_bytes,
        overflow_expected: windows_bytes > buffer_bytes,
        overflows: seen.overflows(),
        loss_ppm: ppm(&seen.traffic).1,
        overflows_after_first_rtt,
        loss_after_first_rtt_ppm,
        retransmitted: seen.traffic.retransmitted,
        goodput_bps: seen.goodput_bps,
        queue_max_bytes: seen.queue_max_bytes,
        digest: seen.digest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_control_and_recovery_has_a_point() {
        let settings = Buffers {
            senders: vec![2],
            static_bytes: vec![20_000],
            warm_up_ns: 100_000,
            time_ns: 100_000,
            ..Buffers::default()
        };
        let points = run(&settings).expect("runs");
        let names: Vec<_> = points.iter().map(|p| (p.control.name(), p.recovery.name())).collect();
        let (none, own) = ("none", "default");
        let expected = [(none, "go-back-n"), (none, own), (own, "go-back-n"), (own, own)];
        assert_eq!(names, expected.map(|pair| [pair; 2]).concat());
    }
}
