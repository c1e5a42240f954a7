//! The command line: subcommands, flags and help texts.

mod cluster;
mod control;
#[cfg(feature = "lab")]
mod lab;
mod node;
mod quickstart;
mod stats;

use clap::{Parser, Subcommand, ValueEnum};
use courser_kit::{Failure, VERSION};

const EXAMPLES: &str = "\
Examples:
  router quickstart                       a cluster of three nodes on this machine, as root
  router check cluster.toml               check a cluster's file and its routes
  router run cluster.toml --node a        run a node
  router ctl a.sock nodes                 the state of a running node's cluster
  router ctl a.sock stats                 its counters
  router ctl a.sock route add 20.0.0.0/8 via b:lan0@10.0.2.9

In programs that are built with --features lab:
  router replay packets.pcap              forward a capture in memory
  router bench                            packets per second of a node, as any user
  router overload                         floods from outside, beside the kernel's forwarding
  router sim --topology mesh              the same nodes in the simulated datacenter

Traffic between nodes is neither encrypted nor authenticated: use a network of its own.
Exit status: 0 success, 1 the command failed, 2 it cannot run as given.";

/// A router of several servers that forward packets to each other by Courser.
#[derive(Debug, Parser)]
#[command(name = "router", version = VERSION, after_help = EXAMPLES, max_term_width = 80)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show a cluster of three nodes in network namespaces of this machine
    Quickstart(quickstart::QuickstartArgs),
    /// Run a node until Ctrl-C
    Run(node::RunArgs),
    /// Check a cluster's file and its routes
    Check(node::CheckArgs),
    /// Send a request to the control socket of a running node
    Ctl(control::CtlArgs),
    #[cfg(feature = "lab")]
    #[command(flatten)]
    Lab(lab::LabCommand),
}

/// How nodes are connected, as an option.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Topology {
    Mesh,
    Switch,
    Mixed,
}

/// Runs a command.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Quickstart(args) => quickstart::run(&args),
        Command::Run(args) => node::run(&args),
        Command::Check(args) => node::check(&args),
        Command::Ctl(args) => control::run(&args),
        #[cfg(feature = "lab")]
        Command::Lab(command) => lab::run(command),
    }
}

/// Asserts that lines fit a terminal.
#[cfg(test)]
fn assert_fits(text: &str) {
    for line in text.lines() {
        let columns = line.chars().count();
        assert!(columns <= courser_kit::text::WIDTH, "{columns} columns: {line}\n{text}");
    }
}
