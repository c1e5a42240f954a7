use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::super::testing::*;
use super::super::{DONT_FRAGMENT, MORE_FRAGMENTS, parse};
use super::*;

const ROUTER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const ROUTER6: IpAddr = IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
const PROBLEMS: [Problem; 4] = [
    Problem::TimeExceeded,
    Problem::NoRoute,
    Problem::HostUnreachable,
    Problem::TooBig { mtu: 1400 },
];

fn router(packet: &[u8]) -> IpAddr {
    if packet[0] >> 4 == 4 { ROUTER } else { ROUTER6 }
}

/// The error message about a packet.
fn report(problem: Problem, packet: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![1; 3];
    let sent = error(problem, packet, &header(packet), router(packet), &mut out);
    assert_eq!(sent, !out.is_empty());
    sent.then_some(out)
}

/// Checks addresses, TTL and checksums of a message, and that etherparse takes it for ICMP.
fn check(message: &[u8], from: IpAddr, to: IpAddr) {
    let parsed = header(message);
    assert_eq!((parsed.src, parsed.dst, parsed.ttl), (from, to, 64));
    assert_eq!(parsed.total_len as usize, message.len());
    match (parsed.version, SlicedPacket::from_ip(message).unwrap().transport) {
        (Version::V4, Some(TransportSlice::Icmpv4(_))) => {
            assert_eq!(testing_checksum(&message[20..]), 0);
        }
        (Version::V6, Some(TransportSlice::Icmpv6(_))) => {
            assert_eq!(transport_checksum(message, 58, 40), 0);
        }
        other => panic!("{other:?}"),
    }
}

fn testing_checksum(data: &[u8]) -> u16 {
    super::super::testing::checksum(&[data])
}

#[test]
fn types_and_codes() {
    let expected = [
        ([11, 0, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0]),
        ([3, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]),
        ([3, 1, 0, 0, 0, 0], [1, 3, 0, 0, 0, 0]),
        ([3, 4, 0, 0, 5, 120], [2, 0, 0, 0, 5, 120]),
    ];
    for (problem, (type_v4, type_v6)) in PROBLEMS.into_iter().zip(expected) {
        for (packet, expected, at) in
            [(v4(17, 0, &[], b"abc"), type_v4, 20), (v6(17, b"abc"), type_v6, 40)]
        {
            let message = report(problem, &packet).unwrap();
            check(&message, router(&packet), header(&packet).src);
            assert_eq!([&message[at..at + 2], &message[at + 4..at + 8]].concat(), expected);
            assert_eq!(message[at + 8..], packet);
        }
    }
    assert_eq!(report(Problem::NoRoute, &v4(17, 0, &[], &[])).unwrap()[1], 0xc0, "precedence");
}

proptest! {
    #[test]
    fn errors_quote_as_much_as_fits(
        is_v4: bool,
        len in 0..2000usize,
        padding in 0..50usize,
        options in super::super::testing::options(),
        problem in prop::sample::select(&PROBLEMS[..]),
    ) {
        let data: Vec<u8> = (0..len).map(|n| n as u8).collect();
        let mut packet = if is_v4 { v4(17, 0, &options, &data) } else { v6(17, &data) };
        let quoted = packet.len().min(if is_v4 { 548 } else { 1232 });
        let expected = packet[..quoted].to_vec();
        packet.resize(packet.len() + padding, 0xee);
        let message = report(problem, &packet).unwrap();
        check(&message, router(&packet), header(&packet).src);
        prop_assert_eq!(&message[if is_v4 { 28 } else { 48 }..], expected);
    }

    #[test]
    fn echo_requests_are_answered(
        is_v4: bool,
        id: u16,
        seq: u16,
        dont_fragment: bool,
        data in prop::collection::vec(any::<u8>(), 0..2000),
        options in super::super::testing::options(),
        padding in 0..50usize,
    ) {
        let mut request = echo_request(is_v4, id, seq, &data, &options);
        if is_v4 && dont_fragment {
            request[6] = 0x40;
            fix(&mut request);
        }
        request.resize(request.len() + padding, 0xee);
        let parsed = header(&request);
        let mut reply = vec![7; 7];
        prop_assert!(echo_reply(&request, &parsed, &mut reply));
        check(&reply, parsed.dst, parsed.src);
        let at = if is_v4 { 20 } else { 40 };
        let (id, seq) = (id.to_be_bytes(), seq.to_be_bytes());
        let kind = if is_v4 { 0 } else { 129 };
        prop_assert_eq!(&reply[at..at + 2], [kind, 0]);
        prop_assert_eq!(&reply[at + 4..at + 8], [id, seq].concat());
        prop_assert_eq!(&reply[at + 8..], data);
        prop_assert_eq!(header(&reply).dont_fragment, parsed.dont_fragment);
        if let NetSlice::Ipv4(ip) = SlicedPacket::from_ip(&reply).unwrap().net.unwrap() {
            prop_assert_eq!(ip.header().identification(), 0xabcd);
        }
    }
}

