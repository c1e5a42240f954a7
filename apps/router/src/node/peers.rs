//! The state of the sessions with other nodes.

use courser::SessionId;

use super::heartbeat::Heard;
use super::order::Order;
use crate::route::NodeId;

/// To another node.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) session: Option<SessionId>,
    /// The session is connected and its first heartbeat sent.
    pub(super) up: bool,
    /// It has refused a packet, and has not reported room since: packets for it are dropped before
    /// work is spent on them.
    pub(super) full: bool,
    /// Number of its next message.
    pub(super) next: u32,
    /// When to connect again, ns.
    pub(super) retry_ns: u64,
    /// The last heartbeat from there.
    pub(super) heard: Option<Heard>,
    /// Since when it is received by others only, ns.
    pub(super) relayed_ns: Option<u64>,
}

/// From another node.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) session: SessionId,
    /// Known from its first heartbeat.
    pub(super) node: Option<NodeId>,
    /// The start of that node.
    pub(super) life: u64,
    pub(super) order: Order,
    /// Runs of the timer in which messages waited for the same one.
    pub(super) stuck: u32,
}
