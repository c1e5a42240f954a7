//! Idle sessions keep only their slots' request numbers (ADR 6).
//!
//! A client acknowledges the responses of quiet slots on the datapath, once. That packet may be
//! lost. So when the whole session has been idle for `Config::idle_after_ns`, the client reports it
//! over the reliable control connection, with the last request number of each slot, and both sides
//! drop their slots' state. A request that overtakes the message is safe: the message frees only
//! the requests that it names.

use super::IdleSession;
use crate::endpoint::Endpoint;
use crate::flow::{ClientFlow, ServerFlow};
use crate::slot::{Position, ServerPhase, Stored};

impl<C> ClientFlow<'_, C> {
    /// Drops the slots of an idle session, and queues the report for its server.
    pub(crate) fn shrink(&mut self) {
        let (session, s) = (self.id(), &mut *self.s);
        let done: Vec<u32> = s.slots.iter().map(|slot| slot.req_num).collect();
        s.slots.sleep(|slot| slot.req_num);
        self.out.idle.push_back(IdleSession { session, remote: s.remote, done });
        self.out.has_news = true;
    }
}

impl<C> Endpoint<C> {
    /// The next idle session to be reported to its server over the control connection. To be called
    /// after [`Endpoint::poll_failed`] has returned `None`, until it returns `None` too.
    #[inline]
    pub fn poll_idle(&mut self) -> Option<IdleSession> {
        let next = self.outbox.idle.pop_front();
        if next.is_none() {
            self.outbox.has_news = !self.outbox.failed.is_empty() || self.outbox.moves.has_some();
        }
        next
    }

    /// Handles a client's report that a session is idle: frees the named requests, and the slots
    /// when nothing else is in progress. Reports about sessions of other connections, or with
    /// another number of slots, are ignored.
    pub fn on_idle(&mut self, session: u32, endpoint_id: u64, control: u64, done: &[u32]) {
        let Some(flow) = self.server_flow(session) else { return };
        if !flow.belongs_to(endpoint_id, control) || done.len() != flow.s.slots.len() {
            return;
        }
        let ServerFlow { s, io, admission, .. } = flow;
        let step = s.slots.count();
        let mut freed = 0_u64;
        for (slot, &req_num) in s.slots.iter_mut().zip(done) {
            let named = slot.position(req_num, step) == Position::Current;
            if named && slot.phase == ServerPhase::Responded {
                freed += u64::from(slot.acknowledged());
            }
        }
        let quiet = |phase| matches!(phase, ServerPhase::Idle | ServerPhase::Acked);
        let sleeps =
            s.slots.iter().all(|slot| quiet(slot.phase) && matches!(slot.resp, Stored::None));
        if sleeps {
            s.slots.sleep(|slot| slot.req_num);
            s.keeps_buffers = false;
        }
        admission.quotas.release_bytes(s.quota, freed);
        admission.memory_returns(io);
        if sleeps {
            self.sessions.server_slots.trim();
        }
    }
}
