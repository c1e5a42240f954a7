//! Processes that have the number of a member: copies of its directory, and moves.

use std::time::Duration;

use courser::service::RpcError;
use courser_disk::Storage;
use courser_raft_kv::api::{Hello, PeerError, PeersClient};
use courser_raft_kv::core::Settings;
use courser_sim::HostId;
use courser_sim::fabric::LinkFaults;

use crate::world::{Cluster, MS, Place, SECOND, host, settings};

/// Key of a process that runs from a copy of the directory of node 3.
const COPY: u64 = 103;
/// Its host.
const THERE: HostId = HostId(3);

fn put(cluster: &mut Cluster, key: &'static str) {
    let ended = cluster.spawn(0, move |kv, _| async move {
        kv.put(key.as_bytes(), b"1").await.unwrap();
    });
    cluster.finish(&ended);
}

fn keys(cluster: &Cluster, node: u64) -> usize {
    cluster.nodes.borrow()[&node].core().store().size().0
}

/// The address of node 3, as other nodes have it from the log.
fn known(cluster: &Cluster) -> Vec<String> {
    let nodes = cluster.nodes.borrow();
    [1, 2].map(|id| nodes[&id].core().store().addresses()[&3].clone()).to_vec()
}

fn refusals(cluster: &Cluster, of: u64) -> usize {
    let text = format!("{of}: is refused by node ");
    let is_one = |line: &&String| line.starts_with(&text) && line.contains(": node 3 runs twice: ");
    cluster.reports.borrow().iter().filter(is_one).count()
}

fn durable(id: u64) -> Settings {
    Settings { durable: true, ..settings(id) }
}

/// Three nodes that have a key, and a fourth host with a copy of the third node's directory. The third
/// node runs if `original` is set.
fn copied(seed: u64, original: bool) -> Cluster {
    let mut cluster = Cluster::hosts(seed, 4, 1);
    (1..=3).for_each(|id| cluster.start(id, false, |_| {}));
    put(&mut cluster, "a");
    cluster.world.run_for(SECOND);
    cluster.world.kill(host(3));
    let (from, to) = (&cluster.disks[2], &cluster.disks[THERE.0 as usize]);
    for name in from.list().unwrap() {
        let file = from.open(&name).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
        to.create(&name).unwrap().write_at(0, &bytes).unwrap();
    }
    if original {
        cluster.world.restart(host(3)).unwrap();
        cluster.world.run_for(SECOND);
    }
    cluster
}

/// Starts the process on the fourth host, which announces an address.
fn start_there(cluster: &mut Cluster, uri: String) {
    let members = (1..=3).map(|id| (id, cluster.world.uri(host(id)))).collect();
    let place =
        Place { key: COPY, at: THERE, uri, cluster: "test", members, join: false, new: false };
    cluster.start_as(place, durable(3));
}

/// The time until the others have the address of the process on the fourth host, and it has a write.
fn accepted_after(cluster: &mut Cluster) -> Duration {
    let (began_ns, uri) = (cluster.world.now_ns(), cluster.world.uri(THERE));
    let nodes = cluster.nodes.clone();
    let is_known = move |_: &mut courser_sim::World| {
        let nodes = nodes.borrow();
        [1, 2].iter().all(|id| nodes[id].core().store().addresses()[&3] == uri)
    };
    assert!(cluster.world.run_until(20 * SECOND, is_known), "{:?}", cluster.reports.borrow());
    let took = Duration::from_nanos(cluster.world.now_ns() - began_ns);
    put(cluster, "b");
    cluster.world.run_for(SECOND);
    assert_eq!(keys(cluster, COPY), 2);
    took
}

#[test]
fn a_copy_is_refused_although_the_original_answers_late() {
    for (seed, fault) in [(30, "pause"), (31, "cut"), (32, "loss")] {
        let mut cluster = copied(seed, true);
        let original = cluster.world.uri(host(3));
        let others: Vec<_> = [1, 2, 4, 5].map(host).to_vec();
        let link = cluster.world.fabric().uplink(host(3));
        match fault {
            "pause" => cluster.world.pause(host(3), 500 * MS),
            "cut" => cluster.world.partition(&[&[host(3)], &others]),
            _ => {
                let faults = LinkFaults { loss_ppm: 300_000, ..LinkFaults::default() };
                cluster.world.set_link_faults(link, faults);
            }
        }
        let uri = cluster.world.uri(THERE);
        start_there(&mut cluster, uri);
        cluster.world.run_for(600 * MS);
        cluster.world.heal();
        cluster.world.run_for(4 * SECOND);
        cluster.world.set_link_faults(link, LinkFaults::default());
        put(&mut cluster, "b");
        cluster.world.run_for(5 * SECOND);
        assert_eq!(known(&cluster), [original.clone(), original], "{fault}");
        // No leader has told the copy which entries of its log are committed.
        assert_eq!((keys(&cluster, 3), keys(&cluster, COPY)), (2, 0), "{fault}");
        // Once by each of the others.
        assert_eq!((refusals(&cluster, COPY), refusals(&cluster, 3)), (2, 0), "{fault}");
    }
}