fn echo_request(is_v4: bool, id: u16, seq: u16, data: &[u8], options: &[u8]) -> Vec<u8> {
    let (id, seq) = (id.to_be_bytes(), seq.to_be_bytes());
    let kind = if is_v4 { 8 } else { 128 };
    let icmp = [&[kind, 0, 0, 0], &id[..], &seq[..], data].concat();
    let mut packet = if is_v4 { v4(1, 0, options, &icmp) } else { v6(58, &icmp) };
    let at = packet.len() - icmp.len();
    let sum = if is_v4 { testing_checksum(&icmp) } else { transport_checksum(&packet, 58, at) };
    packet[at + 2..at + 4].copy_from_slice(&sum.to_be_bytes());
    packet
}

#[test]
fn replies_repeat_the_service_class_without_congestion_bits() {
    let mut request = echo_request(true, 1, 2, b"", &[]);
    request[1] = 0xbb;
    fix(&mut request);
    let mut reply = Vec::new();
    assert!(echo_reply(&request, &header(&request), &mut reply));
    assert_eq!(reply[1], 0xb8);

    let mut request = echo_request(false, 1, 2, b"", &[]);
    request[..4].copy_from_slice(&[0x6b, 0xb1, 2, 3]);
    assert!(echo_reply(&request, &header(&request), &mut reply));
    assert_eq!(reply[..4], [0x6b, 0x80, 0, 0]);
}

#[test]
fn packets_that_are_no_echo_requests() {
    let refused = |what: &str, packet: &[u8]| {
        let mut out = vec![1];
        assert!(!echo_reply(packet, &header(packet), &mut out), "{what}");
        assert!(out.is_empty(), "{what}");
    };
    for is_v4 in [true, false] {
        let good = echo_request(is_v4, 1, 2, b"data", &[]);
        let at = if is_v4 { 20 } else { 40 };
        let changed = |changes: &[(usize, u8)]| {
            let mut packet = good.clone();
            for (byte, to) in changes {
                packet[*byte] = *to;
            }
            // The checksum stays right, unless it is itself changed.
            if !changes.iter().any(|(byte, _)| (at + 2..at + 4).contains(byte)) {
                packet[at + 2..at + 4].fill(0);
                let sum = if is_v4 {
                    testing_checksum(&packet[at..])
                } else {
                    transport_checksum(&packet, 58, at)
                };
                packet[at + 2..at + 4].copy_from_slice(&sum.to_be_bytes());
            }
            if is_v4 {
                fix(&mut packet);
            }
            packet
        };
        refused("a reply", &changed(&[(at, if is_v4 { 0 } else { 129 })]));
        refused("the type of the other version", &changed(&[(at, if is_v4 { 128 } else { 8 })]));
        refused("a code", &changed(&[(at + 1, 1)]));
        refused("a wrong checksum", &changed(&[(at + 2, !good[at + 2])]));
        refused("UDP", &changed(&[(if is_v4 { 9 } else { 6 }, 17)]));
        refused(
            "ICMP of the other version",
            &changed(&[(if is_v4 { 9 } else { 6 }, 59 - good[if is_v4 { 9 } else { 6 }])]),
        );
        if is_v4 {
            refused("a last fragment", &changed(&[(7, 1)]));
        }
    }
    refused("a first fragment", &{
        let mut packet = echo_request(true, 1, 2, b"12345678", &[]);
        packet[6] = 0x20;
        fix(&mut packet);
        packet
    });
    refused("short ICMP", &v4(1, 0, &[], &[8, 0, 0xf7, 0xff, 0, 0, 0]));
    let icmp = &echo_request(false, 1, 2, b"data", &[])[40..];
    refused("an extension header", &v6(60, &[&extension(58, 0), icmp].concat()));
    refused("an IPv6 fragment", &v6(44, &[&fragment_header(58, 0, false), icmp].concat()));
}

