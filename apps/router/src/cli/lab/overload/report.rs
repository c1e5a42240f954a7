//! The results of `router overload`.

use std::io::Write;
use std::time::Duration;

use courser_bench::clock::Clock;
use courser_bench::stats::Summary;
use courser_kit::table::Table;
use courser_kit::units::{show_ns, show_per_second};
use courser_kit::{Failure, json, out};
use serde_json::{Map, Value, json};

use super::traffic::{Answers, FLOWS, Flood, PAYLOAD};
use super::{LOADS, NODES};

/// The way that packets take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Path {
    /// By the nodes of a router.
    Router,
    /// By the kernel's forwarding.
    Kernel,
}

impl Path {
    const ALL: [Path; 2] = [Path::Router, Path::Kernel];

    const fn name(self) -> &'static str {
        match self {
            Path::Router => "router",
            Path::Kernel => "kernel",
        }
    }
}

/// A path in a round.
#[derive(Debug)]
pub(super) struct Measured {
    /// By load, as in [`LOADS`].
    pub(super) floods: Vec<Flood>,
    /// Without other traffic.
    pub(super) idle: Answers,
    /// Beside a flood of the capacity.
    pub(super) beside: Answers,
}

/// All results.
#[derive(Debug)]
pub(super) struct Report {
    /// The rate that the router delivers of a flood, packets/s.
    pub(super) capacity_pps: f64,
    time: Duration,
    rounds: u32,
    measured: [Vec<Measured>; 2],
}

impl Report {
    pub(super) fn new(capacity_pps: f64, time: Duration, rounds: u32) -> Self {
        Report { capacity_pps, time, rounds, measured: Default::default() }
    }

    pub(super) fn add(&mut self, path: Path, measured: Measured) {
        self.measured[path as usize].push(measured);
    }

    /// A quantity of a load over all rounds.
    fn floods(&self, path: Path, load: usize, value: impl Fn(&Flood) -> f64) -> Option<Summary> {
        let rounds = self.measured[path as usize].iter();
        Summary::of(rounds.filter_map(|round| round.floods.get(load)).map(value))
    }

    fn delivered(&self, path: Path, load: usize) -> f64 {
        self.floods(path, load, Flood::delivered_pps).map_or(f64::NAN, |s| s.median)
    }

    fn best(&self, path: Path) -> f64 {
        (0..LOADS.len()).map(|load| self.delivered(path, load)).fold(f64::NAN, f64::max)
    }

    /// Delivered at the largest load, as a part of the best.
    fn to_best(&self, path: Path) -> f64 {
        self.delivered(path, LOADS.len() - 1) / self.best(path)
    }

    /// The median over the rounds of a percentile, ns.
    fn latency(&self, path: Path, of: impl Fn(&Measured) -> Option<u64>) -> Option<Summary> {
        Summary::of(self.measured[path as usize].iter().filter_map(|m| Some(of(m)? as f64)))
    }

    pub(super) fn print(&self) -> Result<(), Failure> {
        let mut out = out::stdout();
        out.write_all(self.text().as_bytes())?;
        Ok(out.flush()?)
    }

    fn text(&self) -> String {
        let times = match self.rounds {
            1 => "one round".to_owned(),
            rounds => format!("medians of {rounds}"),
        };
        let head = format!(
            "{NODES} nodes between two hosts, datagrams of {PAYLOAD} bytes in {FLOWS} flows; {times}"
        );
        let (loads, latencies) = (self.loads(), self.latencies());
        let lines = [head, String::new()].into_iter();
        let lines = lines.chain(loads.lines()).chain([String::new()]);
        let lines = lines.chain(latencies.lines());
        let ratio = self.best(Path::Router) / self.best(Path::Kernel);
        let last = format!("Best rate of the router / of the kernel: {ratio:.2}");
        lines.chain([String::new(), last]).map(|line| line + "\n").collect()
    }

    /// A row for each load.
    fn loads(&self) -> Table {
        let header = ["load", "router, offered", "delivered", "kernel, offered", "delivered"];
        let mut table = Table::ruled(header);
        let rate = |value: f64| show_per_second(value, "pps");
        for (at, load) in LOADS.iter().enumerate() {
            let mut row = vec![load.to_string()];
            for path in Path::ALL {
                let offered = self.floods(path, at, Flood::offered_pps);
                row.push(rate(offered.map_or(f64::NAN, |s| s.median)));
                row.push(rate(self.delivered(path, at)));
            }
            table.add_row(row);
        }
        let mut row = vec!["largest/best".to_owned()];
        for path in Path::ALL {
            row.extend([String::new(), format!("{:.2}", self.to_best(path))]);
        }
        table.add_row(row);
        table.align_right(1..5);
        table
    }

