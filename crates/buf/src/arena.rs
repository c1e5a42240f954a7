//! The arena: allocates message buffers and reuses them.
//!
//! Buffers come in size classes, four to a power of two. Classes below [`LARGE`] are cut out of 2
//! MiB blocks and have lock-free free lists. Buffers of [`LARGE`] and above have a region each and
//! a free list under a lock, whose cost is small relative to the processing of their bytes.
//!
//! Invariants:
//! 1. The mapped regions together never exceed `limit_bytes`.
//! 2. `Inner` is freed after the last handle and the last buffer are dropped, in any order.
//! 3. Buffers do not overlap, and memory of a region is always initialised.

mod grow;

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::chunk::{Chunk, FRONT, Geometry, Stack, Table};
use crate::msgbuf::HEADER_ROOM;
use crate::{Heap, MapError, MemorySource, MsgBuf, stats};
use grow::Growth;

/// Maximum bytes of lower-layer headers before a frame: Ethernet 14, VLAN 4, IPv6 40 and UDP 8
/// (ADR 8).
pub const MAX_HEADROOM: usize = 66;

/// Smallest data capacity.
const MIN_CAPACITY: usize = 256;
/// Largest data capacity of any arena. With it, all lengths fit 32 bits, including the header
/// slots: 2^30 / 64 slots of 128 bytes are 2 GiB.
const MAX_CAPACITY: usize = 1 << 30;
/// Smallest and largest `data_per_packet`.
const DATA_PER_PACKET: std::ops::RangeInclusive<usize> = 64..=MAX_CAPACITY;
/// Smallest limit: room for some buffers of one packet.
const MIN_LIMIT: usize = 64 << 10;
/// Data capacity from which a buffer has its own region.
pub(crate) const LARGE: usize = 256 << 10;

/// Settings of an [`Arena`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaConfig {
    /// Maximum bytes of mapped memory, at least 64 KiB. Ordinary pages are committed when they are
    /// first touched. Default: 1 GiB.
    pub limit_bytes: usize,
    /// Data bytes per packet, at least 64. Determines the number of headers behind the data:
    /// sessions with more data per packet use fewer of them, sessions with less cannot send a full
    /// buffer. Default: 1024, which fits every IPv6 path.
    pub data_per_packet: usize,
    /// Bytes that a transport needs before each frame for lower-layer headers, at most
    /// [`MAX_HEADROOM`]. Default: 0, as the kernel's UDP has its own buffers. It applies to the
    /// headers behind the data; the first packet always has [`MAX_HEADROOM`].
    pub headroom: usize,
}

impl Default for ArenaConfig {
    fn default() -> Self {
        ArenaConfig { limit_bytes: 1 << 30, data_per_packet: 1024, headroom: 0 }
    }
}

/// A setting of [`ArenaConfig`] is out of range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// `limit_bytes` is below 64 KiB or above `isize::MAX`.
    #[error("arena limit_bytes is {0}; set it from 65536 to isize::MAX")]
    Limit(usize),
    /// `data_per_packet` is below 64 or above 1 GiB.
    #[error("arena data_per_packet is {0}; set it from 64 to 1073741824")]
    DataPerPacket(usize),
    /// `headroom` is above [`MAX_HEADROOM`].
    #[error("arena headroom is {0}; set it to at most {MAX_HEADROOM}")]
    Headroom(usize),
}

impl ArenaConfig {
    /// Checks that every setting is in its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !(MIN_LIMIT..=isize::MAX as usize).contains(&self.limit_bytes) {
            return Err(ConfigError::Limit(self.limit_bytes));
        }
        if !DATA_PER_PACKET.contains(&self.data_per_packet) {
            return Err(ConfigError::DataPerPacket(self.data_per_packet));
        }
        if self.headroom > MAX_HEADROOM {
            return Err(ConfigError::Headroom(self.headroom));
        }
        Ok(())
    }
}

/// A buffer could not be allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// Longer than the largest buffer of this arena.
    #[error(
        "a message of {asked} bytes is too large: buffers of this arena have at most {limit} \
         bytes; raise ArenaConfig::limit_bytes (no buffer exceeds 1 GiB) or split the message"
    )]
    TooLarge {
        /// Requested data bytes.
        asked: usize,
        /// Data bytes of the largest buffer that the arena can allocate.
        limit: usize,
    },
    /// The memory limit is reached.
    #[error(
        "no memory for a message of {asked} bytes: buffers in use take {in_use} of the arena's \
         {limit} bytes (free buffers of other sizes may take the rest); drop buffers that are no \
         longer needed or raise ArenaConfig::limit_bytes"
    )]
    Exhausted {
        /// Requested data bytes.
        asked: usize,
        /// Bytes of the buffers in use.
        in_use: usize,
        /// The arena's `limit_bytes`.
        limit: usize,
    },
    /// The memory source failed although the limit is not reached.
    #[error(transparent)]
    Source(#[from] MapError),
}

