use std::net::IpAddr;

use etherparse::{IpNumber, Ipv4Header, PacketBuilder};
use proptest::prelude::*;

use super::testing::*;
use super::*;

mod transport;

/// Asserts that a packet is good, and is dropped for a reason after a change.
fn drops(packet: &[u8], reason: PacketDrop, change: impl FnOnce(&mut Vec<u8>)) {
    header(packet);
    let mut bad = packet.to_vec();
    change(&mut bad);
    assert_eq!(parse(&bad), Err(reason), "{bad:02x?}");
}

/// As [`drops`], with a right header checksum.
fn drops_fixed(packet: &[u8], reason: PacketDrop, change: impl FnOnce(&mut Vec<u8>)) {
    drops(packet, reason, |p| {
        change(p);
        fix(p);
    });
}

#[test]
fn fields_of_good_packets() {
    let expected = Header {
        version: Version::V4,
        header_len: 24,
        total_len: 27,
        ttl: 9,
        protocol: 17,
        src: A.into(),
        dst: B.into(),
        dont_fragment: true,
        is_fragment: false,
    };
    let mut packet = v4(17, DONT_FRAGMENT, &[148, 4, 0, 0], b"abc");
    assert_eq!(parse(&packet), Ok(expected));
    packet.extend([0; 19]);
    assert_eq!(parse(&packet), Ok(expected), "with padding");

    let expected = Header {
        version: Version::V6,
        header_len: 40,
        total_len: 43,
        src: A6.into(),
        dst: B6.into(),
        ..expected
    };
    let mut packet = v6(17, b"abc");
    assert_eq!(parse(&packet), Ok(expected));
    packet.extend([0; 19]);
    assert_eq!(parse(&packet), Ok(expected), "with padding");
}

#[test]
fn other_versions() {
    assert_eq!(parse(&[]), Err(PacketDrop::Truncated));
    for version in (0..=15).filter(|v| ![4, 6].contains(v)) {
        drops_fixed(&v4(17, 0, &[], &[]), PacketDrop::Version, |p| p[0] = version << 4 | 5);
    }
}

#[test]
fn truncated_at_every_length() {
    for packet in [v4(17, 0, &[1; 8], &[7; 20]), v6(17, &[7; 20])] {
        for len in 0..packet.len() {
            drops(&packet, PacketDrop::Truncated, |p| p.truncate(len));
        }
    }
}

#[test]
fn lengths() {
    let packet = v4(17, 0, &[1; 4], &[7; 20]);
    for words in 0..5 {
        drops(&packet, PacketDrop::HeaderLength, |p| p[0] = 0x40 | words);
    }
    drops_fixed(&packet, PacketDrop::TotalLength, |p| p[3] = 23);
    drops_fixed(&packet, PacketDrop::Truncated, |p| p[2] = 1);
    drops_fixed(&v4(17, 0, &[], &[]), PacketDrop::TotalLength, |p| {
        p[0] = 0x46;
        p.extend([0; 4]);
    });
    drops(&v6(17, &[7; 20]), PacketDrop::Truncated, |p| p[4] = 1);
    drops(&v6(0, &extension(17, 0)), PacketDrop::TotalLength, |p| p[5] = 7);
    // A jumbogram.
    drops(&v6(0, &extension(17, 0)), PacketDrop::TotalLength, |p| p[5] = 0);
    drops(
        &v6(44, &[fragment_header(17, 1, false), vec![1]].concat()),
        PacketDrop::TotalLength,
        |p| {
            p[5] = 7;
        },
    );
}

#[test]
fn each_bit_of_an_ipv4_header_is_checked() {
    let packet = v4(17, 0, &[148, 4, 0, 0], &[]);
    for bit in 0..24 * 8 {
        let mut bad = packet.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        // Only the lengths and the version are checked before.
        let expected = if matches!(bit / 8, 0 | 2 | 3) { None } else { Some(PacketDrop::Checksum) };
        let result = parse(&bad).unwrap_err();
        assert!(expected.is_none_or(|e| e == result), "bit {bit}: {result:?}");
    }
}

