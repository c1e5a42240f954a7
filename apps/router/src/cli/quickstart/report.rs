//! The results: the summary, and the JSON.

use std::time::Duration;

use courser_kit::table::Table;
use courser_kit::units::{show_ns, show_per_second};
use courser_kit::{Failure, json};
use courser_router::netns::{INTERCONNECT_MTU, LAN_MTU, Shape};
use serde_json::{Value, json};

use super::NODES;
use super::Phases;
use super::failure::{Death, among_others};
use super::programs::Programs;
use super::screen::{self, Screen};
use super::table::Row;
use super::traffic::{Outcome, Pair};
use crate::cli::cluster::Demo;

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
    pub(super) killed: Option<Death>,
    pub(super) silent: Option<Death>,
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
            killed: None,
            silent: None,
        }
    }

    fn deaths(&self) -> impl Iterator<Item = &Death> {
        self.killed.iter().chain(&self.silent)
    }

    /// Datagrams out of order in all phases.
    fn reordered(&self) -> u64 {
        let outcomes = self.steady.iter().chain(self.deaths().map(|death| &death.outcome));
        outcomes.map(|outcome| outcome.reordered(|_| true)).sum()
    }

    /// An error if the router did something that it must not do.
    pub(super) fn verdict(&self) -> Result<(), Failure> {
        match self.reordered() {
            0 => Ok(()),
            n => Err(Failure::Runtime(format!(
                "{n} datagrams arrived out of order, which is an error of the router: repeat with \
                 --json, and report it"
            ))),
        }
    }

    /// Prints the summary, and what to do next.
    pub(super) fn print(&self, screen: &mut Screen, has_json: bool) -> Result<(), Failure> {
        screen.heading("Summary")?;
        self.print_pairs(screen)?;
        self.print_times(screen)?;
        screen.line("")?;
        screen.heading("Try next")?;
        screen.line("  router run --help    a node of your own, and what cluster.toml contains")?;
        screen.line("  router ctl --help    routes and counters of a running node")?;
        if self.shape == Shape::Mesh {
            screen.line("  router quickstart --topology switch      nodes at a switch")?;
        }
        if !has_json {
            screen.line("  router quickstart --json router.json     everything, for programs")?;
        }
        Ok(())
    }

    fn print_pairs(&self, screen: &mut Screen) -> Result<(), Failure> {
        let steady = self.steady.iter().flat_map(|outcome| &outcome.pairs);
        let killed = self.killed.iter().flat_map(|death| &death.outcome.pairs);
        screen.table(&pairs(steady.zip(killed)))
    }

    fn print_times(&self, screen: &mut Screen) -> Result<(), Failure> {
        let ns = |time: Duration| show_ns(time.as_nanos() as f64);
        let rate = self.steady.as_ref().map_or(0.0, Outcome::rate_pps);
        let order = match self.reordered() {
            0 => "none out of order".to_owned(),
            n => format!("{n} out of order"),
        };
        screen.wrapped(&format!(
            "{} packets/s between the hosts, {order} in all phases.",
            show_per_second(rate, "").trim(),
        ))?;
        for (what, death) in [("killed", &self.killed), ("silent", &self.silent)] {
            let Some(death) = death else { continue };
            screen.wrapped(&format!(
                "Node {what}: routes withdrawn after {} (limit {}), back after {}; {} lost between \
                 the others.",
                ns(death.withdrawn()),
                ns(self.failure_timeout),
                ns(death.recovered),
                death.outcome.lost(among_others),
            ))?;
        }
        if self.shape == Shape::Mesh && self.deaths().any(|d| d.outcome.lost(among_others) > 0) {
            screen.wrapped(
                "In a mesh, packets between a and b pass node c, too. Those on their way there when \
                 it dies are lost; at a switch, none are.",
            )?;
        }
        Ok(())
    }

    /// The results for programs.
    pub(super) fn json(&self) -> Value {
        let ns = |time: Duration| time.as_nanos() as u64;
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
            "results": self.values(),
            "environment": json::environment(None),
        })
    }

    fn values(&self) -> Value {
        let ns = |time: Duration| time.as_nanos() as u64;
        let (steady, killed) = (self.steady.as_ref(), self.killed.as_ref());
        let deaths: Vec<Value> = self.deaths().map(Death::json).collect();
        json!({
            "ready_after_ns": ns(self.ready_after),
            "ping_rtt_ns": self.programs.ping_v4.as_ref().and_then(|ping| ping.mean_ns),
            "ping_ipv6_rtt_ns": self.programs.ping_v6.as_ref().and_then(|ping| ping.mean_ns),
            "rate_pps": steady.map(Outcome::rate_pps),
            "packets_sent": steady.map(|o| o.sent(|_| true)),
            "packets_lost": steady.map(|o| o.lost(|_| true)),
            "packets_reordered": self.reordered(),
            "withdrawn_after_ns": killed.map(|death| ns(death.withdrawn())),
            "recovered_after_ns": killed.map(|death| ns(death.recovered)),
            "programs": self.programs.json(),
            "nodes": self.nodes,
            "pairs": steady.map(|outcome| &outcome.pairs),
            "deaths": deaths,
        })
    }
}

/// The pairs of hosts, each with its results while all nodes were alive and while one was killed.
fn pairs<'a>(all: impl Iterator<Item = (&'a Pair, &'a Pair)>) -> Table {
    let header =
        ["from, to", "sent", "lost", "p50", "p99", "max", "killed:\nlost", "\nlongest gap"];
    let mut table = screen::table(header);
    for (steady, killed) in all {
        table.add_row(pair_row(steady, killed));
    }
    table.align_right(1..8);
    table
}

fn pair_row(steady: &Pair, killed: &Pair) -> [String; 8] {
    let time = |ns: Option<u64>| ns.map_or("-".to_owned(), |ns| show_ns(ns as f64));
    [
        format!("{} to {}", steady.from, steady.to),
        steady.packets_sent.to_string(),
        steady.packets_lost.to_string(),
        time(steady.latency_p50_ns),
        time(steady.latency_p99_ns),
        time(Some(steady.latency_max_ns)),
        killed.packets_lost.to_string(),
        time(Some(killed.longest_gap_ns)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::assert_fits;

    #[test]
    fn the_table_of_pairs_fits_a_terminal() {
        let pair = Pair {
            from: "a".to_owned(),
            to: "b".to_owned(),
            packets_sent: 9_999_999_999,
            packets_received: 9_999_999_999,
            packets_lost: 9_999_999_999,
            packets_reordered: 9_999_999_999,
            latency_p50_ns: Some(999_949_999),
            latency_p99_ns: Some(999_949_999),
            latency_max_ns: u64::MAX,
            longest_gap_ns: u64::MAX,
        };
        assert_fits(&screen::text(&pairs([(&pair, &pair)].into_iter())));
    }
}
