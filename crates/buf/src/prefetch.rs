//! A hint to the CPU that memory will be needed soon.

/// Asks for the cache line where `what` begins, so that using it some tens of nanoseconds later
/// does not wait for memory. Has no effect but on time; on CPUs other than x86-64 none at all.
#[inline(always)]
pub fn prefetch<T: ?Sized>(what: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing into the program and never faults, whatever the
        // address. Test: `prefetching_changes_nothing`.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(what).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = what;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefetching_changes_nothing() {
        let numbers = [1_u64, 2, 3];
        prefetch(&numbers);
        prefetch(&numbers[..0]);
        prefetch("");
        assert_eq!(numbers, [1, 2, 3]);
    }
}