stats! {
    /// Statistics of an arena at one moment. They may miss allocations of other threads that are in
    /// progress.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    #[non_exhaustive]
    pub struct ArenaStats: "memory" {
        /// The arena's `limit_bytes`.
        pub limit_bytes: usize = gauge(bytes),
        /// Bytes mapped from the source.
        pub mapped_bytes: usize = gauge(bytes),
        /// Bytes of the buffers in use, including header rooms and rounding.
        pub in_use_bytes: usize = gauge(bytes),
        /// Number of buffers in use.
        pub in_use_buffers: usize = gauge(buffers),
        /// Maximum of `in_use_bytes` so far.
        pub peak_in_use_bytes: usize = peak(bytes),
        /// Mapped bytes on reserved huge pages.
        pub huge_bytes: usize = gauge(bytes),
        /// The size classes that have buffers, smallest first.
        pub classes: Vec<ClassStats> = state,
    }
}

stats! {
    /// One size class in [`ArenaStats`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[non_exhaustive]
    pub struct ClassStats: "size class" {
        /// Data bytes of a buffer of this class.
        pub data_capacity: usize = gauge(bytes),
        /// Buffers that exist.
        pub buffers: usize = gauge(buffers),
        /// Buffers in the free list.
        pub free: usize = gauge(buffers),
    }
}

/// Index of the smallest class whose buffers hold `len` bytes. `len` is at most [`MAX_CAPACITY`].
#[inline]
fn class_of(len: usize) -> usize {
    if len <= MIN_CAPACITY {
        return 0;
    }
    // Classes end at 5/4, 6/4, 7/4 and 8/4 of a power of two: the two bits below the top one of
    // `len - 1` select the class.
    let n = len - 1;
    let exp = n.ilog2() as usize;
    (exp - 8) * 4 + ((n >> (exp - 2)) & 3) + 1
}

/// Data bytes of a buffer of a class: the inverse of [`class_of`].
fn capacity_of(class: usize) -> usize {
    match class.checked_sub(1) {
        None => MIN_CAPACITY,
        Some(i) => (5 + i % 4) << (6 + i / 4),
    }
}

fn geometry(class: usize, cfg: &ArenaConfig) -> Geometry {
    let capacity = capacity_of(class);
    let slots = capacity.div_ceil(cfg.data_per_packet) - 1;
    let slot_size = (HEADER_ROOM + cfg.headroom).next_multiple_of(16);
    // A multiple of a cache line, so that every buffer's data starts on one.
    let footprint = (FRONT + capacity + slots * slot_size).next_multiple_of(64);
    Geometry {
        class: class as u32,
        capacity: capacity as u32,
        slots: slots as u32,
        slot_size: slot_size as u32,
        footprint,
    }
}

/// A size class: the layout of its buffers, and its free list.
struct Class {
    geometry: Geometry,
    /// Free buffers. Unused by large classes.
    free: Stack,
    /// Existing buffers, free or not.
    buffers: AtomicUsize,
}

impl Class {
    fn is_large(&self) -> bool {
        self.geometry.capacity as usize >= LARGE
    }
}

/// Set in [`Usage::state`] while a handle exists; below it, bytes in use.
const HANDLES: usize = 1 << (usize::BITS - 1);

/// Written at every allocation, so on cache lines of its own.
#[repr(align(128))]
struct Usage {
    /// Bytes of buffers in use, plus [`HANDLES`]. The subtraction that makes it 0 frees the arena.
    /// One counter for statistics and lifetime saves an atomic operation per allocation and per
    /// release.
    state: AtomicUsize,
    peak: AtomicUsize,
}

/// The arena that its handles and buffers share.
pub(crate) struct Inner {
    usage: Usage,
    classes: Box<[Class]>,
    /// Data bytes of the largest class.
    max_len: usize,
    cfg: ArenaConfig,
    table: Table,
    /// Existing large buffers, free or not; written under the growth lock.
    large: AtomicUsize,
    /// Declared before `source`, as regions must be dropped before their source.
    growth: Mutex<Growth>,
    source: Arc<dyn MemorySource>,
}

