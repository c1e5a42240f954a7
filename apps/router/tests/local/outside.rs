//! The router as hosts see it: fragments, ICMP, echo.

use std::net::IpAddr;

use courser_router::counters::PacketDrop;
use courser_router::packet::parse;

use crate::build::{V4, V6, checksum, udp};
use crate::cluster::{Cluster, Left, NARROW, PATIENT, text};

const SENDER: [u8; 4] = [10, 1, 0, 9];

/// A packet to the network with the small MTU.
fn to_narrow(len: usize, fragment: u16) -> V4 {
    let data: Vec<u8> = (0..len).map(|at| at as u8).collect();
    V4 { src: SENDER, dst: [10, 2, 1, 9], data: udp(&data), fragment, ..V4::default() }
}

/// The data of fragments, put together.
fn reassemble(left: &[Left]) -> Vec<u8> {
    let mut data = vec![None; 65_536];
    let mut end = 0;
    for left in left {
        let header = parse(&left.packet).expect("a good packet");
        assert!(left.packet.len() <= NARROW && header.ttl == 63, "{left:02x?}");
        let flags = u16::from_be_bytes([left.packet[6], left.packet[7]]);
        let begin = usize::from(flags & 0x1fff) * 8;
        for (at, byte) in (begin..).zip(&left.packet[usize::from(header.header_len)..]) {
            assert_eq!(data[at].replace(*byte), None, "byte {at} twice");
            end = end.max(at + 1);
        }
    }
    data[..end].iter().map(|byte| byte.expect("no gap")).collect()
}

#[test]
fn packets_larger_than_the_last_network_takes_are_fragmented() {
    let mut cluster = Cluster::start(&text("switch", PATIENT, 100));
    for (len, pieces) in [(572, 1), (573, 2), (1_472, 3), (3_000, 6), (8_000, 14)] {
        for from in [0, 1] {
            let packet = to_narrow(len, 0);
            let left = cluster.forward(from, &packet.bytes());
            assert_eq!(left.len(), pieces, "{len} bytes");
            assert!(left.iter().all(|left| (left.node, left.port) == (1, 1)));
            assert_eq!(reassemble(&left), packet.data);
        }
    }
    let counters = cluster.check_totals();
    assert_eq!((counters.fragmented, counters.fragments), (8, 50));
}

/// The ICMP message that left, its type and code.
fn icmp(left: &[Left]) -> (&Left, [u8; 2]) {
    let [left] = left else { panic!("{left:02x?}") };
    let header = parse(&left.packet).expect("a good packet");
    let message = &left.packet[usize::from(header.header_len)..];
    if header.src.is_ipv4() {
        assert_eq!((header.protocol, checksum(message)), (1, 0));
    } else {
        let len = (message.len() as u32).to_be_bytes();
        let pseudo = [&left.packet[8..40], &len, &[0, 0, 0, 58], message].concat();
        assert_eq!((header.protocol, checksum(&pseudo)), (58, 0));
    }
    (left, [message[0], message[1]])
}

#[test]
fn a_packet_that_may_not_be_fragmented_is_reported_with_the_mtu() {
    let mut cluster = Cluster::start(&text("switch", PATIENT, 100));
    let packet = to_narrow(1_000, 0x4000).bytes();
    let left = cluster.forward(0, &packet);
    let (message, kind) = icmp(&left);
    assert_eq!(kind, [3, 4]);
    assert_eq!((message.node, message.neighbour), (0, IpAddr::from(SENDER)));
    assert_eq!(message.packet[12..16], [10, 1, 0, 1], "from the port of arrival");
    assert_eq!(message.packet[26..28], (NARROW as u16).to_be_bytes());
    assert_eq!(message.packet[28..48], packet[..20]);
    // IPv6 is never fragmented.
    let packet = V6 { data: udp(&[7; 1_500]), ..V6::default() }.bytes();
    let left = cluster.forward(0, &packet);
    let (message, kind) = icmp(&left);
    assert_eq!(kind, [2, 0]);
    assert_eq!(message.packet[44..48], 1_500_u32.to_be_bytes());
    let counters = cluster.check_totals();
    assert_eq!((counters.dropped(PacketDrop::TooBig), counters.icmp_sent), (2, 2));
}

#[test]
fn errors_are_limited_and_packets_are_not() {
    let mut cluster = Cluster::start(&text("switch", PATIENT, 5));
    let begin_ns = cluster.local.now_ns();
    let late = V4 { src: SENDER, ttl: 1, ..V4::default() }.bytes();
    for _ in 0..500 {
        cluster.inject(0, &late);
        cluster.inject(0, &V4 { src: SENDER, ..V4::default() }.bytes());
        cluster.local.pass();
    }
    let counters = cluster.check_totals();
    let seconds = (cluster.local.now_ns() - begin_ns) as f64 / 1e9;
    let most = 5.0 + 5.0 * seconds;
    assert!(counters.icmp_sent >= 5 && counters.icmp_sent as f64 <= most + 1.0, "{counters:?}");
    assert_eq!(counters.icmp_sent + counters.icmp_limited, 500);
    assert_eq!(
        (counters.dropped(PacketDrop::TimeExceeded), counters.sent),
        (500, 500 + counters.icmp_sent)
    );
}

