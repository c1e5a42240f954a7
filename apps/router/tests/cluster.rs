//! A cluster of node processes between hosts with unmodified programs, in network namespaces.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use courser_router::control::Client;
use courser_router::netns::{self, Cluster, Process, Shape, Unavailable, name};
use serde_json::Value;

/// Held by each test: the flood of one would drop the packets that another one counts.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A cluster with its node processes.
struct Running {
    cluster: Cluster,
    directory: tempfile::TempDir,
    nodes: Vec<Option<Process>>,
    _alone: MutexGuard<'static, ()>,
}

impl Running {
    /// `None`, with the reason printed: this machine or user cannot have namespaces.
    fn start(shape: Shape, nodes: usize, edit: impl Fn(String) -> String) -> Option<Running> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = match Cluster::build(shape, nodes) {
            Ok(cluster) => cluster,
            Err(error) => {
                println!("SKIPPED: {error}");
                return None;
            }
        };
        let directory = tempfile::tempdir().expect("a directory");
        let config = edit(cluster.config(directory.path(), &[]));
        std::fs::write(directory.path().join("cluster.toml"), config).expect("writable");
        let mut running = Running { cluster, directory, nodes: Vec::new(), _alone: alone };
        for node in 0..nodes {
            let process = running.spawn(node);
            running.nodes.push(Some(process));
        }
        for node in 0..nodes {
            running
                .wait(node, |nodes| nodes.lines().count() == nodes.matches("direct").count() + 1);
        }
        Some(running)
    }

    /// Resolves the hosts' link-layer addresses: few packets wait for that.
    fn resolve(&self) {
        for host in 0..self.nodes.len() {
            for router in [netns::lan_v4(host).to_string(), netns::lan_v6(host).to_string()] {
                let _ = self.try_program(host, "ping", &format!("-c 1 {router}"));
            }
        }
    }

    /// The counters of all nodes, for a failure.
    fn stats(&self) -> String {
        (0..self.nodes.len()).map(|node| format!("{:?}\n", self.ask(node, "stats"))).collect()
    }

    /// Packets that nodes and the networks of hosts have dropped, by their counters.
    fn losses(&self) -> u64 {
        let of_node = |node: usize| {
            let stats = self.ask(node, "stats").expect("counters");
            let stats: Value = serde_json::from_str(&stats).expect("JSON");
            let dropped = [&stats["dropped"], &stats["ports"]["lan0"]["kernel_drops"]];
            let dropped: u64 = dropped.iter().map(|n| n.as_u64().expect("a number")).sum();
            let at_node = system_losses(self.cluster.node(node), "lan0:");
            dropped + at_node + system_losses(self.cluster.host(node), "eth0:")
        };
        (0..self.nodes.len()).map(of_node).sum()
    }

    fn spawn(&self, node: usize) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_router"));
        command.arg("run").arg(self.path("cluster.toml")).arg("--node").arg(name(node).to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.cluster.node(node).spawn(command).expect("the node starts")
    }

    fn path(&self, file: &str) -> std::path::PathBuf {
        Path::join(self.directory.path(), file)
    }

    fn ask(&self, node: usize, request: &str) -> Result<String, String> {
        let socket = self.path(&format!("{}.sock", name(node)));
        let mut client = Client::connect(socket).map_err(|error| error.to_string())?;
        client.ask(request).map_err(|error| error.to_string())
    }

    /// Waits until the states of the nodes, as this node sees them, are as wanted.
    fn wait(&self, node: usize, wanted: impl Fn(&str) -> bool) {
        let begin = Instant::now();
        loop {
            let nodes = self.ask(node, "nodes");
            if nodes.as_deref().is_ok_and(&wanted) {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "node {node}: {nodes:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs `f` in the namespace of a host.
    fn inside<R>(&self, host: usize, f: impl FnOnce() -> R) -> R {
        let _inside = self.cluster.host(host).enter().expect("may enter");
        f()
    }

    /// The output of a program, of which the machine may have none: then `None`, with the reason
    /// printed. It may fail.
    fn try_program(&self, host: usize, program: &str, arguments: &str) -> Option<String> {
        match self.cluster.host(host).run(&format!("{program} {arguments}")) {
            Ok(text) => Some(text),
            Err(Unavailable::Program { .. }) => {
                println!("SKIPPED: {program} is not installed");
                None
            }
            Err(error) => Some(error.to_string()),
        }
    }

    fn on_host(&self, host: usize, command: &str) -> String {
        self.cluster.host(host).run(command).unwrap_or_else(|error| {
            let stats: Vec<_> = (0..self.nodes.len()).map(|n| self.ask(n, "stats")).collect();
            panic!("{error}\n{stats:#?}")
        })
    }
}

/// Packets that did not reach the other end of a device, and those that did not fit a UDP socket.
fn system_losses(at: &netns::Namespace, device: &str) -> u64 {
    let _inside = at.enter().expect("may enter");
    let read = |file: &str| {
        std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).expect("readable")
    };
    let (devices, v4, v6) = (read("dev"), read("snmp"), read("snmp6"));
    let device = devices.lines().find_map(|line| line.trim().strip_prefix(device));
    let sent_and_dropped = device.and_then(|line| line.split_whitespace().nth(11));
    let v4 = v4.lines().filter(|line| line.starts_with("Udp:")).nth(1);
    let v4 = v4.and_then(|line| line.split_whitespace().nth(5));
    let v6 = v6.lines().find_map(|line| line.strip_prefix("Udp6RcvbufErrors"));
    let all = [sent_and_dropped, v4, v6];
    all.iter().map(|n| n.expect("a column").trim().parse::<u64>().expect("a number")).sum()
}

/// Datagrams with numbers from one host to another, in several flows.
struct Datagrams {
    from: usize,
    to: usize,
    /// Destination, which the host `to` has.
    address: IpAddr,
    flows: u32,
    /// Of each flow.
    count: u32,
    /// Between two datagrams.
    gap: Duration,
    /// Datagrams at most that were sent and have not arrived.
    window: u32,
}

/// What became of them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Arrived {
    sent: u32,
    received: u32,
    reordered: u32,
}