#[test]
fn addresses_that_are_not_forwarded() {
    let v4_bad = [
        "0.0.0.0",
        "0.1.2.3",
        "127.0.0.1",
        "127.255.0.9",
        "169.254.7.7",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
    ];
    for address in v4_bad {
        let octets = address.parse::<Ipv4Addr>().unwrap().octets();
        let packet = v4(17, 0, &[], &[]);
        drops_fixed(&packet, PacketDrop::Source, |p| p[12..16].copy_from_slice(&octets));
        drops_fixed(&packet, PacketDrop::Destination, |p| p[16..20].copy_from_slice(&octets));
    }
    for address in ["1.0.0.0", "126.9.9.9", "128.0.0.1", "169.253.0.1", "169.255.0.1", "223.9.9.9"]
    {
        assert!(forwarded(address.parse().unwrap()), "{address}");
    }
    let v6_bad =
        ["::", "::1", "::ffff:10.1.2.3", "fe80::1", "febf:ffff::1", "ff02::1", "ff0e::1:2"];
    for address in v6_bad {
        let octets = address.parse::<Ipv6Addr>().unwrap().octets();
        let packet = v6(17, &[]);
        drops(&packet, PacketDrop::Source, |p| p[8..24].copy_from_slice(&octets));
        drops(&packet, PacketDrop::Destination, |p| p[24..40].copy_from_slice(&octets));
    }
    for address in ["::2", "fec0::1", "fe7f::1", "fd00::1", "64:ff9b::10.0.0.1", "::1:ffff:0:1"] {
        assert!(forwarded(address.parse().unwrap()), "{address}");
    }
}

#[test]
fn options() {
    let good: [&[u8]; 6] = [
        &[0, 0, 0, 0],
        &[1, 1, 1, 1],
        &[1, 1, 1, 7],
        &[148, 4, 0, 0],
        // Behind the end there is no option.
        &[0, 131, 0, 255],
        &[7, 2, 99, 2],
    ];
    let bad: [&[u8]; 7] = [
        &[131, 3, 4, 0],
        &[137, 3, 4, 0],
        &[1, 131, 3, 4],
        &[7, 0, 0, 0],
        &[7, 1, 0, 0],
        &[7, 5, 0, 0],
        &[1, 1, 1, 148],
    ];
    for options in good.iter().filter(|o| o[3] != 7) {
        header(&v4(17, 0, options, &[9; 9]));
    }
    for options in bad.iter().chain(good.iter().filter(|o| o[3] == 7)) {
        assert_eq!(parse(&v4(17, 0, options, &[9; 9])), Err(PacketDrop::Options), "{options:?}");
    }
}

#[test]
fn impossible_fragments() {
    assert!(header(&v4(17, MORE_FRAGMENTS, &[], &[0; 8])).is_fragment);
    assert!(header(&v4(17, 1, &[], &[0; 5])).is_fragment);
    assert!(!header(&v4(17, 0x8000, &[], &[0; 5])).is_fragment, "a reserved flag");
    // Offset, more fragments, bytes of data, bytes of options.
    let bad = [
        (0, true, 7, 0),
        (9, true, 12, 0),
        (0, true, 0, 0),
        (5, false, 0, 0),
        (8191, false, 8, 0),
        (8191, true, 8, 0),
        (8189, false, 4, 0),
        (8188, false, 8, 4),
    ];
    for (offset, more, len, options) in bad {
        let flags = offset | (u16::from(more) * MORE_FRAGMENTS);
        let packet = v4(17, flags, &vec![1; options], &vec![0; len]);
        assert_eq!(parse(&packet), Err(PacketDrop::Fragment), "{offset} {more} {len}");
    }
    header(&v4(17, 8189, &[], &[0; 3]));
    header(&v4(17, 8188, &[], &[0; 8]));

    let packet =
        |offset, more, len| v6(44, &[fragment_header(17, offset, more), vec![0; len]].concat());
    assert!(header(&packet(0, true, 8)).is_fragment);
    assert!(header(&packet(0, false, 3)).is_fragment);
    assert!(header(&packet(8191, false, 7)).is_fragment);
    for (offset, more, len) in
        [(0, true, 7), (0, true, 0), (3, false, 0), (8191, false, 8), (8190, true, 16)]
    {
        assert_eq!(
            parse(&packet(offset, more, len)),
            Err(PacketDrop::Fragment),
            "{offset} {more} {len}"
        );
    }
}

#[test]
fn any_time_to_live_is_accepted() {
    for ttl in [0, 1, 255] {
        let (mut packet, mut packet_v6) = (v4(17, 0, &[], &[]), v6(17, &[]));
        packet[8] = ttl;
        fix(&mut packet);
        packet_v6[7] = ttl;
        assert_eq!(header(&packet).ttl, ttl);
        assert_eq!(header(&packet_v6).ttl, ttl);
    }
}

