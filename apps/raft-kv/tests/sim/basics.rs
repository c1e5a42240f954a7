//! Calls of clients, ends of nodes, moves.

use courser_raft_kv::core::ReadMode;

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
