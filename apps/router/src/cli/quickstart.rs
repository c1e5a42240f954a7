//! `router quickstart`: a cluster of three nodes on this machine, real packets through it, and the
//! death of a node.

mod failure;
mod programs;
mod report;
mod screen;
mod table;
mod traffic;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use courser_kit::table::Table;
use courser_kit::{Failure, VERSION, json};
use courser_router::netns::{self, Shape};

use super::Topology;
use super::cluster::Demo;
use report::Results;
use screen::Screen;
use table::Sample;
use traffic::Traffic;

#[derive(Debug, Args)]
#[command(after_help = "\
Needs root, for network namespaces, and the program `ip` (Debian: iproute2); `ping` \
(iputils-ping) and `traceroute` (traceroute) are used if they are installed. Nothing of the \
machine's own network is changed: the nodes, the hosts and the links between them are in network \
namespaces of this program, and vanish with it.

Shows, in about 15 s:
  1. ping and traceroute from host a to host b, by IPv4 and IPv6
  2. UDP between all pairs of hosts: packets/s of each node, messages in a
     frame between nodes, drops, losses, packets out of order
  3. deaths of node c, by SIGKILL and by SIGSTOP: the time until its routes are
     withdrawn, flows between the others, ICMP errors; and its return

Topologies: mesh (links between all nodes, Valiant load balancing: packets pass a third node), \
switch (all nodes at a switch, direct ways), mixed (the hosts at the same switch, too).

Examples:
  router quickstart
  router quickstart --topology switch --quick
  router quickstart --json -                the results only, for programs")]
pub(crate) struct QuickstartArgs {
    /// How the nodes are connected
    #[arg(long, value_enum, default_value = "mesh")]
    topology: Topology,
    /// Shorter phases: about 8 s
    #[arg(long)]
    quick: bool,
    /// Write the results as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

impl From<Topology> for Shape {
    fn from(topology: Topology) -> Shape {
        match topology {
            Topology::Mesh => Shape::Mesh,
            Topology::Switch => Shape::Switch,
            Topology::Mixed => Shape::Mixed,
        }
    }
}

/// Nodes of the cluster, and hosts.
const NODES: usize = 3;

/// Length of the phases.
#[derive(Clone, Copy, Debug)]
struct Phases {
    /// All nodes are alive.
    steady: Duration,
    /// Before a death, and between death and return of a silent node.
    before: Duration,
    /// After the death of a killed node, and after its return.
    after: Duration,
}

impl Phases {
    fn of(quick: bool) -> Self {
        let ms = Duration::from_millis;
        if quick {
            Self { steady: ms(2_000), before: ms(200), after: ms(500) }
        } else {
            Self { steady: ms(5_000), before: ms(500), after: ms(1_500) }
        }
    }
}

/// Runs the demonstration.
///
/// # Errors
/// The machine or the user cannot have namespaces; a node failed; packets were out of order.
pub(crate) fn run(args: &QuickstartArgs) -> Result<(), Failure> {
    let target = args.json.as_deref();
    json::check_target(target)?;
    let phases = Phases::of(args.quick);
    let shape = Shape::from(args.topology);
    let mut screen = Screen::new(json::only(target));
    screen.heading(&format!("router {VERSION}"))?;
    let begin = Instant::now();
    let mut demo = Demo::start(shape, NODES)?;
    let mut results = Results::new(shape, phases, &demo, begin.elapsed());
    introduce(&mut screen, &demo, &results)?;
    results.programs = programs::run(&mut screen, &demo)?;
    steady(&mut screen, &demo, phases, &mut results)?;
    results.killed = Some(failure::kill(&mut screen, &mut demo, phases)?);
    results.silent = Some(failure::silence(&mut screen, &mut demo, phases)?);
    drop(demo);
    results.print(&mut screen, args.json.is_some())?;
    if let Some(target) = target {
        json::write(target, &results.json())?;
    }
    results.verdict()
}

/// Prints what the cluster looks like.
fn introduce(screen: &mut Screen, demo: &Demo, results: &Results) -> Result<(), Failure> {
    screen.wrapped(&format!(
        "{NODES} nodes and {NODES} hosts in network namespaces, {}; ready after {:.0} ms.",
        match demo.shape() {
            Shape::Mesh => "nodes linked to each other (mesh)",
            Shape::Switch => "nodes at a switch",
            Shape::Mixed => "nodes and hosts at one switch (mixed)",
        },
        results.ready_after.as_secs_f64() * 1e3,
    ))?;
    screen.table(&addresses())?;
    screen.line("")
}

/// The addresses of nodes and hosts.
fn addresses() -> Table {
    let mut addresses = screen::table(["", "host", "", "node's port lan0", "node for nodes"]);
    for node in 0..NODES {
        addresses.add_row([
            netns::name(node).to_string(),
            netns::host_v4(node).to_string(),
            netns::host_v6(node).to_string(),
            format!("{}  {}", netns::lan_v4(node), netns::lan_v6(node)),
            format!("udp://{}:{}", netns::core_v4(node), netns::UDP_PORT),
        ]);
    }
    addresses
}

/// Sends between all hosts while all nodes are alive.
fn steady(
    screen: &mut Screen,
    demo: &Demo,
    phases: Phases,
    results: &mut Results,
) -> Result<(), Failure> {
    screen.heading("UDP between all pairs of hosts")?;
    let first = Sample::take(demo)?;
    let traffic = Traffic::start(demo)?;
    let last = table::watch(screen, demo, &first, phases.steady)?;
    let outcome = traffic.stop()?;
    results.nodes = table::rows(&first, &last);
    screen.wrapped(&format!("{}.", outcome.words(|_| true)))?;
    screen.wrapped(
        "to nodes: packets sent to other nodes; per frame: messages in a frame to them, since those \
         that are ready together share one.",
    )?;
    screen.line("")?;
    results.steady = Some(outcome);
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_of_addresses_fits_a_terminal() {
        crate::cli::assert_fits(&super::screen::text(&super::addresses()));
    }
}