    /// A row for each path.
    fn latencies(&self) -> Table {
        let header = ["request and answer", "idle, p50", "p99", "beside a flood, p50", "p99"];
        let mut table = Table::ruled(header);
        for path in Path::ALL {
            let show = |of: fn(&Measured) -> Option<u64>| {
                self.latency(path, of).map_or_else(|| "none".to_owned(), |s| show_ns(s.median))
            };
            table.add_row([
                path.name().to_owned(),
                show(|m| m.idle.latency.map(|l| l.p50_ns)),
                show(|m| m.idle.latency.map(|l| l.p99_ns)),
                show(|m| m.beside.latency.map(|l| l.p50_ns)),
                show(|m| m.beside.latency.map(|l| l.p99_ns)),
            ]);
        }
        table.align_right(1..5);
        table
    }

    pub(super) fn json(&self, clock: &Clock) -> Value {
        let results: Vec<Value> = Path::ALL.into_iter().map(|path| self.path_json(path)).collect();
        json!({
            "bench": "router-overload",
            "transport": "udp",
            "config": {
                "nodes": NODES, "payload_bytes": PAYLOAD, "flows": FLOWS, "rounds": self.rounds,
                "time_ms": self.time.as_millis() as u64,
                "capacity_pps": self.capacity_pps,
            },
            "results": {
                "paths": results,
                "ratio_to_kernel": self.best(Path::Router) / self.best(Path::Kernel),
            },
            "environment": json::environment(clock.error_ppm()),
        })
    }

    fn path_json(&self, path: Path) -> Value {
        let loads: Vec<Value> = (0..LOADS.len()).map(|at| self.load_json(path, at)).collect();
        let latency = |of: fn(&Measured) -> Answers| {
            let p50 = self.latency(path, |m| of(m).latency.map(|l| l.p50_ns));
            let p99 = self.latency(path, |m| of(m).latency.map(|l| l.p99_ns));
            let lost: u64 = self.measured[path as usize].iter().map(|m| of(m).lost).sum();
            let median = |s: Option<Summary>| s.map(|s| s.median);
            json!({ "latency_p50_ns": median(p50), "latency_p99_ns": median(p99), "lost": lost })
        };
        json!({
            "path": path.name(),
            "loads": loads,
            "ratio_to_best_at_largest_load": self.to_best(path),
            "request_idle": latency(|m| m.idle),
            "request_beside_flood": latency(|m| m.beside),
        })
    }

    fn load_json(&self, path: Path, at: usize) -> Value {
        let mut object = Map::new();
        object.insert("load".into(), LOADS[at].into());
        for (name, value) in [
            ("offered_pps", Flood::offered_pps as fn(&Flood) -> f64),
            ("delivered_pps", Flood::delivered_pps),
        ] {
            let summary = self.floods(path, at, value);
            for (end, of) in [
                ("", summary.map(|s| s.median)),
                ("_min", summary.map(|s| s.min)),
                ("_max", summary.map(|s| s.max)),
            ] {
                object.insert(format!("{name}{end}"), of.into());
            }
        }
        let sum = |of: fn(&Flood) -> u64| {
            let rounds = self.measured[path as usize].iter();
            rounds.filter_map(|round| round.floods.get(at)).map(of).sum::<u64>()
        };
        object.insert("sent".into(), sum(|f| f.sent).into());
        object.insert("received".into(), sum(|f| f.received).into());
        object.insert("out_of_order".into(), sum(|f| f.out_of_order).into());
        object.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_any_result_fits_a_terminal() {
        let none = Answers { latency: None, lost: 1 };
        for (sent, seconds) in [(0, 1), (1, 1), (u64::MAX, 1), (987_654, 3)] {
            let time = Duration::from_secs(seconds);
            let flood = Flood { sent, received: sent, out_of_order: 0, time };
            for rounds in [1, 1_000] {
                let mut report = Report::new(1.0, time, rounds);
                for path in Path::ALL {
                    let floods = vec![flood; LOADS.len()];
                    report.add(path, Measured { floods, idle: none, beside: none });
                }
                let text = report.text();
                crate::cli::assert_fits(&text);
                assert!(text.contains("largest/best") && text.contains("none"), "{text}");
            }
        }
    }
}
