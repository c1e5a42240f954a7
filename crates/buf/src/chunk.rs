//! The record of one buffer, the table of all records, and the free list of a size class.
//!
//! Records are separate from the message bytes: memory that hardware can write must not contain the
//! pointers and counts that memory safety depends on. Also, a record stays in the cache while
//! message bytes are evicted.
//!
//! Invariants:
//! 1. A record of the table is never freed or moved before the arena, so a thread with a
//!    stale number still reads a record (type-stable memory).
//! 2. A record is in at most one free list, and only while nothing refers to its buffer.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::arena::Inner;
use crate::atomics::{AtomicU32, AtomicU64, fence};

/// Bytes before the data of every buffer: the header room of packet 0 and lower-layer headers.
pub(crate) const FRONT: usize = 128;

/// The arena's record of one buffer. One cache line, so that buffers of different threads do
/// not share one.
#[repr(align(64))]
pub(crate) struct Chunk {
    /// One for the `MsgBuf` and one for every `TxSeg`.
    refs: AtomicU32,
    /// In a free list: number of the record below, plus one; 0 at the bottom.
    next: AtomicU32,
    /// In a free list: the number of records from this one to the bottom.
    depth: AtomicU32,
    /// Number of this record in the table.
    id: u32,
    /// Index of its size class.
    pub(crate) class: u32,
    /// Data bytes.
    pub(crate) capacity: u32,
    /// Header slots behind the data.
    pub(crate) slots: u32,
    /// Bytes of one slot.
    pub(crate) slot_size: u32,
    /// Bytes of memory of the buffer, including all header rooms.
    pub(crate) footprint: usize,
    /// First data byte, with provenance over the whole region.
    pub(crate) data: NonNull<u8>,
    /// The arena; alive as long as this record (see `Inner`).
    pub(crate) inner: NonNull<Inner>,
    /// Valid data bytes of the `MsgBuf`, at most `capacity`. This and the next field belong to
    /// the `MsgBuf`: `&MsgBuf` reads them, `&mut MsgBuf` sets them, and no other code accesses
    /// them. They are here so that a `MsgBuf` is two pointers, which are passed in registers.
    pub(crate) len: Cell<u32>,
    /// Headers below this index may be covered by a `TxSeg` while the buffer is shared.
    pub(crate) exposed: Cell<u32>,
}

#[cfg(not(all(loom, test)))] // loom's atomics are larger
const _: () = assert!(size_of::<Chunk>() == 64);

/// Layout of all buffers of one size class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) class: u32,
    pub(crate) capacity: u32,
    pub(crate) slots: u32,
    pub(crate) slot_size: u32,
    pub(crate) footprint: usize,
}

impl Chunk {
    /// A record without references, for the buffer whose memory starts at `start`.
    ///
    /// # Safety
    /// `start` begins `geometry.footprint` bytes of a region that outlives the record.
    pub(crate) unsafe fn new(
        geometry: &Geometry,
        start: NonNull<u8>,
        inner: NonNull<Inner>,
    ) -> Self {
        Chunk {
            refs: AtomicU32::new(0),
            next: AtomicU32::new(0),
            depth: AtomicU32::new(0),
            id: 0,
            class: geometry.class,
            capacity: geometry.capacity,
            slots: geometry.slots,
            slot_size: geometry.slot_size,
            footprint: geometry.footprint,
            // SAFETY: a footprint is longer than FRONT. Test: `positions_are_exact` under miri.
            data: unsafe { start.add(FRONT) },
            inner,
            len: Cell::new(0),
            exposed: Cell::new(0),
        }
    }

    /// Sets the first reference of a free record.
    #[inline]
    pub(crate) fn claim(&self) {
        self.refs.store(1, Ordering::Relaxed);
    }

