//! The transmit stage (steps 4 and 7 of a packet's path): from queued work to frames.
//!
//! Everything that wants to leave is a [`TxItem`]; [`Endpoint::poll_transmit`] turns items into
//! frames. Small packets to one peer share frames, whatever their kind (F1); a packet of more
//! than `Config::inline_max` bytes leaves as a frame of its own, straight from its message buffer.
//! Frames of one peer stand together, so that the transport can send them as trains.

mod cancel;
mod queue;
mod request;
mod response;
mod short;
mod stage;
mod staging;

use courser_buf::{Arena, MsgBuf, PathId, TxBurst};

use crate::endpoint::Endpoint;
use crate::session::{Peer, Session};
use crate::slot::{Lone, ServerPhase};
use crate::stats::EndpointStats;
use crate::wire::{Holes, NO_HOLES, PACKET_HEADER, Packet};

use stage::Direct;
pub(crate) use stage::{TxStage, Written, copy_short};

/// Something to send. Names a request by number: an item that its slot has outlived is ignored.
/// A slot has at most one live item of each kind in the queue, whatever its peer repeats: that
/// bounds the queue by the number of slots. (And one more for a while, when a call is written at once
/// in the place of one that was given up unsent.)
///
/// An item may also outlive its session, and name a slot of the session that has the number now.
/// Should even the request number be the same, that slot is asked what it has to send, which is
/// harmless: items carry no content.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TxItem {
    /// Whatever the client slot can send: request packets, then requests-for-response.
    Client { session: u32, slot: u8, req_num: u32 },
    /// A credit return with what has arrived by then.
    CreditReturn { session: u32, slot: u8, req_num: u32 },
    /// The packets of a stored response that are due.
    Response { session: u32, slot: u8, req_num: u32 },
    /// The response has arrived.
    Ack { session: u32, req_num: u32 },
    /// A frame of a peer is missing.
    Gap { peer: u32 },
    /// The request of a slot in quarantine is given up.
    Cancel { session: u32, slot: u8, req_num: u32 },
    /// Credits of a peer have come back: the turn of the session that has waited longest for them.
    Turn { peer: u32 },
}

/// What became of an item.
pub(crate) enum Sent {
    /// Done with it (for now).
    All,
    /// No room left in this stage; this is what remains.
    Rest(TxItem),
    /// It has its turn in the next stage.
    Later(TxItem),
}

/// Fewer calls are not divided: a frame costs as much as a few of them.
const STAGE_LEAST: usize = 4;

