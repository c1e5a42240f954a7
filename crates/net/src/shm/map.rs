//! Shared mappings: creates, seals, checks and maps memory files. All accesses to them are here.
//!
//! # Invariants
//! 1. A mapping's file cannot shrink, as it has seals that cannot be removed. So no access within
//!    the mapping faults (SIGBUS). Where the kernel refuses memory to accesses instead of ending a
//!    process for it (`vm.overcommit_memory` is 2), all pages are allocated before.
//! 2. No reference to the bytes of a mapping exists, except to atomic words, and to bytes that a
//!    trusted peer does not write meanwhile ([`Mapping::lend`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use courser_buf::Tail;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use super::copy;

/// Smallest page size; all areas are multiples of it.
pub(super) const PAGE: usize = 4096;

/// The file system of anonymous memory files. Files of huge pages are rejected: an access fails
/// when no huge page is free, which ends the process.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// The seals that make access safe (invariant 1).
fn lasting() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

/// Creates an anonymous file of `bytes` bytes with a writable mapping. With `guarded` no other
/// process can map it for writing.
pub(super) fn create(name: &str, bytes: usize, guarded: bool) -> Result<(OwnedFd, Mapping), Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 reject this flag; later ones warn without it.
    let fd = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create(name, flags))?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    if is_strict() {
        allocate(fd.as_fd(), bytes)?;
    }
    let mapping = Mapping::new(fd.as_fd(), bytes, true)?;
    let seals = if guarded { SealFlags::FUTURE_WRITE } else { SealFlags::empty() };
    rustix::fs::fcntl_add_seals(&fd, lasting() | seals)?;
    Ok((fd, mapping))
}

/// Maps a file that a peer sent, after checking that it has `bytes` bytes, is anonymous memory of
/// ordinary pages, and can never shrink.
pub(super) fn adopt(fd: BorrowedFd<'_>, bytes: usize, writable: bool) -> Result<Mapping, Errno> {
    let seals = rustix::fs::fcntl_get_seals(fd)?;
    let ordinary = rustix::fs::fstatfs(fd)?.f_type as i64 == TMPFS_MAGIC;
    let size = rustix::fs::fstat(fd)?.st_size;
    if !seals.contains(lasting()) || !ordinary || u64::try_from(size) != Ok(bytes as u64) {
        return Err(Errno::INVAL);
    }
    if is_strict() {
        allocate(fd, bytes)?;
    }
    Mapping::new(fd, bytes, writable)
}

/// Allocates all pages of a file.
fn allocate(fd: BorrowedFd<'_>, bytes: usize) -> Result<(), Errno> {
    let done = rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, bytes as u64);
    // No file system is full here: there is no memory.
    done.map_err(|e| if e == Errno::NOSPC { Errno::NOMEM } else { e })
}

/// Returns whether the kernel promises no more memory than it has.
fn is_strict() -> bool {
    std::fs::read("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim_ascii() == b"2")
}

/// An atomic word of shared memory, or of a model of it.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn fetch_or(&self, bits: u64, order: Ordering) -> u64;
    fn fetch_and(&self, bits: u64, order: Ordering) -> u64;
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }
    #[inline]
    fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_or(self, bits, order)
    }
    #[inline]
    fn fetch_and(&self, bits: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_and(self, bits, order)
    }
}

/// Memory with atomic words. Rings and doorbells are generic over it, so that the same code runs on
/// a model that tests every order (`scripts/loom.sh`).
pub(super) trait Words {
    type Word: Word;
    /// The word at `at`, a multiple of 8. Store only where the mapping is writable.
    fn word(&self, at: usize) -> &Self::Word;
}

impl Words for Mapping {
    type Word = AtomicU64;
    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        Mapping::word(self, at)
    }
}

/// A shared mapping; unmapped when dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
    /// Bytes from the start that may be written.
    writable: usize,
}

