//! `router replay`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use courser_kit::table::Table;
use courser_kit::units::show_per_second;
use courser_kit::{Failure, counters, json, out};
use courser_router::config::Config;
use courser_router::line::{CaptureError, CaptureIntake};
use courser_router::local::{Exits, Replay, ReplayError, builtin};
use courser_router::route::{NodeId, PortId};
use courser_router::run::node_named;
use serde_json::{Value, json};

#[derive(Debug, Args)]
#[command(after_help = "\
Needs no privileges: all nodes run in this process, and what leaves a port is counted. Without \
--config the cluster has the nodes a, b and c, each with a port lan0, and routes to b for all \
destinations.

Examples:
  router replay packets.pcap
  router replay packets.pcap --config cluster.toml --node b --port lan0
  router replay packets.pcap --out left        what left, in left/b@lan0.pcap and so on")]
pub(crate) struct ReplayArgs {
    /// A capture of Ethernet frames or IP packets, also of `tcpdump -i any`, pcap or pcapng
    file: PathBuf,
    /// The cluster's file
    #[arg(long)]
    config: Option<PathBuf>,
    /// Node at which the packets arrive; the first one if absent
    #[arg(long)]
    node: Option<String>,
    /// Interface of the port at which they arrive; the node's first one if absent
    #[arg(long)]
    port: Option<String>,
    /// Write what leaves each port to a new file NODE@PORT.pcap in a directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Forward the packets that often
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

/// An error of the set-up is one of usage.
struct Error(ReplayError);

impl From<Error> for Failure {
    fn from(Error(error): Error) -> Self {
        match error {
            ReplayError::NotConnected(_) => Failure::Runtime(error.to_string()),
            _ => Failure::Usage(error.to_string()),
        }
    }
}

impl From<CaptureError> for Error {
    fn from(error: CaptureError) -> Self {
        Error(error.into())
    }
}

pub(crate) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    let (config, announced) = match &args.config {
        Some(path) => {
            (Config::load(path).map_err(|error| Failure::Usage(error.to_string()))?, Vec::new())
        }
        None => {
            let (config, changes) = builtin();
            (config, vec![(1, changes)])
        }
    };
    let (node, port) = arrival(args, &config)?;
    let capture = CaptureIntake::open(&args.file, port, Some(args.repeat)).map_err(Error::from)?;
    capture.warnings().iter().for_each(|text| out::warn(text));
    let (packets, skipped, tagged) = (capture.len(), capture.skipped(), capture.tagged());
    let replay =
        Replay { config: config.clone(), announced, arrival: (node, port), out: args.out.clone() };
    let exits = replay.run(capture).map_err(Error)?;
    let shown =
        Shown { args, config: &config, arrival: (node, port), packets, skipped, tagged, exits };
    if !json::only(args.json.as_deref()) {
        shown.print(&mut out::stdout())?;
    }
    args.json.as_deref().map_or(Ok(()), |target| json::write(target, &shown.json()))
}

/// Where the packets arrive.
fn arrival(args: &ReplayArgs, config: &Config) -> Result<(NodeId, PortId), Failure> {
    let node = args.node.as_ref().map_or(Ok(0), |name| node_named(config, name));
    let node = node.map_err(|error| Failure::Usage(error.to_string()))?;
    let own = &config.nodes[usize::from(node)];
    let Some(name) = &args.port else {
        let none = || Failure::Usage(format!("node {} has no port; choose another", own.name));
        return own.ports.first().map(|_| (node, 0)).ok_or_else(none);
    };
    let mut ports = (0..).zip(&own.ports);
    let port = ports.find(|(_, port)| port.interface == *name).map(|(number, _)| number);
    port.map(|port| (node, port)).ok_or_else(|| {
        let known: Vec<_> = own.ports.iter().map(|port| &port.interface[..]).collect();
        let known = known.join(", ");
        Failure::Usage(format!("node {} has no port {name:?}; use one of: {known}", own.name))
    })
}

/// A result.
struct Shown<'a> {
    args: &'a ReplayArgs,
    config: &'a Config,
    arrival: (NodeId, PortId),
    packets: usize,
    skipped: u64,
    tagged: u64,
    exits: Exits,
}