#[test]
fn decrementing_changes_only_ttl_and_checksum() {
    let mut packet = v6(17, b"data");
    let mut expected = packet.clone();
    expected[7] -= 1;
    let header_v6 = header(&packet);
    decrement_ttl(&mut packet, &header_v6);
    assert_eq!(packet, expected);
}

proptest! {
    #[test]
    fn decrementing_every_ttl_keeps_the_checksum(packet in any_v4()) {
        for ttl in 1..=255 {
            let mut packet = packet.clone();
            packet[8] = ttl;
            fix(&mut packet);
            let mut expected = packet.clone();
            expected[8] -= 1;
            fix(&mut expected);
            let header = header(&packet);
            decrement_ttl(&mut packet, &header);
            prop_assert_eq!(packet, expected);
        }
    }

    #[test]
    fn any_checksum_that_is_right_stays_right(mut packet in any_v4(), word in any::<u16>()) {
        // Of all sums, some make the checksum 0, for which 0xffff is right, too.
        packet[8] |= 1;
        packet[4..6].copy_from_slice(&word.to_be_bytes());
        fix(&mut packet);
        let sum = u16::from_be_bytes([packet[10], packet[11]]);
        packet[4..6].copy_from_slice(&word.wrapping_add(sum).to_be_bytes());
        fix(&mut packet);
        if packet[10..12] == [0, 0] {
            packet[10..12].fill(0xff);
        }
        let before = header(&packet);
        decrement_ttl(&mut packet, &before);
        prop_assert_eq!(header(&packet), Header { ttl: before.ttl - 1, ..before });
    }

    #[test]
    fn packets_of_etherparse_have_its_fields(
        (src, dst) in (any::<[u8; 16]>(), any::<[u8; 16]>()),
        (ttl, kind, is_v4) in (any::<u8>(), 0..3u8, any::<bool>()),
        options in super::testing::options(),
        (id, dont_fragment) in (any::<u16>(), any::<bool>()),
        data in prop::collection::vec(any::<u8>(), 0..1500),
    ) {
        let first = |a: &[u8], n: usize| -> [u8; 4] { [n as u8, a[1] | 1, a[2], a[3]] };
        let (src4, dst4) = (first(&src, 10), first(&dst, 99));
        let (mut src6, mut dst6) = (src, dst);
        (src6[0], dst6[0]) = (0x20, 0xfd);
        let builder = if is_v4 {
            let mut ip = Ipv4Header::new(0, ttl, IpNumber::UDP, src4, dst4).unwrap();
            ip.identification = id;
            ip.dont_fragment = dont_fragment;
            ip.options = options[..].try_into().unwrap();
            PacketBuilder::ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
        } else {
            PacketBuilder::ipv6(src6, dst6, ttl)
        };
        macro_rules! write {
            ($protocol:literal, $builder:expr) => {{
                let builder = $builder;
                let mut packet = vec![0; builder.size(data.len())];
                builder.write_to_slice(&mut packet, &data).unwrap();
                ($protocol, packet)
            }};
        }
        let (protocol, packet) = match kind {
            0 => write!(17, builder.udp(1, 2)),
            1 => write!(6, builder.tcp(1, 2, 3, 4)),
            2 if is_v4 => write!(1, builder.icmpv4_echo_request(5, 6)),
            _ => write!(58, builder.icmpv6_echo_request(5, 6)),
        };
        let (src, dst): (IpAddr, IpAddr) =
            if is_v4 { (src4.into(), dst4.into()) } else { (src6.into(), dst6.into()) };
        prop_assert_eq!(parse(&packet), Ok(Header {
            version: if is_v4 { Version::V4 } else { Version::V6 },
            header_len: if is_v4 { 20 + options.len() as u16 } else { 40 },
            total_len: packet.len() as u32,
            ttl,
            protocol,
            src,
            dst,
            dont_fragment: !is_v4 || dont_fragment,
            is_fragment: false,
        }));
        let header = header(&packet);
        let at = usize::from(header.header_len);
        if matches!(kind, 0 | 1) {
            // Spoilt as by a sender that leaves the checksum to hardware, then completed.
            let mut partial = packet.clone();
            let field = at + if kind == 0 { 6 } else { 16 };
            partial[field..field + 2].copy_from_slice(&[0x12, 0x34]);
            prop_assert!(complete_checksum(&mut partial, &header));
            prop_assert_eq!(transport_checksum(&partial, protocol, at), 0);
            prop_assert_eq!(partial, packet);
        }
    }
}
