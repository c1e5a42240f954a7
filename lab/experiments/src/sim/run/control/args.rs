//! Command-line options of the experiments of congestion control. Defaults are those of their
//! `Settings`.

use std::time::Duration;

use crate::experiments::{background, join_leave, operating_range};
use crate::scenario::Hosts;
use crate::scenario::incast::Network;
use clap::Args;
use courser::{Control, Recovery};

use super::super::args::{ControlName, NetworkName, nanos};
use crate::declare::output::OutputArgs;
use crate::declare::seeds::SeedArgs;
use courser_kit::units;

/// Options of all of them.
#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    #[command(flatten)]
    pub(super) seeds: SeedArgs,
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
    #[arg(long, value_name = "SCHEME,..", value_delimiter = ',', default_value = "default")]
    recovery: Vec<Recovery>,
    /// Credits of each session
    #[arg(long, value_name = "N")]
    credits: Option<u32>,
    /// Largest datagram payload
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    frame_size: Option<u64>,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

impl HostArgs {
    /// The hosts of each run: every control with every scheme of recovery.
    fn each(&self, default: Hosts) -> Vec<Hosts> {
        let frame = self.frame_size.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let of = |control: Control, recovery| Hosts {
            seed: self.seeds.first(),
            control,
            recovery,
            credits: self.credits.unwrap_or(default.credits),
            max_frame: frame.unwrap_or(default.max_frame),
            ..default
        };
        let schemes = |c: Control| self.recovery.iter().map(move |&r| of(c, r));
        self.control.iter().flat_map(|&c| schemes(c.into())).collect()
    }
}

#[derive(Debug, Args)]
pub(crate) struct BackgroundArgs {
    #[command(flatten)]
    pub(super) hosts: HostArgs,
    /// The network
    #[arg(long, value_name = "NAME", value_enum, default_value = "cx4")]
    network: NetworkName,
    /// Senders of the incast; each has a thread of the background
    #[arg(long, value_name = "N", default_value_t = 100)]
    senders: u32,
    /// Bytes of a background request and of its response
    #[arg(long, value_name = "SIZE", default_value = "64000", value_parser = units::message_size)]
    size: usize,
    /// Virtual time before the measurement
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = units::time)]
    warm_up: Duration,
    /// Virtual time of the measurement
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = units::nonzero_time)]
    time: Duration,
}

impl BackgroundArgs {
    pub(super) fn settings(&self) -> Vec<background::Settings> {
        let default = background::Settings::default();
        let of = |hosts| background::Settings {
            hosts,
            network: match self.network {
                NetworkName::OneSwitch => Network::OneSwitch,
                NetworkName::Cx4 => Network::Cx4,
            },
            senders: self.senders,
            background_bytes: self.size,
            warm_up_ns: nanos(self.warm_up),
            time_ns: nanos(self.time),
            ..default
        };
        self.hosts.each(default.hosts).into_iter().map(of).collect()
    }
}

#[derive(Debug, Args)]
pub(crate) struct RangeArgs {
    #[command(flatten)]
    pub(super) hosts: HostArgs,
    /// Rates of all links, Gbit/s
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "10,25,100,400",
        value_parser = clap::value_parser!(u64).range(1..=1600))]
    gbps: Vec<u64>,
    /// Round trips of an empty packet
    #[arg(long, value_name = "TIME,..", value_delimiter = ',', default_value = "1us,5us,25us,100us",
        value_parser = units::time)]
    rtt: Vec<Duration>,
    /// Largest datagram payloads; replaces --frame-size
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',', default_value = "1072,8KiB",
        value_parser = units::bytes)]
    frames: Vec<u64>,
    /// Longest delays of a frame at its receiver
    #[arg(long, value_name = "TIME,..", value_delimiter = ',', default_value = "0us,20us",
        value_parser = units::time)]
    jitter: Vec<Duration>,
    /// Numbers of senders
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "2,5,20")]
    senders: Vec<u32>,
    /// Tell hosts the rate of their link; else they take it for the default, 25 Gbit/s
    #[arg(long)]
    rate_known: bool,
    /// Measured time in round trips; at least 5 ms
    #[arg(long, value_name = "N", default_value_t = 200)]
    rtts: u32,
}

