//! `tests/data/malformed.pcap`: packets at the limits of the checks, each with its result.
//! Wireshark and tcpdump read the file.

use std::path::Path;
use std::time::Duration;

use courser_router::counters::PacketDrop;
use courser_router::packet::parse;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::{DataLink, Endianness};

use crate::build::{MORE, TCP, V4, V6, checksum, extension, fix, fragment_header, tcp, udp};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/malformed.pcap");

/// A packet: what it is, its bytes, and the reason for which it is dropped.
type Case = (String, Vec<u8>, Option<PacketDrop>);

fn cases() -> Vec<Case> {
    [versions(), lengths(), checksums(), fragments_v4(), fragments_v6(), options(), ttls()]
        .into_iter()
        .chain([martians(), truncated(), extensions()])
        .flatten()
        .collect()
}

fn case(what: &str, bytes: Vec<u8>, reason: impl Into<Option<PacketDrop>>) -> Case {
    (what.into(), bytes, reason.into())
}

fn versions() -> Vec<Case> {
    let mut cases =
        vec![case("IPv4", V4::default().bytes(), None), case("IPv6", V6::default().bytes(), None)];
    for version in (0..=15).filter(|version| ![4, 6].contains(version)) {
        let packet = V4::default().with(0, version << 4 | 5);
        cases.push(case(&format!("version {version}"), packet, PacketDrop::Version));
    }
    cases
}

fn lengths() -> Vec<Case> {
    let (v4, v6) = (V4::default(), V6::default());
    let padded = |mut packet: Vec<u8>| {
        packet.extend([0; 18]);
        packet
    };
    let empty = V4 { data: vec![], ..v4.clone() };
    vec![
        case("header length 0", v4.with(0, 0x40), PacketDrop::HeaderLength),
        case("header length 16", v4.with(0, 0x44), PacketDrop::HeaderLength),
        case("header length 24 of 20", empty.with(0, 0x46), PacketDrop::TotalLength),
        case("total length 0", v4.with(3, 0), PacketDrop::TotalLength),
        case("total length 19", v4.with(3, 19), PacketDrop::TotalLength),
        case("total length 20", v4.with(3, 20), None),
        case("total length one too long", v4.with(3, 47), PacketDrop::Truncated),
        case("total length 65,535", V4 { ..v4.clone() }.with(2, 0xff), PacketDrop::Truncated),
        case("padding", padded(v4.bytes()), None),
        case("no data", empty.bytes(), None),
        case("IPv6 payload one too long", v6.with(5, 27), PacketDrop::Truncated),
        case("IPv6 payload 65,306", v6.with(4, 0xff), PacketDrop::Truncated),
        case("IPv6 payload 0", v6.with(5, 0), None),
        case("IPv6 padding", padded(v6.bytes()), None),
        case("IPv6 jumbogram", jumbogram(), PacketDrop::TotalLength),
    ]
}

fn jumbogram() -> Vec<u8> {
    let data = [&[TCP, 0, 0xc2, 4, 0, 1, 0, 0], &tcp(b"data")[..]].concat();
    V6 { next: 0, data, ..V6::default() }.with(5, 0)
}

fn checksums() -> Vec<Case> {
    let mut cases = vec![];
    for (what, options) in [("", vec![]), (" with options", vec![148, 4, 0, 0])] {
        let good = V4 { options, ..V4::default() }.bytes();
        let header_len = usize::from(good[0] & 15) * 4;
        for at in [1, 4, 8, 9, 10, 11, 12, 19, header_len - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            cases.push(case(&format!("bit in byte {at}{what}"), bad, PacketDrop::Checksum));
        }
    }
    // The identification that makes the checksum 0, for which 0xffff is right, too.
    let mut zero = V4::default().bytes();
    zero[4..6].fill(0);
    zero[10..12].fill(0);
    let sum = checksum(&zero[..20]);
    zero[4..6].copy_from_slice(&sum.to_be_bytes());
    cases.push(case("checksum 0", zero.clone(), None));
    zero[10..12].fill(0xff);
    cases.push(case("checksum 0xffff instead of 0", zero, None));
    cases
}

