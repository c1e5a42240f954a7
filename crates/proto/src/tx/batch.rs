//! The transmit batch: the queue of packets, and frames that are being filled and completed.
//!
//! A packet is appended to its peer's open frame at once when it is caused by a received frame and
//! the batch also has room for everything in the queue ([`TxBatch::may_append`]): the shortest way
//! from a received frame to a sent frame. Everything else is queued for
//! [`crate::Endpoint::poll_transmit`]. Appended packets overtake queued ones; queued packets follow
//! in the same batch, or in the next if the batch is full. A request that has waited for credits is
//! not overtaken by other requests, which would take its credits.
//!
//! The number of requests per batch is limited ([`TxBatch::open_append`]); further requests are
//! appended to frames of the next batch. So the server starts with the first ones while the client
//! still works.
//!
//! # Invariants
//! 1. After a batch the open frames are those of the next one, if it has begun; every other buffer
//!    is in its place. A peer's `open_frame` numbers its newest frame; of those in `open`
//!    the first has the number `first_open`. While `kept` is set, `open` has one element, which is no
//!    frame of a batch but has the buffer for the next one, and `full_batch` is empty.
//! 2. A buffer is written only while no transport references it, and belongs to at most one open
//!    frame.
//! 3. Packets of one message leave in the order in which they were added, since go-back-N drops
//!    packets that arrive early. Packets of other messages may overtake them.
//! 4. [`seal`] writes every frame's header, when the frame is complete.

use courser_buf::{
    Arena, HEADER_ROOM, MsgBuf, PacketAccess, PathId, TxBurst, TxFrame, TxSeg, Unshared, copy_short,
};

mod gather;
mod lone;
mod postpone;

use super::host::HostQueue;
use super::late::LateBatches;
use super::queue::{TxItem, TxQueue};
use super::references::References;
use super::staging::Staging;
use crate::config::{Config, Packing};
use crate::integrity::Protection;
use crate::peer::{Peer, Peers};
use crate::wire::{FRAME_HEADER, FrameHeader, PACKET_HEADER, encode_held};

/// Properties of a transport that limit its frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Framing {
    /// Largest frame, bytes.
    pub max_frame: usize,
    /// Most pieces of a gathered frame. With one, packets of large messages are copied; with fewer
    /// than four, so are all small ones.
    pub gather: usize,
    /// Bytes that the transport needs after the last byte of a frame. If not 0, packets of large
    /// messages are copied to a buffer that has them.
    pub tailroom: usize,
}

impl From<usize> for Framing {
    /// Frames of at most `max_frame` bytes, gathered from two or more pieces.
    fn from(max_frame: usize) -> Self {
        Framing { max_frame, gather: courser_buf::TX_GATHER, tailroom: 0 }
    }
}

/// Result of sending a packet without a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direct {
    /// By references to the message.
    Sent,
    /// By copied bytes.
    Copied,
    /// The batch is full.
    NoRoom,
}

/// A frame that is being filled. Its header is written when the frame is complete.
#[derive(Debug)]
struct OpenFrame {
    /// Sized to the largest frame.
    buf: Unshared,
    len: u32,
    peer: u32,
    /// Index of the buffer in `TxBatch::buffers`.
    at: u32,
    /// Time at which its packets were written, ns.
    opened_ns: u64,
    /// Its packets that are not in `buf`, but gathered from messages.
    references: Option<Box<References>>,
}

impl OpenFrame {
    /// Adds a packet. `false`: it does not fit, and nothing has changed.
    #[inline(always)]
    fn add(&mut self, header: [u64; 2], data: &[u8]) -> bool {
        match write_packet(&mut self.buf, self.len as usize, header, data) {
            Some(end) => {
                self.len = end as u32;
                true
            }
            None => false,
        }
    }
}

