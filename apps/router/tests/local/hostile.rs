//! Messages and calls that no node sends, from an endpoint that is none of the cluster's nodes, or that
//! knows what a node knows. They are counted and change nothing else; good packets go on.

use std::cell::Cell;
use std::rc::Rc;

use courser::{Nexus, Rpc, SessionId};
use courser_router::counters::PacketDrop;
use courser_router::node::{NodeState, Reason};
use courser_router::route::NodeId;

use crate::build::{V4, V6, udp};
use crate::cluster::{Cluster, LONG, PATIENT, by, text};
use crate::generate::{Random, mutate, seeds};

/// Type of the messages, and of the calls with routes.
const TYPE: u16 = 1;
/// Early messages that are kept of a session.
const EARLY: u64 = 2_047;

/// An endpoint with a session to the node `a`.
struct Peer {
    rpc: Rpc,
    session: SessionId,
    _nexus: Nexus,
    /// Number of the next message.
    next: u32,
    /// Messages sent, and calls that were accepted and refused.
    messages: u64,
    answers: Rc<Cell<(u64, u64)>>,
}

impl Peer {
    fn connect(cluster: &mut Cluster) -> Peer {
        Peer::at("mem://127.0.0.1:0", cluster)
    }

    /// An endpoint with an address of its own: that of a stopped node.
    fn at(address: &str, cluster: &mut Cluster) -> Peer {
        let config = courser::Config { max_msg_size: 1 << 16, ..courser::Config::default() };
        let nexus = Nexus::bind_with(address, config).expect("binds");
        let mut rpc = nexus.endpoint().expect("opens");
        // Without a handler it accepts no sessions.
        rpc.on_message(TYPE, |_, _| {});
        let session = rpc.connect(cluster.local.address(0)).expect("a valid address");
        cluster.wait("the peer connects", |_| {
            rpc.poll();
            rpc.session_state(session) == courser::SessionState::Connected
        });
        let answers = Rc::default();
        Peer { rpc, session, _nexus: nexus, next: 0, messages: 0, answers }
    }

    /// Sends bytes as they are.
    fn send_raw(&mut self, cluster: &mut Cluster, bytes: &[u8]) {
        loop {
            let mut message = self.rpc.alloc(bytes.len()).expect("memory");
            message.copy_from_slice(bytes);
            let sent = self.rpc.send(self.session, TYPE, message);
            self.rpc.poll();
            if sent.is_ok() {
                self.messages += 1;
                return;
            }
            cluster.local.pass();
        }
    }

    /// Sends the bytes after the next number.
    fn send(&mut self, cluster: &mut Cluster, bytes: &[u8]) {
        let number = self.next.to_le_bytes();
        self.next += 1;
        self.send_raw(cluster, &[&number, bytes].concat());
    }

    /// Calls with bytes, and counts the answer.
    fn call(&mut self, bytes: &[u8]) {
        let mut request = self.rpc.alloc(bytes.len()).expect("memory");
        request.copy_from_slice(bytes);
        let answers = Rc::clone(&self.answers);
        let called = self.rpc.call(self.session, TYPE, request, move |_, done| {
            let (accepted, refused) = answers.get();
            let ok = done.result.is_ok();
            answers.set((accepted + u64::from(ok), refused + u64::from(!ok)));
        });
        called.expect("the queue has room");
    }

    /// Passes until the node has all messages and has answered all calls.
    fn settle(&mut self, cluster: &mut Cluster) {
        cluster.wait("the node takes all messages", |_| {
            self.rpc.poll();
            let stats = self.rpc.stats();
            stats.messages_sent == stats.messages_acknowledged && self.rpc.outstanding_calls() == 0
        });
    }
}

/// Numbers, as postcard writes them.
fn numbers<const N: usize>(numbers: [u64; N]) -> Vec<u8> {
    numbers.into_iter().flat_map(|n| postcard::to_allocvec(&n).expect("memory")).collect()
}

