//! The parts of the calls that announce routes.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::route::{Members, NodeId};

/// A part of a call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Item {
    /// All routes of the node follow.
    Begin,
    Announce {
        prefix: IpNet,
        members: Members,
    },
    Withdraw {
        prefix: IpNet,
    },
    /// All routes of the node were sent.
    End,
}

impl Item {
    pub(super) fn prefix(&self) -> Option<IpNet> {
        match self {
            Item::Announce { prefix, .. } | Item::Withdraw { prefix } => Some(*prefix),
            Item::Begin | Item::End => None,
        }
    }
}

/// The number of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Number {
    /// Counts the times that all routes were sent, from 1.
    pub(super) epoch: u32,
    /// Counts the calls since then, from 0.
    pub(super) call: u32,
}

/// The head of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct CallHead {
    pub(super) fingerprint: u64,
    pub(super) life: u64,
    pub(super) node: NodeId,
    pub(super) number: Number,
}
