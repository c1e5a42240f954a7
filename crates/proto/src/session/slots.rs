//! A session's slots: all of their state, or, while the session is idle, their numbers (F6).

use std::ops::{Deref, DerefMut};

use courser_buf::{Run, Runs};

use crate::stats::Drop;

/// Reads as the slice of its slots, which is empty while they are asleep.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Slots<S> {
    count: u32,
    awake: Run<S>,
    /// Each slot's request number; empty while they are awake.
    asleep: Box<[u32]>,
}

/// Bytes at the front that say where the slots are.
pub(crate) const HOT: usize = std::mem::offset_of!(Slots<u64>, awake) + courser_buf::RUN_HOT;

impl<S> Slots<S> {
    /// `count` slots, a power of two, of which slot `i` has had `start + i` last. They come awake
    /// when they are first needed.
    pub(crate) fn new(count: u8, start: u32) -> Self {
        let count = u32::from(count);
        let asleep = (0..count).map(|i| start.wrapping_add(i)).collect();
        Slots { count, awake: Run::default(), asleep }
    }

    /// How many there are, awake or not: the step between two numbers of one slot.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The slot that a request number belongs to, while they are awake.
    #[inline]
    pub(crate) fn of(&self, req_num: u32) -> Option<&S> {
        self.awake.get((req_num & self.count.wrapping_sub(1)) as usize)
    }

    /// Whether only numbers are kept.
    #[inline]
    pub(crate) fn are_asleep(&self) -> bool {
        self.awake.is_empty()
    }

    /// Makes the slots from their numbers, in a place `of` all that are awake.
    #[cold]
    pub(crate) fn wake(&mut self, of: &mut Runs<S>, make: impl FnMut(u32) -> S) {
        if self.are_asleep() {
            self.awake = of.collect(std::mem::take(&mut self.asleep).iter().copied().map(make));
        }
    }

    /// Wakes the slots for a request that is the next of its slot.
    ///
    /// # Errors
    /// It is not: why the packet is dropped.
    #[cold]
    pub(crate) fn wake_for(
        &mut self,
        req_num: u32,
        of: &mut Runs<S>,
        make: impl FnMut(u32) -> S,
    ) -> Result<(), Drop> {
        if self.ahead(req_num) != self.count {
            return Err(self.late(req_num));
        }
        self.wake(of, make);
        Ok(())
    }

    /// Why a packet is dropped for which no slot is awake: its request is over or has not begun.
    #[cold]
    pub(crate) fn late(&self, req_num: u32) -> Drop {
        let ahead = self.ahead(req_num);
        if ahead != 0 && ahead < 1 << 31 { Drop::Future } else { Drop::Stale }
    }

    /// How far a number is ahead of its sleeping slot's last one.
    fn ahead(&self, req_num: u32) -> u32 {
        let last = self.asleep.get((req_num & (self.count - 1)) as usize);
        last.map_or(0, |&last| req_num.wrapping_sub(last))
    }

    /// Keeps the slots' numbers only. Nothing else of them may matter.
    pub(crate) fn sleep(&mut self, number: impl FnMut(&S) -> u32) {
        if !self.are_asleep() {
            self.asleep = self.awake.iter().map(number).collect();
            self.awake = Run::default();
        }
    }

    /// Changes their number before any of them was used; `start` as in [`Slots::new`].
    pub(crate) fn renumber(&mut self, count: u8, start: u32) {
        *self = Slots::new(count, start);
    }

    /// Each slot's request number, of which `number` tells that of a slot that is awake.
    pub(crate) fn numbers(&self, number: impl Fn(&S) -> u32) -> impl Iterator<Item = u32> {
        self.asleep.iter().copied().chain(self.awake.iter().map(number))
    }

    /// Bytes on the heap, but for those of slots that are awake.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.asleep.len() * size_of::<u32>()
    }
}

impl<S> Deref for Slots<S> {
    type Target = [S];
    #[inline]
    fn deref(&self) -> &[S] {
        &self.awake
    }
}

impl<S> DerefMut for Slots<S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [S] {
        &mut self.awake
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_sleep() {
        let mut s: Slots<u32> = Slots::new(4, u32::MAX - 1);
        assert!(s.are_asleep() && s.is_empty());
        let mut all = Runs::new();
        s.wake(&mut all, |n| n);
        assert_eq!(s[..], [u32::MAX - 1, u32::MAX, 0, 1]);
        s[2] = 8;
        s.sleep(|n| *n);
        assert_eq!((s.len(), s.count(), s.heap_bytes()), (0, 4, 16));
        s.wake(&mut all, |n| n);
        assert_eq!(s[..], [u32::MAX - 1, u32::MAX, 8, 1]);
    }
}
