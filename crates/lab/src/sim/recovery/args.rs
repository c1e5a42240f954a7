//! Options of the loss experiments. Defaults are those of their `Settings`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use courser::Recovery;
use courser_sim::scenario::{Cpu, bits_pool, fct, loss, lost_call};

use crate::sim::run::args::CpuName;
use courser_bench::program::units;

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn all_nanos(times: &[Duration]) -> Vec<u64> {
    times.iter().copied().map(nanos).collect()
}

/// Reads `5%:48us`.
fn reorder(text: &str) -> Result<loss::Reorder, String> {
    let (chance, time) =
        text.split_once(':').ok_or("write a chance and the longest delay: 5%:48us")?;
    Ok(loss::Reorder { ppm: units::chance(chance)?, max_ns: nanos(units::nonzero_time(time)?) })
}

/// Recovery times of a sweep.
const SWEEP: [Duration; 8] = [
    Duration::from_micros(20),
    Duration::from_micros(30),
    Duration::from_micros(50),
    Duration::from_micros(75),
    Duration::from_micros(100),
    Duration::from_micros(150),
    Duration::from_micros(250),
    Duration::from_micros(500),
];

#[derive(Debug, Args)]
#[command(after_help = "\
Two hosts at one switch of MELO's network: 40 Gbit/s, packets of 1,024 data bytes, a round trip
of 16 us, credits of three times what fills it. The switch loses each packet that crosses it with
the given chance, data one way and credit returns the other. CPUs cost nothing.

  go-back-n   what comes out of order is dropped; after the recovery time all is sent again
  melo        what is lost is named by the receiver and sent once more; what is lost twice waits
              for the recovery time
  default     a packet is lost when one that was sent a reorder window later was answered

A lost packet has used the link: no scheme is above 1 - loss of the goodput without loss. The paper does
not say its recovery time; --fit finds the one that gives go-back-N the paper's 45.6 % at 1e-3,
and shows what then comes out at 1e-2. It is the default of --rto.

Examples:
  courser sim loss                                all schemes, 0 to 5 %
  courser sim loss --svg loss.svg --json loss.json
  courser sim loss --fit                          the recovery time that the paper leaves out
  courser sim loss --rto-sweep                    MELO at 1 % against its recovery time
  courser sim loss --reorder 0.1%:48us,1%:48us,5%:48us,10%:48us")]
pub(in crate::sim) struct LossArgs {
    /// Decides everything that is left to chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Schemes, with commas: go-back-n, melo, default; without it all, and melo for --rto-sweep
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    scheme: Option<Vec<Recovery>>,
    /// Chances that the switch loses a packet, with commas: 1e-3 or 0.1%; without it 0 to 5e-2, 0
    /// with --reorder, and 1e-2 for --rto-sweep
    #[arg(long, value_name = "CHANCE,..", value_delimiter = ',', value_parser = units::chance)]
    loss: Option<Vec<u32>>,
    /// Chance and longest delay of packets that come late, with commas: 5%:48us
    #[arg(long, value_name = "CHANCE:TIME,..", value_delimiter = ',', value_parser = reorder)]
    reorder: Vec<loss::Reorder>,
    /// Recovery time of go-back-n and melo; default: what --fit has found
    #[arg(long, value_name = "TIME", value_parser = units::nonzero_time, conflicts_with = "rto_sweep")]
    rto: Option<Duration>,
    /// Goodput against the recovery time; times with commas, default 20 us to 500 us
    #[arg(long, value_name = "TIME,..", value_delimiter = ',', num_args = 0..=1, require_equals = true, value_parser = units::nonzero_time)]
    rto_sweep: Option<Vec<Duration>>,
    /// Search the recovery time of the paper's go-back-N
    #[arg(long, conflicts_with_all = ["scheme", "loss", "reorder", "rto", "rto_sweep", "svg"])]
    pub(super) fit: bool,
    /// Round trip of the idle network
    #[arg(long, value_name = "TIME", default_value = "16us", value_parser = units::nonzero_time)]
    rtt: Duration,
    /// Credits, in bandwidth-delay products
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    window: u32,
    /// Bytes of a request, up to 128 MiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = units::bytes)]
    request: u64,
    /// Requests under way, each in a slot of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    outstanding: u32,
    /// Virtual time before anything is counted; default 20 ms, with --reorder 100 ms
    #[arg(long, value_name = "TIME", value_parser = units::time)]
    warm_up: Option<Duration>,
    /// Virtual time in which it is counted
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = units::nonzero_time)]
    time: Duration,
    /// Draw goodput against loss (or recovery time, or reordering) as SVG
    #[arg(long, value_name = "PATH")]
    pub(super) svg: Option<PathBuf>,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    pub(super) json: Option<PathBuf>,
}