/// A heartbeat after its number: header; fingerprint, life, node, nodes received, ports, their ports,
/// silence, epoch.
fn heartbeat(fingerprint: u64, node: NodeId) -> Vec<u8> {
    let (before, after) = ([fingerprint, 77], [0b111, 3, 3, 3, 3, 3, 1_000_000, 0]);
    [&[0, 0, 0, 0][..], &numbers(before), &[node], &numbers(after)].concat()
}

/// A message after its number: a packet of which this node is to be the last.
fn message(node: NodeId, kind: u8, port: u8, passed: u8, packet: &[u8]) -> Vec<u8> {
    let gateway: &[u8] = match kind {
        2 => &[10, 1, 0, 9],
        3 => &[0x20; 16],
        _ => &[],
    };
    [&[kind, node, port, passed], gateway, packet].concat()
}

/// The head of a call: fingerprint, life, node, epoch, number.
fn call_head(fingerprint: u64, node: NodeId, epoch: u64) -> Vec<u8> {
    [&numbers([fingerprint, 77])[..], &[node], &numbers([epoch, 0])].concat()
}

/// A cluster whose node `c` does not run: a peer may take its place.
fn cluster(failure_timeout: &str) -> Cluster {
    let mut cluster = Cluster::start(&text("switch", failure_timeout, 1_000_000));
    cluster.local.stop(2);
    cluster
}

fn fingerprint(cluster: &Cluster) -> u64 {
    cluster.local.config().fingerprint()
}

/// Packets from `a` to `b` and back arrive.
fn check_good_packets(cluster: &mut Cluster) {
    for (from, to) in [(0, 1), (1, 0)] {
        let packet = V4 { dst: [10, to + 1, 0, 9], data: udp(b"good"), ..V4::default() };
        cluster.take();
        cluster.inject(from, &packet.bytes());
        cluster.wait_left(|left| left.node == to && left.packet.ends_with(b"good"));
    }
}

/// The drops of a node for a reason.
fn dropped(cluster: &Cluster, reason: PacketDrop) -> u64 {
    cluster.local.node(0).expect("it runs").counters().dropped(reason)
}

/// Random bytes, and messages with one byte changed.
fn wrong_bytes(random: &mut Random, number: u32, fingerprint: u64) -> Vec<u8> {
    let packet =
        if number.is_multiple_of(2) { V4::default().with(1, 4) } else { V6::default().with(7, 9) };
    let mut bytes = match number % 4 {
        0 => (0..random.below(200)).map(|_| random.next() as u8).collect(),
        1 => message(0, random.below(6) as u8, 0, 1, &packet),
        2 => message(random.below(4) as u8, 1, random.next() as u8, random.next() as u8, &packet),
        _ => heartbeat(fingerprint ^ 0x101, random.below(4) as u8),
    };
    if number.is_multiple_of(3) && !bytes.is_empty() {
        let at = random.below(bytes.len());
        bytes[at] ^= 1 << random.below(8);
    }
    bytes
}

#[test]
fn without_a_valid_heartbeat_no_message_is_taken() {
    let mut cluster = cluster(PATIENT);
    let (mut peer, mut random) = (Peer::connect(&mut cluster), Random(0x5eed));
    let fingerprint = fingerprint(&cluster);
    let before = dropped(&cluster, PacketDrop::BadMessage);
    for number in 0..20_000 {
        let bytes = wrong_bytes(&mut random, number, fingerprint);
        peer.send(&mut cluster, &bytes);
    }
    // Nodes that do not exist, the node itself, and messages without a number.
    for node in [0, 3, 64, 255] {
        peer.send(&mut cluster, &heartbeat(fingerprint, node));
    }
    for len in 0..4 {
        peer.send_raw(&mut cluster, &[0; 3][..len.min(3)]);
    }
    peer.settle(&mut cluster);
    assert_eq!(dropped(&cluster, PacketDrop::BadMessage) - before, peer.messages);
    let node = cluster.local.node(0).expect("it runs");
    assert!(node.refused_heartbeats() >= 4_000, "{}", node.refused_heartbeats());
    assert_eq!((node.counters().from_nodes, node.counters().all_dropped()), (0, peer.messages));
    drop(node);
    check_good_packets(&mut cluster);
}

