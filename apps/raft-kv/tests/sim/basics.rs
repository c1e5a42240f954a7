//! Calls of clients, ends of nodes, moves.

use courser::service::RpcError;
use courser_raft_kv::api::{PeerError, PeersClient};
use courser_raft_kv::core::ReadMode;
use courser_raft_kv::store::Kind;
use raft::eraftpb::Message;

use crate::world::{Cluster, MS, SECOND, host};

#[test]
fn a_client_finds_the_leader_and_its_writes_survive_the_end_of_all_machines() {
    let mut cluster = Cluster::new(1, 3, 1, |_| {});
    let ended = cluster.spawn(0, |kv, _| async move {
        assert_eq!(kv.get(b"a").await.unwrap(), None);
        assert!(kv.put(b"a", b"1").await.unwrap().changed);
        assert!(!kv.cas(b"a", None, Some(b"2")).await.unwrap().changed);
        assert!(kv.cas(b"a", Some(b"1"), Some(b"2")).await.unwrap().changed);
        assert!(!kv.delete(b"b").await.unwrap().changed);
        kv.put(b"b", &vec![7; 100_000]).await.unwrap();
        let page = kv.scan(b"", None, 1).await.unwrap();
        assert_eq!((page.entries.len(), page.more), (1, true));
        assert_eq!(kv.get(b"b").await.unwrap(), Some(vec![7; 100_000]));
    });
    cluster.finish(&ended);
    for id in 1..=3 {
        cluster.world.crash(host(id));
    }
    cluster.world.run_for(100 * MS);
    for id in 1..=3 {
        cluster.world.restart(host(id)).unwrap();
    }
    let ended = cluster.spawn(0, |kv, _| async move {
        assert_eq!(kv.get(b"a").await.unwrap(), Some(b"2".to_vec()));
        assert_eq!(kv.get(b"b").await.unwrap(), Some(vec![7; 100_000]));
    });
    cluster.finish(&ended);
    assert!(cluster.world.violations().is_empty());
}

#[test]
fn the_service_is_back_after_the_leader_is_killed() {
    for seed in 0..5 {
        let mut cluster = Cluster::new(seed, 3, 1, |_| {});
        let ended = cluster.spawn(0, |kv, local| async move {
            for n in 0..400_u32 {
                kv.put(b"n", &n.to_le_bytes()).await.unwrap();
                local.sleep(5 * MS).await;
            }
            assert_eq!(kv.get(b"n").await.unwrap(), Some(399_u32.to_le_bytes().to_vec()));
        });
        for _ in 0..3 {
            cluster.world.run_for(SECOND / 2);
            let leader = cluster.leader();
            cluster.world.kill(host(leader));
            cluster.nodes.borrow_mut().remove(&leader);
            let began_ns = cluster.world.now_ns();
            cluster.leader();
            let took_ns = cluster.world.now_ns() - began_ns;
            // Three times the longest election timeout, of 19 ticks of 25 ms.
            assert!(took_ns < 3 * 475_000_000, "{took_ns} ns without a leader, seed {seed}");
            cluster.world.restart(host(leader)).unwrap();
        }
        cluster.finish(&ended);
    }
}

#[test]
fn a_node_with_another_election_timeout_is_refused_while_one_has_leases() {
    let mut cluster = Cluster::hosts(2, 3, 1);
    for id in 1..=3 {
        cluster.start(id, false, |settings| match settings.id {
            1 => settings.reads = ReadMode::Lease { drift_ppm: 100_000 },
            3 => settings.silent_ticks = 9,
            _ => {}
        });
    }
    let ended = cluster.spawn(0, |kv, _| async move {
        kv.put(b"a", b"1").await.unwrap();
    });
    cluster.finish(&ended);
    let refusal =
        |of: u64, by: u64| format!("{of}: is refused by node {by}: the node has an election");
    let reports = cluster.reports.borrow();
    let count = |of, by| reports.iter().filter(|line| line.starts_with(&refusal(of, by))).count();
    assert_eq!([(3, 1), (1, 3)].map(|(of, by)| count(of, by)), [1, 1], "{reports:?}");
    // Neither of these has leases.
    assert_eq!([(3, 2), (2, 3), (1, 2)].map(|(of, by)| count(of, by)), [0; 3], "{reports:?}");
    assert!(reports.iter().any(|line| line.contains("start both with the same --election")));
}

