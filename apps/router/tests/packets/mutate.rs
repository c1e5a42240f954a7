//! Mutated packets: bit flips, truncations, splices. No function may panic, and a packet that
//! passes the checks must also pass those of etherparse.

use courser_router::packet::icmp::{Problem, echo_reply, error};
use courser_router::packet::{
    Header, Version, complete_checksum, decrement_ttl, flow_hash, fragment::fragment, parse,
};
use etherparse::checksum::Sum16BitWords;
use etherparse::{Ipv4HeaderSlice, Ipv6HeaderSlice, LaxSlicedPacket};

use crate::generate::{Random, mutate, seeds};

/// Asserts that etherparse accepts a packet and reads the same fields.
fn agrees(packet: &[u8], header: &Header) {
    let total_len = header.total_len as usize;
    assert!(total_len <= packet.len());
    LaxSlicedPacket::from_ip(packet).unwrap();
    match header.version {
        Version::V4 => {
            let other = Ipv4HeaderSlice::from_slice(packet).unwrap();
            // Its header type loses the reserved flag, hence the sum of the slice.
            let sum = Sum16BitWords::new().add_slice(other.slice());
            assert_eq!(sum.ones_complement(), 0);
            assert_eq!(usize::from(other.ihl()) * 4, usize::from(header.header_len));
            assert_eq!(usize::from(other.total_len()), total_len);
            assert_eq!(other.ttl(), header.ttl);
            assert_eq!(other.protocol().0, header.protocol);
            assert_eq!(header.src, other.source_addr());
            assert_eq!(header.dst, other.destination_addr());
            assert_eq!(other.dont_fragment(), header.dont_fragment);
            assert_eq!(other.is_fragmenting_payload(), header.is_fragment);
        }
        Version::V6 => {
            let other = Ipv6HeaderSlice::from_slice(packet).unwrap();
            assert_eq!(usize::from(other.payload_length()) + 40, total_len);
            assert_eq!(other.hop_limit(), header.ttl);
            assert_eq!(other.next_header().0, header.protocol);
            assert_eq!(header.src, other.source_addr());
            assert_eq!(header.dst, other.destination_addr());
        }
    }
}

/// How often each function did something.
#[derive(Default, Debug)]
struct Done {
    parsed: u64,
    decremented: u64,
    completed: u64,
    fragmented: u64,
    errors: u64,
    replies: u64,
}

/// Calls every function on a packet.
fn exercise(packet: &mut Vec<u8>, random: &mut Random, out: &mut Vec<u8>, done: &mut Done) {
    let Ok(header) = parse(packet) else { return };
    done.parsed += 1;
    agrees(packet, &header);
    packet.truncate(header.total_len as usize);
    assert_eq!(parse(packet), Ok(header), "padding does not count");
    let hash = flow_hash(packet, &header, 7);
    if header.ttl > 0 {
        decrement_ttl(packet, &header);
        assert_eq!(parse(packet), Ok(Header { ttl: header.ttl - 1, ..header }));
        assert_eq!(flow_hash(packet, &header, 7), hash, "TTL is no part of a flow");
        done.decremented += 1;
    }
    if complete_checksum(packet, &header) {
        done.completed += 1;
    }
    let mtu = 68 + random.below(600);
    let whole = header.total_len as usize <= mtu;
    let made = fragment(packet, &header, mtu, |piece| {
        assert!(piece.len() <= mtu);
        let parsed = parse(piece).unwrap();
        assert!(whole || parsed.is_fragment);
        assert!(parse(piece).unwrap().total_len as usize == piece.len());
    });
    done.fragmented += u64::from(made);
    let mtu = 1400;
    let problem =
        [Problem::TimeExceeded, Problem::NoRoute, Problem::TooBig { mtu }][random.below(3)];
    if error(problem, packet, &header, header.dst, out) {
        check_message(out, &header);
        done.errors += 1;
    }
    if echo_reply(packet, &header, out) {
        check_message(out, &header);
        done.replies += 1;
    }
}

fn check_message(message: &[u8], about: &Header) {
    let header = parse(message).unwrap();
    agrees(message, &header);
    assert_eq!((header.src, header.dst), (about.dst, about.src));
}

/// The number of packets. A million take about a second; the variable is for longer runs.
fn mutations() -> u64 {
    match std::env::var("COURSER_MUTATIONS") {
        Ok(n) => n.parse().expect("COURSER_MUTATIONS is a number of packets"),
        Err(_) => 1_000_000,
    }
}

#[test]
fn mutated_packets_are_dropped_or_good() {
    let seeds = seeds();
    let mut random = Random(0x5eed);
    let (mut packet, mut out, mut done) = (Vec::new(), Vec::new(), Done::default());
    for seed in &seeds {
        packet.clone_from(seed);
        exercise(&mut packet, &mut random, &mut out, &mut done);
    }
    assert_eq!(done.parsed, seeds.len() as u64, "the seeds are good");
    assert_eq!(done.replies, 2);
    let mutations = mutations();
    for _ in 0..mutations {
        packet.clone_from(&seeds[random.below(seeds.len())]);
        mutate(&mut random, &seeds, &mut packet);
        exercise(&mut packet, &mut random, &mut out, &mut done);
    }
    println!("{mutations} packets: {done:?}");
    // Mutations that leave no packet good would test nothing.
    let enough = |n: u64| n * 200 > mutations;
    assert!(enough(done.parsed) && enough(done.decremented) && enough(done.completed), "{done:?}");
    assert!(enough(done.fragmented) && enough(done.errors) && enough(done.replies), "{done:?}");
}
