//! Sources of message memory: the [`MemorySource`] behind an arena (ADR 9).
//!
//! An arena never calls the allocator for message bytes. It maps regions of hundreds of kilobytes
//! from a source and divides them into buffers. A transport whose hardware needs registered memory
//! (AF_XDP's UMEM, DPDK) has its own source; all others use [`Heap`].

use std::fmt;
use std::ptr::NonNull;

/// Minimum alignment of every [`Region`]: one cache line.
pub const REGION_ALIGN: usize = 64;

/// Size of a huge page on x86-64 and (with 4 KiB base pages) on AArch64.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Supplies an arena with memory.
///
/// `map` is called under the arena's growth lock and must not use that arena.
pub trait MemorySource: Send + Sync + fmt::Debug {
    /// A new region of at least `bytes` bytes.
    fn map(&self, bytes: usize) -> Result<Region, MapError>;

    /// A short name for messages and statistics.
    fn name(&self) -> &'static str;
}

/// A source could not map a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "cannot map {bytes} bytes of message memory: {cause}; free memory or lower the arena's limit"
)]
pub struct MapError {
    /// Requested bytes.
    pub bytes: usize,
    /// The reason.
    pub cause: MapCause,
}

/// The reason why a source could not map a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MapCause {
    /// The operating system failed with this error number.
    Os(i32),
    /// The size is 0 or larger than the address space.
    BadSize,
    /// The source has no more memory or cannot map this size; the text is its own.
    Refused(&'static str),
    /// The source returned a region that is too short or not aligned to [`REGION_ALIGN`].
    Unsuitable,
}

impl fmt::Display for MapCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            MapCause::Os(errno) => std::io::Error::from_raw_os_error(errno).fmt(f),
            MapCause::BadSize => f.write_str("no region can have that size"),
            MapCause::Refused(why) => f.write_str(why),
            MapCause::Unsuitable => f.write_str("the source gave a short or misaligned region"),
        }
    }
}

/// Memory with one owner: readable, writable and initialised until it is dropped.
pub struct Region {
    ptr: NonNull<u8>,
    len: usize,
    huge: bool,
    release: Release,
}

/// How a region is released.
enum Release {
    /// Unmapped (under miri: freed by the allocator).
    Heap,
    /// By the closure passed to [`Region::from_raw`]; taken on drop.
    Custom(Option<Box<dyn FnOnce() + Send>>),
}

// SAFETY: a region owns its bytes as a `Box<[u8]>` does, and its release is `Send` by type. The
// bytes are only reached through unsafe code of the region's owner. Test: `regions_cross_threads`.
unsafe impl Send for Region {}
// SAFETY: `&Region` returns an address and numbers, no access. Test: `regions_cross_threads`.
unsafe impl Sync for Region {}

impl Region {
    /// A region in the caller's memory, such as a transport's registered memory (ADR 9).
    ///
    /// `release` is called once, after the last use of the memory. It may run on any thread
    /// and, like [`MemorySource::map`], must not use the arena.
    ///
    /// # Safety
    ///
    /// * From now until `release` is called, the `len` bytes at `ptr` are valid for reads and
    ///   writes from any thread, initialised, and reached only through this region (hardware
    ///   that sends from it or receives into it where the region's owner told it to is allowed).
    /// * `len` is not above `isize::MAX`.
    pub unsafe fn from_raw(
        ptr: NonNull<u8>,
        len: usize,
        release: Box<dyn FnOnce() + Send>,
    ) -> Self {
        Region { ptr, len, huge: false, release: Release::Custom(Some(release)) }
    }

    /// Sets whether the region is on huge pages; only for statistics.
    #[must_use]
    pub fn with_huge(mut self, huge: bool) -> Self {
        self.huge = huge;
        self
    }

    /// First byte.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether it is on reserved huge pages. Transparent huge pages do not count, as the
    /// kernel may split them at any time.
    pub fn is_huge(&self) -> bool {
        self.huge
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("len", &self.len).field("huge", &self.huge).finish()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        match &mut self.release {
            // SAFETY: `ptr` and `len` are one whole mapping of `os::map*`, and this is the only
            // owner, so nothing uses it and it is released once. Test: `heap_regions_are_zeroed`
            // under miri.
            Release::Heap => unsafe { os::unmap(self.ptr, self.len) },
            Release::Custom(release) => {
                if let Some(release) = release.take() {
                    release();
                }
            }
        }
    }
}

/// The use of huge pages by [`Heap`] (E65).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum HugePages {
    /// Reserved 2 MiB pages if the system has some, else ordinary pages with the advice to use
    /// transparent huge pages. Applies to regions of at least 2 MiB.
    #[default]
    Auto,
    /// Ordinary pages.
    Never,
}

/// Anonymous memory of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap {
    /// The use of huge pages.
    pub huge: HugePages,
}