#[test]
fn a_batch_that_the_decoder_refuses_is_answered_and_counted_and_the_node_goes_on() {
    let mut cluster = Cluster::new(6, 3, 2, |_| {});
    let id = cluster.leader();
    let (local, uri) = (cluster.local(1), cluster.world.uri(host(id)));
    // A message with a byte behind its end, after a good one.
    let good = courser_raft_kv::wire::encode(&Message::default());
    let framed = |message: &[u8]| [&(message.len() as u32).to_le_bytes()[..], message].concat();
    assert!(courser_raft_kv::wire::decode(&framed(&good)).is_ok());
    let batch = [framed(&good), framed(&[&good[..], &[0]].concat())].concat();
    let ended = cluster.spawn(1, move |kv, _| async move {
        let session = local.connect(&uri).await.unwrap();
        let peer = PeersClient::new(session).await.unwrap();
        let refused = peer.deliver(batch.clone()).await;
        let Err(RpcError::Service(PeerError::Malformed(text))) = refused else {
            panic!("{refused:?}")
        };
        assert!(text.starts_with("no Raft message; use the same version"), "{text}");
        peer.send(batch).await.unwrap();
        kv.put(b"a", b"1").await.unwrap();
        assert_eq!(kv.get(b"a").await.unwrap(), Some(b"1".to_vec()));
    });
    cluster.finish(&ended);
    let nodes = cluster.nodes.borrow();
    let counters = nodes[&id].core().counters().clone();
    assert_eq!((counters.messages_malformed, counters.messages_refused), (2, 0));
    assert!(nodes[&id].core().is_leader());
}

#[test]
fn a_watch_goes_on_at_another_node_and_has_each_change_once() {
    let mut cluster = Cluster::new(3, 3, 2, |_| {});
    let watching = cluster.spawn(1, |kv, _| async move {
        let mut watch = kv.watch(b"k", None);
        for n in 0..3_000_u32 {
            let change = watch.next().await.unwrap();
            assert_eq!((change.kind, &change.key[1..]), (Kind::Put, &n.to_be_bytes()[..]));
        }
    });
    cluster.world.run_for(SECOND);
    let put_all = |cluster: &mut Cluster, first: u32, prefix: u8| {
        let ended = cluster.spawn(0, move |kv, _| async move {
            for n in first..first + 1_000 {
                kv.put(&[&[prefix][..], &n.to_be_bytes()].concat(), b"").await.unwrap();
            }
        });
        cluster.finish(&ended);
    };
    // Its first node is the second one, and has sent no change when it ends.
    for (first, id) in [(0, 2), (1_000, 3), (2_000, 1)] {
        // More changes of other keys than a node keeps.
        for more in (0..5).filter(|_| first > 0) {
            put_all(&mut cluster, more * 1_000, b'x');
        }
        cluster.world.kill(host(id));
        cluster.nodes.borrow_mut().remove(&id);
        put_all(&mut cluster, first, b'k');
        cluster.world.restart(host(id)).unwrap();
        cluster.world.run_for(SECOND);
    }
    cluster.finish(&watching);
}

#[test]
fn a_watch_that_begins_before_the_kept_changes_has_the_index_of_the_gap() {
    let mut cluster = Cluster::new(4, 3, 1, |_| {});
    let ended = cluster.spawn(0, |kv, local| async move {
        // A watch without an index has one before the first change, for its next node.
        let mut quiet = kv.watch(b"none", None);
        assert!(local.timeout(SECOND, quiet.next()).await.is_err());
        assert!(quiet.after().is_some());
        for n in 0..5_000_u32 {
            kv.put(&n.to_be_bytes(), b"").await.unwrap();
        }
        let mut watch = kv.watch(b"", Some(1));
        let missed = watch.next().await.unwrap();
        assert_eq!((missed.kind, watch.after()), (Kind::Missed, Some(missed.index)));
        let next = watch.next().await.unwrap();
        assert_eq!((next.kind, next.index), (Kind::Put, missed.index + 1));
    });
    cluster.finish(&ended);
}

#[test]
fn watches_end_with_their_clients() {
    let mut cluster = Cluster::new(5, 3, 1, |_| {});
    cluster.leader();
    for _ in 0..40 {
        cluster.spawn(0, |kv, _| async move {
            let mut watch = kv.watch(b"", None);
            while watch.next().await.is_ok() {}
        });
    }
    let nodes = cluster.nodes.clone();
    let counts = move || {
        let nodes = nodes.borrow();
        let counts = nodes.values().map(|node| node.watches());
        counts.fold((0, 0), |sum, (watches, waits)| (sum.0 + watches, sum.1 + waits))
    };
    let all = counts.clone();
    assert!(cluster.world.run_until(20 * SECOND, move |_| all() == (40, 40)), "{:?}", counts());
    cluster.world.kill(courser_sim::HostId(3));
    let none = counts.clone();
    assert!(cluster.world.run_until(60 * SECOND, move |_| none() == (0, 0)), "{:?}", counts());
}
