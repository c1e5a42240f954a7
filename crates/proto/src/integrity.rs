//! Protection of frames against changes on the way.
//!
//! UDP's checksum of 16 bits misses one change in 65,536, and devices that rewrite headers compute
//! it again over whatever they hold. With [`Integrity::Crc`] the cookie field of a frame contains
//!
//! ```text
//! cookie ^ CRC-32C(bytes 8 to the end) ^ flags * FLAGS_FACTOR
//! ```
//!
//! so that one comparison checks the cookie and every other bit, and a frame is no longer than
//! without. The version and the packet size, which are the rest of the first four bytes, are compared
//! with the only value that is valid. Up to three changed bits are found in frames of any length, and
//! every burst of up to 32 bits after the cookie. It does not authenticate: an attacker that knows
//! the cookie can compute it.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::mutant::{self, Mutant};
use crate::wire::{FRAME_HEADER, front_word};

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
    /// ([`RxDrop::Checksum`](crate::RxDrop::Checksum)).
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

/// The protection of the frames between two endpoints, on which they have agreed: completes frames that
/// leave, and checks frames that arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Protection(Integrity);

impl Protection {
    pub(crate) const NONE: Protection = Protection(Integrity::None);

    // ---- negotiation --------------------------------------------------------------------------

    /// The protection that a client asks for, or that a server has stated.
    pub(crate) fn of(integrity: Integrity) -> Self {
        Protection(integrity)
    }

    /// The stronger of two choices.
    pub(crate) fn agreed(asked: Integrity, own: Integrity) -> Self {
        Protection(asked.max(own))
    }

    /// Returns whether an answer is as strong as what was asked for.
    pub(crate) fn accepts(self, answer: Integrity) -> bool {
        answer >= self.0
    }

    pub(crate) fn integrity(self) -> Integrity {
        self.0
    }

    // ---- frames that leave --------------------------------------------------------------------

    /// Completes a frame with its header; `tail` is the data that follows it.
    #[inline]
    pub(crate) fn seal(self, frame: &mut [u8], tail: &[u8]) {
        if self.0 == Integrity::Crc {
            protect(frame, tail);
        }
    }

    /// Returns whether all bytes of a frame are part of it: a frame that leaves is completed, and one
    /// that arrives must not change any more.
    #[inline]
    pub(crate) fn covers_frames(self) -> bool {
        self.0 == Integrity::Crc
    }

    /// Completes a frame of several parts, of which `head` is the first and contains the cookie.
    pub(crate) fn seal_parts<'a>(self, head: &mut [u8], parts: impl Iterator<Item = &'a [u8]>) {
        if self.0 == Integrity::Crc {
            protect_parts(head, parts);
        }
    }

    // ---- frames that arrive -------------------------------------------------------------------

    /// The first word of the peer's frames without flags, if that word alone shows that a frame is the
    /// peer's; else [`Protection::refuses_cookie`] and [`Protection::opens`] are asked.
    pub(crate) fn front(self, data_per_packet: u16, cookie: u32) -> Option<NonZeroU64> {
        match self.0 {
            Integrity::None => NonZeroU64::new(front_word(data_per_packet, cookie)),
            _ => None,
        }
    }

    /// Returns whether the cookie field of a frame shows by itself that it is no frame of the peer.
    #[inline]
    pub(crate) fn refuses_cookie(self, expected: u32, cookie: u32) -> bool {
        let is_compared = self.0 == Integrity::None && !mutant::is_on(Mutant::CookieIgnored);
        expected != cookie && is_compared
    }

    /// Returns whether a frame with this cookie field arrived as the peer has sent it. `expected` is
    /// the cookie of the peer.
    #[inline]
    pub(crate) fn opens(self, expected: u32, cookie: u32, frame: &[u8]) -> bool {
        self.0 == Integrity::None || is_intact(expected, cookie, frame)
    }
}

/// The place of the flags in a frame.
const FLAGS: usize = 1;

/// The place of the cookie in a frame; the CRC is that of all bytes after it.
const COOKIE: std::ops::Range<usize> = 4..8;

/// The factor by which a flag changes the checksum: the product with the byte `flags` is the CRC
/// (without its initial value) of that byte before 2^24 zeros. So the flags are part of the CRC, at a
/// place where no frame has other bytes.
const FLAGS_FACTOR: u32 = 0x2add_36e8;