impl RangeArgs {
    pub(super) fn settings(&self) -> Vec<operating_range::Settings> {
        let mut all = Vec::new();
        for hosts in self.hosts.each(Hosts::default()) {
            for (&gbps, &rtt) in pairs(&self.gbps, &self.rtt) {
                for (&frame, &jitter) in pairs(&self.frames, &self.jitter) {
                    all.extend(self.senders.iter().map(|&senders| operating_range::Settings {
                        hosts: Hosts {
                            max_frame: usize::try_from(frame).unwrap_or(usize::MAX),
                            ..hosts
                        },
                        senders,
                        rate_bps: gbps * 1_000_000_000,
                        base_rtt_ns: nanos(rtt),
                        jitter_ns: nanos(jitter),
                        rate_known: self.rate_known,
                        time_rtts: self.rtts,
                        ..operating_range::Settings::default()
                    }));
                }
            }
        }
        all
    }
}

/// Each of the first with each of the second.
fn pairs<'a, A, B>(first: &'a [A], second: &'a [B]) -> impl Iterator<Item = (&'a A, &'a B)> {
    first.iter().flat_map(move |a| second.iter().map(move |b| (a, b)))
}

#[derive(Debug, Args)]
pub(crate) struct JoinLeaveArgs {
    #[command(flatten)]
    pub(super) hosts: HostArgs,
    /// Senders
    #[arg(long, value_name = "N", default_value_t = 10)]
    senders: u32,
    /// Bytes of a request
    #[arg(long, value_name = "SIZE", default_value = "512KiB", value_parser = units::message_size)]
    size: usize,
    /// Time between two changes
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = units::nonzero_time)]
    every: Duration,
}

impl JoinLeaveArgs {
    pub(super) fn settings(&self) -> Vec<join_leave::Settings> {
        let of = |hosts| join_leave::Settings {
            hosts,
            senders: self.senders,
            request_bytes: self.size,
            every_ns: nanos(self.every),
        };
        self.hosts.each(join_leave::Settings::default().hosts).into_iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line<A: Args> {
        #[command(flatten)]
        args: A,
    }

    fn parsed<A: Args>(line: &str) -> A {
        let line = Line::try_parse_from(format!("run {line}").split_whitespace());
        line.unwrap_or_else(|e| panic!("{e}")).args
    }

    /// The settings of one run with the defaults of the options.
    const OWN: &str = "--control default";

    #[test]
    fn defaults_are_those_of_the_experiments() {
        assert_eq!(parsed::<BackgroundArgs>(OWN).settings(), [Default::default()]);
        assert_eq!(parsed::<JoinLeaveArgs>(OWN).settings(), [Default::default()]);
        let line = format!("{OWN} --gbps 25 --rtt 5us --frames 1072 --jitter 0us --senders 20");
        assert_eq!(parsed::<RangeArgs>(&line).settings(), [Default::default()]);
    }

    #[test]
    fn every_control_runs_with_every_recovery() {
        let line = "--control none,swift --recovery go-back-n,default --credits 9 --seed 4";
        let all = parsed::<JoinLeaveArgs>(line).settings();
        let pairs: Vec<_> = all.iter().map(|s| (s.hosts.control, s.hosts.recovery)).collect();
        let (none, swift) = (Control::None, Control::Swift);
        let (first, second) = (Recovery::GoBackN, Recovery::Selective);
        assert_eq!(pairs, [(none, first), (none, second), (swift, first), (swift, second)]);
        assert!(all.iter().all(|s| (s.hosts.credits, s.hosts.seed) == (9, 4)));
    }

    #[test]
    fn the_sweep_has_every_combination() {
        let line = "--control default --gbps 10,25 --rtt 1us,5us --jitter 0us,1us --senders 2,3";
        let all = parsed::<RangeArgs>(line).settings();
        assert_eq!(all.len(), 32, "with two frame sizes");
        assert!((1..all.len()).all(|at| !all[..at].contains(&all[at])));
    }
}
