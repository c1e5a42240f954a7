//! Completed checksums of TCP and UDP.

use super::super::testing::*;
use super::super::*;

/// UDP from port 1 to port 2 with a checksum field that is not 0.
fn udp(data: &[u8]) -> Vec<u8> {
    let len = ((8 + data.len()) as u16).to_be_bytes();
    [&[0, 1, 0, 2, len[0], len[1], 0x77, 0x77], data].concat()
}

/// Completes the checksum of a packet, and checks that nothing changed if there was none.
fn completes(packet: &mut [u8]) -> bool {
    let (before, header) = (packet.to_vec(), header(packet));
    let completed = complete_checksum(packet, &header);
    assert_eq!(completed, packet != before);
    completed
}

#[test]
fn checksums_are_completed_behind_padding_and_extension_headers() {
    let mut packet = v4(17, 0, &[1; 4], &udp(b"abc"));
    packet.extend([0xee; 9]);
    assert!(completes(&mut packet));
    assert_eq!(transport_checksum(&packet[..24 + 11], 17, 24), 0);

    let mut packet = v6(60, &[extension(17, 1), udp(b"abc")].concat());
    assert!(completes(&mut packet));
    assert_eq!(transport_checksum(&packet, 17, 56), 0);
}

#[test]
fn a_udp_checksum_of_zero_is_written_as_ones() {
    let mut packet = v4(17, 0, &[], &udp(&[0, 0]));
    packet[26..28].fill(0);
    let word = transport_checksum(&packet, 17, 20);
    packet[28..30].copy_from_slice(&word.to_be_bytes());
    packet[26..28].fill(0x77);
    assert!(completes(&mut packet));
    assert_eq!(packet[26..28], [0xff, 0xff]);
    assert_eq!(transport_checksum(&packet, 17, 20), 0);
}

#[test]
fn a_tcp_checksum_of_zero_stays_zero() {
    let mut packet = v4(6, 0, &[], &[0; 22]);
    let word = transport_checksum(&packet, 6, 20);
    packet[40..42].copy_from_slice(&word.to_be_bytes());
    packet[36] = 7;
    assert!(completes(&mut packet));
    assert_eq!(packet[36..38], [0, 0]);
}

#[test]
fn checksums_that_cannot_be_completed() {
    let no_checksum = |mut data: Vec<u8>| {
        data[6..8].fill(0);
        data
    };
    let with_len = |len| {
        let mut data = udp(b"12345678");
        data[5] = len;
        data
    };
    let mut routing = extension(17, 0);
    routing[3] = 1;
    let bad = [
        ("ICMP", v4(1, 0, &[], &udp(b"12345678"))),
        ("first fragment", v4(17, MORE_FRAGMENTS, &[], &udp(b"12345678"))),
        ("last fragment", v4(17, 1, &[], &udp(b"12345678"))),
        ("short UDP", v4(17, 0, &[], &udp(b"")[..7])),
        ("very short UDP", v4(17, 0, &[], &[1; 5])),
        ("short TCP", v4(6, 0, &[], &[1; 19])),
        ("UDP without checksum", v4(17, 0, &[], &no_checksum(udp(b"12345678")))),
        ("UDP length below header", v4(17, 0, &[], &with_len(7))),
        ("UDP length beyond packet", v4(17, 0, &[], &with_len(17))),
        ("v6 without checksum", v6(17, &no_checksum(udp(b"12345678")))),
        ("v6 fragment", v6(44, &[fragment_header(17, 0, false), udp(b"12345678")].concat())),
        ("v6 routing", v6(43, &[routing, udp(b"12345678")].concat())),
        ("v6 short extension", v6(60, &extension(17, 1)[..8])),
    ];
    for (what, mut packet) in bad {
        assert!(!completes(&mut packet), "{what}");
    }
    assert!(completes(&mut v4(17, 0, &[], &with_len(12))), "data behind UDP");
    assert!(completes(&mut v6(43, &[extension(17, 0), udp(b"1")].concat())), "no route left");
}