fn fragments_v4() -> Vec<Case> {
    let packet = |fragment, len, options: &[u8]| {
        let (data, options) = (vec![0x5a; len], options.to_vec());
        V4 { fragment, data, options, ..V4::default() }.bytes()
    };
    let possible = [
        ("first", MORE, 1480),
        ("tiny first", MORE, 8),
        ("tiny", MORE | 1, 8),
        ("last of one byte", 1, 1),
        ("not to be fragmented, and one", 0x4000 | MORE, 16),
        ("up to byte 65,535", 8189, 3),
    ];
    let impossible = [
        ("of 7 bytes, not the last", MORE, 7),
        ("of 1,479 bytes, not the last", MORE, 1479),
        ("of 12 bytes, not the last", MORE | 8, 12),
        ("without data, not the last", MORE, 0),
        ("without data", 5, 0),
        ("up to byte 65,536", 8189, 4),
        ("beyond byte 65,535", 8191, 1480),
        ("beyond byte 65,535, not the last", 8191 | MORE, 1480),
    ];
    let mut cases = vec![];
    for (what, flags, len) in possible {
        cases.push(case(&format!("fragment {what}"), packet(flags, len, &[]), None));
    }
    for (what, flags, len) in impossible {
        cases.push(case(
            &format!("fragment {what}"),
            packet(flags, len, &[]),
            PacketDrop::Fragment,
        ));
    }
    cases.push(case("fragment, options beyond", packet(8189, 3, &[1; 4]), PacketDrop::Fragment));
    cases
}

fn fragments_v6() -> Vec<Case> {
    let packet = |offset, more, len| {
        let data = [fragment_header(17, offset, more), vec![0x5a; len]].concat();
        V6 { next: 44, data, ..V6::default() }
    };
    vec![
        case("IPv6 tiny first fragment", packet(0, true, 8).bytes(), None),
        case("IPv6 atomic fragment", packet(0, false, 5).bytes(), None),
        case("IPv6 fragment up to byte 65,535", packet(8191, false, 7).bytes(), None),
        case("IPv6 fragment of 9 bytes", packet(0, true, 9).bytes(), PacketDrop::Fragment),
        case("IPv6 fragment without data", packet(3, false, 0).bytes(), PacketDrop::Fragment),
        case("IPv6 fragment beyond", packet(8191, false, 8).bytes(), PacketDrop::Fragment),
        case("IPv6 fragment header cut", packet(0, true, 8).with(5, 7), PacketDrop::TotalLength),
    ]
}

fn options() -> Vec<Case> {
    let mut long_route = vec![131, 39, 4];
    long_route.resize(40, 0);
    let cases: [(&str, &[u8], Option<PacketDrop>); 14] = [
        ("router alert", &[148, 4, 0, 0], None),
        ("no operations", &[1; 40], None),
        ("record route", &[7, 7, 4, 0, 0, 0, 0, 0], None),
        ("timestamp", &[68, 8, 5, 0, 0, 0, 0, 0], None),
        ("unknown option", &[222, 4, 1, 2], None),
        ("source route behind the end", &[0, 131, 3, 4], None),
        ("loose source route", &[131, 7, 4, 192, 0, 2, 1, 0], Some(PacketDrop::Options)),
        ("strict source route", &[137, 7, 4, 192, 0, 2, 1, 0], Some(PacketDrop::Options)),
        ("source route behind others", &[1, 7, 3, 4, 131, 3, 4, 0], Some(PacketDrop::Options)),
        ("long source route", &long_route, Some(PacketDrop::Options)),
        ("option length 0", &[148, 0, 0, 0], Some(PacketDrop::Options)),
        ("option length 1", &[148, 1, 0, 0], Some(PacketDrop::Options)),
        ("option length beyond the header", &[148, 5, 0, 0], Some(PacketDrop::Options)),
        ("option without length", &[1, 1, 1, 148], Some(PacketDrop::Options)),
    ];
    let packet = |options: &[u8]| V4 { options: options.to_vec(), ..V4::default() }.bytes();
    cases.into_iter().map(|(what, options, reason)| case(what, packet(options), reason)).collect()
}

/// A packet of any time to live is good: the node answers those that it does not forward.
fn ttls() -> Vec<Case> {
    let mut cases = vec![];
    for ttl in [0, 1, 255] {
        cases.push(case(&format!("TTL {ttl}"), V4 { ttl, ..V4::default() }.bytes(), None));
        let packet = V6 { hop_limit: ttl, ..V6::default() }.bytes();
        cases.push(case(&format!("hop limit {ttl}"), packet, None));
    }
    cases
}