impl Datagrams {
    /// Sends them, with `meanwhile` in the meantime.
    fn send(&self, running: &Running, meanwhile: impl FnOnce()) -> Arrived {
        let all = self.flows * self.count;
        std::thread::scope(|scope| {
            let bound = running.inside(self.to, || UdpSocket::bind((self.address, 5_000)));
            let receiver = bound.expect("an address of the host");
            // The host loses none while this thread does not run.
            let queue = 16 << 20;
            rustix::net::sockopt::set_socket_recv_buffer_size_force(&receiver, queue)
                .expect("root");
            let arrived = Arc::new(AtomicU32::new(0));
            let number = Arc::clone(&arrived);
            let receiver = scope.spawn(move || receive(&receiver, all, &number));
            let sender = move || running.inside(self.from, || self.send_all(&arrived));
            let sender = scope.spawn(sender);
            meanwhile();
            sender.join().expect("no panic");
            receiver.join().expect("no panic")
        })
    }

    fn send_all(&self, arrived: &AtomicU32) {
        let any = if self.address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let sockets: Vec<_> =
            (0..self.flows).map(|_| UdpSocket::bind(any).expect("a socket")).collect();
        let begin = Instant::now();
        for number in 0..self.count {
            let sent = number * self.flows;
            let full =
                || sent.saturating_sub(arrived.load(Ordering::Relaxed)) > self.window - self.flows;
            let last = Instant::now();
            while self.window < u32::MAX && full() {
                if last.elapsed() > Duration::from_secs(10) {
                    return; // as some are lost, which the caller sees
                }
                std::thread::yield_now();
            }
            for (flow, socket) in (0_u32..).zip(&sockets) {
                let mut datagram = [0_u8; 64];
                datagram[..4].copy_from_slice(&flow.to_le_bytes());
                datagram[4..8].copy_from_slice(&number.to_le_bytes());
                // A full queue of the host, or an error reported for an earlier one.
                while socket.send_to(&datagram, (self.address, 5_000)).is_err() {}
            }
            let due = self.gap * (number + 1);
            std::thread::sleep(due.saturating_sub(begin.elapsed()));
        }
    }
}

