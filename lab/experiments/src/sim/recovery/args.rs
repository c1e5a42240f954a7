//! Command-line options of the loss experiments. Defaults are those of their `Settings`.

use std::time::Duration;

use crate::experiments::{bits_pool, fct, loss, lost_call};
use crate::scenario::Cpu;
use clap::Args;
use courser::{Control, Recovery};

use crate::declare::output::OutputArgs;
use crate::sim::run::args::{ControlName, CpuName};
use courser_kit::units;

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn all_nanos(times: &[Duration]) -> Vec<u64> {
    times.iter().copied().map(nanos).collect()
}

/// Parses `5%:48us`.
fn reorder(text: &str) -> Result<loss::Reorder, String> {
    let (chance, time) =
        text.split_once(':').ok_or("write a probability and the longest delay: 5%:48us")?;
    Ok(loss::Reorder { ppm: units::chance(chance)?, max_ns: nanos(units::nonzero_time(time)?) })
}

/// Default recovery times of a sweep.
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

/// Arguments of the experiments that repeat a run with several seeds and congestion controls.
#[derive(Debug, Args)]
pub(super) struct CommonArgs {
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of seeds: results are those of the seed with the median, with the range
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(super) seeds: u64,
    /// Congestion controls, each with every scheme. The paper has dcqcn
    #[arg(
        long,
        value_name = "NAME,..",
        value_enum,
        value_delimiter = ',',
        default_value = "dcqcn"
    )]
    control: Vec<ControlName>,
}

