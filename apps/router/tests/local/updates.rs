//! Changes of routes while packets pass: each leaves by the old or the new way, and none is lost.

use std::time::Duration;

use courser_router::packet::parse;
use courser_router::route::{Members, NextHop, NodeId};
use courser_router::routes::Change;

use crate::build::{V4, udp};
use crate::cluster::{Cluster, LONG, Left, PATIENT, by, text};

/// The destination, of the two prefixes below.
const ADDRESS: [u8; 4] = [20, 0, 0, 1];

/// Nodes that nothing polls for this time send heartbeats before others count them as dead, an eighth of
/// [`PATIENT`].
const ALIVE_NS: u64 = 1_000_000_000;

/// The ways that the routes take in turn; one is by the node of the changes itself.
fn ways() -> [Members; 4] {
    [by(1, 0, 9), by(2, 0, 9), by(0, 1, 8), by(1, 1, 7)]
}

/// Changes of routes to the destination, one after the other, and the way after each.
struct Changes {
    number: usize,
    /// The way of the shorter prefix.
    short: usize,
    way: usize,
}

impl Changes {
    /// The first one.
    fn begin(cluster: &mut Cluster) -> Changes {
        cluster.replace(0, "20.0.0.0/8", ways()[0].clone());
        cluster.wait_route(&[0, 1, 2], ADDRESS.into(), &ways()[0]);
        Changes { number: 0, short: 0, way: 0 }
    }

    /// A longer prefix comes, changes, and goes; the shorter one changes.
    fn next(&mut self) -> Change {
        self.number += 1;
        let new = (self.way + 1) % ways().len();
        let (short, long) = ("20.0.0.0/8".parse().unwrap(), "20.0.0.0/24".parse().unwrap());
        let (change, way) = match self.number % 4 {
            1 => (Change::Add(long, ways()[new].clone()), new),
            2 => (Change::Replace(long, ways()[new].clone()), new),
            3 => (Change::Delete(long), self.short),
            _ => {
                self.short = new;
                (Change::Replace(short, ways()[new].clone()), new)
            }
        };
        self.way = way;
        change
    }
}

/// Packets with numbers, and the ways by which each may leave.
#[derive(Default)]
struct Traffic {
    allowed: Vec<(usize, usize)>,
    left: Vec<bool>,
}

impl Traffic {
    /// A packet arrives at a node.
    fn inject(&mut self, cluster: &mut Cluster, node: NodeId, allowed: (usize, usize)) {
        let number = self.allowed.len() as u32;
        let data = udp(&number.to_be_bytes());
        cluster.inject(node, &V4 { dst: ADDRESS, data, ..V4::default() }.bytes());
        self.allowed.push(allowed);
        self.left.push(false);
    }

    fn check(&mut self, left: &Left) {
        let header = parse(&left.packet).expect("good");
        assert_eq!((header.ttl, header.total_len), (63, 32));
        let number = u32::from_be_bytes(left.packet[28..].try_into().expect("a number")) as usize;
        let exit = courser_router::route::Exit::Gateway(left.port, left.neighbour);
        let by = vec![(NextHop { node: left.node, exit }, 1)];
        let (old, new) = self.allowed[number];
        assert!(ways()[old] == by || ways()[new] == by, "{left:?}, not by {old} or {new}");
        assert!(!std::mem::replace(&mut self.left[number], true), "{number} left twice");
    }

    fn check_all(&mut self, cluster: &mut Cluster) {
        cluster.take().iter().for_each(|left| self.check(left));
    }

    /// Asserts that all packets have left.
    fn end(&mut self, cluster: &mut Cluster) {
        let counters = cluster.check_totals();
        self.check_all(cluster);
        let lost: Vec<_> = (0..self.left.len()).filter(|number| !self.left[*number]).collect();
        assert!(lost.is_empty(), "lost {lost:?}: {counters:?}");
        assert_eq!(counters.all_dropped(), 0, "{counters:?}");
        assert_eq!(counters.sent, self.left.len() as u64);
    }
}

