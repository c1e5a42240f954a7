//! What is learnt of a path from the packets that arrive on it, and how the loss of messages of one
//! packet is noticed, of which nothing but their answer tells.
//!
//! No call pays for it. Frames are numbered (F2): the receiver of frame `n + 2` knows that `n + 1`
//! is lost or late, and says so with a [`Packet::Gap`]. Whoever has calls under way with that peer
//! then sets a timer for each of them. Where no frame follows the lost one, nothing is heard any
//! more: one timer of the endpoint sees to that, and does the same.
//!
//! [`Packet::Gap`]: crate::wire::Packet::Gap

use crate::endpoint::Endpoint;
use crate::loss::{AckInfo, LossFeedback};
use crate::mutant::{self, Mutant};
use crate::tx::TxItem;

/// At most so many calls are looked at when a frame is missing.
const WATCH_MOST: usize = 4096;

impl<C> Endpoint<C> {
    /// What the frame at hand says of when the packets were sent that it answers.
    #[inline]
    pub(crate) fn ack_info(&self, peer: u32) -> AckInfo {
        let now_ns = self.now_ns;
        match self.peers.at(peer) {
            Some(p) => {
                let round_trip_ns = p.path.round_trip_ns();
                let blind = mutant::is_on(Mutant::LossFoundLate);
                let window_ns = if blind { u64::MAX / 2 } else { p.path.window_ns(now_ns) };
                AckInfo { now_ns, round_trip_ns, window_ns }
            }
            _ => AckInfo { now_ns, round_trip_ns: 0, window_ns: 0 },
        }
    }

    /// Takes what an arrival has shown of a path.
    #[inline]
    pub(crate) fn on_feedback(&mut self, peer: u32, feedback: LossFeedback) {
        if feedback != LossFeedback::default() {
            self.apply_feedback(peer, feedback);
        }
    }

    #[cold]
    fn apply_feedback(&mut self, peer: u32, feedback: LossFeedback) {
        self.stats.lost += u64::from(feedback.lost);
        self.stats.spurious += u64::from(feedback.spurious);
        let Some(p) = self.peers.at_mut(peer) else { return };
        p.path.on_feedback(feedback, self.now_ns);
    }

    /// A call of one packet was answered after it was sent again, `age_ns` ago.
    #[cold]
    pub(crate) fn on_retry_answered(&mut self, peer: u32, age_ns: u32, ack: AckInfo) {
        let early = u64::from(age_ns) < ack.round_trip_ns;
        self.stats.spurious += u64::from(early);
        if let Some(p) = self.peers.at_mut(peer) {
            if early { p.path.back_off(self.now_ns, &self.cfg) } else { p.path.back_off_less() }
        }
    }

    /// A call was asked after and is still with its handler: not lost, only slow.
    #[cold]
    pub(crate) fn on_in_progress(&mut self, peer: u32) {
        if let Some(p) = self.peers.at_mut(peer) {
            p.path.back_off(self.now_ns, &self.cfg);
        }
    }

    /// A frame of a peer is missing.
    #[cold]
    pub(crate) fn on_gap(&mut self, peer: u32) {
        let Some(p) = self.peers.at_mut(peer) else { return };
        if !p.selective {
            return;
        }
        self.stats.gaps += 1;
        if !std::mem::replace(&mut p.gap_queued, true) {
            self.tx.push(TxItem::Gap { peer });
        }
        self.rx_gap(peer);
    }

    /// A peer misses a frame.
    pub(crate) fn rx_gap(&mut self, peer: u32) {
        let now_ns = self.now_ns;
        if let Some(p) = self.peers.at_mut(peer)
            && p.selective
            && p.credits.is_used()
            && p.path.begins_to_arm(now_ns, &self.cfg)
        {
            self.watch(Some(peer));
        }
    }