fn receive(socket: &UdpSocket, all: u32, number: &AtomicU32) -> Arrived {
    socket.set_read_timeout(Some(Duration::from_millis(1_500))).expect("a timeout");
    let mut next = std::collections::BTreeMap::new();
    let mut arrived = Arrived { sent: all, ..Arrived::default() };
    let mut datagram = [0; 64];
    // The first one may take longer: it waits for the sender.
    while arrived.received < all {
        let Ok((8.., _)) = socket.recv_from(&mut datagram) else { break };
        let word =
            |at: usize| datagram[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | u32::from(*b));
        let (flow, at) = (word(0), word(4));
        let expected: &mut u32 = next.entry(flow).or_default();
        arrived.received += 1;
        arrived.reordered += u32::from(at < *expected);
        *expected = (*expected).max(at + 1);
        number.store(arrived.received, Ordering::Relaxed);
    }
    arrived
}

/// Sends bytes over TCP from one host to another, and compares them.
fn copy_over_tcp(running: &Running, from: usize, to: usize, address: IpAddr, bytes: u64) {
    let pattern = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    std::thread::scope(|scope| {
        let listener = running.inside(to, || TcpListener::bind((address, 6_000))).expect("bound");
        let receiver = scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let (mut at, mut block) = (0_u64, vec![0; 1 << 16]);
            loop {
                let read = stream.read(&mut block).expect("bytes");
                if read == 0 {
                    return at;
                }
                for byte in &block[..read] {
                    assert_eq!(*byte, pattern(at), "at {at}");
                    at += 1;
                }
            }
        });
        let mut stream =
            running.inside(from, || TcpStream::connect((address, 6_000))).expect("connects");
        let mut at = 0;
        while at < bytes {
            let block: Vec<u8> = (at..bytes.min(at + (1 << 16))).map(pattern).collect();
            stream.write_all(&block).expect("takes bytes");
            at += block.len() as u64;
        }
        drop(stream);
        assert_eq!(receiver.join().expect("no panic"), bytes);
    });
}

fn v4(host: usize) -> IpAddr {
    netns::host_v4(host).into()
}

fn v6(host: usize) -> IpAddr {
    netns::host_v6(host).into()
}

#[test]
fn ping_and_traceroute_pass_in_each_topology() {
    for shape in [Shape::Switch, Shape::Mesh, Shape::Mixed] {
        let Some(running) = Running::start(shape, 3, |text| text) else { return };
        for (from, to) in [(0, 1), (2, 0)] {
            for address in [v4(to), v6(to), netns::lan_v4(to).into(), netns::lan_v6(to).into()] {
                let Some(text) =
                    running.try_program(from, "ping", &format!("-c 3 -i 0.05 {address}"))
                else {
                    return;
                };
                assert!(text.contains(" 0% packet loss"), "{shape:?}: {text}");
            }
            if let Some(text) =
                running.try_program(from, "traceroute", &format!("-n -q 1 -w 2 {}", v4(to)))
            {
                let hops: Vec<_> =
                    text.lines().skip(1).filter_map(|l| l.split_whitespace().nth(1)).collect();
                let expected = [netns::lan_v4(from).to_string(), v4(to).to_string()];
                assert_eq!(hops, expected, "{shape:?}: {text}");
            }
        }
    }
}

#[test]
fn tcp_carries_bytes_unchanged_and_udp_floods_stay_in_order() {
    let megabytes =
        std::env::var("COURSER_TCP_MEGABYTES").map_or(20, |n| n.parse().expect("a number"));
    for shape in [Shape::Switch, Shape::Mesh] {
        let Some(running) = Running::start(shape, 3, |text| text) else { return };
        copy_over_tcp(&running, 0, 1, v4(1), megabytes << 20);
        copy_over_tcp(&running, 2, 0, v6(0), megabytes << 18);
        let flood = |from, to, address, gap, window| Datagrams {
            from,
            to,
            address,
            flows: 8,
            count: 5_000,
            gap,
            window,
        };
        running.resolve();
        // Fewer than the queue of a link has room for.
        for (from, to, address) in [(0, 2, v4(2)), (1, 0, v6(0))] {
            let arrived = flood(from, to, address, Duration::ZERO, 512).send(&running, || ());
            let all = (arrived.sent, 0);
            assert_eq!((arrived.received, arrived.reordered), all, "{shape:?} {}", running.stats());
        }
        let gap = Duration::from_micros(20);
        let flood = |from, to, address| flood(from, to, address, gap, u32::MAX);
        let before = running.losses();
        let mut back = Arrived::default();
        let arrived = flood(0, 2, v4(2)).send(&running, || {
            back = flood(1, 0, v6(0)).send(&running, || ());
        });
        let losses = running.losses() - before;
        println!("{shape:?} {arrived:?} {back:?}, {losses} losses");
        for arrived in [arrived, back] {
            assert_eq!(arrived.reordered, 0, "{shape:?} {arrived:?} {}", running.stats());
            assert!(arrived.received > 1_000, "{shape:?} {arrived:?} {}", running.stats());
        }
        // A machine with other work has no time for all, but each loss is counted.
        let lost = arrived.sent + back.sent - arrived.received - back.received;
        assert!(u64::from(lost) <= losses, "{shape:?} {losses} of {lost} {}", running.stats());
    }
}

