//! The latency budget of batching: frames with room left wait for more packets
//! ([`Config::batch_budget_ns`](crate::Config::batch_budget_ns), S21, ADR 39).
//!
//! Each frame waits for itself, from its first packet: neither a peer without credits nor a paced one
//! delays the frames of others. A frame without room for another small packet leaves at once, and all
//! leave when the batch is full, so waiting takes neither frames nor buffers from other peers.

use super::{OpenFrame, TxBatch};
use crate::peer::{NO_FRAME, Peers};
use crate::wire::PACKET_HEADER;

/// A frame with less room than this is full: a packet of 48 data bytes does not fit.
const FULL_ROOM: usize = PACKET_HEADER + 48;

impl TxBatch {
    /// Sets aside the frames that may wait at `now_ns`: those that are not full, of packets that have
    /// waited for less than `budget_ns`. None if this batch has `items` packets or no room.
    pub(crate) fn postpone_open(
        &mut self,
        peers: &Peers,
        budget_ns: u64,
        items: usize,
        now_ns: u64,
    ) {
        let is_full = self.full || self.frames_left == 0 || self.appended as usize >= items;
        if is_full || self.buffers.starved || !self.full_batch.is_empty() {
            return;
        }
        let mut numbers = self.first_open..;
        let may_wait = |frame: &mut OpenFrame| {
            let no = numbers.next().unwrap_or(NO_FRAME);
            let newest = peers.at(frame.peer).is_some_and(|peer| peer.open_frame == no);
            let room = frame.buf.len().saturating_sub(frame.len as usize);
            newest && room >= FULL_ROOM && now_ns < frame.opened_ns.saturating_add(budget_ns)
        };
        self.postponed.extend(self.open.extract_if(.., may_wait));
    }

    /// After the batch has left: the frames that wait are the first of the next one. Returns the time
    /// at which the first of them leaves, ns.
    pub(crate) fn resume_open(&mut self, peers: &mut Peers, budget_ns: u64) -> Option<u64> {
        if self.postponed.is_empty() {
            return None;
        }
        debug_assert!(self.open.is_empty() && self.full_batch.is_empty());
        std::mem::swap(&mut self.open, &mut self.postponed);
        // They get new numbers, as those of frames that have left do not occur again.
        self.first_open += self.open.len() as u64;
        for (no, frame) in (self.first_open..).zip(&self.open) {
            if let Some(peer) = peers.at_mut(frame.peer) {
                peer.open_frame = no;
            }
        }
        let last = self.open.last()?;
        self.last_peer = last.peer;
        self.mixed = self.open.len() > 1;
        self.frames_left = self.frames_left.saturating_sub(self.open.len());
        self.appended = POSTPONED_PACKETS; // of these frames, and none is a single packet
        self.open.iter().map(|frame| frame.opened_ns.saturating_add(budget_ns)).min()
    }

    /// Returns whether packets have been added or queued since the frames that wait were set aside.
    pub(crate) fn has_grown(&self) -> bool {
        !self.queue.is_empty() || self.appended != POSTPONED_PACKETS
    }
}

/// Count of the packets in frames that wait: more than one.
const POSTPONED_PACKETS: u32 = 2;
