//! Calls of a session that is not borrowed yet: its slots may have to be allocated.

use super::ClientFlow;
use crate::endpoint::Endpoint;
use crate::session::{ClientSession, QueuedCall, SessionId};

impl<C> Endpoint<C> {
    /// A client session whose slots are allocated, if it `needs` them.
    pub(crate) fn awake_flow(
        &mut self,
        index: u32,
        needs: impl FnOnce(&mut ClientSession<C>) -> bool,
    ) -> Option<ClientFlow<'_, C>> {
        let (sessions, shared) = self.split();
        let io = &mut *shared.io;
        let idle_ns = io.now_ns.saturating_add(io.cfg.idle_after_ns);
        let woken =
            |s: &mut ClientSession<C>| s.watch_idle(&mut io.timers, &io.cfg, index, idle_ns);
        let s = sessions.awake_client(index, needs, woken)?;
        shared.client(index, s)
    }

    /// Starts waiting calls of a session whose slots are awake: a call has ended.
    #[inline(never)]
    pub(crate) fn start_next(&mut self, index: u32) {
        if let Some(mut flow) = self.client_flow(index) {
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