// SAFETY: any thread may access the address range of a mapping; all access goes through atomic
// words and through copies that are sound under concurrent writes. Test:
// `a_transport_moves_between_threads`.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Self, Errno> {
        let write = if writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        // SAFETY: a shared mapping at an address of the kernel's choice cannot touch memory that
        // exists. Test: `files_are_checked`.
        let ptr = unsafe {
            rustix::mm::mmap(null_mut(), len, ProtFlags::READ | write, MapFlags::SHARED, fd, 0)
        }?;
        let ptr = NonNull::new(ptr.cast()).ok_or(Errno::NOMEM)?;
        Ok(Mapping { ptr, len, writable: if writable { len } else { 0 } })
    }

    /// Makes the mapping read-only after the first `keep` bytes, a whole number of pages.
    pub(super) fn protect_after(&mut self, keep: usize) -> Result<(), Errno> {
        assert!(keep <= self.len && keep.is_multiple_of(PAGE));
        // SAFETY: the range lies within the mapping, by the check; nothing writes there from now
        // on, by `writable`. Test: `files_are_checked`.
        unsafe {
            let start = self.ptr.as_ptr().add(keep).cast();
            rustix::mm::mprotect(start, self.len - keep, MprotectFlags::READ)?;
        }
        self.writable = self.writable.min(keep);
        Ok(())
    }

    /// Populates the first `bytes`, to avoid page faults on the datapath. Failure is harmless.
    pub(super) fn populate(&self, bytes: usize) {
        let advice = if self.writable > 0 && self.writable >= bytes {
            Advice::LinuxPopulateWrite
        } else {
            Advice::LinuxPopulateRead
        };
        let bytes = bytes.min(self.len);
        // SAFETY: the range lies within the mapping; populating changes no content.
        // Test: `files_are_checked`.
        let _ = unsafe { rustix::mm::madvise(self.ptr.as_ptr().cast(), bytes, advice) };
    }

    #[inline]
    fn at(&self, at: usize, len: usize, limit: usize) -> *mut u8 {
        assert!(at <= limit && len <= limit - at, "beyond the mapping");
        // SAFETY: within the mapping, by the check. Test: `nothing_reaches_outside`.
        unsafe { self.ptr.as_ptr().add(at) }
    }

    /// A shared 64-bit word. Store only where the mapping is writable.
    #[inline]
    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        let ptr = self.at(at, 8, self.len);
        assert!(at.is_multiple_of(8), "no word begins there");
        // SAFETY: valid and aligned by the checks (a mapping begins at a page) for as long as
        // `self`; the peer's concurrent accesses do not conflict with atomic ones.
        // Test: `files_are_checked`.
        unsafe { AtomicU64::from_ptr(ptr.cast()) }
    }

    /// Copies in, the last bytes first; see [`copy::copy_in`].
    #[inline]
    pub(super) fn write(&self, at: usize, src: &[u8]) {
        let dst = self.at(at, src.len(), self.writable);
        // SAFETY: `dst` has room for `src`, writable, by the check. Test:
        // `nothing_reaches_outside`.
        unsafe { copy::copy_in(dst, src) }
    }

    /// Copies many bytes in; see [`copy::copy_in_bulk`].
    #[inline]
    pub(super) fn write_bulk(&self, at: usize, src: &[u8]) {
        let dst = self.at(at, src.len(), self.writable);
        // SAFETY: as in `write`. Test: `nothing_reaches_outside`.
        unsafe { copy::copy_in_bulk(dst, src) }
    }

    /// Copies out; `dst` is a whole number of 16-byte units.
    #[inline]
    pub(super) fn read(&self, at: usize, dst: &mut [u8]) {
        let src = self.at(at, dst.len(), self.len);
        // SAFETY: `src` has that many bytes, by the check. Test: `nothing_reaches_outside`.
        unsafe { copy::copy_out(dst, src) }
    }

    /// The bytes in place, with a lifetime chosen by the caller.
    ///
    /// # Safety
    /// As long as the slice is used the mapping exists, and no process writes to these bytes. For
    /// memory that another process can write, only that process can promise the second.
    #[inline]
    pub(super) unsafe fn lend<'a>(&self, at: usize, len: usize) -> &'a [u8] {
        let ptr = self.at(at, len, self.len);
        // SAFETY: within the mapping, by the check; the rest is the caller's promise.
        // Test: `nothing_reaches_outside`, conformance of trusted pairs.
        unsafe { std::slice::from_raw_parts(ptr, len) }
    }

    /// Bytes that are copied later, with their contents at that time.
    ///
    /// # Safety
    /// As long as the tail is used the mapping exists.
    #[inline]
    pub(super) unsafe fn tail<'a>(&self, at: usize, len: usize) -> Tail<'a> {
        let ptr = self.at(at, len, self.len);
        // SAFETY: within the mapping, by the check, and mapped by the caller's promise; writers use
        // a mapping of their own, or the copies of `copy`.
        // Test: `nothing_reaches_outside`.
        unsafe { Tail::new(ptr, len as u32) }
    }

    /// Prefetches the line at `at`.
    #[inline]
    pub(super) fn prefetch(&self, at: usize) {
        copy::prefetch(self.ptr.as_ptr().wrapping_add(at));
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: one whole mapping of `new`, of which this is the only owner; borrows from it
        // borrow `self`. Test: the conformance suite over shared memory.
        let _ = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn files_are_checked() {
        let (fd, mut ours) = create("test", 2 * PAGE, false).unwrap();
        let theirs = adopt(fd.as_fd(), 2 * PAGE, true).unwrap();
        ours.populate(2 * PAGE);
        ours.word(8).store(7, Ordering::Relaxed);
        assert_eq!(theirs.word(8).load(Ordering::Relaxed), 7);
        ours.protect_after(PAGE).unwrap();
        ours.write(100, b"some bytes");
        let mut out = [0; 16];
        theirs.read(100, &mut out);
        assert_eq!(&out[..10], b"some bytes");
        assert!(adopt(fd.as_fd(), PAGE, true).is_err(), "another size");
        assert!(rustix::fs::ftruncate(&fd, 0).is_err(), "it cannot shrink");

        let unsealed = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, PAGE as u64).unwrap();
        assert!(adopt(unsealed.as_fd(), PAGE, true).is_err(), "it could shrink");
        let zero = std::fs::File::open("/dev/zero").unwrap();
        assert!(adopt(zero.as_fd(), PAGE, false).is_err(), "not a memory file");
    }

    #[test]
    fn all_pages_of_a_file_are_allocated_where_an_access_could_fail() {
        let blocks = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_blocks as usize * 512;
        let (fd, _ours) = create("test", 64 * PAGE, false).unwrap();
        assert!(is_strict() || blocks(&fd) < 64 * PAGE);
        allocate(fd.as_fd(), 64 * PAGE).unwrap();
        assert_eq!(blocks(&fd), 64 * PAGE);
        // A receiver of a guarded file may allocate it too.
        let (fd, _ours) = create("test", 64 * PAGE, true).unwrap();
        allocate(fd.as_fd(), 64 * PAGE).unwrap();
        assert_eq!(blocks(&fd), 64 * PAGE);
        let no_room = allocate(fd.as_fd(), 1 << 62).unwrap_err();
        assert!([Errno::NOMEM, Errno::FBIG, Errno::PERM].contains(&no_room), "{no_room}");
    }

    #[test]
    fn guarded_files_are_read_by_others_only() {
        let (fd, ours) = create("test", PAGE, true).unwrap();
        assert!(adopt(fd.as_fd(), PAGE, true).is_err());
        let theirs = adopt(fd.as_fd(), PAGE, false).unwrap();
        ours.word(0).store(3, Ordering::Relaxed);
        assert_eq!(theirs.word(0).load(Ordering::Relaxed), 3);
    }

    #[test]
    fn nothing_reaches_outside() {
        let (_fd, mut map) = create("test", 2 * PAGE, false).unwrap();
        map.protect_after(PAGE).unwrap();
        let refused = |f: &dyn Fn()| catch_unwind(AssertUnwindSafe(f)).is_err();
        assert!(refused(&|| map.write(PAGE - 3, &[0; 4])));
        assert!(refused(&|| map.write(usize::MAX, &[0; 4])));
        assert!(refused(&|| map.write_bulk(0, &[0; PAGE + 1])));
        assert!(refused(&|| map.read(2 * PAGE - 8, &mut [0; 16])));
        // SAFETY: no other code uses this memory, and it exists until the end. Test: this one.
        assert!(refused(&|| _ = unsafe { map.lend(2 * PAGE - 8, 9) }));
        // SAFETY: as before. Test: this one.
        assert!(refused(&|| _ = unsafe { map.tail(2 * PAGE - 8, 9) }));
        assert!(refused(&|| _ = map.word(2 * PAGE)));
        assert!(refused(&|| _ = map.word(2)));
    }
}
