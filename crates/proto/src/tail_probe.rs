//! Path feedback, and tail-loss detection for calls of one packet, which no later packet
//! acknowledges.
//!
//! It costs nothing per call. Frames are numbered (ADR 2): the receiver of frame `n + 2` detects that
//! `n + 1` is lost or late, and reports it with a [`Packet::Gap`]. An endpoint with calls in flight
//! to that peer then sets a timer for each of them. If no frame follows the lost one, one timer of
//! the endpoint expires, with the same effect.
//!
//! [`Packet::Gap`]: crate::wire::Packet::Gap

use crate::endpoint::Endpoint;
use crate::loss::{AckInfo, LossFeedback};
use crate::mutant::{self, Mutant};
use crate::tx::TxItem;

/// Most calls that are checked when a frame is missing.
const MAX_ARMED: usize = 4096;

impl<C> Endpoint<C> {
    /// Timing of the current frame, for the scoreboards.
    #[inline]
    pub(crate) fn ack_info(&self, peer: u32) -> AckInfo {
        let now_ns = self.io.now_ns;
        match self.io.peers.at(peer) {
            Some(p) => {
                let round_trip_ns = p.path.round_trip_ns();
                let blind = mutant::is_on(Mutant::LossFoundLate);
                let window_ns = if blind { u64::MAX / 2 } else { p.path.window_ns(now_ns) };
                AckInfo { now_ns, round_trip_ns, window_ns }
            }
            _ => AckInfo { now_ns, round_trip_ns: 0, window_ns: 0 },
        }
    }

    /// Takes the feedback of a scoreboard.
    #[inline]
    pub(crate) fn on_feedback(&mut self, peer: u32, feedback: LossFeedback) {
        if feedback != LossFeedback::default() {
            self.apply_feedback(peer, feedback);
        }
    }

    #[cold]
    fn apply_feedback(&mut self, peer: u32, feedback: LossFeedback) {
        self.io.stats.lost += u64::from(feedback.lost);
        self.io.stats.spurious += u64::from(feedback.spurious);
        let Some(p) = self.io.peers.at_mut(peer) else { return };
        p.path.on_feedback(feedback, self.io.now_ns);
        if feedback.lost > 0 || feedback.spurious > 0 {
            self.apply_window(peer);
        }
    }

    /// All packets in flight of a call are lost.
    #[cold]
    pub(crate) fn on_congestion_timeout(&mut self, peer: u32) {
        let Some(p) = self.io.peers.at_mut(peer) else { return };
        let all_lost = LossFeedback { lost: 1, ..LossFeedback::default() };
        p.path.on_feedback(all_lost, self.io.now_ns);
        self.apply_window(peer);
    }

    /// A call of one packet was answered `age_ns` after its retransmission.
    #[cold]
    pub(crate) fn on_retry_answered(&mut self, peer: u32, age_ns: u32, ack: AckInfo) {
        let early = u64::from(age_ns) < ack.round_trip_ns;
        self.io.stats.spurious += u64::from(early);
        let Some(p) = self.io.peers.at_mut(peer) else { return };
        if early {
            return p.path.back_off(self.io.now_ns, &self.io.cfg);
        }
        p.path.back_off_less();
        if !p.path.stalls(age_ns.into(), self.io.cfg.rto_min_ns) {
            self.on_congestion_timeout(peer);
        }
    }

    /// A probed call is still with its handler: not lost, only slow.
    #[cold]
    pub(crate) fn on_in_progress(&mut self, peer: u32) {
        if let Some(p) = self.io.peers.at_mut(peer) {
            p.path.back_off(self.io.now_ns, &self.io.cfg);
        }
    }

    /// A frame of a peer is missing.
    #[cold]
    pub(crate) fn on_gap(&mut self, peer: u32) {
        let Some(p) = self.io.peers.at_mut(peer) else { return };
        if !p.selective {
            return;
        }
        self.io.stats.gaps += 1;
        if !std::mem::replace(&mut p.gap_queued, true) {
            self.io.tx.push(TxItem::Gap { peer });
        }
        self.rx_gap(peer);
    }

    /// A peer reports a missing frame.
    pub(crate) fn rx_gap(&mut self, peer: u32) {
        let now_ns = self.io.now_ns;
        if let Some(p) = self.io.peers.at_mut(peer)
            && p.selective
            && p.credits.is_used()
            && p.path.begins_to_arm(now_ns, &self.io.cfg)
        {
            self.arm_small_calls(Some(peer));
        }
    }