#[test]
fn hosts_discover_the_path_mtu() {
    let narrow = |text: String| {
        let at = text.find("name = \"b\"").expect("the second node");
        let (before, after) = text.split_at(at);
        format!("{before}{}", after.replacen("mtu = 1500", "mtu = 1400", 1))
    };
    let Some(running) = Running::start(Shape::Switch, 3, narrow) else { return };
    for (address, router, headers, report) in [
        (v4(1), IpAddr::from(netns::lan_v4(0)), 28, "Frag needed and DF set (mtu = 1400)"),
        (v6(1), netns::lan_v6(0).into(), 48, "Packet too big: mtu=1400"),
    ] {
        let ping = |len| format!("-n -c 1 -W 5 -M do -s {} {address}", len - headers);
        let Some(text) = running.try_program(0, "ping", &ping(1_500)) else { return };
        assert!(text.contains(&format!("From {router} icmp_seq=1 {report}")), "{text}");
        // The host keeps it, and packets of that length pass.
        let route = running.on_host(0, &format!("ip route get {address}"));
        assert!(route.contains("mtu 1400"), "{route}");
        running.on_host(0, &format!("ping {}", ping(1_400)));
    }
    let stats = running.ask(0, "stats").expect("counters");
    let stats: Value = serde_json::from_str(&stats).expect("JSON");
    assert_eq!(stats["drops"]["too_big"], 2, "{stats}");
    let text = running.on_host(0, &format!("ping -c 2 -i 0.2 -M dont -s 1472 {}", v4(1)));
    assert!(text.contains(" 0% packet loss"), "in fragments: {text}");
    copy_over_tcp(&running, 0, 1, v4(1), 1 << 20);
    copy_over_tcp(&running, 0, 1, v6(1), 1 << 20);
}

/// Keys of a node's counters that programs read. Others may follow.
const KEYS: [&str; 31] = [
    "node",
    "uptime_ns",
    "received",
    "received_bytes",
    "sent",
    "sent_bytes",
    "to_nodes",
    "from_nodes",
    "passed_on",
    "to_system",
    "reordered",
    "icmp_sent",
    "icmp_limited",
    "fragmented",
    "fragments",
    "echoes",
    "dropped",
    "drops",
    "routes",
    "nodes",
    "deaths",
    "refused_heartbeats",
    "refused_addresses",
    "refused_lives",
    "refused_announcements",
    "unresolved",
    "refused_by_system",
    "messages_sent",
    "frames_sent",
    "frames_received",
    "packets_retransmitted",
];

#[test]
fn counters_of_a_node_have_the_keys_that_programs_read() {
    let Some(running) = Running::start(Shape::Switch, 1, |text| text) else { return };
    let stats = running.ask(0, "stats").expect("counters");
    let stats: Value = serde_json::from_str(&stats).expect("JSON");
    for key in KEYS.into_iter().chain(["transport_drops", "ports", "import"]) {
        assert!(stats.get(key).is_some(), "{key}: {stats}");
    }
    for key in ["kernel_drops", "too_long", "ignored", "tagged"] {
        assert!(stats["ports"]["lan0"][key].is_u64(), "{key}: {stats}");
    }
    assert!(stats["drops"].is_object() && stats["nodes"].is_object(), "{stats}");
}

