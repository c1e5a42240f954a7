//! Disks that are full, fail or lag; nodes that lag or join.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use courser::service::RpcError;
use courser_raft_kv::api::{Chunk, KvClient, PeerError, PeersClient};
use courser_raft_kv::core::{MemberChange, Settings};

use crate::world::{Cluster, MS, SECOND, host};

/// A node that does not lead.
fn follower(cluster: &mut Cluster) -> u64 {
    if cluster.leader() == 1 { 2 } else { 1 }
}

/// Writes until a number of writes is acknowledged.
fn fill(cluster: &mut Cluster, keys: u32, len: usize) {
    let ended = cluster.spawn(0, |kv, _| async move {
        for n in 0..keys {
            kv.put(format!("k{n:06}").as_bytes(), &vec![n as u8; len]).await.unwrap();
        }
    });
    cluster.finish(&ended);
}

fn assert_filled(cluster: &mut Cluster, keys: u32, len: usize) {
    let ended = cluster.spawn(0, |kv, _| async move {
        let (mut from, mut found) = (Vec::new(), 0);
        loop {
            let page = kv.scan(&from, None, 1_000).await.unwrap();
            for (key, value) in &page.entries {
                assert_eq!(&key[..], format!("k{found:06}").as_bytes());
                assert_eq!(&value[..], vec![found as u8; len]);
                found += 1;
            }
            let Some((last, _)) = page.entries.last().filter(|_| page.more) else { break };
            from = [&last[..], &[0]].concat();
        }
        assert_eq!(found, keys);
    });
    cluster.finish(&ended);
}

fn reports_of(cluster: &Cluster, id: u64) -> Vec<String> {
    let own = |text: &&String| text.starts_with(&format!("{id}: has stopped: "));
    cluster.reports.borrow().iter().filter(own).cloned().collect()
}

fn frequent(settings: &mut Settings) {
    (settings.snapshot_entries, settings.kept_entries) = (100, 10);
}

#[test]
fn a_full_disk_stops_its_node_with_one_line_and_nothing_is_lost() {
    for leads in [false, true] {
        let mut cluster = Cluster::new(7, 3, 1, |_| {});
        let id = if leads { cluster.leader() } else { follower(&mut cluster) };
        let disk = cluster.disks[id as usize - 1].clone();
        disk.set_capacity(disk.used() + 20_000);
        fill(&mut cluster, 200, 500);
        assert!(disk.counts().full > 0);
        let reports = reports_of(&cluster, id);
        assert_eq!(reports.len(), 1, "{reports:?}");
        assert!(reports[0].contains("see that the disk has space"), "{reports:?}");
        assert_eq!(reports[0].lines().count(), 1);
        assert_filled(&mut cluster, 200, 500);
        // With space it starts again, and is needed for the quorum.
        disk.set_capacity(u64::MAX);
        cluster.world.kill(host(id));
        cluster.world.restart(host(id)).unwrap();
        let other = follower(&mut cluster);
        let gone = if other == id { 6 - id - cluster.leader() } else { other };
        cluster.world.crash(host(gone));
        cluster.nodes.borrow_mut().remove(&gone);
        assert_filled(&mut cluster, 200, 500);
    }
}

#[test]
fn a_failed_sync_stops_its_node_with_one_line() {
    let mut cluster = Cluster::new(8, 3, 1, |_| {});
    let id = cluster.leader();
    cluster.disks[id as usize - 1].fail_syncs(1);
    fill(&mut cluster, 50, 100);
    assert_eq!(reports_of(&cluster, id).len(), 1);
    assert_filled(&mut cluster, 50, 100);
}

#[test]
fn a_corrupt_snapshot_keeps_its_node_from_starting() {
    let mut cluster = Cluster::new(9, 3, 1, frequent);
    fill(&mut cluster, 300, 100);
    let id = follower(&mut cluster);
    cluster.world.kill(host(id));
    let disk = cluster.disks[id as usize - 1].clone();
    let names = courser_disk::Storage::list(&disk).unwrap();
    let snapshot = names.iter().rfind(|name| name.starts_with("snapshot-0")).unwrap();
    assert!(disk.flip_bit(snapshot, 4_000));
    let error = cluster.world.restart(host(id)).unwrap_err().to_string();
    assert!(error.contains(snapshot) && error.contains("is damaged at byte"), "{error}");
    assert_filled(&mut cluster, 300, 100);
}