#[test]
fn a_hundred_updates_a_second_lose_and_misroute_no_packet() {
    let mut cluster = Cluster::start(&text("switch", PATIENT, 100));
    let (mut changes, mut traffic) = (Changes::begin(&mut cluster), Traffic::default());
    let begin_ns = cluster.local.now_ns();
    for update in 1..=200 {
        let old = changes.way;
        let change = changes.next();
        cluster.change(0, &[change]);
        let new = changes.way;
        let mut arrived = false;
        let due_ns = begin_ns + update * 10_000_000;
        while cluster.local.now_ns() < due_ns || !arrived {
            // The node of the change has it at once; the others until its message arrives.
            traffic.inject(&mut cluster, 0, (new, new));
            for node in [1, 2] {
                let has = |node| {
                    let node = cluster.local.node(node).expect("it runs");
                    let found = node.routes().find(ADDRESS.into()).expect("a route");
                    found.members == &ways()[new][..]
                };
                arrived = has(1) && has(2);
                traffic.inject(&mut cluster, node, (if arrived { new } else { old }, new));
            }
            cluster.local.pass();
            traffic.check_all(&mut cluster);
        }
    }
    traffic.end(&mut cluster);
    assert!(traffic.left.len() > 600, "{}", traffic.left.len());
}

#[test]
fn ten_thousand_updates_at_once_lose_no_packet_and_arrive() {
    let mut cluster = Cluster::start(&text("switch", PATIENT, 100));
    let (mut changes, mut traffic) = (Changes::begin(&mut cluster), Traffic::default());
    // More than may wait for a link: then all routes are sent again.
    let mut passed_ns = cluster.local.now_ns();
    for update in 0..10_000_u64 {
        let change = changes.next();
        cluster.change(0, &[change]);
        // On a busy machine the changes take longer than the failure timeout.
        if cluster.local.now_ns() - passed_ns > ALIVE_NS {
            for _ in 0..3 {
                cluster.local.pass();
            }
            traffic.check_all(&mut cluster);
            passed_ns = cluster.local.now_ns();
        }
        if update % 4 == 3 {
            let new = changes.way;
            traffic.inject(&mut cluster, 0, (new, new));
        }
        if update > 5_000 && update % 16 == 0 {
            cluster.local.pass();
            check_anywhere(&mut cluster, &mut traffic);
        }
    }
    let last = ways()[changes.way].clone();
    cluster.wait_route(&[0, 1, 2], ADDRESS.into(), &last);
    assert!(cluster.local.settle(LONG));
    traffic.end(&mut cluster);
    let routes: Vec<_> = cluster.local.nodes().map(|node| node.routes().len()).collect();
    assert_eq!(routes, [routes[0]; 3]);
}

/// Packets from the nodes that lag behind leave by some way, those of the first by its way.
fn check_anywhere(cluster: &mut Cluster, traffic: &mut Traffic) {
    for node in [1, 2] {
        let packet = V4 { dst: ADDRESS, data: udp(b"anywhere"), ..V4::default() };
        let sent = cluster.local.counters().sent;
        cluster.inject(node, &packet.bytes());
        cluster.wait("it leaves", |local| local.counters().sent > sent && local.in_transit() == 0);
        let (other, own): (Vec<_>, Vec<_>) =
            cluster.take().into_iter().partition(|left| left.packet.ends_with(b"anywhere"));
        own.iter().for_each(|left| traffic.check(left));
        let [left] = &other[..] else { panic!("{other:?}") };
        let at = |members: &Members| {
            members[0].0.node == left.node && members[0].0.port() == Some(left.port)
        };
        assert!(ways().iter().any(at), "{left:?}");
        traffic.elsewhere();
    }
}

impl Traffic {
    /// Counts a packet that left, and that has no number.
    fn elsewhere(&mut self) {
        self.allowed.push((0, 0));
        self.left.push(true);
    }
}

#[test]
fn updates_at_two_nodes_do_not_disturb_each_other() {
    let mut cluster = Cluster::start(&text("mesh", PATIENT, 100));
    for update in 0..500_u32 {
        let [_, _, high, low] = update.to_be_bytes();
        let prefix = |first: u8| format!("{first}.{high}.{low}.0/24");
        cluster.replace(1, &prefix(30), by(2, 0, 9));
        cluster.replace(2, &prefix(40), by(1, 0, 9));
        cluster.local.pass();
    }
    cluster.wait_route(&[0, 1, 2], [30, 1, 0xf3, 1].into(), &by(2, 0, 9));
    cluster.wait_route(&[0, 1, 2], [40, 1, 0xf3, 1].into(), &by(1, 0, 9));
    let routes: Vec<_> = cluster.local.nodes().map(|node| node.routes().len()).collect();
    assert_eq!(routes, [routes[0]; 3]);
    assert!(routes[0] > 1_000);
    cluster.local.run_for(Duration::from_millis(1));
    cluster.check_totals();
}
