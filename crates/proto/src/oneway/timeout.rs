//! Messages in flight without an answer: their timer, and what is sent again.

use super::outgoing::Freed;
use crate::flow::ClientFlow;
use crate::loss::{LossFeedback, Recovery};
use crate::mutant::{self, Mutant};
use crate::path::PROBES;
use crate::session::SessionState;
use crate::timers::{Expiry, TimerEntry, TimerKind};
use crate::tx::TxItem;

impl<C> ClientFlow<'_, C> {
    /// The timer of the session's messages has expired.
    pub(crate) fn on_messages_expiry(&mut self) -> Expiry {
        let now_ns = self.io.now_ns;
        let Some(outgoing) = &mut self.s.outgoing else { return Expiry::Done };
        outgoing.timer_ns = u64::MAX;
        if self.s.state != SessionState::Connected || outgoing.units() == 0 {
            return Expiry::Done;
        }
        if now_ns < outgoing.due_ns {
            let due_ns = outgoing.due_ns;
            self.arm_messages(due_ns);
            return Expiry::Done;
        }
        let timeout_ns = self.io.cfg.datapath_timeout_ns;
        let silent_ns =
            now_ns.saturating_sub(self.peer.path.last_rx_ns().max(outgoing.waits_since_ns));
        let stuck_ns = now_ns.saturating_sub(outgoing.waits_since_ns);
        let is_silent = (silent_ns >= timeout_ns || stuck_ns / 2 >= timeout_ns)
            && !self.io.timers.pause.excuses(now_ns);
        if outgoing.retries > 0 && is_silent {
            return Expiry::Silent;
        }
        self.on_messages_due();
        Expiry::Done
    }

    /// Messages may be lost: those that later ones have overtaken, or else, after a timeout, the
    /// oldest; after several, all. While their peer does not answer, those that wait may expire.
    fn on_messages_due(&mut self) {
        let now_ns = self.io.now_ns;
        let Some(outgoing) = &mut self.s.outgoing else { return };
        let window_ns = self.peer.path.window_ns(now_ns);
        let expired = outgoing.drop_expired(now_ns);
        self.io.stats.messages_unsent += expired;
        let mut freed = Freed::default();
        let mut next_ns = u64::MAX;
        if outgoing.has_gap() {
            next_ns = outgoing.find_lost(window_ns, now_ns, &mut freed);
        }
        let overtaken = freed.lost;
        if overtaken == 0 && next_ns == u64::MAX {
            outgoing.retries = outgoing.retries.saturating_add(1);
            let all = outgoing.retries > PROBES;
            if !mutant::is_on(Mutant::LostMessageForgotten) {
                outgoing.time_out(all, &mut freed);
            }
            self.io.stats.probes += 1;
            if all {
                self.io.on_congestion_timeout(self.peer);
            }
        }
        self.after_messages(freed, overtaken, next_ns);
        if expired > 0 {
            self.note_room();
        }
    }

    /// Sets the timer after messages were sent, arrived or lost, returns their room, and queues what
    /// can be sent. `overtaken` messages are lost since later ones have arrived; the next one is at
    /// `next_ns`.
    pub(super) fn after_messages(&mut self, freed: Freed, overtaken: u32, next_ns: u64) {
        if overtaken > 0 {
            let feedback = LossFeedback { lost: overtaken as u16, ..LossFeedback::default() };
            self.io.on_feedback(self.peer, feedback);
        }
        if freed.units > 0 {
            self.io.release_room(self.peer, freed.units);
        }
        self.time_messages(next_ns);
        let waits = self.s.waits_for_room;
        if let Some(outgoing) = &mut self.s.outgoing
            && !outgoing.queued
            && outgoing.can_send()
        {
            // While the session waits for room its messages are sent in its turn.
            outgoing.stalled |= waits;
            if !waits {
                outgoing.queued = true;
                self.io.tx.push(TxItem::Messages { session: self.index });
            }
        }
    }

    /// Ensures a timer for messages in flight, a timeout from now and no later than `next_ns`.
    pub(crate) fn time_messages(&mut self, next_ns: u64) {
        let Some(outgoing) = &mut self.s.outgoing else { return };
        if outgoing.units() == 0 {
            outgoing.due_ns = u64::MAX;
            return;
        }
        let timeout_ns =
            self.peer.path.timeout_ns(Recovery::Selective, outgoing.retries, &self.io.cfg);
        outgoing.due_ns = self.io.now_ns.saturating_add(timeout_ns).min(next_ns);
        let due_ns = outgoing.due_ns;
        self.arm_messages(due_ns);
    }

    /// Ensures a timer for messages no later than `due_ns`.
    fn arm_messages(&mut self, due_ns: u64) {
        let generation = self.s.generation;
        if let Some(outgoing) = &mut self.s.outgoing
            && due_ns < outgoing.timer_ns
        {
            let entry =
                TimerEntry { due_ns, session: self.index, generation, kind: TimerKind::Messages };
            outgoing.timer_ns = self.io.timers.arm_later(entry);
        }
    }
}
