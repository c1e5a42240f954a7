//! The command line: what can be typed, and the help that teaches it.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, Parser, Subcommand, ValueEnum};
use courser::Recovery;

use crate::bench::{Faults, Kind, Over};
use courser_bench::program::{VERSION, units};

const EXAMPLES: &str = "\
Examples:
  courser quickstart                    measure this machine, in about 15 seconds
  courser serve                         answer calls; prints what to type elsewhere
  courser ping udp://10.0.0.5:31850     round trips to that server
  courser stat udp://10.0.0.5:31850     what that server counts, every second
  courser bench rate --connect udp://10.0.0.5:31850

Traffic is neither encrypted nor authenticated: use it on trusted networks only.
Exit status: 0 done, 1 tried and failed, 2 cannot be done as asked.";

/// Fast RPC for datacenters: measure it, serve it, ping it.
#[derive(Debug, Parser)]
#[command(name = "courser", version = VERSION, after_help = EXAMPLES, max_term_width = 100)]
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
    /// Call a server again and again and show the round trips
    Ping(PingArgs),
    /// Show the counters of a running server: calls, sessions, drops, memory
    Stat(StatArgs),
    /// Measure one thing well: latency, rate, bandwidth, sessions, threads and more
    Bench(BenchArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// The server side of a benchmark, started by the client side
    #[command(hide = true)]
    BenchPeer(crate::bench::peer::PeerArgs),
    #[cfg(feature = "lab")]
    #[command(flatten)]
    Lab(courser_lab::Command),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Starts a server process and a client process, each on a core of its own, and measures
32-byte round trips, small calls per second, and the bandwidth of 8 MiB requests, over
UDP and over shared memory. The same packets without the protocol take turns with it,
over bare sockets or rings: the ratio is what Courser costs. Needs no privileges; where
shared memory cannot be had it is left out, and the reason said.

Examples:
  courser quickstart
  courser quickstart --quick --json quickstart.json")]
pub(crate) struct QuickstartArgs {
    /// Take 7 seconds instead of 15; the numbers are less certain
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the results as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Endpoint N listens on UDP port PORT + N; sessions are set up over TCP port PORT.

Examples:
  courser serve
  courser serve --bind udp://127.0.0.1:4000       for this machine only
  courser serve --threads 4                       four endpoints, a thread each")]
pub(crate) struct ServeArgs {
    /// Where to listen: 0.0.0.0 is every address of this machine, port 0 any free port
    #[arg(long, value_name = "URI", default_value = "udp://0.0.0.0:31850")]
    pub(crate) bind: String,
    /// Endpoints, each with a thread of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,
    /// How lost packets are recovered: go-back-n, which then holds for all clients; melo or default
    /// leave it to them
    #[arg(long, value_name = "SCHEME", default_value_t)]
    pub(crate) recovery: Recovery,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Calls one at a time, so both sides sleep in between and the time to wake them is part
of the round trip. `courser bench latency --connect URI` shows it under load.

Examples:
  courser ping udp://10.0.0.5:31850
  courser ping udp://10.0.0.5:31850 --count 0 --interval 1s        until Ctrl-C
  courser ping udp://[::1]:31850 --size 64KiB --quiet")]
pub(crate) struct PingArgs {
    /// The server, as `courser serve` printed it: udp://HOST:PORT
    #[arg(value_name = "URI")]
    pub(crate) uri: String,
    /// Calls to make; 0: until Ctrl-C
    #[arg(short, long, value_name = "N", default_value_t = 10)]
    pub(crate) count: u64,
    /// Time from one call to the next
    #[arg(short, long, value_name = "TIME", default_value = "100ms", value_parser = units::time)]
    pub(crate) interval: Duration,
    /// Bytes in each request and response, up to 8MiB
    #[arg(short, long, value_name = "SIZE", default_value = "32", value_parser = units::message_size)]
    pub(crate) size: usize,
    /// Count a call as lost after this time
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = units::nonzero_time)]
    pub(crate) timeout: Duration,
    /// How lost packets are recovered: go-back-n, melo, default; go-back-n if the server insists
    #[arg(long, value_name = "SCHEME", default_value_t)]
    pub(crate) recovery: Recovery,
    /// Only the summary, no line for each call
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Reads the counters of a `courser serve` through an ordinary session of its own, marked
with * among the sessions. URI/N shows endpoint N only.

  requests, replies   calls that others made here
  calls, open, errors calls that this endpoint made
  credits             packets that all sessions together may have under way
  resent              packets sent once more, for whatever reason; of these
    lost              found lost, since later ones had arrived
    probes            sent to hear what became of the end of a message
    spurious          had arrived before
  rollbacks           timeouts that gave up all packets of a call
  pool waits          times that a session waited for credits that it shares with others
  recovery            the session's scheme of loss recovery, as agreed at connect
  RTT, RTO            round trips without handlers, and the timeout derived from them
  in flight           requests on the session's slots; queued ones wait for a slot

Examples:
  courser stat udp://10.0.0.5:31850
  courser stat udp://10.0.0.5:31850/2 --interval 5s --sessions all
  courser stat udp://10.0.0.5:31850 --once --json -")]
pub(crate) struct StatArgs {
    /// The server, as `courser serve` printed it: udp://HOST:PORT, or one endpoint of it with /N
    #[arg(value_name = "URI")]
    pub(crate) uri: String,
    /// Time from one refresh to the next
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = units::nonzero_time)]
    pub(crate) interval: Duration,
    /// Refreshes; 0: until Ctrl-C, which is the default without --json
    #[arg(short, long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// One refresh: totals, no rates
    #[arg(long, conflicts_with = "count")]
    pub(crate) once: bool,
    /// Sessions to show of each endpoint, the busiest first: a number, or all
    #[arg(short, long, value_name = "N", default_value = "10", value_parser = units::count_or_all)]
    pub(crate) sessions: usize,
    /// Write the last refresh as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without --connect, both sides run on this machine, a core each, and windows of raw packets
and of RPCs take turns: a pair is one of each. Claims need 200 pairs or more of one
placement; --quick is for a first look.

  latency     one call at a time; the raw round trip beside it, and the difference
  rate        small calls; with --batch as in eRPC (NSDI '19), section 6.2: batches of B,
              60 in flight, 8 sessions drawn at random; --symmetric: both sides call
  bandwidth   large requests, 32-byte answers, beside copies of the same memory;
              --sizes: 1 KiB to 64 MiB; --no-copy: without the server's copy
  factors     as rate with B = 3, with one optimization after another switched off
  sessions    as rate with B = 3, on more and more sessions of one endpoint, beside 8;
              time to connect, and memory of idle sessions by component
  credits     one small call, many, and one large one, with C = 1 to 64 credits
  sweep       small calls with 1 to 1,024 in flight, for frames of 1 to 64 KiB; --in-flight
              and --frame-size choose; how far the rate falls when more are in flight
  txqueue     as rate with B = 3, with transmit bursts of at most 1 to 256 packets
  threads     as rate with B = 3, of threads of one process that all call each other

With --fault, latency, rate (B = 3 over shm and mem) and bandwidth are measured without
faults and with each SPEC in turn, under each scheme of --recovery: both sides lose that
share of the frames that they send. SPEC is loss=1e-3, or parts with commas between: loss,
duplicate, reorder (by up to span=N frames), corrupt; shares of frames, from 1e-6. A part
that comes again begins another SPEC.

`workers` and `overload` run in one process and take only --quick, --pairs and --max-time
(workers), and --json.

Examples:
  courser bench latency --transport mem
  courser bench rate --sessions 8 --in-flight 64 --json -
  courser bench rate --batch 3 --symmetric --transport mem
  courser bench bandwidth --size 1MiB --quick
  courser bench bandwidth --fault loss=1e-3,loss=1e-2 --recovery go-back-n,default
  courser bench sessions --sessions 8,1000 --quick
  courser bench sweep --transport shm --frame-size 1KiB,8KiB --svg sweep.svg
  courser bench latency --connect udp://10.0.0.5:31850")]
pub(crate) struct BenchArgs {
    /// What to measure
    #[arg(value_name = "WHAT", value_enum)]
    pub(crate) what: What,
    /// The transport between the two sides: processes of this machine, for mem threads of one
    #[arg(long, value_name = "NAME", value_enum, default_value = "udp")]
    pub(crate) transport: Over,
    /// Measure against this `courser serve` instead of a process of this machine
    #[arg(long, value_name = "URI")]
    pub(crate) connect: Option<String>,
    /// A few seconds instead of half a minute or more
    #[arg(long)]
    pub(crate) quick: bool,
    /// Pairs of windows, raw and RPC
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) pairs: Option<u32>,
    /// Longest time to measure; a series of n settings in turn may take up to n, at most 6, times
    /// this. Default 2min, with --quick 2500ms
    #[arg(long, value_name = "TIME", value_parser = units::nonzero_time)]
    pub(crate) max_time: Option<Duration>,
    /// Bytes in a request; several, as 1KiB,8MiB, for bandwidth; default 32, for bandwidth 8MiB,
    /// which is also a server's limit
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = units::bytes)]
    pub(crate) size: Vec<u64>,
    /// For bandwidth: requests of 1KiB to 64MiB, one size after another
    #[arg(long, conflicts_with_all = ["size", "connect"])]
    pub(crate) sizes: bool,
    /// Sessions to the server; default 1, for rate 16, with --batch 8; for sessions several, rising:
    /// default 1,8,100,1000,10000,20000
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(crate) sessions: Vec<u32>,
    /// Calls in flight at a time, over all sessions; for bandwidth: requests outstanding; default 1,
    /// for rate 128; with --batch 60; for sweep several, rising: default 1 to 1024
    #[arg(long, value_name = "N", visible_alias = "outstanding", value_delimiter = ',')]
    pub(crate) in_flight: Vec<u32>,
    /// For rate: calls that leave together, each on a session drawn at random; several, as 1,3,5;
    /// default over shm and mem 1,3,5,8,11, over udp each answer is followed by a call
    #[arg(long, value_name = "B", value_delimiter = ',')]
    pub(crate) batch: Vec<u32>,
    /// For rate: both sides call each other at the same time; the rate of one is shown
    #[arg(long)]
    pub(crate) symmetric: bool,
    /// For bandwidth: the server does not copy what arrives to its message, whose bytes are
    /// arbitrary then; shows what that copy costs
    #[arg(long)]
    pub(crate) no_copy: bool,
    /// For latency over shm: raw packets leave by a copy, as lone ones of calls do, instead of as a
    /// burst of one
    #[arg(long)]
    pub(crate) raw_copy: bool,
    /// Packets a session may have in flight; default: six trains or 256 KiB of full frames within a
    /// host, three trains across a network, as the receive buffer allows
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) credits: Option<u32>,
    /// Calls a session may have under way: 1, 2, 4, 8, 16 or 32; default 16
    #[arg(long, value_name = "N", value_parser = units::slots)]
    pub(crate) slots: Option<u8>,
    /// Largest datagram payload, bytes; default: what a 1500-byte link carries; for sweep several:
    /// default 1KiB to 64KiB
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = units::bytes)]
    pub(crate) frame_size: Vec<u64>,
    /// For latency, rate, bandwidth: lose frames on purpose, and measure beside none; several, as
    /// loss=1e-3,loss=1e-2
    #[arg(long, value_name = "SPEC", conflicts_with = "connect")]
    pub(crate) fault: Vec<Faults>,
    /// For latency, rate, bandwidth: how lost packets are recovered: go-back-n, melo, default;
    /// several are compared
    #[arg(long, value_name = "SCHEME", value_delimiter = ',')]
    pub(crate) recovery: Vec<Recovery>,
    /// For sweep: draw the rates to this file
    #[arg(long, value_name = "PATH")]
    pub(crate) svg: Option<PathBuf>,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
}

