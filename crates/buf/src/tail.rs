//! Bytes that another process may change at any moment, so they can only be copied.
//!
//! A reference, and also `ptr::copy`, tells the compiler that there is no concurrent write, which
//! another process cannot guarantee. Therefore such bytes are accessed only by inline assembly (on
//! x86-64) or by volatile accesses (elsewhere), and the program uses only the copy.

use std::fmt;
use std::marker::PhantomData;

/// The rest of a frame in shared memory, whose bytes another process may change at any moment. They
/// can only be copied. Two copies may differ, so the copy that is validated must be the one that is
/// used.
/// [`crate::RxFrame`] has its two parts as fields of its own, so that it fits a cache line and is
/// written from registers.
#[derive(Clone, Copy)]
pub struct Tail<'a> {
    pub(crate) at: TailStart<'a>,
    pub(crate) len: u32,
}

/// Where a tail begins.
#[derive(Clone, Copy)]
pub(crate) struct TailStart<'a>(*const u8, PhantomData<&'a [u8]>);

// SAFETY: any thread may read the bytes, by the promise of `Tail::new`, and no code writes through a
// tail. Test: `frames_cross_threads`.
unsafe impl Send for TailStart<'_> {}
// SAFETY: as above. Test: `frames_cross_threads`.
unsafe impl Sync for TailStart<'_> {}

impl fmt::Debug for TailStart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl<'a> Tail<'a> {
    /// No bytes.
    pub const NONE: Tail<'static> = Tail { at: TailStart(std::ptr::null(), PhantomData), len: 0 };

    /// The `len` bytes at `at`.
    ///
    /// # Safety
    /// For as long as `'a` the bytes can be read by any thread. They may change meanwhile, but only
    /// by another process, or by accesses that do not conflict with volatile ones.
    #[inline]
    pub unsafe fn new(at: *const u8, len: u32) -> Tail<'a> {
        Tail { at: TailStart(at, PhantomData), len }
    }

    /// Number of bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.len as usize
    }

    /// Returns whether there are no bytes.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Copies the current bytes.
    ///
    /// # Panics
    /// `out` has another length.
    #[inline]
    pub fn copy_to(self, out: &mut [u8]) {
        assert_eq!(out.len(), self.len(), "a tail is copied as a whole");
        // SAFETY: `out` has `len` bytes, and so has the tail, by the promise of `new`; `out` is
        // borrowed exclusively, so they do not overlap. Test: `the_current_bytes_are_copied`.
        unsafe { copy_shared(out.as_mut_ptr(), self.at.0, self.len()) }
    }

    /// Appends the current bytes to `out`.
    #[inline]
    pub fn append_to(self, out: &mut Vec<u8>) {
        let len = self.len();
        out.reserve(len);
        // SAFETY: `reserve` has made room for `len` bytes behind those that there are, which the
        // copy initialises; the rest as in `copy_to`. Test: `the_current_bytes_are_copied`.
        unsafe {
            copy_shared(out.as_mut_ptr().add(out.len()), self.at.0, len);
            out.set_len(out.len() + len);
        }
    }
}

/// Bytes that do not change, as a tail.
impl<'a> From<&'a [u8]> for Tail<'a> {
    /// # Panics
    /// There are more than `u32::MAX` bytes.
    fn from(bytes: &'a [u8]) -> Self {
        let len = u32::try_from(bytes.len()).expect("no frame is as long");
        // SAFETY: the bytes are borrowed for `'a`, and do not change. Test:
        // `a_frame_in_two_pieces_is_joined`.
        unsafe { Tail::new(bytes.as_ptr(), len) }
    }
}

impl Default for Tail<'_> {
    fn default() -> Self {
        Tail::NONE
    }
}

impl fmt::Debug for Tail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} shared bytes", self.len())
    }
}

/// Copies `len` bytes, where another process may change the source or read the destination at any
/// moment. For long copies, as `rep movsb` takes about 30 cycles to start.
///
/// # Safety
/// `len` bytes can be read at `src` and written at `dst`; they do not overlap. Other threads of
/// this process access them only in ways that do not conflict with volatile accesses.
#[inline]
pub unsafe fn copy_shared(dst: *mut u8, src: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as promised by the caller; the direction flag is clear in Rust code. Test:
    // `the_current_bytes_are_copied`.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _, inout("rdi") dst => _, inout("rsi") src => _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: as promised by the caller; both sides are aligned or not, so byte by byte.
    // Test: `the_current_bytes_are_copied`.
    unsafe {
        for at in 0..len {
            dst.add(at).write_volatile(src.add(at).read_volatile());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::*;

    #[test]
    fn the_current_bytes_are_copied() {
        let bytes = if cfg!(miri) { 200 } else { 5000_u32 };
        let memory: Vec<AtomicU8> = (0..bytes).map(|i| AtomicU8::new(i as u8)).collect();
        let ranges = [(0, 0), (1, 1), (3, 7), (0, 64), (17, 100), (8, 4100), (901, 4099)];
        // Thousands of bytes take seconds under miri.
        for (from, len) in ranges.into_iter().take(if cfg!(miri) { 5 } else { 7 }) {
            // SAFETY: atomics can be written at any time by their nature; all within the vector,
            // by the numbers above. Test: this one.
            let tail = unsafe { Tail::new(memory[from..].as_ptr().cast(), len) };
            assert_eq!((tail.len(), tail.is_empty()), (len as usize, len == 0));
            let mut out = vec![0xEE; tail.len() + 20];
            let mut appended = b"before".to_vec();
            for flip in [0, 0xFF] {
                for byte in &memory {
                    byte.fetch_xor(flip, Ordering::Relaxed);
                }
                tail.copy_to(&mut out[7..7 + len as usize]);
                appended.truncate(6);
                tail.append_to(&mut appended);
                let now = memory[from..].iter().map(|b| b.load(Ordering::Relaxed));
                let now: Vec<u8> = now.take(tail.len()).collect();
                assert_eq!(out[7..7 + tail.len()], now);
                assert!(out[..7].iter().chain(&out[7 + tail.len()..]).all(|&b| b == 0xEE));
                assert_eq!((&appended[..6], &appended[6..]), (&b"before"[..], &now[..]));
            }
            for byte in &memory {
                byte.fetch_xor(0xFF, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn frames_cross_threads() {
        fn crosses<T: Send + Sync>() {}
        crosses::<crate::RxFrame<'_>>();
        crosses::<crate::RxBurst<'_>>();
        let tail = Tail::from(&b"here"[..]);
        let mut there = [0; 4];
        std::thread::scope(|scope| _ = scope.spawn(|| tail.copy_to(&mut there)));
        assert_eq!(&there, b"here");
    }

    #[test]
    fn an_empty_tail_copies_nothing() {
        Tail::NONE.copy_to(&mut []);
        let mut out = Vec::new();
        Tail::default().append_to(&mut out);
        assert!(out.is_empty() && Tail::NONE.is_empty());
    }

    #[test]
    #[should_panic(expected = "copied as a whole")]
    fn a_copy_of_another_length_panics() {
        let memory = [AtomicU8::new(1), AtomicU8::new(2)];
        // SAFETY: as above, two bytes. Test: this one.
        unsafe { Tail::new(memory.as_ptr().cast(), 2) }.copy_to(&mut [0]);
    }
}