#[test]
fn a_lagging_node_catches_up_by_a_snapshot_in_parts() {
    for durable in [true, false] {
        let change = if durable {
            frequent
        } else {
            |settings: &mut Settings| {
                frequent(settings);
                settings.durable = false;
            }
        };
        let mut cluster = Cluster::new(10, 3, 1, change);
        // Ten parts.
        let id = left_behind(&mut cluster);
        let nodes = cluster.nodes.clone();
        let caught_up = move |_: &mut courser_sim::World| {
            let nodes = nodes.borrow();
            nodes[&id].core().store().size().0 == 250
        };
        assert!(cluster.world.run_until(20 * SECOND, caught_up), "durable: {durable}");
        let installed = cluster.nodes.borrow()[&id].core().counters().snapshots_installed;
        assert_eq!(installed, 1);
        // It has what the others have.
        let leader = cluster.leader();
        let gone = 6 - id - leader;
        cluster.world.crash(host(gone));
        cluster.nodes.borrow_mut().remove(&gone);
        assert_filled(&mut cluster, 250, 10_000);
    }
}

/// Leaves a node behind what the logs of the others have, with 2.5 MB of state.
fn left_behind(cluster: &mut Cluster) -> u64 {
    let id = follower(cluster);
    let others: Vec<_> = (1..=4).filter(|other| *other != id).map(host).collect();
    cluster.world.partition(&[&[host(id)], &others]);
    fill(cluster, 250, 10_000);
    cluster.world.heal();
    id
}

#[test]
fn a_snapshot_that_its_sender_abandons_is_dropped() {
    let mut cluster = Cluster::new(10, 3, 1, frequent);
    let id = left_behind(&mut cluster);
    let nodes = cluster.nodes.clone();
    let receiving = move || nodes.borrow()[&id].receiving();
    let begun = receiving.clone();
    assert!(cluster.world.run_until(20 * SECOND, move |_| begun() > 1_000_000));
    let others: Vec<_> = (1..=4).filter(|other| *other != id).map(host).collect();
    cluster.world.partition(&[&[host(id)], &others]);
    cluster.world.run_for(4 * SECOND);
    assert!(receiving() > 1_000_000);
    cluster.world.run_for(2 * SECOND);
    assert_eq!(receiving(), 0);
    cluster.world.heal();
    let nodes = cluster.nodes.clone();
    let caught_up =
        move |_: &mut courser_sim::World| nodes.borrow()[&id].core().store().size().0 == 250;
    assert!(cluster.world.run_until(20 * SECOND, caught_up));
}

#[test]
fn a_snapshot_waits_until_the_node_has_received_another_one() {
    let mut cluster = Cluster::new(10, 3, 1, frequent);
    let id = left_behind(&mut cluster);
    let leader = cluster.leader();
    let term = cluster.nodes.borrow()[&leader].core().term();
    let (local, uri) = (cluster.local(0), cluster.world.uri(host(id)));
    let ended = cluster.spawn(0, move |_, _| async move {
        let peer = PeersClient::new(local.connect(&uri).await.unwrap()).await.unwrap();
        for n in 0..10 {
            let chunk =
                Chunk { from: 9, term, index: 1, total: 10_000, offset: 0, head: vec![].into() };
            // A newer transfer of the same node takes the place of its last one.
            let sent = peer.chunk(chunk, vec![3]).await;
            assert!(n == 0 && sent == Err(RpcError::Service(PeerError::Busy)) || sent == Ok(1));
            local.sleep(SECOND).await;
        }
    });
    cluster.finish(&ended);
    assert_eq!(cluster.nodes.borrow()[&id].receiving(), 1);
    assert!(cluster.nodes.borrow()[&id].core().store().size().0 < 250);
    // The other one is dropped after 5 s without a part, and the leader sends its part again every half second.
    let nodes = cluster.nodes.clone();
    let caught_up =
        move |_: &mut courser_sim::World| nodes.borrow()[&id].core().store().size().0 == 250;
    assert!(cluster.world.run_until(6 * SECOND, caught_up));
}

