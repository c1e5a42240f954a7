//! The transmit batch: packets that wait, and frames that are being filled and completed.
//!
//! A packet goes to its peer's open frame at once when it is caused by a received frame and the batch
//! has room for everything that waits as well ([`TxBatch::may_append`]): that is the shortest way
//! from the frame that caused it to the frame that carries it. Everything else waits in the queue for
//! [`crate::Endpoint::poll_transmit`]. Appended packets overtake queued ones; queued packets follow in
//! the same batch, or in the next if the batch is full. A request that waited for credits is not
//! overtaken by other requests, which would take the credits from it again.
//!
//! Requests beyond [`TxBatch::open_append`]'s number for one batch are appended to frames of the next
//! one: the server begins with the first while the client still works.
//!
//! # Invariants
//! 1. After a batch the open frames are those of the next one, if it was begun already; every other
//!    buffer is in its place. A peer's `open_frame` is its newest frame in `open`, else [`NO_FRAME`].
//! 2. A buffer is written only while no transport references it, and is part of one open frame at
//!    most.
//! 3. Packets of one message leave in the order in which they were added: go-back-N drops packets
//!    that arrive early. Packets of other messages may overtake them.
//! 4. [`seal`] writes every frame's header, when the frame is complete.

use courser_buf::{
    Arena, HEADER_ROOM, MsgBuf, PacketAccess, PathId, TxBurst, TxFrame, TxSeg, Unshared,
};

use super::late::LateBatches;
use super::queue::{TxItem, TxQueue};
use super::staging::Staging;
use crate::config::Config;
use crate::peer::{NO_FRAME, Peer, Peers};
use crate::wire::{DEADLINE_REQUEST, FRAME_HEADER, FrameHeader, PACKET_HEADER, encode_held};

/// What frames a transport carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Framing {
    /// Largest frame, bytes.
    pub max_frame: usize,
    /// Most pieces that a frame may be gathered from. With one, packets of large messages are copied.
    pub gather: usize,
    /// Bytes that the transport wants to own behind the last byte of a frame. With any, packets of
    /// large messages are copied to a buffer that has them.
    pub tailroom: usize,
}

impl From<usize> for Framing {
    /// Frames of up to `max_frame` bytes, gathered from two pieces or more.
    fn from(max_frame: usize) -> Self {
        Framing { max_frame, gather: courser_buf::TX_GATHER, tailroom: 0 }
    }
}

/// What became of a packet that could leave without a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direct {
    /// A frame of references to the message.
    Sent,
    /// A frame of copied bytes.
    Copied,
    /// The batch is full.
    NoRoom,
}

/// A frame that is being filled. Its header is written when it is complete.
#[derive(Debug)]
struct OpenFrame {
    /// As many bytes as the frame may have.
    buf: Unshared,
    len: u32,
    peer: u32,
    /// The buffer's place in `TxBatch::buffers`.
    at: u32,
    /// The time that packets were written at, ns.
    opened_ns: u64,
}

impl OpenFrame {
    /// The first packet says how much time its call has left.
    #[inline(always)]
    fn begins_with_deadline(&self) -> bool {
        self.buf.get(FRAME_HEADER).is_some_and(|kind| *kind == DEADLINE_REQUEST)
    }

