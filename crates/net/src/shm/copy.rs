//! Copies between private memory and memory that a peer may write at any time.
//!
//! A reference, and also `ptr::copy`, tells the compiler that no other thread writes concurrently,
//! which a peer cannot guarantee. Therefore shared memory is accessed only by inline assembly
//! (x86-64) or volatile accesses (elsewhere), for which the compiler assumes nothing: if the peer
//! writes concurrently, the result is arbitrary bytes. Long copies use
//! [`courser_buf::copy_shared`].

use courser_buf::copy_shared;

/// Copies into shared memory, **last bytes first**: the consumer polls the first line of a record,
/// so the sender should acquire that line once, for all its stores, and after the record's other
/// lines. For a few lines; [`copy_in_bulk`] is for more.
///
/// # Safety
/// `src.len()` bytes at `dst` are within a shared mapping that is writable and outlives the call.
#[inline]
pub(super) unsafe fn copy_in(dst: *mut u8, src: &[u8]) {
    let (from, len) = (src.as_ptr(), src.len());
    // SAFETY: every access is within `src` or within the `len` bytes at `dst`, by the bounds of
    // the loop. Test: `copies_are_exact`.
    unsafe {
        if len >= 16 {
            let mut at = len - 16;
            move16(dst.add(at), from.add(at));
            at = (len - 1) & !15;
            while at > 0 {
                at -= 16;
                move16(dst.add(at), from.add(at));
            }
        } else if len >= 8 {
            move8(dst.add(len - 8), from.add(len - 8));
            move8(dst, from);
        } else {
            for at in (0..len).rev() {
                dst.add(at).write_volatile(*from.add(at));
            }
        }
    }
}

/// Copies into shared memory, with the instructions that are fastest for many bytes.
///
/// # Safety
/// As [`copy_in`].
#[inline]
pub(super) unsafe fn copy_in_bulk(dst: *mut u8, src: &[u8]) {
    // SAFETY: as promised by the caller. Test: `copies_are_exact`.
    unsafe {
        if src.len() < BULK {
            copy_in(dst, src);
        } else {
            copy_shared(dst, src.as_ptr(), src.len());
        }
    }
}

/// Copies out of shared memory; writes all of `dst`, which is a whole number of 16-byte units, so
/// that no shorter moves are needed at the end.
///
/// # Safety
/// `dst.len()` bytes at `src` are within a shared mapping that is readable and outlives the call.
#[inline]
pub(super) unsafe fn copy_out(dst: &mut [u8], src: *const u8) {
    let (to, len) = (dst.as_mut_ptr(), dst.len());
    debug_assert!(len.is_multiple_of(16));
    // SAFETY: every access is within `dst` or within the bytes at `src` that were promised, by
    // the bounds of the loop. Test: `copies_are_exact`.
    unsafe {
        if len >= BULK {
            return copy_shared(to, src, len);
        }
        let mut at = 0;
        while at < len {
            move16(to.add(at), src.add(at));
            at += 16;
        }
    }
}

/// From this many bytes on the processor's string copy is faster than a loop of 16-byte moves.
const BULK: usize = 512;

/// # Safety
/// 16 bytes can be read at `src` and written at `dst`.
#[inline]
unsafe fn move16(dst: *mut u8, src: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as promised by the caller; no flags, no stack. Test: `copies_are_exact`.
    unsafe {
        std::arch::asm!(
            "movdqu {t}, [{s}]",
            "movdqu [{d}], {t}",
            t = out(xmm_reg) _, s = in(reg) src, d = in(reg) dst,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: as promised by the caller. Test: `copies_are_exact`.
    unsafe {
        move8(dst, src);
        move8(dst.add(8), src.add(8));
    }
}

/// # Safety
/// 8 bytes can be read at `src` and written at `dst`.
#[inline]
unsafe fn move8(dst: *mut u8, src: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as promised by the caller; no flags, no stack. Test: `copies_are_exact`.
    unsafe {
        std::arch::asm!(
            "mov {t}, [{s}]",
            "mov [{d}], {t}",
            t = out(reg) _, s = in(reg) src, d = in(reg) dst,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: as promised by the caller; byte by byte because the addresses may be unaligned.
    // Test: `copies_are_exact`.
    unsafe {
        for at in 0..8 {
            dst.add(at).write_volatile(src.add(at).read_volatile());
        }
    }
}

/// Prefetches the line at `at`. A hint: any address is allowed.
#[inline]
pub(super) fn prefetch(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no effect that a program can see, and faults at no address.
    // Test: none is needed.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact() {
        let src: Vec<u8> = (0..3000u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for len in (0..300).chain(495..530).chain([1023, 1024, 1025, 2047, 2900]) {
            for shift in [0, 1, 16] {
                for bulk in [false, true] {
                    let mut dst = vec![0xEE_u8; 3000];
                    let from = &src[shift..shift + len];
                    // SAFETY: `dst` has room for `len` bytes behind `shift`. Test: this one.
                    unsafe {
                        let to = dst.as_mut_ptr().add(shift);
                        if bulk { copy_in_bulk(to, from) } else { copy_in(to, from) }
                    }
                    assert_eq!(&dst[shift..shift + len], from);
                    assert!(dst[..shift].iter().chain(&dst[shift + len..]).all(|&b| b == 0xEE));
                }
                let whole = len.next_multiple_of(16);
                if shift + whole > src.len() {
                    continue;
                }
                let mut out = vec![0; whole];
                // SAFETY: `src` has `whole` bytes behind `shift`. Test: this one.
                unsafe { copy_out(&mut out, src.as_ptr().add(shift)) };
                assert_eq!(out, src[shift..shift + whole]);
            }
        }
    }
}
