//! Packing by reference: packets that share a frame without being copied `[SG §IV]` (S4, ADR 39).
//!
//! A frame is gathered from its staging buffer, with the frame header and the packets that are
//! copied, and from the message buffers of the other packets, whose headers are directly before
//! their data (or at the end of the buffer, for packets other than the first). The pieces are
//! references from the moment a packet is added, so a message that ends or is freed meanwhile stays
//! as it was until the transport has released the frame. A packet whose header is still referenced
//! by an earlier frame, a retransmission, is copied.

use courser_buf::{Arena, HEADER_ROOM, MsgBuf, PacketAccess, TxBurst, TxFrame, TxSeg};

use super::{Direct, Framing, OpenFrame, Piece, Spare, Staging, TxBatch};
use crate::config::{Config, Packing};
use crate::integrity::Protection;
use crate::peer::Peer;
use crate::tx::references::References;
use crate::wire::{FRAME_HEADER, PACKET_HEADER, header_words};

/// Lists that are kept for later frames.
const KEPT: usize = 64;

impl Framing {
    /// Largest packet, in data bytes, that is added to a frame by reference; 0: none is. A frame needs
    /// a piece for its header, and one or two for each packet.
    pub(super) fn gather_max(&self, cfg: &Config) -> usize {
        let able = self.gather >= 4 && self.tailroom == 0;
        if cfg.packing == Packing::Gather && able { cfg.gather_to } else { 0 }
    }
}

impl OpenFrame {
    /// Returns whether a packet of `len` data bytes in `pieces` pieces can be added by reference.
    fn takes(&self, len: usize, pieces: usize, most: usize) -> bool {
        let now = self.references.as_ref();
        let now = now.map_or(pieces + 2, |r| r.pieces_with(pieces, self.len));
        self.len as usize + PACKET_HEADER + len <= self.buf.len() && now <= most
    }

    /// Adds a packet, whose header is written.
    fn refer(&mut self, segs: (Option<TxSeg>, TxSeg), list: impl FnOnce() -> Box<References>) {
        let references = self.references.get_or_insert_with(list);
        let before = references.bytes();
        for seg in segs.0.into_iter().chain([segs.1]) {
            references.add(self.len, seg);
        }
        // The buffer keeps the bytes that are copied.
        self.buf.truncate(self.buf.len() - (references.bytes() - before) as usize);
    }
}

impl TxBatch {
    /// Returns whether packets share frames by reference.
    pub(crate) fn is_gathering(&self) -> bool {
        self.gather_max > 0
    }

    /// Returns whether a packet of `len` data bytes, too large to be copied, shares a frame by
    /// reference. Two such packets have to fit: alone, a packet leaves in one piece with the
    /// frame's header.
    #[inline]
    pub(crate) fn gathers(&self, peer: &Peer, len: usize) -> bool {
        len <= self.gather_max && FRAME_HEADER + 2 * (PACKET_HEADER + len) <= peer.max_frame()
    }

    /// Adds a packet to the peer's open frame, or to a new one, by reference.
    pub(crate) fn gather(&mut self, peer: &mut Peer, arena: &Arena, piece: Piece<'_>) -> Direct {
        let Piece { header, msg, index, range } = piece;
        if msg.header_mut(index).is_none() {
            let data = msg.get(range).unwrap_or(&[]);
            let copied = self.append(peer, arena, header_words(header), data);
            return if copied { Direct::Copied } else { Direct::NoRoom };
        }
        let (len, pieces, most) = (range.len(), 1 + usize::from(index > 0), self.framing.gather);
        let has_room = self.open_frame(peer);
        if !has_room.is_some_and(|frame| frame.takes(len, pieces, most))
            && !self.begin_to_gather(peer, arena)
        {
            return Direct::NoRoom;
        }
        let at = peer.open_frame.wrapping_sub(self.first_open) as usize;
        let Some(frame) = self.open.get_mut(at) else { return Direct::NoRoom };
        let Some(room) = msg.header_mut(index) else { return Direct::NoRoom };
        room[HEADER_ROOM - PACKET_HEADER..].copy_from_slice(&header);
        let segs = if index == 0 {
            (None, msg.first_seg(PACKET_HEADER, len))
        } else {
            let Some((head, data)) = msg.packet_segs(index, PACKET_HEADER, range) else {
                return Direct::NoRoom;
            };
            (Some(head), data)
        };
        frame.refer(segs, || self.lists.pop().unwrap_or_default());
        self.appended += 1; // it is no frame of a single small packet
        Direct::Sent
    }

