//! The server's half of a slot: the arriving request, and the response while a duplicate may
//! request it again.
//!
//! # States
//! ```text
//! Idle -> Receiving -> Executing -> Responded -> (next request) Receiving ...
//!                                        |-> Acked: the client has it, the response is freed (ADR 6)
//! ```
//! The server never rolls back (E40): a packet of the client or the handler's reply causes every
//! transition, except that a request of which nothing arrives any more is dropped (ADR 36).

use courser_buf::{MsgBuf, prefetch};

use super::{GapNack, Gaps};
use crate::budget::NO_MESSAGE;
use crate::error::Status;
use crate::mutant::{self, Mutant};
use crate::wire::PartPacket;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ServerPhase {
    /// No request yet.
    Idle,
    /// The client has acknowledged the response; nothing is stored.
    Acked,
    /// The response is stored.
    Responded,
    /// Some packets of a request have arrived.
    Receiving,
    /// The request is with its handler.
    Executing,
}

/// The stored response.
#[derive(Debug)]
pub(crate) enum Stored {
    /// None.
    None,
    /// In the slot itself.
    Short,
    /// In the slot's preallocated buffer (E32).
    Preallocated,
    /// In a buffer of its own.
    Owned(MsgBuf),
    /// An error status instead of a response.
    Error(u16),
}

/// Position of a packet's request number relative to the slot's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Position {
    /// An earlier request.
    Past,
    /// The current one.
    Current,
    /// The one that comes next.
    Next,
    /// Further ahead: no honest client sends it.
    Future,
}

/// Longest response that is stored in its slot, bytes.
pub(crate) const SHORT: usize = 40;

/// In order of use: a small RPC with a short answer accesses only the first two cache lines, one with a
/// preallocated answer all three.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ServerSlot {
    pub(crate) req_num: u32,
    pub(crate) phase: ServerPhase,
    /// A credit return is in the transmit queue.
    pub(crate) cr_queued: bool,
    /// The queued credit return is marked "in progress".
    pub(crate) cr_in_progress: bool,
    /// Packets `send_next..send_end` of the response are in the transmit queue.
    resp_queued: bool,
    /// The response is one packet in the slot or in the preallocated buffer, and was not sent yet.
    single_due: bool,
    /// The client has cancelled the request.
    pub(crate) cancelled: bool,
    pub(crate) req_type: u16,
    pub(crate) req_size: u32,
    pub(crate) req_packets: u32,
    pub(crate) req_rcvd: u32,
    send_next: u32,
    send_end: u32,
    resp_size: u32,
    resp_packets: u32,
    /// Bytes of `req` and `resp` that count against the client's quota.
    pub(crate) charged: u32,
    /// Number of the batch to which the response was appended.
    appended_batch: u32,
    /// Only while packets are missing, or several parts of the response are requested.
    pub(crate) gaps: Option<Box<Gaps>>,
    /// The client's deadline, in this endpoint's time, never too late; `u64::MAX`: none (ADR 15).
    pub(crate) expires_ns: u64,
    short: [u8; SHORT],
    pub(crate) resp: Stored,
    /// MTU-sized buffer for short responses, kept across requests (E32).
    pub(crate) prealloc: Option<MsgBuf>,
    pub(crate) req: Option<MsgBuf>,
    /// Number of the request in this endpoint's budget, or [`NO_MESSAGE`].
    message: u32,
    /// The NACK of a request that is received in order only.
    gap_nack: GapNack,
    /// The host's transmit queue has an entry of this slot (`tx::host`).
    at_host: bool,
}

const _: () = {
    use std::mem::offset_of;
    assert!(
        offset_of!(ServerSlot, expires_ns) + 8 <= 64,
        "all of a small RPC that is not its answer is in one line"
    );
    assert!(
        offset_of!(ServerSlot, resp) + size_of::<Stored>() <= 128,
        "a small RPC with a short answer is two lines"
    );
    assert!(size_of::<ServerSlot>() == 192, "three lines");
};