impl<C> Endpoint<C> {
    /// Whether [`Endpoint::poll_transmit`] has something to do now: a packet waits, and not for
    /// memory.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        self.has_unsent() && self.retry_tx_ns == 0
    }

    /// A packet waits, or a call whose packet is not made yet.
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        !(self.tx.is_empty() && self.deferred.is_empty())
    }

    /// Makes frames of what waits to be sent, up to `Config::tx_frames` in `out`, of at most
    /// `Config::tx_items` requests and replies; what is left waits for the next stage. Frames are
    /// complete: number, time and all. Call it after the received frames were handled, so that
    /// what they caused leaves together.
    #[inline]
    pub fn poll_transmit(&mut self, now_ns: u64, out: &mut TxBurst) {
        if self.sends_untimed() {
            self.poll_lone(now_ns, out, |_, _| false);
        } else {
            self.poll_frames(now_ns, out);
        }
        self.after_transmit(now_ns);
    }

    /// Whether what [`Endpoint::poll_frames`] would make now is one frame of a single small packet
    /// whose peer was told the time less than `Config::time_every_ns` ago. Such a frame need not say the
    /// time ([`Endpoint::poll_lone`]): on the way of a lone packet a reading of the clock counts.
    #[inline(always)]
    pub fn sends_untimed(&self) -> bool {
        let Some(peer) = self.tx.only_packet() else { return false };
        let Some(Some(peer)) = self.peers.get(peer as usize) else { return false };
        self.deferred.is_empty() && peer.was_told(self.now_ns, self.cfg.time_every_ns)
    }

    /// The first half of [`Endpoint::poll_transmit`]: the frames. [`Endpoint::after_transmit`] must
    /// follow before the endpoint is asked for anything else.
    #[inline(always)] // into the pass, which is the one place
    pub fn poll_frames(&mut self, now_ns: u64, out: &mut TxBurst) {
        self.now_ns = now_ns;
        if !self.deferred.is_empty() {
            // They may be written at once: none can be taken back before the stage any more. Not past
            // calls that were not deferred, of which many are of the same session.
            if !self.tx.has_waiting() {
                self.open_writing();
            }
            self.make_deferred();
            self.tx.close_writing();
        }
        if self.tx.is_empty() {
            return;
        }
        self.settle();
        let before = out.len();
        self.tx.begin(self.cfg.tx_frames.saturating_sub(before));
        if self.tx.has_waiting() {
            self.stage_waiting(out);
        }
        self.tx.finish(&mut self.peers, now_ns, self.cfg.tx_frames, out);
        self.retry_tx_ns = if self.tx.starved() { now_ns + self.cfg.rto_min_ns } else { 0 };
        self.stats.tx_frames += (out.len() - before) as u64;
        self.listen();
    }

    /// [`Endpoint::poll_frames`] for the one frame of which [`Endpoint::sends_untimed`] has said that
    /// it is all there is. It says no time, so any recent one will do for `now_ns`. `copy` sends it, if
    /// the transport does so by a copy, and says whether; else it is in `out`.
    #[inline(always)] // into the pass, which is the one place
    pub fn poll_lone(
        &mut self,
        now_ns: u64,
        out: &mut TxBurst,
        copy: impl FnOnce(PathId, &[u8]) -> bool,
    ) {
        self.tx.finish_lone(&mut self.peers, self.cfg.tx_frames, out, copy);
        self.now_ns = now_ns;
        self.settle();
        self.retry_tx_ns = 0;
        self.stats.tx_frames += 1;
        self.listen();
    }

    /// The second half of [`Endpoint::poll_transmit`], for which no frame has to wait: the round
    /// trip that the newest frame has shown, and the timeouts of the calls whose requests have left.
    /// `now_ns` is that of the first half, or later.
    #[inline(always)]
    pub fn after_transmit(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.settle_round_trip();
        while let Some(Written { session, slot: slot_no, req_num }) = self.tx.take_written() {
            let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else {
                continue;
            };
            let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { continue };
            if slot.lone != Lone::Sent || slot.req_num != req_num {
                continue;
            }
            slot.started_ns = self.now_ns;
            if !slot.tracked {
                // Its first look came between the call and now, and found nothing to wait for.
                let due_ns = self.now_ns + self.cfg.rto_min_ns;
                self.arm_slot(session, slot_no, due_ns);
            }
        }
    }

    /// Makes packets of what waits, as far as it belongs to this stage.
    #[inline(never)] // so that a stage in which all is written already has the registers
    fn stage_waiting(&mut self, out: &mut TxBurst) {
        self.settle_round_trip();
        let (written, requests) = self.tx.written();
        let mut left = self.cfg.tx_items.saturating_sub(written);
        let mut calls = self.stage_calls().saturating_sub(requests);
        while left > 0
            && let Some(item) = self.tx.pop()
        {
            left -= 1;
            let sent = match item {
                TxItem::Client { .. } if calls == 0 => Sent::Later(item),
                TxItem::Client { session, slot, req_num } => {
                    calls -= 1;
                    if self.tx_short_request(session, slot, req_num) {
                        continue;
                    }
                    self.tx_client(session, slot, req_num, false, out)
                }
                TxItem::CreditReturn { session, slot, req_num } => {
                    self.tx_credit_return(session, slot, req_num)
                }
                TxItem::Response { session, slot, req_num } => {
                    if self.tx_short_response(session, slot, req_num) {
                        continue;
                    }
                    self.tx_response(session, slot, req_num, out)
                }
                TxItem::Ack { session, req_num } => self.tx_ack(session, req_num),
                TxItem::Cancel { session, slot, req_num } => self.tx_cancel(session, slot, req_num),
                TxItem::Turn { peer } => self.tx_turn(peer, out),
                TxItem::Gap { peer } => self.tx_gap(peer),
            };
            // The one way out: with returns above, what is made of this loop takes 2 ns more a request.
            match sent {
                Sent::All => continue,
                Sent::Later(item) => self.tx.put_off(item),
                Sent::Rest(item) => self.tx.found_no_room(item),
            }
            break;
        }
    }

    /// Requests of one stage. When it would be all calls of a client, it and its server take turns,
    /// and each waits half of the time. Replies are none of them: two sides that call each other are
    /// both busy anyway, and work least with large frames. What sessions send in their turn for credits
    /// is none of them either; a reply that is queued behind a request which has to wait waits with it.
    #[inline]
    fn stage_calls(&self) -> usize {
        let calls = self.outstanding_calls() as usize;
        let most = self.cfg.tx_items;
        if self.cfg.tx_halves && calls > 0 { (calls / 2).max(STAGE_LEAST).min(most) } else { most }
    }

    /// See [`TxStage::open_writing`].
    #[inline(always)]
    pub(crate) fn open_writing(&mut self) {
        self.tx.open_writing(self.cfg.tx_items, self.stage_calls());
    }

    fn tx_credit_return(&mut self, session: u32, slot_no: u8, req_num: u32) -> Sent {
        let item = TxItem::CreditReturn { session, slot: slot_no, req_num };
        let Some(Session::Server(s)) = self.sessions.get_mut(session as usize) else {
            return Sent::All;
        };
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return Sent::All };
        if slot.req_num != req_num {
            return Sent::All; // outlived: `begin` has cleared the flags
        }
        let count = slot.returnable();
        let in_progress = slot.cr_in_progress && slot.phase == ServerPhase::Executing;
        let high = slot.gaps.as_ref().and_then(|gaps| gaps.high(slot.req_rcvd));
        if let Some(high) = high.filter(|_| slot.phase == ServerPhase::Receiving) {
            let Some(Some(peer)) = self.peers.get_mut(s.peer as usize) else { return Sent::All };
            let mut room = NO_HOLES;
            let holes = slot.gaps.iter().flat_map(|gaps| gaps.holes(count));
            let holes = Holes::write(count, holes, &mut room);
            let nack = Packet::Nack { session: s.remote, req_num, count, high, holes };
            if !self.tx.append(s.peer, peer, &self.arena, nack.header(), nack.data()) {
                return Sent::Rest(item);
            }
            self.stats.sent(6);
        } else if (count > 0 || in_progress) && slot.phase != ServerPhase::Acked {
            let Some(Some(peer)) = self.peers.get_mut(s.peer as usize) else { return Sent::All };
            let cr = Packet::CreditReturn { session: s.remote, req_num, count, in_progress };
            if !self.tx.append(s.peer, peer, &self.arena, cr.header(), &[]) {
                return Sent::Rest(item);
            }
            self.stats.sent(1);
            self.stats.in_progress_sent += u64::from(in_progress);
        }
        slot.cr_queued = false;
        slot.cr_in_progress = false;
        Sent::All
    }

    #[cold]
    fn tx_gap(&mut self, peer_no: u32) -> Sent {
        let Some(Some(peer)) = self.peers.get_mut(peer_no as usize) else { return Sent::All };
        if peer.gap_queued {
            if !self.tx.append(peer_no, peer, &self.arena, Packet::Gap.header(), &[]) {
                return Sent::Rest(TxItem::Gap { peer: peer_no });
            }
            peer.gap_queued = false;
            self.stats.sent(7);
        }
        Sent::All
    }

    fn tx_ack(&mut self, session: u32, req_num: u32) -> Sent {
        let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else {
            return Sent::All;
        };
        let slot_no = req_num & (s.slots.count() - 1);
        let Some(slot) = s.slots.get_mut(slot_no as usize) else { return Sent::All };
        if slot.active || slot.quarantined || slot.req_num != req_num {
            return Sent::All; // the next request says it
        }
        let Some(Some(peer)) = self.peers.get_mut(s.peer as usize) else { return Sent::All };
        let ack = Packet::Ack { session: s.remote, req_num };
        if !self.tx.append(s.peer, peer, &self.arena, ack.header(), &[]) {
            return Sent::Rest(TxItem::Ack { session, req_num });
        }
        self.stats.sent(4);
        Sent::All
    }
}

