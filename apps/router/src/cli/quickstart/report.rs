//! The results: the summary, and the JSON.

use std::time::Duration;

use comfy_table::CellAlignment;
use courser_bench::clock::Clock;
use courser_bench::program::units::{show_ns, show_per_second};
use courser_bench::program::{Failure, json};
use courser_router::netns::{INTERCONNECT_MTU, LAN_MTU, Shape};
use serde_json::{Value, json};

use super::Phases;
use super::cluster::{Demo, NODES};
use super::failure::{Times, among_others};
use super::programs::Programs;
use super::screen::{self, Screen};
use super::table::Row;
use super::traffic::{Outcome, Pair};

/// All results.
pub(super) struct Results {
    shape: Shape,
    phases: Phases,
    failure_timeout: Duration,
    pub(super) ready_after: Duration,
    pub(super) programs: Programs,
    /// While all nodes were alive.
    pub(super) nodes: Vec<Row>,
    pub(super) steady: Option<Outcome>,
    /// From before the death until after the return.
    pub(super) failure: Option<Outcome>,
    pub(super) times: Times,
}

impl Results {
    pub(super) fn new(shape: Shape, phases: Phases, demo: &Demo, ready_after: Duration) -> Self {
        Self {
            shape,
            phases,
            failure_timeout: demo.config().failure_timeout,
            ready_after,
            programs: Programs::default(),
            nodes: Vec::new(),
            steady: None,
            failure: None,
            times: Times::default(),
        }
    }

    fn withdrawn(&self) -> Duration {
        self.times.withdrawn.iter().copied().max().unwrap_or_default()
    }

    /// Datagrams out of order in all phases.
    fn reordered(&self) -> u64 {
        [&self.steady, &self.failure].into_iter().flatten().map(|o| o.reordered(|_| true)).sum()
    }

    /// An error if the router did something that it must not do.
    pub(super) fn verdict(&self) -> Result<(), Failure> {
        match self.reordered() {
            0 => Ok(()),
            n => Err(Failure::Runtime(format!("{n} datagrams arrived out of order"))),
        }
    }

    /// Prints the summary, and what to do next.
    pub(super) fn print(&self, screen: &mut Screen, has_json: bool) -> Result<(), Failure> {
        screen.heading("Summary")?;
        let header =
            ["", "sent", "lost", "out of order", "p50", "p99", "max", "with death: lost", "gap"];
        let mut table = screen::table(header);
        let [steady, failure] = [&self.steady, &self.failure]
            .map(|o| o.as_ref().map(|outcome| &outcome.pairs[..]).unwrap_or_default());
        for (steady, failure) in steady.iter().zip(failure) {
            table.add_row(pair_row(steady, failure));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        screen.table(&table)?;
        self.print_times(screen)?;
        screen.line("")?;
        screen.heading("Try next")?;
        for line in [
            "router run --help         the format of cluster.toml, and a node of your own",
            "router ctl --help         routes and counters of a running node",
            "router quickstart --help  other topologies",
        ] {
            screen.line(&format!("  {line}"))?;
        }
        if !has_json {
            screen.line("  router quickstart --json router.json    everything, for programs")?;
        }
        Ok(())
    }

    fn print_times(&self, screen: &mut Screen) -> Result<(), Failure> {
        let ns = |time: Duration| show_ns(time.as_nanos() as f64);
        let rate = self.steady.as_ref().map_or(0.0, Outcome::rate_pps);
        screen.wrapped(&format!(
            "{} through the cluster. Routes of the dead node were withdrawn after {} (failure \
             timeout {}), and the node was back {} after its new start.",
            show_per_second(rate, "packets/s"),
            ns(self.withdrawn()),
            ns(self.failure_timeout),
            ns(self.times.recovered),
        ))?;
        let lost = self.failure.as_ref().map_or(0, |outcome| outcome.lost(among_others));
        if self.shape == Shape::Mesh && lost > 0 {
            screen.wrapped(&format!(
                "In a mesh, packets from a to b pass node c, too: {lost} of them were lost until its \
                 death was noticed. With --topology switch they do not."
            ))?;
        }
        Ok(())
    }

    /// The results for programs.
    pub(super) fn json(&self, clock: &Clock) -> Value {
        let ns = |time: Duration| time.as_nanos() as u64;
        let rtt = |ping: &Option<super::programs::Ping>| ping.as_ref().and_then(|p| p.mean_ns);
        let (steady, failure) = (self.steady.as_ref(), self.failure.as_ref());
        let pairs = |outcome: Option<&Outcome>| outcome.map(|o| json!(o.pairs));
        json!({
            "bench": "router-quickstart",
            "transport": "udp",
            "config": {
                "topology": self.shape.name(),
                "nodes": NODES,
                "failure_timeout_ns": ns(self.failure_timeout),
                "interconnect_mtu_bytes": INTERCONNECT_MTU,
                "mtu_bytes": LAN_MTU,
                "steady_ns": ns(self.phases.steady),
            },
            "results": {
                "ready_after_ns": ns(self.ready_after),
                "ping_rtt_ns": rtt(&self.programs.ping_v4),
                "ping_ipv6_rtt_ns": rtt(&self.programs.ping_v6),
                "rate_pps": steady.map(Outcome::rate_pps),
                "packets_sent": steady.map(|o| o.sent(|_| true)),
                "packets_lost": steady.map(|o| o.lost(|_| true)),
                "packets_reordered": self.reordered(),
                "withdrawn_after_ns": ns(self.withdrawn()),
                "recovered_after_ns": ns(self.times.recovered),
                "traffic_recovered_after_ns": self.times.traffic_recovered.map(ns),
                "unreachable_ipv4": self.times.unreachable[0],
                "unreachable_ipv6": self.times.unreachable[1],
                "others_packets_sent": failure.map(|o| o.sent(among_others)),
                "others_packets_lost": failure.map(|o| o.lost(among_others)),
                "others_packets_reordered": failure.map(|o| o.reordered(among_others)),
                "programs": self.programs.json(),
                "nodes": self.nodes,
                "steady": pairs(steady),
                "failure": pairs(failure),
            },
            "environment": json::environment(clock),
        })
    }
}

fn pair_row(steady: &Pair, failure: &Pair) -> [String; 9] {
    let time = |ns: Option<u64>| ns.map_or("-".to_owned(), |ns| show_ns(ns as f64));
    [
        format!("{} to {}", steady.from, steady.to),
        steady.packets_sent.to_string(),
        steady.packets_lost.to_string(),
        (steady.packets_reordered + failure.packets_reordered).to_string(),
        time(steady.latency_p50_ns),
        time(steady.latency_p99_ns),
        time(Some(steady.latency_max_ns)),
        failure.packets_lost.to_string(),
        time(Some(failure.longest_gap_ns)),
    ]
}
