//! Frames that only a raw socket sends, and changes that the kernel does not deliver.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use courser_link::netlink::{Change, Event, Link, Mac, Netlink};
use courser_link::socket::FrameSocket;
use rustix::net::sockopt::set_socket_recv_buffer_size;

use super::*;
use crate::netns::{Cluster, Namespace, Offloads, Shape, Unavailable, host_v4, lan_v4};

/// A limit that only a defect reaches.
const LIMIT: Duration = Duration::from_secs(20);

fn cluster() -> Option<Cluster> {
    cluster_of(Shape::Mesh)
}

fn cluster_of(shape: Shape) -> Option<Cluster> {
    match Cluster::build(shape, 1) {
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

/// The kernel leaves it to the device to make packets of this many bytes of larger ones.
fn segment(socket: &UdpSocket, bytes: i32) {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of the value, which lives during the call.
    let result = unsafe {
        let value = (&raw const bytes).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, value, len)
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
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

fn lines(cluster: &Cluster) -> (SystemIntake, SystemPorts) {
    let _inside = cluster.node(0).enter().expect("enters");
    open(&["lan0"]).expect("opens")
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
fn only_packets_for_this_host_of_no_vlan_are_passed() {
    let Some(cluster) = cluster() else { return };
    let (mut intake, _ports) = lines(&cluster);
    let node = link(cluster.node(0), "lan0").mac.expect("a MAC").0;
    let socket = {
        let _inside = cluster.host(0).enter().expect("enters");
        FrameSocket::open(&link(cluster.host(0), "eth0"), 0).expect("opens")
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
        frame(node, &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0], b"\x45two VLANs"),
        frame(node, &[0x81, 0, 0xa0, 0, 0x81, 0, 0, 6, 8, 0], b"\x45VLAN after a priority"),
        frame(node, &[0x88, 0xb5], b"experiment"),
        frame(node, &[8, 0], b"\x45four"),
        frame(node, &[0x81, 0, 0xa0, 0, 8, 0], b"\x45pri"),
        frame(node, &[0x81, 0, 0, 0, 0x86, 0xdd], b"\x60pri"),
        frame(node, &[0x86, 0xdd], b"\x60six"),
    ];
    let sent = socket.send(frames.iter().map(Vec::as_slice)).expect("sends");
    assert_eq!(sent, frames.len());
    let mut passed = Vec::new();
    until("all packets", || {
        // The kernel's own are longer or shorter.
        intake.burst(&mut |_, packet| {
            passed.extend(packet.ends_with(&[0; 60]).then(|| packet[..4].to_vec()));
        });
        passed.len() >= 4
    });
    assert_eq!(passed, [b"\x45fou", b"\x45pri", b"\x60pri", b"\x60six"]);
    assert_eq!(intake.counters(0), PortCounters { tagged: 3, ..PortCounters::default() });
}

#[test]
fn packets_longer_than_the_mtu_are_counted_and_explained_once() {
    let Some(cluster) = cluster() else { return };
    let (mut intake, _ports) = lines(&cluster);
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
    segment(&socket, 1000);
    socket.send_to(&[2; 3000], to).expect("sends");
    until("a long packet", || {
        take(&mut intake);
        intake.counters(0).too_long == 1
    });
    // Two packets in one that would fit into a frame of the ring.
    socket.send_to(&[2; 1600], to).expect("sends");
    until("a longer packet", || {
        take(&mut intake);
        intake.counters(0).too_long == 2
    });
    let warning = intake.take_warning().expect("a warning");
    assert!(warning.contains("`ethtool -K lan0 gro off lro off`"), "{warning}");
    assert_eq!(intake.take_warning(), None, "once");
    Offloads::OFF.set(cluster.host(0), "eth0").expect("sets");
    socket.send_to(&[3; 3000], to).expect("sends");
    until("three packets", || take(&mut intake) == 4);
    assert_eq!(intake.counters(0).too_long, 2);
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
    set_socket_recv_buffer_size(&netlink, 1).expect("sets");
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
    set_socket_recv_buffer_size(&netlink, 65_536).expect("sets");
    netlink.poll(&mut |_| {}).expect("reads");
    node.run("ip neigh del 10.0.1.9 dev lan0").expect("deletes");
    events.clear();
    netlink.poll(&mut |event| events.push(event)).expect("reads");
    let address = [10, 0, 1, 9].into();
    assert!(events.contains(&Event::Neighbour { interface, address, change: Change::Gone }));
}

/// Sends a packet to the host, whose address is known then.
fn resolve(ports: &mut SystemPorts) {
    ports.send(0, host_v4(0).into(), &PACKET).expect("waits");
    until("resolved", || {
        ports.flush();
        ports.timeout().is_none()
    });
}

/// An IP packet, as far as a line is concerned.
const PACKET: [u8; 1400] = [0x45; 1400];

#[test]
fn a_full_line_drops_packets_and_recovers() {
    let Some(cluster) = cluster() else { return };
    let (_intake, mut ports) = lines(&cluster);
    resolve(&mut ports);
    // A device that takes hardly any packet, with room for more than the socket has.
    let slow = "tc qdisc add dev lan0 root tbf rate 8kbit burst 2k limit 100m";
    if let Err(error) = cluster.node(0).run(slow) {
        let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("SKIPPED: {error}\n"));
        return;
    }
    let host = host_v4(0).into();
    let mut sent = 0;
    let result = loop {
        match ports.send(0, host, &PACKET) {
            Ok(()) => sent += 1,
            Err(reason) => break reason,
        }
        assert!(sent < 100_000, "there is a limit");
    };
    assert_eq!(result, PacketDrop::LineFull);
    assert!(ports.timeout().is_some(), "the rest is to be sent later");
    cluster.node(0).run("tc qdisc del dev lan0 root").expect("deletes");
    ports.flush();
    assert_eq!((ports.timeout(), ports.refused()), (None, 0));
    assert_eq!(ports.send(0, host, &PACKET), Ok(()));
}

#[test]
fn packets_that_the_device_drops_are_counted() {
    let Some(cluster) = cluster() else { return };
    let (_intake, mut ports) = lines(&cluster);
    resolve(&mut ports);
    let full = "tc qdisc add dev lan0 root tbf rate 8kbit burst 2k limit 10k";
    if let Err(error) = cluster.node(0).run(full) {
        let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("SKIPPED: {error}\n"));
        return;
    }
    for _ in 0..100 {
        assert_eq!(ports.send(0, host_v4(0).into(), &PACKET), Ok(()));
    }
    ports.flush();
    assert_eq!(ports.timeout(), None);
    let refused = ports.refused();
    assert!((80..100).contains(&refused), "{refused}");
    let Ended { sent, dropped } = ports.take_ended();
    assert_eq!(dropped, [(PacketDrop::Refused, refused)]);
    assert_eq!(sent, Sent { packets: 101 - refused, bytes: (101 - refused) * 1400 });
    assert_eq!(ports.take_ended(), Ended::default());
}

#[test]
fn frames_have_the_addresses_of_the_interface_and_the_neighbour() {
    let Some(cluster) = cluster() else { return };
    let (_intake, mut ports) = lines(&cluster);
    let host = link(cluster.host(0), "eth0");
    let socket = {
        let _inside = cluster.host(0).enter().expect("enters");
        FrameSocket::open(&host, libc::ETH_P_ALL).expect("opens")
    };
    resolve(&mut ports);
    for change in [None, Some("02:00:00:00:00:55")] {
        if let Some(mac) = change {
            cluster.node(0).run(&format!("ip link set lan0 address {mac}")).expect("sets");
            std::thread::sleep(Duration::from_millis(2));
            ports.flush();
            resolve(&mut ports);
        }
        let node = link(cluster.node(0), "lan0").mac.expect("a MAC");
        assert!(change.is_none() || node == Mac([2, 0, 0, 0, 0, 0x55]));
        ports.send(0, host_v4(0).into(), &[0x45, 1, 2, 3]).expect("sends");
        ports.flush();
        let header = [host.mac.expect("a MAC").0, node.0].concat();
        let mut buffer = [0; 2048];
        until("the frame", || {
            let flags = rustix::net::RecvFlags::DONTWAIT;
            let Ok((len, _)) = rustix::net::recv(&socket, &mut buffer, flags) else { return false };
            buffer[..len].ends_with(&[0x45, 1, 2, 3]) && buffer[..12] == header
        });
        assert_eq!(buffer[12..14], [8, 0]);
    }
}

#[test]
fn an_interface_that_is_missing_in_a_complete_reading_is_down() {
    let Some(cluster) = cluster() else { return };
    let (_intake, mut ports) = lines(&cluster);
    let _inside = cluster.node(0).enter().expect("enters");
    resolve(&mut ports);
    ports.take(Event::Begin);
    assert!(ports.is_up(0));
    assert_eq!(ports.send(0, host_v4(0).into(), &PACKET), Ok(()));
    assert!(ports.timeout().is_some(), "a packet is to be sent");
    ports.take(Event::End);
    assert!(!ports.is_up(0));
    assert_eq!((ports.timeout(), ports.refused()), (None, 1), "it is not sent later");
    assert_eq!(ports.take_ended().dropped, [(PacketDrop::PortDown, 1)]);
    ports.take(Event::Link(link(cluster.node(0), "lan0")));
    assert!(ports.is_up(0));
}

#[test]
fn a_port_that_leaves_a_bridge_is_not_gone() {
    let Some(cluster) = cluster_of(Shape::Switch) else { return };
    let switch = cluster.switch().expect("a switch");
    let _inside = switch.enter().expect("enters");
    let mut netlink = Netlink::open().expect("opens");
    switch.run("ip link set core_a nomaster").expect("leaves");
    let mut events = Vec::new();
    netlink.poll(&mut |event| events.push(event)).expect("reads");
    let is_link = |event: &Event| matches!(event, Event::Link(link) if link.name == "core_a");
    assert!(events.iter().any(is_link), "{events:?}");
    assert!(!events.iter().any(|event| matches!(event, Event::LinkGone(_))), "{events:?}");
    assert!(events.iter().all(|event| match event {
        Event::Link(link) => link.mac.is_some() && link.mtu > 0,
        _ => true,
    }));
}

#[test]
fn a_new_mtu_of_the_interface_is_used_at_once() {
    let Some(cluster) = cluster() else { return };
    let (_intake, mut ports) = lines(&cluster);
    let _inside = cluster.node(0).enter().expect("enters");
    resolve(&mut ports);
    let host = host_v4(0).into();
    assert_eq!((ports.mtu(0), ports.send(0, host, &PACKET)), (1500, Ok(())));
    ports.flush();
    for mtu in [1399, 1500, 2000, 1300, 2000] {
        cluster.node(0).run(&format!("ip link set lan0 mtu {mtu}")).expect("sets");
        until("changed", || {
            ports.flush();
            ports.mtu(0) == mtu
        });
        let expected = if mtu < PACKET.len() { Err(PacketDrop::TooBig) } else { Ok(()) };
        assert_eq!(ports.send(0, host, &PACKET), expected);
        ports.flush();
    }
    assert_eq!((ports.timeout(), ports.refused()), (None, 0));
    let warnings = ports.take_warnings();
    let news =
        "interface lan0 has a larger MTU, with index 1000 and an MTU of 2000: its port uses it";
    assert_eq!(warnings, [news], "the memory for larger packets remains");
}

#[test]
fn an_interface_that_is_made_and_configured_afterwards_takes_packets_of_its_mtu() {
    let Some(cluster) = cluster() else { return };
    let (mut intake, mut ports) = lines(&cluster);
    let _inside = cluster.node(0).enter().expect("enters");
    cluster.node(0).run("ip link delete lan0").expect("deletes");
    cluster.renew_lan(0, 2_000, 1_500).expect("makes it");
    let mut until_mtu = |mtu: usize| {
        until("the MTU", || {
            ports.flush();
            ports.is_up(0) && ports.mtu(0) == mtu
        });
    };
    until_mtu(1_500);
    cluster.node(0).run("ip link set lan0 mtu 9000").expect("sets");
    cluster.host(0).run("ip link set eth0 mtu 9000").expect("sets");
    until_mtu(9_000);
    let socket = {
        let _inside = cluster.host(0).enter().expect("enters");
        UdpSocket::bind((host_v4(0), 0)).expect("binds")
    };
    let mut lens = Vec::new();
    until("a packet", || {
        socket.send_to(&[1; 8_972], (lan_v4(0), 4000)).expect("sends");
        intake.burst(&mut |_, packet| lens.push(packet.len()));
        lens.contains(&9_000)
    });
    assert_eq!(intake.counters(0).too_long, 0);
    resolve(&mut ports);
    let mut packet = vec![0x45; 9_000];
    packet[9] = 17;
    assert_eq!(ports.send(0, host_v4(0).into(), &packet), Ok(()));
    ports.flush();
    assert_eq!(ports.refused(), 0);
}

#[test]
fn an_interface_that_was_made_again_is_noticed_by_a_reading_of_the_table_alone() {
    let Some(cluster) = cluster() else { return };
    let (_intake, mut ports) = lines(&cluster);
    let _inside = cluster.node(0).enter().expect("enters");
    let before = link(cluster.node(0), "lan0");
    ports.take(Event::Link(before.clone()));
    assert_eq!(ports.take_warnings(), [""; 0], "it is the same");
    cluster.node(0).run("ip link delete lan0").expect("deletes");
    cluster.renew_lan(0, before.index as usize, 1_500).expect("makes it");
    // The reports of both were lost.
    let after = link(cluster.node(0), "lan0");
    assert_eq!(after.index, before.index);
    for event in [Event::Begin, Event::Link(after), Event::End] {
        ports.take(event);
    }
    let warnings = ports.take_warnings();
    assert!(warnings[0].contains("is gone") && warnings[1].contains("again"), "{warnings:?}");
    assert_eq!((warnings.len(), ports.is_up(0)), (2, true));
}

#[test]
fn an_interface_that_comes_and_goes_keeps_few_warnings() {
    let Some(cluster) = cluster() else { return };
    let (_intake, mut ports) = lines(&cluster);
    let _inside = cluster.node(0).enter().expect("enters");
    let link = link(cluster.node(0), "lan0");
    for _ in 0..100 {
        ports.take(Event::LinkGone(link.index));
        // It has vanished before it can be opened, and is not opened when its end is known.
        ports.take(Event::Link(Link { index: 77, ..link.clone() }));
        assert!(!ports.is_up(0));
        ports.take(Event::LinkGone(77));
        ports.take(Event::Link(link.clone()));
        assert!(ports.is_up(0));
    }
    assert_eq!(ports.take_warnings().len(), 64);
}
