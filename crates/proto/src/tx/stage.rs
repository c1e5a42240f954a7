//! Frames in the making.
//!
//! A frame is filled in two places. A short message that is caused by a received one is written
//! where it is made, by the call or the reply, as long as there is a place for all that waits in the
//! stage that it leaves with ([`TxStage::may_write`]): so it takes the shortest way from the frame
//! that caused it to the frame that carries it. Everything else waits in the queue for the next
//! stage. What is written passes what waits; that leaves in the same frames, or, where there is room
//! for fewer frames than packets, in the next stage. A request that waited for credits is passed by no
//! other: whatever is called because of the same frame would take them from it, and again with the next.
//!
//! # Invariants
//! 1. After a stage no frame is open, every staging buffer is in its place, and every peer's
//!    `open_frame` is [`NO_FRAME`], until a frame is received.
//! 2. A staging buffer is written only while no transport references it, and is part of one open
//!    frame at most.
//! 3. Packets of one message leave in the order in which they were added: go-back-N drops what
//!    comes before its turn (E58). Packets of other messages may pass them.

use courser_buf::{Arena, HEADER_ROOM, MsgBuf, PathId, TxBurst, TxFrame, TxSeg, Unshared};

use super::TxItem;
use super::queue::TxQueue;
use super::staging::Staging;
use crate::config::Config;
use crate::session::Peer;
use crate::session::peer::NO_FRAME;
use crate::wire::{PACKET_HEADER, header_words};

/// What became of a packet that could leave without a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direct {
    /// A frame of references to the message.
    Sent,
    /// A frame of copied bytes.
    Copied,
    /// The stage is full.
    NoRoom,
}

/// A frame that is being filled.
#[derive(Debug)]
struct OpenFrame {
    /// As many bytes as the frame may have.
    buf: Unshared,
    /// How many it has.
    len: u32,
    header_len: u32,
    peer: u32,
    /// Its buffer's place in `TxStage::staging`.
    at: u32,
}

impl OpenFrame {
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

/// A request that was written before its stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) session: u32,
    pub(crate) slot: u8,
    pub(crate) req_num: u32,
}

#[derive(Debug)]
pub(crate) struct TxStage {
    queue: TxQueue,
    open: Vec<OpenFrame>,
    staging: Staging,
    max_frame: usize,
    /// Packets share frames.
    packing: bool,
    /// Frames that may still be begun before the end of this stage.
    room: usize,
    /// Packets that were written since the last stage, before this one.
    written: u32,
    /// How many may be, with those that wait; 0 but for when a received frame is worked through, or a
    /// stage begins: until its stage a call can be taken back.
    writable: u32,
    /// How many of both may be requests.
    callable: u32,
    /// Number of this stage, or the next; wraps.
    number: u32,
    /// The slots of the requests among those that were written: the timeouts of their calls begin
    /// when they leave.
    requests: Vec<Written>,
    /// The last stage had no room for something, which is first in the next.
    full: bool,
    /// A request that waited for credits is in the queue. None is written that could take them again.
    woken: bool,
    /// Peers in this stage, to know whether frames must be sorted.
    last_peer: u32,
    mixed: bool,
}

impl TxStage {
    pub(crate) fn new(max_frame: usize, cfg: &Config) -> Self {
        TxStage {
            queue: TxQueue::default(),
            open: Vec::new(),
            staging: Staging::new(max_frame),
            max_frame,
            packing: cfg.packing,
            room: cfg.tx_frames,
            written: 0,
            writable: 0,
            callable: 0,
            number: 1,
            requests: Vec::new(),
            full: false,
            woken: false,
            last_peer: NO_FRAME,
            mixed: false,
        }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, item: TxItem) {
        self.queue.push(item);
    }

    /// Queues a request that waited for credits, or of which packets are to be sent again.
    pub(crate) fn push_woken(&mut self, item: TxItem) {
        (self.woken, self.callable) = (true, 0);
        self.push(item);
    }

    /// Puts a request back that has its turn in the next stage.
    pub(crate) fn put_off(&mut self, item: TxItem) {
        self.queue.push_front(item);
    }

    /// Puts back what remains of an item for which this stage had no room.
    pub(crate) fn found_no_room(&mut self, rest: TxItem) {
        self.full = true;
        self.queue.push_front(rest);
    }

    /// A received frame is being worked through, or deferred calls are made for a stage: what it causes
    /// may be written at once, until that and what waits is `most` packets, of requests `calls`.
    #[inline(always)]
    pub(crate) fn open_writing(&mut self, most: usize, calls: usize) {
        self.writable = if self.full { 0 } else { most as u32 };
        self.callable = if self.woken { 0 } else { calls as u32 };
    }

    /// What is asked for from now on waits for its stage.
    #[inline(always)]
    pub(crate) fn close_writing(&mut self) {
        self.writable = 0;
    }