/// Shared by all handles of an arena. Its drop releases the handles' reference to `Inner`.
struct Handle(NonNull<Inner>);

// SAFETY: it only ever does an atomic subtraction and, as the last user, drops `Inner`, whose
// parts are `Send`. Test: `buffers_come_back_from_other_threads`.
unsafe impl Send for Handle {}
// SAFETY: `&Handle` has no access. Test: `buffers_come_back_from_other_threads`.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handles' claim is still held, and released once. Test: `every_drop_order`.
        unsafe { Inner::leave(self.0, HANDLES) }
    }
}

/// A source of message buffers with a memory limit. Handles are cheap to clone and to send.
///
/// Threads may share one arena or have their own: sharing costs a contended cache line per
/// allocation, separate arenas cost separate limits.
#[derive(Clone)]
pub struct Arena {
    inner: NonNull<Inner>,
    _handle: Arc<Handle>,
}

// SAFETY: all shared state of `Inner` is atomic or behind its lock; the pointers it holds are to
// memory that it owns. Test: `buffers_come_back_from_other_threads`, also under miri.
unsafe impl Send for Arena {}
// SAFETY: as above. Test: the same.
unsafe impl Sync for Arena {}

impl Arena {
    /// An arena on memory of `source`. Maps nothing yet.
    pub fn new(source: Arc<dyn MemorySource>, cfg: ArenaConfig) -> Result<Arena, ConfigError> {
        cfg.validate()?;
        Ok(Self::build(source, cfg))
    }

    /// An arena of the default settings on ordinary memory.
    pub fn heap() -> Arena {
        Self::build(Arc::new(Heap::default()), ArenaConfig::default())
    }

    /// `cfg` is valid.
    fn build(source: Arc<dyn MemorySource>, cfg: ArenaConfig) -> Arena {
        let classes: Box<[Class]> = (0..=class_of(MAX_CAPACITY))
            .map(|class| geometry(class, &cfg))
            .take_while(|g| grow::region_bytes(g) <= cfg.limit_bytes)
            .map(|geometry| Class { geometry, free: Stack::new(), buffers: AtomicUsize::new(0) })
            .collect();
        let growth = Mutex::new(Growth::new(classes.len()));
        // MIN_LIMIT has room for the smallest class, so there is at least one class.
        let max_len = capacity_of(classes.len() - 1);
        let usage = Usage { state: AtomicUsize::new(HANDLES), peak: AtomicUsize::new(0) };
        let table = Table::new();
        let large = AtomicUsize::new(0);
        let inner = Box::new(Inner { usage, classes, max_len, cfg, table, large, growth, source });
        let inner = NonNull::from(Box::leak(inner));
        Arena { inner, _handle: Arc::new(Handle(inner)) }
    }

    #[inline]
    fn inner(&self) -> &Inner {
        // SAFETY: this handle keeps it alive (invariant 2). Test: `every_drop_order` under miri.
        unsafe { self.inner.as_ref() }
    }

