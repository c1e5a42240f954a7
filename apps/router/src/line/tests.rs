//! Frames that only a raw socket sends, and changes that the kernel does not deliver.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::netlink::{Change, Event, Link, Mac, Netlink};
use super::*;
use crate::netns::{Cluster, Namespace, Offloads, Shape, Unavailable, host_v4, lan_v4};

/// A limit that only a defect reaches.
const LIMIT: Duration = Duration::from_secs(20);

fn cluster() -> Option<Cluster> {
    match Cluster::build(Shape::Mesh, 1) {
        Ok(cluster) => Some(cluster),
        Err(reason @ (Unavailable::NotAllowed(_) | Unavailable::Program { .. })) => {
            // Not by a macro, whose output the test harness hides when a test passes.
            let text = format_args!("SKIPPED: {reason}\n");
            let _ = io::Write::write_fmt(&mut io::stderr(), text);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn link(at: &Namespace, name: &str) -> Link {
    let _inside = at.enter().expect("enters");
    let mut found = None;
    let mut netlink = Netlink::open().expect("opens");
    let read = netlink.read_all(&mut |event| match event {
        Event::Link(link) if link.name == name => found = Some(link),
        _ => {}
    });
    read.expect("reads");
    assert_eq!(netlink.unknown, 0, "all of this kernel's messages are interpreted");
    found.expect("a link")
}

/// Repeats until it is done.
fn until(text: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "not in time: {text}");
        std::thread::yield_now();
    }
}

#[test]
fn only_packets_for_this_host_without_vlan_tag_are_passed() {
    let Some(cluster) = cluster() else { return };
    let (mut intake, _ports) = {
        let _inside = cluster.node(0).enter().expect("enters");
        open(&["lan0"]).expect("opens")
    };
    let node = link(cluster.node(0), "lan0").mac.expect("a MAC").0;
    let socket = {
        let _inside = cluster.host(0).enter().expect("enters");
        let socket = sys::packet_socket().expect("opens");
        sys::bind(socket.as_fd(), link(cluster.host(0), "eth0").index, 0).expect("binds");
        socket
    };
    let frame = |to: [u8; 6], kind: &[u8], packet: &[u8]| {
        [&to[..], &[2, 0, 0, 0, 0, 9], kind, packet, &[0; 60]].concat()
    };
    let other = [2, 0, 0, 0, 0, 7];
    let frames = [
        frame([0xff; 6], &[8, 0], b"\x45broadcast"),
        frame([0x33, 0x33, 0, 0, 0, 1], &[0x86, 0xdd], b"\x60multicast"),
        frame(other, &[8, 0], b"\x45another host"),
        frame(node, &[8, 6], b"ARP"),
        frame(node, &[0x81, 0, 0, 5, 8, 0], b"\x45VLAN"),
        frame(node, &[0x88, 0xb5], b"experiment"),
        frame(node, &[8, 0], b"\x45four"),
        frame(node, &[0x86, 0xdd], b"\x60six"),
    ];
    let sent = sys::send(socket.as_fd(), frames.iter().map(Vec::as_slice)).expect("sends");
    assert_eq!(sent, frames.len());
    let mut passed = Vec::new();
    until("both packets", || {
        // The kernel's own are longer or shorter.
        intake.burst(&mut |_, packet| {
            passed.extend(packet.ends_with(&[0; 60]).then(|| packet[..4].to_vec()));
        });
        passed.len() >= 2
    });
    assert_eq!(passed, [b"\x45fou", b"\x60six"]);
    assert_eq!(intake.counters(0), PortCounters { ignored: 1, ..PortCounters::default() });
}

#[test]
fn packets_longer_than_the_mtu_are_counted_and_explained_once() {
    let Some(cluster) = cluster() else { return };
    let (mut intake, _ports) = {
        let _inside = cluster.node(0).enter().expect("enters");
        open(&["lan0"]).expect("opens")
    };
    let segmentation = Offloads { checksum: true, segmentation: true, aggregation: false };
    segmentation.set(cluster.host(0), "eth0").expect("sets");
    let socket = {
        let _inside = cluster.host(0).enter().expect("enters");
        UdpSocket::bind((host_v4(0), 0)).expect("binds")
    };
    let to = (lan_v4(0), 4000);
    let mut lens = Vec::new();
    let mut take = |intake: &mut SystemIntake| {
        intake.burst(&mut |_, packet| {
            // UDP only.
            lens.extend((packet[0] == 0x45 && packet[9] == 17).then_some(packet.len()));
        });
        lens.len()
    };
    socket.send_to(&[1; 1000], to).expect("sends");
    until("a packet", || take(&mut intake) == 1);
    assert_eq!((intake.counters(0).too_long, intake.take_warning()), (0, None));
    // The kernel leaves it to the device to make packets of 1,000 bytes.
    sys::set(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, &1000i32).expect("sets");
    socket.send_to(&[2; 3000], to).expect("sends");
    until("a long packet", || {
        take(&mut intake);
        intake.counters(0).too_long == 1
    });
    let warning = intake.take_warning().expect("a warning");
    assert!(warning.contains("`ethtool -K lan0 gro off lro off`"), "{warning}");
    assert_eq!(intake.take_warning(), None, "once");
    Offloads::OFF.set(cluster.host(0), "eth0").expect("sets");
    socket.send_to(&[3; 3000], to).expect("sends");
    until("three packets", || take(&mut intake) == 4);
    assert_eq!(intake.counters(0).too_long, 1);
    assert_eq!(lens, [1028; 4]);
}

#[test]
fn changes_that_were_missed_are_read_again() {
    let Some(cluster) = cluster() else { return };
    let node = cluster.node(0);
    let _inside = node.enter().expect("enters");
    let mut netlink = Netlink::open().expect("opens");
    let mut events = Vec::new();
    netlink.read_all(&mut |event| events.push(event)).expect("reads");
    assert_eq!((events.first(), events.last()), (Some(&Event::Begin), Some(&Event::End)));
    // Room for few changes only.
    sys::set(netlink.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &1i32).expect("sets");
    let mut last = String::new();
    for number in 1..200 {
        let neighbour = format!("10.0.1.{} lladdr 02:00:00:00:00:{number:02x}", number + 2);
        last += &format!("neigh replace {neighbour} dev lan0 nud permanent\n");
    }
    node.batch(&last).expect("adds");
    events.clear();
    until("complete", || {
        netlink.poll(&mut |event| events.push(event)).expect("reads");
        events.last() == Some(&Event::End)
    });
    let begin = events.iter().position(|event| *event == Event::Begin).expect("missed some");
    let interface = link(node, "lan0").index;
    for number in 1..200 {
        let change = Change::Known(Mac([2, 0, 0, 0, 0, number]));
        let address = [10, 0, 1, number + 2].into();
        let expected = Event::Neighbour { interface, address, change };
        assert!(events[begin..].contains(&expected), "{address}");
    }
    node.run("ip neigh del 10.0.1.9 dev lan0").expect("deletes");
    events.clear();
    netlink.poll(&mut |event| events.push(event)).expect("reads");
    let address = [10, 0, 1, 9].into();
    assert!(events.contains(&Event::Neighbour { interface, address, change: Change::Gone }));
}
