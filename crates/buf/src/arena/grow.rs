//! The slow path of an arena: mapping regions and cutting buffers out of them.
//!
//! Everything here happens under the growth lock. Small buffers are carved from blocks of
//! [`BLOCK`] bytes, some [`SLAB`] bytes of one class at a time, and exist as long as the arena.
//! Large ones have a region each, which is unmapped when it is idle and the limit is reached.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::{AllocError, Class, Inner, LARGE};
use crate::chunk::{Chunk, Geometry};
use crate::mem::{HUGE_PAGE, REGION_ALIGN};
use crate::{MapCause, MapError, Region};

/// Region that small buffers are carved from: one huge page.
const BLOCK: usize = HUGE_PAGE;
/// Bytes that a class takes from a block at a time, at least one buffer. Fewer under miri, which
/// needs milliseconds for each.
const SLAB: usize = if cfg!(miri) { 16 << 10 } else { 256 << 10 };
const PAGE: usize = 4096;
/// Remnants of blocks that are shorter than the smallest buffer are not used.
const SMALLEST: usize = 384;

/// Region that the first buffer of a class needs.
pub(super) fn region_bytes(geometry: &Geometry) -> usize {
    // From 8 MiB on, rounding costs little relative to the buffer, and huge pages are worth it.
    let page = if geometry.footprint < 4 * HUGE_PAGE { PAGE } else { HUGE_PAGE };
    geometry.footprint.next_multiple_of(page)
}

/// Maximum regions that one [`Inner::trim`] unmaps. Each is a system call whose cost grows with the
/// region and delays the caller's event loop.
const TRIM_MOST: usize = 16;

/// The unused rest of a block.
struct Rest {
    start: NonNull<u8>,
    left: usize,
}

/// A large buffer's record and its region. `repr(C)` so that a pointer to it is one to its record.
#[repr(C)]
struct Large {
    chunk: Chunk,
    region: Region,
    /// While free: the round of [`Inner::trim`] in which it was freed.
    idle_since: u32,
}

/// State under the growth lock.
pub(super) struct Growth {
    blocks: Vec<Region>,
    rests: Vec<Rest>,
    /// Free large buffers by class, used in last-in, first-out order.
    large: Vec<Vec<NonNull<Large>>>,
    /// Calls of [`Inner::trim`] so far.
    round: u32,
    mapped: usize,
    huge: usize,
}

// SAFETY: the pointers are to memory that the regions here own, and to records that this owns
// while they are in its lists. Test: `buffers_come_back_from_other_threads`.
unsafe impl Send for Growth {}

impl Growth {
    pub(super) fn new(classes: usize) -> Self {
        let large = (0..classes).map(|_| Vec::new()).collect();
        Growth { blocks: Vec::new(), rests: Vec::new(), large, round: 0, mapped: 0, huge: 0 }
    }

    pub(super) fn mapped_bytes(&self) -> usize {
        self.mapped
    }

    pub(super) fn huge_bytes(&self) -> usize {
        self.huge
    }

    pub(super) fn free_large(&self, class: usize) -> usize {
        self.large[class].len()
    }

    fn charge(&mut self, region: &Region) {
        self.mapped += region.len();
        self.huge += if region.is_huge() { region.len() } else { 0 };
    }

    fn discharge(&mut self, region: &Region) {
        self.mapped -= region.len();
        self.huge -= if region.is_huge() { region.len() } else { 0 };
    }

    /// Frees a large buffer.
    ///
    /// # Safety
    /// `chunk` is the record of a large buffer of this arena, released by its last user.
    pub(super) unsafe fn put_large(&mut self, chunk: NonNull<Chunk>) {
        // SAFETY: records of large buffers are the first field of a `Large`, and the pointer has
        // kept the provenance of the whole. Test: `large_buffers_are_reused`.
        let class = unsafe { chunk.as_ref() }.class as usize;
        let large: NonNull<Large> = chunk.cast();
        // SAFETY: as above. Written through the pointer, not a reference to the whole: another
        // thread may be about to return from its release of the record. Test:
        // `idle_large_buffers_are_unmapped_by_trim`.
        unsafe { (*large.as_ptr()).idle_since = self.round };
        self.large[class].push(large);
    }

