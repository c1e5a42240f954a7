//! Mutated packets: bit flips, truncations, splices. No function may panic, and a packet that
//! passes the checks must also pass those of etherparse.

use courser_router::packet::icmp::{Problem, echo_reply, error};
use courser_router::packet::{
    Header, Version, complete_checksum, decrement_ttl, flow_hash, fragment::fragment, parse,
};
use etherparse::checksum::Sum16BitWords;
use etherparse::{Ipv4HeaderSlice, Ipv6HeaderSlice, LaxSlicedPacket};

use crate::build::{MORE, TCP, V4, V6, extension, fix, fragment_header, tcp, udp};

/// A generator of numbers (xorshift64*, Marsaglia and Vigna).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end.max(1)
    }
}

/// Good packets of all kinds.
fn seeds() -> Vec<Vec<u8>> {
    let v4 = |protocol, fragment, options: &[u8], data: Vec<u8>| {
        V4 { protocol, fragment, options: options.to_vec(), data, ..V4::default() }.bytes()
    };
    let v6 = |next, parts: &[Vec<u8>]| V6 { next, data: parts.concat(), ..V6::default() }.bytes();
    let echo = |kind, sum: u16| [&[kind, 0], &sum.to_be_bytes()[..], &[0; 4], &[0; 64]].concat();
    let long: Vec<u8> = (0..1400).map(|n| n as u8).collect();
    vec![
        v4(17, 0, &[], udp(b"data")),
        v4(17, 0, &[148, 4, 0, 0], udp(&long)),
        v4(17, 0, &[7, 7, 4, 0, 0, 0, 0, 1, 130, 4, 1, 2], udp(&long)),
        v4(TCP, 0x4000, &[], tcp(b"data")),
        v4(TCP, 0, &[1; 40], tcp(&long)),
        v4(17, MORE, &[], udp(&[9; 512])),
        v4(17, 64, &[136, 4, 1, 2], vec![9; 500]),
        v4(17, MORE | 64, &[], vec![9; 504]),
        v4(1, 0, &[], echo(8, 0xf7ff)),
        v4(1, 0, &[], echo(3, 0xfcff)),
        v6(17, &[udp(b"data")]),
        v6(TCP, &[tcp(&long)]),
        v6(58, &[echo(128, echo_sum_v6())]),
        v6(58, &[echo(1, 0)]),
        v6(44, &[fragment_header(17, 0, true), udp(&[9; 512])]),
        v6(44, &[fragment_header(17, 65, false), vec![9; 99]]),
        v6(0, &[extension(43, 0), extension(60, 1), extension(17, 0), udp(b"data")]),
        v6(0, &[extension(44, 0), fragment_header(TCP, 0, true), tcp(&[1; 100])]),
        v6(51, &[vec![TCP, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2], tcp(b"data")]),
    ]
}

/// The checksum of the echo request among the seeds.
fn echo_sum_v6() -> u16 {
    let packet = V6 { next: 58, data: vec![], ..V6::default() }.bytes();
    let pseudo = [&packet[8..40], &[0, 0, 0, 72, 0, 0, 0, 58], &[128, 0]].concat();
    crate::build::checksum(&pseudo)
}

/// Mutates a packet in one to four ways.
fn mutate(random: &mut Random, seeds: &[Vec<u8>], packet: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        let len = packet.len();
        match random.below(8) {
            0 => packet.truncate(random.below(len + 1)),
            1 | 2 if len > 0 => packet[random.below(len)] ^= 1 << random.below(8),
            3 | 4 if len > 0 => packet[random.below(len.min(64))] = random.next() as u8,
            5 => {
                // The beginning of this one and the end of another.
                let other = &seeds[random.below(seeds.len())];
                packet.truncate(random.below(len.min(80) + 1));
                packet.extend(&other[random.below(other.len().min(80))..]);
            }
            6 => packet.extend(std::iter::repeat_n(random.next() as u8, random.below(50))),
            _ => {
                // Lengths that fit, as far as there are any.
                let len = packet.len() as u16;
                match packet.first().map(|first| first >> 4) {
                    Some(4) if len >= 20 => packet[2..4].copy_from_slice(&len.to_be_bytes()),
                    Some(6) if len >= 40 => packet[4..6].copy_from_slice(&(len - 40).to_be_bytes()),
                    _ => {}
                }
            }
        }
    }
    // A wrong checksum would hide all other checks.
    if packet.first().is_some_and(|first| first >> 4 == 4) && random.below(16) > 0 {
        fix(packet);
    }
}

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