/// The value that a frame of these parts adds to its cookie. `tail` follows `frame`.
#[inline]
fn check_value(frame: &[u8], tail: &[u8]) -> u32 {
    let body = frame.get(COOKIE.end..).unwrap_or_default();
    let crc = match tail {
        [] => crc_fast::crc32_iscsi(body),
        tail => crc_of(body, [tail].into_iter()),
    };
    with_flags(crc, frame)
}

/// A CRC with the flags of its frame.
#[inline]
fn with_flags(crc: u32, frame: &[u8]) -> u32 {
    let flags = frame.get(FLAGS).copied().unwrap_or_default();
    crc ^ u32::from(flags).wrapping_mul(FLAGS_FACTOR)
}

/// The CRC of several parts, with a call of the library for each.
fn crc_of<'a>(body: &[u8], parts: impl Iterator<Item = &'a [u8]>) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(body);
    parts.for_each(|part| digest.update(part));
    digest.finalize() as u32
}

/// Adds the check value to the cookie of a complete frame; `tail` is the data that follows it.
fn protect(frame: &mut [u8], tail: &[u8]) {
    add_to_cookie(frame, check_value(frame, tail));
}

#[inline]
fn add_to_cookie(frame: &mut [u8], value: u32) {
    if let Some(cookie) = frame.get_mut(COOKIE).and_then(|bytes| bytes.first_chunk_mut()) {
        *cookie = (u32::from_le_bytes(*cookie) ^ value).to_le_bytes();
    }
}

/// The same for a frame of several parts, of which `head` is the first and contains the cookie.
fn protect_parts<'a>(head: &mut [u8], parts: impl Iterator<Item = &'a [u8]>) {
    let body = head.get(COOKIE.end..).unwrap_or_default();
    let value = with_flags(crc_of(body, parts), head);
    add_to_cookie(head, value);
}

/// Returns whether `cookie`, the field of the received frame, is that of a protected frame with the
/// cookie `expected`.
fn is_intact(expected: u32, cookie: u32, frame: &[u8]) -> bool {
    let compared = if mutant::is_on(Mutant::ChecksumHalved) { 0xffff } else { u32::MAX };
    let differs = (cookie ^ check_value(frame, &[]) ^ expected) & compared;
    differs == 0 || mutant::is_on(Mutant::ChecksumIgnored)
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
    fn the_check_value_is_the_crc_of_all_after_the_cookie() {
        let frame = b"v\0ppcook123456789";
        assert_eq!(check_value(frame, &[]), 0xe306_9283);
        assert_eq!(check_value(&frame[..12], b"56789"), 0xe306_9283);
    }

    /// So up to three changed bits, flags among them, are found as in a CRC of a message of 16 MiB.
    #[test]
    fn a_flag_changes_the_value_like_a_byte_far_before_the_frame() {
        let mut message = vec![0; 1 + (1 << 24)];
        let zeros = crc_fast::crc32_iscsi(&message);
        let mut frame = protected(76, 0);
        for flags in [1, 2] {
            (message[0], frame[FLAGS]) = (flags, 0);
            let without = check_value(&frame, &[]);
            frame[FLAGS] = flags;
            let change = check_value(&frame, &[]) ^ without;
            assert_eq!(change, crc_fast::crc32_iscsi(&message) ^ zeros, "{flags}");
        }
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
    fn one_or_two_changed_bits_of_a_small_frame_are_found() {
        let cookie = 0x1234_5678;
        let mut frame = protected(76, cookie);
        assert!(is_valid(&frame, cookie));
        // The fields of the version and the packet size are compared with a known value.
        let is_checked = |bit: &usize| bit / 8 == FLAGS || bit / 8 >= COOKIE.start;
        let bits: Vec<usize> = (0..frame.len() * 8).filter(is_checked).collect();
        let flip = |frame: &mut [u8], bit: usize| frame[bit / 8] ^= 1 << (bit % 8);
        for (at, &first) in bits.iter().enumerate() {
            flip(&mut frame, first);
            assert!(!is_valid(&frame, cookie), "bit {first}");
            for &second in &bits[at + 1..] {
                flip(&mut frame, second);
                assert!(!is_valid(&frame, cookie), "bits {first} and {second}");
                flip(&mut frame, second);
            }
            flip(&mut frame, first);
        }
    }
}
