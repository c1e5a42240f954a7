//! Many slices of equal length, close to each other in memory.
//!
//! Each session of an endpoint has a slice of slots. The program's allocator spreads 20,000 of them
//! over small pages, so a call on a random session misses the TLB as well as the cache. This
//! allocator cuts them from blocks, one size per block, on huge pages when there are many. The
//! distance of runs is an odd number of cache lines, which spreads their frequently used first
//! elements over all sets of a cache.
//!
//! # Invariants
//! 1. A place of a block belongs to one [`Run`], or its number is in the block's free list.
//! 2. A block lives as long as one of its runs. A block without runs lives until [`Runs::trim`] or
//!    the drop of its [`Runs`].

use std::fmt;
use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, slice_from_raw_parts_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Heap, HugePages, MemorySource, Region};

/// Alignment of runs: a cache line.
const LINE: usize = 64;
/// Bytes of the first block; each is twice as long as the one before, up to [`LAST`].
const FIRST: usize = 16 << 10;
/// A huge page.
const LAST: usize = 2 << 20;

/// The blocks that runs are cut from. There is no memory before the first run. The first block has
/// 16 KiB; each later one is twice as long, up to 2 MiB, on huge pages if the system has some.
/// [`Runs::trim`] unmaps unused blocks.
pub struct Runs<T> {
    blocks: Vec<Arc<Block>>,
    of: PhantomData<T>,
}

/// A region, divided into places of equal size.
struct Block {
    region: Region,
    /// Elements per run.
    len: usize,
    /// Bytes between the starts of two places.
    stride: usize,
    places: u32,
    /// A lock, so that an endpoint with its runs can change threads. It is rarely taken: runs are
    /// made and dropped with the slots of a session.
    unused: Mutex<Unused>,
}

/// The places of a block that no run has.
#[derive(Default)]
struct Unused {
    /// Places below this one are in use or in `free`.
    fresh: u32,
    free: Vec<u32>,
}

impl Block {
    fn new<T>(bytes: usize, len: usize) -> Option<Block> {
        let stride = Runs::<T>::stride(len)?;
        let bytes = bytes.max(stride);
        let region = Heap { huge: HugePages::Auto }.map(bytes).ok()?;
        let places = u32::try_from(region.len() / stride).ok()?;
        Some(Block { region, len, stride, places, unused: Mutex::default() })
    }

    fn take(&self) -> Option<u32> {
        let mut unused = self.unused();
        if let Some(place) = unused.free.pop() {
            return Some(place);
        }
        let place = unused.fresh;
        (place < self.places).then(|| {
            unused.fresh += 1;
            place
        })
    }

    fn unused(&self) -> MutexGuard<'_, Unused> {
        // Only a failed allocation panics under this lock, and it leaves the lists intact.
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at<T>(&self, place: u32) -> NonNull<T> {
        assert!(place < self.places);
        // SAFETY: the region has `places` times `stride` bytes, by `new`. Test: `runs_are_apart`.
        unsafe { self.region.as_ptr().add(place as usize * self.stride).cast() }
    }

    fn is_unused(&self) -> bool {
        let unused = self.unused();
        unused.free.len() == unused.fresh as usize
    }
}

impl<T> Runs<T> {
    /// No blocks and no memory.
    pub const fn new() -> Self {
        Runs { blocks: Vec::new(), of: PhantomData }
    }

    /// Bytes that a run of `len` elements takes: whole cache lines, an odd number of them unless
    /// the elements have a larger alignment. `None`: too long.
    pub const fn stride(len: usize) -> Option<usize> {
        let Some(run) = size_of::<T>().checked_mul(len) else { return None };
        let align = if align_of::<T>() > LINE { align_of::<T>() } else { LINE };
        match run.checked_next_multiple_of(align) {
            Some(even) if align == LINE && even.is_multiple_of(2 * LINE) => even.checked_add(LINE),
            stride => stride,
        }
    }

    /// Collects `items` into a run. Uses the allocator if the system cannot map memory.
    pub fn collect(&mut self, items: impl ExactSizeIterator<Item = T>) -> Run<T> {
        let most = items.len();
        let mut run = self.room(most);
        for item in items.take(most) {
            // SAFETY: the run has room for `most` elements, of which `len` are initialised.
            // Test: `runs_are_apart`, `a_panic_drops_the_collected_elements`.
            unsafe { run.first.add(run.len).write(item) };
            run.len += 1;
        }
        run
    }