    /// Returns whether there are references besides the caller's.
    ///
    /// A result of `false` is ordered after all accesses through the released references.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.refs.load(Ordering::Acquire) != 1
    }

    /// Adds `count` references; the caller holds the `MsgBuf`, mutably.
    ///
    /// While that is the only reference no other thread can change the count, so a store suffices:
    /// a locked instruction costs some 20 cycles, and every frame takes a reference.
    #[inline]
    pub(crate) fn retain_mut(&self, count: u32) {
        // Acquire: a store ends the release sequence of earlier releases, so this load must order
        // the accesses before them. Test: `every_drop_order`,
        // `pieces_are_released_by_other_threads`, also under ThreadSanitizer; `chunk::model`.
        if self.refs.load(Ordering::Acquire) == 1 {
            self.refs.store(1 + count, Ordering::Relaxed);
        } else {
            self.retain(count);
        }
    }

    /// Adds `count` references; the caller holds one.
    #[inline]
    pub(crate) fn retain(&self, count: u32) {
        // Relaxed: the new references are derived from one that is alive.
        if self.refs.fetch_add(count, Ordering::Relaxed) > u32::MAX / 2 {
            // Two billion leaked references: continuing would end in a use after free.
            std::process::abort();
        }
    }

    /// Releases `count` references of a caller that keeps another one.
    #[inline]
    pub(crate) fn release_some(&self, count: u32) {
        // Release: orders the caller's accesses before a later recycling, which cannot happen while
        // the caller keeps a reference. Test: `pieces_are_released_by_other_threads`.
        self.refs.fetch_sub(count, Ordering::Release);
    }

    /// Releases a reference. Returns `true` if it was the last: the caller must then recycle the
    /// buffer.
    #[inline]
    pub(crate) fn release(&self) -> bool {
        // The last holder needs no read-modify-write: no other thread has a reference.
        if self.refs.load(Ordering::Acquire) == 1 {
            return true;
        }
        if self.refs.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            return true;
        }
        false
    }
}

/// Records in the first segment; each segment is twice as long as the one before.
const FIRST_SEGMENT: u32 = 64;
/// Enough segments for every number below `u32::MAX - 63`.
const SEGMENTS: usize = 26;

/// All records of small buffers, by number. Grows by one writer, read without locks.
pub(crate) struct Table {
    segments: [AtomicPtr<Chunk>; SEGMENTS],
    len: AtomicU32,
}

impl Table {
    pub(crate) fn new() -> Self {
        Table { segments: [const { AtomicPtr::new(null_mut()) }; SEGMENTS], len: AtomicU32::new(0) }
    }

    /// Segment of a number, and the position in it.
    #[inline]
    fn locate(id: u32) -> (usize, usize) {
        let biased = id as u64 + FIRST_SEGMENT as u64;
        let top = biased.ilog2();
        ((top - FIRST_SEGMENT.ilog2()) as usize, (biased - (1 << top)) as usize)
    }

    fn layout(segment: usize) -> Layout {
        // FIRST_SEGMENT << 25 records of 64 bytes are 128 GiB: no overflow on 64 bits, and on 32
        // bits the address space is used up long before.
        match Layout::array::<Chunk>((FIRST_SEGMENT as usize) << segment) {
            Ok(layout) => layout,
            Err(_) => handle_alloc_error(Layout::new::<Chunk>()),
        }
    }

    /// Adds a record; returns `None` when there are no more numbers. One caller at a time.
    pub(crate) fn push(&self, mut chunk: Chunk) -> Option<NonNull<Chunk>> {
        let id = self.len.load(Ordering::Relaxed);
        let (segment, at) = Self::locate(id);
        let slot = self.segments.get(segment)?;
        let mut base = slot.load(Ordering::Relaxed);
        if base.is_null() {
            let layout = Self::layout(segment);
            // SAFETY: the layout is not empty. Test: `the_table_keeps_its_records`.
            base = unsafe { alloc(layout) }.cast();
            if base.is_null() {
                handle_alloc_error(layout);
            }
            slot.store(base, Ordering::Release);
        }
        chunk.id = id;
        // SAFETY: `at` is within the segment, and this slot of it is unused, as numbers are
        // assigned once, by one caller at a time. Test: `the_table_keeps_its_records`.
        let place = unsafe {
            let place = base.add(at);
            place.write(chunk);
            NonNull::new_unchecked(place)
        };
        self.len.store(id + 1, Ordering::Release);
        Some(place)
    }