/// What `bench` can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Calls beside raw packets.
    Calls(Kind),
    /// Dispatch calls beside long worker handlers.
    Workers,
    /// A worker pool that is asked for too much.
    Overload,
    /// One optimization after another switched off.
    Factors,
    /// More and more sessions.
    Sessions,
    /// More and more credits.
    Credits,
    /// More and more calls in flight, by frame size.
    Sweep,
    /// Longer and longer transmit bursts.
    TxQueue,
    /// More and more threads.
    Threads,
}

impl ValueEnum for What {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [What; 11] = [
            What::Calls(Kind::Latency),
            What::Calls(Kind::Rate),
            What::Calls(Kind::Bandwidth),
            What::Workers,
            What::Overload,
            What::Factors,
            What::Sessions,
            What::Credits,
            What::Sweep,
            What::TxQueue,
            What::Threads,
        ];
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            What::Calls(Kind::Latency) => ("latency", "round trip of one call at a time"),
            What::Calls(Kind::Rate) => ("rate", "small calls per second"),
            What::Calls(Kind::Bandwidth) => ("bandwidth", "bytes per second of large requests"),
            What::Workers => ("workers", "round trip beside worker handlers of 4 ms"),
            What::Overload => ("overload", "answers in time at twice a worker's capacity"),
            What::Factors => ("factors", "small calls with one optimization after another off"),
            What::Sessions => ("sessions", "small calls on 1 to 20,000 sessions, and their memory"),
            What::Credits => ("credits", "latency, rate and bandwidth with 1 to 64 credits"),
            What::Sweep => ("sweep", "small calls with 1 to 1,024 in flight, by frame size"),
            What::TxQueue => ("txqueue", "small calls with transmit bursts of 1 to 256 packets"),
            What::Threads => ("threads", "small calls of as many threads as there are cores"),
        };
        Some(PossibleValue::new(name).help(help))
    }
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
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in Cli::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "{}", command.get_name());
        }
    }

    #[test]
    fn absurd_values_are_refused() {
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
            "courser completions word",
            "courser stat",
            "courser serve --recovery none",
            "courser ping udp://a:1 --recovery go-back-n,melo",
            "courser soak --recovery gbn",
            "courser soak --load 0",
            "courser soak --load inf",
            "courser soak everything",
            "courser soak --times 0",
            "courser stat udp://a:1 --interval 0s",
            "courser stat udp://a:1 --sessions many",
            "courser stat udp://a:1 --once --count 3",
        ] {
            let error = Cli::try_parse_from(line.split(' ')).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
