//! Optimizations that a benchmark can switch off.

use clap::ValueEnum;
use courser::{Config, Offload, UdpOptions};
use serde::{Deserialize, Serialize};

use super::side::Over;

/// An optimization that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    /// The clock is read for a burst of packets, not for each `[eRPC §5.2.2]`.
    BatchedTimestamps,
    /// Slots keep a buffer for their response `[eRPC §4.3]`.
    PreallocatedResponses,
    /// Handlers read requests in the received frame `[eRPC §4.2.3]`.
    ZeroCopyRequests,
    /// The state that the next frames need is fetched ahead.
    Prefetch,
    /// Small packets share frames.
    Packing,
    /// Trains of frames that the kernel takes and hands over as one.
    Trains,
    /// What arrives of a large request is copied to its message (E78). Not one of the series: the
    /// server's handlers get arbitrary bytes without it.
    RequestCopies,
}

impl Switch {
    /// In the order in which they are switched off: the paper's, then those that it has not.
    pub const ALL: [Self; 6] = [
        Self::BatchedTimestamps,
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
        let switch = match self {
            Self::BatchedTimestamps => &mut config.tuning.batched_timestamps,
            Self::PreallocatedResponses => &mut config.tuning.prealloc_responses,
            Self::ZeroCopyRequests => &mut config.tuning.zero_copy_rx,
            Self::Prefetch => &mut config.tuning.prefetch,
            Self::Packing => &mut config.tuning.packing,
            Self::Trains => return,
            Self::RequestCopies => &mut config.tuning.copy_requests,
        };
        *switch = false;
    }

    /// Whether there is such a thing over this transport.
    pub fn means_something(self, over: Over) -> bool {
        self != Self::Trains || over == Over::Udp
    }

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::BatchedTimestamps => "batched_timestamps",
            Self::PreallocatedResponses => "preallocated_responses",
            Self::ZeroCopyRequests => "zero_copy_requests",
            Self::Prefetch => "prefetch",
            Self::Packing => "packing",
            Self::Trains => "trains",
            Self::RequestCopies => "request_copies",
        }
    }

    /// What it is, for tables.
    pub fn words(self) -> &'static str {
        match self {
            Self::BatchedTimestamps => "- batched timestamps",
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
    fn each_switch_changes_a_setting_of_its_own() {
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
