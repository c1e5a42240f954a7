//! Messages in flight without an answer: their timer, and what is sent again.

use super::outgoing::Freed;
use crate::endpoint::Endpoint;
use crate::expiry::Verdict;
use crate::loss::{LossFeedback, Recovery};
use crate::mutant::{self, Mutant};
use crate::path::PROBES;
use crate::session::{ClientSession, SessionState};
use crate::timers::{MESSAGES, TimerEntry};
use crate::tx::TxItem;

impl<C> Endpoint<C> {
    /// The action that is due for the messages of a session.
    pub(crate) fn judge_messages(&self, s: &ClientSession<C>, now_ns: u64) -> Verdict {
        let Some(outgoing) = &s.outgoing else { return Verdict::Nothing };
        if s.state != SessionState::Connected || outgoing.units() == 0 {
            return Verdict::Nothing;
        }
        if now_ns < outgoing.due_ns {
            return Verdict::Rearm(outgoing.due_ns);
        }
        let Some(peer) = self.io.peers.at(s.peer) else { return Verdict::Silent };
        let timeout_ns = self.io.cfg.datapath_timeout_ns;
        let silent_ns = now_ns.saturating_sub(peer.path.last_rx_ns().max(outgoing.waits_since_ns));
        let stuck_ns = now_ns.saturating_sub(outgoing.waits_since_ns);
        let is_silent = (silent_ns >= timeout_ns || stuck_ns / 2 >= timeout_ns)
            && !self.io.timers.pause.excuses(now_ns);
        if outgoing.retries > 0 && is_silent { Verdict::Silent } else { Verdict::MessagesDue }
    }

    /// Messages may be lost: those that later ones have overtaken, or else, after a timeout, the
    /// oldest; after several, all. While their peer does not answer, those that wait may expire.
    pub(crate) fn on_messages_due(&mut self, session: u32, now_ns: u64) {
        let Some(s) = self.sessions.client_mut(session) else { return };
        let peer_no = s.peer;
        let (Some(outgoing), Some(peer)) = (&mut s.outgoing, self.io.peers.at(peer_no)) else {
            return;
        };
        let window_ns = peer.path.window_ns(now_ns);
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
                self.on_congestion_timeout(peer_no);
            }
        }
        self.after_messages(session, freed, overtaken, next_ns);
        if expired > 0 {
            self.note_room(session);
        }
    }

    /// Sets the timer after messages were sent, arrived or lost, returns their room, and queues what
    /// can be sent. `overtaken` messages are lost since later ones have arrived; the next one is at
    /// `next_ns`.
    pub(super) fn after_messages(
        &mut self,
        session: u32,
        freed: Freed,
        overtaken: u32,
        next_ns: u64,
    ) {
        let Some(s) = self.sessions.client_mut(session) else { return };
        let peer_no = s.peer;
        if overtaken > 0 {
            let feedback = LossFeedback { lost: overtaken as u16, ..LossFeedback::default() };
            self.on_feedback(peer_no, feedback);
        }
        if freed.units > 0 {
            self.release_room(peer_no, freed.units);
        }
        self.time_messages(session, next_ns);
        let Some(s) = self.sessions.client_mut(session) else { return };
        let waits = s.waits_for_room;
        if let Some(outgoing) = &mut s.outgoing
            && !outgoing.queued
            && outgoing.can_send()
        {
            // While the session waits for room its messages are sent in its turn.
            outgoing.stalled |= waits;
            if !waits {
                outgoing.queued = true;
                self.io.tx.push(TxItem::Messages { session });
            }
        }
    }

    /// Ensures a timer for messages in flight, a timeout from now and no later than `next_ns`.
    pub(crate) fn time_messages(&mut self, session: u32, next_ns: u64) {
        let now_ns = self.io.now_ns;
        let Some(s) = self.sessions.client_mut(session) else { return };
        let Some(peer) = self.io.peers.at(s.peer) else { return };
        let Some(outgoing) = &mut s.outgoing else { return };
        if outgoing.units() == 0 {
            outgoing.due_ns = u64::MAX;
            return;
        }
        let timeout_ns = peer.path.timeout_ns(Recovery::Selective, outgoing.retries, &self.io.cfg);
        outgoing.due_ns = now_ns.saturating_add(timeout_ns).min(next_ns);
        if outgoing.due_ns < outgoing.timer_ns {
            let (due_ns, generation) = (outgoing.due_ns, s.generation);
            let entry = TimerEntry { due_ns, session, generation, slot: MESSAGES };
            outgoing.timer_ns = self.io.timers.arm_later(entry);
        }
    }

    /// Sets the timer again.
    pub(crate) fn rearm_messages(&mut self, session: u32, due_ns: u64) {
        let Some(s) = self.sessions.client_mut(session) else { return };
        let generation = s.generation;
        if let Some(outgoing) = &mut s.outgoing
            && due_ns < outgoing.timer_ns
        {
            let entry = TimerEntry { due_ns, session, generation, slot: MESSAGES };
            outgoing.timer_ns = self.io.timers.arm_later(entry);
        }
    }
}
