//! Settings that the experiments of congestion control have in common.

use courser::{Control, Recovery};
use serde::Serialize;

use super::{Cpu, ScenarioError, check, control_name, recovery_name, uncontrolled};
use courser_sim::fabric::Topology;
use courser_sim::{NicConfig, WorldConfig};

/// How all hosts of an experiment send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Hosts {
    /// Decides all random choices.
    pub seed: u64,
    /// Congestion control. Default: Courser's own.
    #[serde(serialize_with = "control_name")]
    pub control: Control,
    /// Loss recovery. Default: Courser's own.
    #[serde(serialize_with = "recovery_name")]
    pub recovery: Recovery,
    /// Credits of each session, C. Default 32.
    pub credits: u32,
    /// Largest datagram payload, bytes: 304 to 9,000. Default 1,072.
    pub max_frame: usize,
    /// The CPUs. Default: no CPU costs.
    pub cpu: Cpu,
}

impl Default for Hosts {
    fn default() -> Self {
        Hosts {
            seed: 1,
            control: Control::default(),
            recovery: Recovery::default(),
            credits: 32,
            max_frame: 1_072,
            cpu: Cpu::None,
        }
    }
}

impl Hosts {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let (credits, frame) = (self.credits, self.max_frame as u64);
        check((1..=65_535).contains(&credits), "credits", credits, "1 to 65,535")?;
        check((304..=9_000).contains(&frame), "max_frame", frame, "304 to 9,000 bytes")
    }

    /// A world of such hosts. `sessions` is the largest number of sessions of an endpoint: there
    /// are receive descriptors for all packets that can arrive, so that losses occur only in
    /// switches.
    pub(super) fn config(&self, topology: Topology, sessions: u32) -> WorldConfig {
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