#[test]
fn a_snapshot_above_the_limit_is_reported_once_and_is_tried_again_slowly() {
    let mut cluster = Cluster::hosts(15, 3, 1);
    cluster.max_snapshot.set(1_000_000);
    (1..=3).for_each(|id| cluster.start(id, false, frequent));
    let id = left_behind(&mut cluster);
    cluster.world.run_for(60 * SECOND);
    let refused = cluster.nodes.borrow()[&id].core().counters().snapshots_refused;
    // Every 10 s, and twice more after the nodes have introduced themselves.
    assert!((2..=9).contains(&refused), "{refused} transfers");
    let leader = cluster.leader();
    for (node, relation) in [
        (leader, format!("has its snapshot refused by node {id}: the snapshot has ")),
        (id, format!("refuses the snapshot of node {leader}: the snapshot has ")),
    ] {
        let reports = cluster.reports.borrow();
        let own = |line: &&String| {
            line.starts_with(&format!("{node}: {relation}"))
                && line
                    .ends_with("at most 1000000; start the receiver with a larger --max-snapshot")
        };
        assert_eq!(reports.iter().filter(own).count(), 1, "{reports:?}");
    }
    // The leader tries again at once when the node is back.
    cluster.max_snapshot.set(1 << 30);
    cluster.world.kill(host(id));
    cluster.world.restart(host(id)).unwrap();
    let nodes = cluster.nodes.clone();
    let caught_up =
        move |_: &mut courser_sim::World| nodes.borrow()[&id].core().store().size().0 == 250;
    assert!(cluster.world.run_until(3 * SECOND, caught_up));
}

#[test]
fn large_values_leave_a_bounded_log_and_queue_for_a_follower_that_lags() {
    const SNAPSHOT: usize = 4 << 20;
    let mut cluster = Cluster::new(14, 3, 1, |settings| settings.snapshot_bytes = SNAPSHOT);
    let id = follower(&mut cluster);
    let slow = courser_sim::DiskFaults {
        sync_ns: (300_000_000, 400_000_000),
        ..courser_sim::DiskFaults::default()
    };
    cluster.disks[id as usize - 1].set_faults(slow);
    let (nodes, most) = (cluster.nodes.clone(), Rc::new(Cell::new((0, 0))));
    let peak = most.clone();
    let ended = cluster.spawn(0, |kv, _| async move {
        for n in 0..150_u32 {
            kv.put(format!("k{:06}", n % 10).as_bytes(), &vec![(n % 10) as u8; 256 << 10])
                .await
                .unwrap();
            for node in nodes.borrow().values() {
                let (log, queue) = peak.get();
                peak.set((log.max(node.core().log().bytes()), queue.max(node.queued())));
            }
        }
    });
    cluster.finish(&ended);
    let (log, queue) = most.get();
    // 38 MiB were written. The slow one may take three times the bytes of a snapshot before it drops.
    assert!(log < 4 * SNAPSHOT, "{log} bytes of log");
    assert!(queue <= 16 << 20, "{queue} bytes in a queue");
    cluster.disks[id as usize - 1].set_faults(courser_sim::DiskFaults::default());
    cluster.world.run_for(5 * SECOND);
    let leader = cluster.leader();
    let gone = 6 - id - leader;
    cluster.world.crash(host(gone));
    cluster.nodes.borrow_mut().remove(&gone);
    assert_filled(&mut cluster, 10, 256 << 10);
}

#[test]
fn the_service_goes_on_when_the_disk_of_the_leader_never_answers() {
    let mut cluster = Cluster::new(16, 3, 1, |settings| {
        (settings.unsynced.steps, settings.unsynced.ticks) = (300, usize::MAX);
    });
    let id = cluster.leader();
    let never = (3_600_000_000_000, 3_600_000_000_001);
    let faults = courser_sim::DiskFaults { sync_ns: never, ..courser_sim::DiskFaults::default() };
    cluster.disks[id as usize - 1].set_faults(faults);
    fill(&mut cluster, 1_000, 100);
    assert_filled(&mut cluster, 1_000, 100);
    let line = format!("{id}: takes no part: the disk does not answer; see that it works");
    assert_eq!(cluster.reports.borrow().iter().filter(|report| **report == line).count(), 1);
    let (steps, _) = cluster.nodes.borrow()[&id].core().held();
    assert!((300..400).contains(&steps), "{steps} steps");
}

#[test]
fn with_default_limits_another_node_leads_soon_when_the_disk_of_the_leader_hangs() {
    let mut cluster = Cluster::new(16, 3, 1, |_| {});
    let id = cluster.leader();
    let never = (3_600_000_000_000, 3_600_000_000_001);
    let faults = courser_sim::DiskFaults { sync_ns: never, ..courser_sim::DiskFaults::default() };
    cluster.disks[id as usize - 1].set_faults(faults);
    fill(&mut cluster, 1, 100);
    cluster.world.run_for(8 * SECOND);
    assert_ne!(cluster.leader(), id);
    assert_filled(&mut cluster, 1, 100);
}

