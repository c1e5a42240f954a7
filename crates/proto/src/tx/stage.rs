//! Frames in the making.
//!
//! # Invariants
//! 1. Between stages no frame is open, no staging buffer is marked as open, and every peer's
//!    `open_frame` is [`NO_FRAME`].
//! 2. A staging buffer is written only while no transport references it, and is part of one open
//!    frame at most.
//! 3. Packets of one message leave in the order in which they were added: go-back-N drops what
//!    comes before its turn (E58). Packets of other messages may pass them.

use courser_buf::{Arena, HEADER_ROOM, MsgBuf, TxBurst, TxFrame};

use super::TxItem;
use super::queue::TxQueue;
use crate::session::Peer;
use crate::session::peer::NO_FRAME;
use crate::wire::{PACKET_HEADER, short_header_bytes};

/// Bytes of staging buffers that the transport may reference at once; beyond, the stage waits for
/// the transport to let go. Enough for any number of frames that a kernel or a NIC queues.
const STAGING_BYTES: usize = 8 << 20;
/// However large frames are, some fit.
const MIN_STAGING: usize = 128;
/// Buffers that are looked at to find one that the transport has let go. More than one, because
/// a transport may keep a single frame for long while later ones come back.
const STAGING_PROBES: usize = 4;

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
#[derive(Clone, Copy, Debug)]
struct OpenFrame {
    peer: u32,
    /// Its buffer's place in `TxStage::staging`.
    at: u32,
    header_len: u32,
    len: u32,
    /// Bytes that it may have.
    limit: u32,
}

/// A buffer that frames are copied together in.
#[derive(Debug)]
struct Staging {
    buf: MsgBuf,
    /// A frame is being filled in it.
    open: bool,
}

impl Staging {
    #[inline]
    fn is_free(&self) -> bool {
        !self.open && !self.buf.is_shared()
    }
}

#[derive(Debug)]
pub(crate) struct TxStage {
    queue: TxQueue,
    open: Vec<OpenFrame>,
    /// Used in turn from `next` on: what was used longest ago is the first that the transport lets
    /// go of. One that keeps no frames always finds the first ones free, which are the ones in the
    /// cache.
    staging: Vec<Staging>,
    next: usize,
    /// The transport was seen to keep a frame since the turn began.
    held: bool,
    max_frame: usize,
    /// Packets share frames.
    packing: bool,
    /// Frames that this stage may still begin.
    room: usize,
    /// There was no staging buffer to be had.
    starved: bool,
    /// Peers in this stage, to know whether frames must be sorted.
    last_peer: u32,
    mixed: bool,
}

impl TxStage {
    pub(crate) fn new(max_frame: usize, packing: bool) -> Self {
        TxStage {
            queue: TxQueue::default(),
            open: Vec::new(),
            staging: Vec::new(),
            next: 0,
            held: false,
            max_frame,
            packing,
            room: 0,
            starved: false,
            last_peer: NO_FRAME,
            mixed: false,
        }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, item: TxItem) {
        self.queue.push(item);
    }