/// Writes a packet to a frame at `at`. Returns its end; `None`: it does not fit.
#[inline]
fn write_packet(frame: &mut [u8], at: usize, header: [u64; 2], data: &[u8]) -> Option<usize> {
    let end = at + PACKET_HEADER + data.len();
    let (low, out) = frame.get_mut(at..end)?.split_first_chunk_mut()?;
    let (high, body) = out.split_first_chunk_mut()?;
    (*low, *high) = (header[0].to_le_bytes(), header[1].to_le_bytes());
    copy_short(body, data);
    Some(end)
}

/// The peer of a frame whose peer is gone, and of no frame.
const NO_PEER: u32 = u32::MAX;

/// Lists of references, in the boxes that frames take.
type Spare = Vec<Box<References>>;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct TxBatch {
    queue: TxQueue,
    open: Vec<OpenFrame>,
    /// Number of the first of them ([`Peer::open_frame`]).
    first_open: u64,
    /// `open` has one frame that has left by a copy, and whose buffer is used again.
    kept: bool,
    /// The batch has begun with a frame of packets that are copied, which is the only one of the
    /// batch if no other packet was appended.
    first_is_plain: bool,
    /// Frames with the maximum number of requests of a batch. If there are any, they are the
    /// current batch, and the open frames belong to the next.
    full_batch: Vec<OpenFrame>,
    buffers: Staging,
    framing: Framing,
    /// Packets share frames.
    packing: bool,
    /// Largest packet, in data bytes, that is gathered; 0: none is.
    gather_max: usize,
    /// Empty lists for frames of gathered packets.
    lists: Spare,
    /// Frames that wait for more packets while a batch leaves without them ([`hold`]).
    postponed: Vec<OpenFrame>,
    /// Time at which packets are written, ns.
    now_ns: u64,
    /// Frames of earlier batches that the transport has not taken. They stay in front: sorted with
    /// later ones, frames of the last path would never leave while the transmit queue is full.
    unsent: usize,
    /// Frames that may still be begun in this batch.
    frames_left: usize,
    /// Packets appended since the last batch.
    appended: u32,
    /// The number of them with which a batch may be a lone frame: 1, or [`u32::MAX`] where frames wait
    /// for more packets.
    lone: u32,
    late: LateBatches,
    /// Limit of `appended`, minus queued packets; 0 unless a received frame is being handled, since
    /// a call can be taken back until its batch.
    append_limit: u32,
    /// The same for requests.
    request_limit: u32,
    /// Requests in `open`, how many leave in one batch, and the number with which that is computed
    /// again.
    requests: u32,
    batch_requests: u32,
    check_requests: u32,
    /// Number of this batch, or the next; wraps.
    number: u32,
    /// The last batch had no room for an item, which is first in the next.
    full: bool,
    /// The queue contains a request that has waited for credits.
    has_granted: bool,
    /// Earliest time of the next attempt to build frames, after a lack of memory or because the
    /// path paces them; 0: at once.
    retry_ns: u64,
    /// Large messages that wait for the host's transmit queue.
    pub(crate) host: HostQueue,
    /// Peers in this batch. Frames of several are sorted.
    last_peer: u32,
    mixed: bool,
}

impl TxBatch {
    pub(crate) fn new(framing: Framing, cfg: &Config) -> Self {
        TxBatch {
            queue: TxQueue::default(),
            open: Vec::new(),
            first_open: 0,
            kept: false,
            first_is_plain: false,
            full_batch: Vec::new(),
            buffers: Staging::new(framing.max_frame + framing.tailroom),
            framing,
            packing: cfg.packing != Packing::Off,
            gather_max: framing.gather_max(cfg),
            lists: Vec::new(),
            postponed: Vec::new(),
            now_ns: 0,
            unsent: 0,
            frames_left: cfg.tx_frames,
            appended: 0,
            lone: if cfg.batch_budget_ns == 0 { 1 } else { u32::MAX },
            late: LateBatches::new(),
            append_limit: 0,
            request_limit: 0,
            requests: 0,
            batch_requests: 0,
            check_requests: 0,
            number: 1,
            full: false,
            has_granted: false,
            retry_ns: 0,
            host: HostQueue::new(cfg, framing.max_frame),
            last_peer: NO_PEER,
            mixed: false,
        }
    }