#[test]
fn a_cluster_that_is_slower_than_an_attempt_is_not_sent_each_write_again_and_again() {
    let mut cluster = Cluster::new(18, 3, 1, |_| {});
    let leader = cluster.leader();
    let slow = courser_sim::DiskFaults {
        sync_ns: (150_000_000, 160_000_000),
        ..courser_sim::DiskFaults::default()
    };
    cluster.disks.iter().for_each(|disk| disk.set_faults(slow.clone()));
    let ended = cluster.spawn(0, |kv, local| async move {
        let kv = Rc::new(kv.attempt(40 * MS));
        let put = |n: u32| {
            let kv = kv.clone();
            local.spawn(async move { kv.put(&n.to_le_bytes(), b"1").await.unwrap() })
        };
        for task in (0..20).map(put).collect::<Vec<_>>() {
            task.await.unwrap();
        }
    });
    cluster.finish(&ended);
    let counters = cluster.nodes.borrow()[&leader].core().counters().clone();
    // An attempt has 40 ms, and then twice as much. The session is opened some times.
    assert!((21..=30).contains(&counters.writes), "{} entries for 20 writes", counters.writes);
}

#[test]
fn a_node_whose_disk_hangs_answers_with_its_state() {
    let mut cluster = Cluster::new(16, 3, 2, |_| {});
    let id = cluster.leader();
    let (local, uri) = (cluster.local(1), cluster.world.uri(host(id)));
    let for_30_s = (30_000_000_000, 30_000_000_001);
    let faults =
        courser_sim::DiskFaults { sync_ns: for_30_s, ..courser_sim::DiskFaults::default() };
    cluster.disks[id as usize - 1].set_faults(faults);
    fill(&mut cluster, 1, 100);
    cluster.world.run_for(10 * SECOND);
    cluster.disks[id as usize - 1].set_faults(courser_sim::DiskFaults::default());
    let ended = cluster.spawn(1, move |_, _| async move {
        let node = KvClient::new(local.connect(&uri).await.unwrap()).await.unwrap();
        let status = node.status().await.unwrap();
        let note = status.note.clone().unwrap();
        assert!(status.role == "stalled" && status.disk_wait_ms() > 5_000, "{}", status.role);
        assert!(note.starts_with("stalled for ") && note.contains("does not answer"), "{note}");
        local.sleep(60 * SECOND).await;
        let status = node.status().await.unwrap();
        assert_eq!((&status.role[..], status.disk_wait_ms()), ("follower", 0));
        assert_eq!(status.note, None);
    });
    cluster.finish(&ended);
}

#[test]
fn a_follower_that_writes_a_large_received_snapshot_is_not_said_to_hang() {
    let mut cluster = Cluster::new(19, 3, 1, frequent);
    let id = follower(&mut cluster);
    let others: Vec<_> = (1..=4).filter(|other| *other != id).map(host).collect();
    cluster.world.partition(&[&[host(id)], &others]);
    fill(&mut cluster, 250, 100_000);
    // 20 MB take 1.2 s.
    let slow = courser_sim::DiskFaults { byte_ps: 60_000, ..courser_sim::DiskFaults::default() };
    cluster.disks[id as usize - 1].set_faults(slow);
    cluster.world.heal();
    let (nodes, notes) = (cluster.nodes.clone(), Rc::new(RefCell::new(BTreeSet::new())));
    let found = notes.clone();
    let caught_up = move |_: &mut courser_sim::World| {
        let status = nodes.borrow()[&id].core().status();
        let cause = status.note.and_then(|note| Some(note.split_once(": ")?.1.to_owned()));
        found.borrow_mut().extend(cause);
        status.keys == 250
    };
    assert!(cluster.world.run_until(20 * SECOND, caught_up));
    let notes = notes.borrow();
    let is_snapshot = |note: &String| note.starts_with("the disk takes a received snapshot of ");
    assert!(notes.len() == 1 && notes.iter().all(is_snapshot), "{notes:?}");
}

