//! Ports of the operating system, between network namespaces. Needs root.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use courser_router::counters::PacketDrop;
use courser_router::line::{
    self, BURST, Ended, Intake, LineError, Outlet, Sent, SystemIntake, SystemPorts,
};
use courser_router::netns::{
    Cluster, Namespace, Offloads, Shape, Unavailable, host_v4, host_v6, lan_v4, lan_v6,
};

/// A limit that only a defect reaches.
const LIMIT: Duration = Duration::from_secs(20);

/// Two nodes with hosts, or the reason why this machine has none.
fn cluster() -> Option<Cluster> {
    match Cluster::build(Shape::Mesh, 2) {
        Ok(cluster) => Some(cluster),
        Err(reason @ (Unavailable::NotAllowed(_) | Unavailable::Program { .. })) => {
            // Not by a macro, whose output the test harness hides when a test passes.
            let _ = writeln!(std::io::stderr(), "SKIPPED: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The port of the first node, and the end of it at the first host.
fn lines(cluster: &Cluster) -> (SystemIntake, SystemPorts) {
    let _inside = cluster.node(0).enter().expect("enters");
    line::open(&["lan0"]).expect("opens")
}

fn socket(at: &Namespace, address: IpAddr) -> UdpSocket {
    let _inside = at.enter().expect("enters");
    UdpSocket::bind((address, 0)).expect("binds")
}

/// Repeats until it is done.
fn until(text: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "not in time: {text}");
        std::thread::yield_now();
    }
}

/// The next packet of a UDP port; others, such as neighbour discovery, are skipped.
fn next(intake: &mut SystemIntake, udp_port: u16) -> Vec<u8> {
    let mut found = None;
    until("a packet", || {
        intake.burst(&mut |port, packet| {
            assert_eq!(port, 0);
            if udp(packet).is_some_and(|(_, to, _)| to == udp_port) {
                assert!(found.is_none(), "one packet");
                found = Some(packet.to_vec());
            }
        });
        found.is_some()
    });
    found.expect("one packet")
}

/// Source port, destination port and payload of a UDP packet.
fn udp(packet: &[u8]) -> Option<(u16, u16, &[u8])> {
    let header = if packet[0] >> 4 == 4 { 20 } else { 40 };
    let protocol = if packet[0] >> 4 == 4 { packet[9] } else { packet[6] };
    let udp = packet.get(header..).filter(|udp| protocol == 17 && udp.len() >= 8)?;
    let number = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
    Some((number(0), number(2), &udp[8..usize::from(number(4))]))
}

/// The sum of RFC 1071 without complement: 0xffff for data with its right checksum.
fn sum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = words.map(word).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Whether a UDP packet's checksums are right.
fn has_right_checksums(packet: &[u8]) -> bool {
    let (header, addresses) = if packet[0] >> 4 == 4 { (20, 12..20) } else { (40, 8..40) };
    let upper = &packet[header..];
    let pseudo = [0, 17, (upper.len() >> 8) as u8, upper.len() as u8];
    (header == 40 || sum(&[&packet[..20]]) == 0xffff)
        && sum(&[&packet[addresses], &pseudo, upper]) == 0xffff
}

/// A UDP packet with right checksums.
fn packet(from: IpAddr, to: IpAddr, udp_port: u16, payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len()) as u16;
    let (mut header, addresses) = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = (20 + len).to_be_bytes();
            let mut header = vec![0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, 17, 0, 0];
            header.extend([from.octets(), to.octets()].concat());
            let checksum = !sum(&[&header]);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            (header, 12)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let len = len.to_be_bytes();
            let mut header = vec![0x60, 0, 0, 0, len[0], len[1], 17, 64];
            header.extend([from.octets(), to.octets()].concat());
            (header, 8)
        }
        _ => panic!("one version"),
    };
    let ports = [[0, 7], udp_port.to_be_bytes(), len.to_be_bytes()].concat();
    let parts: [&[u8]; 5] =
        [&header[addresses..], &17u16.to_be_bytes(), &len.to_be_bytes(), &ports, payload];
    let checksum = (!sum(&parts)).to_be_bytes();
    header.extend([&ports, &checksum[..], payload].concat());
    header
}

