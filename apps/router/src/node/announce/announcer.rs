//! The routes that a node sends, and has of others.

use super::item::Item;
use super::queue::Queue;
use super::received::Received;
use crate::route::NodeId;

/// The routes that a node sends to others, and has of them, by node.
#[derive(Default)]
pub(in crate::node) struct Announcer {
    pub(super) queues: Vec<Queue>,
    pub(super) received: Vec<Received>,
    /// A timer withdraws further routes.
    pub(super) sweeps: bool,
    /// Calls that other nodes have refused.
    pub(super) refused: u64,
}

impl Announcer {
    pub(in crate::node) fn new(nodes: usize) -> Self {
        Announcer {
            queues: (0..nodes).map(|_| Queue::default()).collect(),
            received: (0..nodes).map(|_| Received::default()).collect(),
            ..Announcer::default()
        }
    }

    /// A link came up: all routes are sent.
    pub(in crate::node) fn begin(&mut self, to: NodeId) {
        self.queues[usize::from(to)].begin();
    }

    /// A node is dead: its routes are to be withdrawn.
    pub(in crate::node) fn died(&mut self, node: NodeId) {
        self.received[usize::from(node)].died();
    }

    /// The epoch of a node's routes that are here, for a heartbeat to it.
    pub(in crate::node) fn epoch(&self, node: NodeId) -> u32 {
        self.received[usize::from(node)].epoch()
    }

    /// Takes the epoch of the own routes that a node has, from its heartbeat.
    pub(in crate::node) fn heard(&mut self, node: NodeId, epoch: u32) {
        self.queues[usize::from(node)].heard(epoch);
    }

    /// Called by a timer.
    pub(in crate::node) fn tick(&mut self) {
        self.queues.iter_mut().for_each(Queue::tick);
    }

    /// Sends a change to all nodes.
    pub(super) fn push(&mut self, change: &Item) {
        self.queues.iter_mut().for_each(|queue| queue.push(change));
    }
}