#[test]
fn a_node_joins_with_an_empty_disk_while_clients_write() {
    let mut cluster = Cluster::hosts(11, 4, 2);
    (1..=3).for_each(|id| cluster.start(id, false, frequent));
    fill(&mut cluster, 300, 1_000);
    cluster.start(4, true, frequent);
    let uri = cluster.world.uri(host(4));
    let ended = cluster.spawn(1, |kv, local| async move {
        kv.change(&MemberChange::Add { id: 4, uri }).await.unwrap();
        while kv.change(&MemberChange::Promote { id: 4 }).await.is_err() {
            local.sleep(50 * MS).await;
        }
    });
    fill(&mut cluster, 300, 1_000);
    cluster.finish(&ended);
    // Three of four are needed.
    let gone = follower(&mut cluster);
    cluster.world.crash(host(gone));
    cluster.nodes.borrow_mut().remove(&gone);
    assert_filled(&mut cluster, 300, 1_000);
    assert_eq!(cluster.nodes.borrow()[&4].core().status().role, "follower");
}

#[test]
fn a_node_joins_while_no_client_writes() {
    let mut cluster = Cluster::hosts(13, 4, 1);
    (1..=3).for_each(|id| cluster.start(id, false, |_| {}));
    fill(&mut cluster, 3, 100);
    cluster.start(4, true, |_| {});
    let uri = cluster.world.uri(host(4));
    let ended = cluster.spawn(0, |kv, local| async move {
        kv.change(&MemberChange::Add { id: 4, uri }).await.unwrap();
        while kv.change(&MemberChange::Promote { id: 4 }).await.is_err() {
            local.sleep(50 * MS).await;
        }
    });
    cluster.finish(&ended);
    let nodes = cluster.nodes.clone();
    let has_all = move |_: &mut courser_sim::World| nodes.borrow()[&4].core().store().size().0 == 3;
    assert!(cluster.world.run_until(10 * SECOND, has_all));
}

#[test]
fn old_files_are_removed_while_writes_leave_the_disk_no_pause() {
    let mut cluster = Cluster::new(16, 3, 1, frequent);
    let slow = courser_sim::DiskFaults {
        sync_ns: (2_000_000, 3_000_000),
        ..courser_sim::DiskFaults::default()
    };
    cluster.disks.iter().for_each(|disk| disk.set_faults(slow.clone()));
    let (disks, most) = (cluster.disks.clone(), Rc::new(Cell::new(0)));
    let peak = most.clone();
    let ended = cluster.spawn(0, |kv, local| async move {
        let kv = Rc::new(kv);
        let put = |n: u32| {
            let (kv, disks, peak) = (kv.clone(), disks.clone(), peak.clone());
            local.spawn(async move {
                for round in 0..150_u32 {
                    kv.put(format!("k{n}").as_bytes(), &vec![round as u8; 1_000]).await.unwrap();
                    disks.iter().for_each(|disk| peak.set(peak.get().max(disk.used())));
                }
            })
        };
        for task in (0..32).map(put).collect::<Vec<_>>() {
            task.await.unwrap();
        }
    });
    cluster.finish(&ended);
    // 4,800 entries were written, and a snapshot is made after 100. A segment that a snapshot makes
    // superfluous is removed behind the next frame.
    assert!(most.get() < 1_500_000, "{} bytes", most.get());
}

#[test]
fn a_slow_follower_delays_no_write_and_fills_no_memory() {
    let mut cluster = Cluster::new(12, 3, 1, |settings| settings.snapshot_entries = 1_000_000);
    let id = follower(&mut cluster);
    let faults = courser_sim::DiskFaults {
        sync_ns: (300_000_000, 400_000_000),
        ..courser_sim::DiskFaults::default()
    };
    cluster.disks[id as usize - 1].set_faults(faults);
    let began_ns = cluster.world.now_ns();
    let ended = cluster.spawn(0, |kv, local| async move {
        let kv = Rc::new(kv);
        let put = |n: u32| {
            let kv = kv.clone();
            local.spawn(async move {
                for round in 0..20_u32 {
                    let key = format!("k{:06}", n * 20 + round);
                    kv.put(key.as_bytes(), &vec![(n * 20 + round) as u8; 20_000]).await.unwrap();
                }
            })
        };
        for task in (0..32).map(put).collect::<Vec<_>>() {
            task.await.unwrap();
        }
    });
    cluster.finish(&ended);
    // 640 writes, one after the other, would take 200 s.
    let took_ns = cluster.world.now_ns() - began_ns;
    assert!(took_ns < 10_000_000_000, "{took_ns} ns");
    cluster.disks[id as usize - 1].set_faults(courser_sim::DiskFaults::default());
    cluster.world.run_for(5 * SECOND);
    assert_eq!(cluster.nodes.borrow()[&id].core().store().size().0, 640);
    assert_filled(&mut cluster, 640, 20_000);
}
