//! Transmit (steps 4 and 7 of a packet's path): from queued work to frames.
//!
//! - `batch`: the transmit queue, open frames, and the one place where frames are completed;
//! - `client`: what a client slot sends, through the gate of credits and pacing;
//! - `server`: responses and credit returns; `control`: packets without data;
//! - `messages`: one-way messages and their acknowledgements;
//! - `lane`: the batch and the peer of one slot; `turn`: sessions that waited for credits;
//! - `staging`: buffers of frames; `references`: packets that frames only refer to;
//!   `queue`: items to be sent; `late`: departure times.
//!
//! Small packets to one peer share frames, whatever their kind. A packet of more than
//! `Config::inline_max` bytes leaves as a frame of its own, directly from its message buffer. With
//! [`crate::Packing::Gather`] packets above `Config::gather_from` bytes share frames by reference.
//! Frames of one peer are contiguous, so that the transport can send them as trains.

mod batch;
mod client;
mod control;
mod lane;
mod late;
mod messages;
mod queue;
mod references;
mod server;
mod staging;
mod turn;

use courser_buf::{PathId, TxBurst};

use crate::endpoint::Endpoint;

pub use batch::Framing;
pub(crate) use batch::{TxBatch, copy_short};
pub(crate) use client::{Single, send_single};
pub(crate) use queue::{Sent, TxItem};
pub(crate) use server::{SingleResponse, send_single_response};

/// Batches are not limited to fewer calls than this: a frame costs as much as a few calls.
const BATCH_CALLS_MIN: usize = 4;

