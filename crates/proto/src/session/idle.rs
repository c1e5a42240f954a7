//! Idle sessions shrink to their numbers (F6).
//!
//! A client acknowledges the responses of slots that have gone quiet on the datapath, once. That
//! packet may be lost; so when the whole session has been idle for `Config::idle_after_ns`, the
//! client says so over the reliable control connection, with the number of each slot's last
//! request, and both sides drop their slots' state. A request that overtakes the message is not
//! harmed: the message frees only what it names.

use super::{ClientSession, IdleSession, Session, SessionId};
use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::slot::{Position, ServerPhase, Stored};
use crate::timers::{IDLE, Timed, Timers};

impl<C> ClientSession<C> {
    /// Sees that this session, number `index`, whose slots are awake, is looked at when it may be
    /// idle at `due_ns`, or up to a 32nd of `Config::idle_after_ns` later: with few different times
    /// the timers have little to sort.
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
            timers.arm_later(Timed { due_ns, session: index, generation, slot: IDLE });
        }
    }
}

impl<C> Endpoint<C> {
    /// When a client session has to be looked at again because it may be idle then: now, if it may
    /// shrink. Looks at its slots no further than to the first that was used of late.
    pub(crate) fn idle_due_ns(&self, s: &ClientSession<C>, now_ns: u64) -> u64 {
        let whole_ns = self.cfg.idle_after_ns;
        if s.free.count_ones() != s.slots.count() || s.waits() {
            return now_ns.saturating_add(whole_ns);
        }
        // A free slot's deadline is the time at which its call ended.
        let used = s.slots.iter().filter(|slot| slot.deadline_ns != u64::MAX);
        let mut may_ns = used.map(|slot| slot.deadline_ns.saturating_add(whole_ns));
        if let Some(due_ns) = may_ns.find(|&due_ns| due_ns > now_ns) {
            return due_ns;
        }
        let pending = s.slots.iter().any(|slot| slot.tracked || slot.ack_owed);
        if pending { now_ns.saturating_add(self.cfg.rto_min_ns) } else { now_ns }
    }

    /// Drops the slots of a client session that is idle, and keeps word of it for its server.
    pub(crate) fn shrink(&mut self, index: u32) {
        let Some(Session::Client(s)) = self.sessions.get_mut(index as usize) else { return };
        let done: Vec<u32> = s.slots.iter().map(|slot| slot.req_num).collect();
        s.slots.sleep(|slot| slot.req_num);
        let session = SessionId { index, generation: s.generation };
        self.outbox.idle.push_back(IdleSession { session, remote: s.remote, done });
        self.sessions.client_slots.trim();
    }

    /// The next session that has shrunk, to be told to its server over the control connection.
    #[inline]
    pub fn poll_idle(&mut self) -> Option<IdleSession> {
        self.outbox.idle.pop_front()
    }

    /// A client says that a session is idle: frees what it names, and the slots when nothing else
    /// is going on. What the connection says of sessions that are not its own is ignored, and so
    /// is a message of another number of slots.
    pub fn on_idle(&mut self, session: u32, endpoint_id: u64, control: u64, done: &[u32]) {
        if !self.is_owner(session, endpoint_id, control) {
            return;
        }
        let Some(Session::Server(s)) = self.sessions.get_mut(session as usize) else { return };
        let (tenant, step) = (s.tenant, s.slots.count());
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
        self.shares.give_back(tenant, freed);
    }
}
