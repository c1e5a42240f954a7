//! The holes of a negative acknowledgement: 4 bytes each, most recent first `[MELO §3.2.4]` (M12).
//!
//! ```text
//! byte 0..2   first missing packet, minus the number of packets received in order
//! byte 2..4   number of missing packets, at least 1
//! ```

use super::Malformed;
pub use crate::loss::Hole;

/// Most holes in a negative acknowledgement: 256 bytes, the smallest data size of a packet.
pub const MAX_HOLES: usize = 64;

/// Bytes of a hole.
const HOLE: usize = 4;

/// Buffer for the holes of one packet.
pub(crate) type HolesRoom = [u8; MAX_HOLES * HOLE];
/// An empty buffer.
pub(crate) const NO_HOLES: HolesRoom = [0; MAX_HOLES * HOLE];

/// Holes farther than this beyond the packets received in order cannot be encoded.
pub const HOLES_REACH: u32 = u16::MAX as u32;

/// The holes of a packet: in descending order, disjoint, each between the packets received in order
/// and the newest packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Holes<'f> {
    bytes: &'f [u8],
    count: u32,
}

impl<'f> Holes<'f> {
    /// Takes `holes` holes from `bytes`. The message has `count` packets received in order, and
    /// `high` is one past its newest packet. Checks everything that [`Holes`] promises.
    pub(super) fn parse(
        bytes: &'f [u8],
        holes: u16,
        count: u32,
        high: u32,
    ) -> Result<(Holes<'f>, &'f [u8]), Malformed> {
        let holes = usize::from(holes);
        if holes > MAX_HOLES {
            return Err(Malformed::Range);
        }
        let (bytes, rest) = bytes.split_at_checked(holes * HOLE).ok_or(Malformed::Length)?;
        let all = Holes { bytes, count };
        // The newest packet has arrived, and so has at least one packet between two holes.
        let mut end = high;
        for hole in all.iter() {
            if hole.len == 0 || hole.first + hole.len >= end {
                return Err(Malformed::Range);
            }
            end = hole.first;
        }
        if high <= count || end < count {
            return Err(Malformed::Range);
        }
        Ok((all, rest))
    }

    /// Writes holes, most recent first. Holes beyond the buffer's end or beyond [`HOLES_REACH`] are
    /// omitted.
    pub(crate) fn write(
        count: u32,
        holes: impl Iterator<Item = Hole>,
        out: &'f mut HolesRoom,
    ) -> Holes<'f> {
        let mut len = 0;
        for (hole, out) in holes.zip(out.as_chunks_mut::<HOLE>().0) {
            let (Ok(start), Ok(missing)) =
                (u16::try_from(hole.first - count), u16::try_from(hole.len))
            else {
                break;
            };
            let ([s0, s1], [l0, l1]) = (start.to_le_bytes(), missing.to_le_bytes());
            *out = [s0, s1, l0, l1];
            len += HOLE;
        }
        Holes { bytes: out.get(..len).unwrap_or_default(), count }
    }

    /// Number of holes.
    pub fn len(&self) -> usize {
        self.bytes.len() / HOLE
    }

    /// Returns whether there are no holes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The holes, most recent first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Hole> + use<'f> {
        let count = self.count;
        self.bytes.as_chunks::<HOLE>().0.iter().map(move |&[s0, s1, l0, l1]| Hole {
            first: count + u32::from(u16::from_le_bytes([s0, s1])),
            len: u16::from_le_bytes([l0, l1]).into(),
        })
    }

    pub(super) fn as_bytes(&self) -> &'f [u8] {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(count: u32, holes: &[(u32, u32)]) -> Vec<u8> {
        let mut out = NO_HOLES;
        let holes = holes.iter().map(|&(first, len)| Hole { first, len });
        Holes::write(count, holes, &mut out).as_bytes().to_vec()
    }

    #[test]
    fn holes_are_read_back() {
        let holes = [(90, 5), (40, 1), (10, 3)];
        let bytes = bytes_of(10, &holes);
        let (read, rest) = Holes::parse(&bytes, 3, 10, 100).unwrap();
        let read: Vec<_> = read.iter().map(|h| (h.first, h.len)).collect();
        assert_eq!((&read[..], rest), (&holes[..], &[][..]));
    }

    #[test]
    fn invalid_holes_are_rejected() {
        let refused = |count, high, holes: &[(u32, u32)]| {
            let bytes = bytes_of(count, holes);
            Holes::parse(&bytes, holes.len() as u16, count, high).err()
        };
        assert_eq!(refused(0, 3, &[(1, 1)]), None);
        assert_eq!(refused(3, 4, &[]), None);
        assert_eq!(refused(3, 3, &[]), Some(Malformed::Range), "nothing is out of order");
        assert_eq!(refused(0, 3, &[(1, 2)]), Some(Malformed::Range), "the newest has arrived");
        assert_eq!(refused(0, 9, &[(1, 0)]), Some(Malformed::Range), "no hole");
        assert_eq!(refused(0, 9, &[(1, 1), (3, 1)]), Some(Malformed::Range), "ascending");
        assert_eq!(refused(0, 9, &[(3, 1), (2, 1)]), Some(Malformed::Range), "one hole");
        assert_eq!(Holes::parse(&[0; 400], 65, 0, 9).err(), Some(Malformed::Range));
        assert_eq!(Holes::parse(&[0; 3], 1, 0, 9).err(), Some(Malformed::Length));
    }

    #[test]
    fn holes_beyond_the_buffer_or_the_reach_are_omitted() {
        let many: Vec<_> = (0..100).rev().map(|n| (2 * n, 1)).collect();
        assert_eq!(bytes_of(0, &many).len(), MAX_HOLES * HOLE);
        assert_eq!(bytes_of(0, &[(65_536, 1)]).len(), 0);
    }
}