    pub(crate) fn push_front(&mut self, item: TxItem) {
        self.queue.push_front(item);
    }

    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<TxItem> {
        self.queue.pop()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether the last stage stopped because the arena is exhausted and the transport holds every
    /// staging buffer.
    #[inline]
    pub(crate) fn starved(&self) -> bool {
        self.starved
    }

    pub(crate) fn max_frame(&self) -> usize {
        self.max_frame
    }

    pub(crate) fn begin(&mut self, room: usize) {
        self.room = room;
        self.starved = false;
        self.last_peer = NO_FRAME;
        self.mixed = false;
        if !self.held {
            self.next = 0;
        }
    }

    #[inline]
    fn take_room(&mut self, peer: u32) {
        self.room -= 1;
        self.mixed |= self.last_peer != NO_FRAME && self.last_peer != peer;
        self.last_peer = peer;
    }

    /// Takes a staging buffer in advance, so that an arena that is exhausted later makes sending
    /// slow but never stops it.
    pub(crate) fn reserve(&mut self, arena: &Arena) {
        let _ = self.fresh_staging(arena);
    }

    /// Data bytes of all staging buffers.
    pub(crate) fn staging_bytes(&self) -> usize {
        self.staging.iter().map(|s| s.buf.capacity()).sum()
    }

    /// The place of a staging buffer that nobody references, if there may be one more.
    #[inline]
    fn free_staging(&mut self, arena: &Arena) -> Option<usize> {
        let at = self.next;
        match self.staging.get(at) {
            Some(staging) if staging.is_free() => {
                self.next = at + 1;
                Some(at)
            }
            _ => self.search_staging(arena),
        }
    }

    #[cold]
    fn search_staging(&mut self, arena: &Arena) -> Option<usize> {
        for _ in 0..self.staging.len().min(STAGING_PROBES) {
            if self.next >= self.staging.len() {
                // A turn in which every buffer was found free ends the precaution.
                (self.next, self.held) = (0, false);
            }
            let at = self.next;
            self.next += 1;
            if self.staging[at].is_free() {
                return Some(at);
            }
            self.held |= !self.staging[at].open;
        }
        let limit = (STAGING_BYTES / self.max_frame.max(1)).max(MIN_STAGING);
        if self.staging.len() < limit
            && let Some(fresh) = self.fresh_staging(arena)
        {
            return Some(fresh);
        }
        // Rare enough to look at them all.
        let free = self.staging.iter().position(Staging::is_free);
        self.starved |= free.is_none();
        free
    }

    fn fresh_staging(&mut self, arena: &Arena) -> Option<usize> {
        let buf = arena.alloc(self.max_frame).ok()?;
        self.staging.push(Staging { buf, open: false });
        self.next = self.staging.len();
        Some(self.next - 1)
    }

    /// [`TxStage::append`] for a packet that finds a frame with room, as all but the first do.
    #[inline(always)]
    pub(crate) fn append_short(
        &mut self,
        peer_no: u32,
        peer: &mut Peer,
        arena: &Arena,
        header: [u64; 2],
        data: &[u8],
    ) -> bool {
        let need = PACKET_HEADER + data.len();
        if let Some(f) = self.open.get_mut(peer.open_frame as usize)
            && let (at, end) = (f.len as usize, f.len as usize + need)
            && end <= f.limit as usize
            && let Some(staging) = self.staging.get_mut(f.at as usize)
            && let Some(out) = staging.buf.get_mut().and_then(|out| out.get_mut(at..end))
            && let Some((low, out)) = out.split_first_chunk_mut()
            && let Some((high, body)) = out.split_first_chunk_mut()
        {
            f.len = end as u32;
            (*low, *high) = (header[0].to_le_bytes(), header[1].to_le_bytes());
            copy_short(body, data);
            return true;
        }
        self.append(peer_no, peer, arena, short_header_bytes(header), data)
    }

    /// Adds a packet to the peer's open frame, or to a new one. `false`: no room in this stage.
    #[inline(never)]
    pub(crate) fn append(
        &mut self,
        peer_no: u32,
        peer: &mut Peer,
        arena: &Arena,
        header: [u8; PACKET_HEADER],
        data: &[u8],
    ) -> bool {
        let need = PACKET_HEADER + data.len();
        let fits = match self.open.get(peer.open_frame as usize) {
            Some(f) => f.len as usize + need <= f.limit as usize,
            None => false,
        };
        if !fits && !self.open_frame(peer_no, peer, arena, need) {
            return false;
        }
        let frame = &mut self.open[peer.open_frame as usize];
        let start = frame.len as usize;
        let Some(out) = self.staging[frame.at as usize].buf.get_mut() else { return false };
        let Some(out) = out.get_mut(start..start + need) else { return false };
        let (head, body) = out.split_at_mut(PACKET_HEADER);
        head.copy_from_slice(&header);
        body.copy_from_slice(data);
        frame.len += need as u32;
        true
    }

    /// Begins a frame whose first packet needs so many bytes.
    #[inline]
    fn open_frame(&mut self, peer_no: u32, peer: &mut Peer, arena: &Arena, need: usize) -> bool {
        if self.room == 0 {
            return false;
        }
        let Some(at) = self.free_staging(arena) else { return false };
        self.staging[at].open = true;
        self.take_room(peer_no);
        let header_len = peer.header_len() as u32;
        peer.open_frame = self.open.len() as u32;
        let most = peer.max_frame().min(self.max_frame) as u32;
        let limit = if self.packing { most } else { header_len + need as u32 };
        let (at, len) = (at as u32, header_len);
        self.open.push(OpenFrame { peer: peer_no, at, header_len, len, limit });
        true
    }

    /// Completes the open frames and moves them to `out`; frames of one path stand together then.
    #[inline]
    pub(crate) fn finish(&mut self, peers: &mut [Option<Peer>], now_ns: u64, out: &mut TxBurst) {
        for f in &self.open {
            let staging = &mut self.staging[f.at as usize];
            staging.open = false;
            if let Some(Some(peer)) = peers.get_mut(f.peer as usize) {
                peer.open_frame = NO_FRAME;
                let header = peer.next_header(now_ns, f.header_len as usize);
                if let Some(bytes) = staging.buf.get_mut() {
                    header.write(bytes);
                    let seg = staging.buf.first_seg(0, f.len as usize);
                    out.push_back(TxFrame::one(peer.path, seg));
                }
            }
        }
        self.open.clear();
        if self.mixed {
            out.make_contiguous().sort_by_key(|f| f.path);
        }
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
        let Some(at) = tx.free_staging(arena) else { return Direct::NoRoom };
        let buf = &mut tx.staging[at].buf;
        let len = header_len + range.len();
        if let Some(bytes) = buf.get_mut().and_then(|b| b.get_mut(..len)) {
            let (headers, data) = bytes.split_at_mut(header_len);
            write_headers(headers, frame_len, peer, *now_ns, header);
            data.copy_from_slice(&msg[range]);
        }
        out.push_back(TxFrame::one(peer.path, buf.first_seg(0, len)));
        tx.take_room(*peer_no);
        return Direct::Copied;
    };
    write_headers(&mut room[HEADER_ROOM - header_len..], frame_len, peer, *now_ns, header);
    let frame = if index == 0 {
        TxFrame::one(peer.path, msg.first_seg(header_len, range.len()))
    } else {
        let segs = msg.header_seg(index, header_len).zip(msg.data_seg(range));
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
    peer.next_header(now_ns, frame_len).write(frame_header);
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
