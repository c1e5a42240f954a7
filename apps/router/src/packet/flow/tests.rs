use std::collections::BTreeSet;

use super::super::testing::*;
use super::super::{MORE_FRAGMENTS, parse};
use super::*;

fn hash(packet: &[u8]) -> u32 {
    flow_hash(packet, &header(packet), 1)
}

const PORTS: [u8; 12] = [0x12, 0x34, 0, 80, 0, 12, 0, 0, 9, 9, 9, 9];
const OTHER_PORTS: [u8; 12] = [0x12, 0x35, 0, 80, 0, 12, 0, 0, 9, 9, 9, 9];

#[test]
fn each_field_of_a_flow_counts() {
    for packet in [v4(17, 0, &[], &PORTS), v6(17, &PORTS)] {
        let (addresses, protocol, data) = match packet[0] >> 4 {
            4 => (12..20, 9, 20),
            _ => (8..40, 6, 40),
        };
        let parsed = header(&packet);
        assert_ne!(flow_hash(&packet, &parsed, 1), flow_hash(&packet, &parsed, 2), "the seed");
        for at in addresses.chain([protocol]).chain(data..data + 4) {
            let mut other = packet.clone();
            other[at] ^= 16;
            if packet[0] >> 4 == 4 {
                fix(&mut other);
            }
            if let Ok(parsed) = parse(&other) {
                assert_ne!(flow_hash(&other, &parsed, 1), hash(&packet), "byte {at}");
            }
        }
        let mut other = packet.clone();
        other[data + 9] = 0;
        assert_eq!(hash(&other), hash(&packet), "data");
    }
}

#[test]
fn protocols_with_ports() {
    for protocol in 0..=255 {
        let with_ports = [6, 17, 132, 136].contains(&protocol);
        let differ =
            hash(&v4(protocol, 0, &[], &PORTS)) != hash(&v4(protocol, 0, &[], &OTHER_PORTS));
        assert_eq!(differ, with_ports, "{protocol}");
        if ![0, 43, 44, 51, 60].contains(&protocol) {
            let differ = hash(&v6(protocol, &PORTS)) != hash(&v6(protocol, &OTHER_PORTS));
            assert_eq!(differ, with_ports, "v6 {protocol}");
        }
    }
}

#[test]
fn ports_end_with_the_packet() {
    let mut packet = v4(17, 0, &[], &PORTS[..3]);
    let expected = hash(&packet);
    packet.push(80);
    assert_eq!(hash(&packet), expected, "with padding");
    // With a longer packet those bytes are ports.
    assert_ne!(hash(&v4(17, 0, &[], &PORTS)), expected);
}

#[test]
fn fragments_of_a_packet_have_one_hash() {
    let first = v4(17, MORE_FRAGMENTS, &[], &[7; 16]);
    assert_eq!(hash(&first), hash(&v4(17, MORE_FRAGMENTS | 2, &[], &[8; 16])));
    assert_eq!(hash(&first), hash(&v4(17, 4, &[], &[9; 16])));
    assert_ne!(hash(&first), hash(&v4(6, 4, &[], &[9; 16])), "another protocol");

    for before in [vec![], extension(44, 1)] {
        let packet = |next, offset, more, data| {
            let fragment = [fragment_header(next, offset, more), vec![data; 16]].concat();
            v6(if before.is_empty() { 44 } else { 60 }, &[before.clone(), fragment].concat())
        };
        let first = packet(17, 0, true, 7);
        assert_eq!(hash(&first), hash(&packet(17, 2, true, 8)));
        assert_eq!(hash(&first), hash(&packet(17, 4, false, 9)));
        // Only the protocol of the first fragment counts.
        assert_eq!(hash(&first), hash(&packet(6, 4, false, 9)));
        // The first has another extension header behind the fragment header, cut off.
        assert_eq!(hash(&first), hash(&packet(60, 0, true, 99)));
    }
}

#[test]
fn ports_are_found_behind_extension_headers() {
    let expected = hash(&v6(17, &PORTS));
    let mut authentication = vec![0; 12];
    (authentication[0], authentication[1]) = (17, 1);
    let chains = [
        (0, extension(17, 0)),
        (43, extension(17, 2)),
        (60, extension(17, 31)),
        (51, authentication),
        (0, [extension(43, 0), extension(60, 1), extension(17, 0)].concat()),
        (60, [extension(60, 0).repeat(7), extension(17, 0)].concat()),
    ];
    for (first, chain) in chains {
        assert_eq!(hash(&v6(first, &[&chain[..], &PORTS].concat())), expected, "{first} {chain:?}");
    }
}

#[test]
fn chains_that_are_too_long_or_cut_have_no_ports() {
    let chain =
        |ports: &[u8]| v6(60, &[&extension(60, 0).repeat(8), &extension(17, 0), ports].concat());
    assert_eq!(hash(&chain(&PORTS)), hash(&chain(&OTHER_PORTS)));
    assert!(upper(&chain(&PORTS), &header(&chain(&PORTS))).hidden);
    for len in [0, 7, 8, 15] {
        let packet = v6(60, &extension(17, 1)[..len]);
        assert!(upper(&packet, &header(&packet)).hidden, "{len}");
        hash(&packet);
    }
}

/// The largest deviation from the mean, in per cent, of `flows` hashes in `buckets`.
fn spread(flows: usize, buckets: usize, of: impl Fn(usize) -> usize) -> f64 {
    let mut counts = vec![0; buckets];
    (0..flows).for_each(|flow| counts[of(flow)] += 1);
    let mean = flows as f64 / buckets as f64;
    counts.iter().map(|n| (f64::from(*n) - mean).abs() / mean * 100.0).fold(0.0, f64::max)
}

#[test]
fn flows_spread_over_low_and_high_bits() {
    // Flows that differ in few bits: one port, or one address.
    let by_port = |flow: usize| {
        let mut data = PORTS;
        data[..2].copy_from_slice(&(flow as u16).to_be_bytes());
        hash(&v4(6, 0, &[], &data)) as usize
    };
    let by_address = |flow: usize| {
        let mut packet = v6(17, &PORTS);
        packet[38..40].copy_from_slice(&(flow as u16).to_be_bytes());
        hash(&packet) as usize
    };
    let hashes: [Vec<usize>; 2] =
        [(0..64_000).map(by_port).collect(), (0..64_000).map(by_address).collect()];
    for hashes in hashes {
        for buckets in [2, 3, 7, 16, 64] {
            // 64 buckets have 1,000 flows each, with a standard deviation of 3.2 %.
            let limit = 15.0;
            assert!(spread(64_000, buckets, |f| hashes[f] % buckets) < limit, "{buckets} low");
            assert!(spread(64_000, buckets, |f| (hashes[f] * buckets) >> 32) < limit, "{buckets}");
        }
        let different = hashes.iter().collect::<BTreeSet<_>>().len();
        assert!(different > 63_980, "{different}");
    }
}

#[test]
fn the_hash_does_not_change() {
    // Computed by another program. Nodes of several versions have to agree.
    assert_eq!(hash(&v4(17, 0, &[], &PORTS)), 0x38b76c2f);
    assert_eq!(hash(&v6(17, &PORTS)), 0x652a6eb4);
}