    /// Arms a timer for each single-packet call in flight with a peer; without `peer`, for all
    /// calls with silent peers that are older than half of the expected answer time. `true`: there
    /// are younger calls.
    #[cold]
    fn arm_small_calls(&mut self, peer: Option<u32>) -> bool {
        let (mut at, mut young) = (0, false);
        // Nearly all calls in flight are among the newest entries; with many sessions most of the
        // others have ended.
        let mut left = self.outstanding_calls();
        while let Some(entry) =
            self.io.timers.newest_first(at).filter(|_| at < MAX_ARMED && left > 0)
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
            let Some(p) = self.io.peers.at(s.peer) else { continue };
            let wait_ns = p.path.rtt().pto_ns(&self.io.cfg);
            let is_silent = p.path.last_rx_ns().saturating_add(wait_ns) <= self.io.now_ns;
            let is_young = slot.started_ns.saturating_add(wait_ns / 2) > self.io.now_ns;
            if peer.is_none() && (is_young || !is_silent) {
                young |= is_silent;
                continue;
            }
            let timeout_ns = p.path.timeout_ns(s.agreed.recovery, slot.retries, &self.io.cfg);
            let due_ns = slot.started_ns.saturating_add(timeout_ns);
            self.arm_slot(entry.session, entry.slot, due_ns);
        }
        young
    }

    /// Sets the tail-loss timer, unless it is set already: there are calls in flight.
    #[inline]
    pub(crate) fn await_answers(&mut self) {
        if self.io.tail_loss.is_idle() && self.outstanding_calls() > 0 {
            self.set_tail_loss_timer();
        }
    }

    #[cold]
    fn set_tail_loss_timer(&mut self) {
        let round_trips = self.io.peers.iter().flatten().filter(|p| p.path.rtt().smoothed_ns() > 0);
        let wait_ns = round_trips.map(|p| p.path.rtt().pto_ns(&self.io.cfg)).min();
        self.io.tail_loss.guessed = wait_ns.is_none();
        let wait_ns = wait_ns.unwrap_or(self.io.cfg.rto_initial_ns);
        self.io.tail_loss.due_ns =
            self.io.now_ns.saturating_add(wait_ns.max(self.min_interval_ns()));
    }

    /// Minimum interval of checks of all peers, ns: a check costs about 5 ns per peer, so checks
    /// take at most a tenth of the time.
    fn min_interval_ns(&self) -> u64 {
        50 * self.io.peers.len() as u64
    }

    /// A frame arrived before the first round-trip sample. If there is a sample now, the timer was
    /// set by a guess that is far too long.
    #[cold]
    pub(crate) fn on_round_trip(&mut self, peer: u32) {
        if self.io.peers.at(peer).is_some_and(|p| p.path.rtt().smoothed_ns() > 0) {
            self.io.tail_loss.guessed = false;
            self.io.tail_loss.due_ns = u64::MAX;
            self.await_answers();
        }
    }

    /// The tail-loss timer has expired: a frame from some peer should have arrived by now.
    #[cold]
    pub(crate) fn on_tail_loss(&mut self) {
        let now_ns = self.io.now_ns;
        self.io.tail_loss.due_ns = u64::MAX;
        if self.outstanding_calls() == 0 {
            return;
        }
        // The calls' own timers cover silent peers, until there are new calls.
        let (mut next_ns, mut silent, mut young_ns) = (u64::MAX, false, u64::MAX / 2);
        for p in self.io.peers.iter().flatten().filter(|p| p.selective && p.credits.is_used()) {
            let wait_ns = p.path.rtt().pto_ns(&self.io.cfg);
            let due_ns = p.path.last_rx_ns().saturating_add(wait_ns);
            if due_ns > now_ns {
                next_ns = next_ns.min(due_ns);
            } else {
                silent = true;
                young_ns = young_ns.min(wait_ns / 2);
            }
        }
        if silent && self.arm_small_calls(None) {
            next_ns = next_ns.min(now_ns + young_ns);
        }
        if next_ns != u64::MAX {
            self.io.tail_loss.due_ns = next_ns.max(now_ns + self.min_interval_ns());
        }
    }
}