/// Where the packets of one slot go: the stage, and the peer.
struct Lane<'a> {
    tx: &'a mut TxStage,
    arena: &'a Arena,
    stats: &'a mut EndpointStats,
    inline_max: usize,
    now_ns: u64,
    peer_no: u32,
    peer: &'a mut Peer,
    out: &'a mut TxBurst,
}

impl Lane<'_> {
    /// A packet without data; `kind` as in [`EndpointStats::tx_kinds`]. `false`: no room.
    #[inline]
    fn header_only(&mut self, kind: usize, header: [u8; PACKET_HEADER]) -> bool {
        let sent = self.tx.append(self.peer_no, self.peer, self.arena, header, &[]);
        if sent {
            self.stats.sent(kind);
        }
        sent
    }

    /// Packet `index` of `msg`, with `range` of its data. `false`: no room.
    #[inline(always)] // with the stage: a packet of a small RPC is written by one piece of code
    fn part(
        &mut self,
        kind: usize,
        header: [u8; PACKET_HEADER],
        msg: &mut MsgBuf,
        index: u32,
        range: std::ops::Range<usize>,
    ) -> bool {
        let Some(data) = msg.get(range.clone()) else { return false };
        let sent = if data.len() <= self.inline_max {
            self.tx.append(self.peer_no, self.peer, self.arena, header, data)
        } else {
            let how = stage::direct(self, header, msg, index, range);
            self.stats.tx_copied += u64::from(how == Direct::Copied);
            how != Direct::NoRoom
        };
        if sent {
            self.stats.sent(kind);
        }
        sent
    }
}
