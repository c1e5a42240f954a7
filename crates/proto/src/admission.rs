//! Limits that all sessions share, and what changes of one session mean for others.

use crate::budget::{Budget, Grant, NO_MESSAGE, Owner, Reserved};
use crate::config::Config;
use crate::error::Status;
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
    /// Packets that all peers together may have in flight to this endpoint.
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

    /// Why a new request of a client process is rejected, if it is.
    pub(crate) fn rejection(
        &self,
        cfg: &Config,
        quota: u32,
        req_type: u16,
        msg_size: u32,
    ) -> Option<Status> {
        if self.quotas.refuses(req_type) {
            Some(Status::ShuttingDown)
        } else if msg_size > cfg.max_msg_size {
            Some(Status::TooLarge)
        } else {
            self.quotas.is_full(quota).then_some(Status::NoMemory)
        }
    }

    /// The grant that a credit return for this message states.
    pub(crate) fn stated_grant(&self, at: u32, owner: &Owner) -> Grant {
        if at == NO_MESSAGE {
            return Grant::default();
        }
        if self.budget.lacks_memory()
            && let Some(grant) = self.budget.scarce_grant(at, owner)
        {
            return grant;
        }
        if !self.budget.is_in_force() {
            return Grant::default();
        }
        let granted = self.budget.granted(at, owner);
        granted.map_or_else(Grant::default, |n| Grant::new(n.max(1), self.budget.unscheduled()))
    }

    /// The budget's size follows the delay of an arriving frame.
    #[cold]
    pub(crate) fn on_budget_frame(&mut self, io: &Io, peer: &mut Peer) {
        if let Some((delay_ns, base_ns)) = peer.path.queue_delay_ns(io.now_ns) {
            self.budget.on_frame(delay_ns, base_ns, io.now_ns);
        }
    }
}
