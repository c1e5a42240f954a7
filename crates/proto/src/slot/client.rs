//! The client's half of a slot: the progress of one call, and what may be sent next.
//!
//! # Counters
//! Request packets: `req_acked <= req_sent <= req_high <= req_packets`. Response packets:
//! `resp_rcvd <= resp_requested <= resp_high <= resp_packets`. `sent` and `requested` roll back on a
//! timeout (E59); the `high` marks never do: they distinguish a late answer from a forged one.
//!
//! A message of several packets of a session with selective recovery has a [`Board`], the retransmission
//! scoreboard. Then nothing rolls back: of the packets between `acked` and `sent`, or `rcvd` and
//! `requested`, `idle` hold no credit, because they have arrived out of order or are to be sent again
//! (`lost`). Nor does the last packet of a *parked* request, which is known to be with its handler.
//!
//! # Invariants
//! 1. `in_flight = (req_sent - req_acked) + (resp_requested - resp_rcvd) - idle`: the credits held by
//!    this slot.
//! 2. Once a response packet has arrived all request packets are acknowledged.
//! 3. A credit return never acknowledges the last request packet; the response does (E42).
//! 4. `lost <= idle`, and both equal the counts of the board; a parked packet is counted in `idle` too.

use courser_buf::{MsgBuf, prefetch};

use crate::budget::NO_MESSAGE;
use crate::credits::CreditPool;
use crate::error::Executed;
use crate::loss::{AckInfo, Board, Boards, LossFeedback, Recovery};
use crate::mutant::{self, Mutant};
use crate::stats::RxDrop;
use crate::wire::{HOLES_REACH, MAX_REMAINING_US, PartPacket};

/// State of a slot whose call ends before its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// Free, and its request number is used again.
    Rewind,
    /// Free.
    Free,
    /// Not free until the server has answered.
    Quarantine,
}

/// Upper limit of doublings of the wait for an acknowledgement: from 1 us or more, far beyond the
/// longest wait.
const ACK_DOUBLED_MAX: u8 = 16;

/// Progress of a call whose request is one packet. Any unusual event sets it to [`Single::No`],
/// permanently; the counters then hold the progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Single {
    /// The request has several packets, or something unusual happened.
    No,
    /// Nothing was sent.
    Unsent,
    /// The request was sent once, and no part of the response has arrived. Until its slot's first
    /// timer expires, it has no timer of its own.
    Sent,
}

/// The packet that a slot sends next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextPacket {
    /// A packet of the request.
    Request {
        /// Index of the packet.
        index: u32,
    },
    /// A request-for-response.
    Rfr {
        /// First requested packet.
        first: u32,
        /// Number of requested packets.
        count: u32,
    },
}

impl NextPacket {
    /// Number of credits that it takes.
    pub(crate) fn credits(self) -> u32 {
        match self {
            NextPacket::Request { .. } => 1,
            NextPacket::Rfr { count, .. } => count,
        }
    }
}

