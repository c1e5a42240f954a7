//! Parts that experiments share: hosts and their applications, flows, measured distributions, and the
//! arithmetic that predicts results.
//!
//! Nothing is adjusted to match a paper: every deviation has a cause in the model. All results follow
//! from the settings.

pub(crate) mod app;
pub mod batches;
pub(crate) mod caller;
pub mod constants;
pub(crate) mod flows;
pub(crate) mod hosts;
pub(crate) mod jitter;
pub(crate) mod path;
pub(crate) mod traffic;

use courser::{Control, Recovery};
use serde::Serialize;

use courser_proto::wire::{FRAME_HEADER, PACKET_HEADER};

use courser_sim::fabric::{DCQCN_MARKING, Topology};
use courser_sim::observe::{Tap, Times};
use courser_sim::{CpuCosts, World, WorldConfig};

pub use crate::declare::error::ScenarioError;
pub use hosts::Hosts;
pub use traffic::Traffic;

/// An out-of-range setting, or nothing.
pub(crate) fn check(
    ok: bool,
    name: &'static str,
    value: impl ToString,
    range: &'static str,
) -> Result<(), ScenarioError> {
    if ok {
        Ok(())
    } else {
        Err(ScenarioError::Setting { name, value: value.to_string(), range: range.into() })
    }
}

/// Checks a measured time.
pub(crate) fn check_time(time_ns: u64) -> Result<(), ScenarioError> {
    check((1..=MAX_TIME_NS).contains(&time_ns), "time_ns", time_ns, "1 ns to 10 s")
}

/// Checks a warm-up.
pub(crate) fn check_warm_up(warm_up_ns: u64) -> Result<(), ScenarioError> {
    check(warm_up_ns <= MAX_TIME_NS, "warm_up_ns", warm_up_ns, "at most 10 s")
}

/// Runs all pairs, each of the first with all of the second. `progress` is called with the number
/// of finished runs and their total.
pub(crate) fn run_pairs<A: Copy, B: Copy, P>(
    first: &[A],
    second: &[B],
    mut progress: impl FnMut(usize, usize),
    mut run: impl FnMut(A, B) -> Result<P, ScenarioError>,
) -> Result<Vec<P>, ScenarioError> {
    let all = first.len() * second.len();
    let mut points = Vec::with_capacity(all);
    for &a in first {
        for &b in second {
            progress(points.len(), all);
            points.push(run(a, b)?);
        }
    }
    progress(all, all);
    Ok(points)
}

/// Courser's own control and, for comparison, none.
pub(crate) const OWN_AND_NONE: [Control; 2] = [Control::TwoWindow, Control::None];

/// Longest time of an experiment, ns of virtual time: ten seconds.
pub(crate) const MAX_TIME_NS: u64 = 10_000_000_000;

/// Most hosts of an experiment: an endpoint each, with its memory.
pub(crate) const MAX_HOSTS: u32 = 1_000;

/// Model of a host's CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cpu {
    /// [`CpuCosts::none`]: CPUs cost nothing.
    None,
    /// [`CpuCosts::erpc`]: the paper's rate.
    Erpc,
    /// [`CpuCosts::courser`]: the cost of Courser's code.
    Courser,
    /// [`CpuCosts::measured`]: the cost of Courser's code as calibrated on a machine.
    Measured,
}

impl Cpu {
    /// All models.
    pub const ALL: [Cpu; 4] = [Cpu::None, Cpu::Erpc, Cpu::Courser, Cpu::Measured];

    /// Its table.
    pub fn costs(self) -> CpuCosts {
        match self {
            Cpu::None => CpuCosts::none(),
            Cpu::Erpc => CpuCosts::erpc(),
            Cpu::Courser => CpuCosts::courser(),
            Cpu::Measured => CpuCosts::measured(),
        }
    }

    /// Its name in options and results.
    pub const fn name(self) -> &'static str {
        match self {
            Cpu::None => "none",
            Cpu::Erpc => "erpc",
            Cpu::Courser => "courser",
            Cpu::Measured => "measured",
        }
    }
}

crate::declare::parameter::named!(Cpu {
    Cpu::None => "none", "No CPU costs: only the network takes time";
    Cpu::Erpc => "erpc", "Costs of the paper: 44 ns for each packet";
    Cpu::Courser => "courser", "Estimated costs of Courser: about 140 ns for each packet";
    Cpu::Measured => "measured", "Measured costs of Courser: about 40 ns for each packet and frame";
});

/// A distribution of times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Latency {
    /// Number of times; if 0, all other fields are 0.
    pub count: u64,
    /// The shortest, ns.
    pub min_ns: u64,
    /// Median, ns.
    pub p50_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// 99.9th percentile, ns.
    pub p99_9_ns: u64,
    /// 99.99th percentile, ns.
    pub p99_99_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
}