#[test]
fn packets_for_a_host_that_does_not_answer_are_reported_and_counted() {
    let Some(running) = Running::start(Shape::Switch, 2, |text| text) else { return };
    running.resolve();
    for (absent, router) in
        [("10.0.2.77", IpAddr::from(netns::lan_v4(1))), ("fd00:2::77", netns::lan_v6(1).into())]
    {
        // The only packet waits for the neighbour, which fails after three seconds.
        let ping = format!("-n -c 1 -W 15 {absent}");
        let Some(text) = running.try_program(0, "ping", &ping) else { return };
        let reported = format!("From {router} icmp_seq=1 Destination");
        assert!(text.contains(&reported) && text.contains("nreachable"), "{text}");
    }
    let begin = Instant::now();
    while !(0..2).all(|node| unaccounted(&running, node) == 0) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", running.stats());
    }
    let stats = running.ask(1, "stats").expect("counters");
    assert!(stats.contains("\"neighbour_failed\":2"), "{stats}");
}

/// Packets of a node of which no counter says what became of them.
fn unaccounted(running: &Running, node: usize) -> i64 {
    let stats = running.ask(node, "stats").expect("counters");
    let stats: Value = serde_json::from_str(&stats).expect("JSON");
    let sum = |keys: &[&str]| -> i64 {
        keys.iter().map(|key| stats[*key].as_i64().expect("a number")).sum()
    };
    sum(&["received", "from_nodes", "icmp_sent", "fragments"])
        - sum(&["sent", "to_nodes", "to_system", "fragmented", "dropped"])
}

#[test]
fn the_death_of_a_node_leaves_the_others_alone() {
    let Some(mut running) = Running::start(Shape::Switch, 3, |text| text) else { return };
    running.resolve();
    let mut doomed = running.nodes[2].take().expect("it runs");
    let traffic = Datagrams {
        from: 0,
        to: 1,
        address: v4(1),
        flows: 8,
        count: 2_000,
        gap: Duration::from_millis(1),
        window: u32::MAX,
    };
    let mut withdrawn = Duration::MAX;
    let arrived = traffic.send(&running, || {
        std::thread::sleep(Duration::from_millis(500));
        let killed = Instant::now();
        // The end of the process takes longer, as the kernel closes its packet sockets.
        doomed.0.kill().expect("it runs");
        running.wait(0, |nodes| nodes.contains("c dead"));
        running.wait(1, |nodes| nodes.contains("c dead"));
        withdrawn = killed.elapsed();
    });
    drop(doomed);
    let complete = (arrived.sent, 0);
    assert_eq!((arrived.received, arrived.reordered), complete, "{arrived:?} {}", running.stats());
    println!("withdrawn after {withdrawn:?}");
    assert!(withdrawn < Duration::from_millis(800), "the failure timeout: {withdrawn:?}");
    let ping = format!("-n -c 2 -i 0.2 -W 1 {}", v4(2));
    let Some(text) = running.try_program(0, "ping", &ping) else { return };
    let reported = format!("From {} icmp_seq=1 Destination Host Unreachable", netns::lan_v4(0));
    assert!(text.contains(&reported) && text.contains(" 0 received"), "{text}");
    let again = running.spawn(2);
    running.nodes[2] = Some(again);
    running.wait(0, |nodes| nodes.contains("c direct"));
    running.wait(2, |nodes| nodes.matches("direct").count() == 2);
    let text = running.on_host(0, &format!("ping -c 2 -i 0.2 {}", v4(2)));
    assert!(text.contains(" 0% packet loss"), "{text}");
}

