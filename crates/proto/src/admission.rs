//! Limits that all sessions share, the one question that is asked of them ([`Admission::ask`]), and what
//! changes of one session mean for others.

mod ask;
mod memory;
#[cfg(test)]
mod tests;

pub(crate) use ask::{Answer, Handler, Line, Need, NextPackets, OneWay};
pub(crate) use memory::{RequestMemory, Room, WholeRequest};

use crate::budget::{Budget, Owner, Reserved};
use crate::cc::packet_wire_bytes;
use crate::event::RequestId;
use crate::io::Io;
use crate::mutant::{self, Mutant};
use crate::peer::{Peer, PoolSums};
use crate::session::Quotas;
use crate::tx::TxItem;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Quotas of the client processes.
    pub(crate) quotas: Quotas,
    /// Packets that all peers together may have in flight to this endpoint, of those over its link.
    pub(crate) budget: Budget,
    /// Packets that the credit pools of all peers allow in flight to this endpoint.
    pub(crate) pools: PoolSums,
    pub(crate) effects: Effects,
}

/// Consequences for other sessions of what a flow has done. [`crate::Endpoint`] applies them when the
/// flow, which has its session borrowed, is over.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// A second peer has begun to send: messages under way are limited.
    pub(crate) limits: bool,
    /// These messages wait for grants.
    pub(crate) waiting: Vec<(u32, Owner)>,
    /// A packet of this request has arrived: its credit return leaves, unless it is withheld until the
    /// next grant.
    pub(crate) arrived: Option<RequestId>,
    /// The free part of the budget is to be granted.
    pub(crate) shares: bool,
    /// A message has ended while messages were limited: its part of the budget is for others.
    pub(crate) freed: bool,
    /// A message waits for the budget, and nothing arrives.
    pub(crate) silent: bool,
    /// Peers that have answered a call of several packets while calls to peers were held back.
    pub(crate) answered: Vec<u32>,
}

impl Effects {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        let flags = self.limits | self.freed | self.silent | self.shares;
        !flags && self.waiting.is_empty() && self.answered.is_empty() && self.arrived.is_none()
    }
}

impl Admission {
    pub(crate) fn new(quotas: Quotas, budget: Budget) -> Self {
        Admission { quotas, budget, pools: PoolSums::default(), effects: Effects::default() }
    }

    /// Memory of a client's quota returns.
    pub(crate) fn release_charged(&mut self, io: &mut Io, quota: u32, bytes: u32) {
        if bytes != 0 {
            self.quotas.release(quota, bytes);
            self.memory_returns(io);
        }
    }

    /// Requests that wait for memory are tried in the next transmission, when handlers have dropped
    /// their requests.
    pub(crate) fn memory_returns(&mut self, io: &mut Io) {
        if self.budget.lacks_memory() && self.budget.memory_watch().try_soon() {
            io.tx.push(TxItem::Memory);
        }
    }

    /// A message has ended: others may have what was promised to it.
    pub(crate) fn unreserve(&mut self, io: &mut Io, reserved: Reserved) {
        self.quotas.end_growth(reserved.quota, reserved.growing);
        if reserved.promised > 0 || reserved.kept > 0 {
            self.quotas.end_promise(reserved.quota, reserved.promised, reserved.kept);
            self.memory_returns(io);
        }
    }

    /// A message has ended: its part of the budget is for others.
    pub(crate) fn end_message(&mut self, io: &mut Io, at: u32, owner: &Owner) {
        self.effects.freed |= self.budget.is_in_force();
        if !mutant::is_on(Mutant::BudgetLeaks) {
            let reserved = self.budget.end(at, owner);
            self.unreserve(io, reserved);
        }
    }

    /// The budget's size follows the delay of an arriving frame.
    #[cold]
    pub(crate) fn on_budget_frame(
        &mut self,
        io: &Io,
        peer: &mut Peer,
        (bytes, wait_ns): (usize, u32),
    ) {
        let delay = peer.path.queue_delay_ns(wait_ns, io.now_ns);
        self.budget.on_frame(packet_wire_bytes(bytes), delay, io.now_ns);
        // Frames of small calls do not come here for long after the last large message.
        if self.budget.is_idle() && self.budget.is_over(io.now_ns) {
            self.budget.set_in_force(false);
        }
    }
}