/// In order of use: a small RPC accesses only the first two cache lines. A free slot has no counts of
/// a response, so a call need not reset them.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ClientSlot<C> {
    req: Option<MsgBuf>,
    cont: Option<C>,
    /// When loss is suspected; of a free slot, when its last call ended, ns.
    pub(crate) deadline_ns: u64,
    /// Number of the current request, or of the last one when the slot is free.
    pub(crate) req_num: u32,
    single: Single,
    pub(crate) active: bool,
    /// The server still keeps the last response, because it was not acknowledged (ADR 6).
    pub(crate) ack_owed: bool,
    /// The transmit queue has an item of this slot: for its call, or its cancellation.
    pub(crate) queued: bool,
    /// The transmit queue has an item of this free slot, for its next request.
    pub(crate) queued_ahead: bool,
    /// The first timer of this slot is set.
    pub(crate) tracked: bool,
    /// Timeouts since the last progress.
    pub(crate) retries: u8,
    /// Number of doublings of the wait for an acknowledgement.
    ack_doubled: u8,
    /// Units of the peer's pool per packet in flight.
    units: u16,
    req_type: u16,
    req_packets: u32,
    req_sent: u32,
    req_high: u32,
    req_acked: u32,
    resp_size: u32,
    /// Position of the first timer, while it is set: [`crate::timers::Timers::cancel_first`].
    pub(crate) first_timer: u32,
    /// When the request was first sent, ns.
    pub(crate) started_ns: u64,
    /// Sequence number of the call.
    pub(crate) seq: u64,
    /// The earliest later timer of this slot that is set; `u64::MAX`: none.
    pub(crate) timer_ns: u64,
    /// The call's deadline, ns; `u64::MAX`: none.
    pub(crate) expires_ns: u64,
    resp_packets: u32,
    resp_rcvd: u32,
    resp_requested: u32,
    resp_high: u32,
    /// When a packet of the server for this request last arrived, ns.
    pub(crate) last_rx_ns: u64,
    /// Time of the last retransmission of a call without a board, or of the last transmission of a
    /// message of several packets: ns modulo 2^32.
    again_at: u32,
    /// The last request whose response was acknowledged by a packet of its own.
    acked_num: u32,
    resp: Option<MsgBuf>,
    /// Packets that were sent, or requested, and are neither in order nor in flight.
    idle: u32,
    /// Idle packets that are to be sent again.
    lost: u32,
    /// Packets of the request, then of the response, that the receiver's budget allows;
    /// `u32::MAX`: all.
    granted: u32,
    /// Number of the response in this endpoint's budget, or [`NO_MESSAGE`].
    message: u32,
    board: Option<Box<Board>>,
    /// The call has ended but the server has not answered the request yet (ADR 15): the slot cannot
    /// take another call.
    pub(crate) quarantined: bool,
    /// Counted by its path as a slot that awaits a grant.
    awaiting: bool,
    /// The server has stated that the request is with its handler: its last packet holds no credit
    /// until it is sent again.
    parked: bool,
    /// The host's transmit queue has an entry of this slot (`tx::host`).
    at_host: bool,
    /// One above the packet to which the current message last went back without a timeout; 0:
    /// none.
    went_back: u32,
}

const _: () = {
    use std::mem::offset_of;
    // With continuations of 16 bytes, as in `courser`.
    type Slot = ClientSlot<Result<u64, u32>>;
    assert!(offset_of!(Slot, req_type) + 2 <= 64, "what finds and frees a slot is in one line");
    assert!(offset_of!(Slot, expires_ns) + 8 <= 128, "a small RPC is two lines");
    assert!(size_of::<Slot>() == 192 && align_of::<Slot>() == 64);
};

impl<C> ClientSlot<C> {
    /// A free slot whose next request will be `req_num + step`.
    pub(crate) fn new(req_num: u32) -> Self {
        ClientSlot {
            req_num,
            active: false,
            single: Single::No,
            quarantined: false,
            awaiting: false,
            parked: false,
            went_back: 0,
            ack_owed: false,
            tracked: false,
            first_timer: 0,
            queued: false,
            queued_ahead: false,
            at_host: false,
            retries: 0,
            ack_doubled: 0,
            acked_num: req_num,
            req_type: 0,
            req_packets: 0,
            req_sent: 0,
            req_high: 0,
            req_acked: 0,
            resp_size: 0,
            resp_packets: 0,
            resp_rcvd: 0,
            resp_requested: 0,
            resp_high: 0,
            deadline_ns: u64::MAX,
            timer_ns: u64::MAX,
            started_ns: 0,
            last_rx_ns: 0,
            expires_ns: u64::MAX,
            seq: 0,
            req: None,
            resp: None,
            idle: 0,
            lost: 0,
            granted: u32::MAX,
            message: NO_MESSAGE,
            again_at: 0,
            board: None,
            cont: None,
            units: 1,
        }
    }