#[test]
fn a_hundred_updates_a_second_lose_no_packet() {
    let Some(running) = Running::start(Shape::Switch, 3, |text| text) else { return };
    // Both hosts have the destination, and what arrives at either is counted.
    for host in [1, 2] {
        running.on_host(host, "ip address add 20.0.0.1/32 dev lo");
    }
    running.ask(0, "route add 20.0.0.0/8 via b:lan0@10.0.2.2").expect("announced");
    running.resolve();
    let address = IpAddr::from([20, 0, 0, 1]);
    let traffic = |to| Datagrams {
        from: 0,
        to,
        address,
        flows: 8,
        count: 3_000,
        gap: Duration::from_millis(1),
        window: u32::MAX,
    };
    std::thread::scope(|scope| {
        // Counts what arrives at the other host.
        let other = running.inside(2, || UdpSocket::bind((address, 5_000))).expect("bound");
        let other = scope.spawn(move || receive(&other, u32::MAX, &AtomicU32::new(0)));
        let first = traffic(1).send(&running, || {
            for update in 0..250 {
                let (node, host) = [("c", 3), ("b", 2)][update % 2];
                let gateway = format!("{node}:lan0@10.0.{host}.2");
                running.ask(0, &format!("route replace 20.0.0.0/8 via {gateway}")).expect("done");
                running
                    .ask(1, &format!("route replace 30.{update}.0.0/16 via {gateway}"))
                    .expect("done");
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let second = other.join().expect("no panic");
        assert!(first.received > 1_000 && second.received > 1_000, "{first:?} {second:?}");
        assert_eq!(first.received + second.received, first.sent, "{first:?} {second:?}");
    });
    let everywhere = |node| running.ask(node, "routes 30.0.0.0/8").expect("routes").lines().count();
    assert_eq!([everywhere(0), everywhere(1), everywhere(2)], [everywhere(1); 3]);
}

/// A counter of a node.
fn counter(running: &Running, node: usize, key: &str) -> u64 {
    let stats = running.ask(node, "stats").expect("counters");
    let stats: Value = serde_json::from_str(&stats).expect("JSON");
    stats[key].as_u64().unwrap_or_else(|| panic!("{key} of {stats}"))
}

#[test]
fn a_machine_with_a_copy_of_the_file_cannot_speak_for_a_node() {
    let Some(running) = Running::start(Shape::Switch, 2, |text| text) else { return };
    let other = running.cluster.switch().expect("a switch");
    // The other machine has an address of its own on the interconnect.
    other.run("ip address add 10.9.0.9/24 dev br0").expect("adds");
    other.run("ip link add lan0 type veth peer name lan1").expect("adds");
    other.run("ip link set lan0 up").expect("sets");
    other.run("ip link set lan1 up").expect("sets");
    let text = std::fs::read_to_string(running.path("cluster.toml")).expect("readable");
    let copy = text.replace("10.9.0.2:", "10.9.0.9:").replace("b.sock", "copy.sock");
    std::fs::write(running.path("copy.toml"), copy).expect("writable");
    let mut command = Command::new(env!("CARGO_BIN_EXE_router"));
    command.arg("run").arg(running.path("copy.toml")).args(["--node", "b"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let copy = other.spawn(command).expect("the copy starts");
    let begin = Instant::now();
    let mut has_route = false;
    while counter(&running, 0, "refused_addresses") < 5 || !has_route {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", running.stats());
        let client = Client::connect(running.path("copy.sock"));
        has_route |= client
            .is_ok_and(|mut client| client.ask("route add 77.0.0.0/8 via b:lan0@10.0.2.9").is_ok());
        std::thread::sleep(Duration::from_millis(20));
    }
    let routes = running.ask(0, "routes").expect("routes");
    assert!(!routes.contains("77.0.0.0/8"), "{routes}");
    assert!(running.ask(0, "nodes").expect("nodes").contains("b direct"), "the true node lives");
    assert_eq!(counter(&running, 0, "deaths"), 0);
    running.on_host(0, "ping -c 2 -i 0.1 -w 15 10.0.2.2");
    drop(copy);
}

#[test]
fn a_node_that_is_killed_and_started_again_is_never_taken_for_a_second_one() {
    let patient = |text: String| text.replace("800ms", "8s");
    let Some(mut running) = Running::start(Shape::Switch, 2, patient) else { return };
    for _ in 0..2 {
        // Killed, and started before its silence would count.
        running.nodes[1] = None;
        running.nodes[1] = Some(running.spawn(1));
        for node in 0..2 {
            running.wait(node, |nodes| nodes.matches("direct").count() == 1);
        }
        running.on_host(0, "ping -c 1 -w 15 10.0.2.2");
    }
    assert_eq!(counter(&running, 0, "refused_lives"), 0, "{}", running.stats());
}
