//! Stable numbers of methods and fingerprints of services. Both are part of the wire format: a
//! change makes clients and servers of different versions incompatible.

use std::ops::Range;

/// Numbers that names are hashed to.
pub(crate) const HASHED: Range<u16> = 0x0400..0x4000;
/// Numbers of the library's own methods: hello, pull, push.
pub(crate) const LIBRARY: Range<u16> = 0x03F0..0x0400;

/// FNV-1a, 64 bits: the same for every version of the compiler.
pub(crate) fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// The number of a method without an explicit one.
pub(crate) fn of_method(service: &str, method: &str) -> u16 {
    let width = u64::from(HASHED.end - HASHED.start);
    HASHED.start + (hash(&format!("{service}.{method}")) % width) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_methods_never_change() {
        // Recorded once: other values would break deployed clients.
        assert_eq!(hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(of_method("Kv", "get"), GET);
        assert_eq!(of_method("Kv", "put"), PUT);
    }

    const GET: u16 = 0x175a;
    const PUT: u16 = 0x3f6b;

    #[test]
    fn numbers_of_methods_are_apart_from_the_librarys() {
        for i in 0..10_000 {
            let number = of_method("Service", &format!("method{i}"));
            assert!(HASHED.contains(&number) && !LIBRARY.contains(&number));
        }
    }
}
