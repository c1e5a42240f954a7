//! A session's slots: their full state, or, while the session is idle, only their request numbers
//! (ADR 6).

use std::ops::{Deref, DerefMut};

use courser_buf::{Run, Runs};

use crate::stats::RxDrop;

/// Dereferences to the slice of its slots, which is empty while they are asleep.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Slots<S> {
    count: u32,
    awake: Run<S>,
    /// Request number of each slot; empty while they are awake.
    asleep: Box<[u32]>,
}

/// Size of the leading fields, which locate the slots.
pub(crate) const HOT: usize = std::mem::offset_of!(Slots<u64>, awake) + courser_buf::RUN_HOT;

impl<S> Slots<S> {
    /// `count` slots, a power of two; slot `i` has last had number `start + i`. They are allocated
    /// on first use.
    pub(crate) fn new(count: u8, start: u32) -> Self {
        let count = u32::from(count);
        let asleep = (0..count).map(|i| start.wrapping_add(i)).collect();
        Slots { count, awake: Run::default(), asleep }
    }

    /// Number of slots, awake or not: the step between two numbers of one slot.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The slot of a request number, while the slots are awake.
    #[inline]
    pub(crate) fn of(&self, req_num: u32) -> Option<&S> {
        self.awake.get((req_num & self.count.wrapping_sub(1)) as usize)
    }

    /// Returns whether only numbers are kept.
    #[inline]
    pub(crate) fn are_asleep(&self) -> bool {
        self.awake.is_empty()
    }

    /// Allocates the slots in `of` and sets their numbers.
    #[cold]
    pub(crate) fn wake(&mut self, of: &mut Runs<S>, make: impl FnMut(u32) -> S) {
        if self.are_asleep() {
            self.awake = of.collect(std::mem::take(&mut self.asleep).iter().copied().map(make));
        }
    }

    /// Allocates the slots for the next request of a slot.
    /// # Errors
    /// It is not the next request: the reason for dropping the packet.
    #[cold]
    pub(crate) fn wake_for(
        &mut self,
        req_num: u32,
        of: &mut Runs<S>,
        make: impl FnMut(u32) -> S,
    ) -> Result<(), RxDrop> {
        if self.ahead(req_num) != self.count {
            return Err(self.late(req_num));
        }
        self.wake(of, make);
        Ok(())
    }

    /// The reason for dropping a packet while the slots are asleep: its request is over or too
    /// early.
    #[cold]
    pub(crate) fn late(&self, req_num: u32) -> RxDrop {
        let ahead = self.ahead(req_num);
        if ahead != 0 && ahead < 1 << 31 { RxDrop::Future } else { RxDrop::Stale }
    }

    /// Distance of a number from its sleeping slot's last one.
    fn ahead(&self, req_num: u32) -> u32 {
        let last = self.asleep.get((req_num & (self.count - 1)) as usize);
        last.map_or(0, |&last| req_num.wrapping_sub(last))
    }

    /// Keeps only the slots' numbers. The rest of their state must be unused.
    pub(crate) fn sleep(&mut self, number: impl FnMut(&S) -> u32) {
        if !self.are_asleep() {
            self.asleep = self.awake.iter().map(number).collect();
            self.awake = Run::default();
        }
    }

    /// Changes the number of slots before any was used; `start` as in [`Slots::new`].
    pub(crate) fn renumber(&mut self, count: u8, start: u32) {
        *self = Slots::new(count, start);
    }

    /// Request number of each slot; `number` returns that of an awake slot.
    pub(crate) fn numbers(&self, number: impl Fn(&S) -> u32) -> impl Iterator<Item = u32> {
        self.asleep.iter().copied().chain(self.awake.iter().map(number))
    }

    /// Bytes on the heap, without those of awake slots.
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
