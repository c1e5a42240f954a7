//! Linearization: copies frames of several pieces into one before the kernel copies them.
//!
//! The kernel copies each piece of a system call by itself, without prefetching the next. A packet
//! of a large message has two: its headers, and data that is no longer cached. This copy prefetches
//! later frames, and the kernel then reads one piece from the first-level cache. Two copies take
//! less time than one: `docs/results/2026-11-23-copy-prefetch.md`.
//!
//! Frames of more pieces are packets that share a frame by reference: copying them here would be
//! packing by copy at a higher price (ADR 39).

use courser_buf::{TxFrame, TxSeg};

/// Frames of at least this size stay in pieces: the kernel copies long pieces efficiently.
const LARGE: usize = 16 << 10;

/// Buffer size: the usual batch. Frames that do not fit stay in pieces.
const ROOM: usize = 256 << 10;

/// The linearized frames of one system call, one after the other.
#[derive(Default)]
pub(super) struct Linearizer {
    /// Allocated on first use with [`ROOM`] bytes; never grows, so its content does not move.
    bytes: Vec<u8>,
}

impl Linearizer {
    /// Removes the frames of the last call.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Copies the two pieces of a frame together and returns their place; `None` when they stay in
    /// pieces. `later` is a later frame of the burst, to prefetch.
    #[inline]
    pub(super) fn linearize(
        &mut self,
        frame: &TxFrame,
        later: Option<&TxFrame>,
    ) -> Option<libc::iovec> {
        let len = frame.len() as usize;
        if frame.segs().len() != 2 || len >= LARGE {
            return None;
        }
        self.copy(frame.segs(), later)
    }

    fn copy(&mut self, segs: &[TxSeg], later: Option<&TxFrame>) -> Option<libc::iovec> {
        let (start, len) = (self.bytes.len(), segs.iter().map(TxSeg::len).sum::<usize>());
        if self.bytes.capacity() == 0 {
            self.bytes.reserve_exact(ROOM);
        }
        if start + len > ROOM {
            return None;
        }
        if let Some(later) = later {
            later.prefetch_data();
        }
        segs.iter().for_each(|seg| self.bytes.extend_from_slice(seg));
        let place = self.bytes.as_ptr().wrapping_add(start);
        Some(libc::iovec { iov_base: place.cast_mut().cast(), iov_len: len })
    }
}

#[cfg(test)]
mod tests {
    use courser_buf::{Arena, PacketAccess, PathId};

    use super::*;

    /// A frame whose data is `seed`, `seed + 1` and so on, cut in two at `cut`.
    fn frame(len: usize, cut: usize, seed: u8) -> TxFrame {
        let mut m = Arena::heap().alloc(len).unwrap();
        m.iter_mut().zip(0u8..=u8::MAX).for_each(|(b, n)| *b = n.wrapping_add(seed));
        TxFrame::two(PathId(0), m.data_seg(0..cut).unwrap(), m.data_seg(cut..len).unwrap())
    }

    fn whole(frame: &TxFrame) -> Vec<u8> {
        frame.segs().iter().flat_map(|seg| seg.iter().copied()).collect()
    }

    #[test]
    fn linearized_frames_are_adjacent() {
        let mut linearizer = Linearizer::default();
        for _call in 0..3 {
            linearizer.clear();
            let frames = [frame(100, 40, 1), frame(77, 1, 2), frame(LARGE - 1, 500, 3)];
            let places: Vec<_> =
                frames.iter().map(|f| linearizer.linearize(f, Some(f)).unwrap()).collect();
            for (place, next) in places.iter().zip(&places[1..]) {
                assert_eq!(place.iov_base.wrapping_byte_add(place.iov_len), next.iov_base);
            }
            assert!(places.iter().zip(&frames).all(|(p, f)| p.iov_len == f.len() as usize));
            assert_eq!(linearizer.bytes, frames.iter().flat_map(whole).collect::<Vec<_>>());
        }
    }

    #[test]
    fn frames_of_one_piece_long_frames_and_excess_frames_stay() {
        let mut linearizer = Linearizer::default();
        let one = Arena::heap().alloc(100).unwrap();
        let one = TxFrame::one(PathId(0), one.data_seg(0..100).unwrap());
        assert!(linearizer.linearize(&one, None).is_none());
        assert!(linearizer.linearize(&frame(LARGE, 24, 0), None).is_none());
        assert_eq!(linearizer.bytes.capacity(), 0, "no memory until it is needed");
        let frame = frame(10_000, 24, 0);
        let fit = (0..1_000).take_while(|_| linearizer.linearize(&frame, None).is_some()).count();
        assert_eq!(fit, ROOM / 10_000);
        assert_eq!(linearizer.bytes.capacity(), ROOM, "it does not grow");
        linearizer.clear();
        assert!(linearizer.linearize(&frame, None).is_some());
    }
}
