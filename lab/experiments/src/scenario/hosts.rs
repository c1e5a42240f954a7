//! Settings that the experiments of congestion control have in common.

use courser::{Control, Recovery};
use courser_kit::units::show_bytes;

use super::{Cpu, ScenarioError, uncontrolled};
use crate::declare::parameter::{self, bytes, count, name, parameters};
use courser_sim::fabric::Topology;
use courser_sim::{NicConfig, WorldConfig};

parameters! {
    /// How all hosts of an experiment send.
    #[derive(Copy, Eq)]
    pub struct Hosts {
        /// Decides all random choices.
        seed: u64 = 1, count(0..=u64::MAX);
        /// Congestion controls, with commas
        control: Control = Control::default(), name::<Control>().option("control").each("none,default");
        /// Schemes of loss recovery, with commas
        recovery: Recovery = Recovery::default(), name::<Recovery>().option("recovery").each("default");
        /// Credits of each session
        credits: u32 = 32, count(1..=65_535).option("credits");
        /// Largest datagram payload
        max_frame: usize = 1_072, bytes(304..=9_000).option("frame-size");
        /// The CPUs
        cpu: Cpu = Cpu::None, name::<Cpu>();
    }
}

impl Hosts {
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        parameter::check(self)
    }

    /// Control and recovery, as the name of a series or a row.
    pub(crate) fn names(&self) -> String {
        format!("{}, {}", self.control.name(), self.recovery)
    }

    /// Credits, frames and CPUs, for the caption of a table.
    pub(crate) fn caption(&self) -> String {
        let frame = show_bytes(self.max_frame as u64);
        format!("{} credits, frames of {frame}, {} CPUs", self.credits, self.cpu.name())
    }

    /// A world of such hosts. `sessions` is the largest number of sessions of an endpoint: there
    /// are receive descriptors for all packets that can arrive, so that losses occur only in
    /// switches.
    pub(crate) fn config(&self, topology: Topology, sessions: u32) -> WorldConfig {
        let mut config = uncontrolled(self.seed, topology);
        config.costs = self.cpu.costs();
        config.nic.max_frame = self.max_frame;
        let in_flight = sessions as usize * self.credits as usize;
        config.nic.rx_queue = (2 * in_flight).max(NicConfig::default().rx_queue);
        config.nexus.credits = Some(self.credits);
        config.nexus.control = self.control;
        config.nexus.recovery = self.recovery;
        config.clocks_differ = false; // recorders compare times of hosts with the world's
        config
    }
}
