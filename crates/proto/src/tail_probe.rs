//! Tail-loss detection for calls of one packet, which no later packet acknowledges.
//!
//! It costs nothing per call. Frames are numbered (ADR 2): the receiver of frame `n + 2` detects that
//! `n + 1` is lost or late, and reports it with a [`Packet::Gap`]. An endpoint with calls in flight
//! to that peer then sets a timer for each of them. If no frame follows the lost one, one timer of
//! the endpoint expires, with the same effect.
//!
//! [`Packet::Gap`]: crate::wire::Packet::Gap

use crate::endpoint::Endpoint;
use crate::io::{Io, min_interval_ns};
use crate::peer::Peer;
use crate::timers::TimerKind;
use crate::tx::TxItem;

/// Most calls that are checked when a frame is missing.
const MAX_ARMED: usize = 4096;

impl Io {
    /// A frame of a peer is missing. Returns whether timers of calls to it have to be armed.
    #[cold]
    pub(crate) fn on_gap(&mut self, peer: &mut Peer) -> bool {
        if !peer.selective {
            return false;
        }
        self.stats.gaps += 1;
        if !std::mem::replace(&mut peer.gap_queued, true) {
            self.tx.push(TxItem::Gap { peer: peer.number() });
        }
        self.begins_to_arm(peer)
    }

    /// Returns whether timers of calls to a peer have to be armed, as one of its frames is missing.
    fn begins_to_arm(&self, peer: &mut Peer) -> bool {
        peer.selective && peer.credits.is_used() && peer.path.begins_to_arm(self.now_ns, &self.cfg)
    }
}

impl<C> Endpoint<C> {
    /// A peer reports a missing frame.
    pub(crate) fn rx_gap(&mut self, peer: u32) {
        if self.peers.at_mut(peer).is_some_and(|p| self.io.begins_to_arm(p)) {
            self.arm_small_calls(Some(peer));
        }
    }

    /// Arms a timer for each single-packet call in flight with a peer; without `peer`, for all
    /// calls with silent peers that are older than half of the expected answer time. `true`: there
    /// are younger calls.
    #[cold]
    pub(crate) fn arm_small_calls(&mut self, peer: Option<u32>) -> bool {
        let (mut at, mut young) = (0, false);
        // Nearly all calls in flight are among the newest entries; with many sessions most of the
        // others have ended.
        let mut left = self.io.outstanding_calls();
        while let Some(entry) =
            self.io.timers.newest_first(at).filter(|_| at < MAX_ARMED && left > 0)
        {
            at += 1;
            let Some(mut flow) = self.client_flow(entry.session) else { continue };
            let (s, p, io) = (&*flow.s, &*flow.peer, &*flow.io);
            if s.generation != entry.generation || peer.is_some_and(|peer| peer != s.peer) {
                continue;
            }
            let TimerKind::Slot(slot_no) = entry.kind else { continue };
            let Some(slot) = s.slots.get(usize::from(slot_no)) else { continue };
            left = left.saturating_sub(u64::from(slot.active));
            if !slot.is_single_sent() {
                continue;
            }
            let wait_ns = p.path.rtt().pto_ns(&io.cfg);
            let is_silent = p.path.last_rx_ns().saturating_add(wait_ns) <= io.now_ns;
            let is_young = slot.started_ns.saturating_add(wait_ns / 2) > io.now_ns;
            if peer.is_none() && (is_young || !is_silent) {
                young |= is_silent;
                continue;
            }
            let timeout_ns = p.path.timeout_ns(s.agreed.recovery, slot.retries, &io.cfg);
            let due_ns = slot.started_ns.saturating_add(timeout_ns);
            flow.arm_slot(slot_no, due_ns);
        }
        young
    }

    /// The tail-loss timer has expired: a frame from some peer should have arrived by now.
    #[cold]
    pub(crate) fn on_tail_loss(&mut self) {
        let now_ns = self.io.now_ns;
        self.io.tail_loss.due_ns = u64::MAX;
        if self.io.outstanding_calls() == 0 {
            return;
        }
        // The calls' own timers cover silent peers, until there are new calls.
        let (mut next_ns, mut silent, mut young_ns) = (u64::MAX, false, u64::MAX / 2);
        for p in self.peers.iter().flatten().filter(|p| p.selective && p.credits.is_used()) {
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
            self.io.tail_loss.due_ns = next_ns.max(now_ns + min_interval_ns(&self.peers));
        }
    }
}