impl From<&Times> for Latency {
    fn from(times: &Times) -> Self {
        let quantile = |q| times.quantile_ns(q).unwrap_or(0);
        let (min_ns, max_ns) = times.extremes_ns().unwrap_or((0, 0));
        Latency {
            count: times.count(),
            min_ns,
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            p99_9_ns: quantile(0.999),
            p99_99_ns: quantile(0.9999),
            max_ns,
        }
    }
}

/// Data bytes of a full packet over a NIC that takes datagrams of `max_frame` bytes.
pub const fn data_per_packet(max_frame: usize) -> usize {
    max_frame - data_overhead()
}

/// Most bytes of a datagram with one packet, besides the packet's data.
pub(crate) const fn data_overhead() -> usize {
    FRAME_HEADER + PACKET_HEADER
}

/// A share as a number; probabilities are per million in settings, so that they are exact.
pub(crate) fn share(ppm: u32) -> f64 {
    f64::from(ppm) / 1e6
}

/// Bytes on the wire of a frame that has one packet with `data` bytes.
pub const fn wire_bytes(data: usize) -> u64 {
    let payload = FRAME_HEADER + PACKET_HEADER + data;
    payload as u64 + courser_sim::WIRE_OVERHEAD as u64
}

/// Time that bytes take on a cable, ns, rounded to the nearest.
pub const fn wire_ns(bytes: u64, rate_bps: u64) -> u64 {
    let bits = bytes as u128 * 8_000_000_000;
    ((bits + rate_bps as u128 / 2) / rate_bps as u128) as u64
}

/// Events per second of virtual time.
pub(crate) fn per_second(events: u64, time_ns: u64) -> u64 {
    let scaled = u128::from(events) * 1_000_000_000;
    scaled.checked_div(u128::from(time_ns)).unwrap_or(0) as u64
}

/// A digest as JSON has it: some readers do not represent 64 bits as a number.
pub(crate) fn hex<S: serde::Serializer>(digest: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{digest:016x}"))
}

/// A control by its name.
pub(crate) fn control_name<S: serde::Serializer>(
    control: &Control,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.serialize_str(control.name())
}

/// A scheme of recovery by its name.
pub(crate) fn recovery_name<S: serde::Serializer>(
    recovery: &Recovery,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_str(recovery)
}

/// A world without congestion control: credits alone bound what is in flight, as in most of the
/// papers' experiments.
pub(crate) fn uncontrolled(seed: u64, topology: Topology) -> WorldConfig {
    let mut config = WorldConfig::new(seed, topology);
    config.nexus.control = Control::None;
    config
}

/// A world whose hosts have this congestion control. Its switches mark as [`DCQCN_MARKING`] has it,
/// unless there is no control.
pub(crate) fn controlled(seed: u64, topology: Topology, control: Control) -> WorldConfig {
    if control == Control::None {
        return uncontrolled(seed, topology);
    }
    let topology = topology.each_switch(|_, switch| switch.marking = DCQCN_MARKING);
    let mut config = uncontrolled(seed, topology);
    config.nexus.control = control;
    config
}

/// Attaches the observer of a world, if there is one.
pub(crate) fn observed(mut world: World, tap: Option<Box<dyn Tap>>) -> World {
    if let Some(tap) = tap {
        world.set_tap(tap);
    }
    world
}

/// A field of settings, and a change that makes it invalid.
#[cfg(test)]
pub(crate) type Spoilt<S> = (&'static str, fn(&mut S));

/// Each of these settings is refused by its name.
#[cfg(test)]
pub(crate) fn assert_refused<S, P: std::fmt::Debug>(
    bad: &[Spoilt<S>],
    good: impl Fn() -> S,
    run: impl Fn(&S) -> Result<P, ScenarioError>,
) {
    for (field, spoil) in bad {
        let mut settings = good();
        spoil(&mut settings);
        match run(&settings) {
            Err(ScenarioError::Setting { name, .. }) => assert_eq!(name, *field),
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_packet_fills_the_frame() {
        assert_eq!(data_per_packet(1_472), 1_428);
        assert_eq!(wire_bytes(1_428), 1_472 + 66);
        assert_eq!(wire_ns(1_530, 25_000_000_000), 490, "489.6");
        assert_eq!((per_second(7, 1_000_000), per_second(7, 0)), (7_000, 0));
    }

    #[test]
    fn a_distribution_of_no_times_is_zero() {
        assert_eq!(Latency::from(&Times::default()), Latency::default());
    }
}
