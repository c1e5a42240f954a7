//! Packets from outside that are at the limits of the checks, or wrong.

use std::net::IpAddr;
use std::path::Path;

use courser_router::counters::{Counters, PacketDrop};
use courser_router::line::{CaptureIntake, Intake};
use courser_router::packet::icmp::{Problem, error};
use courser_router::packet::{Header, Version, decrement_ttl, parse};
use courser_router::route::Exit;
use courser_router::routes::Lookup;

use crate::cluster::{Cluster, Left, NARROW, PATIENT, by, text};
use crate::generate::{Random, mutate, seeds};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/malformed.pcap");
const UNLIMITED: u32 = 1_000_000;

/// The packets of the capture.
fn capture() -> Vec<Vec<u8>> {
    let mut intake = CaptureIntake::open(Path::new(FILE), 0, Some(1)).expect("a capture");
    let mut packets = Vec::new();
    while !intake.is_done() {
        intake.burst(&mut |_, packet| packets.push(packet.to_vec()));
    }
    packets
}

/// What has to become of a packet of the capture that arrives at `a`: a drop, or its way to `b`.
fn expected(packet: &[u8]) -> Result<Header, PacketDrop> {
    let header = parse(packet)?;
    if header.ttl <= 1 {
        return Err(PacketDrop::TimeExceeded);
    }
    if header.total_len > 1_500 && header.dont_fragment {
        return Err(PacketDrop::TooBig);
    }
    Ok(header)
}

/// Whether an ICMP message has to report a drop.
fn is_reported(packet: &[u8], reason: PacketDrop) -> bool {
    let problem = match reason {
        PacketDrop::TimeExceeded => Problem::TimeExceeded,
        PacketDrop::TooBig => Problem::TooBig { mtu: 1_500 },
        _ => return false,
    };
    let header = parse(packet).expect("only good packets are reported");
    let source: IpAddr = match header.version {
        Version::V4 => [10, 1, 0, 1].into(),
        Version::V6 => [0x2001, 0xdb8, 1, 0, 0, 0, 0, 1].into(),
    };
    error(problem, packet, &header, source, &mut Vec::new())
}

fn check_forwarded(packet: &[u8], header: &Header, left: &[Left], before: &Counters) {
    let [left] = left else { panic!("{packet:02x?} left as {left:02x?}, {before:?}") };
    assert_eq!((left.node, left.port, left.neighbour), (1, 0, header.dst));
    let mut expected = packet[..header.total_len as usize].to_vec();
    decrement_ttl(&mut expected, header);
    assert_eq!(left.packet, expected, "one less time to live, and all else unchanged");
}

#[test]
fn each_packet_of_the_capture_ends_as_expected() {
    let mut cluster = Cluster::start(&text("switch", PATIENT, UNLIMITED));
    let (mut drops, mut forwarded, mut reported) = ([0_u64; PacketDrop::ALL.len()], 0, 0);
    for packet in capture() {
        let before = cluster.local.counters();
        let left = cluster.forward(0, &packet);
        match expected(&packet) {
            Ok(header) => {
                forwarded += 1;
                check_forwarded(&packet, &header, &left, &before);
            }
            Err(reason) => {
                drops[reason as usize] += 1;
                let now = cluster.local.counters();
                let more = now.dropped(reason) - before.dropped(reason);
                assert_eq!(more, 1, "{reason:?}: {packet:02x?}");
                let is_reported = is_reported(&packet, reason);
                reported += u64::from(is_reported);
                assert_eq!(left.len(), usize::from(is_reported), "{reason:?} {left:02x?}");
                let host: Option<IpAddr> = left.first().map(|left| left.neighbour);
                assert!(host.is_none_or(|host| host == parse(&packet).expect("good").src));
            }
        }
    }
    let counters = cluster.check_totals();
    assert_eq!(counters.drops, drops);
    assert_eq!((counters.icmp_sent, counters.to_nodes), (reported, forwarded));
    assert_eq!(counters.sent, forwarded + reported);
    assert_eq!(counters.received, forwarded + drops.iter().sum::<u64>());
    assert!(forwarded > 20 && reported > 3 && drops[..9].iter().all(|n| *n > 0), "{drops:?}");
}