    /// Takes `bytes` from a block with as many bytes left, or as many multiples of `unit` as the
    /// longest rest holds.
    fn take_rest(&mut self, unit: usize, bytes: usize) -> Option<(NonNull<u8>, usize)> {
        let longest = self.rests.iter().enumerate().max_by_key(|(_, rest)| rest.left)?.0;
        let rest = &mut self.rests[longest];
        let count = rest.left.min(bytes) / unit;
        if count == 0 {
            return None;
        }
        let start = rest.start;
        rest.left -= count * unit;
        // SAFETY: at most to the end of the block. Test: `random_use_agrees_with_the_model`.
        rest.start = unsafe { start.add(count * unit) };
        if rest.left < SMALLEST {
            self.rests.swap_remove(longest);
        }
        Some((start, count))
    }
}

impl Drop for Growth {
    fn drop(&mut self) {
        for large in self.large.drain(..).flatten() {
            // SAFETY: created by `Inner::map_large` from a box, and free, as the arena is dropped
            // only after its last buffer. Test: miri's leak check on `large_buffers_are_reused`.
            drop(unsafe { Box::from_raw(large.as_ptr()) });
        }
    }
}

impl Inner {
    /// A buffer of a class whose free list is empty. `this` is `self`, for the new records.
    pub(super) fn grow(
        &self,
        this: NonNull<Inner>,
        class: &Class,
        asked: usize,
    ) -> Result<NonNull<Chunk>, AllocError> {
        let mut growth = self.growth();
        if class.is_large() {
            return match growth.large[class.geometry.class as usize].pop() {
                Some(large) => Ok(large.cast()),
                None => self.map_large(&mut growth, this, class, asked),
            };
        }
        // Another thread may have grown the class while this one waited for the lock.
        match class.free.pop(&self.table) {
            Some(chunk) => Ok(chunk),
            None => self.carve(&mut growth, this, class, asked),
        }
    }

    fn exhausted(&self, asked: usize) -> AllocError {
        AllocError::Exhausted { asked, in_use: self.in_use(), limit: self.cfg.limit_bytes }
    }

    /// Cuts a slab for a small class, returns the first buffer and frees the others.
    fn carve(
        &self,
        growth: &mut Growth,
        this: NonNull<Inner>,
        class: &Class,
        asked: usize,
    ) -> Result<NonNull<Chunk>, AllocError> {
        let geometry = &class.geometry;
        let slab = SLAB.max(geometry.footprint);
        let (start, count) = match growth.take_rest(geometry.footprint, slab) {
            Some(taken) => taken,
            None => {
                self.map_block(growth, region_bytes(geometry), asked)?;
                growth.take_rest(geometry.footprint, slab).ok_or_else(|| self.exhausted(asked))?
            }
        };
        let mut first = None;
        // In reverse, so that the free list returns them in address order.
        for i in (0..count).rev() {
            // SAFETY: the slab is `count` footprints of a block that lives as long as the arena.
            // Test: `random_use_agrees_with_the_model`.
            let record = unsafe { Chunk::new(geometry, start.add(i * geometry.footprint), this) };
            let Some(chunk) = self.table.push(record) else {
                break;
            };
            class.buffers.fetch_add(1, Ordering::Relaxed);
            if let Some(other) = first.replace(chunk) {
                // SAFETY: new, and without another reference. Test: `free_lists_survive_threads`.
                unsafe { class.free.push(&self.table, other) };
            }
        }
        first.ok_or_else(|| self.exhausted(asked))
    }

    /// Maps a block, shorter than [`BLOCK`] if the limit requires it, but at least `least` bytes.
    fn map_block(&self, growth: &mut Growth, least: usize, asked: usize) -> Result<(), AllocError> {
        let room = self.make_room(growth, least, asked)?;
        let bytes = if room >= BLOCK { BLOCK } else { room / PAGE * PAGE };
        let region = match self.map(growth, bytes, asked) {
            // A nearly exhausted source may have a smaller region.
            Err(AllocError::Source(_)) if bytes > least => self.map(growth, least, asked)?,
            other => other?,
        };
        growth.rests.push(Rest { start: region.as_ptr(), left: region.len() });
        growth.blocks.push(region);
        Ok(())
    }