    /// Whether a packet may be written now, ahead of its stage: with [`TxStage::append_short`], and
    /// then [`TxStage::wrote`].
    #[inline(always)]
    pub(crate) fn may_write(&self) -> bool {
        self.written + (self.queue.len() as u32) < self.writable
    }

    /// Whether that packet may be a request.
    #[inline(always)]
    pub(crate) fn may_write_request(&self) -> bool {
        self.may_write() && self.requests.len() + self.queue.len() < self.callable as usize
    }

    /// A packet was written; gives the number of its stage.
    #[inline(always)]
    pub(crate) fn wrote(&mut self) -> u32 {
        self.written += 1;
        self.number
    }

    /// The packet that was written last is this request.
    #[inline(always)]
    pub(crate) fn wrote_request(&mut self, request: Written) {
        self.written += 1;
        self.requests.push(request);
    }

    /// The next request that was written before the last stage.
    pub(crate) fn take_written(&mut self) -> Option<Written> {
        self.requests.pop()
    }

    /// The number of this stage, or the next.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Packets that were written before this stage, and how many of them are requests.
    pub(crate) fn written(&self) -> (usize, usize) {
        (self.written as usize, self.requests.len())
    }

    /// A peer is gone, and with it what was written for it.
    pub(crate) fn forget_peer(&mut self, peer: u32) {
        for frame in self.open.iter_mut().filter(|f| f.peer == peer) {
            frame.peer = NO_FRAME;
        }
    }

    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<TxItem> {
        self.queue.pop()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.open.is_empty()
    }

    /// Whether anything waits for a stage that is not written yet.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether the last stage stopped because the arena is exhausted and the transport holds every
    /// staging buffer.
    #[inline]
    pub(crate) fn starved(&self) -> bool {
        self.staging.starved
    }

    pub(crate) fn max_frame(&self) -> usize {
        self.max_frame
    }

    /// Begins a stage of `room` frames at most, those that were begun already among them.
    #[inline(always)]
    pub(crate) fn begin(&mut self, room: usize) {
        self.room = room.saturating_sub(self.open.len());
        (self.staging.starved, self.full) = (false, false);
    }

    #[inline]
    fn take_room(&mut self, peer: u32) {
        self.room -= 1;
        if self.last_peer != peer {
            self.mixed |= self.last_peer != NO_FRAME;
            self.last_peer = peer;
        }
    }

    /// Takes a staging buffer in advance, so that an arena that is exhausted later makes sending
    /// slow but never stops it.
    pub(crate) fn reserve(&mut self, arena: &Arena) {
        let _ = self.staging.add(arena);
    }

    /// Data bytes of all staging buffers.
    pub(crate) fn staging_bytes(&self) -> usize {
        let filled = self.open.iter().map(|f| f.buf.capacity());
        self.staging.bytes() + filled.sum::<usize>()
    }

