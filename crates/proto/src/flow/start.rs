//! Calls of a session that is not borrowed yet: its slots may have to be allocated.

use super::ClientFlow;
use crate::endpoint::Endpoint;
use crate::session::{QueuedCall, SessionId};

impl<C> Endpoint<C> {
    /// A client session whose slots are allocated.
    pub(crate) fn awake_flow(&mut self, index: u32) -> Option<ClientFlow<'_, C>> {
        let Endpoint { io, peers, sessions, admission, outbox: out, .. } = self;
        let s = sessions.awake_client(index, |s| {
            let idle_ns = io.now_ns.saturating_add(io.cfg.idle_after_ns);
            s.watch_idle(&mut io.timers, &io.cfg, index, idle_ns);
        })?;
        let peer = peers.at_mut(s.peer)?;
        Some(ClientFlow { s, peer, index, io, admission, out })
    }

    /// Starts waiting calls while slots are free.
    pub(crate) fn start_queued(&mut self, index: u32) {
        let has_calls = self.sessions.client(index).is_some_and(|s| !s.queue.is_empty());
        let flow = if has_calls { self.awake_flow(index) } else { self.client_flow(index) };
        if let Some(mut flow) = flow {
            flow.start_queued();
        }
    }

    /// Starts a call, if it finds a slot at once and its request is one packet.
    /// # Errors
    /// The unchanged call, if one of these conditions does not hold.
    #[inline(always)]
    pub(crate) fn start_single(
        &mut self,
        session: SessionId,
        call: QueuedCall<C>,
    ) -> Result<(), QueuedCall<C>> {
        match self.client_flow(session.index) {
            Some(mut flow) => flow.start_single(session.generation, call),
            None => Err(call),
        }
    }
}