impl MemorySource for Heap {
    /// Maps zeroed pages, aligned to a page, or to 2 MiB for regions of that size when huge pages
    /// are enabled. Ordinary pages are committed when they are first touched, reserved huge pages
    /// at once.
    fn map(&self, bytes: usize) -> Result<Region, MapError> {
        if bytes == 0 || bytes > isize::MAX as usize - 2 * HUGE_PAGE {
            return Err(MapError { bytes, cause: MapCause::BadSize });
        }
        let want_huge = self.huge == HugePages::Auto && bytes >= HUGE_PAGE;
        if want_huge
            && bytes.is_multiple_of(HUGE_PAGE)
            && let Some(ptr) = os::map_reserved_huge(bytes)
        {
            return Ok(Region { ptr, len: bytes, huge: true, release: Release::Heap });
        }
        let len = bytes.next_multiple_of(os::PAGE);
        let mapped = if want_huge { os::map_advised(len) } else { os::map(len) };
        match mapped {
            Ok(ptr) => Ok(Region { ptr, len, huge: false, release: Release::Heap }),
            Err(errno) => Err(MapError { bytes, cause: MapCause::Os(errno) }),
        }
    }

    fn name(&self) -> &'static str {
        "heap"
    }
}

/// Anonymous mappings. [`os::unmap`] releases them, with the same length.
#[cfg(not(miri))]
mod os {
    use std::ffi::c_void;
    use std::ptr::{NonNull, null_mut};

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    use super::HUGE_PAGE;

    /// Granularity of lengths. Systems with larger base pages round up by themselves.
    pub(super) const PAGE: usize = 4096;

    fn anonymous(len: usize, extra: MapFlags) -> Result<NonNull<u8>, i32> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a private anonymous mapping at an address of the kernel's choice cannot touch
        // memory that exists. Test: `heap_regions_are_zeroed`.
        let ptr = unsafe { mmap_anonymous(null_mut(), len, prot, MapFlags::PRIVATE | extra) }
            .map_err(|e| e.raw_os_error())?;
        NonNull::new(ptr.cast()).ok_or(0)
    }

    pub(super) fn map(len: usize) -> Result<NonNull<u8>, i32> {
        anonymous(len, MapFlags::empty())
    }

    /// Pages of the reserved pool, all populated.
    ///
    /// In a control group without a share of the pool, as in containers, a mapping can succeed and
    /// its first access still end the process (SIGBUS). Populating reports that as an error.
    /// Kernels before 5.14, which cannot populate, use ordinary pages.
    pub(super) fn map_reserved_huge(len: usize) -> Option<NonNull<u8>> {
        let ptr = anonymous(len, MapFlags::HUGETLB | MapFlags::HUGE_2MB).ok()?;
        // SAFETY: the range was just mapped and is ours; populating does not change its content.
        // Test: `huge_pages_fall_back`.
        match unsafe { madvise(ptr.as_ptr().cast(), len, Advice::LinuxPopulateWrite) } {
            Ok(()) => Some(ptr),
            Err(_) => {
                // SAFETY: as above; nothing has used the mapping. Test: `huge_pages_fall_back`.
                unsafe { unmap(ptr, len) };
                None
            }
        }
    }

    /// Ordinary pages at a huge page boundary, with the advice to back them by huge pages.
    pub(super) fn map_advised(len: usize) -> Result<NonNull<u8>, i32> {
        let whole = anonymous(len + HUGE_PAGE, MapFlags::empty())?;
        let skip = whole.as_ptr().align_offset(HUGE_PAGE);
        // SAFETY: `skip` is below HUGE_PAGE, so `start .. start + len` lies within the mapping;
        // what is unmapped lies outside of that and nothing has used it. The advice is a hint.
        // Test: `heap_regions_are_zeroed` touches every byte of such a region.
        unsafe {
            let start = whole.add(skip);
            if skip > 0 {
                unmap(whole, skip);
            }
            if skip < HUGE_PAGE {
                unmap(start.add(len), HUGE_PAGE - skip);
            }
            let _ = madvise(start.as_ptr().cast::<c_void>(), len, Advice::LinuxHugepage);
            Ok(start)
        }
    }

    /// # Safety
    /// The range is a mapping of this module, or a part that its user cut off, and unused.
    pub(super) unsafe fn unmap(ptr: NonNull<u8>, len: usize) {
        // SAFETY: the caller's promise. Failure would leave the range mapped, which is safe.
        // Test: `heap_regions_are_zeroed`.
        let _ = unsafe { munmap(ptr.as_ptr().cast(), len) };
    }
}