impl CommonArgs {
    fn controls(&self) -> Vec<Control> {
        self.control.iter().copied().map(Control::from).collect()
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Simulates two hosts at one switch of MELO's network: 40 Gbit/s, packets of 1,024 data \
bytes, a round trip of 16 us, credits for three bandwidth-delay products. The switch drops \
packets in both directions with the given probability: data and credit returns. CPU costs \
are zero. Switches mark for DCQCN: RED from 100 to 400 kB, up to 20 %. One flow fills no \
queue in a switch, so nothing is marked here.

  go-back-n       the receiver drops packets that arrive out of order; after the
                  recovery time the sender resends all packets from the lost one
                  on
  go-back-n-nack  the same, as in RDMA NICs: the first packet behind a gap has
                  the sender go back at once; when that fails, the recovery time
  melo            the receiver reports each lost packet and the sender resends
                  it once; a packet lost twice is resent after the recovery time
  default         a packet is lost when a packet that was sent one reordering
                  window later has been acknowledged

A lost packet has used the link, so the bound of every scheme is 1 - loss of the goodput \
without loss. The paper contradicts itself about go-back-N on NACKs at 1e-3: close to zero \
in figure 1 (a NIC), 45.6 % in figure 5a (its simulation). It does not state its recovery \
time. --fit finds the time that gives go-back-N without NACKs the paper's 45.6 % at 1e-3, and \
shows the goodput with that time at 1e-2. It is the default of --rto.

Examples:
  courser-lab sim loss                  all schemes, 0 to 5 %
  courser-lab sim loss --seeds 5        the same with median and range
  courser-lab sim loss --svg loss.svg --json loss.json
  courser-lab sim loss --fit            fit the recovery time to the paper
  courser-lab sim loss --rto-sweep      MELO at 1 % with several recovery times
  courser-lab sim loss --reorder 0.1%:48us,1%:48us,5%:48us,10%:48us")]
pub(crate) struct LossArgs {
    #[command(flatten)]
    pub(super) common: CommonArgs,
    /// Schemes: go-back-n, go-back-n-nack, melo, default. Default all, with --rto-sweep melo
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    scheme: Option<Vec<Recovery>>,
    /// Probabilities that the switch drops a packet, as 1e-3 or 0.1%. Default 0 to 5e-2, with
    /// --reorder 0, with --rto-sweep 1e-2
    #[arg(long, value_name = "CHANCE,..", value_delimiter = ',', value_parser = units::chance)]
    loss: Option<Vec<u32>>,
    /// Probability and longest delay of reordered packets: 5%:48us
    #[arg(long, value_name = "CHANCE:TIME,..", value_delimiter = ',', value_parser = reorder)]
    reorder: Vec<loss::Reorder>,
    /// Recovery time of go-back-n and melo. Default: the result of --fit
    #[arg(long, value_name = "TIME", value_parser = units::nonzero_time, conflicts_with = "rto_sweep")]
    rto: Option<Duration>,
    /// Measure several recovery times. Default 20us to 500us
    #[arg(long, value_name = "TIME,..", value_delimiter = ',', num_args = 0..=1, require_equals = true, value_parser = units::nonzero_time)]
    rto_sweep: Option<Vec<Duration>>,
    /// Find the recovery time that gives the paper's goodput of go-back-N
    #[arg(long, conflicts_with_all = ["scheme", "loss", "reorder", "rto", "rto_sweep", "svg"])]
    pub(super) fit: bool,
    /// Round trip of the idle network
    #[arg(long, value_name = "TIME", default_value = "16us", value_parser = units::nonzero_time)]
    rtt: Duration,
    /// Credits in bandwidth-delay products
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    window: u32,
    /// Bytes of a request, up to 128 MiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = units::bytes)]
    request: u64,
    /// Requests in flight, one in each slot
    #[arg(long, value_name = "N", default_value_t = 1)]
    outstanding: u32,
    /// Virtual time before the measurement. Default 20ms, with --reorder 100ms
    #[arg(long, value_name = "TIME", value_parser = units::time)]
    warm_up: Option<Duration>,
    /// Virtual time of the measurement
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = units::nonzero_time)]
    time: Duration,
    #[command(flatten)]
    pub(super) output: OutputArgs,
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
            seed: self.common.seed,
            controls: self.common.controls(),
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

/// Parses a load, `0.1` or `10%`.
fn load(text: &str) -> Result<u32, String> {
    units::chance(text).map_err(|_| "write a share of a link: 0.1 or 10%".to_owned())
}

#[derive(Debug, Args)]
#[command(after_help = "\
Simulates MELO's network, or a part of it with the same load on each spine: leaves with \
ten hosts at 40 Gbit/s, four spines, 100 Gbit/s between leaf and spine, a round trip of \
16 us. Each host of one half sends to a host of the other half, across leaves. Flow sizes \
are those of web search (8.8 kB to 29 MB, 1.67 MB on average); arrivals are independent. \
Spine 0 drops 1 % of its packets. Switches mark for DCQCN: RED from 100 to 400 kB, up to \
20 %. A flow is one request with credits for one \
bandwidth-delay product. It has its own session unless all lanes of its sender are busy. \
Every scheme gets the same flows at the same times.

Examples:
  courser-lab sim fct                    40 hosts, loads 0.1 to 0.9, 1,000 flows
  courser-lab sim fct --load 0.3,0.6 --flows 5000
  courser-lab sim fct --hosts 320 --flows 4000 --seeds 5 --svg fct.svg
  courser-lab sim fct --scheme go-back-n,default --load 0.5 --json -")]
pub(crate) struct FctArgs {
    #[command(flatten)]
    pub(super) common: CommonArgs,
    /// Schemes: go-back-n, go-back-n-nack, melo, default. Default all
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    scheme: Option<Vec<Recovery>>,
    /// Loads as shares of the sender's link. Default 0.1 to 0.9
    #[arg(long, value_name = "SHARE,..", value_delimiter = ',', value_parser = load)]
    load: Option<Vec<u32>>,
    /// Hosts: 20 to 320, a multiple of 20; the paper has 320
    #[arg(long, value_name = "N", default_value_t = 40)]
    hosts: u32,
    /// Measured flows at each load; memory grows with the flows in flight
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    flows: u32,
    /// Endpoints of a sender, with one session each
    #[arg(long, value_name = "N", default_value_t = 16)]
    lanes: u32,
    /// Probability that spine 0 drops a packet
    #[arg(long, value_name = "CHANCE", default_value = "1%", value_parser = units::chance)]
    loss: u32,
    /// Recovery time of go-back-n and melo. Default: as `sim loss`
    #[arg(long, value_name = "TIME", value_parser = units::nonzero_time)]
    rto: Option<Duration>,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

impl FctArgs {
    pub(super) fn settings(&self) -> fct::Settings {
        let defaults = fct::Settings::default();
        fct::Settings {
            seed: self.common.seed,
            controls: self.common.controls(),
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
A receiver with MELO records packets that arrive out of order in one pool of 1,024 bits \
for all connections, one bit for each packet, in blocks of 8. One host sends to another \
host at a different leaf, which drops packets. All connections together have credits for \
one bandwidth-delay product. The result is the peak use of the pool. The paper has 96.9 % \
with one connection at any loss, and 65.6 % with 20 connections at 2 %.

Examples:
  courser-lab sim bits-pool
  courser-lab sim bits-pool --connections 1,20 --loss 2% --json -")]
pub(crate) struct BitsPoolArgs {
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Numbers of connections. Default 1,5,10,15,20
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    connections: Option<Vec<u32>>,
    /// Probabilities that the receiver's leaf drops a packet. Default 0.1% to 2%
    #[arg(long, value_name = "CHANCE,..", value_delimiter = ',', value_parser = units::chance)]
    loss: Option<Vec<u32>>,
    /// Round trip of the idle network
    #[arg(long, value_name = "TIME", default_value = "200us", value_parser = units::nonzero_time)]
    rtt: Duration,
    /// Recovery time of packets that are lost twice
    #[arg(long, value_name = "TIME", default_value = "600us", value_parser = units::nonzero_time)]
    rto: Duration,
    /// Packets that a connection may send beyond the first missing one, in multiples of its credits
    #[arg(long, value_name = "N", default_value_t = 1)]
    spread: u32,
    /// Virtual time of a run
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = units::nonzero_time)]
    time: Duration,
    #[command(flatten)]
    pub(super) output: OutputArgs,
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
Simulates two hosts at one switch, which drops each datagram with the given probability. \
Each loss is recorded for the calls whose request or response it contained, so calls that \
lost one packet are counted separately. The bound is the 99th percentile without loss plus \
three round trips plus the reordering window, here a quarter of a round trip.

Examples:
  courser-lab sim lost-call
  courser-lab sim lost-call --in-flight 8 --scheme default --calls 1000000")]
pub(crate) struct LostCallArgs {
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Schemes: go-back-n, melo, default. Default all
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    scheme: Option<Vec<Recovery>>,
    /// Probability that the switch drops a datagram
    #[arg(long, value_name = "CHANCE", default_value = "1e-3", value_parser = units::chance)]
    loss: u32,
    /// Calls of each run
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    calls: u64,
    /// Calls in flight
    #[arg(long, value_name = "N", default_value_t = 1)]
    in_flight: u32,
    /// Model of CPU costs
    #[arg(long, value_name = "MODEL", value_enum, default_value = "erpc")]
    cpu: CpuName,
    #[command(flatten)]
    pub(super) output: OutputArgs,
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
    fn a_sweep_of_recovery_times_is_of_melo_by_default() {
        let s = loss_args("loss --rto-sweep");
        assert_eq!((s.schemes, s.loss_ppm), (vec![Recovery::Melo], vec![10_000]));
        assert_eq!(s.rto_ns.len(), SWEEP.len());
        let s = loss_args("loss --rto-sweep=1ms,2ms --scheme go-back-n --loss 1e-3");
        assert_eq!((s.schemes, s.rto_ns), (vec![Recovery::GoBackN], vec![1_000_000, 2_000_000]));
    }
}
