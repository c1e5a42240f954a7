//! A name belongs to one process at the addresses that the cluster's file has for it.
//!
//! Another machine with a copy of the file knows all that a heartbeat states. It cannot speak for a
//! node, since its sessions come from another address. Of two processes of one node, the later one is
//! refused while the first one lives: while its session lasts, which ends with the process, and its
//! heartbeats arrive.

use std::collections::VecDeque;
use std::net::IpAddr;

use courser::Uri;
use courser::parts::transport::Addr;

use super::settings::Settings;
use crate::route::NodeId;

/// Claims that wait to be reported, at most.
const CLAIMS: usize = 64;
/// A further claim to a name is reported after that time, ns.
const REPORT_AFTER_NS: u64 = 60_000_000_000;

/// Why a process may not speak for a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Its address is none of the node's.
    Address,
    /// Another process of the node lives.
    Life,
}

/// A process has claimed the name of a node, and was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The node.
    pub node: NodeId,
    /// The address of the process.
    pub from: Addr,
    /// Why it was refused.
    pub reason: Reason,
}

/// The addresses of nodes, and claims that were refused.
#[derive(Debug)]
pub(super) struct Names {
    /// By node: addresses of IP from which its sessions come. `None`: the transport has no such
    /// addresses.
    origins: Vec<Option<Vec<IpAddr>>>,
    /// By node: this node reaches it by the name of a host.
    by_name: Vec<bool>,
    /// By node: when a claim was reported last, ns.
    reported_ns: Vec<Option<u64>>,
    claims: VecDeque<Claim>,
    /// Claims of each reason.
    addresses: u64,
    lives: u64,
}

impl Names {
    pub(super) fn new(settings: &Settings) -> Names {
        let uri = |address: &String| address.parse::<Uri>().ok();
        let by_name =
            |address| uri(address).is_some_and(|uri| uri.scheme == "udp" && uri.ip().is_none());
        let origins = settings.addresses.iter().enumerate().map(|(node, address)| {
            let uri = uri(address)?;
            let others = settings.origins.get(node).into_iter().flatten().copied();
            let all = uri.ip().into_iter().chain(others);
            (uri.scheme == "udp").then(|| all.filter(|ip| !ip.is_unspecified()).collect())
        });
        let origins: Vec<_> = origins.collect();
        Names {
            by_name: settings.addresses.iter().map(by_name).collect(),
            reported_ns: vec![None; origins.len()],
            origins,
            claims: VecDeque::new(),
            addresses: 0,
            lives: 0,
        }
    }

    /// Returns whether sessions of a node may come from an address. `to`: the address at which this
    /// node reaches it, which the file may give as a name. `None`: that has no address yet, since this
    /// node has not reached it.
    pub(super) fn has(&self, node: NodeId, from: Addr, to: Option<Addr>) -> Option<bool> {
        let Some(Some(origins)) = self.origins.get(usize::from(node)) else { return Some(true) };
        let ip = from.to_socket().map(|socket| socket.ip());
        let has =
            to.is_some_and(|to| to.host == from.host) || ip.is_some_and(|ip| origins.contains(&ip));
        let is_unknown = to.is_none() && self.by_name[usize::from(node)];
        (has || !is_unknown).then_some(has)
    }

    pub(super) fn refuse(&mut self, claim: Claim, now_ns: u64) {
        match claim.reason {
            Reason::Address => self.addresses += 1,
            Reason::Life => self.lives += 1,
        }
        let reported_ns = &mut self.reported_ns[usize::from(claim.node)];
        let is_due = reported_ns.is_none_or(|at| now_ns.saturating_sub(at) >= REPORT_AFTER_NS);
        if is_due && self.claims.len() < CLAIMS {
            *reported_ns = Some(now_ns);
            self.claims.push_back(claim);
        }
    }

    /// Takes a claim that was refused, the oldest one.
    pub(super) fn take_claim(&mut self) -> Option<Claim> {
        self.claims.pop_front()
    }

    /// Claims that were refused for this reason.
    pub(super) fn refused(&self, reason: Reason) -> u64 {
        match reason {
            Reason::Address => self.addresses,
            Reason::Life => self.lives,
        }
    }
}

#[cfg(test)]
mod tests;
