//! The command line of `courser`: subcommands, flags and help texts.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use courser::{Control, Packing, Recovery};

use crate::bench::BenchArgs;
use courser_kit::{ResultArgs, VERSION, units};

const EXAMPLES: &str = "\
Examples:
  courser quickstart                   measure this machine, in about 15 s
  courser serve                        answer calls, print commands for clients
  courser ping udp://10.0.0.5:31850    round trips to that server
  courser stat udp://10.0.0.5:31850    counters of that server, every second
  courser bench rate --connect udp://10.0.0.5:31850

Traffic is neither encrypted nor authenticated: use it on trusted networks only.
Exit status: 0 success, 1 the command failed, 2 it cannot run as given.";

/// Fast RPC for datacenters: measure it, serve it, ping it.
#[derive(Debug, Parser)]
#[command(name = "courser", version = VERSION, after_help = EXAMPLES, max_term_width = 80)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure RPCs between two processes of this machine, over UDP and shared memory
    Quickstart(QuickstartArgs),
    /// Answer calls from ping and bench until Ctrl-C
    Serve(ServeArgs),
    /// Call a server repeatedly and show the round trips
    Ping(PingArgs),
    /// Show the counters of a running server: calls, sessions, drops, memory
    Stat(StatArgs),
    /// List the services of a running server, with their methods
    List(ListArgs),
    /// Run one benchmark: latency, rate or bandwidth
    Bench(BenchArgs),
    /// Print the completion script for a shell
    Completions(CompletionsArgs),
    /// The server side of a benchmark, started by the client side
    #[command(hide = true)]
    BenchPeer(courser_bench::rpc::peer::PeerArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Starts a server process and a client process, each on its own core. Measures 32-byte \
round trips, small calls per second and the bandwidth of 8 MiB requests, over UDP and \
over shared memory. Windows of calls alternate with windows of raw packets over bare \
sockets or rings; the ratio of both is the cost of Courser. Needs no privileges. If \
shared memory is not available, the reason is printed and only UDP is measured.

Examples:
  courser quickstart
  courser quickstart --quick --json quickstart.json")]
pub(crate) struct QuickstartArgs {
    /// Take 7 seconds instead of 15; the confidence intervals are wider
    #[arg(long)]
    pub(crate) quick: bool,
    #[command(flatten)]
    pub(crate) output: ResultArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Endpoint N listens on UDP port PORT + N; sessions are set up over TCP port PORT. \
Over shm:// both are Unix sockets, which only processes of this user can open. \
There is no encryption and no authentication, so that only this machine is served \
unless --bind names another address.

Examples:
  courser serve                                   for this machine only
  courser serve --bind udp://0.0.0.0:31850        for other machines too
  courser serve --threads 4                       four endpoints and threads")]
pub(crate) struct ServeArgs {
    /// Address to listen on; 0.0.0.0 or [::]: all addresses of this machine, port 0: any free port
    #[arg(long, value_name = "URI", default_value = "udp://127.0.0.1:31850")]
    pub(crate) bind: String,
    /// Endpoints; each has its own thread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,
    /// Congestion control: default, none, timely, timely-patched, dcqcn or swift. With default the
    /// server also limits what all clients together may send
    #[arg(long, value_name = "NAME", default_value_t)]
    pub(crate) control: Control,
    /// Loss recovery: go-back-n applies to all clients; with melo or default each client chooses
    #[arg(long, value_name = "SCHEME", default_value_t)]
    pub(crate) recovery: Recovery,
    /// Small packets to one peer: off (a frame for each), copy or gather. Default: the fastest that
    /// was measured on the transport, copy
    #[arg(long, value_name = "HOW")]
    pub(crate) packing: Option<Packing>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Makes one call at a time. Both sides sleep between calls, so the round trip includes the \
time to wake them. `courser bench latency --connect URI` measures round trips of sides \
that poll.

Examples:
  courser ping udp://10.0.0.5:31850
  courser ping udp://10.0.0.5:31850 --count 0 --interval 1s        until Ctrl-C
  courser ping udp://[::1]:31850 --size 64KiB --quiet
  courser ping udp://10.0.0.5:31850 --bind udp://10.0.0.7:0    from 10.0.0.7")]
pub(crate) struct PingArgs {
    /// The server, as `courser serve` printed it: udp://HOST:PORT
    #[arg(value_name = "URI")]
    pub(crate) uri: String,
    /// Local address to call from, as udp://HOST:0; port 0: any free port. Default: any address
    #[arg(long, value_name = "URI")]
    pub(crate) bind: Option<String>,
    /// Calls to make; 0: until Ctrl-C
    #[arg(short, long, value_name = "N", default_value_t = 10)]
    pub(crate) count: u64,
    /// Time from the start of one call to the next
    #[arg(short, long, value_name = "TIME", default_value = "100ms", value_parser = units::time)]
    pub(crate) interval: Duration,
    /// Bytes in each request and response, up to 8MiB
    #[arg(short, long, value_name = "SIZE", default_value = "32", value_parser = units::message_size)]
    pub(crate) size: usize,
    /// Count a call as lost after this time
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = units::nonzero_time)]
    pub(crate) timeout: Duration,
    /// Congestion control: default, none, timely, timely-patched, dcqcn or swift
    #[arg(long, value_name = "NAME", default_value_t)]
    pub(crate) control: Control,
    /// Loss recovery: go-back-n, go-back-n-nack, melo or default; go-back-n of a server overrides it
    #[arg(long, value_name = "SCHEME", default_value_t)]
    pub(crate) recovery: Recovery,
    /// Small packets to one peer: off (a frame for each), copy or gather. Default: the fastest that
    /// was measured on the transport, copy
    #[arg(long, value_name = "HOW")]
    pub(crate) packing: Option<Packing>,
    /// Print only the summary, not a line for each call
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Reads the counters of a `courser serve` over a session, which is marked with * in the \
list of sessions. URI/N shows endpoint N only.

  requests, replies   calls that clients made to this endpoint
  calls, open, errors calls that this endpoint made
  credits             packets that all sessions together may have in flight
  resent              retransmitted packets, of which
    lost              were declared lost because later packets had arrived
    probes            probed the end of a message after a timeout
    spurious          had already arrived
  rollbacks           timeouts after which all packets of a call were resent
  control             congestion control of the endpoint
  pool waits          times that a session waited for shared credits
  paced               times that packets waited for their departure time
  recovery            loss recovery of the session, agreed at connect
  peer                address of the other side, shown to programs of the
                      server's machine; -: not shown
  RTT, RTO            round trip without handlers, and the timeout from it
  window              packets to the peer that congestion control allows in
                      flight; -: it does not limit them
  pacing gap          time between two full packets to the peer, if paced
  decreases           times that congestion control allowed less than before
  marked              packets that arrived at the peer with a congestion mark
  in flight           requests on the session's slots; queued ones need a slot

Examples:
  courser stat udp://10.0.0.5:31850
  courser stat udp://10.0.0.5:31850/2 --interval 5s --sessions all
  courser stat udp://10.0.0.5:31850 --once --json -
  courser stat udp://10.0.0.5:31850 --bind udp://10.0.0.7:0    from 10.0.0.7")]
pub(crate) struct StatArgs {
    /// The server, as `courser serve` printed it: udp://HOST:PORT; with /N one endpoint of it
    #[arg(value_name = "URI")]
    pub(crate) uri: String,
    /// Local address to ask from, as udp://HOST:0; port 0: any free port. Default: any address
    #[arg(long, value_name = "URI")]
    pub(crate) bind: Option<String>,
    /// Time from one refresh to the next
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = units::nonzero_time)]
    pub(crate) interval: Duration,
    /// Number of refreshes; 0: until Ctrl-C, the default without --json
    #[arg(short, long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// One refresh: totals, no rates
    #[arg(long, conflicts_with = "count")]
    pub(crate) once: bool,
    /// Sessions to show for each endpoint, the busiest first: a number, or all
    #[arg(short, long, value_name = "N", default_value = "10", value_parser = units::count_or_all)]
    pub(crate) sessions: usize,
    /// Write the last refresh as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The server's program allows it by Server::add_introspection, by default to programs on the \
same machine.

Examples:
  courser list udp://127.0.0.1:31850
  courser list udp://127.0.0.1:31850 --json -")]
pub(crate) struct ListArgs {
    /// The server: udp://HOST:PORT
    #[arg(value_name = "URI")]
    pub(crate) uri: String,
    /// Local address to ask from, as udp://HOST:0; port 0: any free port. Default: any address
    #[arg(long, value_name = "URI")]
    pub(crate) bind: Option<String>,
    /// Write the list as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  courser completions bash > /etc/bash_completion.d/courser
  courser completions zsh > \"${fpath[1]}/_courser\"
  courser completions fish > ~/.config/fish/completions/courser.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_that_texts_and_documents_name_exist() {
        let wrong = ["sings", "serve --loud", "serve|sings"];
        crate::advice::assert_commands_exist(&Cli::command(), wrong);
    }

    #[test]
    fn every_command_has_examples() {
        for command in Cli::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "{}", command.get_name());
        }
    }

    #[test]
    fn a_server_serves_its_own_machine_unless_it_is_opened() {
        let Ok(Cli { command: Command::Serve(args) }) = Cli::try_parse_from(["courser", "serve"])
        else {
            panic!("the command is valid");
        };
        let bind: courser::Uri = args.bind.parse().expect("an address");
        assert!(bind.ip().is_some_and(|ip| ip.is_loopback()), "{bind}");
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for line in [
            "courser ping udp://a:1 --size 9MiB",
            "courser ping udp://a:1 --timeout 0s",
            "courser ping udp://a:1 --interval 100",
            "courser ping",
            "courser serve --threads 0",
            "courser bench rate --pairs 0",
            "courser bench latency --size lots",
            "courser bench speed",
            "courser bench latency --transport carrier-pigeon",
            "courser bench rate --batch three",
            "courser bench bandwidth --sizes --size 1KiB",
            "courser bench rate --fault 1e-3",
            "courser bench rate --fault loss=2",
            "courser bench rate --recovery gobackn",
            "courser bench rate --fault loss=1e-3 --connect udp://a:1",
            "courser bench rate --bind udp://127.0.0.1:0",
            "courser completions word",
            "courser stat",
            "courser serve --recovery none",
            "courser serve --control fast",
            "courser ping udp://a:1 --control none,swift",
            "courser bench rate --control two-window",
            "courser ping udp://a:1 --recovery go-back-n,melo",
            "courser stat udp://a:1 --interval 0s",
            "courser stat udp://a:1 --sessions many",
            "courser stat udp://a:1 --once --count 3",
        ] {
            let error = Cli::try_parse_from(line.split(' ')).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
