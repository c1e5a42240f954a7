//! Receiver state of a request with [`Recovery::Selective`]: a bitmap of the packets that arrived
//! out of order, from the first gap on.
//!
//! The data is already at its place in the message buffer: no reordering and no copy (M27). For a
//! message of `n` packets the bitmap takes `n / 8` bytes, from the first gap on.
//!
//! [`Recovery::Selective`]: super::Recovery::Selective

use super::papers::Hole;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Arrived {
    words: Vec<u64>,
    /// One past the newest packet that has arrived.
    high: u32,
}

impl Arrived {
    /// For a message of `packets` packets, of which only the first `count` have arrived.
    pub(crate) fn new(count: u32, packets: u32) -> Self {
        Arrived { words: vec![0; packets.div_ceil(64) as usize], high: count }
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.words.capacity() * 8
    }

    /// One past the newest packet that has arrived.
    pub(crate) fn high(&self) -> u32 {
        self.high
    }

    /// Records an arrival; `false`: a duplicate.
    pub(crate) fn insert(&mut self, index: u32) -> bool {
        let Some(word) = self.words.get_mut(index as usize / 64) else { return false };
        let bit = 1 << (index % 64);
        let new = *word & bit == 0;
        *word |= bit;
        self.high = self.high.max(index + 1);
        new
    }

    /// End of the run of packets that have arrived from `count` on.
    pub(crate) fn in_order(&self, count: u32) -> u32 {
        let mut end = count;
        while let Some(word) = self.words.get(end as usize / 64) {
            let run = (!(word >> (end % 64))).trailing_zeros().min(64 - end % 64);
            end += run;
            if run == 0 || !end.is_multiple_of(64) {
                break;
            }
        }
        end
    }

    /// The gaps above `count`, most recent first. Costs one step per 64 packets and per gap.
    pub(crate) fn holes(&self, count: u32) -> impl Iterator<Item = Hole> + '_ {
        let mut end = self.high;
        std::iter::from_fn(move || {
            let last = self.before(end, count, false)?;
            let first = self.before(last, count, true).map_or(count, |arrived| arrived + 1);
            end = first;
            Some(Hole { first, len: last + 1 - first })
        })
    }

    /// The last packet in `count..end` that has arrived, or with `arrived` false has not.
    fn before(&self, end: u32, count: u32, arrived: bool) -> Option<u32> {
        let mut end = end;
        while end > count {
            let at = (end - 1) / 64;
            let word = *self.words.get(at as usize)?;
            let word = if arrived { word } else { !word };
            let below = word & (u64::MAX >> (63 - (end - 1) % 64));
            if below != 0 {
                let found = at * 64 + 63 - below.leading_zeros();
                return (found >= count).then_some(found);
            }
            end = at * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_bitmap(packets in 1..300_u32, indices in prop::collection::vec(0..300_u32, 0..200)) {
            let (mut a, mut model) = (Arrived::new(0, packets), vec![false; packets as usize]);
            let mut count = 0;
            for index in indices.into_iter().map(|i| i % packets) {
                prop_assert_eq!(a.insert(index), !model[index as usize]);
                model[index as usize] = true;
                count = a.in_order(count);
                let in_order = model.iter().position(|&b| !b).unwrap_or(model.len()) as u32;
                prop_assert_eq!(count, in_order);
                let high = model.iter().rposition(|&b| b).map_or(0, |at| at as u32 + 1);
                prop_assert_eq!(a.high(), high);
                let mut missing: Vec<u32> = Vec::new();
                for hole in a.holes(count) {
                    missing.extend((hole.first..hole.first + hole.len).rev());
                }
                let expected = (count..high).rev().filter(|&i| !model[i as usize]);
                prop_assert_eq!(missing, expected.collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn packets_beyond_the_message_are_ignored() {
        let mut a = Arrived::new(3, 64);
        assert!(!a.insert(64) && a.insert(5));
        assert_eq!((a.in_order(3), a.in_order(5)), (3, 6));
    }
}