    /// An empty run with room for `most` elements.
    fn room(&mut self, most: usize) -> Run<T> {
        assert!(align_of::<T>() <= 4096);
        if most == 0 || size_of::<T>() == 0 {
            return Run::default();
        }
        let Some((block, place)) = self.place(most) else {
            let mut room = std::mem::ManuallyDrop::new(Vec::with_capacity(most));
            let first = NonNull::new(room.as_mut_ptr()).unwrap_or(NonNull::dangling());
            return Run { first, len: 0, storage: Storage::Heap(room.capacity()) };
        };
        let (first, storage) = (block.at(place), Storage::Block(block, place));
        Run { first, len: 0, storage }
    }

    /// A place for `len` elements in the newest block with a free one. `None`: the system cannot
    /// map memory.
    fn place(&mut self, len: usize) -> Option<(Arc<Block>, u32)> {
        let from = |block: &Arc<Block>| block.take().map(|place| (block.clone(), place));
        let alike = self.blocks.iter().filter(|block| block.len == len);
        if let Some(found) = alike.clone().rev().find_map(from) {
            return Some(found);
        }
        let bytes = FIRST << alike.count().min((LAST / FIRST).ilog2() as usize);
        let block = Arc::new(Block::new::<T>(bytes, len)?);
        self.blocks.push(block.clone());
        from(&block)
    }

    /// Unmaps blocks without runs. Visits every block.
    pub fn trim(&mut self) {
        self.blocks.retain(|block| !block.is_unused());
    }

    /// Returns whether there is no block.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Bytes of all blocks.
    pub fn bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.region.len()).sum()
    }
}

impl<T> Default for Runs<T> {
    fn default() -> Self {
        Runs::new()
    }
}

impl<T> fmt::Debug for Runs<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runs").field("bytes", &self.bytes()).finish()
    }
}

/// The memory of a run.
enum Storage {
    /// No memory: the run is empty.
    Empty,
    Block(Arc<Block>, u32),
    /// A vector of this capacity.
    Heap(usize),
}

/// Bytes at the front of a [`Run`] with the address of its elements and their number.
pub const RUN_HOT: usize = std::mem::offset_of!(Run<u8>, storage);

/// A slice in its own place, which its drop frees.
#[repr(C)] // see `RUN_HOT`
pub struct Run<T> {
    first: NonNull<T>,
    len: usize,
    storage: Storage,
}

// SAFETY: a run owns its elements, as a `Box` does, and only it accesses their memory (invariant 1);
// its block, which other runs share, has a lock. Test: `runs_are_dropped_on_other_threads`.
unsafe impl<T: Send> Send for Run<T> {}

impl<T> Default for Run<T> {
    fn default() -> Self {
        Run { first: NonNull::dangling(), len: 0, storage: Storage::Empty }
    }
}

impl<T> Deref for Run<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements are initialised, and only this run accesses them (invariant 1).
        // Test: `runs_are_apart`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Run<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively. Test: `runs_are_apart`.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl<T> Drop for Run<T> {
    fn drop(&mut self) {
        /// Frees the place even if an element's drop panics.
        struct FreePlace<'a, T>(&'a mut Run<T>);
        impl<T> Drop for FreePlace<'_, T> {
            fn drop(&mut self) {
                match std::mem::replace(&mut self.0.storage, Storage::Empty) {
                    Storage::Empty => {}
                    Storage::Block(block, place) => block.unused().free.push(place),
                    Storage::Heap(room) => {
                        let first = self.0.first.as_ptr();
                        // SAFETY: the memory of a vector of this capacity, whose elements are gone.
                        // Test: `without_blocks_runs_use_the_allocator`.
                        drop(unsafe { Vec::from_raw_parts(first, 0, room) });
                    }
                }
            }
        }
        let back = FreePlace(self);
        let (first, len) = (back.0.first, std::mem::take(&mut back.0.len));
        // SAFETY: `len` elements are initialised, and dropped once: `len` is 0 from now on.
        // Test: `a_panic_drops_the_collected_elements`.
        unsafe { slice_from_raw_parts_mut(first.as_ptr(), len).drop_in_place() };
    }
}

