//! Transmit (steps 4 and 7 of a packet's path): from queued work to frames.
//!
//! - `batch`: the transmit queue, open frames, and the one place where frames are completed;
//! - `host`: large messages wait while the host's own transmit queue is long;
//! - `gate`: credits and pacing, and the loop that sends the packets of a session;
//! - `client`: what a client slot sends;
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
mod gate;
mod host;
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
use crate::flow::{ClientFlow, ServerFlow};
use crate::io::Io;
use crate::session::SessionId;

pub use batch::Framing;
pub(crate) use batch::TxBatch;
pub(crate) use client::send_single;
pub(crate) use host::Waiter;
pub(crate) use queue::{Sent, TxItem};
pub(crate) use server::send_single_response;

impl<C> Endpoint<C> {
    /// Returns whether [`Endpoint::poll_transmit`] has something to do now: a packet is queued, and
    /// there is memory for it.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        self.has_unsent() && (self.io.tx.retry_ns() == 0 || self.ends_wait())
    }

    /// Returns whether packets were added to those that wait for more
    /// ([`Config::batch_budget_ns`]): they may have filled a frame.
    fn ends_wait(&self) -> bool {
        self.io.cfg.batch_budget_ns > 0
            && self.io.tx.has_frames()
            && (self.io.tx.has_grown() || !self.deferred.is_empty())
    }

    /// Returns whether a packet is queued, or a call whose packet is not made yet.
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        !(self.io.tx.is_empty() && self.deferred.is_empty())
    }

    /// Returns whether [`Endpoint::set_backlog`] is to be called before the next
    /// [`Endpoint::poll_transmit`]. Only after a first report, while large messages are sent, and with the
    /// default congestion control ([`Config::control`](crate::Config::control)).
    #[inline]
    pub fn asks_for_backlog(&self) -> bool {
        self.io.tx.host.asks()
    }

    /// Reports the bytes of frames that were handed over and that the host has not sent: those that the
    /// transport holds, and those that it has not taken. `None`: that is not known, and large messages
    /// do not wait for it. With a congestion control other than the default, reports have no effect.
    pub fn set_backlog(&mut self, bytes: Option<u64>) {
        self.io.tx.host.on_report(bytes, self.io.now_ns);
        if self.io.tx.host.needs_sweep() {
            let sessions = &self.sessions;
            self.io.tx.host.sweep(|waiter| match waiter {
                Waiter::Request { session, .. } | Waiter::Response { session, .. } => {
                    sessions.is_live(session)
                }
                Waiter::Pool { .. } => true,
            });
        }
        self.io.continue_host();
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
    ///
    /// This is [`Endpoint::transmit_lone`] or [`Endpoint::transmit_batch`].
    #[inline]
    pub fn poll_transmit(
        &mut self,
        now: impl FnOnce() -> u64,
        out: &mut TxBurst,
        copy: impl FnOnce(PathId, &[u8]) -> bool,
    ) {
        if self.is_lone() && out.is_empty() {
            self.transmit_lone(now, out, copy);
        } else {
            self.transmit_batch(now, out, copy);
        }
    }

    /// Returns whether all that is to be sent is one small packet, in its frame.
    #[inline]
    pub fn is_lone(&self) -> bool {
        self.io.tx.is_lone() && self.deferred.is_empty()
    }

    /// [`Endpoint::poll_transmit`] if the endpoint [`Endpoint::is_lone`] and `out` is empty. Returns
    /// whether it has called `now`.
    #[inline(always)] // inlined into the event loop, its only caller
    pub fn transmit_lone(
        &mut self,
        now: impl FnOnce() -> u64,
        out: &mut TxBurst,
        copy: impl FnOnce(PathId, &[u8]) -> bool,
    ) -> bool {
        let Io { tx, cfg, now_ns, stats, .. } = &mut self.io;
        let (frames, time_ns) = tx.complete_lone(&mut self.peers, cfg, (*now_ns, now), out, copy);
        stats.tx_frames += frames;
        if let Some(time_ns) = time_ns {
            *now_ns = time_ns;
        }
        self.io.await_answers(&self.peers);
        time_ns.is_some()
    }

    /// [`Endpoint::poll_transmit`] in any other case.
    #[inline]
    pub fn transmit_batch(
        &mut self,
        now: impl FnOnce() -> u64,
        out: &mut TxBurst,
        copy: impl FnOnce(PathId, &[u8]) -> bool,
    ) {
        if !self.deferred.is_empty() {
            self.make_deferred_for_batch();
        }
        if self.io.tx.is_empty() {
            return;
        }
        let now_ns = now();
        if self.io.cfg.batch_budget_ns > 0 {
            return self.transmit_within_budget(now_ns, out, copy);
        }
        self.io.tx.leaves(now_ns);
        self.io.now_ns = now_ns;
        self.io.tx.begin(self.io.cfg.tx_frames, out.len(), now_ns);
        let queued_frames = if self.io.tx.has_queued() { self.send_queued(out) } else { 0 };
        let (frames, peers) = (self.io.cfg.tx_frames, &mut self.peers);
        self.io.stats.tx_frames +=
            queued_frames + self.io.tx.complete(peers, now_ns, frames, out, copy);
        if self.io.tx.has_frames() {
            self.io.tx.retry_now(); // they do not depend on the lacking memory
        } else if self.io.tx.starved() {
            self.io.tx.retry_at(now_ns + self.io.cfg.rto_min_ns);
        }
        self.io.await_answers(&self.peers);
    }

    /// [`Endpoint::poll_transmit`] with a latency budget: frames that are not full may stay.
    fn transmit_within_budget(
        &mut self,
        now_ns: u64,
        out: &mut TxBurst,
        copy: impl FnOnce(PathId, &[u8]) -> bool,
    ) {
        self.io.now_ns = now_ns;
        let (frames, items) = (self.io.cfg.tx_frames, self.io.cfg.tx_items);
        self.io.tx.begin(frames, out.len(), now_ns);
        let queued_frames = if self.io.tx.has_queued() { self.send_queued(out) } else { 0 };
        self.io.tx.postpone_open(&self.peers, self.io.cfg.batch_budget_ns, items, now_ns);
        self.io.tx.leaves(now_ns);
        let peers = &mut self.peers;
        self.io.stats.tx_frames +=
            queued_frames + self.io.tx.complete(peers, now_ns, frames, out, copy);
        match self.io.tx.resume_open(peers, self.io.cfg.batch_budget_ns) {
            // A rest in the queue leaves in the next batch.
            Some(at_ns) if !self.io.tx.has_queued() => self.io.tx.retry_at(at_ns),
            None if self.io.tx.starved() => self.io.tx.retry_at(now_ns + self.io.cfg.rto_min_ns),
            _ => {}
        }
        self.io.await_answers(&self.peers);
    }

    /// Turns queued items into packets, up to the limits of this batch. Returns the number of
    /// completed frames.
    #[inline(never)] // outlined: a batch of appended packets only keeps its registers
    fn send_queued(&mut self, out: &mut TxBurst) -> u64 {
        let (before, packets) = (out.len(), self.io.stats.tx_packets);
        let (appended, requests) = self.io.tx.ahead();
        let mut left = self.io.cfg.tx_items.saturating_sub(appended);
        // At least one, so that requests appended in every pass do not starve a queued one.
        let requests = self.io.batch_calls().saturating_sub(requests).max(1);
        let mut calls = requests;
        while left > 0
            && let Some(item) = self.io.tx.pop()
        {
            left -= 1;
            let sent = match item {
                TxItem::Client { .. } if calls == 0 => Sent::Later(item),
                TxItem::Client { session, .. }
                | TxItem::Ack { session, .. }
                | TxItem::Cancel { session, .. }
                | TxItem::Messages { session }
                | TxItem::RequestTurn { session: SessionId { index: session, .. }, .. } => {
                    match self.client_flow(session) {
                        Some(mut flow) => {
                            calls -= usize::from(matches!(item, TxItem::Client { .. }));
                            flow.tx(item, out)
                        }
                        None => Sent::All,
                    }
                }
                TxItem::Response { session, .. }
                | TxItem::CreditReturn { session, .. }
                | TxItem::MessageAck { session }
                | TxItem::ResponseTurn { session: SessionId { index: session, .. }, .. } => {
                    match self.server_flow(session) {
                        Some(mut flow) => flow.tx(item, out),
                        None => Sent::All,
                    }
                }
                other => self.tx_other(other, out),
            };
            // A single exit: early returns cost 2 ns per request (code generation).
            match sent {
                Sent::All => continue,
                Sent::Later(item) => self.io.tx.postpone(item),
                Sent::Rest(item) => self.io.tx.requeue_rest(item),
            }
            break;
        }
        self.io.tx.added((self.io.stats.tx_packets - packets) as usize, requests - calls);
        (out.len() - before) as u64
    }

    /// Sends an item that belongs to no session.
    #[inline(never)]
    fn tx_other(&mut self, item: TxItem, out: &mut TxBurst) -> Sent {
        match item {
            TxItem::Turn { peer } => return self.tx_turn(peer, out),
            TxItem::Host => self.io.begin_host_turn(),
            TxItem::PoolTurn { peer } => return self.tx_pool_at_host(peer, out),
            TxItem::Gap { peer } | TxItem::Proof { peer } => {
                let Some(peer) = self.peers.at_mut(peer) else { return Sent::All };
                return match item {
                    TxItem::Gap { .. } => self.io.tx_gap(peer),
                    _ => self.io.tx_proof(peer, &mut self.outbox.moves),
                };
            }
            TxItem::Memory => self.admit_waiting(),
            _ => {} // of a session
        }
        Sent::All
    }

    /// Runs application code whose calls may be appended to frames at once, as while a received
    /// frame is handled.
    #[inline]
    pub fn appending<E, R>(
        endpoint: &mut E,
        of: fn(&mut E) -> &mut Self,
        run: impl FnOnce(&mut E) -> R,
    ) -> R {
        of(endpoint).io.open_append();
        let result = run(endpoint);
        of(endpoint).io.tx.close_append();
        result
    }
}