impl LossArgs {
    pub(super) fn settings(&self) -> loss::Settings {
        let defaults = loss::Settings::default();
        let sweep = self.rto_sweep.is_some();
        let schemes = if sweep { vec![Recovery::Melo] } else { defaults.schemes };
        let loss_ppm = match (sweep, self.reorder.is_empty()) {
            (true, _) => vec![10_000],
            (false, true) => defaults.loss_ppm,
            (false, false) => vec![0],
        };
        let rto_ns = match (&self.rto_sweep, self.rto) {
            (Some(times), _) if times.is_empty() => all_nanos(&SWEEP),
            (Some(times), _) => all_nanos(times),
            (None, Some(rto)) => vec![nanos(rto)],
            (None, None) => defaults.rto_ns,
        };
        loss::Settings {
            seed: self.seed,
            schemes: self.scheme.clone().unwrap_or(schemes),
            loss_ppm: self.loss.clone().unwrap_or(loss_ppm),
            reorder: self.reorder.clone(),
            rto_ns,
            rtt_ns: nanos(self.rtt),
            window_permille: self.window * 1_000,
            request_bytes: usize::try_from(self.request).unwrap_or(usize::MAX),
            outstanding: self.outstanding,
            warm_up_ns: self.warm_up.map(nanos),
            time_ns: nanos(self.time),
        }
    }
}

/// Reads a load, `0.1` or `10%`.
fn load(text: &str) -> Result<u32, String> {
    units::chance(text).map_err(|_| "write a share of a link: 0.1 or 10%".to_owned())
}

#[derive(Debug, Args)]
#[command(after_help = "\
MELO's network, or a part of it with as large a share of the traffic on each spine: leaves with ten
hosts at 40 Gbit/s, four spines, 100 Gbit/s between them, a round trip of 16 us. Each host of one
half sends to one of the other half, across leaves. Flow sizes are those of web search (8.8 kB to
29 MB, 1.67 MB on average), arrivals are independent. Spine 0 loses 1 % of what crosses it. A flow
is a request, on a session of its own unless all of its sender's lanes are taken, with credits for
one bandwidth-delay product. The same flows come at the same times with every scheme.

Examples:
  courser sim fct                                  40 hosts, loads 0.1 to 0.9, 1,000 flows each
  courser sim fct --load 0.3,0.6 --flows 5000
  courser sim fct --hosts 320 --flows 4000 --svg fct.svg
  courser sim fct --scheme go-back-n,default --load 0.5 --json -")]
pub(in crate::sim) struct FctArgs {
    /// Decides everything that is left to chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Schemes, with commas: go-back-n, melo, default; without it all
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    scheme: Option<Vec<Recovery>>,
    /// Loads as shares of a sender's link, with commas; without it 0.1 to 0.9
    #[arg(long, value_name = "SHARE,..", value_delimiter = ',', value_parser = load)]
    load: Option<Vec<u32>>,
    /// Hosts: 20 to 320, a multiple of 20; the paper has 320
    #[arg(long, value_name = "N", default_value_t = 40)]
    hosts: u32,
    /// Flows that are counted at each load; all under way are in memory
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    flows: u32,
    /// Endpoints of a sender, with a session each
    #[arg(long, value_name = "N", default_value_t = 16)]
    lanes: u32,
    /// Chance that spine 0 loses a packet
    #[arg(long, value_name = "CHANCE", default_value = "1%", value_parser = units::chance)]
    loss: u32,
    /// Recovery time of go-back-n and melo; default: that of `sim loss`
    #[arg(long, value_name = "TIME", value_parser = units::nonzero_time)]
    rto: Option<Duration>,
    /// Draw the 99th percentile against load as SVG
    #[arg(long, value_name = "PATH")]
    pub(super) svg: Option<PathBuf>,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    pub(super) json: Option<PathBuf>,
}

