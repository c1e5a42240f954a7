//! Checks of the names that processes claim (`names`).

use courser::parts::transport::Addr;
use courser::{Context, SessionId, SessionState};

use super::names::{Claim, Reason};
use super::{Node, Probe};
use crate::line::Outlet;
use crate::route::NodeId;

impl<O: Outlet + 'static, P: Probe + 'static> Node<O, P> {
    /// Checks that the sender of a heartbeat may speak for a node. If not, that is counted.
    pub(super) fn owns_name(
        &mut self,
        cx: &Context<'_>,
        session: SessionId,
        node: NodeId,
        life: u64,
    ) -> bool {
        let peer = |session| cx.session_stats(session).and_then(|stats| stats.peer);
        let Some(from) = peer(session) else { return false };
        let to = self.links[usize::from(node)].session.and_then(peer);
        let reason = match self.names.has(node, from, to) {
            // Its next heartbeats are accepted when this node has reached it.
            None => return false,
            Some(false) => Reason::Address,
            Some(true) if self.lives_elsewhere(cx, from, node, life) => Reason::Life,
            Some(true) => return true,
        };
        self.names.refuse(Claim { node, from, reason }, cx.now_ns());
        false
    }

    /// Returns true while a process of a node lives that is not in this life.
    fn lives_elsewhere(&self, cx: &Context<'_>, from: Addr, node: NodeId, life: u64) -> bool {
        let Some(heard) = self.links[usize::from(node)].heard else { return false };
        if heard.life == life || !heard.is_fresh(cx.now_ns()) {
            return false;
        }
        // The session of a process that has ended is gone as soon as its system says so. A process
        // with the address of the old one can only be there when that one has ended.
        self.incoming.iter().flatten().any(|incoming| {
            let stats = cx.session_stats(incoming.session);
            incoming.node == Some(node)
                && incoming.life == heard.life
                && cx.session_state(incoming.session) == SessionState::Connected
                && stats.is_some_and(|stats| stats.peer != Some(from))
        })
    }

    /// Takes a claim to the name of a node that was refused, for the operator: about one a minute for
    /// each node.
    pub fn take_claim(&mut self) -> Option<Claim> {
        self.names.take_claim()
    }

    /// Heartbeats that were refused, since they came from an address that is not the node's.
    pub fn refused_addresses(&self) -> u64 {
        self.names.refused(Reason::Address)
    }

    /// Heartbeats that were refused, since another process of the node lives.
    pub fn refused_lives(&self) -> u64 {
        self.names.refused(Reason::Life)
    }
}