/// The address of a host, of both IP versions.
fn hosts(node: usize) -> [IpAddr; 2] {
    [host_v4(node).into(), host_v6(node).into()]
}

#[test]
fn packets_of_a_host_arrive_byte_for_byte_with_right_checksums() {
    let Some(cluster) = cluster() else { return };
    let (mut intake, _ports) = lines(&cluster);
    for checksum in [false, true] {
        let offloads = Offloads { checksum, ..Offloads::OFF };
        offloads.set(cluster.host(0), "eth0").expect("sets");
        for (from, to) in hosts(0).into_iter().zip(hosts(1)) {
            let socket = socket(cluster.host(0), from);
            let header = if from.is_ipv4() { 28 } else { 48 };
            for len in [0, 1, 17, 18, 100, 1001, 1500 - header] {
                let payload: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
                socket.send_to(&payload, (to, 4000)).expect("sends");
                let packet = next(&mut intake, 4000);
                let (source, _, data) = udp(&packet).expect("udp");
                assert_eq!(source, socket.local_addr().expect("an address").port());
                assert_eq!(data, payload, "{from} checksum offload {checksum}");
                let total = header + len;
                assert!(packet.len() == total || (packet.len() <= 46 && total < 46), "{len}");
                assert!(has_right_checksums(&packet[..total]), "{from} {checksum} {len}");
            }
        }
    }
    assert_eq!(intake.counters(0), line::PortCounters::default());
}

#[test]
fn a_host_receives_answers_to_its_pings() {
    let Some(cluster) = cluster() else { return };
    let (mut intake, mut ports) = lines(&cluster);
    for to in hosts(1) {
        let mut ping = Command::new("ping");
        // With -w it ends, and succeeds, when it has three answers.
        ping.args(["-c", "3", "-i", "0.01", "-w", "15", "-s", "1000", &to.to_string()]);
        ping.stdout(Stdio::piped());
        let mut ping = cluster.host(0).spawn(ping).expect("starts");
        until("ping ends", || {
            intake.burst(&mut |port, packet| answer(&mut ports, port, packet, to));
            ports.flush();
            let limit = Duration::from_millis(10);
            intake.wait(true, &[std::os::fd::AsFd::as_fd(&ports)], Some(limit)).expect("waits");
            ping.0.try_wait().expect("waits").is_some()
        });
        let mut text = String::new();
        std::io::Read::read_to_string(&mut ping.0.stdout.take().expect("a pipe"), &mut text)
            .expect("reads");
        assert!(ping.0.wait().expect("waits").success(), "{text}");
        assert!(!text.contains("DUP"), "{text}");
    }
}

/// Answers an echo request: addresses swapped, type changed, checksum adapted.
fn answer(ports: &mut SystemPorts, port: u8, packet: &mut [u8], asked: IpAddr) {
    let (addresses, len, icmp, request, reply) =
        if asked.is_ipv4() { (12, 4, 20, 8, 0) } else { (8, 16, 40, 128, 129) };
    let protocol = if asked.is_ipv4() { 1 } else { 58 };
    let is_request = match asked {
        IpAddr::V4(ip) => packet[0] >> 4 == 4 && packet[16..20] == ip.octets(),
        IpAddr::V6(ip) => packet[0] >> 4 == 6 && packet[24..40] == ip.octets(),
    };
    let found = if asked.is_ipv4() { packet[9] } else { packet[6] };
    if !is_request || found != protocol || packet[icmp] != request {
        return;
    }
    let (first, second) = packet[addresses..addresses + 2 * len].split_at_mut(len);
    first.swap_with_slice(second);
    packet[icmp] = reply;
    let old = !u16::from_be_bytes([packet[icmp + 2], packet[icmp + 3]]);
    let (request, reply) = (u16::from(request) << 8, u16::from(reply) << 8);
    let parts = [old.to_be_bytes(), (!request).to_be_bytes(), reply.to_be_bytes()];
    let new = !sum(&[&parts.concat()]);
    packet[icmp + 2..icmp + 4].copy_from_slice(&new.to_be_bytes());
    let host = if asked.is_ipv4() { host_v4(0).into() } else { host_v6(0).into() };
    ports.send(port, host, packet).expect("sends");
}