    /// A buffer of `len` data bytes with arbitrary contents (those of an earlier use of the
    /// memory). Its capacity is up to a quarter larger, and at least 256 bytes.
    /// Costs about 20 ns when a buffer of the class is free, and occasionally a system call
    /// otherwise. Does not wait for memory to be freed.
    #[inline]
    pub fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        let inner = self.inner();
        if len > inner.max_len {
            return Err(AllocError::TooLarge { asked: len, limit: inner.max_len });
        }
        let class = &inner.classes[class_of(len)];
        let chunk = match class.free.pop(&inner.table) {
            Some(chunk) => chunk,
            None => inner.grow(self.inner, class, len)?,
        };
        // SAFETY: the chunk came off a free list or is new, so this is the only user, and its
        // class holds `len` bytes. Test: `random_use_agrees_with_the_model`.
        unsafe {
            chunk.as_ref().claim();
            inner.enter(class.geometry.footprint);
            Ok(MsgBuf::from_chunk(chunk, len as u32))
        }
    }

    /// The settings.
    pub fn config(&self) -> &ArenaConfig {
        &self.inner().cfg
    }

    /// Data bytes of the largest buffer that this arena can allocate.
    pub fn max_len(&self) -> usize {
        self.inner().max_len
    }

    /// Bytes of the buffers in use, including header rooms and rounding: one load.
    #[inline]
    pub fn in_use_bytes(&self) -> usize {
        self.inner().in_use()
    }

    /// Returns whether large buffers exist, which [`Arena::trim`] can unmap: one load.
    #[inline]
    pub fn has_large(&self) -> bool {
        self.inner().large.load(Ordering::Relaxed) > 0
    }

    /// Unmaps large buffers (256 KiB and more) that were not used since the previous call, at most
    /// 16 in a call. Returns whether other large buffers are idle, so that a later call can unmap
    /// them. Costs a lock, and a system call for each buffer.
    ///
    /// Without it such memory is kept for later messages of the size, up to the arena's limit.
    pub fn trim(&self) -> bool {
        self.inner().trim()
    }

    /// Statistics. Takes a lock and about a hundred loads; concurrent allocations continue.
    pub fn stats(&self) -> ArenaStats {
        let inner = self.inner();
        let growth = inner.growth();
        let mut stats = ArenaStats {
            limit_bytes: inner.cfg.limit_bytes,
            mapped_bytes: growth.mapped_bytes(),
            huge_bytes: growth.huge_bytes(),
            in_use_bytes: inner.in_use(),
            peak_in_use_bytes: inner.usage.peak.load(Ordering::Relaxed),
            ..ArenaStats::default()
        };
        for (index, class) in inner.classes.iter().enumerate() {
            let buffers = class.buffers.load(Ordering::Relaxed);
            if buffers == 0 {
                continue;
            }
            let free = match class.is_large() {
                true => growth.free_large(index),
                false => class.free.len(&inner.table),
            };
            stats.in_use_buffers += buffers.saturating_sub(free);
            let data_capacity = class.geometry.capacity as usize;
            stats.classes.push(ClassStats { data_capacity, buffers, free });
        }
        stats
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("source", &self.inner().source.name())
            .field("limit_bytes", &self.inner().cfg.limit_bytes)
            .field("in_use_bytes", &self.inner().in_use())
            .finish()
    }
}

impl Inner {
    fn growth(&self) -> MutexGuard<'_, Growth> {
        // State changes only after a source's `map` has returned, so a panic in it leaves the state
        // intact.
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_use(&self) -> usize {
        self.usage.state.load(Ordering::Relaxed) & !HANDLES
    }

    /// Counts a new buffer. The caller holds a handle, so the arena is alive.
    #[inline]
    fn enter(&self, footprint: usize) {
        let in_use =
            (self.usage.state.fetch_add(footprint, Ordering::Relaxed) & !HANDLES) + footprint;
        if in_use > self.usage.peak.load(Ordering::Relaxed) {
            self.usage.peak.fetch_max(in_use, Ordering::Relaxed);
        }
    }

    /// Subtracts a buffer or the handles from the count, and frees the arena when nothing is left.
    ///
    /// # Safety
    /// The caller releases a claim of that `weight`, once, and does not use `inner` afterwards.
    #[inline]
    unsafe fn leave(inner: NonNull<Inner>, weight: usize) {
        // SAFETY: the claim keeps it alive until the subtraction. Test: `every_drop_order`.
        let before = unsafe { inner.as_ref() }.usage.state.fetch_sub(weight, Ordering::Release);
        if before == weight {
            fence(Ordering::Acquire);
            Inner::free(inner);
        }
    }

    fn free(inner: NonNull<Inner>) {
        // SAFETY: `leave` released the last claim, so there is no other user, and the fence there
        // orders their accesses before this. It was leaked from a box. Test: `every_drop_order`
        // (miri).
        drop(unsafe { Box::from_raw(inner.as_ptr()) });
    }

    /// Frees a buffer whose last reference was released.
    ///
    /// # Safety
    /// The caller released the last reference to `chunk` and does not use it afterwards.
    #[inline]
    pub(crate) unsafe fn recycle(chunk: NonNull<Chunk>) {
        // SAFETY: the caller owns the record until it is pushed, and the arena lives until the
        // buffer's footprint is subtracted. Tests: `every_drop_order`,
        // `buffers_come_back_from_other_threads` under miri.
        unsafe {
            let record = chunk.as_ref();
            let (inner, footprint) = (record.inner, record.footprint);
            let arena = inner.as_ref();
            let class = &arena.classes[record.class as usize];
            if class.is_large() {
                arena.growth().put_large(chunk);
            } else {
                class.free.push(&arena.table, chunk);
            }
            Inner::leave(inner, footprint);
        }
    }
}

#[cfg(test)]
mod tests;
