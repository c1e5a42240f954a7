//! The idle timer of a client session ([`crate::session`], ADR 6).

use crate::config::Config;
use crate::session::ClientSession;
use crate::timers::{TimerEntry, TimerKind, Timers};

impl<C> ClientSession<C> {
    /// Arms the idle timer of this session, number `index`, whose slots are awake, for `due_ns` or
    /// up to a 32nd of `Config::idle_after_ns` later: rounding keeps the number of different times,
    /// and so the cost of sorting, low.
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
            timers.arm_later(TimerEntry {
                due_ns,
                session: index,
                generation,
                kind: TimerKind::Idle,
            });
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
