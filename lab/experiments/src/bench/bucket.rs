//! `courser-lab bench bucket`: the queue in front of a slow link, with and without congestion control.
//!
//! Two network namespaces are joined by a virtual link, which a token bucket limits to 1 Gbit/s in the
//! direction of the data, with a queue of 12 MB. Eight client endpoints of one thread send large
//! requests to one server. Runs with a control and without any alternate, in turn in the other order,
//! with new endpoints each; meanwhile the bytes in the queue are read every 2 ms.

mod load;
mod qdisc;

use std::time::Duration;

use courser::Control;
use courser_bench::clock::Clock;
use courser_bench::contention::BUSY;
use courser_bench::netns::{self, DEVICE, Host, Unavailable};
use courser_bench::rpc::run::object;
use courser_bench::stats::Summary;
use courser_kit::Failure;
use courser_kit::affinity;
use courser_kit::environment::Environment;
use serde::Serialize;
use serde_json::{Map, Value, json};

use self::load::{Load, Measured};

/// Kind of the queueing discipline.
const DISCIPLINE: &str = "tbf";
/// Rate of the link, bit/s.
const RATE_BPS: f64 = 1e9;
/// Parameters of the token bucket: a burst of 64 kB is the largest that the kernel builds.
const BUCKET: &str = "rate 1gbit burst 64kb limit 12mb";
/// Bytes of headers that the token bucket counts for a datagram: Ethernet, IPv4 and UDP.
const HEADERS: usize = 14 + 20 + 8;

/// The load and its duration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketPlan {
    /// The control that is compared with none.
    pub(crate) control: Control,
    /// Pairs of runs, one with the control and one without.
    pub(crate) pairs: u32,
    /// Client endpoints.
    pub(crate) senders: u32,
    /// Bytes of a request.
    pub(crate) size: usize,
    /// Time of a run that is measured.
    pub(crate) time: Duration,
}

/// Median and range over runs or pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let summary = Summary::of(values);
        summary.map_or_else(Self::default, |s| Self { median: s.median, min: s.min, max: s.max })
    }
}

/// The runs under one control.
#[derive(Clone, Debug, Serialize)]
struct Runs {
    control: &'static str,
    backlog_bytes: Spread,
    goodput_bps: Spread,
    /// Goodput as a fraction of what fits the link.
    goodput_fraction: Spread,
    runs: Vec<Measured>,
}

#[derive(Clone, Debug, Serialize)]
struct Results {
    /// Within each pair: mean backlog and goodput with the control, divided by those without.
    backlog_ratio: Spread,
    goodput_ratio: Spread,
    controls: [Runs; 2],
}

/// The result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BucketReport {
    bench: &'static str,
    transport: &'static str,
    config: Map<String, Value>,
    results: Results,
    environment: Environment,
}

/// Runs the benchmark. `progress` gets the completed part.
///
/// # Errors
/// The machine or user cannot have such a link, or a run failed.
pub(crate) fn run(
    plan: BucketPlan,
    progress: &mut dyn FnMut(f64),
) -> Result<BucketReport, Failure> {
    let clock = Clock::new();
    let cores = affinity::choose().map_err(failed)?;
    let hosts = link().map_err(unavailable)?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for pair in 0..plan.pairs {
        let mut pair_of = [plan.control, Control::None];
        if pair % 2 == 1 {
            pair_of.reverse();
        }
        for (half, control) in (0..).zip(pair_of) {
            let measured = plan.load(control).run(&hosts, &cores)?;
            if control == Control::None { &mut without } else { &mut with }.push(measured);
            progress(f64::from(2 * pair + half + 1) / f64::from(2 * plan.pairs));
        }
    }
    Ok(BucketReport {
        bench: "bucket",
        transport: "udp",
        config: object(json!({
            "control": plan.control.name(),
            "pairs": plan.pairs,
            "senders": plan.senders,
            "size": plan.size,
            "time_ns": plan.time.as_nanos() as u64,
            "rate_bps": RATE_BPS,
            "bucket": BUCKET,
        })),
        results: summed(plan.control, with, without),
        environment: Environment::collect(clock.error_ppm(), &cores),
    })
}

impl BucketPlan {
    fn load(&self, control: Control) -> Load {
        let Self { senders, size, time, .. } = *self;
        Load { control, senders, size, warm_up: time / 4, time }
    }
}