    /// Takes a call. `step` is the number of slots.
    #[inline(always)]
    pub(crate) fn start(&mut self, step: u32, req_type: u16, req: MsgBuf, packets: u32, cont: C) {
        debug_assert!(!self.active && !self.quarantined);
        self.req_num = self.req_num.wrapping_add(step);
        self.active = true;
        self.single = if packets == 1 { Single::Unsent } else { Single::No };
        self.retries = 0;
        self.req_type = req_type;
        self.req_packets = packets;
        (self.req_sent, self.req_high, self.req_acked) = (0, 0, 0);
        self.resp_size = 0;
        self.req = Some(req);
        self.cont = Some(cont);
    }

    /// Prefetches the two cache lines that a small RPC accesses.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(self);
        prefetch(&self.req_packets);
    }

    /// The type of the request.
    #[inline]
    pub(crate) fn req_type(&self) -> u16 {
        self.req_type
    }

    /// The request, if it is one packet that was never sent.
    #[inline]
    pub(crate) fn single_unsent(&self) -> Option<&[u8]> {
        if self.single != Single::Unsent {
            return None;
        }
        self.req.as_deref()
    }

    /// Records that this packet was sent.
    #[inline]
    pub(crate) fn sent_single(&mut self, units: u16, now_ns: u64) {
        debug_assert!(self.single == Single::Unsent);
        self.single = Single::Sent;
        self.units = units;
        self.started_ns = now_ns;
        self.ack_owed = false; // the request acknowledges it (ADR 6)
        self.queued = false;
        (self.req_sent, self.req_high) = (1, 1);
    }

    /// Returns whether the request is one packet that was sent once, and no part of the response
    /// has arrived.
    #[inline]
    pub(crate) fn is_single_sent(&self) -> bool {
        self.single == Single::Sent
    }

    /// Ends a call that [`ClientSlot::is_single_sent`] with a response of one packet. Returns its
    /// message and continuation, or `None` without a change while the transport references the
    /// request (E24). [`ClientSlot::units`] return to the pool.
    #[inline]
    pub(crate) fn finish_single(&mut self) -> Option<(MsgBuf, C)> {
        debug_assert!(self.single == Single::Sent && self.in_flight() == 1);
        if self.req.as_ref().is_none_or(MsgBuf::is_shared) {
            return None;
        }
        self.single = Single::No;
        self.active = false;
        self.expires_ns = u64::MAX;
        self.ack_owed = true;
        self.req_acked = 1; // nothing is in flight
        match (self.req.take(), self.cont.take()) {
            (Some(req), Some(cont)) => Some((req, cont)),
            _ => None,
        }
    }

    /// Units of the peer's pool per packet in flight.
    #[inline]
    pub(crate) fn units(&self) -> u32 {
        self.units.into()
    }

    /// Units of all packets in flight.
    pub(crate) fn in_flight_units(&self) -> u32 {
        self.in_flight() * self.units()
    }

    /// Units per packet sent next. Equal for all packets in flight.
    pub(crate) fn units_to_send(&self, pool: &CreditPool) -> u16 {
        if self.in_flight() > 0 {
            return self.units;
        }
        match &self.req {
            Some(req) if self.req_packets == 1 && self.resp_packets == 0 => {
                pool.units_of(req.len())
            }
            _ => pool.units_per_packet(),
        }
    }

    /// Returns whether the packets that it sends next are those of a request of several packets.
    #[inline]
    pub(crate) fn sends_large(&self) -> bool {
        self.req_packets > 1 && self.resp_packets == 0
    }

    /// The slot waits for the host's transmit queue. Returns whether it has no entry there yet.
    pub(crate) fn wait_for_host(&mut self) -> bool {
        !std::mem::replace(&mut self.at_host, true)
    }

    /// The entry of the slot has left the host's queue. Returns whether the slot waits for that.
    pub(crate) fn leave_host(&mut self) -> bool {
        std::mem::take(&mut self.at_host) && self.queued
    }

    /// The call ends early: the entry at the host's queue does not serve the next one, which may be small.
    pub(crate) fn end_wait_for_host(&mut self) {
        self.queued &= !self.at_host;
    }

    /// Packets of the request that were not sent.
    pub(crate) fn request_left(&self) -> u32 {
        self.req_packets - self.req_sent + self.lost
    }

    /// The request.
    pub(crate) fn request(&self) -> Option<&MsgBuf> {
        self.req.as_ref()
    }

    /// The request, for sending.
    pub(crate) fn request_mut(&mut self) -> Option<&mut MsgBuf> {
        self.req.as_mut()
    }

    /// The packet to send next with this number of credits; requires that something is
    /// [`ClientSlot::sendable`].
    pub(crate) fn next_packet(&mut self, credits: u32) -> NextPacket {
        let is_response = self.resp_packets > 0;
        let lost = if self.lost > 0 {
            let most = if is_response { credits } else { 1 };
            self.board.as_mut().and_then(|board| board.next_lost(most))
        } else {
            None
        };
        if is_response {
            let most = self.resp_packets.min(self.granted);
            let new = (self.resp_requested, most.saturating_sub(self.resp_requested));
            let (first, count) = lost.unwrap_or(new);
            return NextPacket::Rfr { first, count: count.min(credits) };
        }
        NextPacket::Request { index: lost.map_or(self.req_sent, |(first, _)| first) }
    }

    /// Records a transmission. Returns whether it is a retransmission.
    pub(crate) fn on_sent(&mut self, packet: NextPacket, units: u16, now_ns: u64) -> bool {
        self.units = units;
        if self.req_packets > 1 {
            self.again_at = now_ns as u32;
        }
        let again;
        match packet {
            NextPacket::Rfr { first, count } => {
                again = first < self.resp_high;
                self.resp_requested = self.resp_requested.max(first + count);
                self.resp_high = self.resp_high.max(self.resp_requested);
                self.note_sent(first, count, now_ns);
            }
            NextPacket::Request { index } => {
                // If this is its only packet, the call is from here on like any single-packet call.
                let first_time = self.single == Single::Unsent;
                self.single = if first_time { Single::Sent } else { Single::No };
                if self.req_high == 0 {
                    self.started_ns = now_ns;
                    self.ack_owed = false; // the request acknowledges it (ADR 6)
                }
                again = index < self.req_high;
                self.req_sent = self.req_sent.max(index + 1);
                self.req_high = self.req_high.max(self.req_sent);
                self.note_sent(index, 1, now_ns);
            }
        }
        again
    }

    /// Records that packets were sent whose answer is due at `due_ns`; `waited`: packets were
    /// already in flight. Returns whether a timer has to be armed for [`ClientSlot::deadline_ns`].
    pub(crate) fn await_answer(&mut self, recovery: Recovery, waited: bool, due_ns: u64) -> bool {
        // MELO's timeout is that of the first hole.
        if recovery != Recovery::Melo || !waited {
            self.deadline_ns = due_ns;
        }
        !self.tracked || recovery == Recovery::Selective
    }

    /// Takes a board for a message of several packets that is about to be sent or requested.
    #[inline]
    pub(crate) fn begin_board(&mut self, boards: &mut Boards, recovery: Recovery) {
        if self.board.is_none() && !recovery.is_go_back_n() && !self.is_small() {
            let is_response = self.resp_packets > 0;
            let in_order = if is_response { self.resp_rcvd } else { self.req_acked };
            self.board = boards.take(recovery, self.req_packets, in_order);
        }
    }

    /// Removes the board.
    pub(crate) fn take_board(&mut self) -> Option<Box<Board>> {
        self.board.take()
    }

    /// Credits held by this slot (invariant 1).
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        (self.req_sent - self.req_acked) + (self.resp_requested - self.resp_rcvd) - self.idle
    }

    /// Packets that could be sent now with enough credits.
    #[inline]
    pub(crate) fn sendable(&self) -> u32 {
        if self.granted == u32::MAX {
            let response = self.resp_packets - self.resp_requested;
            return (self.req_packets - self.req_sent) + response + self.lost;
        }
        let request = self.req_packets.min(self.granted).saturating_sub(self.req_sent);
        let response = self.resp_packets.min(self.granted).saturating_sub(self.resp_requested);
        request + response + self.lost
    }

    /// Updates the counts from the board.
    #[inline]
    fn take_counts(&mut self) {
        if let Some(board) = &self.board {
            (self.idle, self.lost) = board.idle_and_lost();
            self.idle += u32::from(self.parked);
        }
    }

    /// Returns whether both messages are one packet, as far as known.
    #[inline]
    fn is_small(&self) -> bool {
        self.req_packets == 1 && self.resp_packets <= 1
    }

    /// Records that packets were sent or requested, of which the board may list some as lost.
    #[inline]
    fn note_sent(&mut self, first: u32, count: u32, now_ns: u64) {
        if let Some(board) = &mut self.board {
            board.sent(first, count, now_ns);
            (self.idle, self.lost) = board.idle_and_lost();
        }
    }

    /// Returns whether the maximum number of packets is beyond the first one that has not arrived:
    /// tracking each costs memory on both sides.
    #[inline]
    pub(crate) fn is_spread(&self, most: u32) -> bool {
        if self.lost != 0 || self.in_flight() == 0 {
            return false;
        }
        let most = most.min(HOLES_REACH);
        (self.req_sent - self.req_acked) + (self.resp_requested - self.resp_rcvd) >= most
    }

    /// Advances `req_acked` to `count`.
    fn acknowledge(&mut self, count: u32) {
        self.req_acked = self.req_acked.max(count);
        self.req_sent = self.req_sent.max(self.req_acked);
    }

    /// Handles a packet of the response. `Ok`: its data is to be stored; returns the freed credits.
    /// It is the next in order, unless there is a board.
    pub(crate) fn on_response(
        &mut self,
        index: u32,
        msg_size: u32,
        packets: u32,
        ack: AckInfo,
        feedback: &mut LossFeedback,
    ) -> Result<u32, RxDrop> {
        if self.req_high < self.req_packets {
            return Err(RxDrop::Inconsistent); // answers an incompletely sent request
        }
        let before = self.in_flight();
        if index == 0 {
            if self.resp_rcvd > 0 {
                return Err(RxDrop::Duplicate);
            }
            self.single = Single::No;
            self.resp_size = msg_size;
            self.resp_packets = packets;
            self.granted = u32::MAX;
            self.acknowledge(self.req_packets);
            self.resp_high = 1;
            self.went_back = 0;
            // Requests-for-response do not wait for the host's transmit queue.
            self.queued &= !self.at_host;
            (self.idle, self.lost, self.parked) = (0, 0, false);
            if let Some(board) = &mut self.board {
                board.begin_response();
            }
        } else {
            if self.resp_rcvd == 0 {
                return Err(RxDrop::OutOfOrder);
            }
            if msg_size != self.resp_size || index >= self.resp_high {
                return Err(RxDrop::Inconsistent);
            }
            if index < self.resp_rcvd {
                return Err(RxDrop::Duplicate);
            }
            if let Some(board) = &mut self.board {
                if index > self.resp_rcvd && index >= self.resp_requested {
                    return Err(RxDrop::OutOfOrder); // rolled back and not requested again
                }
                self.resp_rcvd = board.on_response(index, ack, feedback)?;
                self.resp_requested = self.resp_requested.max(self.resp_rcvd);
                self.take_counts();
                return Ok(before.saturating_sub(self.in_flight()));
            }
            if index > self.resp_rcvd && !mutant::is_on(Mutant::ResponseGapTaken) {
                return Err(RxDrop::OutOfOrder);
            }
        }
        self.resp_rcvd += 1;
        self.resp_requested = self.resp_requested.max(self.resp_rcvd);
        if mutant::is_on(Mutant::CreditGivenTwice) {
            return Ok((before - self.in_flight()).max(1));
        }
        Ok(before - self.in_flight())
    }

    /// Handles the next packet in order of the response, neither its first nor its last; returns the
    /// freed credits. `None`: it is another packet, or others have arrived out of order; nothing was
    /// changed, and it is for [`ClientSlot::on_response`].
    #[inline]
    pub(crate) fn take_response_part(&mut self, p: &PartPacket<'_>) -> Option<u32> {
        let is_next = self.active
            && self.req_num == p.req_num
            && self.resp_size == p.msg_size
            && (1..self.resp_packets.saturating_sub(1)).contains(&p.index)
            && p.index == self.resp_rcvd
            && p.index < self.resp_high
            && self.resp.is_some();
        if !is_next || mutant::is_on(Mutant::CreditGivenTwice) {
            return None;
        }
        // Nothing is idle or lost afterwards, as before.
        if self.board.as_mut().is_some_and(|board| !board.takes_next(p.index)) {
            return None;
        }
        let before = self.in_flight();
        self.resp_rcvd += 1;
        self.resp_requested = self.resp_requested.max(self.resp_rcvd);
        Some(before - self.in_flight())
    }

    /// A timeout: all packets in flight are lost; returns the freed credits. Without a board this
    /// is go-back-N: everything unanswered is rolled back `[eRPC §5.3]` (E59).
    pub(crate) fn roll_back(&mut self) -> u32 {
        let credits = self.in_flight();
        self.single = Single::No;
        self.unpark();
        if let Some(board) = &mut self.board {
            let is_response = self.resp_packets > 0;
            match board.time_out(is_response, self.retries > 0) {
                None => {}
                Some(end) if is_response => {
                    self.resp_requested = self.resp_requested.min(end.max(self.resp_rcvd));
                }
                // The last packet is sent again in any case, since it requests the response.
                Some(end) => {
                    let end = end.min(self.req_packets - 1).max(self.req_acked);
                    self.req_sent = self.req_sent.min(end);
                }
            }
            self.take_counts();
            return credits.saturating_sub(self.in_flight());
        }
        self.req_sent = self.req_acked;
        self.resp_requested = self.resp_rcvd;
        credits
    }

    /// Tail-loss probe: retransmits the newest packet in flight; returns its credit.
    pub(crate) fn probe(&mut self) -> u32 {
        let before = self.in_flight();
        if !self.board.as_mut().is_some_and(|board| board.probe()) {
            return self.roll_back();
        }
        self.unpark();
        self.take_counts();
        before.saturating_sub(self.in_flight())
    }

    /// Packets of the response, as far as known.
    pub(crate) fn response_packets(&self) -> u32 {
        self.resp_packets
    }

    /// Packets of the response that were requested.
    pub(crate) fn requested(&self) -> u32 {
        self.resp_requested
    }

    /// Number of response packets received in order.
    pub(crate) fn in_order(&self) -> u32 {
        self.resp_rcvd
    }

    /// Number of request packets that the server has received in order.
    pub(crate) fn acked(&self) -> u32 {
        self.req_acked
    }

    /// Returns whether all packets of the response have arrived.
    pub(crate) fn has_response(&self) -> bool {
        self.resp_rcvd == self.resp_packets
    }

    /// Returns whether a packet of the request was sent, and no part of the response has arrived.
    pub(crate) fn awaits_response(&self) -> bool {
        self.req_high > 0 && self.resp_rcvd == 0
    }

    /// Memory for a response of several packets.
    pub(crate) fn set_response_buffer(&mut self, buffer: MsgBuf) {
        self.resp = Some(buffer);
    }

    pub(crate) fn response_buffer_mut(&mut self) -> Option<&mut MsgBuf> {
        self.resp.as_mut()
    }

    pub(crate) fn take_response(&mut self) -> Option<MsgBuf> {
        self.resp.take()
    }

    /// Time since the last retransmission of the call, ns modulo 2^32.
    pub(crate) fn age_of_retry(&self, now_ns: u64) -> u32 {
        (now_ns as u32).wrapping_sub(self.again_at)
    }

    /// Records a retransmission of the call.
    pub(crate) fn retry(&mut self, now_ns: u64) {
        self.retries = self.retries.saturating_add(1);
        self.again_at = now_ns as u32;
    }

    /// Bytes of the board on the heap.
    pub(crate) fn board_bytes(&self) -> usize {
        self.board.as_ref().map_or(0, |board| board.heap_bytes())
    }

    /// Delay from the end of a call to the acknowledgement of its response: from `least_ns` to
    /// `most_ns`. A response of more than `data_per_packet` bytes holds memory of its own at the
    /// server, so the delay is short then.
    #[inline]
    pub(crate) fn ack_wait_ns(&self, data_per_packet: u16, least_ns: u64, most_ns: u64) -> u64 {
        if self.resp_size > u32::from(data_per_packet) {
            return least_ns;
        }
        (least_ns << self.ack_doubled).min(most_ns)
    }

    /// Doubles the next wait for an acknowledgement.
    pub(crate) fn double_ack_wait(&mut self) {
        self.ack_doubled = (self.ack_doubled + 1).min(ACK_DOUBLED_MAX);
    }

    /// Records that the response is acknowledged by a packet of its own. Returns the number of
    /// requests since the last such packet; `step` is the number of slots.
    pub(crate) fn acknowledge_response(&mut self, step: u32) -> u32 {
        self.ack_owed = false;
        let before = std::mem::replace(&mut self.acked_num, self.req_num);
        self.req_num.wrapping_sub(before) / step
    }

    /// Ends the call and returns the application's parts.
    pub(crate) fn finish(&mut self) -> Option<(MsgBuf, C)> {
        self.active = false;
        self.single = Single::No;
        self.expires_ns = u64::MAX;
        self.queued = false; // remaining queue items are ignored by their number
        self.resp_packets = 0;
        self.resp_requested = 0;
        self.resp_rcvd = 0;
        self.resp_high = 0;
        self.req_packets = 0;
        (self.req_sent, self.req_acked) = (0, 0);
        (self.idle, self.lost, self.parked) = (0, 0, false);
        self.went_back = 0;
        self.granted = u32::MAX;
        self.resp = None;
        match (self.req.take(), self.cont.take()) {
            (Some(req), Some(cont)) => Some((req, cont)),
            _ => None,
        }
    }

    /// The remaining time of the call, for its server; `None` without a deadline, or with one
    /// beyond the range of a packet.
    #[inline]
    pub(crate) fn remaining_us(&self, now_ns: u64) -> Option<u32> {
        if self.expires_ns == u64::MAX {
            return None;
        }
        let left_ns = self.expires_ns.saturating_sub(now_ns);
        (left_ns < (u64::from(MAX_REMAINING_US) + 1) * 1_000).then_some((left_ns / 1_000) as u32)
    }

    /// Returns whether the handler has run or may run, if the call ended now: it runs when the
    /// whole request has arrived, and unsent packets will not be sent.
    pub(crate) fn executed(&self) -> Executed {
        let claims = mutant::is_on(Mutant::ClaimsNeverExecuted);
        let sent = if claims { self.req_acked } else { self.req_high };
        if self.resp_rcvd > 0 {
            Executed::Yes
        } else if sent < self.req_packets {
            Executed::Never
        } else {
            Executed::Maybe
        }
    }

    /// The state of the slot when its call ends before its answer (ADR 15), and whether the handler
    /// has run.
    pub(crate) fn ending(&self) -> (Ending, Executed) {
        let ending = if self.req_high == 0 {
            Ending::Rewind
        } else if self.resp_rcvd > 0 {
            Ending::Free
        } else {
            Ending::Quarantine
        };
        (ending, self.executed())
    }

    /// The server has received no packet of the request, and expects its number next: the next call
    /// has to use it. `step` is the number of slots.
    pub(crate) fn rewind(&mut self, step: u32) {
        debug_assert!(self.active && self.req_high == 0);
        self.req_num = self.req_num.wrapping_sub(step);
        self.queued_ahead = self.queued;
    }

    /// Ends a quarantine.
    pub(crate) fn release(&mut self) {
        self.quarantined = false;
        self.queued = false; // remaining queue items are ignored
    }

    /// Ends a quarantine because the server has answered, with a response of unknown size.
    pub(crate) fn release_answered(&mut self, now_ns: u64) {
        self.release();
        self.ack_owed = true;
        self.resp_size = u32::MAX; // it may be large
        self.deadline_ns = now_ns;
    }
}

mod check;
mod go_back;
mod grants;
#[cfg(test)]
mod tests;
