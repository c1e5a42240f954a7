//! Command-line options of the experiments. Defaults are those of their `Settings`.

use std::path::PathBuf;
use std::time::Duration;

use crate::scenario::{Cpu, bandwidth, buffers, credits, incast, response_rtt, sessions};
use clap::{Args, Subcommand, ValueEnum};
use courser::{Control, Recovery};
use serde::Serialize;

use crate::declare::group::Chosen;
use crate::declare::observe::ObserveArgs;
use crate::declare::output::OutputArgs;
use crate::declare::seeds::SeedArgs;
use crate::experiments;
use courser_kit::units;

#[derive(Debug, Args)]
#[command(after_help = "\
The same seed has the same result on every machine, except for the time and memory that \
the simulation takes.

Examples:
  courser-lab sim run e76 --time 2ms --json e76.json
  courser-lab sim run incast --senders 20 --trace incast.txt
  courser-lab sim run fan-in --seeds 5    medians of five seeds with their range
  courser-lab sim run response-rtt --two-racks
  courser-lab sim run speed")]
pub(crate) struct RunArgs {
    #[command(subcommand)]
    pub(super) experiment: Scenario,
}

#[derive(Debug, Subcommand)]
pub(super) enum Scenario {
    /// Latency and rate of small calls between nodes that all call each other [eRPC §6.3]
    #[command(visible_alias = "datacenter")]
    E76(E76Args),
    /// Many senders and one receiver, with any congestion control [eRPC §6.5]
    Incast(IncastArgs),
    /// Loss of an incast by size of the switch buffers [eRPC §2.1]
    Buffers(BuffersArgs),
    /// Bandwidth of a session by its credits [eRPC §4.3.1]
    Credits(CreditsArgs),
    /// Goodput of large requests by size, compared with writes [eRPC §6.4]
    #[command(visible_alias = "e77")]
    Bandwidth(BandwidthArgs),
    /// Latency that a response of several packets adds [eRPC §5.1]
    ResponseRtt(ResponseRttArgs),
    #[command(flatten)]
    Declared(Chosen<experiments::Run>),
    /// Speed of the simulator
    Speed(SpeedArgs),
}

/// Model of CPU costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CpuName {
    /// No CPU costs: only the network takes time
    None,
    /// Costs of the paper: 44 ns for each packet
    Erpc,
    /// Estimated costs of Courser: about 140 ns for each packet
    Courser,
    /// Measured costs of Courser: about 40 ns for each packet and frame
    Measured,
}

impl From<CpuName> for Cpu {
    fn from(name: CpuName) -> Cpu {
        match name {
            CpuName::None => Cpu::None,
            CpuName::Erpc => Cpu::Erpc,
            CpuName::Courser => Cpu::Courser,
            CpuName::Measured => Cpu::Measured,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum NetworkName {
    /// All hosts at one switch
    OneSwitch,
    /// The paper's cluster: five racks
    Cx4,
}

/// Congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ControlName {
    /// Credits alone
    None,
    /// As C++ eRPC ships it, not patched
    Timely,
    /// With the correction of "ECN or Delay"
    TimelyPatched,
    /// A rate from congestion marks
    Dcqcn,
    /// A window from the delay
    Swift,
    /// Courser's own: the receiver's budget and the sender's window
    Default,
}

impl From<ControlName> for Control {
    fn from(name: ControlName) -> Control {
        match name {
            ControlName::None => Control::None,
            ControlName::Timely => Control::Timely,
            ControlName::TimelyPatched => Control::TimelyPatched,
            ControlName::Dcqcn => Control::Dcqcn,
            ControlName::Swift => Control::Swift,
            ControlName::Default => Control::TwoWindow,
        }
    }
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[derive(Debug, Args)]
pub(super) struct E76Args {
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Nodes, in five racks
    #[arg(long, value_name = "N", default_value_t = 100)]
    nodes: u32,
    /// Threads of each node, with one CPU each
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: u32,
    /// Requests in flight of each thread
    #[arg(long, value_name = "N", default_value_t = 60)]
    in_flight: u32,
    /// Requests of a batch
    #[arg(long, value_name = "N", default_value_t = 3)]
    batch: u32,
    /// Model of CPU costs
    #[arg(long, value_name = "MODEL", value_enum, default_value = "erpc")]
    cpu: CpuName,
    /// Record every executed request to detect a second execution
    #[arg(long)]
    at_most_once: bool,
    /// Virtual time before the measurement
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = units::time)]
    warm_up: Duration,
    /// Virtual time of the measurement
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = units::nonzero_time)]
    time: Duration,
    #[command(flatten)]
    pub(super) observe: ObserveArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

