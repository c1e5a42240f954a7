//! Idle sessions keep only their slots' request numbers (ADR 6).
//!
//! A client acknowledges the responses of quiet slots on the datapath, once. That packet may be
//! lost. So when the whole session has been idle for `Config::idle_after_ns`, the client reports it
//! over the reliable control connection, with the last request number of each slot, and both sides
//! drop their slots' state. A request that overtakes the message is safe: the message frees only
//! the requests that it names.

use super::{IdleSession, Session, SessionId};
use crate::endpoint::Endpoint;
use crate::slot::{Position, ServerPhase, Stored};

impl<C> Endpoint<C> {
    /// Drops the slots of an idle client session, and queues the report for its server.
    pub(crate) fn shrink(&mut self, index: u32) {
        let Some(Session::Client(s)) = self.sessions.get_mut(index as usize) else { return };
        let done: Vec<u32> = s.slots.iter().map(|slot| slot.req_num).collect();
        s.slots.sleep(|slot| slot.req_num);
        let session = SessionId { index, generation: s.generation };
        self.outbox.idle.push_back(IdleSession { session, remote: s.remote, done });
        self.outbox.has_news = true;
        self.sessions.client_slots.trim();
    }

    /// The next idle session to be reported to its server over the control connection. To be called
    /// after [`Endpoint::poll_failed`] has returned `None`, until it returns `None` too.
    #[inline]
    pub fn poll_idle(&mut self) -> Option<IdleSession> {
        let next = self.outbox.idle.pop_front();
        if next.is_none() {
            self.outbox.has_news = !self.outbox.failed.is_empty();
        }
        next
    }

    /// Handles a client's report that a session is idle: frees the named requests, and the slots
    /// when nothing else is in progress. Reports about sessions of other connections, or with
    /// another number of slots, are ignored.
    pub fn on_idle(&mut self, session: u32, endpoint_id: u64, control: u64, done: &[u32]) {
        let Some(s) = self.owned_session(session, endpoint_id, control) else { return };
        let (quota, step) = (s.quota, s.slots.count());
        if done.len() != s.slots.len() {
            return;
        }
        let mut freed = 0_u64;
        for (slot, &req_num) in s.slots.iter_mut().zip(done) {
            let named = slot.position(req_num, step) == Position::Current;
            if named && slot.phase == ServerPhase::Responded {
                freed += u64::from(slot.acknowledged());
            }
        }
        let quiet = |phase| matches!(phase, ServerPhase::Idle | ServerPhase::Acked);
        if s.slots.iter().all(|slot| quiet(slot.phase) && matches!(slot.resp, Stored::None)) {
            s.slots.sleep(|slot| slot.req_num);
            s.keeps_buffers = false;
            self.sessions.server_slots.trim();
        }
        self.admission.quotas.release_bytes(quota, freed);
        self.admission.memory_returns(&mut self.io);
    }
}
