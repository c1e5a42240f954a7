//! Bytes of requests and responses. Numbers are little-endian.
//!
//! | type | request | response |
//! | --- | --- | --- |
//! | [`GET`] | key | value; empty if there is none |
//! | [`PUT`] | key, value | one byte: 1 if it replaced a value, 0 if the key is new, 2 if the index is full |
//! | [`DELETE`] | key | one byte: 1 if the key was there |
//! | [`SCAN`], [`SCAN_AT_ONCE`] | key, number of keys (4 bytes) | sum, number of values (4 bytes) |
//! | [`ECHO`] | any | the request |
//!
//! A request of another length is rejected.

use crate::index::Sum;

/// Reads a value.
pub const GET: u16 = 1;
/// Stores a value.
pub const PUT: u16 = 2;
/// Removes a key.
pub const DELETE: u16 = 3;
/// Sums values, where the server runs its scans.
pub const SCAN: u16 = 4;
/// Sums values in a dispatch handler, on servers that have both, for comparison.
pub const SCAN_AT_ONCE: u16 = 5;
/// Plain RPCs, for comparison.
pub const ECHO: u16 = 6;

/// The answer to a [`PUT`] of a new key in a full index: nothing was stored.
pub const FULL: u8 = 2;

/// Most keys of a scan: 5 us or so for 128, a millisecond for this.
pub const MOST_SCANNED: u32 = 16_384;

/// A request with a number, by its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scan {
    /// The first key, or the least one above it.
    pub from: u64,
    /// Number of keys, at most [`MOST_SCANNED`].
    pub count: u32,
}

/// Reads a key.
pub fn key(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Reads a key and a value.
pub fn entry(bytes: &[u8]) -> Option<(u64, u64)> {
    let (first, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*first), key(rest)?))
}

/// Reads a scan.
pub fn scan(bytes: &[u8]) -> Option<Scan> {
    let (from, count) = number_and_count(bytes)?;
    (count <= MOST_SCANNED).then_some(Scan { from, count })
}

/// Reads the result of a scan.
pub fn sum(bytes: &[u8]) -> Option<Sum> {
    let (sum, count) = number_and_count(bytes)?;
    Some(Sum { sum, count })
}

fn number_and_count(bytes: &[u8]) -> Option<(u64, u32)> {
    let (first, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*first), u32::from_le_bytes(rest.try_into().ok()?)))
}

/// Writes a key and a value.
pub fn entry_bytes(key: u64, value: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    bytes[8..].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// Writes a scan, or its result.
pub fn number_and_count_bytes(number: u64, count: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..].copy_from_slice(&count.to_le_bytes());
    bytes
}

/// The n-th key of a loaded index: keys are spread over all numbers, and each has an `n`.
pub fn nth_key(n: u64) -> u64 {
    // An odd factor is a bijection; this one spreads neighbours far apart.
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The value that a loaded index has for its n-th key.
pub fn nth_value(n: u64) -> u64 {
    n + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back_and_other_lengths_are_refused() {
        assert_eq!(entry(&entry_bytes(7, u64::MAX)), Some((7, u64::MAX)));
        assert_eq!(scan(&number_and_count_bytes(9, 128)), Some(Scan { from: 9, count: 128 }));
        assert_eq!(scan(&number_and_count_bytes(9, MOST_SCANNED + 1)), None);
        for len in (0..40).filter(|len| ![8, 12, 16].contains(len)) {
            let bytes = vec![1; len];
            assert!(key(&bytes).is_none() && entry(&bytes).is_none() && scan(&bytes).is_none());
        }
        assert!(key(&[0; 12]).is_none() && entry(&[0; 8]).is_none() && scan(&[0; 16]).is_none());
    }
}