impl ServerSlot {
    /// Returns whether a request is arriving, or with its handler.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, ServerPhase::Receiving | ServerPhase::Executing)
    }

    /// A slot whose first request will be `req_num + step`.
    pub(crate) fn new(req_num: u32) -> Self {
        ServerSlot {
            req_num,
            phase: ServerPhase::Idle,
            cr_queued: false,
            cr_in_progress: false,
            resp_queued: false,
            at_host: false,
            single_due: false,
            send_next: 0,
            send_end: 0,
            req_type: 0,
            req_size: 0,
            req_packets: 0,
            req_rcvd: 0,
            resp_size: 0,
            resp_packets: 0,
            expires_ns: u64::MAX,
            cancelled: false,
            req: None,
            short: [0; SHORT],
            resp: Stored::None,
            charged: 0,
            appended_batch: 0,
            message: NO_MESSAGE,
            gap_nack: GapNack::default(),
            prealloc: None,
            gaps: None,
        }
    }

    /// Position of `req_num`; `step` is the number of slots.
    #[inline]
    pub(crate) fn position(&self, req_num: u32, step: u32) -> Position {
        let ahead = req_num.wrapping_sub(self.req_num);
        if req_num < self.req_num && mutant::is_on(Mutant::WrapForgotten) {
            Position::Past
        } else if ahead == step {
            Position::Next
        } else if ahead == 0 {
            Position::Current
        } else if ahead < 1 << 31 {
            Position::Future
        } else {
            Position::Past
        }
    }

    /// Starts the next request; frees the buffers of the previous one, and returns their bytes.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        req_num: u32,
        req_type: u16,
        size: u32,
        packets: u32,
        expires_ns: u64,
    ) -> u32 {
        self.req = None;
        self.forget_gaps();
        self.gap_nack = GapNack::default();
        let freed = std::mem::take(&mut self.charged);
        self.renew(req_num, req_type, size, packets, expires_ns);
        freed
    }

    /// [`ServerSlot::begin`] for a slot that [`ServerSlot::is_clean`].
    #[inline(always)]
    pub(crate) fn renew(
        &mut self,
        req_num: u32,
        req_type: u16,
        size: u32,
        packets: u32,
        expires_ns: u64,
    ) {
        self.req_num = req_num;
        self.phase = ServerPhase::Receiving;
        // Queue items of the previous request are ignored by their number.
        self.cr_queued = false;
        self.cr_in_progress = false;
        self.resp_queued = false;
        self.single_due = false;
        self.cancelled = false;
        self.req_type = req_type;
        self.req_size = size;
        self.req_packets = packets;
        self.req_rcvd = 0;
        self.expires_ns = expires_ns;
        self.resp = Stored::None;
    }

    fn forget_gaps(&mut self) {
        if let Some(gaps) = &mut self.gaps {
            gaps.forget();
        }
    }

    /// Returns whether the slot has no request and no buffer but its preallocated one.
    #[inline(always)]
    pub(crate) fn is_clean(&self) -> bool {
        self.phase <= ServerPhase::Responded && self.charged == 0 && self.gaps.is_none()
    }

    /// Records that all packets of the request have arrived at once.
    #[inline(always)]
    pub(crate) fn arrived_whole(&mut self) {
        self.phase = ServerPhase::Executing;
        self.req_rcvd = self.req_packets;
    }

    /// Stores a response of one packet that is in the slot or its preallocated buffer, like
    /// [`ServerSlot::respond`].
    #[inline(always)]
    pub(crate) fn respond_single(&mut self, stored: Stored, size: u32) {
        let unasked = mutant::is_on(Mutant::ResponseUnasked);
        self.phase = ServerPhase::Responded;
        self.resp = stored;
        (self.resp_size, self.resp_packets) = (size, 1);
        (self.resp_queued, self.single_due) = (true, !unasked);
        (self.send_next, self.send_end) = (0, 1 + u32::from(unasked));
    }

    /// `len` bytes of the slot's own room for a response; at most [`SHORT`].
    #[inline(always)]
    pub(crate) fn short_mut(&mut self, len: usize) -> Option<&mut [u8]> {
        self.short.get_mut(..len)
    }

    /// The response that is [`Stored::Short`].
    pub(crate) fn short_response(&self) -> &[u8] {
        self.short.get(..self.resp_size as usize).unwrap_or_default()
    }

    /// The response, or the error status, while it is stored.
    pub(crate) fn stored_answer(&self) -> Option<Result<&[u8], Status>> {
        let len = ..self.resp_size as usize;
        match (&self.resp, self.phase) {
            (Stored::Short, ServerPhase::Responded) => self.short.get(len).map(Ok),
            (Stored::Preallocated, ServerPhase::Responded) => {
                self.prealloc.as_ref()?.get(len).map(Ok)
            }
            (Stored::Owned(message), ServerPhase::Responded) => message.get(len).map(Ok),
            (Stored::Error(code), ServerPhase::Responded) => Some(Err(Status::from_code(*code))),
            _ => None,
        }
    }

    /// Prefetches the two cache lines that a small RPC with a short answer accesses.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        prefetch(self);
        prefetch(&self.short);
    }

    /// `len` bytes of the preallocated buffer, if it is large enough and the transport has released
    /// it.
    #[inline(always)]
    pub(crate) fn prealloc_mut(&mut self, len: usize) -> Option<&mut [u8]> {
        self.prealloc.as_mut()?.get_mut()?.get_mut(..len)
    }

    /// A response of one packet that is in the slot or the preallocated buffer and was not sent yet.
    #[inline(always)]
    pub(crate) fn single_response_data(&self) -> Option<&[u8]> {
        if !self.single_due {
            return None;
        }
        if matches!(self.resp, Stored::Short) {
            return self.short.get(..self.resp_size as usize);
        }
        self.prealloc.as_ref()?.get(..self.resp_size as usize)
    }

    /// [`ServerSlot::single_response_data`] was sent.
    #[inline(always)]
    pub(crate) fn sent_single(&mut self) {
        self.single_due = false;
        self.send_next = 1;
        self.resp_queued = false;
    }

    /// Keeps a response of one packet as one in a buffer of its own, which the next request frees.
    pub(crate) fn own_single(&mut self) {
        self.single_due = false;
        if let Some(m) = self.prealloc.take() {
            self.resp = Stored::Owned(m);
        }
    }

    /// The response was appended to a frame of the batch with this number.
    #[inline(always)]
    pub(crate) fn appended_for(&mut self, batch: u32) {
        self.appended_batch = batch;
    }

    /// Number of the request in this endpoint's budget, or [`NO_MESSAGE`].
    pub(crate) fn message(&self) -> u32 {
        self.message
    }

    /// Replaces the number of the request in the budget; returns the one before.
    pub(crate) fn set_message(&mut self, message: u32) -> u32 {
        std::mem::replace(&mut self.message, message)
    }

    /// A packet behind the first missing one was dropped. Returns whether a NACK is due for it: once
    /// for each gap.
    pub(crate) fn on_gap(&mut self) -> bool {
        self.gap_nack.on_gap(self.req_rcvd)
    }

    /// The missing packet that a NACK is due for.
    pub(crate) fn nack_due(&self) -> Option<u32> {
        let is_arriving = self.phase == ServerPhase::Receiving;
        (is_arriving && self.gap_nack.is_due(self.req_rcvd)).then_some(self.req_rcvd)
    }

    /// The packets of the request arrive again from its first one on. Its buffer stays.
    pub(crate) fn discard_packets(&mut self) {
        self.req_rcvd = 0;
        self.cr_in_progress = false;
        self.forget_nack();
    }

    /// The next packet behind the gap has a NACK sent again.
    pub(crate) fn forget_nack(&mut self) {
        self.gap_nack = GapNack::default();
    }

    /// This NACK was sent.
    pub(crate) fn sent_nack(&mut self) {
        self.gap_nack.sent();
    }

    /// Bytes of the stored response.
    pub(crate) fn response_size(&self) -> u32 {
        self.resp_size
    }

    /// Returns whether packets `first..end` of the response are to be sent already.
    pub(crate) fn owes_part(&self, first: u32, end: u32) -> bool {
        let is_next = first >= self.send_next && end <= self.send_end;
        let is_later = || self.gaps.as_ref().is_some_and(|gaps| gaps.owes_part(first, end));
        self.resp_queued && (is_next || is_later())
    }

    /// The slot waits for the host's transmit queue. Returns whether it has no entry there yet.
    pub(crate) fn wait_for_host(&mut self) -> bool {
        !std::mem::replace(&mut self.at_host, true)
    }

    /// The entry of the slot has left the host's queue. Returns whether the slot waits for that.
    pub(crate) fn leave_host(&mut self) -> bool {
        std::mem::take(&mut self.at_host) && self.resp_queued
    }

    /// Returns whether a response of several packets waits for the host's queue.
    pub(crate) fn waits_for_host(&self) -> bool {
        self.at_host && self.resp_queued && self.resp_packets > 1
    }

    /// Packets of the response that were not sent, if all before the next one were.
    pub(crate) fn response_left(&self) -> u32 {
        self.resp_packets.saturating_sub(self.send_next)
    }

    /// Packets of the stored response.
    pub(crate) fn response_packets(&self) -> u32 {
        self.resp_packets
    }

    /// The packet of the response to send next, if one is due.
    pub(crate) fn due_packet(&mut self) -> Option<u32> {
        self.single_due = false;
        let due = self.send_next < self.send_end.min(self.resp_packets) || self.next_part();
        due.then_some(self.send_next)
    }

    /// Records that this packet was sent.
    pub(crate) fn sent_due_packet(&mut self) {
        self.send_next += 1;
    }

    /// Records that no packet of the response is due; its item has left the transmit queue.
    pub(crate) fn sent_all_due(&mut self) {
        self.resp_queued = false;
    }

    /// Bytes of the request that there is a buffer for.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.req.as_ref().map_or(0, |req| req.len() as u32)
    }

    /// Returns whether a packet is the next in order of the current request, neither its first nor its
    /// last, and there is a buffer for its `len` bytes.
    #[inline(always)]
    pub(crate) fn is_next_part(&self, p: &PartPacket<'_>, len: usize) -> bool {
        self.req_num == p.req_num
            && self.phase == ServerPhase::Receiving
            && (self.req_size, self.req_type) == (p.msg_size, p.req_type)
            && (1..self.req_packets - 1).contains(&p.index)
            && p.index == self.req_rcvd
            && p.offset as usize + len <= self.room() as usize
            && self.gaps.as_ref().is_none_or(|gaps| gaps.is_in_order(self.req_rcvd))
    }

    /// All bytes that count against the client's quota.
    pub(crate) fn all_charged(&self) -> u32 {
        self.charged + self.prealloc.as_ref().map_or(0, |m| m.capacity() as u32)
    }

    /// The client has acknowledged the response: frees it. Returns the bytes that were charged.
    pub(crate) fn acknowledged(&mut self) -> u32 {
        let charged = self.all_charged();
        self.phase = ServerPhase::Acked;
        self.single_due = false;
        if !mutant::is_on(Mutant::StoredResponseKept) {
            self.resp = Stored::None;
        }
        self.prealloc = None;
        self.charged = 0;
        self.gaps = None;
        charged
    }

    /// The largest count of a credit return: never includes the last packet (E42).
    #[inline]
    pub(crate) fn returnable(&self) -> u32 {
        self.req_rcvd.min(self.req_packets.saturating_sub(1))
    }

    /// Stores the response; its first packet is due, and the slot is to be queued.
    #[inline]
    pub(crate) fn respond(&mut self, resp: Stored, size: u32, packets: u32) {
        self.phase = ServerPhase::Responded;
        self.resp = resp;
        self.resp_size = size;
        self.resp_packets = packets;
        self.resp_queued = true;
        self.single_due = false;
        self.forget_gaps();
        let unasked = u32::from(mutant::is_on(Mutant::ResponseUnasked));
        (self.send_next, self.send_end) = (0, 1 + unasked);
    }

    /// Makes the first packet of the response due again. `true`: the slot is to be queued. Not
    /// needed when any part of the response is due already: either that is the first packet, or the
    /// client has it. `batch` is the number of the next batch: packets appended to it are due too.
    pub(crate) fn resend_first(&mut self, batch: u32) -> bool {
        if self.resp_queued || self.appended_batch == batch {
            return false;
        }
        (self.send_next, self.send_end) = (0, 1);
        self.resp_queued = true;
        true
    }

    /// Packets `first..end` of the response are requested. `true`: the slot is to be queued. A
    /// queued part that is adjacent is kept, up to `limit` packets in total. Otherwise the newest
    /// request replaces it: an honest client has received or rolled back the other. So a slot is in
    /// the queue once, and never owes more than `limit` packets. With `selective` recovery an
    /// honest client requests separate parts and needs all of them.
    pub(crate) fn request_part(
        &mut self,
        first: u32,
        end: u32,
        limit: u32,
        selective: bool,
    ) -> bool {
        let queued = self.resp_queued;
        self.single_due = false;
        let apart = first > self.send_end || end < self.send_next;
        if queued && selective && apart {
            let due = self.send_end - self.send_next;
            self.gaps.get_or_insert_default().request_part(first, end, due, limit);
            return false;
        }
        if queued && first <= self.send_end && end >= self.send_next {
            self.send_next = self.send_next.min(first);
            self.send_end = self.send_end.max(end).min(self.send_next.saturating_add(limit));
        } else {
            (self.send_next, self.send_end) = (first, end);
        }
        self.resp_queued = true;
        !queued
    }

    /// The next requested part of the response, after the previous one was sent. `false`: none.
    #[inline]
    fn next_part(&mut self) -> bool {
        let Some(part) = self.gaps.as_mut().and_then(|gaps| gaps.next_part()) else { return false };
        (self.send_next, self.send_end) = part;
        true
    }

    /// Checks the invariants; for debug builds and simulations.
    pub(crate) fn check(&self) {
        assert!(self.req_rcvd <= self.req_packets);
        // A response of one packet may be uncounted: `Endpoint::reply_allocated`.
        let keeps =
            self.req.is_some() || (matches!(self.resp, Stored::Owned(_)) && self.resp_packets > 1);
        assert!(!keeps || self.charged > 0, "buffers are counted");
        if self.single_due {
            let due = (self.send_next, self.send_end, self.resp_packets, self.resp_queued);
            assert_eq!((due, self.phase), ((0, 1, 1, true), ServerPhase::Responded));
            let is_kept = matches!(self.resp, Stored::Preallocated) && self.prealloc.is_some();
            assert!(is_kept || matches!(self.resp, Stored::Short));
        }
        match self.phase {
            ServerPhase::Idle | ServerPhase::Acked => {
                assert!(matches!(self.resp, Stored::None) && self.req.is_none());
            }
            ServerPhase::Receiving => assert!(self.req_rcvd < self.req_packets),
            ServerPhase::Executing => assert_eq!(self.req_rcvd, self.req_packets),
            ServerPhase::Responded => assert!(!matches!(self.resp, Stored::None)),
        }
    }
}