impl FctArgs {
    pub(super) fn settings(&self) -> fct::Settings {
        let defaults = fct::Settings::default();
        fct::Settings {
            seed: self.seed,
            schemes: self.scheme.clone().unwrap_or(defaults.schemes),
            load_ppm: self.load.clone().unwrap_or(defaults.load_ppm),
            hosts: self.hosts,
            flows: self.flows,
            lanes: self.lanes,
            loss_ppm: self.loss,
            rto_ns: self.rto.map_or(defaults.rto_ns, nanos),
            window_permille: defaults.window_permille,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
A receiver with MELO keeps what has arrived out of order in one pool of 1,024 bits for all its
connections, a bit for a packet, in blocks of 8. One host sends to another under a different leaf,
which loses packets; all connections together have the credits of one bandwidth-delay product. What
is shown is the most bits in use. The paper has 96.9 % with one connection at any loss and 65.6 %
with 20 at 2 %.

Examples:
  courser sim bits-pool
  courser sim bits-pool --connections 1,20 --loss 2% --json -")]
pub(in crate::sim) struct BitsPoolArgs {
    /// Decides everything that is left to chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Numbers of connections, with commas; without it 1, 5, 10, 15, 20
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    connections: Option<Vec<u32>>,
    /// Chances that the receiver's leaf loses a packet, with commas; without it 0.1 to 2 %
    #[arg(long, value_name = "CHANCE,..", value_delimiter = ',', value_parser = units::chance)]
    loss: Option<Vec<u32>>,
    /// Round trip of the idle network
    #[arg(long, value_name = "TIME", default_value = "200us", value_parser = units::nonzero_time)]
    rtt: Duration,
    /// Recovery time of what is lost twice
    #[arg(long, value_name = "TIME", default_value = "600us", value_parser = units::nonzero_time)]
    rto: Duration,
    /// Packets that a connection sends from the first missing one on, in multiples of its credits
    #[arg(long, value_name = "N", default_value_t = 1)]
    spread: u32,
    /// Virtual time of a run
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = units::nonzero_time)]
    time: Duration,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    pub(super) json: Option<PathBuf>,
}

impl BitsPoolArgs {
    pub(super) fn settings(&self) -> bits_pool::Settings {
        let defaults = bits_pool::Settings::default();
        bits_pool::Settings {
            seed: self.seed,
            connections: self.connections.clone().unwrap_or(defaults.connections),
            loss_ppm: self.loss.clone().unwrap_or(defaults.loss_ppm),
            rtt_ns: nanos(self.rtt),
            rto_ns: nanos(self.rto),
            spread: self.spread,
            time_ns: nanos(self.time),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Two hosts at one switch, which loses each datagram with the given chance. Each loss is written down
for the calls whose request or response was in it, so calls that lost one packet are seen apart.
The bound is the 99th percentile without loss and three round trips; the reorder window, a quarter
of a round trip here, comes on top of it.

Examples:
  courser sim lost-call
  courser sim lost-call --in-flight 8 --scheme default --calls 1000000")]
pub(in crate::sim) struct LostCallArgs {
    /// Decides everything that is left to chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Schemes, with commas: go-back-n, melo, default; without it all
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    scheme: Option<Vec<Recovery>>,
    /// Chance that the switch loses a datagram
    #[arg(long, value_name = "CHANCE", default_value = "1e-3", value_parser = units::chance)]
    loss: u32,
    /// Calls of each run
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    calls: u64,
    /// Calls under way
    #[arg(long, value_name = "N", default_value_t = 1)]
    in_flight: u32,
    /// What work costs the CPUs
    #[arg(long, value_name = "MODEL", value_enum, default_value = "erpc")]
    cpu: CpuName,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    pub(super) json: Option<PathBuf>,
}

impl LostCallArgs {
    pub(super) fn settings(&self) -> lost_call::Settings {
        let defaults = lost_call::Settings::default();
        lost_call::Settings {
            seed: self.seed,
            schemes: self.scheme.clone().unwrap_or(defaults.schemes),
            loss_ppm: self.loss,
            calls: self.calls,
            in_flight: self.in_flight,
            cpu: Cpu::from(self.cpu),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct LossLine {
        #[command(flatten)]
        args: LossArgs,
    }

    #[derive(Parser)]
    struct FctLine {
        #[command(flatten)]
        args: FctArgs,
    }

    #[derive(Parser)]
    struct PoolLine {
        #[command(flatten)]
        args: BitsPoolArgs,
    }

    #[derive(Parser)]
    struct CallLine {
        #[command(flatten)]
        args: LostCallArgs,
    }

    fn loss_args(line: &str) -> loss::Settings {
        LossLine::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{e}")).args.settings()
    }

    #[test]
    fn defaults_are_those_of_the_experiments() {
        assert_eq!(loss_args("loss"), loss::Settings::default());
        let fct = FctLine::parse_from(["fct"]).args.settings();
        assert_eq!(fct, fct::Settings::default());
        let pool = PoolLine::parse_from(["bits-pool"]).args.settings();
        assert_eq!(pool, bits_pool::Settings::default());
        let call = CallLine::parse_from(["lost-call"]).args.settings();
        assert_eq!(call, lost_call::Settings::default());
    }

    #[test]
    fn options_reach_the_experiments() {
        let line = "loss --scheme melo,default --loss 0,0.1%,1e-2 --rto 100us --window 2 \
                    --request 8MiB --outstanding 2";
        let s = loss_args(line);
        assert_eq!(s.schemes, [Recovery::Melo, Recovery::Selective]);
        assert_eq!((&s.loss_ppm[..], &s.rto_ns[..]), (&[0, 1_000, 10_000][..], &[100_000][..]));
        assert_eq!((s.window_permille, s.request_bytes, s.outstanding), (2_000, 8 << 20, 2));
        let s = loss_args("loss --reorder 5%:48us,0.1%:1us");
        let (late, rare) = (s.reorder[0], s.reorder[1]);
        assert_eq!((late.ppm, late.max_ns, rare.ppm, rare.max_ns), (50_000, 48_000, 1_000, 1_000));
        assert_eq!(s.loss_ppm, [0], "reordering alone");
    }

    #[test]
    fn a_sweep_is_melo_s_unless_it_is_said_otherwise() {
        let s = loss_args("loss --rto-sweep");
        assert_eq!((s.schemes, s.loss_ppm), (vec![Recovery::Melo], vec![10_000]));
        assert_eq!(s.rto_ns.len(), SWEEP.len());
        let s = loss_args("loss --rto-sweep=1ms,2ms --scheme go-back-n --loss 1e-3");
        assert_eq!((s.schemes, s.rto_ns), (vec![Recovery::GoBackN], vec![1_000_000, 2_000_000]));
    }
}