#[test]
fn messages_of_a_peer_that_is_taken_for_a_node_are_counted_whatever_they_are() {
    let mut cluster = cluster(PATIENT);
    let (mut peer, mut random) = (Peer::connect(&mut cluster), Random(0x5eed));
    let fingerprint = fingerprint(&cluster);
    let (heartbeat, other) = (heartbeat(fingerprint, 2), heartbeat(fingerprint, 1));
    peer.send(&mut cluster, &heartbeat);
    let (seeds, mut valid) = (seeds(), 1);
    let mut packet = Vec::new();
    for number in 0..50_000 {
        packet.clone_from(&seeds[random.below(seeds.len())]);
        mutate(&mut random, &seeds, &mut packet);
        let kind = random.below(6) as u8;
        if kind == 0 {
            // The same heartbeat again, and one of another node, which is refused.
            valid += 1;
            peer.send(&mut cluster, &heartbeat);
            peer.send(&mut cluster, &other);
            continue;
        }
        let head = [random.below(4) as u8, random.below(3) as u8, random.below(5) as u8];
        let mut bytes = message(head[0], kind, head[1], head[2], &packet);
        if number % 5 == 0 {
            bytes.truncate(random.below(bytes.len() + 1).max(1));
        }
        peer.send(&mut cluster, &bytes);
        if number % 64 == 0 {
            cluster.local.pass();
            cluster.take();
        }
    }
    peer.settle(&mut cluster);
    cluster.local.run_for(std::time::Duration::from_millis(20));
    let node = cluster.local.node(0).expect("it runs");
    let counters = node.counters().clone();
    drop(node);
    // Each message was a heartbeat, a packet, or dropped as neither.
    let neither = -counters.unaccounted();
    assert!(neither > 5_000 && counters.from_nodes > 20_000, "{counters:?}");
    // The other node has answered echo requests, by this one.
    let others = cluster.local.node(1).expect("it runs").counters().to_nodes;
    let taken = counters.from_nodes - others + valid + neither as u64;
    assert_eq!(taken, peer.messages, "{counters:?}");
    assert!(counters.sent > 1_000 && counters.echoes + counters.to_nodes > 100, "{counters:?}");
    check_good_packets(&mut cluster);
}

#[test]
fn packets_for_nodes_that_do_not_exist_are_dropped() {
    let mut cluster = cluster(PATIENT);
    let mut peer = Peer::connect(&mut cluster);
    let heartbeat = heartbeat(fingerprint(&cluster), 2);
    peer.send(&mut cluster, &heartbeat);
    let packet = &seeds()[0];
    for node in 3..=u8::MAX {
        // Kind 1: the destination is on the network of a port.
        peer.send(&mut cluster, &message(node, 1, 0, 1, packet));
    }
    peer.settle(&mut cluster);
    let counters = cluster.local.node(0).expect("it runs").counters().clone();
    assert_eq!(counters.dropped(PacketDrop::BadMessage), 253, "{counters:?}");
    check_good_packets(&mut cluster);
}