/// The number of packets. The variable is for longer runs.
fn mutations() -> u64 {
    match std::env::var("COURSER_MUTATIONS") {
        Ok(n) => n.parse().expect("COURSER_MUTATIONS is a number of packets"),
        Err(_) => 200_000,
    }
}

/// Gives a mutated packet one of the cluster's destinations, so that most packets have a route.
fn aim(random: &mut Random, packet: &mut [u8]) {
    let node = random.below(4) as u8;
    match packet.first().map(|first| first >> 4) {
        Some(4) if packet.len() >= 20 => {
            packet[16..20].copy_from_slice(&[
                10,
                node,
                random.below(3) as u8,
                random.below(4) as u8,
            ]);
            crate::build::fix(packet);
        }
        Some(6) if packet.len() >= 40 => packet[29] = node,
        _ => {}
    }
}

/// A packet that left did so where a lookup says, is good, and fits the port.
fn check_left(cluster: &Cluster, left: &Left) {
    let header = parse(&left.packet).expect("a good packet");
    assert_eq!(header.total_len as usize, left.packet.len());
    assert!(left.packet.len() <= [1_500, NARROW][usize::from(left.port)], "{left:02x?}");
    let node = cluster.local.node(left.node).expect("it runs");
    let flow = courser_router::packet::flow_hash(&left.packet, &header, 7);
    let Lookup::Via(hop) = node.routes().lookup(header.dst, flow) else { panic!("{header:?}") };
    let neighbour = match hop.exit {
        Exit::Gateway(_, gateway) => gateway,
        _ => header.dst,
    };
    assert_eq!((hop.node, hop.port()), (left.node, Some(left.port)), "{header:?}");
    assert_eq!(neighbour, left.neighbour);
}

#[test]
fn mutated_packets_pass_the_whole_path_and_each_is_counted() {
    let mutations = mutations();
    for topology in ["switch", "mesh"] {
        let mut cluster = Cluster::start(&text(topology, PATIENT, UNLIMITED));
        let members = by(2, 1, 9);
        cluster.replace(1, "10.0.0.0/16", members.clone());
        cluster.wait_route(&[0, 1, 2], [10, 0, 0, 1].into(), &members);
        let (seeds, mut random) = (seeds(), Random(0x5eed));
        let mut packet = Vec::new();
        for number in 0..mutations / 2 {
            packet.clone_from(&seeds[random.below(seeds.len())]);
            mutate(&mut random, &seeds, &mut packet);
            if random.below(4) > 0 {
                aim(&mut random, &mut packet);
            }
            cluster.inject(random.below(3) as u8, &packet);
            if number % 32 == 0 {
                cluster.local.pass();
                cluster.take().iter().for_each(|left| check_left(&cluster, left));
            }
        }
        let counters = cluster.check_totals();
        cluster.take().iter().for_each(|left| check_left(&cluster, left));
        println!("{topology}: {counters:?}");
        assert_eq!(counters.received, mutations / 2);
        // Packets that end in one way only would test little.
        let enough = |n: u64| assert!(n * 10_000 > mutations, "{n}: {counters:?}");
        [counters.sent, counters.to_nodes, counters.to_system].into_iter().for_each(enough);
        [counters.icmp_sent, counters.fragmented, counters.echoes].into_iter().for_each(enough);
        let reasons = [
            PacketDrop::NoRoute,
            PacketDrop::TooBig,
            PacketDrop::NotForwarded,
            PacketDrop::TimeExceeded,
        ];
        reasons.into_iter().for_each(|reason| enough(counters.dropped(reason)));
        let never = [
            PacketDrop::LinkFull,
            PacketDrop::LinkDown,
            PacketDrop::Memory,
            PacketDrop::BadMessage,
        ];
        assert_eq!(never.map(|reason| counters.dropped(reason)), [0; 4], "{counters:?}");
        if topology == "mesh" {
            enough(counters.passed_on);
        }
    }
}
