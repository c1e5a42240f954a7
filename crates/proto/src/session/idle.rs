//! Idle sessions keep only their slots' request numbers (ADR 6).
//!
//! A client acknowledges the responses of quiet slots on the datapath, once. That packet may be
//! lost. So when the whole session has been idle for `Config::idle_after_ns`, the client reports it
//! over the reliable control connection, with the last request number of each slot, and both sides
//! drop their slots' state. A request that overtakes the message is safe: the message frees only
//! the requests that it names.

use super::{ClientSession, IdleSession, Session, SessionId};
use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::slot::{Position, ServerPhase, Stored};
use crate::timers::{IDLE, TimerEntry, Timers};

impl<C> ClientSession<C> {
    /// Arms the idle timer of this session, number `index`, whose slots are awake, for `due_ns` or
    /// up to a 32nd of `Config::idle_after_ns` later: rounding keeps the number of different times,
    /// and so the cost of sorting, low.
    #[cold]
    pub(crate) fn watch_idle(
        &mut self,
        timers: &mut Timers,
        cfg: &Config,
        index: u32,
        due_ns: u64,
    ) {
        if !std::mem::replace(&mut self.idle_timed, true) {
            let due_ns = due_ns | ((cfg.idle_after_ns / 64).next_power_of_two() - 1);
            let generation = self.generation;
            timers.arm_later(TimerEntry { due_ns, session: index, generation, slot: IDLE });
        }
    }

    /// When the session has to be checked for idleness again: now, if it may shrink. Checks
    /// its slots up to the first one that was used recently.
    pub(crate) fn idle_due_ns(&self, cfg: &Config, now_ns: u64) -> u64 {
        let whole_ns = cfg.idle_after_ns;
        if self.free.count_ones() != self.slots.count() || self.waits() {
            return now_ns.saturating_add(whole_ns);
        }
        // A free slot's deadline is the time at which its call ended.
        let used = self.slots.iter().filter(|slot| slot.deadline_ns != u64::MAX);
        let mut may_ns = used.map(|slot| slot.deadline_ns.saturating_add(whole_ns));
        if let Some(due_ns) = may_ns.find(|&due_ns| due_ns > now_ns) {
            return due_ns;
        }
        let pending = self.slots.iter().any(|slot| slot.tracked || slot.ack_owed);
        if pending { now_ns.saturating_add(cfg.rto_min_ns) } else { now_ns }
    }
}

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
        if !self.is_owner(session, endpoint_id, control) {
            return;
        }
        let Some(Session::Server(s)) = self.sessions.get_mut(session as usize) else { return };
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
            self.sessions.server_slots.trim();
        }
        self.admission.quotas.release_bytes(quota, freed);
        self.admission.memory_returns(&mut self.io);
    }
}