fn martians() -> Vec<Case> {
    let v4 = [
        [0, 0, 0, 0],
        [0, 1, 2, 3],
        [127, 0, 0, 1],
        [169, 254, 1, 1],
        [224, 0, 0, 1],
        [239, 9, 9, 9],
        [240, 0, 0, 1],
        [255, 255, 255, 255],
    ];
    let v6 = [
        [0; 8],
        [0, 0, 0, 0, 0, 0, 0, 1],
        [0, 0, 0, 0, 0, 0xffff, 0x0a01, 2],
        [0xfe80, 0, 0, 0, 0, 0, 0, 1],
        [0xff02, 0, 0, 0, 0, 0, 0, 1],
        [0xff0e, 0, 0, 0, 0, 0, 0, 1],
    ];
    let mut cases = vec![];
    for address in v4 {
        let packet = V4 { src: address, ..V4::default() };
        cases.push(case(&format!("from {address:?}"), packet.bytes(), PacketDrop::Source));
        let packet = V4 { dst: address, ..V4::default() };
        cases.push(case(&format!("to {address:?}"), packet.bytes(), PacketDrop::Destination));
    }
    for address in v6 {
        let packet = V6 { src: address, ..V6::default() };
        cases.push(case(&format!("from {address:x?}"), packet.bytes(), PacketDrop::Source));
        let packet = V6 { dst: address, ..V6::default() };
        cases.push(case(&format!("to {address:x?}"), packet.bytes(), PacketDrop::Destination));
    }
    cases
}

fn truncated() -> Vec<Case> {
    let v4 = V4 { options: vec![1; 4], data: udp(b"1234"), ..V4::default() }.bytes();
    let v6 = V6 { data: udp(b"1234"), ..V6::default() }.bytes();
    let cut = |packet: Vec<u8>| {
        // Captures have no packets of 0 bytes.
        let lens = 1..packet.len();
        lens.map(move |len| {
            let what = format!("{len} of {} bytes", packet.len());
            case(&what, packet[..len].to_vec(), PacketDrop::Truncated)
        })
    };
    cut(v4).chain(cut(v6)).collect()
}

fn extensions() -> Vec<Case> {
    let packet = |next, data: Vec<u8>| V6 { next, data, ..V6::default() };
    let chain = |n| [extension(60, 0).repeat(n), extension(TCP, 1), tcp(b"data")].concat();
    let all = [
        extension(43, 0),
        extension(44, 3),
        fragment_header(51, 0, false),
        vec![60, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2],
        extension(TCP, 255),
        tcp(b"data"),
    ];
    vec![
        case("eight extension headers", packet(60, chain(7)).bytes(), None),
        case("nine extension headers", packet(60, chain(8)).bytes(), None),
        case("180 extension headers", packet(60, chain(179)).bytes(), None),
        case("all extension headers", packet(0, all.concat()).bytes(), None),
        case("extension header beyond the packet", packet(60, extension(TCP, 0)).with(41, 9), None),
        case("no next header", packet(59, vec![]).bytes(), None),
        case(
            "hop-by-hop header cut",
            packet(0, extension(TCP, 0)).with(5, 7),
            PacketDrop::TotalLength,
        ),
        case(
            "routing header type 0",
            packet(43, [extension(TCP, 2), tcp(b"")].concat()).with(43, 1),
            None,
        ),
    ]
}

/// The capture of all cases, one a second.
fn capture() -> Vec<u8> {
    let header = PcapHeader {
        datalink: DataLink::RAW,
        endianness: Endianness::Little,
        ..PcapHeader::default()
    };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for (at, (_, bytes, _)) in cases().into_iter().enumerate() {
        let len = bytes.len() as u32;
        let packet = PcapPacket::new(Duration::from_secs(at as u64), len, bytes).unwrap();
        writer.write_packet(&packet).unwrap();
    }
    writer.into_inner()
}

#[test]
#[ignore = "writes tests/data/malformed.pcap"]
fn write_the_capture() {
    std::fs::create_dir_all(Path::new(FILE).parent().unwrap()).unwrap();
    std::fs::write(FILE, capture()).unwrap();
}

#[test]
fn the_capture_is_of_the_cases() {
    let file = std::fs::read(FILE).unwrap();
    assert!(file == capture(), "run the ignored test write_the_capture, and read the difference");
}

#[test]
fn each_packet_of_the_capture_has_its_result() {
    let file = std::fs::read(FILE).unwrap();
    let packets: Vec<_> =
        PcapReader::new(&file[..]).unwrap().into_iter().map(|p| p.unwrap()).collect();
    let cases = cases();
    assert_eq!(packets.len(), cases.len());
    for (packet, (what, _, reason)) in packets.iter().zip(cases) {
        assert_eq!(parse(packet.data()).err(), reason, "{what}: {:02x?}", packet.data());
    }
    assert_eq!(parse(&[]), Err(PacketDrop::Truncated));
}

#[test]
fn the_cases_cover_each_reason_of_the_checks() {
    let reasons: Vec<_> = cases().into_iter().filter_map(|(_, _, reason)| reason).collect();
    for reason in &PacketDrop::ALL[..9] {
        assert!(reasons.contains(reason), "{reason:?}");
    }
    // A case must not be malformed in two ways: without its mistake it is good.
    let mut good = V4::default().bytes();
    fix(&mut good);
    assert!(parse(&good).is_ok() && parse(&V6::default().bytes()).is_ok());
}
