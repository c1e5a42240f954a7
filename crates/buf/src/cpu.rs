//! Prefetch instructions and the time stamp counter.

/// Cache lines are 64 bytes on every processor that this is tuned for.
const LINE: usize = 64;

/// Prefetches the cache line that `place` begins in: one instruction that never faults and does not
/// change results.
#[inline]
pub fn prefetch<T: ?Sized>(place: &T) {
    prefetch_at(std::ptr::from_ref(place).cast());
}

/// Prefetches the first two lines of `bytes`: the headers of a frame and the start of its message.
#[inline]
pub fn prefetch_bytes(bytes: &[u8]) {
    prefetch_at(bytes.as_ptr());
    prefetch_at(bytes.as_ptr().wrapping_add(LINE));
}

/// The hardware prefetcher detects longer copies, and prefetching all of their lines takes longer
/// than it saves (`docs/results/2026-11-23-copy-prefetch.md`).
const LONG_COPY: usize = 2_048;

/// Prefetches the source or destination of a copy: the lines of its first byte and of each 64th
/// after it, one instruction for each line. Does nothing above 2 KiB.
#[inline]
pub fn prefetch_copy(bytes: &[u8]) {
    if bytes.len() <= LONG_COPY {
        // Not by slices of a line: their lengths take 5 instructions a line.
        let (mut at, end) = (bytes.as_ptr(), bytes.as_ptr_range().end);
        while at < end {
            prefetch_at(at);
            at = at.wrapping_add(LINE);
        }
    }
}

#[inline]
fn prefetch_at(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction has no effect that the program can observe and faults on no
        // address; SSE is part of x86-64. Test: `prefetches_accept_any_address`.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

/// Reads the processor's time stamp counter, in about 10 ns instead of 25 for the system's clock.
/// The tick length must be calibrated with the system's clock, and [`has_steady_ticks`] tells
/// whether it is constant. Returns 0 where there is no counter.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: reads a counter; every x86-64 has it. Test: `ticks_advance`.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    0
}

/// Returns whether [`ticks`] advance at one rate, in every power state, and synchronously on all
/// processors. The processor must report it, and the kernel, which checks it, must use the counter
/// for its own clock.
pub fn has_steady_ticks() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::__cpuid;
        const POWER: u32 = 0x8000_0007;
        const INVARIANT: u32 = 1 << 8;
        const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        #[allow(unused_unsafe)] // safe from Rust 1.96 on
        // SAFETY: every x86-64 has the instruction. Test: `ticks_advance`.
        let cpuid = |leaf| unsafe { __cpuid(leaf) };
        let invariant = cpuid(0x8000_0000).eax >= POWER && cpuid(POWER).edx & INVARIANT != 0;
        // Some containers hide the file; then only the processor's report counts.
        invariant && std::fs::read_to_string(SOURCE).map_or(true, |used| used.trim() == "tsc")
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefetches_accept_any_address() {
        prefetch(&7_u8);
        prefetch("text");
        prefetch_bytes(&[]);
        prefetch_bytes(&[0; 65]);
        prefetch_copy(&[]);
        prefetch_copy(&[0; 129]);
    }

    #[test]
    fn ticks_advance() {
        if has_steady_ticks() {
            let start = ticks();
            std::thread::sleep(std::time::Duration::from_millis(1));
            assert!(ticks() > start);
        }
    }
}