#[test]
fn a_copy_that_announces_the_address_of_the_original_is_refused() {
    let mut cluster = copied(33, true);
    let original = cluster.world.uri(host(3));
    start_there(&mut cluster, original);
    cluster.world.run_for(SECOND);
    put(&mut cluster, "b");
    cluster.world.run_for(5 * SECOND);
    assert_eq!((keys(&cluster, 3), keys(&cluster, COPY)), (2, 0));
    assert_eq!((refusals(&cluster, COPY), refusals(&cluster, 3)), (2, 0));
}

#[test]
fn a_node_that_has_moved_is_accepted_soon() {
    // Its old host refuses connections, or does not answer.
    for (seed, is_cut, limit) in [(34, false, 500 * MS), (35, true, 4 * SECOND)] {
        let mut cluster = copied(seed, is_cut);
        if is_cut {
            let others: Vec<_> = [1, 2, 4, 5].map(host).to_vec();
            cluster.world.partition(&[&[host(3)], &others]);
        }
        let uri = cluster.world.uri(THERE);
        start_there(&mut cluster, uri);
        let took = accepted_after(&mut cluster);
        assert!(took < limit, "{took:?}");
        assert_eq!(refusals(&cluster, COPY), 0);
    }
}

#[test]
fn a_node_whose_old_address_a_node_of_another_cluster_has_is_accepted() {
    for (seed, name) in [(36, "test"), (37, "other")] {
        let mut cluster = copied(seed, false);
        let old = cluster.world.uri(host(3));
        // Its number is the same, and it runs where the directory of node 3 is not.
        let place = Place {
            key: 203,
            at: host(3),
            uri: old.clone(),
            cluster: name,
            members: [(3, old)].into(),
            join: false,
            new: true,
        };
        cluster.start_as(place, Settings { durable: false, ..settings(3) });
        cluster.world.run_for(2 * SECOND);
        assert!(cluster.nodes.borrow()[&203].core().is_leader());
        let uri = cluster.world.uri(THERE);
        start_there(&mut cluster, uri);
        let took = accepted_after(&mut cluster);
        assert!(took < SECOND, "{name}: {took:?}");
    }
}

#[test]
fn a_node_that_starts_again_at_its_address_is_accepted_at_once() {
    let mut cluster = copied(38, true);
    cluster.world.kill(host(3));
    cluster.world.restart(host(3)).unwrap();
    let nodes = cluster.nodes.clone();
    let follows =
        move |_: &mut courser_sim::World| nodes.borrow()[&3].core().status().leader.is_some();
    assert!(cluster.world.run_until(200 * MS, follows));
}

#[test]
fn introductions_during_a_check_are_answered_and_begin_no_others() {
    let mut cluster = copied(39, true);
    cluster.world.pause(host(3), SECOND);
    let (local, uri) = (cluster.local(0), cluster.world.uri(host(1)));
    let identity = cluster.nodes.borrow()[&1].core().store().identity();
    let hello = move |n: u64| Hello {
        cluster: "test".to_owned(),
        identity,
        id: 3,
        uri: format!("sim://n9:{n}"),
        election_ns: settings(1).election().as_nanos() as u64,
        tick_ns: settings(1).tick.as_nanos() as u64,
        leases: false,
        process: n,
    };
    let ended = cluster.spawn(0, move |_, _| async move {
        let peer = PeersClient::new(local.connect(&uri).await.unwrap()).await.unwrap();
        let hello = |n| peer.hello(hello(n));
        for n in 1..=100 {
            assert_eq!(hello(n).await, Err(RpcError::Service(PeerError::Checking)));
        }
        local.sleep(2 * SECOND).await;
        // The outcome is that of the first one.
        let first = hello(1).await;
        assert!(matches!(first, Err(RpcError::Service(PeerError::Twice { .. }))), "{first:?}");
        assert_eq!(hello(2).await, Err(RpcError::Service(PeerError::Checking)));
    });
    cluster.finish(&ended);
}

#[test]
fn a_new_cluster_has_a_leader_soon() {
    for seed in 40..45 {
        let mut cluster = Cluster::hosts(seed, 3, 1);
        let began_ns = cluster.world.now_ns();
        (1..=3).for_each(|id| cluster.start(id, false, |_| {}));
        cluster.leader();
        let took_ns = cluster.world.now_ns() - began_ns;
        // The shortest election timeout has 13 ticks of 25 ms.
        assert!(took_ns < 2 * 325_000_000, "{took_ns} ns, seed {seed}");
    }
}