    // ---- the queue ----------------------------------------------------------------------------

    #[inline]
    pub(crate) fn push(&mut self, item: TxItem) {
        self.queue.push(item);
    }

    /// Queues a request that has waited for credits, or a retransmission.
    pub(crate) fn push_granted(&mut self, item: TxItem) {
        (self.has_granted, self.request_limit) = (true, 0);
        self.push(item);
    }

    /// Requeues a request for the next batch.
    pub(crate) fn postpone(&mut self, item: TxItem) {
        self.queue.push_front(item);
    }

    /// Requeues the rest of an item for which this batch had no room.
    pub(crate) fn requeue_rest(&mut self, rest: TxItem) {
        self.full = true;
        self.queue.push_front(rest);
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<TxItem> {
        self.queue.pop()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && !self.has_frames()
    }

    /// Returns whether there is an incomplete frame.
    #[inline]
    pub(crate) fn has_frames(&self) -> bool {
        !(self.has_none_open() && self.full_batch.is_empty())
    }

    /// Returns whether the next batch has no frame yet.
    #[inline]
    fn has_none_open(&self) -> bool {
        self.open.is_empty() || self.kept
    }

    /// Returns whether frames wait that a later batch follows.
    #[inline]
    pub(crate) fn has_full_batch(&self) -> bool {
        !self.full_batch.is_empty()
    }

    /// Returns whether a packet is queued that is in no frame yet.
    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    // ---- appending ----------------------------------------------------------------------------

    /// Opens the batch for appending at `now_ns`, while a received frame is handled or deferred
    /// calls are made. Packets may be appended until they and the queue amount to `packets`. With
    /// `requests` requests it is computed how many leave in one batch.
    #[inline]
    pub(crate) fn open_append(&mut self, packets: usize, requests: u32, now_ns: u64) {
        self.append_limit = if self.full { 0 } else { packets as u32 };
        self.request_limit = if self.has_granted { 0 } else { self.append_limit };
        self.check_requests = requests;
        self.now_ns = now_ns;
    }

    /// Closes the batch for appending: from now on packets are queued.
    #[inline]
    pub(crate) fn close_append(&mut self) {
        (self.append_limit, self.request_limit) = (0, 0);
    }

    /// Returns whether a packet may be appended now.
    #[inline]
    pub(crate) fn may_append(&self) -> bool {
        self.appended + (self.queue.len() as u32) < self.append_limit
    }

    /// Returns whether a request may be appended now.
    #[inline]
    pub(crate) fn may_append_request(&self) -> bool {
        self.appended + (self.queue.len() as u32) < self.request_limit
    }

    /// Counts an appended packet. Returns the number of its batch.
    #[inline]
    pub(crate) fn appended(&mut self) -> u32 {
        self.appended += 1;
        self.number
    }

    /// Counts an appended request. The next batch begins when there are `most`.
    #[inline(always)]
    pub(crate) fn appended_request(&mut self, most: impl FnOnce() -> usize) {
        self.appended += 1;
        self.requests += 1;
        if self.requests >= self.check_requests {
            self.limit_requests(most());
        }
    }

    fn limit_requests(&mut self, most: usize) {
        (self.batch_requests, self.check_requests) = (most as u32, most as u32);
        if self.requests >= self.batch_requests {
            self.fill_batch();
        }
    }

    /// Counts packets that [`crate::Endpoint::poll_transmit`] took from the queue, `requests` of
    /// them requests. Those in a frame of their own count too: the count is an upper bound.
    pub(crate) fn added(&mut self, packets: usize, requests: usize) {
        self.appended += packets as u32;
        self.requests += requests as u32;
    }

    /// The batch has its maximum of requests: packets appended from now on belong to the next.
    fn fill_batch(&mut self) {
        if !self.full_batch.is_empty() {
            return; // it grows until this batch has left
        }
        self.first_open += self.open.len() as u64;
        std::mem::swap(&mut self.open, &mut self.full_batch);
        self.first_is_plain = false;
        self.requests = 0;
        self.appended = 0;
        self.number = self.number.wrapping_add(1);
    }

    /// The batch leaves at `now_ns`.
    #[inline(always)]
    pub(crate) fn leaves(&mut self, now_ns: u64) {
        self.give_back_kept();
        let first = self.full_batch.first().or(self.open.first());
        let written_ns = first.map_or(u64::MAX, |f| f.opened_ns);
        self.late.leaves(written_ns, Some(now_ns));
    }

    /// Sets the time to `now_ns`.
    #[inline]
    pub(crate) fn advance(&mut self, now_ns: u64) {
        self.late.advance(now_ns);
    }

    /// When a sent request that was written at `written_ns` left.
    pub(crate) fn left_ns(&self, written_ns: u64) -> u64 {
        self.late.left_ns(written_ns)
    }

    /// Number of this batch, or of the next.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Packets appended since the last batch, and the requests among them.
    pub(crate) fn ahead(&self) -> (usize, usize) {
        (self.appended as usize, self.requests as usize)
    }

    /// Adds a packet to the peer's open frame, or to a new one. `false`: no room before the next
    /// batch.
    #[inline(always)]
    pub(crate) fn append(
        &mut self,
        peer: &mut Peer,
        arena: &Arena,
        header: [u64; 2],
        data: &[u8],
    ) -> bool {
        if let Some(frame) = self.open_frame(peer)
            && frame.add(header, data)
        {
            return true;
        }
        if self.kept {
            return self.append_to_kept(peer, header, data);
        }
        self.append_to_new(peer, arena, header, data)
    }

    /// Starts the first frame of a batch with a packet, in the buffer of the frame that left last.
    #[inline(always)]
    fn append_to_kept(&mut self, peer: &mut Peer, header: [u64; 2], data: &[u8]) -> bool {
        let Some(frame) = self.open.first_mut() else { return false };
        let number = peer.number();
        // The buffer of a frame of this peer has the right length already.
        if frame.peer != number || !self.packing {
            frame.buf.resize(room_of_frame(peer, self.packing, data));
            frame.peer = NO_PEER; // until the frame has a packet of this peer
        }
        let Some(end) = write_packet(&mut frame.buf, FRAME_HEADER, header, data) else {
            return false;
        };
        (frame.len, frame.peer, frame.opened_ns) = (end as u32, number, self.now_ns);
        (self.kept, self.first_is_plain) = (false, true);
        self.frames_left -= 1; // all are left while a buffer is kept
        self.last_peer = number;
        peer.open_frame = self.first_open;
        true
    }

    /// Starts a frame with a packet.
    fn append_to_new(
        &mut self,
        peer: &mut Peer,
        arena: &Arena,
        header: [u64; 2],
        data: &[u8],
    ) -> bool {
        if self.frames_left == 0 {
            return false;
        }
        let Some((at, mut buf)) = self.buffers.take(arena) else { return false };
        buf.resize(room_of_frame(peer, self.packing, data));
        let Some(end) = write_packet(&mut buf, FRAME_HEADER, header, data) else {
            self.buffers.put_back(at, buf);
            return false;
        };
        self.first_is_plain = !self.has_frames();
        let (len, at, opened_ns) = (end as u32, at as u32, self.now_ns);
        let references = None;
        self.open_new(peer, OpenFrame { buf, len, peer: peer.number(), at, opened_ns, references });
        true
    }

    /// The newest open frame of a peer.
    #[inline]
    fn open_frame(&mut self, peer: &Peer) -> Option<&mut OpenFrame> {
        self.open.get_mut(peer.open_frame.wrapping_sub(self.first_open) as usize)
    }

    /// Returns whether a frame is open to a peer.
    pub(crate) fn has_open(&self, peer: &Peer) -> bool {
        peer.open_frame.wrapping_sub(self.first_open) < self.open.len() as u64
    }

    /// Returns the buffer of the frame that left last to its place: other frames follow.
    #[inline(always)]
    fn give_back_kept(&mut self) {
        if std::mem::take(&mut self.kept)
            && let Some(OpenFrame { at, buf, .. }) = self.open.pop()
        {
            self.buffers.put_back(at as usize, buf);
        }
    }

    /// Adds a frame, the newest of its peer.
    #[inline]
    fn open_new(&mut self, peer: &mut Peer, frame: OpenFrame) {
        self.begin_frame(peer.number());
        peer.open_frame = self.first_open + self.open.len() as u64;
        self.open.push(frame);
    }

    #[inline]
    fn begin_frame(&mut self, peer: u32) {
        self.frames_left -= 1;
        if self.last_peer != peer {
            self.mixed |= self.last_peer != NO_PEER;
            self.last_peer = peer;
        }
    }

    /// Removes a peer and the packets that were written for it.
    pub(crate) fn remove_peer(&mut self, peer: u32) {
        let frames = self.open.iter_mut().chain(&mut self.full_batch);
        for frame in frames.filter(|f| f.peer == peer) {
            frame.peer = NO_PEER;
        }
    }

    // ---- completing ---------------------------------------------------------------------------

    /// Starts a batch at `now_ns` of at most `frames` frames, including those already open and
    /// `unsent` ones of earlier batches.
    #[inline(always)]
    pub(crate) fn begin(&mut self, frames: usize, unsent: usize, now_ns: u64) {
        self.give_back_kept();
        let begun = unsent + self.open.len() + self.full_batch.len();
        self.frames_left = frames.saturating_sub(begun);
        self.unsent = unsent;
        self.now_ns = now_ns;
        (self.buffers.starved, self.full, self.retry_ns) = (false, false, 0);
    }

    /// Completes the open frames and moves them to `out`, where frames of one path are contiguous,
    /// after those of earlier batches. `time_ns` is their send time. `copy`
    /// may send a single frame by copying it; it returns whether it did. The batch has ended; the
    /// next may have `frames`, minus those in `out`. Returns the number of completed frames.
    #[inline(always)]
    pub(crate) fn complete(
        &mut self,
        peers: &mut Peers,
        time_ns: u64,
        frames: usize,
        out: &mut TxBurst,
        copy: impl FnOnce(PathId, &[u8]) -> bool,
    ) -> u64 {
        let mut completed = 0;
        let is_full = !self.full_batch.is_empty();
        let batch = if is_full { &mut self.full_batch } else { &mut self.open };
        let mut copy = (batch.len() == 1 && out.is_empty()).then_some(copy);
        if !is_full {
            self.first_open += batch.len() as u64;
        }
        if batch.len() > 1 {
            batch.reverse(); // the first one is taken first
        }
        while let Some(mut f) = batch.pop() {
            let (at, len) = (f.at as usize, f.len as usize);
            let Some(peer) = peers.at_mut(f.peer) else {
                self.buffers.put_back(at, f.buf);
                continue;
            };
            completed += 1;
            if let Some(header) = f.buf.first_chunk_mut() {
                seal(peer, Some(time_ns), f.opened_ns, header);
            }
            if f.references.is_some() {
                f.finish(peer, (&mut self.buffers, &mut self.lists), out);
                continue;
            }
            protect(peer, &mut f.buf, len);
            let copied = copy.take().is_some_and(|copy| {
                f.buf.get(..len).is_some_and(|frame| copy(peer.path_id, frame))
            });
            let buf = self.buffers.put_back(at, f.buf);
            if !copied {
                push_frame(out, peer.path_id, buf.first_seg(0, len));
            }
        }
        if self.mixed {
            sort_by_path(out, self.unsent);
        }
        if is_full && self.requests >= self.batch_requests {
            self.fill_batch();
        }
        self.end(frames.saturating_sub(out.len()));
        completed
    }

    #[inline]
    fn end(&mut self, frames: usize) {
        self.close_append();
        self.first_is_plain = false;
        self.frames_left = frames;
        self.has_granted &= !self.queue.is_empty();
        self.buffers.rest();
        if self.open.is_empty() && self.full_batch.is_empty() {
            (self.appended, self.requests) = (0, 0);
            self.number = self.number.wrapping_add(1);
            (self.last_peer, self.mixed) = (NO_PEER, false);
        } else {
            self.frames_left = frames.saturating_sub(self.open.len() + self.full_batch.len());
        }
    }

    // ---- memory -------------------------------------------------------------------------------

    /// Takes a buffer in advance, so that an exhausted arena makes sending slow but never stops it.
    pub(crate) fn reserve(&mut self, arena: &Arena) {
        let _ = self.buffers.add(arena);
    }

    /// Data bytes of all buffers.
    pub(crate) fn buffer_bytes(&self) -> usize {
        let open = self.open.iter().chain(&self.full_batch).map(|f| f.buf.capacity());
        self.buffers.bytes() + open.sum::<usize>()
    }

    /// Returns whether the last batch stopped because the arena is exhausted and the transport
    /// holds every buffer.
    #[inline]
    pub(crate) fn starved(&self) -> bool {
        self.buffers.starved
    }

    pub(crate) fn max_frame(&self) -> usize {
        self.framing.max_frame
    }

    /// Builds no frames before `at_ns`.
    pub(crate) fn retry_at(&mut self, at_ns: u64) {
        self.retry_ns = at_ns.max(1);
    }

    /// See [`TxBatch::retry_at`]; 0: at once.
    #[inline]
    pub(crate) fn retry_ns(&self) -> u64 {
        self.retry_ns
    }

    pub(crate) fn retry_now(&mut self) {
        self.retry_ns = 0;
    }
}

/// Bytes of a new frame that begins with a packet of `data`.
#[inline]
fn room_of_frame(peer: &Peer, packing: bool, data: &[u8]) -> usize {
    if packing { peer.max_frame() } else { FRAME_HEADER + PACKET_HEADER + data.len() }
}

/// Makes frames of one path contiguous, except those before index `from`.
fn sort_by_path(frames: &mut TxBurst, from: usize) {
    if let Some(new) = frames.make_contiguous().get_mut(from..) {
        new.sort_by_key(|f| f.path);
    }
}

/// Completes a frame whose packets were written at `opened_ns` or later: writes its header. The
/// only place that sets a frame's number, its time and the ECN counts.
#[inline(always)]
fn seal(peer: &mut Peer, time_ns: Option<u64>, opened_ns: u64, out: &mut [u8; FRAME_HEADER]) {
    let (sent_at, echo_at) = time_ns.map_or((None, None), |now_ns| peer.path.times(now_ns));
    let held_ns = time_ns.map_or(0, |now_ns| now_ns.saturating_sub(opened_ns));
    let header = FrameHeader {
        data_per_packet: peer.data_per_packet,
        peer: peer.remote,
        held: encode_held(held_ns),
        cookie: peer.tx_cookie,
        number: peer.path.next_number(),
        ecn: peer.path.ecn(),
        sent_at,
        echo_at,
    };
    header.write(out);
}

/// Protects a complete frame of one piece, if the peer expects that.
#[inline]
fn protect(peer: &Peer, frame: &mut [u8], len: usize) {
    if peer.protection.covers_frames()
        && let Some(frame) = frame.get_mut(..len)
    {
        peer.protection.seal(frame, &[]);
    }
}

/// Adds a frame of one piece. Built in place: a frame that is built first and then moved causes a
/// store-forwarding stall.
#[inline(always)]
fn push_frame(out: &mut TxBurst, path: PathId, seg: TxSeg) {
    out.push_back(TxFrame::EMPTY);
    if let Some(frame) = out.back_mut() {
        frame.path = path;
        let _ = frame.push(seg); // the first piece always fits
    }
}

/// A packet of a message that leaves in a frame of its own, or in a gathered one.
pub(crate) struct Piece<'a> {
    pub(super) header: [u8; PACKET_HEADER],
    pub(super) msg: &'a mut MsgBuf,
    pub(super) index: u32,
    pub(super) range: std::ops::Range<usize>,
}