/// Receives at a host.
fn receive(socket: &UdpSocket) -> Vec<u8> {
    socket.set_read_timeout(Some(LIMIT)).expect("sets");
    let mut buffer = [0; 2000];
    let (len, _) = socket.recv_from(&mut buffer).expect("receives");
    buffer[..len].to_vec()
}

#[test]
fn packets_wait_in_order_while_a_neighbour_is_resolved() {
    let Some(cluster) = cluster() else { return };
    let (_intake, mut ports) = lines(&cluster);
    for (far, host) in hosts(1).into_iter().zip(hosts(0)) {
        let socket = socket(cluster.host(0), host);
        let udp_port = socket.local_addr().expect("an address").port();
        for number in 0..32u8 {
            let packet = packet(far, host, udp_port, &[number; 30]);
            assert_eq!(ports.send(0, host, &packet), Ok(()));
        }
        let last = packet(far, host, udp_port, &[9]);
        assert_eq!(ports.send(0, host, &last), Err(PacketDrop::Neighbour));
        // Both requests for a neighbour, ARP and neighbour discovery, are answered in microseconds.
        until("resolved", || {
            ports.flush();
            ports.timeout().is_none()
        });
        assert_eq!(ports.send(0, host, &last), Ok(()), "resolved");
        ports.flush();
        for number in 0..32u8 {
            assert_eq!(receive(&socket), [number; 30], "{host}");
        }
        assert_eq!(receive(&socket), [9]);
        let neighbours = cluster.node(0).run(&format!("ip neigh show to {host} dev lan0"));
        let neighbours = neighbours.expect("runs");
        assert!(neighbours.contains("lladdr"), "the kernel resolved it: {neighbours:?}");
    }
    assert_eq!((ports.unresolved(), ports.refused()), (0, 0));
}

#[test]
fn a_neighbour_that_does_not_answer_fails() {
    let Some(cluster) = cluster() else { return };
    let (_intake, mut ports) = lines(&cluster);
    let mut waiting = 0;
    // The kernel sends a request per second. It reports a failure after 3, and here after 100.
    cluster.node(0).set_kernel("ipv6/neigh/lan0/mcast_solicit", "100").expect("sets");
    for (address, host) in [("10.0.1.77", host_v4(0).into()), ("fd00:1::77", host_v6(0).into())] {
        let absent: IpAddr = address.parse().expect("an address");
        let packet = packet(absent, host, 4000, b"lost");
        assert_eq!(ports.send(0, absent, &packet), Ok(()));
        waiting += 1;
        until("failure", || {
            ports.flush();
            match ports.send(0, absent, &packet) {
                Ok(()) => waiting += 1,
                Err(PacketDrop::Neighbour) => {}
                Err(PacketDrop::NeighbourFailed) => return true,
                Err(other) => panic!("{other:?}"),
            }
            std::thread::sleep(Duration::from_millis(1));
            false
        });
        // The next attempt begins after a while.
        until("next attempt", || {
            ports.flush();
            std::thread::sleep(Duration::from_millis(1));
            ports.send(0, absent, &packet).is_ok()
        });
        assert_eq!(ports.unresolved(), waiting, "those that waited are counted");
        assert_eq!(ports.timeout(), Some(Duration::ZERO), "they are to be taken");
        let mut taken = std::iter::from_fn(|| ports.take_unanswered());
        assert!(taken.by_ref().all(|other| other[..] == packet), "unchanged");
        until("second failure", || {
            ports.flush();
            std::thread::sleep(Duration::from_millis(1));
            ports.timeout() != Some(Duration::from_millis(100))
        });
        assert!(ports.take_unanswered().is_some_and(|other| other[..] == packet));
        assert_eq!((ports.take_unanswered(), ports.timeout()), (None, None));
        assert_eq!(ports.take_ended(), Ended::default(), "they are not counted twice");
        waiting = ports.unresolved();
    }
}