impl<T: fmt::Debug> fmt::Debug for Run<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    use super::*;

    #[test]
    fn runs_are_apart() {
        let mut runs = Runs::<[u64; 3]>::new();
        assert_eq!((runs.bytes(), runs.is_empty()), (0, true));
        let mut all: Vec<_> = (0..if cfg!(miri) { 200 } else { 2_000_u64 })
            .map(|n| runs.collect((0..1 + n as u32 % 3).map(|i| [n, i.into(), n ^ u64::from(i)])))
            .collect();
        for run in &mut all {
            assert_eq!(run.as_ptr() as usize % LINE, 0);
            run.iter_mut().for_each(|e| e[2] += 1);
        }
        for (n, run) in (0..).zip(&all) {
            assert_eq!(run.len() as u64, 1 + n % 3);
            assert!((0..).zip(run.iter()).all(|(i, e)| *e == [n, i, (n ^ i) + 1]));
        }
    }

    #[test]
    fn runs_are_dropped_on_other_threads() {
        let mut runs = Runs::<u64>::new();
        let all: Vec<_> = (0..100).map(|n| runs.collect([n; 8].into_iter())).collect();
        let bytes = runs.bytes();
        let mut all = all.into_iter();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let some: Vec<_> = all.by_ref().take(40).collect();
                scope.spawn(move || drop(some));
            }
            for n in 0..20 {
                assert_eq!(*runs.collect([n; 8].into_iter()), [n; 8]);
            }
        });
        assert_eq!(runs.bytes(), bytes, "their places are free again");
        assert!(all.all(|run| run[0] == run[7]));
    }

    #[test]
    fn places_are_reused_and_empty_blocks_are_unmapped() {
        const COUNT: usize = if cfg!(miri) { 500 } else { 10_000 };
        let mut runs = Runs::<u64>::new();
        let made = |runs: &mut Runs<u64>| -> Vec<_> {
            (0..COUNT as u64).map(|n| runs.collect([n; 8].into_iter())).collect()
        };
        let all = made(&mut runs);
        let bytes = runs.bytes();
        assert!((COUNT * 64..COUNT * 130).contains(&bytes) && !runs.is_empty(), "{bytes}");
        runs.trim();
        assert_eq!(runs.bytes(), bytes, "all places are in use");
        drop(all);
        let all = made(&mut runs);
        assert_eq!(runs.bytes(), bytes, "no more than before");
        let one = { all }.swap_remove(COUNT / 10 * 7);
        runs.trim();
        assert!(
            runs.bytes() < bytes && runs.bytes() > 0,
            "only the block of the remaining run is left"
        );
        drop(runs);
        assert_eq!(*one, [COUNT as u64 / 10 * 7; 8], "it outlives its `Runs`");
    }

    #[test]
    fn runs_are_an_odd_number_of_lines_apart() {
        #[repr(align(64))]
        struct Line([u8; 192]);
        let strides = [1, 2, 8, 32].map(|len| Runs::<Line>::stride(len).unwrap());
        assert_eq!(strides, [192, 7 * 64, 25 * 64, 97 * 64]);
        assert_eq!(Runs::<u8>::stride(65), Some(192));
        assert_eq!(Runs::<u64>::stride(usize::MAX / 4), None);
        assert_eq!(Line([0; 192]).0.len(), 192);
    }

    #[test]
    fn an_empty_run_takes_no_memory() {
        let mut runs = Runs::<u64>::new();
        assert!(runs.collect(std::iter::empty()).is_empty());
        assert_eq!((runs.bytes(), Run::<u64>::default().len()), (0, 0));
    }

    #[test]
    fn without_blocks_runs_use_the_allocator() {
        let room = std::mem::ManuallyDrop::new(Vec::<Rc<()>>::with_capacity(4)).as_mut_ptr();
        let counted = Rc::new(());
        let mut run = Run { first: NonNull::new(room).unwrap(), len: 0, storage: Storage::Heap(4) };
        // SAFETY: there is room for four. Test: this one.
        unsafe { run.first.write(counted.clone()) };
        run.len = 1;
        assert_eq!(Rc::strong_count(&counted), 2);
        drop(run);
        assert_eq!(Rc::strong_count(&counted), 1);
    }

    #[test]
    fn a_run_longer_than_the_address_space_is_rejected() {
        let mut runs = Runs::new();
        let endless = std::iter::repeat_n(7_u64, usize::MAX / 4);
        assert!(catch_unwind(AssertUnwindSafe(|| runs.collect(endless))).is_err());
        assert_eq!(runs.bytes(), 0);
    }

    #[test]
    fn a_panic_drops_the_collected_elements() {
        let counted = Rc::new(());
        let mut runs = Runs::new();
        let unlucky = |i: u32| if i == 3 { panic!("unlucky") } else { counted.clone() };
        assert!(catch_unwind(AssertUnwindSafe(|| runs.collect((0..4).map(unlucky)))).is_err());
        assert_eq!(Rc::strong_count(&counted), 1);
        runs.trim();
        assert_eq!(runs.bytes(), 0, "its place was freed");
    }
}
