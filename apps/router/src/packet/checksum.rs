//! Internet checksums (RFC 1071).

use std::net::IpAddr;

use etherparse::checksum::Sum16BitWords;

use super::{Header, V4_LEN};

/// Returns whether an IPv4 header has the right checksum.
#[inline]
pub(super) fn header_is_right(fixed: &[u8; V4_LEN], options: &[u8]) -> bool {
    fold(words(fixed) + words(options)) == 0xffff
}

/// The checksum of an IPv4 header in which the field is 0.
pub(crate) fn of_header(header: &[u8]) -> u16 {
    !fold(words(header))
}

/// The checksum of TCP, UDP or ICMPv6 in which the field is 0. If the field has the right checksum,
/// the result is 0.
pub(super) fn transport(header: &Header, protocol: u8, data: &[u8]) -> u16 {
    let mut sum = Sum16BitWords::new().add_2bytes([0, protocol]);
    sum = sum.add_4bytes((data.len() as u32).to_be_bytes());
    for address in [header.src, header.dst] {
        sum = match address {
            IpAddr::V4(address) => sum.add_4bytes(address.octets()),
            IpAddr::V6(address) => sum.add_16bytes(address.octets()),
        };
    }
    // Its words are of native byte order.
    sum.add_slice(data).ones_complement().to_be()
}

/// Whether ICMP data have the right checksum: the sum with the field is all ones.
pub(super) fn icmp_is_right(data: &[u8]) -> bool {
    Sum16BitWords::new().add_slice(data).ones_complement() == 0
}

/// The sum of a header, whose length is a multiple of 4.
#[inline]
fn words(header: &[u8]) -> u64 {
    let (words, _) = header.as_chunks::<4>();
    words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum()
}

#[inline]
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    // At most 60 bytes: the sum of the 32-bit words has 36 bits, and these two steps are enough.
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}