impl Shown<'_> {
    fn rate(&self) -> f64 {
        self.exits.counters.received as f64 * 1e9 / self.exits.elapsed_ns.max(1) as f64
    }

    fn port(&self, (node, port): (NodeId, PortId)) -> (&str, &str) {
        let node = &self.config.nodes[usize::from(node)];
        (&node.name, &node.ports[usize::from(port)].interface)
    }

    fn file(&self) -> &Path {
        &self.args.file
    }

    fn print(&self, out: &mut impl Write) -> Result<(), Failure> {
        let c = &self.exits.counters;
        let (node, port) = self.port(self.arrival);
        write!(out, "{}: {} packets", self.file().display(), self.packets)?;
        if self.skipped > 0 {
            write!(out, ", and {} frames of other protocols", self.skipped)?;
        }
        if self.tagged > 0 {
            write!(out, ", and {} with the tag of a VLAN", self.tagged)?;
        }
        writeln!(out, "; {} arrived at {node} {port}", c.received)?;
        writeln!(out, "{} forwarded", show_per_second(self.rate(), "pps"))?;
        writeln!(out, "{}", self.exits())?;
        Ok(out.flush()?)
    }

    /// The ends of the packets, and the packets that nodes have made.
    fn exits(&self) -> Table {
        let c = &self.exits.counters;
        let mut table = Table::ruled(["", "", "packets"]);
        let mut add = |group: &str, name: &str, packets: u64| {
            table.add_row([group.to_owned(), name.to_owned(), packets.to_string()]);
        };
        for (at, (node, port, sent)) in self.exits.ports.iter().enumerate() {
            let (node, port) = self.port((*node, *port));
            add(if at == 0 { "left" } else { "" }, &format!("{node} {port}"), sent.packets);
        }
        add("for the node's own system", "", c.to_system);
        add("dropped", "", c.all_dropped());
        c.drops().for_each(|(reason, n)| add("", reason.name(), n));
        add("made by nodes", "ICMP errors", c.icmp_sent);
        add("", "echo replies", c.echoes);
        add("", "fragments", c.fragments);
        add("", "of packets", c.fragmented);
        table.align_right([2]);
        table
    }

    fn json(&self) -> Value {
        let c = &self.exits.counters;
        let (node, port) = self.port(self.arrival);
        let ports: Vec<Value> = (self.exits.ports.iter())
            .map(|(node, port, sent)| {
                let (node, port) = self.port((*node, *port));
                json!({
                    "node": node, "port": port, "packets": sent.packets, "bytes": sent.bytes,
                })
            })
            .collect();
        let mut all = json!({
            "file": self.file().display().to_string(), "packets": self.packets,
            "skipped": self.skipped, "tagged": self.tagged, "repeat": self.args.repeat, "node": node, "port": port,
            "elapsed_ns": self.exits.elapsed_ns, "rate_pps": self.rate(),
            "ports": ports, "dropped": c.all_dropped(),
        });
        for (name, value) in counters::object(c) {
            all[name] = value;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use courser_router::counters::{Counters, PacketDrop};
    use courser_router::line::Sent;

    use super::*;

    #[test]
    fn the_table_fits_a_terminal() {
        let (mut config, _) = builtin();
        config.nodes[0].name = "n".repeat(32);
        config.nodes[0].ports[0].interface = "i".repeat(15);
        let args = ReplayArgs {
            file: "packets.pcap".into(),
            config: None,
            node: None,
            port: None,
            out: None,
            repeat: 1,
            json: None,
        };
        let sent = Sent { packets: 1 << 50, bytes: 0 };
        let counters = Counters {
            drops: [1 << 50; PacketDrop::ALL.len()],
            to_system: 1 << 50,
            ..Counters::default()
        };
        let exits = Exits { counters, ports: vec![(0, 0, sent), (1, 0, sent)], elapsed_ns: 1 };
        let shown = Shown {
            args: &args,
            config: &config,
            arrival: (0, 0),
            packets: 1,
            skipped: 0,
            tagged: 0,
            exits,
        };
        crate::cli::assert_fits(&shown.exits().to_string());
    }
}
