//! `courser bench factors`: what each optimization is worth (E75) `[eRPC §6.2, Table 3]`.
//!
//! The small-RPC rate with B = 3, with everything on and then with one optimization after another
//! switched off, on both sides, and left off. Each step has a pair of endpoints of its own; their
//! windows take turns, so that a step is compared with the one before within tens of milliseconds.

use clap::ValueEnum;
use courser::Config;
use serde::{Deserialize, Serialize};

/// An optimization that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Switch {
    /// Trains of frames that the kernel takes and hands over as one.
    Trains,
}

impl Switch {
    /// In the order in which they are switched off.
    pub(super) const ALL: [Self; 1] = [Self::Trains];

    /// Switches it off.
    pub(super) fn turn_off(self, config: &mut Config) {
        match self {
            Self::Trains => config.offloads = false,
        }
    }

    /// The name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Trains => "trains",
        }
    }

    /// What it is, for tables.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Trains => "no trains",
        }
    }
}