impl E76Args {
    pub(super) fn settings(&self) -> sessions::Settings {
        sessions::Settings {
            seed: self.seed,
            nodes: self.nodes,
            threads: self.threads,
            in_flight: self.in_flight,
            batch: self.batch,
            cpu: self.cpu.into(),
            at_most_once: self.at_most_once,
            warm_up_ns: nanos(self.warm_up),
            time_ns: nanos(self.time),
            ..sessions::Settings::default()
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct IncastArgs {
    #[command(flatten)]
    pub(super) seeds: SeedArgs,
    /// The network
    #[arg(long, value_name = "NAME", value_enum, default_value = "one-switch")]
    network: NetworkName,
    /// Numbers of senders, with commas
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "20")]
    senders: Vec<u32>,
    /// Congestion controls, with commas
    #[arg(long, value_name = "NAME,..", value_enum, value_delimiter = ',', default_value = "none")]
    control: Vec<ControlName>,
    /// Loss recovery
    #[arg(long, value_name = "SCHEME", default_value = "go-back-n")]
    recovery: Recovery,
    /// Credits of each session
    #[arg(long, value_name = "N", default_value_t = 32)]
    credits: u32,
    /// Largest datagram payload
    #[arg(long, value_name = "SIZE", default_value = "1472", value_parser = units::bytes)]
    frame_size: u64,
    /// Bytes of a request
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = units::message_size)]
    size: usize,
    /// Model of CPU costs
    #[arg(long, value_name = "MODEL", value_enum, default_value = "none")]
    cpu: CpuName,
    /// Virtual time before the measurement
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = units::time)]
    warm_up: Duration,
    /// Virtual time of the measurement
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = units::nonzero_time)]
    time: Duration,
    #[command(flatten)]
    pub(super) observe: ObserveArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

impl IncastArgs {
    /// The settings of each run: every control with every number of senders.
    pub(super) fn settings(&self) -> Vec<incast::Settings> {
        let pairs = self.control.iter().flat_map(|&c| self.senders.iter().map(move |&n| (c, n)));
        pairs.map(|(control, senders)| self.settings_of(control, senders)).collect()
    }

    fn settings_of(&self, control: ControlName, senders: u32) -> incast::Settings {
        incast::Settings {
            seed: self.seeds.first(),
            network: match self.network {
                NetworkName::OneSwitch => incast::Network::OneSwitch,
                NetworkName::Cx4 => incast::Network::Cx4,
            },
            senders,
            credits: self.credits,
            control: control.into(),
            recovery: self.recovery,
            max_frame: usize::try_from(self.frame_size).unwrap_or(usize::MAX),
            request_bytes: self.size,
            cpu: self.cpu.into(),
            warm_up_ns: nanos(self.warm_up),
            time_ns: nanos(self.time),
            ..incast::Settings::default()
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct BuffersArgs {
    #[command(flatten)]
    pub(super) seeds: SeedArgs,
    /// Numbers of senders
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    senders: Option<Vec<u32>>,
    /// Static buffers of each port in bytes; the dynamic buffer is always measured
    #[arg(long, value_name = "BYTES,..", value_delimiter = ',')]
    static_bytes: Option<Vec<u64>>,
    /// Congestion controls, with commas
    #[arg(
        long,
        value_name = "NAME,..",
        value_enum,
        value_delimiter = ',',
        default_value = "none,default"
    )]
    control: Vec<ControlName>,
    /// Schemes of loss recovery, with commas
    #[arg(
        long,
        value_name = "SCHEME,..",
        value_delimiter = ',',
        default_value = "go-back-n,default"
    )]
    recovery: Vec<Recovery>,
    /// Credits of each session
    #[arg(long, value_name = "N", default_value_t = 13)]
    credits: u32,
    /// Virtual time of the measurement, which begins after 30 ms
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = units::nonzero_time)]
    time: Duration,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