    /// Sets a timer for each small call under way with a peer; or with all that are silent, if the
    /// call is older than half of the time that its answer may take. `true`: there are younger ones.
    #[cold]
    fn watch(&mut self, peer: Option<u32>) -> bool {
        let (mut at, mut young) = (0, false);
        // Nearly all calls under way are among the newest entries; with many sessions most of the
        // others are over.
        let mut left = self.outstanding_calls();
        while let Some(entry) = self.timers.newest_first(at).filter(|_| at < WATCH_MOST && left > 0)
        {
            at += 1;
            let Some(s) = self.sessions.client(entry.session) else { continue };
            if s.generation != entry.generation || peer.is_some_and(|peer| peer != s.peer) {
                continue;
            }
            let Some(slot) = s.slots.get(usize::from(entry.slot)) else { continue };
            left = left.saturating_sub(u64::from(slot.active));
            if !slot.is_single_sent() {
                continue;
            }
            let Some(p) = self.peers.at(s.peer) else { continue };
            let wait_ns = p.path.rtt().pto_ns(&self.cfg);
            let is_silent = p.path.last_heard_ns().saturating_add(wait_ns) <= self.now_ns;
            let is_young = slot.started_ns.saturating_add(wait_ns / 2) > self.now_ns;
            if peer.is_none() && (is_young || !is_silent) {
                young |= is_silent;
                continue;
            }
            let timeout_ns = p.path.timeout_ns(s.agreed.recovery, slot.retries, &self.cfg);
            let due_ns = slot.started_ns.saturating_add(timeout_ns);
            self.arm_slot(entry.session, entry.slot, due_ns);
        }
        young
    }

    /// Begins to wait for an answer, unless that is done already: there are calls under way.
    #[inline]
    pub(crate) fn await_answers(&mut self) {
        if self.tail_loss.is_idle() && self.outstanding_calls() > 0 {
            self.set_tail_loss_timer();
        }
    }

    #[cold]
    fn set_tail_loss_timer(&mut self) {
        let round_trips = self.peers.iter().flatten().filter(|p| p.path.rtt().smoothed_ns() > 0);
        let wait_ns = round_trips.map(|p| p.path.rtt().pto_ns(&self.cfg)).min();
        self.tail_loss.guessed = wait_ns.is_none();
        let wait_ns = wait_ns.unwrap_or(self.cfg.rto_initial_ns);
        self.tail_loss.due_ns = self.now_ns.saturating_add(wait_ns.max(self.least_wait_ns()));
    }

    /// Least time between two looks at all peers, ns: a look costs about 5 ns a peer, so it takes a
    /// tenth of the time at most.
    fn least_wait_ns(&self) -> u64 {
        50 * self.peers.len() as u64
    }

    /// A frame has arrived while no round trip was known. If there is one now, the wait until now was a
    /// guess, and far too long.
    #[cold]
    pub(crate) fn on_round_trip(&mut self, peer: u32) {
        if self.peers.at(peer).is_some_and(|p| p.path.rtt().smoothed_ns() > 0) {
            self.tail_loss.guessed = false;
            self.tail_loss.due_ns = u64::MAX;
            self.await_answers();
        }
    }

    /// From some peer something should have been heard by now, if nothing was lost.
    #[cold]
    pub(crate) fn on_tail_loss(&mut self) {
        let now_ns = self.now_ns;
        self.tail_loss.due_ns = u64::MAX;
        if self.outstanding_calls() == 0 {
            return;
        }
        // Who is silent is waited for by each call's own timer, until there are new calls.
        let (mut next_ns, mut silent, mut young_ns) = (u64::MAX, false, u64::MAX / 2);
        for p in self.peers.iter().flatten().filter(|p| p.selective && p.credits.is_used()) {
            let wait_ns = p.path.rtt().pto_ns(&self.cfg);
            let due_ns = p.path.last_heard_ns().saturating_add(wait_ns);
            if due_ns > now_ns {
                next_ns = next_ns.min(due_ns);
            } else {
                silent = true;
                young_ns = young_ns.min(wait_ns / 2);
            }
        }
        if silent && self.watch(None) {
            next_ns = next_ns.min(now_ns + young_ns);
        }
        if next_ns != u64::MAX {
            self.tail_loss.due_ns = next_ns.max(now_ns + self.least_wait_ns());
        }
    }
}