    /// The record of a number.
    ///
    /// # Safety
    /// [`push`](Self::push) assigned `id`, and the caller has synchronised with that.
    #[inline]
    unsafe fn get(&self, id: u32) -> NonNull<Chunk> {
        let (segment, at) = Self::locate(id);
        // SAFETY: the number was assigned, so its segment exists and is long enough. Tests:
        // `the_table_keeps_its_records`, `free_lists_survive_threads`.
        unsafe {
            let base = self.segments.get_unchecked(segment).load(Ordering::Acquire);
            NonNull::new_unchecked(base.add(at))
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        for (segment, slot) in self.segments.iter_mut().enumerate() {
            let base = *slot.get_mut();
            if !base.is_null() {
                // SAFETY: allocated in `push` with this layout; records need no drop, and none is
                // in use when the arena is dropped. Test: miri's leak check on every test.
                unsafe { dealloc(base.cast(), Self::layout(segment)) };
            }
        }
    }
}

/// The free buffers of one size class: a lock-free stack of record numbers.
///
/// A stack and not a queue, because the cache lines of the buffer freed last are still in the
/// cache. The head is a 32-bit number and a 32-bit tag. Every change increments the tag, so the
/// compare-and-swap of a thread with an old head fails, unless a multiple of 2^32 changes came
/// between (the ABA problem).
#[repr(align(64))]
pub(crate) struct Stack {
    /// Low half: number of the top record plus one, 0 when empty. High half: tag.
    head: AtomicU64,
}

#[inline]
fn next_head(old: u64, top: u32) -> u64 {
    (((old >> 32) as u32).wrapping_add(1) as u64) << 32 | top as u64
}

impl Stack {
    pub(crate) fn new() -> Self {
        Stack { head: AtomicU64::new(0) }
    }