impl BuffersArgs {
    pub(super) fn settings(&self) -> buffers::Settings {
        let defaults = buffers::Settings::default();
        buffers::Settings {
            seed: self.seeds.first(),
            senders: self.senders.clone().unwrap_or(defaults.senders),
            static_bytes: self.static_bytes.clone().unwrap_or(defaults.static_bytes),
            credits: self.credits,
            controls: self.control.iter().map(|&control| control.into()).collect(),
            recoveries: self.recovery.clone(),
            time_ns: nanos(self.time),
            ..defaults
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct CreditsArgs {
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Rate of the cable, Gbit/s
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u64).range(1..=1000))]
    gbps: u64,
    /// Round trip of a credit
    #[arg(long, value_name = "TIME", default_value = "6080ns", value_parser = units::nonzero_time)]
    rtt: Duration,
    /// Most credits. Default: two bandwidth-delay products
    #[arg(long, value_name = "N")]
    max_credits: Option<u32>,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

impl CreditsArgs {
    pub(super) fn settings(&self) -> credits::Settings {
        credits::Settings {
            seed: self.seed,
            rate_bps: self.gbps * 1_000_000_000,
            rtt_ns: nanos(self.rtt),
            max_credits: self.max_credits,
            ..credits::Settings::default()
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct BandwidthArgs {
    #[command(flatten)]
    pub(super) seeds: SeedArgs,
    /// Sizes of requests. Default 512B to 8MiB
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = units::message_size)]
    sizes: Option<Vec<usize>>,
    /// Rate of the cables, Gbit/s
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
    gbps: u64,
    /// Credits of the session
    #[arg(long, value_name = "N", default_value_t = 32)]
    credits: u32,
    /// Model of CPU costs
    #[arg(long, value_name = "MODEL", value_enum, default_value = "measured")]
    cpu: CpuName,
    /// Measured virtual time of each size
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = units::nonzero_time)]
    time: Duration,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

impl BandwidthArgs {
    pub(super) fn settings(&self) -> bandwidth::Settings {
        let defaults = bandwidth::Settings::default();
        bandwidth::Settings {
            seed: self.seeds.first(),
            request_bytes: self.sizes.clone().unwrap_or(defaults.request_bytes),
            rate_bps: self.gbps * 1_000_000_000,
            credits: self.credits,
            cpu: self.cpu.into(),
            time_ns: nanos(self.time),
            ..defaults
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct ResponseRttArgs {
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Packets of the largest response
    #[arg(long, value_name = "N", default_value_t = 32)]
    max_packets: u32,
    /// Rate of the hosts' cables, Gbit/s
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u64).range(1..=100))]
    gbps: u64,
    /// Put the hosts into two racks instead of one
    #[arg(long)]
    two_racks: bool,
    /// Model of CPU costs
    #[arg(long, value_name = "MODEL", value_enum, default_value = "erpc")]
    cpu: CpuName,
    #[command(flatten)]
    pub(super) observe: ObserveArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

impl ResponseRttArgs {
    pub(super) fn settings(&self) -> response_rtt::Settings {
        response_rtt::Settings {
            seed: self.seed,
            max_packets: self.max_packets,
            rate_bps: self.gbps * 1_000_000_000,
            two_racks: self.two_racks,
            cpu: self.cpu.into(),
            ..response_rtt::Settings::default()
        }
    }
}

#[derive(Debug, Args, Serialize)]
pub(super) struct SpeedArgs {
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Rounds with one window of each load
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: u32,
    /// Real time of a window
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = units::nonzero_time)]
    pub(super) window: Duration,
    /// Disable the checks that every simulation does
    #[arg(long)]
    pub(super) no_checks: bool,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    #[serde(skip)]
    pub(super) json: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: RunArgs,
    }

    fn scenario(line: &str) -> Scenario {
        let line = Line::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{e}"));
        line.args.experiment
    }

    #[test]
    fn defaults_are_those_of_the_experiments() {
        let Scenario::E76(e76) = scenario("run datacenter") else { panic!("not e76") };
        assert_eq!(e76.settings(), sessions::Settings::default());
        let Scenario::Incast(incast) = scenario("run incast") else { panic!("not incast") };
        assert_eq!(incast.settings(), [incast::Settings::default()]);
        let Scenario::Buffers(buffers) = scenario("run buffers") else { panic!("not buffers") };
        assert_eq!(buffers.settings(), buffers::Settings::default());
        let Scenario::Credits(credits) = scenario("run credits") else { panic!("not credits") };
        assert_eq!(credits.settings(), credits::Settings::default());
        let Scenario::Bandwidth(large) = scenario("run bandwidth") else { panic!("not bandwidth") };
        assert_eq!(large.settings(), bandwidth::Settings::default());
        let line = "run response-rtt";
        let Scenario::ResponseRtt(rtt) = scenario(line) else { panic!("not response-rtt") };
        assert_eq!(rtt.settings(), response_rtt::Settings::default());
    }

    #[test]
    fn options_reach_the_experiments() {
        let line = "run buffers --senders 3,4 --static-bytes 9000 --credits 2 --time 1ms";
        let Scenario::Buffers(buffers) = scenario(line) else { panic!("not buffers") };
        let settings = buffers.settings();
        assert_eq!((settings.senders, settings.static_bytes), (vec![3, 4], vec![9_000]));
        assert_eq!(settings.controls, [Control::None, Control::TwoWindow]);
        assert_eq!(settings.recoveries, [Recovery::GoBackN, Recovery::Selective]);
        assert_eq!((settings.credits, settings.time_ns), (2, 1_000_000));
        let line = "run incast --network cx4 --cpu courser --size 64KiB --frame-size 1KiB";
        let Scenario::Incast(incast) = scenario(line) else { panic!("not incast") };
        let [settings] = incast.settings()[..] else { panic!("one run") };
        assert_eq!((settings.network, settings.cpu), (incast::Network::Cx4, Cpu::Courser));
        assert_eq!((settings.request_bytes, settings.max_frame), (65_536, 1_024));
    }
}
