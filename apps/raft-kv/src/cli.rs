//! The command line: subcommands, flags and help texts.

mod admin;
mod apart;
mod bench;
mod data;
mod drill;
mod file;
mod load;
mod local;
mod node;
mod quickstart;
mod reach;

use clap::{Parser, Subcommand};
use courser_kit::{Failure, VERSION};

const EXAMPLES: &str = "\
Examples:
  raft-kv quickstart                 three nodes and a client on this machine
  raft-kv node --new --id 1 --data /var/lib/raft-kv \\
    --listen udp://10.0.0.1:31850 \\
    --peers 1=udp://10.0.0.1:31850,2=udp://10.0.0.2:31850,3=udp://10.0.0.3:31850
  raft-kv put --nodes udp://10.0.0.1:31850 apple green
  raft-kv get --nodes udp://10.0.0.1:31850 apple
  raft-kv status --nodes udp://10.0.0.1:31850,udp://10.0.0.2:31850
  raft-kv member add 4 udp://10.0.0.4:31850 --nodes udp://10.0.0.1:31850
  raft-kv bench                      latency and rate of three nodes here

The variable RAFT_KV_NODES can take the place of --nodes.
Traffic is neither encrypted nor authenticated: use a network of its own.
Exit status: 0 success, 1 the command failed, 2 it cannot run as given.";

/// A replicated key-value store: Raft over Courser.
#[derive(Debug, Parser)]
#[command(name = "raft-kv", version = VERSION, after_help = EXAMPLES, max_term_width = 80)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start three nodes here, kill the leader under load, and show what happens
    Quickstart(quickstart::QuickstartArgs),
    /// Run a node until Ctrl-C
    Node(Box<node::NodeArgs>),
    /// Print the value of a key
    Get(data::GetArgs),
    /// Store a value
    Put(data::PutArgs),
    /// Remove a key
    Delete(data::DeleteArgs),
    /// Replace a value if it is the expected one
    Cas(data::CasArgs),
    /// Print the entries from a key on
    Scan(data::ScanArgs),
    /// Print changes as they happen, until Ctrl-C
    Watch(data::WatchArgs),
    /// Show the state of nodes and members
    Status(admin::StatusArgs),
    /// Show the counters of nodes since their start
    Stat(admin::StatusArgs),
    /// Add, promote or remove a member
    Member(admin::MemberArgs),
    /// Measure latency and rate
    Bench(bench::BenchArgs),
    /// Kill the leader or cut it off again and again under load, and check what clients see
    Drill(drill::DrillArgs),
}

/// Runs a command.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Quickstart(args) => quickstart::run(&args),
        Command::Node(args) => node::run(&args),
        Command::Get(args) => data::get(&args),
        Command::Put(args) => data::put(&args),
        Command::Delete(args) => data::delete(&args),
        Command::Cas(args) => data::cas(&args),
        Command::Scan(args) => data::scan(&args),
        Command::Watch(args) => data::watch(&args),
        Command::Status(args) => admin::status(&args),
        Command::Stat(args) => admin::stat(&args),
        Command::Member(args) => admin::member(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Drill(args) => drill::run(&args),
    }
}