#[test]
fn a_new_link_layer_address_of_a_neighbour_is_used() {
    let Some(cluster) = cluster() else { return };
    let (_intake, mut ports) = lines(&cluster);
    for (far, host, node, mac) in [
        (hosts(1)[0], hosts(0)[0], IpAddr::from(lan_v4(0)), "02:00:00:00:00:77"),
        (hosts(1)[1], hosts(0)[1], IpAddr::from(lan_v6(0)), "02:00:00:00:00:78"),
    ] {
        let socket = socket(cluster.host(0), host);
        let udp_port = socket.local_addr().expect("an address").port();
        let send = |ports: &mut SystemPorts, text: &[u8]| {
            ports.flush();
            ports.send(0, host, &packet(far, host, udp_port, text)).expect("sends");
            until("sent", || {
                ports.flush();
                ports.timeout().is_none()
            });
        };
        send(&mut ports, b"before");
        assert_eq!(receive(&socket), b"before");
        let run = |line: &str| cluster.host(0).run(line).expect("runs");
        run(&format!("ip link set eth0 address {mac}"));
        // The host's next request for its router has the new address.
        run("ip neigh flush dev eth0");
        run(&format!("ping -c1 -W5 {node}"));
        // Changes are read each millisecond.
        std::thread::sleep(Duration::from_millis(5));
        send(&mut ports, b"after");
        assert_eq!(receive(&socket), b"after");
    }
}

#[test]
fn the_kernel_of_a_node_is_silent_about_packets_for_others() {
    let Some(cluster) = cluster() else { return };
    // An intake at the host sees all packets to the host, those of its own kernel excepted.
    let mut at_host = {
        let _inside = cluster.host(0).enter().expect("enters");
        line::open(&["eth0"]).expect("opens").0
    };
    let absent = ["10.0.2.2", "10.77.0.1", "10.9.0.2", "fd00:2::2", "fd77::1"];
    for to in absent {
        let to: IpAddr = to.parse().expect("an address");
        let from = hosts(0)[usize::from(to.is_ipv6())];
        let udp = socket(cluster.host(0), from);
        udp.send_to(b"transit", (to, 4000)).expect("sends");
        udp.set_ttl(1).expect("sets");
        udp.send_to(b"transit", (to, 4000)).expect("sends");
        let host = cluster.host(0);
        assert!(host.run(&format!("ping -c1 -W0.01 {to}")).is_err(), "no answer from {to}");
        let connect = || {
            let _inside = host.enter().expect("enters");
            std::net::TcpStream::connect_timeout(
                &SocketAddr::new(to, 4000),
                Duration::from_millis(10),
            )
        };
        let error = connect().expect_err("no answer");
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{to}");
    }
    // Answers of the kernel would come before those to later packets.
    let mut answers = 0;
    for own in [IpAddr::from(lan_v4(0)), lan_v6(0).into()] {
        cluster.host(0).run(&format!("ping -c1 -W5 {own}")).expect("the node answers");
        answers += 1;
    }
    while at_host.burst(&mut |_, packet| {
        let (protocol, kind) =
            if packet[0] >> 4 == 4 { (packet[9], packet[20]) } else { (packet[6], packet[40]) };
        match (packet[0] >> 4, protocol, kind) {
            // Echo replies.
            (4, 1, 0) | (6, 58, 129) => answers -= 1,
            // Neighbour discovery.
            (6, 58, 135 | 136) => {}
            _ => panic!("the kernel sent {packet:02x?}"),
        }
    }) > 0
    {}
    assert_eq!(answers, 0, "the intake saw both echo replies, and no other packet");
}