impl<C> ClientFlow<'_, C> {
    #[inline]
    fn tx(&mut self, item: TxItem, out: &mut TxBurst) -> Sent {
        match item {
            TxItem::Client { slot, req_num, .. } => self.tx_client(slot, req_num, false, out),
            other => self.tx_rare(other, out),
        }
    }

    #[inline(never)]
    fn tx_rare(&mut self, item: TxItem, out: &mut TxBurst) -> Sent {
        match item {
            TxItem::RequestTurn { session, slot } if session == self.id() => {
                self.tx_client_at_host(slot, false, out)
            }
            TxItem::Ack { req_num, .. } => self.tx_ack(req_num),
            TxItem::Cancel { slot, req_num, .. } => self.tx_cancel(slot, req_num),
            TxItem::Messages { .. } => self.tx_messages(out),
            _ => Sent::All,
        }
    }
}

impl<C> ServerFlow<'_, C> {
    #[inline]
    fn tx(&mut self, item: TxItem, out: &mut TxBurst) -> Sent {
        match item {
            TxItem::Response { slot, req_num, .. } => self.tx_response(slot, req_num, out),
            other => self.tx_rare(other, out),
        }
    }

    #[inline(never)]
    fn tx_rare(&mut self, item: TxItem, out: &mut TxBurst) -> Sent {
        match item {
            TxItem::ResponseTurn { session, slot } if session == self.id() => {
                self.tx_response_at_host(slot, out)
            }
            TxItem::CreditReturn { slot, req_num, .. } => self.tx_credit_return(slot, req_num),
            TxItem::MessageAck { .. } => self.tx_message_ack(),
            _ => Sent::All,
        }
    }
}
