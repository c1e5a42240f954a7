//! Timers of a client session's slots, and what has them sent: a slot's place in the transmit queue, or
//! its wait for credits.

use super::ClientFlow;
use crate::budget::HOST_WAIT_NS;
use crate::config::Config;
use crate::event::Notice;
use crate::loss::Recovery;
use crate::path::Path;
use crate::session::SessionId;
use crate::session::room::AwaitedRoom;
use crate::slot::ClientSlot;
use crate::timers::{TimerEntry, TimerKind};
use crate::tx::TxItem;

/// Time without an answer after which loss of a slot's packets is suspected.
pub(crate) fn slot_timeout_ns<C>(
    path: &Path,
    slot: &ClientSlot<C>,
    recovery: Recovery,
    now_ns: u64,
    cfg: &Config,
) -> u64 {
    if slot.is_single_sent() {
        return path.timeout_ns(recovery, slot.retries, cfg);
    }
    let timeout_ns = match slot.awaits_grant() || slot.in_order() > 0 {
        true => path.grant_timeout_ns(recovery, slot.retries, now_ns, cfg),
        false => path.timeout_ns(recovery, slot.retries, cfg),
    };
    // Round trips do not contain the waits in the host of a peer that receives large messages.
    let excluded_ns = if cfg.is_two_window() { HOST_WAIT_NS.into() } else { 0 };
    timeout_ns.saturating_add(excluded_ns).min(cfg.rto_max_ns)
}