#[test]
fn a_port_follows_its_link() {
    let Some(cluster) = cluster() else { return };
    let (mut intake, mut ports) = lines(&cluster);
    let (far, host) = (hosts(1)[0], hosts(0)[0]);
    let socket = socket(cluster.host(0), host);
    let udp_port = socket.local_addr().expect("an address").port();
    let packet = packet(far, host, udp_port, b"hello");
    assert!(ports.is_up(0));
    assert!(!ports.is_up(1));
    assert_eq!(ports.send(1, host, &packet), Err(PacketDrop::PortDown));
    let mut waiting = 0;
    for (place, device) in [(cluster.host(0), "eth0"), (cluster.node(0), "lan0")] {
        // A packet that waits for a neighbour is dropped.
        let absent = [10, 0, 1, 77 + waiting as u8].into();
        assert_eq!(ports.send(0, absent, &packet), Ok(()));
        place.run(&format!("ip link set {device} down")).expect("sets");
        until("down", || {
            ports.flush();
            !ports.is_up(0)
        });
        assert_eq!(ports.send(0, host, &packet), Err(PacketDrop::PortDown));
        waiting += 1;
        assert_eq!((ports.timeout(), ports.unresolved()), (None, waiting), "none waits");
        assert_eq!(ports.take_ended().dropped, [(PacketDrop::PortDown, 1)]);
        // An error that remained would end each wait at once.
        while intake.burst(&mut |_, _| {}) > 0 {}
        intake.wait(true, &[], Some(Duration::ZERO)).expect("waits");
        for fd in intake.descriptors() {
            use rustix::event::{PollFd, PollFlags, poll};
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            let ready = poll(&mut fds, Some(&Duration::ZERO.try_into().expect("a time")));
            assert_eq!(ready, Ok(0), "{fds:?}");
        }
        place.run(&format!("ip link set {device} up")).expect("sets");
        until("up", || {
            ports.flush();
            ports.is_up(0)
        });
        assert_eq!(ports.send(0, host, &packet), Ok(()));
        until("resolved", || {
            ports.flush();
            ports.timeout().is_none()
        });
        assert_eq!(receive(&socket), b"hello");
        // The host's route vanished with its device.
        let _ = cluster.host(0).run(&format!("ip route add default via {}", lan_v4(0)));
        socket.send_to(b"transit", (far, 4000)).expect("sends");
        assert_eq!(udp(&next(&mut intake, 4000)).expect("udp").2, b"transit");
    }
    cluster.node(0).run("ip link delete lan0").expect("deletes");
    until("gone", || {
        ports.flush();
        !ports.is_up(0)
    });
    assert_eq!(intake.burst(&mut |_, _| {}), 0);
}

/// Asserts that packets go through the port of the first node in both directions.
fn check_port(cluster: &Cluster, intake: &mut SystemIntake, ports: &mut SystemPorts) {
    let (far, host) = (hosts(1)[0], hosts(0)[0]);
    let socket = socket(cluster.host(0), host);
    let udp_port = socket.local_addr().expect("an address").port();
    assert_eq!(ports.send(0, host, &packet(far, host, udp_port, b"hello")), Ok(()));
    until("resolved", || {
        ports.flush();
        ports.timeout().is_none()
    });
    assert_eq!(receive(&socket), b"hello");
    socket.send_to(b"transit", (far, 4000)).expect("sends");
    assert_eq!(udp(&next(intake, 4000)).expect("udp").2, b"transit");
}

