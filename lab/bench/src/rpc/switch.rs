//! Optimizations that a benchmark can switch off.

use clap::ValueEnum;
use courser::{Config, Offload, Packing, UdpOptions};
use serde::{Deserialize, Serialize};

use super::side::Over;

/// An optimization that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    /// One clock read for a burst of packets instead of one for each packet `[eRPC section 5.2.2]`.
    BatchedTimestamps,
    /// Congestion control is skipped on uncongested paths `[eRPC section 5.2.2]`.
    UpdateBypass,
    /// Packets of uncongested paths are not paced `[eRPC section 5.2.2]`.
    PacingBypass,
    /// Slots keep a preallocated response buffer `[eRPC section 4.3]`.
    PreallocatedResponses,
    /// Handlers read requests in the received frame `[eRPC section 4.2.3]`.
    ZeroCopyRequests,
    /// Prefetch of the state for the next frames.
    Prefetch,
    /// Several small packets in one frame.
    Packing,
    /// Trains of frames in one system call (GSO, GRO).
    Trains,
    /// Copies of received data of large requests into the message (E78). Not in the series, because
    /// handlers get arbitrary bytes without them.
    RequestCopies,
}

impl Switch {
    /// The order in which they are switched off: those of the paper, then further ones.
    pub const ALL: [Self; 8] = [
        Self::BatchedTimestamps,
        Self::UpdateBypass,
        Self::PacingBypass,
        Self::PreallocatedResponses,
        Self::ZeroCopyRequests,
        Self::Prefetch,
        Self::Packing,
        Self::Trains,
    ];

    /// Switches it off.
    pub fn turn_off(self, config: &mut Config) {
        if self == Self::Trains {
            let off = Some(Offload::Off);
            let options = UdpOptions { gso: off, gro: off, ..UdpOptions::default() };
            config.transport = std::mem::take(&mut config.transport).with(options);
            return;
        }
        if self == Self::Packing {
            config.packing = Some(Packing::Off);
            return;
        }
        let switch = match self {
            Self::BatchedTimestamps => &mut config.tuning.factors.batched_timestamps,
            Self::UpdateBypass => &mut config.tuning.factors.update_bypass,
            Self::PacingBypass => &mut config.tuning.factors.pacing_bypass,
            Self::PreallocatedResponses => &mut config.tuning.factors.prealloc_responses,
            Self::ZeroCopyRequests => &mut config.tuning.factors.zero_copy_rx,
            Self::Prefetch => &mut config.tuning.prefetch,
            Self::Trains | Self::Packing => return,
            Self::RequestCopies => &mut config.tuning.factors.copy_requests,
        };
        *switch = false;
    }

    /// Returns whether the transport has this optimization.
    pub fn applies_to(self, over: Over) -> bool {
        match self {
            Self::Trains => over == Over::Udp,
            Self::UpdateBypass | Self::PacingBypass => over.has_congestion_control(),
            _ => true,
        }
    }

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::BatchedTimestamps => "batched_timestamps",
            Self::UpdateBypass => "update_bypass",
            Self::PacingBypass => "pacing_bypass",
            Self::PreallocatedResponses => "preallocated_responses",
            Self::ZeroCopyRequests => "zero_copy_requests",
            Self::Prefetch => "prefetch",
            Self::Packing => "packing",
            Self::Trains => "trains",
            Self::RequestCopies => "request_copies",
        }
    }

    /// Description for tables.
    pub fn words(self) -> &'static str {
        match self {
            Self::BatchedTimestamps => "- batched timestamps",
            Self::UpdateBypass => "- bypass of Timely",
            Self::PacingBypass => "- bypass of the pacer",
            Self::PreallocatedResponses => "- preallocated responses",
            Self::ZeroCopyRequests => "- zero-copy requests",
            Self::Prefetch => "- prefetch",
            Self::Packing => "- packets that share frames",
            Self::Trains => "- trains of frames",
            Self::RequestCopies => "- copies of requests",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_switch_changes_another_setting() {
        let mut config = Config::default();
        let mut seen = vec![format!("{config:?}")];
        for switch in Switch::ALL.into_iter().chain([Switch::RequestCopies]) {
            switch.turn_off(&mut config);
            let now = format!("{config:?}");
            assert!(!seen.contains(&now), "{}", switch.name());
            seen.push(now);
        }
    }
}