#[test]
fn skipped_and_repeated_numbers_take_bounded_memory_and_end_no_link() {
    let mut cluster = cluster("4s");
    let mut peer = Peer::connect(&mut cluster);
    let heartbeat = heartbeat(fingerprint(&cluster), 2);
    peer.send(&mut cluster, &heartbeat);
    peer.settle(&mut cluster);
    let counters = |cluster: &Cluster| cluster.local.node(0).expect("it runs").counters().clone();
    // Number 1 does not come: later ones wait, as far as there is room. The others are dropped.
    let before = counters(&cluster);
    peer.next = 2;
    for _ in 0..3 * EARLY {
        peer.send(&mut cluster, &message(0, 1, 0, 1, &V4::default().bytes()));
    }
    peer.settle(&mut cluster);
    let now = counters(&cluster);
    let (waiting, bad) = (
        now.reordered - before.reordered,
        now.dropped(PacketDrop::BadMessage) - before.dropped(PacketDrop::BadMessage),
    );
    assert_eq!((waiting + bad, now.from_nodes), (3 * EARLY, before.from_nodes));
    assert_eq!(waiting, EARLY, "{now:?}");
    check_good_packets(&mut cluster);
    // Old numbers and those of waiting messages are dropped, too.
    for number in [0, 0, 7, 7, 2_000] {
        peer.next = number;
        peer.send(&mut cluster, &message(0, 1, 0, 1, &V4::default().bytes()));
    }
    peer.settle(&mut cluster);
    assert_eq!(
        counters(&cluster).dropped(PacketDrop::BadMessage),
        now.dropped(PacketDrop::BadMessage) + 5
    );
    // After a while the missing one is given up, and the link goes on.
    let taken = counters(&cluster).from_nodes + EARLY;
    cluster.wait("the node gives the missing number up", |local| {
        peer.rpc.poll();
        local.node(0).is_some_and(|node| node.counters().from_nodes == taken)
    });
    peer.next = 2 + EARLY as u32;
    peer.send(&mut cluster, &message(0, 1, 0, 1, &V4::default().bytes()));
    peer.settle(&mut cluster);
    assert_eq!(counters(&cluster).from_nodes, taken + 1);
    check_good_packets(&mut cluster);
}

#[test]
fn many_sessions_of_a_peer_end_without_a_trace() {
    let mut cluster = cluster(PATIENT);
    for round in 0..50 {
        let mut peer = Peer::connect(&mut cluster);
        // A message that waits for an earlier one, and one for a node that is none.
        peer.next = 1 + round;
        peer.send(&mut cluster, &message(0, 1, 0, 1, &V4::default().bytes()));
        peer.send(&mut cluster, &heartbeat(1, 2));
        peer.settle(&mut cluster);
    }
    check_good_packets(&mut cluster);
}

/// Waits until a node counts as dead at the first one.
fn wait_dead(cluster: &mut Cluster, node: NodeId) {
    cluster.wait("its end is noticed", |local| {
        local.node(0).is_some_and(|first| first.state(node) == NodeState::Dead)
    });
}

#[test]
fn a_second_process_of_a_node_is_refused_while_the_first_one_lives() {
    let mut cluster = Cluster::start(&text("switch", PATIENT, 1_000_000));
    let mut peer = Peer::connect(&mut cluster);
    let fingerprint = fingerprint(&cluster);
    let beat = heartbeat(fingerprint, 2);
    for _ in 0..10 {
        peer.send(&mut cluster, &beat);
        peer.send(&mut cluster, &message(0, 1, 0, 1, &V4::default().bytes()));
    }
    // All routes, and one of them: 20.0.0.0/8 is rejected.
    let routes = [0, 1, 0, 20, 0, 0, 0, 8, 0, 3];
    let call = [&call_head(fingerprint, 2, 1)[..], &routes].concat();
    peer.call(&call);
    peer.settle(&mut cluster);
    let mut node = cluster.local.node_mut(0).expect("it runs");
    assert_eq!((node.refused_lives(), node.refused_addresses()), (10, 0));
    assert_eq!(
        node.counters().dropped(PacketDrop::BadMessage),
        20,
        "its packets are no node's either"
    );
    assert!(node.take_claim().is_some_and(|claim| (claim.node, claim.reason) == (2, Reason::Life)));
    assert_eq!(node.take_claim(), None, "one report for all");
    assert_eq!(node.routes().find([20, 0, 0, 1].into()), None);
    drop(node);
    assert_eq!(peer.answers.get(), (0, 1));
    check_good_packets(&mut cluster);
    // The first process ends: the next one is accepted at once, long before the first one's silence
    // would count.
    cluster.local.stop(2);
    wait_dead(&mut cluster, 2);
    peer.send(&mut cluster, &beat);
    peer.settle(&mut cluster);
    peer.call(&call);
    peer.settle(&mut cluster);
    let node = cluster.local.node(0).expect("it runs");
    assert_eq!(node.refused_lives(), 10, "no more");
    drop(node);
    check_good_packets(&mut cluster);
}