impl<C> Endpoint<C> {
    /// Returns whether [`Endpoint::poll_transmit`] has something to do now: a packet is queued, and
    /// there is memory for it.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        self.has_unsent() && (self.tx.retry_ns() == 0 || self.ends_wait())
    }

    /// Returns whether packets were added to those that wait for more
    /// ([`Config::batch_budget_ns`]): they may have filled a frame.
    #[cold]
    fn ends_wait(&self) -> bool {
        self.cfg.batch_budget_ns > 0
            && self.tx.has_frames()
            && (self.tx.has_grown() || !self.deferred.is_empty())
    }

    /// Returns whether a packet is queued, or a call whose packet is not made yet.
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        !(self.tx.is_empty() && self.deferred.is_empty())
    }

    /// Builds frames of queued packets, up to `Config::tx_frames` in `out`, from at most
    /// `Config::tx_items` requests and replies; the rest stays for the next batch. Frames are
    /// complete, with number and time. Call it after the received frames were handled, so that the
    /// packets they caused leave together.
    ///
    /// `now` returns the time. It is not called for a frame of a single small packet whose peer
    /// received a time less than `Config::timestamp_interval_ns` ago, since reading the clock adds to the
    /// latency of such a packet. `copy` is called with a frame that leaves alone: it sends the
    /// frame by a copy and returns `true`, or returns `false`, and the frame is in `out`.
    #[inline(always)] // inlined into the event loop, its only caller
    pub fn poll_transmit(
        &mut self,
        now: impl FnOnce() -> u64,
        out: &mut TxBurst,
        copy: impl FnOnce(PathId, &[u8]) -> bool,
    ) {
        if !self.deferred.is_empty() {
            self.make_deferred_for_batch();
        }
        if self.tx.is_empty() {
            return;
        }
        if self.cfg.batch_budget_ns > 0 {
            return self.transmit_within_budget(now(), out, copy);
        }
        let time_ns = if self.says_no_time(out) { None } else { Some(now()) };
        self.tx.leaves(time_ns);
        self.now_ns = time_ns.unwrap_or(self.now_ns);
        self.tx.begin(self.cfg.tx_frames, out.len(), self.now_ns);
        let queued_frames = if self.tx.has_queued() { self.send_queued(out) } else { 0 };
        let (frames, peers) = (self.cfg.tx_frames, &mut self.peers);
        self.stats.tx_frames += queued_frames + self.tx.complete(peers, time_ns, frames, out, copy);
        if self.tx.has_frames() {
            self.tx.retry_now(); // they do not depend on the lacking memory
        } else if self.tx.starved() {
            self.tx.retry_at(self.now_ns + self.cfg.rto_min_ns);
        }
        self.await_answers();
    }

    /// [`Endpoint::poll_transmit`] with a latency budget: frames that are not full may stay.
    #[cold]
    #[inline(never)]
    fn transmit_within_budget(
        &mut self,
        now_ns: u64,
        out: &mut TxBurst,
        copy: impl FnOnce(PathId, &[u8]) -> bool,
    ) {
        self.now_ns = now_ns;
        let (frames, items) = (self.cfg.tx_frames, self.cfg.tx_items);
        self.tx.begin(frames, out.len(), now_ns);
        let queued_frames = if self.tx.has_queued() { self.send_queued(out) } else { 0 };
        self.tx.postpone_open(&self.peers, self.cfg.batch_budget_ns, items, now_ns);
        self.tx.leaves(Some(now_ns));
        let peers = &mut self.peers;
        self.stats.tx_frames +=
            queued_frames + self.tx.complete(peers, Some(now_ns), frames, out, copy);
        match self.tx.resume_open(peers, self.cfg.batch_budget_ns) {
            // A rest in the queue leaves in the next batch.
            Some(at_ns) if !self.tx.has_queued() => self.tx.retry_at(at_ns),
            None if self.tx.starved() => self.tx.retry_at(now_ns + self.cfg.rto_min_ns),
            _ => {}
        }
        self.await_answers();
    }

    /// Returns whether the batch is one frame of a single small packet that needs no send time.
    #[inline(always)]
    fn says_no_time(&self, out: &TxBurst) -> bool {
        let Some(peer) = self.tx.lone_packet().and_then(|peer| self.peers.at(peer)) else {
            return false;
        };
        out.is_empty() && peer.path.was_told(self.now_ns, self.cfg.timestamp_interval_ns)
    }

    /// Turns queued items into packets, up to the limits of this batch. Returns the number of
    /// completed frames.
    #[inline(never)] // outlined: a batch of appended packets only keeps its registers
    fn send_queued(&mut self, out: &mut TxBurst) -> u64 {
        let (before, packets) = (out.len(), self.stats.tx_packets);
        let (appended, requests) = self.tx.ahead();
        let mut left = self.cfg.tx_items.saturating_sub(appended);
        // At least one, so that requests appended in every pass do not starve a queued one.
        let requests = self.batch_calls().saturating_sub(requests).max(1);
        let mut calls = requests;
        while left > 0
            && let Some(item) = self.tx.pop()
        {
            left -= 1;
            let sent = match item {
                TxItem::Client { .. } if calls == 0 => Sent::Later(item),
                TxItem::Client { session, slot, req_num } => {
                    calls -= 1;
                    self.tx_client(session, slot, req_num, false, out)
                }
                TxItem::Response { session, slot, req_num } => {
                    self.tx_response(session, slot, req_num, out)
                }
                other => self.tx_rare(other, out),
            };
            // A single exit: early returns cost 2 ns per request (code generation).
            match sent {
                Sent::All => continue,
                Sent::Later(item) => self.tx.postpone(item),
                Sent::Rest(item) => self.tx.requeue_rest(item),
            }
            break;
        }
        self.tx.added((self.stats.tx_packets - packets) as usize, requests - calls);
        (out.len() - before) as u64
    }

    #[inline(never)]
    fn tx_rare(&mut self, item: TxItem, out: &mut TxBurst) -> Sent {
        match item {
            TxItem::CreditReturn { session, slot, req_num } => {
                self.tx_credit_return(session, slot, req_num)
            }
            TxItem::Ack { session, req_num } => self.tx_ack(session, req_num),
            TxItem::Cancel { session, slot, req_num } => self.tx_cancel(session, slot, req_num),
            TxItem::Turn { peer } => self.tx_turn(peer, out),
            TxItem::Gap { peer } => self.tx_gap(peer),
            TxItem::Messages { session } => self.tx_messages(session, out),
            TxItem::MessageAck { session } => self.tx_message_ack(session),
            TxItem::Memory => {
                self.admit_waiting();
                Sent::All
            }
            TxItem::Client { .. } | TxItem::Response { .. } => Sent::All, // handled above
        }
    }

    /// Maximum of requests in a batch: half of the outstanding calls, so that client and server
    /// overlap. Further requests belong to the next batch, which leaves after the next poll for
    /// frames. Replies are not limited: if both sides call each other, both are busy anyway, and
    /// large frames are cheapest. Requests in their session's turn for credits do not count either.
    /// A reply that is queued after a delayed request is delayed with it.
    #[inline]
    fn batch_calls(&self) -> usize {
        let calls = self.outstanding_calls() as usize;
        let most = self.cfg.tx_items;
        let divides = self.cfg.split_batches && calls > 0;
        if divides { (calls / 2).max(BATCH_CALLS_MIN).min(most) } else { most }
    }

    /// Runs application code whose calls may be appended to frames at once, as while a received
    /// frame is handled.
    #[inline]
    pub fn appending<E, R>(
        endpoint: &mut E,
        of: fn(&mut E) -> &mut Self,
        run: impl FnOnce(&mut E) -> R,
    ) -> R {
        of(endpoint).open_append();
        let result = run(endpoint);
        of(endpoint).tx.close_append();
        result
    }

    /// See [`TxBatch::open_append`].
    #[inline(always)]
    pub(crate) fn open_append(&mut self) {
        let requests = if self.cfg.split_batches { self.batch_calls() } else { usize::MAX };
        self.tx.open_append(self.cfg.tx_items, requests, self.now_ns);
    }
}
