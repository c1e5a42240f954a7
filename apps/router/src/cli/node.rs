//! `router run` and `router check`.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use courser_kit::interrupt::Interrupt;
use courser_kit::{Failure, out};
use courser_router::config::Config;
use courser_router::run::{NodeError, Running, node_named};

/// A cluster's file.
const FILE: &str = r#"[cluster]
name = "demo"
topology = "mesh"                   # or switch, mixed
failure_timeout = "800ms"           # dead nodes' routes end within
[interconnect]
mtu = 9000                          # of the links between nodes
[[node]]
name = "a"
address = "udp://192.0.2.1:31850"   # for other nodes
control = "/run/a.sock"             # for `router ctl`, may be absent
[node.import]                       # routes of BIRD or FRR, may be absent
table = 100                         # of the kernel, for the daemon alone
daemon = "/run/bird/bird.ctl"       # its end withdraws the routes
[[node.port]]
interface = "eth1"
addresses = ["10.0.1.1/24", "fd00:1::1/64"]
mtu = 1500
[[node]]
name = "b"
address = "udp://192.0.2.2:31850"
[[node.port]]
interface = "eth1"
addresses = ["10.0.2.1/24", "fd00:2::1/64"]
[routes]
files = ["routes.txt"]              # besides networks of ports
"#;

fn run_help() -> String {
    format!(
        "\
Forwards packets between the node's ports and the other nodes of the cluster's file. The \
kernel keeps its part: it answers for the node's own addresses, and resolves neighbours; \
its own forwarding has to be off (sysctl net.ipv4.ip_forward=0 and \
net.ipv6.conf.all.forwarding=0). Needs root, or the capabilities CAP_NET_RAW and \
CAP_NET_ADMIN. One process has one thread; run more nodes for more cores.

The cluster's file, for two nodes:
  {}
A file of routes has a route in each line:
  20.0.0.0/8 via b:eth1@10.0.2.9
  30.0.0.0/8 via a:eth1@10.0.1.9*2 b:eth1@10.0.2.9    two shares to a, one to b
  40.0.0.0/8 unreachable",
        FILE.replace('\n', "\n  ").trim_end()
    ) + "\n"
}

#[derive(Debug, Args)]
#[command(after_help = run_help())]
pub(crate) struct RunArgs {
    /// The cluster's file, the same for all nodes
    config: PathBuf,
    /// Name of the node in the file
    #[arg(long)]
    node: String,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The cluster's file
    config: PathBuf,
    /// Print all routes
    #[arg(long)]
    routes: bool,
}

/// An error of the set-up is one of usage.
impl From<Error> for Failure {
    fn from(Error(error): Error) -> Self {
        match error {
            NodeError::System(_) | NodeError::Run(_) => Failure::Runtime(error.to_string()),
            _ => Failure::Usage(error.to_string()),
        }
    }
}

struct Error(NodeError);

fn load(path: &PathBuf) -> Result<Config, Failure> {
    Config::load(path).map_err(|error| Failure::Usage(error.to_string()))
}

pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    let config = load(&args.config)?;
    let node = node_named(&config, &args.node).map_err(Error)?;
    let interrupt = Interrupt::stop(Vec::new())?;
    let mut running = Running::start(config, node).map_err(Error)?;
    running.take_warnings().iter().for_each(|text| out::warn(text));
    let mut stdout = out::stdout();
    writeln!(stdout, "node {} is ready at {}; Ctrl-C ends it", args.node, running.address())?;
    stdout.flush()?;
    running.run(&|| interrupt.is_set(), &mut |text| out::warn(text)).map_err(Error)?;
    Ok(())
}

pub(crate) fn check(args: &CheckArgs) -> Result<(), Failure> {
    let config = load(&args.config)?;
    let routes = config.routes().map_err(|error| Failure::Usage(error.to_string()))?;
    let mut stdout = out::stdout();
    writeln!(
        stdout,
        "{}: {}, {} nodes, {} ports, {} routes, {} MiB of tables; fingerprint {:016x}",
        args.config.display(),
        config.topology,
        config.nodes.len(),
        config.ports().count(),
        routes.len(),
        routes.fib().memory_bytes() >> 20,
        config.fingerprint()
    )?;
    if args.routes {
        for route in routes.routes() {
            let text = config.route_text(route.prefix, route.members);
            writeln!(stdout, "{text}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_the_help_is_valid_and_fits_a_terminal() {
        let text = FILE.replace("[routes]\nfiles = [\"routes.txt\"]", "[routes]\nfiles = []");
        assert_ne!(text, FILE);
        let config = Config::parse(&text, "").expect("valid");
        assert_eq!((config.nodes.len(), config.ports().count()), (2, 2));
        for line in run_help().lines().filter(|line| line.starts_with("  ")) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