#[test]
fn calls_with_wrong_routes_are_refused_and_change_none() {
    let mut cluster = Cluster::start(&text("switch", PATIENT, 1_000_000));
    let (mut peer, mut random) = (Peer::connect(&mut cluster), Random(0x5eed));
    let fingerprint = fingerprint(&cluster);
    let members = by(1, 0, 9);
    cluster.replace(1, "20.0.0.0/8", members.clone());
    cluster.wait_route(&[0, 1], [20, 0, 0, 1].into(), &members);
    let routes = |cluster: &Cluster| cluster.local.node(0).expect("it runs").routes().len();
    let before = routes(&cluster);
    let mut calls = 0;
    let mut call = |cluster: &mut Cluster, peer: &mut Peer, bytes: &[u8]| {
        peer.call(bytes);
        calls += 1;
        if calls % 200 == 0 {
            peer.settle(cluster);
        }
    };
    // A withdrawal of the route above in all of them. Another cluster's, nodes that are none, and one
    // in another life.
    let withdraw = [0, 2, 0, 20, 0, 0, 0, 8];
    let heads = [(fingerprint ^ 1, 1), (fingerprint, 0), (fingerprint, 3), (fingerprint, 1)];
    for (fingerprint, node) in heads {
        call(&mut cluster, &mut peer, &[&call_head(fingerprint, node, 9)[..], &withdraw].concat());
    }
    for _ in 0..5_000 {
        let bytes: Vec<u8> = (0..random.below(100)).map(|_| random.next() as u8).collect();
        call(&mut cluster, &mut peer, &bytes);
    }
    peer.settle(&mut cluster);
    assert_eq!(peer.answers.get(), (0, 5_004), "accepted and refused");
    assert_eq!(routes(&cluster), before);
    check_good_packets(&mut cluster);
    // Random changes in the name of the node `c`, which change its own routes only.
    cluster.local.stop(2);
    wait_dead(&mut cluster, 2);
    drop(peer);
    let address = cluster.local.address(2).to_owned();
    let mut peer = Peer::at(&address, &mut cluster);
    let begin = std::time::Instant::now();
    while cluster.local.node(0).expect("it runs").state(2) != NodeState::Direct {
        assert!(begin.elapsed() < LONG, "the peer is taken for the node");
        peer.send(&mut cluster, &heartbeat(fingerprint, 2));
        peer.settle(&mut cluster);
        cluster.local.run_for(std::time::Duration::from_millis(5));
    }
    // Calls of another session than that of the heartbeats are no node's, whatever they state.
    let mut other = Peer::connect(&mut cluster);
    other.call(&[&call_head(fingerprint, 2, 900)[..], &[0, 3]].concat());
    other.settle(&mut cluster);
    assert_eq!(other.answers.get(), (0, 1), "accepted and refused");
    for number in 0..5_000 {
        if number % 100 == 0 {
            peer.send(&mut cluster, &heartbeat(fingerprint, 2));
        }
        // All routes begin anew: what follows is not sent again at once.
        let mut bytes = [call_head(fingerprint, 2, 1_000 + number), vec![0]].concat();
        bytes.extend(
            (0..random.below(60)).map(|_| random.next() as u8 & [0xff, 7][random.below(2)]),
        );
        peer.call(&bytes);
        peer.settle(&mut cluster);
    }
    let (accepted, refused) = peer.answers.get();
    assert!(accepted > 10 && refused > 1_000, "{accepted} {refused}");
    assert!(routes(&cluster) < before + 5_000 * 60);
    cluster.wait_route(&[0, 1], [20, 0, 0, 1].into(), &members);
    assert!(cluster.local.settle(LONG));
    check_good_packets(&mut cluster);
}