    /// Starts a frame without a packet.
    fn begin_to_gather(&mut self, peer: &mut Peer, arena: &Arena) -> bool {
        self.give_back_kept();
        if self.frames_left == 0 {
            return false;
        }
        let Some((at, mut buf)) = self.buffers.take(arena) else { return false };
        buf.truncate(peer.max_frame());
        let (len, at, opened_ns) = (FRAME_HEADER as u32, at as u32, self.now_ns);
        let references = None;
        self.open_new(peer, OpenFrame { buf, len, peer: peer.number(), at, opened_ns, references });
        true
    }

    /// Copies the references of incomplete frames, so that no message waits for them: the owner of
    /// one is waiting. Rare, since frames are complete before their answers arrive.
    pub(crate) fn copy_references(&mut self) {
        for frame in self.open.iter_mut().chain(&mut self.full_batch) {
            let Some(references) = frame.references.take() else { continue };
            let mut whole = Vec::new();
            let mut from = 0;
            for (at, seg) in references.pieces() {
                whole.extend_from_slice(&frame.buf[from..*at as usize]);
                whole.extend_from_slice(seg);
                from = *at as usize;
            }
            whole.extend_from_slice(&frame.buf[from..frame.len as usize]);
            frame.buf.lengthen(frame.buf.len() + references.bytes() as usize);
            if let Some(out) = frame.buf.get_mut(..whole.len()) {
                out.copy_from_slice(&whole);
                frame.len = whole.len() as u32;
            }
        }
    }
}

impl OpenFrame {
    /// Completes a frame with references, whose header is written: its pieces, in order.
    pub(super) fn finish(
        self,
        peer: &Peer,
        (buffers, lists): (&mut Staging, &mut Spare),
        out: &mut TxBurst,
    ) {
        let OpenFrame { mut buf, len, at, references, .. } = self;
        let Some(mut references) = references else { return };
        if peer.protection.covers_frames() {
            seal(peer.protection, &mut buf[..len as usize], references.pieces());
        }
        let buf = buffers.put_back(at as usize, buf);
        let mut gathered = TxFrame::EMPTY;
        gathered.path = peer.path_id;
        gathered.reserve(references.pieces().len() + references.runs_of(len));
        let mut from = 0;
        for (at, seg) in references.take() {
            add_run(&mut gathered, buf, from, at);
            let _ = gathered.push(seg); // `takes` has counted the pieces
            from = at;
        }
        add_run(&mut gathered, buf, from, len);
        out.push_back(gathered);
        if lists.len() < KEPT {
            lists.push(references);
        }
    }
}

/// Adds bytes of the staging buffer.
fn add_run(frame: &mut TxFrame, buf: &mut MsgBuf, from: u32, to: u32) {
    let seg = match from {
        _ if from == to => return,
        0 => Some(buf.first_seg(0, to as usize)),
        _ => buf.data_seg(from as usize..to as usize),
    };
    let pushed = seg.map(|seg| frame.push(seg));
    debug_assert!(matches!(pushed, Some(Ok(()))), "{from}..{to}");
}

/// Completes a frame of the bytes `own` with `pieces` between them.
fn seal(protection: Protection, own: &mut [u8], pieces: &[(u32, TxSeg)]) {
    let first = pieces.first().map_or(own.len(), |(at, _)| *at as usize);
    let (head, rest) = own.split_at_mut(first.min(own.len()));
    let ends = pieces.iter().skip(1).map(|(at, _)| *at as usize).chain([first + rest.len()]);
    let mut from = first;
    let parts = pieces.iter().zip(ends).flat_map(|((_, seg), to)| {
        let run = rest.get(from - first..to - first).unwrap_or(&[]);
        from = to;
        [&seg[..], run]
    });
    protection.seal_parts(head, parts);
}