/// The same with the allocator, as miri does not support `mmap`.
#[cfg(miri)]
mod os {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    pub(super) const PAGE: usize = 4096;

    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len, PAGE).ok()
    }

    pub(super) fn map(len: usize) -> Result<NonNull<u8>, i32> {
        let layout = layout(len).ok_or(12)?;
        // SAFETY: `len` is not 0: `Heap::map` has checked it. Test: `heap_rejects_absurd_sizes`.
        NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(12)
    }

    pub(super) fn map_advised(len: usize) -> Result<NonNull<u8>, i32> {
        map(len)
    }

    pub(super) fn map_reserved_huge(_: usize) -> Option<NonNull<u8>> {
        None
    }

    /// # Safety
    /// The range is a whole mapping of this module, and unused.
    pub(super) unsafe fn unmap(ptr: NonNull<u8>, len: usize) {
        if let Some(layout) = layout(len) {
            // SAFETY: allocated by `map` with this layout. Test: `heap_regions_are_zeroed`.
            unsafe { dealloc(ptr.as_ptr(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn bytes(region: &mut Region) -> &mut [u8] {
        // SAFETY: a region is initialised memory of its owner, borrowed here mutably. Test: miri.
        unsafe { std::slice::from_raw_parts_mut(region.as_ptr().as_ptr(), region.len()) }
    }

    #[test]
    fn heap_regions_are_zeroed() {
        for huge in [HugePages::Auto, HugePages::Never] {
            for len in [1, 4096, 70_000, HUGE_PAGE, HUGE_PAGE + 1] {
                let mut region = Heap { huge }.map(len).unwrap();
                assert!(region.len() >= len);
                assert_eq!(region.as_ptr().as_ptr().align_offset(4096), 0);
                let bytes = bytes(&mut region);
                // Checking every byte takes minutes under miri.
                let step = if cfg!(miri) { 4093 } else { 1 };
                assert!(bytes.iter().step_by(step).all(|&b| b == 0));
                bytes.fill(0xa5);
            }
        }
    }

    #[test]
    fn heap_rejects_absurd_sizes() {
        for bytes in [0, isize::MAX as usize, usize::MAX, usize::MAX - HUGE_PAGE] {
            let err = Heap::default().map(bytes).unwrap_err();
            assert_eq!(err, MapError { bytes, cause: MapCause::BadSize });
        }
    }

    #[test]
    #[cfg(not(miri))]
    fn a_failed_mapping_is_an_error() {
        let err = Heap { huge: HugePages::Never }.map(1 << 50).unwrap_err();
        assert!(matches!(err.cause, MapCause::Os(_)), "{err}");
        assert!(err.to_string().contains("1125899906842624"), "{err}");
    }

    #[test]
    fn huge_pages_fall_back() {
        let mut region = Heap { huge: HugePages::Auto }.map(2 * HUGE_PAGE).unwrap();
        assert_eq!(region.len(), 2 * HUGE_PAGE);
        bytes(&mut region).fill(1);
        assert!(!Heap { huge: HugePages::Never }.map(2 * HUGE_PAGE).unwrap().is_huge());
    }

    /// Returns whether the kernel has the advice of huge pages for the mapping that contains `at`.
    #[cfg(not(miri))]
    fn is_advised(at: *const u8) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut within = false;
        for line in maps.lines() {
            let first = line.split(' ').next().unwrap_or_default();
            if let Some((from, to)) = first.split_once('-') {
                let hex = |text| usize::from_str_radix(text, 16).unwrap();
                within = (hex(from)..hex(to)).contains(&at.addr());
            } else if within && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.split_whitespace().any(|flag| flag == "hg");
            }
        }
        panic!("the mapping has no flags in /proc/self/smaps");
    }

    #[test]
    #[cfg(not(miri))]
    fn huge_pages_are_used_unless_disabled() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return; // a kernel without transparent huge pages rejects the advice
        }
        for len in [HUGE_PAGE, 2 * HUGE_PAGE, 2 * HUGE_PAGE + 1] {
            let region = Heap::default().map(len).unwrap();
            let ptr = region.as_ptr().as_ptr();
            assert!(region.is_huge() || is_advised(ptr), "{len} bytes have ordinary pages");
            assert_eq!(ptr.align_offset(HUGE_PAGE), 0, "{len} bytes start within a huge page");
        }
        let region = Heap { huge: HugePages::Never }.map(2 * HUGE_PAGE).unwrap();
        assert!(!region.is_huge() && !is_advised(region.as_ptr().as_ptr()));
    }

    #[test]
    fn regions_cross_threads() {
        let released = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&released);
        let mut memory = vec![7u8; 64].into_boxed_slice();
        let ptr = NonNull::new(memory.as_mut_ptr()).unwrap();
        let release = Box::new(move || {
            seen.fetch_add(1, Ordering::SeqCst);
        });
        // SAFETY: `memory` outlives the region, which is dropped below, and is not used meanwhile.
        // Test: this one.
        let region = unsafe { Region::from_raw(ptr, 64, release) }.with_huge(true);
        assert!(region.is_huge() && !region.is_empty());
        std::thread::spawn(move || drop(region)).join().unwrap();
        assert_eq!(released.load(Ordering::SeqCst), 1);
        drop(memory);
    }
}
