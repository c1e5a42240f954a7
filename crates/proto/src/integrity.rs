//! Protection of frames against changes on the way.
//!
//! UDP's checksum of 16 bits misses one change in 65,536, and devices that rewrite headers compute
//! it again over whatever they hold. With [`Integrity::Crc`] the cookie field of a frame contains
//!
//! ```text
//! cookie ^ CRC-32C(bytes 0 to 7, then bytes 12 to the end)
//! ```
//!
//! so that one comparison checks the cookie and every other bit, and a frame is no longer than
//! without. CRC-32C finds up to three changed bits in frames of any length, and every burst of up to
//! 32 bits. It does not authenticate: an attacker that knows the cookie can compute it.

use serde::{Deserialize, Serialize};

use crate::mutant::{self, Mutant};
use crate::wire::FRAME_HEADER;

/// How frames are protected against changes on the way. Two endpoints agree on the stronger of
/// their choices when they connect; the variants are in that order.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum Integrity {
    /// By nothing but the transport.
    #[default]
    None,
    /// By a CRC-32C of each frame, which is dropped when it differs
    /// ([`Drop::Checksum`](crate::Drop::Checksum)).
    Crc,
}

impl Integrity {
    /// Its name in settings and results.
    pub const fn name(self) -> &'static str {
        match self {
            Integrity::None => "none",
            Integrity::Crc => "crc",
        }
    }
}

impl std::fmt::Display for Integrity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Integrity {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Integrity::None, Integrity::Crc];
        let found = all.into_iter().find(|integrity| integrity.name() == text);
        found.ok_or_else(|| format!("{text:?} is no integrity; use none or crc"))
    }
}

/// The place of the cookie in a frame.
const COOKIE: std::ops::Range<usize> = 8..12;

/// Frames with at most this many bytes after the cookie are checked in a copy without it: for them
/// the start of an incremental computation takes longer than the copy.
const SHORT: usize = 120;

/// The value that a frame of these parts adds to its cookie. `tail` follows `frame`.
fn check_value(frame: &[u8], tail: &[u8]) -> u32 {
    let (head, rest) = frame.split_at_checked(COOKIE.end).unwrap_or((frame, &[]));
    let head = head.get(..COOKIE.start).unwrap_or(head);
    let mut copy = [0; COOKIE.start + SHORT];
    let len = head.len() + rest.len();
    if tail.is_empty()
        && let Some(whole) = copy.get_mut(..len)
    {
        let (first, second) = whole.split_at_mut(head.len());
        first.copy_from_slice(head);
        second.copy_from_slice(rest);
        return crc_fast::crc32_iscsi(whole);
    }
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    for part in [head, rest, tail] {
        digest.update(part);
    }
    digest.finalize() as u32
}

/// Adds the check value to the cookie of a complete frame; `tail` is the data that follows it.
#[inline(never)]
pub(crate) fn protect(frame: &mut [u8], tail: &[u8]) {
    add_to_cookie(frame, check_value(frame, tail));
}

#[inline]
fn add_to_cookie(frame: &mut [u8], value: u32) {
    if let Some(cookie) = frame.get_mut(COOKIE).and_then(|bytes| bytes.first_chunk_mut()) {
        *cookie = (u32::from_le_bytes(*cookie) ^ value).to_le_bytes();
    }
}

/// The same for a frame of several parts, of which `head` is the first and contains the cookie.
pub(crate) fn protect_parts<'a>(head: &mut [u8], parts: impl Iterator<Item = &'a [u8]>) {
    let (before, after) = head.split_at_checked(COOKIE.end).unwrap_or((head, &[]));
    let before = before.get(..COOKIE.start).unwrap_or(before);
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(before);
    digest.update(after);
    parts.for_each(|part| digest.update(part));
    add_to_cookie(head, digest.finalize() as u32);
}

/// Whether `cookie`, the field of the received frame, is that of a protected frame with the cookie
/// `expected`.
#[inline(never)]
pub(crate) fn is_intact(expected: u32, cookie: u32, frame: &[u8]) -> bool {
    cookie ^ check_value(frame, &[]) == expected || mutant::is_on(Mutant::ChecksumIgnored)
}

const _: () = assert!(COOKIE.end <= FRAME_HEADER);

#[cfg(test)]
mod tests {
    use super::*;

    fn protected(len: usize, cookie: u32) -> Vec<u8> {
        let mut frame: Vec<u8> = (0..len).map(|at| (at * 7 + 3) as u8).collect();
        frame[COOKIE].copy_from_slice(&cookie.to_le_bytes());
        protect(&mut frame, &[]);
        frame
    }

    fn cookie_of(frame: &[u8]) -> u32 {
        u32::from_le_bytes(frame[COOKIE].try_into().unwrap())
    }

    fn is_valid(frame: &[u8], cookie: u32) -> bool {
        cookie_of(frame) ^ check_value(frame, &[]) == cookie
    }

    /// The standard's example: the CRC-32C of `123456789` is `e3069283`.
    #[test]
    fn the_check_value_is_the_crc_of_all_but_the_cookie() {
        let frame = b"12345678cook9";
        assert_eq!(check_value(frame, &[]), 0xe306_9283);
        assert_eq!(check_value(&frame[..12], b"9"), 0xe306_9283);
    }

    #[test]
    fn a_frame_in_parts_has_the_value_of_the_whole() {
        let whole = protected(1472, 77);
        for at in [FRAME_HEADER, 44, 700, 1471, 1472] {
            let (frame, tail) = whole.split_at(at);
            assert_eq!(check_value(frame, tail), check_value(&whole, &[]), "{at}");
            let mut parts = frame.to_vec();
            parts[COOKIE].copy_from_slice(&77_u32.to_le_bytes());
            protect(&mut parts, tail);
            assert_eq!(parts, frame, "{at}");
            parts[COOKIE].copy_from_slice(&77_u32.to_le_bytes());
            protect_parts(&mut parts, tail.chunks(100));
            assert_eq!(parts, frame, "{at}");
        }
    }

    #[test]
    fn every_one_and_two_changed_bits_of_a_small_frame_are_found() {
        let cookie = 0x1234_5678;
        let mut frame = protected(76, cookie);
        assert!(is_valid(&frame, cookie));
        let bits = frame.len() * 8;
        let flip = |frame: &mut [u8], bit: usize| frame[bit / 8] ^= 1 << (bit % 8);
        for first in 0..bits {
            flip(&mut frame, first);
            assert!(!is_valid(&frame, cookie), "bit {first}");
            for second in first + 1..bits {
                flip(&mut frame, second);
                assert!(!is_valid(&frame, cookie), "bits {first} and {second}");
                flip(&mut frame, second);
            }
            flip(&mut frame, first);
        }
    }
}