impl TxBatch {
    /// Sends a packet as a frame without a copy, with the headers in the buffer's header space. If
    /// that space is still referenced by the transport (a retransmission) or missing, or the
    /// transport does not gather, the packet is copied to a frame of its own, at once (invariant
    /// 3).
    pub(super) fn direct(
        &mut self,
        peer: &mut Peer,
        arena: &Arena,
        piece: Piece<'_>,
        out: &mut TxBurst,
    ) -> Direct {
        if self.frames_left == 0 {
            return Direct::NoRoom;
        }
        let Piece { header, msg, index, range } = piece;
        let in_place = index == 0 || self.framing.gather > 1;
        let in_place = in_place && self.framing.tailroom == 0;
        let header_len = FRAME_HEADER + PACKET_HEADER;
        let Some(room) = msg.header_mut(index).filter(|_| in_place) else {
            let Some((at, mut buf)) = self.buffers.take(arena) else { return Direct::NoRoom };
            let len = header_len + range.len();
            if let Some(bytes) = buf.get_mut(..len) {
                let (headers, data) = bytes.split_at_mut(header_len);
                write_headers(headers, peer, self.now_ns, header);
                data.copy_from_slice(&msg[range]);
                peer.protection.seal(bytes, &[]);
            }
            let buf = self.buffers.put_back(at, buf);
            out.push_back(TxFrame::one(peer.path_id, buf.first_seg(0, len)));
            self.begin_frame(peer.number());
            return Direct::Copied;
        };
        write_headers(&mut room[HEADER_ROOM - header_len..], peer, self.now_ns, header);
        if peer.protection.covers_frames() {
            seal_in_place(peer.protection, msg, index, range.clone());
        }
        let frame = if index == 0 {
            TxFrame::one(peer.path_id, msg.first_seg(header_len, range.len()))
        } else {
            let segs = msg.packet_segs(index, header_len, range);
            let Some((headers, data)) = segs else { return Direct::NoRoom };
            TxFrame::two(peer.path_id, headers, data)
        };
        self.begin_frame(peer.number());
        out.push_back(frame);
        Direct::Sent
    }
}

/// A packet header and before it the header of a complete frame.
#[inline]
fn write_headers(out: &mut [u8], peer: &mut Peer, now_ns: u64, header: [u8; PACKET_HEADER]) {
    if let Some((frame_header, packet_header)) = out.split_first_chunk_mut() {
        seal(peer, Some(now_ns), now_ns, frame_header);
        packet_header.copy_from_slice(&header);
    }
}

/// Completes a frame whose headers are in the header space of a packet.
fn seal_in_place(
    protection: Protection,
    msg: &mut MsgBuf,
    index: u32,
    range: std::ops::Range<usize>,
) {
    const AT: usize = HEADER_ROOM - FRAME_HEADER - PACKET_HEADER;
    let Some(mut room) = msg.header_mut(index).map(|room| *room) else { return };
    protection.seal(&mut room[AT..], &msg[range]);
    if let Some(out) = msg.header_mut(index) {
        *out = room;
    }
}

#[cfg(test)]
mod tests;
