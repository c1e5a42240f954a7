//! The wire format: exact bytes, round trips, and totality of parsing.

use proptest::prelude::*;

use super::*;
use crate::budget::Grant;

fn encode(packets: &[Packet<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    for p in packets {
        let mut h = [0; PACKET_HEADER];
        p.write_header(&mut h);
        out.extend_from_slice(&h);
        out.extend_from_slice(p.data());
    }
    out
}

#[test]
fn request_header_bytes_are_as_documented() {
    let p = Packet::Request {
        session: 0x0a0b0c,
        req_num: 0x01020304,
        req_type: 0x1122,
        msg_size: 0x0345_6789,
        index: 0xf_0001,
        remaining_us: None,
        one_way: false,
        data: &[],
    };
    let mut h = [0; PACKET_HEADER];
    p.write_header(&mut h);
    assert_eq!(h, [1, 0x0c, 0x0b, 0x0a, 4, 3, 2, 1, 0x89, 0x67, 0x45, 0xf3, 1, 0, 0x22, 0x11]);
}

#[test]
fn the_remaining_time_replaces_the_index() {
    // ADR 15: 10,000 us are 2,500 << 2, so 0x29c4.
    let p = Packet::Request {
        session: 0x0a0b0c,
        req_num: 0x01020304,
        req_type: 0x1122,
        msg_size: 0x0345_6789,
        index: 0,
        remaining_us: Some(10_001),
        one_way: false,
        data: &[],
    };
    let mut h = [0; PACKET_HEADER];
    p.write_header(&mut h);
    let want = [0x11, 0x0c, 0x0b, 0x0a, 4, 3, 2, 1, 0x89, 0x67, 0x45, 3, 0xc4, 0x29, 0x22, 0x11];
    assert_eq!(h, want);
    // Empty message, so that the header is the whole packet.
    h[8..12].fill(0);
    let parsed = parse_packet(&h, 1024).unwrap().unwrap().0;
    assert!(
        matches!(parsed, Packet::Request { index: 0, remaining_us: Some(10_000), .. }),
        "{parsed:?}"
    );
    h[11] = 0x10; // an index, which must be 0 here
    assert_eq!(parse_packet(&h, 1024), Err(Malformed::Range));
}

#[test]
fn a_cancellation_is_sixteen_bytes() {
    let mut h = [0; PACKET_HEADER];
    Packet::Cancel { session: 0x0a0b0c, req_num: 0x01020304 }.write_header(&mut h);
    assert_eq!(h, [7, 0x0c, 0x0b, 0x0a, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn frame_header_bytes_are_as_documented() {
    let h = FrameHeader {
        data_per_packet: 1424,
        peer: 0x0a_0b0c,
        held: 0x25,
        cookie: 0xdead_beef,
        number: 9,
        ecn: EcnCounts { marked: 1, received: 2 },
        sent_at: Some(10),
        echo_at: Some(11),
    };
    let mut out = [0xff; FRAME_HEADER];
    h.write(&mut out);
    let mut want = vec![0xC2, 1, 0x90, 0x05, 0xef, 0xbe, 0xad, 0xde, 0x0c, 0x0b, 0x0a, 0x25];
    for v in [9_u32, 0x0002_0001, 10, 11] {
        want.extend_from_slice(&v.to_le_bytes());
    }
    assert_eq!(out.as_slice(), want);
    assert_eq!(FrameHeader::parse(&out), Ok((h, &[][..])));
}

#[test]
fn a_frame_without_a_time_has_no_echo() {
    let h = FrameHeader {
        data_per_packet: 1424,
        peer: 1,
        held: 0,
        cookie: 2,
        number: 3,
        ecn: EcnCounts::default(),
        sent_at: None,
        echo_at: Some(11),
    };
    let mut out = [0xff; FRAME_HEADER];
    h.write(&mut out);
    assert_eq!((out[1], &out[20..]), (2, &[0; 8][..]));
    assert_eq!(FrameHeader::parse(&out), Ok((FrameHeader { echo_at: None, ..h }, &[][..])));
}

#[test]
fn the_hold_time_is_rounded_up_and_loses_little() {
    for code in 0..=u8::MAX {
        assert_eq!(encode_held(decode_held(code) * 1_000), code);
    }
    let mut ns = 1_u64;
    while ns < 10_000_000_000_000 {
        for ns in [ns - 1, ns, ns + 1] {
            let back = decode_held(encode_held(ns)) * 1_000;
            assert!(back >= ns && back - ns <= 1_000 + ns / 8, "{ns} became {back}");
        }
        ns += ns / 7 + 1;
    }
    assert_eq!(encode_held(u64::MAX), u8::MAX);
    assert_eq!(decode_held(u8::MAX), 15 << 30);
}

proptest! {
    #[test]
    fn frame_headers_that_parse_are_written_back(
        mut bytes in prop::collection::vec(any::<u8>(), 0..40),
        flags in 0_u8..4,
        version in prop::sample::select(vec![WIRE_VERSION, WIRE_VERSION, 0xC1]),
    ) {
        if let Some(start) = bytes.first_chunk_mut::<2>() {
            *start = [version, flags];
        }
        let well_formed = bytes.len() >= FRAME_HEADER && version == WIRE_VERSION && flags < 3;
        let Ok((h, rest)) = FrameHeader::parse(&bytes) else {
            prop_assert!(!well_formed);
            return Ok(());
        };
        prop_assert!(well_formed);
        prop_assert_eq!(rest, &bytes[FRAME_HEADER..]);
        // Bytes that are invalid by the flags are written as zero.
        let valid = match flags { 0 => 24, 1 => 28, _ => 20 };
        let mut want = bytes[..FRAME_HEADER].to_vec();
        want[valid..].fill(0);
        let mut out = [0xff; FRAME_HEADER];
        h.write(&mut out);
        prop_assert_eq!(&out[..], &want[..]);
    }
}

#[test]
fn unknown_versions_flags_and_kinds_are_rejected() {
    let mut f = [0u8; FRAME_HEADER];
    assert_eq!(FrameHeader::parse(&f), Err(Malformed::Version));
    f[0] = WIRE_VERSION;
    f[1] = 0x80;
    assert_eq!(FrameHeader::parse(&f), Err(Malformed::Flags));
    f[1] = 3; // an echo in a frame without send time
    assert_eq!(FrameHeader::parse(&f), Err(Malformed::Flags));
    assert_eq!(FrameHeader::parse(&f[..27]), Err(Malformed::Truncated));
    let mut p = [0u8; PACKET_HEADER];
    p[0] = 15;
    assert_eq!(parse_packet(&p, 1024), Err(Malformed::Kind));
    for kind in [0x41, 0x17, 0x16, 0x13, 0x25, 0x1a] {
        p[0] = kind;
        assert_eq!(parse_packet(&p, 1024), Err(Malformed::Flags));
    }
    p[0] = 3; // a request-for-response of zero packets
    assert_eq!(parse_packet(&p, 1024), Err(Malformed::Range));
    p[0] = 1;
    p[12] = 1; // packet 1 of a message of one packet
    assert_eq!(parse_packet(&p, 1024), Err(Malformed::Range));
    p[12] = 0;
    p[0] = 5;
    p[8..10].copy_from_slice(&1025_u16.to_le_bytes()); // a message larger than a packet
    assert_eq!(parse_packet(&p, 1024), Err(Malformed::Range));
    p[..12].fill(0);
    p[0] = 1;
    p[8] = 1; // one byte announced, no byte present
    assert_eq!(parse_packet(&p, 1024), Err(Malformed::Length));
    assert_eq!(parse_packet(&p[..5], 1024), Err(Malformed::Truncated));
}

#[test]
fn padding_ends_a_frame() {
    let mut bytes = encode(&[Packet::Ack { session: 1, req_num: 2 }]);
    bytes.extend_from_slice(&[0; 7]);
    let (first, rest) = parse_packet(&bytes, 1024).unwrap().unwrap();
    assert_eq!(first, Packet::Ack { session: 1, req_num: 2 });
    assert_eq!(parse_packet(rest, 1024), Ok(None));
}

#[test]
fn the_largest_message_of_the_smallest_packets_fits_the_index() {
    let last = packets_of(MAX_MSG_SIZE, MIN_DATA_PER_PACKET) - 1;
    assert!(last < MAX_PACKETS);
    let len = data_len(MAX_MSG_SIZE, last, MIN_DATA_PER_PACKET);
    let data = vec![5; len];
    let p = Packet::Response {
        session: MAX_SESSION,
        req_num: u32::MAX,
        msg_size: MAX_MSG_SIZE,
        index: last,
        data: &data,
    };
    let bytes = encode(&[p]);
    assert_eq!(parse_packet(&bytes, MIN_DATA_PER_PACKET).unwrap().unwrap().0, p);
}

/// (data per packet, message size, index of one of its packets)
fn message() -> impl Strategy<Value = (u16, u32, u32)> {
    (MIN_DATA_PER_PACKET..9000u16, 0..=70_000u32, any::<u32>())
        .prop_map(|(dpp, size, any)| (dpp, size, any % packets_of(size, dpp)))
}

proptest! {
    #[test]
    fn any_packet_survives_a_round_trip((dpp, msg_size, index) in message(), session in 0..=MAX_SESSION,
            req_num: u32, req_type: u16, count in 1..=MAX_MSG_SIZE, flag: bool,
            later: u64, mantissa in 0..4096u32, exponent in 0..16u32) {
        let data = vec![index as u8; data_len(msg_size, index, dpp)];
        let first = vec![1; data_len(msg_size, 0, dpp)];
        let left = Some(mantissa << exponent);
        let all = [
            Packet::Request { session, req_num, req_type, msg_size, index, remaining_us: None, one_way: false,
                data: &data },
            Packet::Request { session, req_num, req_type, msg_size, index, remaining_us: None,
                one_way: true, data: &data },
            Packet::Request { session, req_num, req_type, msg_size, index: 0, remaining_us: left, one_way: false,
                data: &first },
            Packet::Cancel { session, req_num },
            Packet::Response { session, req_num, msg_size, index, data: &data },
            Packet::Message { session, number: req_num, msg_type: req_type, remaining_us: None, data: &first },
            Packet::Message { session, number: req_num, msg_type: req_type, remaining_us: left, data: &first },
            Packet::MessageAck { session, next: req_num, later },
            Packet::ErrorResponse { session, req_num, status: req_type },
            Packet::CreditReturn { session, req_num, count: index, in_progress: flag, grant: Grant::from_bits(count) },
            Packet::Rfr { session, req_num, first: index, count },
            Packet::Ack { session, req_num },
            Packet::Proof { token: later >> 4 },
        ];
        let bytes = encode(&all);
        let mut rest = &bytes[..];
        for want in all {
            let (got, r) = parse_packet(rest, dpp).unwrap().unwrap();
            prop_assert_eq!(got, want);
            rest = r;
        }
        prop_assert_eq!(parse_packet(rest, dpp), Ok(None));
    }

    /// Parsing the front of a body gives the same as parsing the whole: one packet of a large
    /// message.
    #[test]
    fn parsing_a_front_agrees_with_parsing_the_whole(
        (dpp, msg_size, index) in message(),
        kind in 0..16u8,
        (more, less) in prop::sample::select(vec![(0, 0), (0, 0), (1, 0), (0, 1)]),
        another: bool,
        cut: prop::sample::Index,
    ) {
        let len = data_len(msg_size, index, dpp);
        let data = vec![11; (len + more).saturating_sub(less)];
        let (session, req_num, req_type) = (1, 2, 3);
        let left = (index == 0 && kind & 8 != 0).then_some(7);
        let packet = match kind & 3 {
            0 => Packet::Message { session, number: req_num, msg_type: req_type, remaining_us: left, data: &data },
            1 => Packet::Response { session, req_num, msg_size, index, data: &data },
            _ => Packet::Request { session, req_num, req_type, msg_size, index,
                remaining_us: left, one_way: false, data: &data },
        };
        let mut bytes = encode(&[packet]);
        if another {
            bytes.extend_from_slice(&encode(&[Packet::Gap]));
        }
        let cut = cut.index(bytes.len());
        let (front, extra) = (&bytes[..cut], bytes.len() - cut);
        let large = packets_of(msg_size, dpp) > 1 && kind & 3 != 0;
        let exact = data.len() == len && !another;
        let want = large && exact && cut >= PACKET_HEADER;
        let got = parse_front(front, dpp, extra);
        prop_assert_eq!(got.is_some(), want);
        if let Some(mut got) = got {
            prop_assert_eq!(got.data(), &data[..cut - PACKET_HEADER]);
            if let Packet::Request { data: d, .. } | Packet::Response { data: d, .. } = &mut got {
                *d = &data;
            }
            prop_assert_eq!(got, packet);
        }
    }

    #[test]
    fn parsing_any_front_is_total(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        dpp: u16,
        extra in 1..70_000_usize,
    ) {
        if let Some(p) = parse_front(&bytes, dpp, extra) {
            prop_assert_eq!(p.data().len() + PACKET_HEADER, bytes.len());
            prop_assert!(p.data().len() + extra <= usize::from(dpp));
        }
    }

    #[test]
    fn parsing_any_bytes_is_total(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok((h, mut rest)) = FrameHeader::parse(&bytes) {
            while let Ok(Some((p, r))) = parse_packet(rest, h.data_per_packet) {
                prop_assert!(p.data().len() + PACKET_HEADER <= rest.len());
                prop_assert!(r.len() < rest.len());
                rest = r;
            }
        }
    }
}