impl<C> ClientFlow<'_, C> {
    // ---- timers -------------------------------------------------------------------------------

    /// Ensures a timer for a slot no later than `due_ns`, or the deadline of its call.
    pub(crate) fn arm_slot(&mut self, slot_no: u8, due_ns: u64) {
        let generation = self.s.generation;
        let Some(slot) = self.s.slots.get_mut(usize::from(slot_no)) else { return };
        let due_ns = due_ns.min(slot.expires_ns);
        if due_ns < slot.timer_ns {
            let entry = TimerEntry {
                due_ns,
                session: self.index,
                generation,
                kind: TimerKind::Slot(slot_no),
            };
            slot.timer_ns = self.io.timers.arm_later(entry);
        }
    }

    /// Arms a timer for a slot whose call has ended: a call or cancellation that was never sent has
    /// no timeout, and the timer of another may be far ahead. Without a timer its response would
    /// not be acknowledged (ADR 6).
    #[cold]
    pub(crate) fn arm_soon(&mut self, slot_no: u8) {
        let due_ns = self.io.now_ns.saturating_add(self.io.cfg.rto_min_ns);
        self.arm_slot(slot_no, due_ns);
    }

    /// Sets a slot's deadline one timeout ahead, and ensures a timer for it.
    #[inline]
    pub(crate) fn extend_deadline(&mut self, slot_no: u8) {
        let recovery = self.s.agreed.recovery;
        let slot = &mut self.s.slots[usize::from(slot_no)];
        let now_ns = self.io.now_ns;
        slot.deadline_ns =
            now_ns + slot_timeout_ns(&self.peer.path, slot, recovery, now_ns, &self.io.cfg);
        // The first timer is never later than a timeout from now.
        let exact = !slot.tracked || recovery == Recovery::Selective;
        if exact && slot.deadline_ns.min(slot.expires_ns) < slot.timer_ns {
            let due_ns = slot.deadline_ns;
            self.arm_slot(slot_no, due_ns);
        }
    }

    // ---- the transmit queue -------------------------------------------------------------------

    /// Queues a slot for transmission if it has something to send and is not queued yet.
    #[inline]
    pub(crate) fn wake_slot(&mut self, slot_no: u8) {
        let slot = &mut self.s.slots[usize::from(slot_no)];
        if slot.active && !slot.queued && slot.sendable() > 0 {
            slot.queued = true;
            self.s.stalled &= !(1 << slot_no);
            let (session, req_num) = (self.index, slot.req_num);
            self.io.tx.push_granted(TxItem::Client { session, slot: slot_no, req_num });
        }
    }

    /// Queues the slots that wait for credits when there are some; round robin, starting after slot
    /// `after`.
    #[inline]
    pub(crate) fn wake_stalled(&mut self, after: u8) {
        if self.s.stalled == 0 || self.s.credits.left() == 0 || self.s.waits_for_room {
            return;
        }
        self.wake_each(after);
    }

    fn wake_each(&mut self, after: u8) {
        let first = (u32::from(after) + 1) % 32;
        let mut stalled = self.s.stalled.rotate_right(first);
        while stalled != 0 {
            let slot_no = (stalled.trailing_zeros() + first) % 32;
            stalled &= stalled - 1;
            self.wake_slot(slot_no as u8);
        }
    }

    /// Credits of a slot have returned: queues the slots that wait for credits, then the slot
    /// itself. Otherwise a large message would keep all credits of its session until its end (E31).
    #[inline]
    pub(crate) fn wake_in_turn(&mut self, slot_no: u8) {
        self.wake_stalled(slot_no);
        self.wake_slot(slot_no);
    }

    // ---- room ---------------------------------------------------------------------------------

    /// Updates the count of slots that await a grant, after a change of this slot.
    #[inline]
    pub(crate) fn note_awaiting(&mut self, slot_no: u8) {
        let Some(slot) = self.s.slots.get_mut(usize::from(slot_no)) else { return };
        if !slot.update_awaiting() {
            return;
        }
        let awaits = slot.is_awaiting();
        self.peer.path.on_awaiting(awaits);
        self.io.apply_window(self.peer);
    }

    /// The peer's pool lacks room for a packet of `units` units: the session waits for its turn.
    #[cold]
    pub(crate) fn wait_for_room(&mut self, units: u16) {
        if !self.begin_wait() {
            return;
        }
        self.io.stats.pool_waits += 1;
        let session = self.id();
        if self.peer.credits.wait(session, units) {
            self.io.tx.push(TxItem::Turn { peer: self.peer.number() });
        }
    }

    /// The turn of the session was cut short: it is the next one again.
    pub(crate) fn wait_first(&mut self) {
        let session = self.id();
        if self.begin_wait() {
            self.peer.credits.wait_first(session);
        }
    }

    /// The session waits for room no longer.
    pub(crate) fn end_wait_for_room(&mut self) {
        if std::mem::take(&mut self.s.waits_for_room) {
            self.peer.credits.wait_no_more();
        }
    }

    /// `false`: the session already waits.
    fn begin_wait(&mut self) -> bool {
        !std::mem::replace(&mut self.s.waits_for_room, true)
    }

    /// Reports room that is awaited, if there is some or the session has ended.
    #[inline]
    pub(crate) fn note_room(&mut self) {
        if self.s.awaits_room() {
            self.report_room();
        }
    }

    fn report_room(&mut self) {
        let (most_calls, most) = (self.io.cfg.call_queue, self.io.cfg.message_queue);
        let s = &mut self.s;
        let (calls, ended) = (s.queue.len(), s.has_failed());
        let messages = s.outgoing.as_ref().map_or(0, |outgoing| outgoing.len());
        // With a queue of no calls there is room when a slot is free.
        let has_slot = most_calls > 0 || s.free != 0;
        let room = [
            (AwaitedRoom::CALLS, has_slot && calls < most_calls.max(1)),
            (AwaitedRoom::SMALL, messages <= most / 2),
            (AwaitedRoom::LARGE, has_slot && calls <= most_calls / 2),
        ];
        let room = room.into_iter().filter(|(_, has_room)| *has_room || ended);
        if s.report_room(room.fold(0, |kinds, (kind, _)| kinds | kind)) {
            let session = SessionId { index: self.index, generation: s.generation };
            self.out.notices.push_back(Notice::Freed { session, messages: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use courser_buf::Arena;

    use super::*;
    use crate::cc::Control;

    #[test]
    fn requests_of_several_packets_wait_for_the_host_of_the_peer_too() {
        let arena = Arena::heap();
        let mut large = ClientSlot::new(0);
        large.start(8, 1, arena.alloc(4_000).unwrap(), 4, ());
        let mut small = ClientSlot::new(0);
        small.start(8, 1, arena.alloc(8).unwrap(), 1, ());
        small.sent_single(1, 0);
        let waits = |cfg: &Config, slot: &ClientSlot<()>| {
            let path = Path::new(cfg);
            let network_ns = path.timeout_ns(Recovery::Selective, 0, cfg);
            slot_timeout_ns(&path, slot, Recovery::Selective, 0, cfg) - network_ns
        };
        let cfg = Config { rto_initial_ns: 100_000, ..Config::default() };
        assert_eq!(waits(&cfg, &large), HOST_WAIT_NS.into());
        assert_eq!(waits(&cfg, &small), 0);
        let cfg = Config { control: Control::None, ..cfg };
        assert_eq!(waits(&cfg, &large), 0);
    }
}