#[test]
fn packets_from_outside_with_a_source_that_no_host_has_are_dropped_and_counted() {
    let mut cluster = Cluster::start(&text("switch", PATIENT, 100));
    let kernel = [172, 20, 0, 1];
    let addresses = std::collections::BTreeSet::from([IpAddr::from(kernel)]);
    let mut node = cluster.local.node_mut(0).expect("it runs");
    node.set_system_addresses(&addresses).expect("room");
    drop(node);
    let wrong = [
        [10, 1, 0, 1], // its own address at the port
        [10, 1, 1, 1], // at another port
        kernel,
        [10, 2, 0, 1],   // of another node of this router
        [10, 1, 0, 255], // broadcast addresses
        [10, 2, 1, 255],
        [10, 1, 0, 0],
        [255, 255, 255, 255],
        [224, 0, 0, 5],
        [0, 0, 0, 0],
        [127, 0, 0, 1],
    ];
    for src in wrong {
        let packet = V4 { src, dst: [10, 2, 0, 9], ttl: 1, ..V4::default() };
        assert_eq!(cluster.forward(0, &packet.bytes()), [], "{src:?}");
    }
    let own: std::net::Ipv6Addr = "2001:db8:1::1".parse().expect("an address");
    assert_eq!(cluster.forward(0, &V6 { src: own.segments(), ..V6::default() }.bytes()), []);
    let counters = cluster.check_totals();
    assert_eq!(counters.dropped(PacketDrop::Source), wrong.len() as u64 + 1, "{counters:?}");
    assert_eq!((counters.icmp_sent, counters.sent), (0, 0), "no errors about them either");
    let packet = V4 { src: SENDER, dst: [10, 2, 0, 9], ..V4::default() };
    assert_eq!(cluster.forward(0, &packet.bytes()).len(), 1);
}

/// An echo request.
fn echo(to: [u8; 4]) -> Vec<u8> {
    let mut data = vec![8, 0, 0, 0, 0x12, 0x34, 0, 1];
    data.extend(*b"a ping");
    let sum = checksum(&data).to_be_bytes();
    data[2..4].copy_from_slice(&sum);
    V4 { src: SENDER, dst: to, protocol: 1, data, ..V4::default() }.bytes()
}

#[test]
fn each_address_of_the_cluster_answers_echo_requests() {
    let mut cluster = Cluster::start(&text("switch", PATIENT, 1_000));
    for address in [[10, 2, 0, 1], [10, 2, 1, 1], [10, 3, 0, 1]] {
        let left = cluster.forward(0, &echo(address));
        let (reply, kind) = icmp(&left);
        assert_eq!(kind, [0, 0]);
        assert_eq!((reply.node, reply.neighbour), (0, IpAddr::from(SENDER)));
        assert_eq!(reply.packet[12..16], address);
        assert!(reply.packet.ends_with(b"a ping"));
    }
    // The system of the first node answers for its own addresses, and other nodes' get nothing else.
    assert_eq!(cluster.forward(0, &echo([10, 1, 0, 1])), []);
    let packet = V4 { dst: [10, 2, 0, 1], ..V4::default() };
    assert_eq!(cluster.forward(0, &packet.bytes()), []);
    let counters = cluster.check_totals();
    assert_eq!((counters.echoes, counters.to_system), (3, 1));
    assert_eq!(counters.dropped(PacketDrop::NotForwarded), 1);
}

#[test]
fn echo_requests_above_the_limit_are_dropped_and_counted() {
    let mut cluster = Cluster::start(&text("switch", PATIENT, 5));
    for _ in 0..100 {
        cluster.inject(0, &echo([10, 2, 0, 1]));
    }
    let counters = cluster.check_totals();
    assert!((5..100).contains(&counters.echoes), "{counters:?}");
    assert_eq!(counters.icmp_limited, 100 - counters.echoes);
    assert_eq!(counters.dropped(PacketDrop::NotForwarded), counters.icmp_limited);
}

#[test]
fn no_route_and_a_route_that_rejects_are_reported() {
    let mut cluster = Cluster::start(&text("switch", PATIENT, 1_000));
    let packet = V4 { src: SENDER, dst: [20, 0, 0, 1], ..V4::default() }.bytes();
    let left = cluster.forward(0, &packet);
    assert_eq!(icmp(&left).1, [3, 0]);
    cluster.replace(1, "20.0.0.0/8", Vec::new());
    cluster.wait_route(&[0, 1, 2], [20, 0, 0, 1].into(), &Vec::new());
    let left = cluster.forward(0, &packet);
    assert_eq!(icmp(&left).1, [3, 1]);
    let counters = cluster.check_totals();
    assert_eq!(
        [PacketDrop::NoRoute, PacketDrop::Unreachable].map(|reason| counters.dropped(reason)),
        [1, 1]
    );
}