#[test]
fn a_port_follows_its_interface_by_name_when_it_is_made_again() {
    let Some(cluster) = cluster() else { return };
    let (mut intake, mut ports) = lines(&cluster);
    let _inside = cluster.node(0).enter().expect("enters");
    let (far, host) = (hosts(1)[0], hosts(0)[0]);
    let lost = packet(far, host, 9, b"lost");
    check_port(&cluster, &mut intake, &mut ports);
    assert_eq!(ports.take_warnings(), [""; 0]);
    let gone = "interface lan0 is gone: packets for its port are dropped (port_down) until an \
                interface has this name again";
    // As before, and with another index and MTU.
    for (index, mtu) in [(1_000, 1_500), (2_000, 1_400)] {
        assert_eq!(ports.send(0, [10, 0, 1, 77].into(), &lost), Ok(()), "it waits");
        cluster.node(0).run("ip link delete lan0").expect("deletes");
        until("gone", || {
            ports.flush();
            !ports.is_up(0)
        });
        assert_eq!(ports.take_warnings(), [gone]);
        assert_eq!(ports.send(0, host, &lost), Err(PacketDrop::PortDown));
        assert_eq!(ports.take_ended().dropped, [(PacketDrop::PortDown, 1)], "the one that waited");
        // An error that remained would end each wait at once.
        while intake.burst(&mut |_, _| {}) > 0 {}
        intake.wait(true, &[], Some(Duration::ZERO)).expect("waits");
        let (start, pause) = (Instant::now(), Duration::from_millis(20));
        intake.wait(true, &[], Some(pause)).expect("waits");
        assert!(start.elapsed() >= pause, "it does not spin");
        cluster.renew_lan(0, index, mtu).expect("makes it");
        until("up", || {
            ports.flush();
            ports.is_up(0)
        });
        let text = format!(
            "interface lan0 is there again, with index {index} and an MTU of {mtu}: its port uses it"
        );
        assert_eq!(ports.take_warnings(), [text]);
        assert_eq!(ports.mtu(0), mtu);
        assert!(ports.has_address(0, lan_v4(0).into()));
        check_port(&cluster, &mut intake, &mut ports);
        ports.take_ended();
    }
    // Another name is another interface.
    let run = |line: &str| cluster.node(0).run(line).expect("runs");
    run("ip link set lan0 down");
    run("ip link set lan0 name other0");
    run("ip link set other0 up");
    until("renamed", || {
        ports.flush();
        ports.take_warnings() == [gone]
    });
    assert_eq!(ports.send(0, host, &lost), Err(PacketDrop::PortDown));
    run("ip link set other0 down");
    run("ip link set other0 name lan0");
    run("ip link set lan0 up");
    until("up", || {
        ports.flush();
        ports.is_up(0)
    });
    check_port(&cluster, &mut intake, &mut ports);
}

#[test]
fn a_neighbour_that_the_administrator_has_set_remains_when_its_link_was_down() {
    let Some(cluster) = cluster() else { return };
    let (far, host) = (hosts(1)[0], hosts(0)[0]);
    let socket = socket(cluster.host(0), host);
    let udp_port = socket.local_addr().expect("an address").port();
    let mac = "02:00:00:00:00:66";
    cluster.host(0).run(&format!("ip link set eth0 address {mac}")).expect("sets");
    let set = format!("ip neigh replace {host} lladdr {mac} dev lan0 nud permanent");
    cluster.node(0).run(&set).expect("sets");
    // The host does not answer requests for its address.
    cluster.host(0).run("ip link set eth0 arp off").expect("sets");
    let (_intake, mut ports) = lines(&cluster);
    for is_up in [false, true] {
        let state = if is_up { "up" } else { "down" };
        cluster.host(0).run(&format!("ip link set eth0 {state}")).expect("sets");
        until(state, || {
            ports.flush();
            ports.is_up(0) == is_up
        });
    }
    assert_eq!(ports.send(0, host, &packet(far, host, udp_port, b"hello")), Ok(()));
    until("sent", || {
        ports.flush();
        ports.timeout().is_none()
    });
    assert_eq!(ports.unresolved(), 0);
    assert_eq!(receive(&socket), b"hello");
    // A request to resolve it would have ended that.
    let kept = cluster.node(0).run(&format!("ip neigh show to {host} dev lan0")).expect("runs");
    assert!(kept.contains("PERMANENT"), "{kept}");
    // With its interface the node's kernel forgets it.
    cluster.node(0).run("ip link set lan0 down").expect("sets");
    cluster.node(0).run("ip link set lan0 up").expect("sets");
    until("forgotten", || {
        ports.flush();
        ports.is_up(0) && {
            let _ = ports.send(0, host, &packet(far, host, udp_port, b"waits"));
            ports.timeout().is_some()
        }
    });
}

