//! Hashes of methods. They are part of the wire format: a change makes clients and servers of different
//! versions incompatible.

/// FNV-1a, 64 bits: the same for every version of the compiler.
pub(crate) fn of(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    #[test]
    fn hashes_never_change() {
        // Recorded once: other values would break deployed clients.
        assert_eq!(super::of(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(super::of("a"), 0xaf63_dc4c_8601_ec8c);
    }
}