    fn map_large(
        &self,
        growth: &mut Growth,
        this: NonNull<Inner>,
        class: &Class,
        asked: usize,
    ) -> Result<NonNull<Chunk>, AllocError> {
        let bytes = region_bytes(&class.geometry);
        self.make_room(growth, bytes, asked)?;
        let region = self.map(growth, bytes, asked)?;
        // SAFETY: the region is long enough (checked by `map`) and is dropped with the record.
        // Test: `large_buffers_are_reused`.
        let chunk = unsafe { Chunk::new(&class.geometry, region.as_ptr(), this) };
        class.buffers.fetch_add(1, Ordering::Relaxed);
        self.large.fetch_add(1, Ordering::Relaxed);
        Ok(NonNull::from(Box::leak(Box::new(Large { chunk, region, idle_since: 0 }))).cast())
    }

    /// Returns the bytes that may be mapped, at least `least`. Unmaps idle large buffers if needed.
    fn make_room(
        &self,
        growth: &mut Growth,
        least: usize,
        asked: usize,
    ) -> Result<usize, AllocError> {
        loop {
            let room = self.cfg.limit_bytes - growth.mapped;
            if room >= least {
                return Ok(room);
            }
            if !self.unmap_one(growth) {
                return Err(self.exhausted(asked));
            }
        }
    }

    /// Unmaps the largest idle large buffer.
    fn unmap_one(&self, growth: &mut Growth) -> bool {
        let Some(large) = growth.large.iter_mut().rev().find_map(Vec::pop) else {
            return false;
        };
        // SAFETY: made in `map_large`, and idle: just taken off the free list.
        // Test: `idle_large_buffers_are_unmapped_at_the_limit`.
        unsafe { self.unmap(growth, large) };
        true
    }

    /// # Safety
    /// `large` was made by `map_large`, is idle, and is in no list any more.
    unsafe fn unmap(&self, growth: &mut Growth, large: NonNull<Large>) {
        // SAFETY: created from a box there, and the caller has the only pointer to it. Tests:
        // `idle_large_buffers_are_unmapped_at_the_limit`,
        // `idle_large_buffers_are_unmapped_by_trim`.
        let large = unsafe { Box::from_raw(large.as_ptr()) };
        self.classes[large.chunk.class as usize].buffers.fetch_sub(1, Ordering::Relaxed);
        self.large.fetch_sub(1, Ordering::Relaxed);
        growth.discharge(&large.region);
    }

    /// See [`crate::Arena::trim`].
    pub(super) fn trim(&self) -> bool {
        let mut growth = self.growth();
        let round = growth.round;
        growth.round = round.wrapping_add(1);
        let (mut left, mut most) = (false, TRIM_MOST);
        for class in 0..growth.large.len() {
            // The list is a stack, so the buffers that are idle longest are at its bottom.
            // SAFETY: the records in the list are alive. Test:
            // `idle_large_buffers_are_unmapped_by_trim`.
            let old = |l: &NonNull<Large>| unsafe { l.as_ref() }.idle_since != round;
            let n = growth.large[class].iter().take(most).take_while(|l| old(l)).count();
            most -= n;
            let idle: Vec<_> = growth.large[class].drain(..n).collect();
            for large in idle {
                // SAFETY: just taken off the free list. Test: the same.
                unsafe { self.unmap(&mut growth, large) };
            }
            left |= !growth.large[class].is_empty();
        }
        left
    }

    /// Maps a region and counts it, after checking its size, alignment and the limit.
    fn map(&self, growth: &mut Growth, bytes: usize, asked: usize) -> Result<Region, AllocError> {
        let region = loop {
            match self.source.map(bytes) {
                Ok(region) => break region,
                Err(_) if self.unmap_one(growth) => {}
                Err(err) => return Err(err.into()),
            }
        };
        if region.len() < bytes || region.as_ptr().align_offset(REGION_ALIGN) != 0 {
            return Err(MapError { bytes, cause: MapCause::Unsuitable }.into());
        }
        if region.len() > self.cfg.limit_bytes - growth.mapped {
            return Err(self.exhausted(asked));
        }
        growth.charge(&region);
        Ok(region)
    }
}

const _: () = assert!(LARGE <= BLOCK / 4, "a block holds several buffers of every small class");