#[test]
fn a_burst_arrives_in_order_and_without_loss_while_it_is_drained() {
    const PACKETS: usize = 10_000;
    // Fewer than the ring has frames.
    const WINDOW: usize = 2048;
    let Some(cluster) = cluster() else { return };
    let (mut intake, _ports) = lines(&cluster);
    let (from, to) = (hosts(0)[0], hosts(1)[0]);
    let socket = socket(cluster.host(0), from);
    let received = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..PACKETS {
                until("room", || number - received.load(Ordering::Acquire) < WINDOW);
                let payload = (number as u32).to_be_bytes().repeat(1 + number % 300);
                socket.send_to(&payload, (to, 4000)).expect("sends");
            }
        });
        let mut number = 0;
        until("all packets", || {
            let passed = intake.burst(&mut |_, packet| {
                let Some((_, 4000, payload)) = udp(packet) else { return };
                let expected = (number as u32).to_be_bytes().repeat(1 + number % 300);
                assert_eq!(payload, expected, "packet {number}");
                assert!(has_right_checksums(&packet[..28 + payload.len()]));
                number += 1;
            });
            assert!(passed <= BURST);
            received.store(number, Ordering::Release);
            number == PACKETS
        });
    });
    assert_eq!(intake.counters(0), line::PortCounters::default());
}

#[test]
fn packets_leave_in_order_and_without_loss() {
    const PACKETS: usize = 10_000;
    let Some(cluster) = cluster() else { return };
    let (_intake, mut ports) = lines(&cluster);
    let mut at_host = {
        let _inside = cluster.host(0).enter().expect("enters");
        line::open(&["eth0"]).expect("opens").0
    };
    let (far, host) = (hosts(1)[0], hosts(0)[0]);
    let payload = |number: usize| (number as u32).to_be_bytes().repeat(1 + number % 300);
    ports.send(0, host, &packet(far, host, 4001, b"first")).expect("waits");
    until("resolved", || {
        ports.flush();
        ports.timeout().is_none()
    });
    assert_eq!(ports.take_ended().sent, Sent { packets: 1, bytes: 33 });
    let (mut sent, mut received, mut bytes) = (0, 0, 0);
    until("all packets", || {
        for _ in 0..100.min(PACKETS - sent) {
            let packet = packet(far, host, 4000, &payload(sent));
            ports.send(0, host, &packet).expect("sends");
            (sent, bytes) = (sent + 1, bytes + packet.len() as u64);
        }
        ports.flush();
        while at_host.burst(&mut |_, bytes| {
            let Some((_, 4000, _)) = udp(bytes) else { return };
            let expected = packet(far, host, 4000, &payload(received));
            assert_eq!(bytes[..expected.len()], expected, "packet {received}");
            received += 1;
        }) > 0
        {}
        received == PACKETS
    });
    assert_eq!(ports.refused(), 0);
    let sent = Sent { packets: PACKETS as u64, bytes };
    assert_eq!(ports.take_ended(), Ended { sent, dropped: vec![] });
    let long = packet(far, host, 4000, &[0; 1473]);
    assert_eq!(ports.send(0, host, &long), Err(PacketDrop::TooBig));
    assert_eq!(ports.send(0, host, b"\x20not IP"), Err(PacketDrop::Version));
    assert_eq!(ports.send(0, host, b""), Err(PacketDrop::Version));
}

#[test]
fn interfaces_that_cannot_be_ports_are_refused_with_a_reason() {
    let Some(cluster) = cluster() else { return };
    let _inside = cluster.node(0).enter().expect("enters");
    let refuse = |names: &[&str]| line::open(names).expect_err("refused");
    let error = refuse(&["lan7"]);
    assert!(matches!(error, LineError::NoInterface { .. }), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("there is no interface lan7;") && text.contains("lan0"), "{text}");
    assert!(matches!(refuse(&["lo"]), LineError::NotEthernet { .. }));
    assert!(matches!(refuse(&["lan0", "lan0"]), LineError::Twice { .. }));
    assert!(matches!(refuse(&["lan0"; 33]), LineError::TooMany(33)));
    cluster.node(0).run("ip link set lan0 down").expect("sets");
    let text = refuse(&["lan0"]).to_string();
    assert_eq!(text, "interface lan0 is down; run `ip link set lan0 up`");
}
