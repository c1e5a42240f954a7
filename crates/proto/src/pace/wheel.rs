//! Carousel's timing wheel (SIGCOMM '17) `[eRPC section 5.2.1]` (E49, E70): peers whose packets wait
//! for their departure time.
//!
//! A wheel of [`SLOTS`] slots of [`SLOT_NS`], a horizon of 2.1 ms. An entry beyond the horizon is put
//! at its end; when it expires its peer's pacer is checked again. Adding an entry and taking the next one
//! cost the same with any number of peers: the slots are lists, and a bitmap with a summary finds
//! the next slot that is not empty. Nothing is removed early: the owner checks its state on expiry.
//!
//! Memory: 16 KiB and 4 bytes for each peer, from the first paced packet on.

/// Time of a slot, ns: eRPC's.
const SLOT_NS: u64 = 512;
/// Slots of the wheel.
const SLOTS: usize = 4096;
/// Words of the bitmap; as many as a word has bits, so that one word summarises them.
const WORDS: usize = SLOTS / 64;
const _: () = assert!(WORDS == 64);
/// End of a list.
const NONE: u32 = u32::MAX;
/// Not in the wheel.
const OUT: u32 = u32::MAX - 1;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Wheel {
    /// Per slot its newest entry; empty until the first use.
    heads: Vec<u32>,
    /// Per peer the next entry of its slot's list, [`NONE`] or [`OUT`].
    next: Vec<u32>,
    occupied: [u64; WORDS],
    summary: u64,
    /// The slot, counted from time 0, up to which all entries have expired.
    done: u64,
    /// When the next slot is due, ns; `u64::MAX`: none.
    next_ns: u64,
    len: usize,
}

impl Default for Wheel {
    fn default() -> Self {
        Wheel {
            heads: Vec::new(),
            next: Vec::new(),
            occupied: [0; WORDS],
            summary: 0,
            done: 0,
            next_ns: u64::MAX,
            len: 0,
        }
    }
}

impl Wheel {
    /// When the next entry is due, ns; `u64::MAX`: there is none.
    #[inline]
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Number of entries: at most one for each peer.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.len
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        (self.heads.capacity() + self.next.capacity()) * size_of::<u32>()
    }

    /// Adds a peer that is due at `at_ns`, unless it has an entry already.
    pub(crate) fn add(&mut self, peer: u32, at_ns: u64, now_ns: u64) {
        if self.heads.is_empty() {
            self.heads = vec![NONE; SLOTS];
        }
        // Up to the next entry there is nothing left to expire.
        let next = (self.next_ns / SLOT_NS).saturating_sub(1);
        self.done = (now_ns / SLOT_NS).min(next).max(self.done);
        let index = peer as usize;
        if index >= self.next.len() {
            self.next.resize(index + 1, OUT);
        }
        if self.next[index] != OUT {
            return;
        }
        // Rounded up, so that the packet is not early.
        let slot = at_ns.div_ceil(SLOT_NS).clamp(self.done + 1, self.done + SLOTS as u64 - 1);
        let at = (slot % SLOTS as u64) as usize;
        self.next[index] = std::mem::replace(&mut self.heads[at], peer);
        self.occupied[at / 64] |= 1 << (at % 64);
        self.summary |= 1 << (at / 64);
        self.len += 1;
        self.next_ns = self.next_ns.min(slot * SLOT_NS);
    }

    /// Removes an entry that is due and returns its peer.
    pub(crate) fn pop(&mut self, now_ns: u64) -> Option<u32> {
        if self.len == 0 || now_ns < self.next_ns {
            return None;
        }
        let slot = self.next_ns / SLOT_NS;
        let at = (slot % SLOTS as u64) as usize;
        let peer = self.heads[at];
        self.heads[at] = std::mem::replace(&mut self.next[peer as usize], OUT);
        self.len -= 1;
        if self.heads[at] == NONE {
            self.occupied[at / 64] &= !(1 << (at % 64));
            if self.occupied[at / 64] == 0 {
                self.summary &= !(1 << (at / 64));
            }
            self.done = slot;
            self.find_next();
        }
        Some(peer)
    }

    /// Finds the first occupied slot after `done`.
    fn find_next(&mut self) {
        let from = ((self.done + 1) % SLOTS as u64) as usize;
        self.next_ns = match self.first_from(from) {
            None => u64::MAX,
            Some(at) => {
                let ahead = (at + SLOTS - from) % SLOTS;
                (self.done + 1 + ahead as u64) * SLOT_NS
            }
        };
    }

    /// The first occupied slot at or after index `from`, around the wheel.
    fn first_from(&self, from: usize) -> Option<usize> {
        let word = from / 64;
        let here = self.occupied[word] & (u64::MAX << (from % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        if self.summary == 0 {
            return None;
        }
        // The words after this one, then those before it and the rest of this one.
        let turned = self.summary.rotate_right(word as u32 + 1);
        let word = (word + 1 + turned.trailing_zeros() as usize) % WORDS;
        Some(word * 64 + self.occupied[word].trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_wheel_takes_no_memory() {
        let wheel = Wheel::default();
        assert_eq!((wheel.heap_bytes(), wheel.next_ns()), (0, u64::MAX));
    }

    #[test]
    fn an_entry_beyond_the_horizon_expires_at_its_end() {
        let mut wheel = Wheel::default();
        wheel.add(3, 1_000_000_000, 0);
        let end_ns = (SLOTS as u64 - 1) * SLOT_NS;
        assert_eq!((wheel.next_ns(), wheel.pop(end_ns - 1)), (end_ns, None));
        assert_eq!(wheel.pop(end_ns), Some(3));
        assert_eq!((wheel.pop(u64::MAX), wheel.len()), (None, 0));
    }

    proptest! {
        /// Entries expire in order, not early, and within a slot of their time.
        #[test]
        fn it_is_a_queue_by_time(steps in prop::collection::vec((0..40_u32, 0..3_000_000_u64), 1..300)) {
            let (mut wheel, mut model) = (Wheel::default(), BTreeMap::new());
            let mut now_ns = 0_u64;
            for (peer, delay_ns) in steps {
                let at_ns = now_ns + delay_ns.min((SLOTS as u64 - 2) * SLOT_NS);
                wheel.add(peer, at_ns, now_ns);
                model.entry(peer).or_insert(at_ns);
                now_ns += delay_ns / 16;
                while let Some(peer) = wheel.pop(now_ns) {
                    let due_ns = model.remove(&peer).unwrap();
                    prop_assert!(due_ns <= now_ns, "early");
                    let earliest = model.values().min().copied().unwrap_or(u64::MAX);
                    prop_assert!(due_ns <= earliest.saturating_add(2 * SLOT_NS), "out of order");
                }
                prop_assert!(model.values().all(|&due| due + 2 * SLOT_NS > now_ns), "late");
                prop_assert_eq!(wheel.len(), model.len());
            }
        }
    }
}
