//! Packets for tests, made byte by byte, and checksums computed word by word.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::{Header, Version, parse};

pub(super) const A: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 3);
pub(super) const B: Ipv4Addr = Ipv4Addr::new(10, 9, 8, 7);
pub(super) const A6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 3);
pub(super) const B6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 7);

/// The Internet checksum, as RFC 1071 defines it.
pub(super) fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum = 0;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The checksum of TCP, UDP or ICMPv6 data: 0 if the data have the right one.
pub(super) fn transport_checksum(packet: &[u8], protocol: u8, at: usize) -> u16 {
    let data = &packet[at..];
    let addresses = if packet[0] >> 4 == 4 { &packet[12..20] } else { &packet[8..40] };
    checksum(&[addresses, &(data.len() as u32).to_be_bytes(), &[0, 0, 0, protocol], data])
}

/// Writes the checksum of an IPv4 header.
pub(super) fn fix(packet: &mut [u8]) {
    let len = usize::from(packet[0] & 15) * 4;
    packet[10..12].fill(0);
    let sum = checksum(&[&packet[..len]]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// An IPv4 packet from [`A`] to [`B`]. `flags` are flags and fragment offset.
pub(super) fn v4(protocol: u8, flags: u16, options: &[u8], data: &[u8]) -> Vec<u8> {
    assert_eq!(options.len() % 4, 0);
    let mut packet = vec![0; 20];
    packet[0] = 0x45 + (options.len() / 4) as u8;
    packet[2..4].copy_from_slice(&((20 + options.len() + data.len()) as u16).to_be_bytes());
    packet[4..6].copy_from_slice(&[0xab, 0xcd]);
    packet[6..8].copy_from_slice(&flags.to_be_bytes());
    packet[8] = 9;
    packet[9] = protocol;
    packet[12..16].copy_from_slice(&A.octets());
    packet[16..20].copy_from_slice(&B.octets());
    packet.extend_from_slice(options);
    packet.extend_from_slice(data);
    fix(&mut packet);
    packet
}

/// An IPv6 packet from [`A6`] to [`B6`].
pub(super) fn v6(next: u8, data: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend_from_slice(&(data.len() as u16).to_be_bytes());
    packet.extend_from_slice(&[next, 9]);
    packet.extend_from_slice(&A6.octets());
    packet.extend_from_slice(&B6.octets());
    packet.extend_from_slice(data);
    packet
}

/// An IPv6 extension header of `8 * (more + 1)` bytes.
pub(super) fn extension(next: u8, more: u8) -> Vec<u8> {
    let mut header = vec![0; 8 * (usize::from(more) + 1)];
    header[0] = next;
    header[1] = more;
    header
}

/// An IPv6 fragment header.
pub(super) fn fragment_header(next: u8, offset: u16, more: bool) -> Vec<u8> {
    let field = (offset << 3 | u16::from(more)).to_be_bytes();
    vec![next, 0, field[0], field[1], 1, 2, 3, 4]
}

/// The header of a packet that has to be good.
pub(super) fn header(packet: &[u8]) -> Header {
    parse(packet).unwrap_or_else(|reason| panic!("{reason:?}: {packet:02x?}"))
}

/// IPv4 options with copied and other ones, of up to 40 bytes.
pub(super) fn options() -> impl Strategy<Value = Vec<u8>> {
    let option = prop_oneof![
        Just(vec![1]),
        Just(vec![7, 7, 4, 0, 0, 0, 0]),
        Just(vec![68, 8, 5, 0, 0, 0, 0, 0]),
        Just(vec![148, 4, 0, 0]),
        Just(vec![136, 4, 1, 2]),
        prop::collection::vec(any::<u8>(), 3..9).prop_map(|mut option| {
            (option[0], option[1]) = (130, option.len() as u8);
            option
        }),
    ];
    prop::collection::vec(option, 0..6).prop_map(|all| {
        let mut options = Vec::new();
        for option in all.into_iter().filter(|o| !o.is_empty()) {
            if options.len() + option.len() <= 40 {
                options.extend(option);
            }
        }
        options.resize(options.len().next_multiple_of(4), 0);
        options
    })
}

/// An IPv4 header with any fields, and its version.
pub(super) fn any_v4() -> impl Strategy<Value = Vec<u8>> {
    let fields = (any::<[u8; 20]>(), options(), 0..200usize);
    fields.prop_map(|(bytes, options, len)| {
        let mut packet = v4(bytes[9], 0, &options, &vec![0x5a; len]);
        packet[1] = bytes[1];
        packet[4..6].copy_from_slice(&bytes[4..6]);
        packet[8] = bytes[8];
        packet[12..20].copy_from_slice(&bytes[12..20]);
        for at in [12, 16] {
            packet[at] = [bytes[at], 10][usize::from(matches!(bytes[at], 0 | 127 | 169 | 224..))];
        }
        fix(&mut packet);
        assert_eq!(header(&packet).version, Version::V4);
        packet
    })
}
