//! Virtual time, and the event queue.

use std::time::Duration;

/// Bits of a time that one level of the wheel resolves.
const BITS: u32 = 10;
const SLOTS: usize = 1 << BITS;
const LEVELS: usize = u64::BITS.div_ceil(BITS) as usize;
const NONE: u32 = u32::MAX;

/// A duration in virtual time; saturates.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Events in the order of their time; events of equal time in the order of insertion, so that a run
/// does not depend on the internal order of the queue.
///
/// A hierarchical timing wheel (Varghese and Lauck, SOSP '87). Insertion and removal have constant
/// cost; a heap's cost and cache misses grow with the number of events, of which a network of a
/// hundred hosts has tens of thousands. An event is on the level of the highest digit (of `BITS`
/// bits) in which its time differs from that of the last event taken, and moves to lower levels
/// when that digit is reached. All events of one time are in one slot in the order of insertion: a
/// later one can be on a lower level only after that digit was reached, and then the earlier one
/// has moved too.
///
/// Memory: 115 KB plus the largest number of events that were queued at once.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    levels: Vec<Level>,
    entries: Vec<Entry<E>>,
    /// First free entry.
    free: u32,
    len: usize,
    /// The time of the last event taken.
    now_ns: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at_ns: u64,
    next: u32,
    event: Option<E>,
}

/// A list of entries, first in, first out.
#[derive(Clone, Copy, Debug)]
struct Slot {
    first: u32,
    last: u32,
    /// The earliest time in it.
    min_ns: u64,
}

const EMPTY: Slot = Slot { first: NONE, last: NONE, min_ns: u64::MAX };

#[derive(Clone, Debug)]
struct Level {
    slots: Vec<Slot>,
    /// A bit for each slot, set if it is in use.
    used: [u64; SLOTS / 64],
    /// A bit for each word of `used`, set if the word is not 0.
    words: u64,
}

impl Level {
    /// The first slot in use.
    fn first(&self) -> Option<usize> {
        if self.words == 0 {
            return None;
        }
        let word = self.words.trailing_zeros() as usize;
        Some(word * 64 + self.used[word].trailing_zeros() as usize)
    }

    fn set_used(&mut self, slot: usize) {
        self.used[slot / 64] |= 1 << (slot % 64);
        self.words |= 1 << (slot / 64);
    }

    fn set_unused(&mut self, slot: usize) {
        self.used[slot / 64] &= !(1 << (slot % 64));
        if self.used[slot / 64] == 0 {
            self.words &= !(1 << (slot / 64));
        }
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        let level = Level { slots: vec![EMPTY; SLOTS], used: [0; SLOTS / 64], words: 0 };
        let levels = vec![level; LEVELS];
        EventQueue { levels, entries: Vec::new(), free: NONE, len: 0, now_ns: 0 }
    }
}

impl<E> EventQueue<E> {
    /// Adds an event. An event before the last one taken is due at the time of that one.
    pub(crate) fn push(&mut self, at_ns: u64, event: E) {
        let at_ns = at_ns.max(self.now_ns);
        let entry = Entry { at_ns, next: NONE, event: Some(event) };
        let index = match self.free {
            NONE => {
                assert!(self.entries.len() < NONE as usize, "more than 2^32 events are queued");
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
            free => {
                let place = &mut self.entries[free as usize];
                self.free = place.next;
                *place = entry;
                free
            }
        };
        self.len += 1;
        self.append(index, at_ns);
    }

    /// Appends an entry to the slot of its time.
    fn append(&mut self, index: u32, at_ns: u64) {
        // A time equal to the current one belongs to the lowest level.
        let differ = (at_ns ^ self.now_ns) | 1;
        let level = (differ.ilog2() / BITS) as usize;
        let number = (at_ns >> (level as u32 * BITS)) as usize % SLOTS;
        let slot = &mut self.levels[level].slots[number];
        slot.min_ns = slot.min_ns.min(at_ns);
        let last = std::mem::replace(&mut slot.last, index);
        if last == NONE {
            slot.first = index;
            self.levels[level].set_used(number);
        } else {
            self.entries[last as usize].next = index;
        }
    }

    /// Level and number of the slot of the next event. Lower levels come first: their events agree
    /// with the current time in more digits.
    fn next_slot(&self) -> Option<(usize, usize)> {
        let mut levels = self.levels.iter().enumerate();
        levels.find_map(|(n, level)| level.first().map(|slot| (n, slot)))
    }

    /// Time of the next event.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.next_slot().map(|(level, slot)| self.levels[level].slots[slot].min_ns)
    }