#[test]
fn errors_about_icmp() {
    for kind in 0..=255 {
        let query = matches!(kind, 0 | 8 | 9 | 10 | 13..=18 | 42 | 43);
        let packet = v4(1, DONT_FRAGMENT, &[], &[kind, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(report(Problem::NoRoute, &packet).is_some(), query, "{kind}");
        let query = kind >= 128 && kind != 137;
        for (next, before) in
            [(58, vec![]), (60, extension(58, 0)), (44, fragment_header(58, 0, true))]
        {
            let packet = v6(next, &[&before[..], &[kind, 0, 0, 0, 0, 0, 0, 0]].concat());
            assert_eq!(report(Problem::NoRoute, &packet).is_some(), query, "v6 {kind} {next}");
        }
    }
    assert_eq!(report(Problem::NoRoute, &v4(1, 0, &[], &[])), None);
    assert_eq!(report(Problem::NoRoute, &v6(58, &[])), None);
}

#[test]
fn errors_about_our_own_errors_are_not_sent() {
    for packet in [v4(17, 0, &[], b"abc"), v6(17, b"abc")] {
        for problem in PROBLEMS {
            let message = report(problem, &packet).unwrap();
            assert!(PROBLEMS.into_iter().all(|again| report(again, &message).is_none()));
        }
    }
}

#[test]
fn errors_about_fragments() {
    assert!(report(Problem::NoRoute, &v4(17, MORE_FRAGMENTS, &[], &[0; 8])).is_some());
    assert!(report(Problem::NoRoute, &v4(17, MORE_FRAGMENTS | 1, &[], &[0; 8])).is_none());
    assert!(report(Problem::NoRoute, &v4(17, 1, &[], &[0; 8])).is_none());
    let fragment = |offset| [fragment_header(17, offset, true), vec![0; 8]].concat();
    for (next, before) in [(44, vec![]), (60, extension(44, 0))] {
        let packet = |offset| v6(next, &[before.clone(), fragment(offset)].concat());
        assert!(report(Problem::NoRoute, &packet(0)).is_some());
        assert!(report(Problem::NoRoute, &packet(1)).is_none());
        // Data that have the form of the header of a first fragment.
        let data = [fragment_header(44, 1, true), fragment(0)].concat();
        let packet = v6(next, &[before.clone(), data].concat());
        assert!(report(Problem::NoRoute, &packet).is_none());
    }
}

#[test]
fn errors_about_hidden_transport_headers() {
    let chain = |n| v6(60, &[extension(60, 0).repeat(n), extension(17, 0), vec![0; 8]].concat());
    assert!(report(Problem::NoRoute, &chain(7)).is_some());
    assert!(report(Problem::NoRoute, &chain(8)).is_none());
    assert!(report(Problem::NoRoute, &v6(60, &extension(17, 1)[..8])).is_none());
}

#[test]
fn errors_about_addresses_of_no_host() {
    let mut out = Vec::new();
    for packet in [v4(17, 0, &[], b"abc"), v6(17, b"abc")] {
        let good = header(&packet);
        let bad: &[&str] = match good.version {
            Version::V4 => &["0.0.0.0", "224.0.0.1", "255.255.255.255", "127.0.0.1"],
            Version::V6 => &["::", "ff02::1", "::1"],
        };
        for address in bad.iter().map(|a| a.parse::<IpAddr>().unwrap()) {
            for wrong in [Header { src: address, ..good }, Header { dst: address, ..good }] {
                assert!(!error(Problem::NoRoute, &packet, &wrong, router(&packet), &mut out));
            }
        }
        let other = if good.version == Version::V4 { ROUTER6 } else { ROUTER };
        assert!(!error(Problem::NoRoute, &packet, &good, other, &mut out), "another version");
        assert!(out.is_empty());
        assert!(!error(Problem::NoRoute, &packet[..21], &good, router(&packet), &mut out), "cut");
        assert!(parse(&packet).is_ok());
    }
}