    /// Adds a packet. `false`: it does not fit, and nothing has changed.
    #[inline(always)]
    fn add(&mut self, header: [u64; 2], data: &[u8]) -> bool {
        let at = self.len as usize;
        let end = at + PACKET_HEADER + data.len();
        if let Some(out) = self.buf.get_mut(at..end)
            && let Some((low, out)) = out.split_first_chunk_mut()
            && let Some((high, body)) = out.split_first_chunk_mut()
        {
            self.len = end as u32;
            (*low, *high) = (header[0].to_le_bytes(), header[1].to_le_bytes());
            copy_short(body, data);
            return true;
        }
        false
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct TxBatch {
    queue: TxQueue,
    open: Vec<OpenFrame>,
    /// Frames that have as many requests as one batch may have: if there are any, the batch is these,
    /// and the open frames are of the next.
    full_batch: Vec<OpenFrame>,
    buffers: Staging,
    framing: Framing,
    /// Packets share frames.
    packing: bool,
    /// The time that packets are written at, ns.
    now_ns: u64,
    /// Frames of earlier batches that the transport has not taken yet. They keep their places: sorted
    /// with later ones, those of the last path would never leave while the transmit queue is full.
    unsent: usize,
    /// Frames that may still be begun before the end of this batch.
    frames_left: usize,
    /// Packets that were appended since the last batch.
    appended: u32,
    late: LateBatches,
    /// How many may be, with those that wait; 0 unless a received frame is being handled: until its
    /// batch a call can be taken back.
    append_limit: u32,
    /// The same for requests.
    request_limit: u32,
    /// Requests in `open`, and how many leave in one batch.
    requests: u32,
    batch_requests: u32,
    /// Number of this batch, or the next; wraps.
    number: u32,
    /// The last batch had no room for something, which is first in the next.
    full: bool,
    /// A request that waited for credits is in the queue.
    has_woken: bool,
    /// No attempt to make frames before this time, because there was no memory for them or the path
    /// paces them; 0: at once.
    retry_ns: u64,
    /// Peers in this batch, to know whether frames must be sorted.
    last_peer: u32,
    mixed: bool,
}

impl TxBatch {
    pub(crate) fn new(framing: Framing, cfg: &Config) -> Self {
        TxBatch {
            queue: TxQueue::default(),
            open: Vec::new(),
            full_batch: Vec::new(),
            buffers: Staging::new(framing.max_frame + framing.tailroom),
            framing,
            packing: cfg.packing,
            now_ns: 0,
            unsent: 0,
            frames_left: cfg.tx_frames,
            appended: 0,
            late: LateBatches::new(),
            append_limit: 0,
            request_limit: 0,
            requests: 0,
            batch_requests: 0,
            number: 1,
            full: false,
            has_woken: false,
            retry_ns: 0,
            last_peer: NO_FRAME,
            mixed: false,
        }
    }

    // ---- the queue ----------------------------------------------------------------------------

    #[inline(always)]
    pub(crate) fn push(&mut self, item: TxItem) {
        self.queue.push(item);
    }

    /// Queues a request that waited for credits, or of which packets are to be sent again.
    pub(crate) fn push_woken(&mut self, item: TxItem) {
        (self.has_woken, self.request_limit) = (true, 0);
        self.push(item);
    }

    /// Puts a request back for the next batch.
    pub(crate) fn put_off(&mut self, item: TxItem) {
        self.queue.push_front(item);
    }

    /// Puts back what remains of an item for which this batch had no room.
    pub(crate) fn put_rest(&mut self, rest: TxItem) {
        self.full = true;
        self.queue.push_front(rest);
    }

    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<TxItem> {
        self.queue.pop()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && !self.has_frames()
    }

    /// Whether a frame is not complete yet.
    #[inline(always)]
    pub(crate) fn has_frames(&self) -> bool {
        !(self.open.is_empty() && self.full_batch.is_empty())
    }

    /// Whether a packet waits that is in no frame yet.
    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    // ---- appending ----------------------------------------------------------------------------

    /// A received frame is being handled, or deferred calls are made for a batch, at `now_ns`: what
    /// this causes may be appended at once, until that and what waits is `packets`. After `requests`
    /// requests follows the next batch.
    #[inline(always)]
    pub(crate) fn open_append(&mut self, packets: usize, requests: usize, now_ns: u64) {
        self.append_limit = if self.full { 0 } else { packets as u32 };
        self.request_limit = if self.has_woken { 0 } else { self.append_limit };
        self.batch_requests = requests as u32;
        self.now_ns = now_ns;
    }

    /// From now on packets wait for their batch.
    #[inline(always)]
    pub(crate) fn close_append(&mut self) {
        (self.append_limit, self.request_limit) = (0, 0);
    }

    /// Whether a packet may be appended now, ahead of its batch.
    #[inline(always)]
    pub(crate) fn may_append(&self) -> bool {
        self.appended + (self.queue.len() as u32) < self.append_limit
    }

    /// Whether that packet may be a request.
    #[inline(always)]
    pub(crate) fn may_append_request(&self) -> bool {
        self.appended + (self.queue.len() as u32) < self.request_limit
    }

    /// A packet was appended ahead of its batch. Returns the number of its batch.
    #[inline(always)]
    pub(crate) fn appended(&mut self) -> u32 {
        self.appended += 1;
        self.number
    }

    /// A request was appended ahead of its batch.
    #[inline(always)]
    pub(crate) fn appended_request(&mut self, peers: &mut Peers) {
        self.appended += 1;
        self.requests += 1;
        if self.requests >= self.batch_requests {
            self.fill_batch(peers);
        }
    }

    /// Counts packets that [`crate::Endpoint::poll_transmit`] took from the queue, `requests` of them
    /// requests. Those that left in a frame of their own count too: the count is an upper bound.
    pub(crate) fn added(&mut self, packets: usize, requests: usize) {
        self.appended += packets as u32;
        self.requests += requests as u32;
    }

    /// The batch has as many requests as it may have: what is appended from now on is of the next.
    #[inline(never)]
    fn fill_batch(&mut self, peers: &mut Peers) {
        if !self.full_batch.is_empty() {
            return; // it grows until this one has left
        }
        for frame in &self.open {
            if let Some(peer) = peers.at_mut(frame.peer) {
                peer.open_frame = NO_FRAME;
            }
        }
        std::mem::swap(&mut self.open, &mut self.full_batch);
        self.requests = 0;
        self.appended = 0;
        self.number = self.number.wrapping_add(1);
    }

    /// The batch leaves at `now_ns`, or, if the clock is not read for it, before the time that
    /// [`TxBatch::advance`] is told next.
    #[inline(always)]
    pub(crate) fn leaves(&mut self, now_ns: Option<u64>) {
        let first = self.full_batch.first().or(self.open.first());
        let written_ns = first.map_or(u64::MAX, |f| f.opened_ns);
        self.late.leaves(written_ns, now_ns);
    }

    /// The time is `now_ns`.
    #[inline(always)]
    pub(crate) fn advance(&mut self, now_ns: u64) {
        self.late.advance(now_ns);
    }

    /// When a request left that was written at `written_ns` and has left.
    pub(crate) fn left_ns(&self, written_ns: u64) -> u64 {
        self.late.left_ns(written_ns)
    }

    /// The number of this batch, or the next.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Packets that were appended since the last batch, and how many of them are requests.
    pub(crate) fn ahead(&self) -> (usize, usize) {
        (self.appended as usize, self.requests as usize)
    }

    /// Adds a packet to the peer's open frame, or to a new one. `false`: there is no room before the
    /// next batch.
    #[inline(always)]
    pub(crate) fn append(
        &mut self,
        peer_no: u32,
        peer: &mut Peer,
        arena: &Arena,
        header: [u64; 2],
        data: &[u8],
    ) -> bool {
        if let Some(frame) = self.open.get_mut(peer.open_frame as usize)
            && frame.add(header, data)
        {
            return true;
        }
        self.append_to_new(peer_no, peer, arena, header, data)
    }

    /// Begins a frame with a packet.
    #[inline(never)]
    fn append_to_new(
        &mut self,
        peer_no: u32,
        peer: &mut Peer,
        arena: &Arena,
        header: [u64; 2],
        data: &[u8],
    ) -> bool {
        if self.frames_left == 0 {
            return false;
        }
        let Some((at, mut buf)) = self.buffers.take(arena) else { return false };
        let first = FRAME_HEADER + PACKET_HEADER + data.len();
        buf.truncate(if self.packing { peer.max_frame() } else { first });
        let mut frame = OpenFrame {
            buf,
            len: FRAME_HEADER as u32,
            peer: peer_no,
            at: at as u32,
            opened_ns: self.now_ns,
        };
        if !frame.add(header, data) {
            self.buffers.put_back(at, frame.buf);
            return false;
        }
        self.begin_frame(peer_no);
        peer.open_frame = self.open.len() as u32;
        self.open.push(frame);
        true
    }

    #[inline]
    fn begin_frame(&mut self, peer: u32) {
        self.frames_left -= 1;
        if self.last_peer != peer {
            self.mixed |= self.last_peer != NO_FRAME;
            self.last_peer = peer;
        }
    }

    /// A peer is gone, and with it what was written for it.
    pub(crate) fn forget_peer(&mut self, peer: u32) {
        let frames = self.open.iter_mut().chain(&mut self.full_batch);
        for frame in frames.filter(|f| f.peer == peer) {
            frame.peer = NO_FRAME;
        }
    }

    // ---- completing ---------------------------------------------------------------------------

    /// The peer of the only frame, if that holds one packet which was appended ahead of the batch and
    /// nothing else waits. Such a frame need not say the time, unless the packet does.
    #[inline(always)]
    pub(crate) fn lone_packet(&self) -> Option<u32> {
        match &self.open[..] {
            [f] if self.appended == 1 && !f.begins_with_deadline() => {
                self.is_alone().then_some(f.peer)
            }
            _ => None,
        }
    }

    /// Whether nothing is to be sent but the open frames.
    #[inline(always)]
    fn is_alone(&self) -> bool {
        self.queue.is_empty() && self.full_batch.is_empty()
    }

    /// Begins a batch at `now_ns`, of `frames` at most, those already open and `unsent` ones of earlier
    /// batches among them.
    #[inline(always)]
    pub(crate) fn begin(&mut self, frames: usize, unsent: usize, now_ns: u64) {
        let begun = unsent + self.open.len() + self.full_batch.len();
        self.frames_left = frames.saturating_sub(begun);
        self.unsent = unsent;
        self.now_ns = now_ns;
        (self.buffers.starved, self.full, self.retry_ns) = (false, false, 0);
    }

    /// Completes the open frames and moves them to `out`; frames of one path are contiguous then, behind
    /// those of earlier batches.
    /// `time_ns` is `None` for a frame that says no time. `copy` sends a frame that leaves alone, if the
    /// transport does so by a copy, and returns whether it did. The batch has ended; the next may have
    /// `frames`, less those in `out`. Returns how many frames were completed.
    #[inline(always)]
    pub(crate) fn complete(
        &mut self,
        peers: &mut Peers,
        time_ns: Option<u64>,
        frames: usize,
        out: &mut TxBurst,
        copy: impl FnOnce(PathId, &[u8]) -> bool,
    ) -> u64 {
        let mut completed = 0;
        let is_full = !self.full_batch.is_empty();
        let batch = if is_full { &mut self.full_batch } else { &mut self.open };
        let mut copy = (batch.len() == 1 && out.is_empty()).then_some(copy);
        if batch.len() > 1 {
            batch.reverse(); // the first one is taken first
        }
        while let Some(mut f) = batch.pop() {
            let (at, len) = (f.at as usize, f.len as usize);
            let Some(peer) = peers.at_mut(f.peer) else {
                self.buffers.put_back(at, f.buf);
                continue;
            };
            if !is_full {
                peer.open_frame = NO_FRAME;
            }
            completed += 1;
            if let Some(header) = f.buf.first_chunk_mut() {
                seal(peer, time_ns, f.opened_ns, header);
            }
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
            self.fill_batch(peers);
        }
        self.end(frames.saturating_sub(out.len()));
        completed
    }

    #[inline(always)]
    fn end(&mut self, frames: usize) {
        self.close_append();
        self.frames_left = frames;
        self.has_woken &= !self.queue.is_empty();
        self.buffers.rest();
        if self.open.is_empty() && self.full_batch.is_empty() {
            (self.appended, self.requests) = (0, 0);
            self.number = self.number.wrapping_add(1);
            (self.last_peer, self.mixed) = (NO_FRAME, false);
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

    /// Whether the last batch stopped because the arena is exhausted and the transport holds every
    /// buffer.
    #[inline]
    pub(crate) fn starved(&self) -> bool {
        self.buffers.starved
    }

    pub(crate) fn max_frame(&self) -> usize {
        self.framing.max_frame
    }

    /// No attempt to make frames before `at_ns`.
    #[cold]
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

/// Makes frames of one path contiguous, without those before number `from`.
#[cold]
fn sort_by_path(frames: &mut TxBurst, from: usize) {
    if let Some(new) = frames.make_contiguous().get_mut(from..) {
        new.sort_by_key(|f| f.path);
    }
}

/// Completes a frame whose packets were written at `opened_ns` or later: writes its header. The only
/// place where a frame gets its number, its time and the counts of congestion marks.
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

/// Adds a frame of one piece. Written in place: a frame that is made first and then moved waits for
/// its parts, which are stored in other sizes than they are loaded in again.
#[inline(always)]
fn push_frame(out: &mut TxBurst, path: PathId, seg: TxSeg) {
    out.push_back(TxFrame::EMPTY);
    if let Some(frame) = out.back_mut() {
        (frame.path, frame.len) = (path, seg.len() as u32);
        frame.segs.push(seg);
    }
}

/// A packet of a message that leaves in a frame of its own.
pub(super) struct Piece<'a> {
    pub(super) header: [u8; PACKET_HEADER],
    pub(super) msg: &'a mut MsgBuf,
    pub(super) index: u32,
    pub(super) range: std::ops::Range<usize>,
}

impl TxBatch {
    /// Makes a frame of a packet without a copy. The headers go where the buffer keeps them. When that
    /// place is still referenced by the transport (a retransmission) or is missing, or the transport
    /// does not gather, the packet leaves from a copy instead, in a frame of its own and at once
    /// (invariant 3).
    pub(super) fn direct(
        &mut self,
        peer_no: u32,
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
            }
            let buf = self.buffers.put_back(at, buf);
            out.push_back(TxFrame::one(peer.path_id, buf.first_seg(0, len)));
            self.begin_frame(peer_no);
            return Direct::Copied;
        };
        write_headers(&mut room[HEADER_ROOM - header_len..], peer, self.now_ns, header);
        let frame = if index == 0 {
            TxFrame::one(peer.path_id, msg.first_seg(header_len, range.len()))
        } else {
            let segs = msg.packet_segs(index, header_len, range);
            let Some((headers, data)) = segs else { return Direct::NoRoom };
            TxFrame::two(peer.path_id, headers, data)
        };
        self.begin_frame(peer_no);
        out.push_back(frame);
        Direct::Sent
    }
}

/// A packet header and, before it, the header of a frame that is complete now.
#[inline]
fn write_headers(out: &mut [u8], peer: &mut Peer, now_ns: u64, header: [u8; PACKET_HEADER]) {
    if let Some((frame_header, packet_header)) = out.split_first_chunk_mut() {
        seal(peer, Some(now_ns), now_ns, frame_header);
        packet_header.copy_from_slice(&header);
    }
}

/// Copies `data` to `out`, which is as long. From 16 to 32 bytes by two moves that may overlap: half
/// the instructions of a call of `memcpy`, which has to find out as much.
#[inline(always)]
pub(crate) fn copy_short(out: &mut [u8], data: &[u8]) {
    if let (Some(first), Some(last)) = (data.first_chunk::<16>(), data.last_chunk::<16>())
        && data.len() <= 32
        && out.len() == data.len()
        && let Some(to) = out.first_chunk_mut::<16>()
    {
        *to = *first;
        if let Some(to) = out.last_chunk_mut::<16>() {
            *to = *last;
        }
    } else {
        out.copy_from_slice(data);
    }
}

#[cfg(test)]
mod tests;