    /// Takes the record that was pushed last.
    #[inline]
    pub(crate) fn pop(&self, table: &Table) -> Option<NonNull<Chunk>> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let id = (head as u32).checked_sub(1)?;
            // SAFETY: a number in a head was pushed, so it was assigned before, and the acquire
            // load of the head synchronises with that push. Records outlive the stack's users
            // (invariant 1). Test: `free_lists_survive_threads`.
            let chunk = unsafe { table.get(id) };
            // SAFETY: as above; `next` is atomic, and the length, which is not, is accessed only
            // through the `MsgBuf`.
            let below = unsafe { chunk.as_ref() }.next.load(Ordering::Relaxed);
            match self.head.compare_exchange_weak(
                head,
                next_head(head, below),
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(chunk),
                Err(now) => head = now,
            }
        }
    }

    /// Frees a record without references.
    ///
    /// # Safety
    /// The caller owns the record, which is of `table`, and does not use it afterwards.
    #[inline]
    pub(crate) unsafe fn push(&self, table: &Table, chunk: NonNull<Chunk>) {
        // SAFETY: the caller owns it. Test: `free_lists_survive_threads`.
        let record = unsafe { chunk.as_ref() };
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let top = head as u32;
            record.next.store(top, Ordering::Relaxed);
            record.depth.store(self.depth_at(table, top) + 1, Ordering::Relaxed);
            match self.head.compare_exchange_weak(
                head,
                next_head(head, record.id + 1),
                Ordering::Release,
                Ordering::Acquire,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Number of records. Exact while no thread pushes or pops.
    pub(crate) fn len(&self, table: &Table) -> usize {
        self.depth_at(table, self.head.load(Ordering::Acquire) as u32) as usize
    }

    /// Depth of the record at a head. If the head has changed in the meantime, the value is stale
    /// and the caller's compare-and-swap fails.
    #[inline]
    fn depth_at(&self, table: &Table, top: u32) -> u32 {
        match top.checked_sub(1) {
            // SAFETY: as in `pop`. Test: `free_lists_survive_threads`.
            Some(id) => unsafe { table.get(id).as_ref() }.depth.load(Ordering::Relaxed),
            None => 0,
        }
    }
}

#[cfg(all(loom, test))]
mod model;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;

    use super::*;

    /// A record for tables and stacks that is never used as a buffer.
    pub(super) fn record() -> Chunk {
        let geometry =
            Geometry { class: 0, capacity: 256, slots: 0, slot_size: 48, footprint: 384 };
        // A footprint of live memory, so that `Chunk::new` may step over the front.
        static MEMORY: [u8; 384] = [0; 384];
        // SAFETY: the memory is static and long enough. Test: this module.
        unsafe { Chunk::new(&geometry, NonNull::from(&MEMORY).cast(), NonNull::dangling()) }
    }

    pub(super) fn id(chunk: NonNull<Chunk>) -> u32 {
        // SAFETY: the tests call it while the table lives. Test: this module.
        unsafe { chunk.as_ref() }.id
    }

    #[test]
    fn numbers_fill_segment_after_segment() {
        let (mut segment, mut at) = (0, 0);
        for n in 0..5000 {
            assert_eq!(Table::locate(n), (segment, at), "number {n}");
            at += 1;
            if at == 64 << segment {
                (segment, at) = (segment + 1, 0);
            }
        }
        assert_eq!(Table::locate(u32::MAX - 64), (SEGMENTS - 1, (64 << (SEGMENTS - 1)) - 1));
        assert_eq!(Table::locate(u32::MAX - 63), (SEGMENTS, 0));
    }

    #[test]
    fn the_table_keeps_its_records() {
        let table = Table::new();
        let places: Vec<_> = (0..300).map(|_| table.push(record()).unwrap()).collect();
        for (n, &place) in places.iter().enumerate() {
            assert_eq!(id(place), n as u32);
            // SAFETY: the number was assigned above. Test: this one.
            assert_eq!(unsafe { table.get(n as u32) }, place);
        }
    }

    #[test]
    fn last_in_is_first_out() {
        let (table, stack) = (Table::new(), Stack::new());
        assert!(stack.pop(&table).is_none());
        for n in 0..5 {
            // SAFETY: fresh records of this table. Test: this one.
            unsafe { stack.push(&table, table.push(record()).unwrap()) };
            assert_eq!(stack.len(&table), n + 1);
        }
        for n in (0..5).rev() {
            assert_eq!(stack.pop(&table).map(id), Some(n));
            assert_eq!(stack.len(&table), n as usize);
        }
        assert!(stack.pop(&table).is_none());
    }

    #[test]
    fn every_change_of_a_head_increments_its_tag() {
        let head = next_head(u64::from(u32::MAX) << 32 | 7, 9);
        assert_eq!(head, 9, "the tag wraps without touching the number");
        assert_eq!(next_head(head, 7), 1 << 32 | 7);
    }

    /// Threads pop and push the same few records; `refs` of each checks that it has one owner.
    #[test]
    fn free_lists_survive_threads() {
        const RECORDS: usize = 3;
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let (table, stack) = (Table::new(), Stack::new());
        for _ in 0..RECORDS {
            // SAFETY: fresh records of this table. Test: this one.
            unsafe { stack.push(&table, table.push(record()).unwrap()) };
        }
        let start = Barrier::new(4);
        let work = || {
            start.wait();
            for _ in 0..rounds {
                let Some(chunk) = stack.pop(&table) else {
                    continue;
                };
                // SAFETY: popped, so it is ours until it is pushed. Test: this one.
                unsafe {
                    let owners = &chunk.as_ref().refs;
                    assert_eq!(owners.fetch_add(1, Ordering::Relaxed), 0, "two owners");
                    std::hint::spin_loop();
                    owners.fetch_sub(1, Ordering::Relaxed);
                    stack.push(&table, chunk);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(work);
            }
        });
        assert_eq!(stack.len(&table), RECORDS);
        let left: HashSet<_> = std::iter::from_fn(|| stack.pop(&table).map(id)).collect();
        assert_eq!(left.len(), RECORDS);
    }
}