    /// Adds a packet to the peer's open frame, or to a new one. `false`: there is no room before the
    /// next stage.
    #[inline(always)]
    pub(crate) fn append_short(
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

    /// [`TxStage::append_short`] with any header.
    #[inline(never)]
    pub(crate) fn append(
        &mut self,
        peer_no: u32,
        peer: &mut Peer,
        arena: &Arena,
        header: [u8; PACKET_HEADER],
        data: &[u8],
    ) -> bool {
        self.append_short(peer_no, peer, arena, header_words(header), data)
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
        if self.room == 0 {
            return false;
        }
        let Some((at, mut buf)) = self.staging.take(arena) else { return false };
        let header_len = peer.header_len();
        let first = header_len + PACKET_HEADER + data.len();
        buf.truncate(if self.packing { peer.max_frame() } else { first });
        let len = header_len as u32;
        let mut frame = OpenFrame { buf, len, header_len: len, peer: peer_no, at: at as u32 };
        if !frame.add(header, data) {
            self.staging.put_back(at, frame.buf);
            return false;
        }
        self.take_room(peer_no);
        peer.open_frame = self.open.len() as u32;
        self.open.push(frame);
        true
    }

    /// The peer for which one packet was written, if that is all there is.
    #[inline(always)]
    pub(crate) fn only_packet(&self) -> Option<u32> {
        match self.open[..] {
            [OpenFrame { peer, .. }] if self.written == 1 && self.queue.is_empty() => Some(peer),
            _ => None,
        }
    }

    /// Completes the open frames and moves them to `out`; frames of one path stand together then.
    /// The stage has ended; the next may have so many frames, less those in `out`.
    #[inline(always)]
    pub(crate) fn finish(
        &mut self,
        peers: &mut [Option<Peer>],
        now_ns: u64,
        room: usize,
        out: &mut TxBurst,
    ) {
        if self.open.len() > 1 {
            self.open.reverse(); // the first one is taken first
        }
        while let Some(mut f) = self.open.pop() {
            let at = f.at as usize;
            let Some(Some(peer)) = peers.get_mut(f.peer as usize) else {
                self.staging.put_back(at, f.buf);
                continue;
            };
            peer.open_frame = NO_FRAME;
            let len = f.header_len as usize;
            peer.write_header(now_ns, len, &mut f.buf);
            let buf = self.staging.put_back(at, f.buf);
            push_frame(out, peer.path, buf.first_seg(0, f.len as usize));
        }
        if self.mixed {
            out.make_contiguous().sort_by_key(|f| f.path);
        }
        self.rest(room.saturating_sub(out.len()));
    }

    /// The same for the only packet ([`TxStage::only_packet`]), whose frame says no time, and is moved to
    /// `out` if `copy` does not take it.
    #[inline(always)]
    pub(crate) fn finish_lone(
        &mut self,
        peers: &mut [Option<Peer>],
        room: usize,
        out: &mut TxBurst,
        copy: impl FnOnce(PathId, &[u8]) -> bool,
    ) {
        self.begin(room);
        if let Some(mut f) = self.open.pop() {
            let (at, len) = (f.at as usize, f.len as usize);
            if let Some(Some(peer)) = peers.get_mut(f.peer as usize) {
                peer.open_frame = NO_FRAME;
                peer.write_untimed_header(f.header_len as usize, &mut f.buf);
                let copied = f.buf.get(..len).is_some_and(|frame| copy(peer.path, frame));
                let buf = self.staging.put_back(at, f.buf);
                if !copied {
                    push_frame(out, peer.path, buf.first_seg(0, len));
                }
            } else {
                self.staging.put_back(at, f.buf);
            }
        }
        self.rest(room.saturating_sub(out.len()));
    }

    #[inline(always)]
    fn rest(&mut self, room: usize) {
        self.close_writing();
        self.room = room;
        self.woken &= !self.queue.is_empty();
        self.written = 0;
        self.number = self.number.wrapping_add(1);
        (self.last_peer, self.mixed) = (NO_FRAME, false);
        self.staging.rest();
    }
}

/// Adds a frame of one piece. Made in its place: one that is made before and then moved there waits
/// for its parts, which are stored in other sizes than they are loaded in again.
#[inline(always)]
fn push_frame(out: &mut TxBurst, path: PathId, seg: TxSeg) {
    out.push_back(TxFrame::EMPTY);
    if let Some(frame) = out.back_mut() {
        (frame.path, frame.len) = (path, seg.len() as u32);
        frame.segs.push(seg);
    }
}

/// Makes a frame of packet `index` of `msg`, `range` of its data, without a copy. The headers go
/// where the buffer keeps them (E20, E21). When that place is still referenced by the transport (a
/// retransmission, E25) or is missing, the packet leaves from a copy instead, in a frame of its
/// own and at once (invariant 3).
pub(super) fn direct(
    lane: &mut super::Lane<'_>,
    header: [u8; PACKET_HEADER],
    msg: &mut MsgBuf,
    index: u32,
    range: std::ops::Range<usize>,
) -> Direct {
    let super::Lane { tx, peer, arena, out, now_ns, peer_no, .. } = lane;
    if tx.room == 0 {
        return Direct::NoRoom;
    }
    let frame_len = peer.header_len();
    let header_len = frame_len + PACKET_HEADER;
    let Some(room) = msg.header_mut(index) else {
        let Some((at, mut buf)) = tx.staging.take(arena) else { return Direct::NoRoom };
        let len = header_len + range.len();
        if let Some(bytes) = buf.get_mut(..len) {
            let (headers, data) = bytes.split_at_mut(header_len);
            write_headers(headers, frame_len, peer, *now_ns, header);
            data.copy_from_slice(&msg[range]);
        }
        let buf = tx.staging.put_back(at, buf);
        out.push_back(TxFrame::one(peer.path, buf.first_seg(0, len)));
        tx.take_room(*peer_no);
        return Direct::Copied;
    };
    write_headers(&mut room[HEADER_ROOM - header_len..], frame_len, peer, *now_ns, header);
    let frame = if index == 0 {
        TxFrame::one(peer.path, msg.first_seg(header_len, range.len()))
    } else {
        let segs = msg.packet_segs(index, header_len, range);
        let Some((headers, data)) = segs else { return Direct::NoRoom };
        TxFrame::two(peer.path, headers, data)
    };
    tx.take_room(*peer_no);
    out.push_back(frame);
    Direct::Sent
}

/// A frame header of `frame_len` bytes and a packet header, which together fill `out`.
#[inline]
fn write_headers(
    out: &mut [u8],
    frame_len: usize,
    peer: &mut Peer,
    now_ns: u64,
    header: [u8; PACKET_HEADER],
) {
    let (frame_header, packet_header) = out.split_at_mut(frame_len);
    peer.write_header(now_ns, frame_len, frame_header);
    packet_header.copy_from_slice(&header);
}

/// Copies `data` to `out`, which is as long. From 16 to 32 bytes by two moves that may
/// overlap: half the instructions of a call of `memcpy`, which has to find out as much.
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