/// Two hosts; what the first sends passes the token bucket.
fn link() -> Result<[Host; 2], Unavailable> {
    let hosts = netns::pair()?;
    hosts[0].run(&format!("tc qdisc add dev {DEVICE} root {DISCIPLINE} {BUCKET}"))?;
    Ok(hosts)
}

fn unavailable(reason: Unavailable) -> Failure {
    Failure::Usage(format!("bench bucket needs root, ip and tc: {reason}"))
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Runtime(error.to_string())
}

fn summed(control: Control, with: Vec<Measured>, without: Vec<Measured>) -> Results {
    let ratio = |of: fn(&Measured) -> f64| {
        Spread::of(with.iter().zip(&without).map(|(a, b)| of(a) / of(b).max(1.0)))
    };
    Results {
        backlog_ratio: ratio(|m| m.backlog_bytes),
        goodput_ratio: ratio(|m| m.goodput_bps),
        controls: [Runs::of(control, with), Runs::of(Control::None, without)],
    }
}

impl Runs {
    fn of(control: Control, runs: Vec<Measured>) -> Self {
        let spread = |of: &dyn Fn(&Measured) -> f64| Spread::of(runs.iter().map(of));
        Self {
            control: control.name(),
            backlog_bytes: spread(&|m| m.backlog_bytes),
            goodput_bps: spread(&|m| m.goodput_bps),
            goodput_fraction: spread(&|m| m.goodput_bps / m.possible_bps()),
            runs,
        }
    }
}

impl Measured {
    /// Bits of requests that fit the link in a second.
    fn possible_bps(&self) -> f64 {
        RATE_BPS * f64::from(self.data_per_packet) / (self.max_frame + HEADERS).max(1) as f64
    }
}

impl BucketReport {
    /// The median share of the time for which the benchmark waited for a core, if it is at least
    /// [`BUSY`].
    pub(crate) fn disturbed(&self) -> Option<f64> {
        let runs = self.results.controls.iter().flat_map(|controls| &controls.runs);
        let median = Spread::of(runs.filter_map(|m| m.cpu_wait_share)).median;
        (median >= BUSY).then_some(median)
    }
}

/// The result as a table.
pub(crate) fn render(report: &BucketReport) -> String {
    table(&report.results)
}

fn table(results: &Results) -> String {
    let mut text = String::from(
        "control          mean queue  longest       goodput  of link   waited       RTT\n",
    );
    for Runs { control, runs, .. } in &results.controls {
        for m in runs {
            text += &format!(
                "{control:<14} {:>9.1} kB {:>5.0} kB {:>8.3} Gb/s {:>6.1} % {:>6.1} % {:>6.2} ms\n",
                m.backlog_bytes / 1e3,
                f64::from(m.backlog_max_bytes) / 1e3,
                m.goodput_bps / 1e9,
                100.0 * m.goodput_bps / m.possible_bps(),
                100.0 * m.cpu_wait_share.unwrap_or_default(),
                m.srtt_ns / 1e6,
            );
        }
    }
    text += "waited: share of the time for which the threads waited for a core\n";
    let line = |what: &str, s: &Spread| {
        format!("{what}: {:.3} of that without control ({:.3} to {:.3})\n", s.median, s.min, s.max)
    };
    text + &line("mean queue", &results.backlog_ratio) + &line("goodput", &results.goodput_ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(backlog_bytes: f64, goodput_bps: f64) -> Measured {
        let (max_frame, data_per_packet) = (1472, 1438);
        let most = Measured {
            backlog_max_bytes: 12_000_000,
            cpu_wait_share: Some(2.0),
            ..Measured::default()
        };
        Measured { backlog_bytes, goodput_bps, max_frame, data_per_packet, ..most }
    }

    #[test]
    fn ratios_are_those_within_pairs() {
        let with = vec![measured(10.0, 8e8), measured(30.0, 9e8), measured(20.0, 9e8)];
        let without = vec![measured(100.0, 9e8), measured(1000.0, 9e8), measured(100.0, 9e8)];
        let results = summed(Control::default(), with, without);
        assert_eq!(results.backlog_ratio, Spread { median: 0.1, min: 0.03, max: 0.2 });
        assert_eq!(results.goodput_ratio.median, 1.0);
        let fraction = results.controls[1].goodput_fraction.median;
        assert!((fraction - 0.9 * 1514.0 / 1438.0).abs() < 1e-9, "{fraction}");
    }

    #[test]
    fn tables_fit_a_terminal() {
        let runs = || vec![measured(12e6, 1e9); 2];
        let text = table(&summed(Control::TimelyPatched, runs(), runs()));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