    /// The next event with its time, unless that is after `end_ns`.
    pub(crate) fn pop_until(&mut self, end_ns: u64) -> Option<(u64, E)> {
        loop {
            let (level, number) = self.next_slot()?;
            let min_ns = self.levels[level].slots[number].min_ns;
            if min_ns > end_ns {
                return None;
            }
            self.now_ns = min_ns;
            if level == 0 {
                return self.pop_first(number);
            }
            // Its digit is reached: move the whole slot to lower levels, the first event to the
            // lowest.
            self.levels[level].set_unused(number);
            let slot = std::mem::replace(&mut self.levels[level].slots[number], EMPTY);
            let mut index = slot.first;
            while index != NONE {
                let entry = &mut self.entries[index as usize];
                let (at_ns, next) = (entry.at_ns, std::mem::replace(&mut entry.next, NONE));
                self.append(index, at_ns);
                index = next;
            }
        }
    }

    /// Takes the first event of a slot of the lowest level, where all have the same time.
    fn pop_first(&mut self, number: usize) -> Option<(u64, E)> {
        let slot = &mut self.levels[0].slots[number];
        let index = slot.first;
        let entry = &mut self.entries[index as usize];
        let event = entry.event.take()?;
        let at_ns = entry.at_ns;
        slot.first = std::mem::replace(&mut entry.next, self.free);
        self.free = index;
        self.len -= 1;
        if slot.first == NONE {
            *slot = EMPTY;
            self.levels[0].set_unused(number);
        }
        Some((at_ns, event))
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;
    use crate::Rng;

    #[test]
    fn time_first_then_order_of_arrival() {
        let mut q = EventQueue::default();
        for (at, e) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b'), (9, 'e')] {
            q.push(at, e);
        }
        let order: String = std::iter::from_fn(|| q.pop_until(5)).map(|(_, e)| e).collect();
        assert_eq!((order.as_str(), q.next_ns(), q.len()), ("abcd", Some(9), 1));
    }

    /// Gaps of all sizes, many of them equal: all levels are used, and equal times are inserted
    /// from near and from far.
    fn gap(rng: &mut Rng) -> u64 {
        let bits = rng.below(50);
        match rng.below(8) {
            0 => 0,
            1 => rng.below(4),
            2 => 1 << bits,
            3 => rng.below(1 << bits),
            _ => 512 * rng.below(8),
        }
    }

    #[test]
    fn the_order_is_that_of_a_heap_by_time_and_number() {
        for seed in 0..200 {
            let rng = &mut Rng::new(seed);
            let (mut q, mut model) = (EventQueue::default(), BinaryHeap::new());
            let (mut now_ns, mut taken) = (0, 0);
            for number in 0..2_000 {
                let at_ns = now_ns + gap(rng);
                q.push(at_ns, number);
                model.push(Reverse((at_ns, number)));
                let end_ns = now_ns + gap(rng);
                for _ in 0..rng.below(if seed % 2 == 0 { 3 } else { 2 }) {
                    assert_eq!(q.next_ns(), model.peek().map(|Reverse(e)| e.0), "seed {seed}");
                    let expected = model.peek().map(|Reverse(e)| *e).filter(|e| e.0 <= end_ns);
                    assert_eq!(q.pop_until(end_ns), expected, "seed {seed}");
                    if let Some((at_ns, _)) = expected {
                        model.pop();
                        now_ns = at_ns;
                        taken += 1;
                    }
                }
                assert_eq!(q.len(), model.len());
            }
            assert!(taken > 300, "seed {seed}: {taken}");
            let rest = std::iter::from_fn(|| q.pop_until(u64::MAX));
            assert!(rest.eq(model.into_sorted_vec().into_iter().rev().map(|Reverse(e)| e)));
            assert_eq!((q.len(), q.next_ns()), (0, None));
        }
    }

    #[test]
    fn the_last_time_and_past_times_are_accepted() {
        let mut q = EventQueue::default();
        q.push(u64::MAX, 'z');
        q.push(1 << 63, 'y');
        q.push(1000, 'b');
        assert_eq!(q.pop_until(999), None);
        assert_eq!(q.pop_until(1000), Some((1000, 'b')));
        q.push(5, 'c');
        assert_eq!(q.pop_until(2000), Some((1000, 'c')), "late, but not lost");
        assert_eq!(q.pop_until(u64::MAX), Some((1 << 63, 'y')));
        assert_eq!(q.pop_until(u64::MAX), Some((u64::MAX, 'z')));
    }

    #[test]
    fn entries_are_reused() {
        let mut q = EventQueue::default();
        for i in 0..10_000 {
            q.push(3 * i, i);
            q.push(3 * i + 5_000, i);
            q.pop_until(3 * i);
            q.pop_until(3 * i);
        }
        assert!(q.entries.len() <= q.len() + 2 && q.len() < 4_000, "{}", q.entries.len());
    }
}
