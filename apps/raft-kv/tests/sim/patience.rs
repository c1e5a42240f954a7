//! The end of calls that no leader answers.

use std::rc::Rc;
use std::time::Duration;

use courser_raft_kv::client::{Client, ClientError};

use crate::world::{Cluster, MS, SECOND, host};

/// No multiple of the time of an attempt.
const PATIENCE: Duration = Duration::from_millis(2_450);
const ATTEMPT: Duration = Duration::from_millis(700);

/// Eight writes of one client, which begin one after the other, end without a result in their time.
fn assert_writes_end(cluster: &mut Cluster, opened: bool) {
    let nodes = cluster.uris();
    let (stop, hosts) = (Rc::new(std::cell::Cell::new(false)), cluster.count);
    let is_open = stop.clone();
    let ended = cluster.spawn(0, move |_, local| async move {
        let kv = Rc::new(Client::new(local.clone(), nodes, PATIENCE).attempt(ATTEMPT));
        if opened {
            kv.put(b"a", b"1").await.unwrap();
        }
        is_open.set(true);
        local.sleep(100 * MS).await;
        let write = |n: u32| {
            let (kv, of_task) = (kv.clone(), local.clone());
            local.spawn(async move {
                of_task.sleep(n * 130 * MS).await;
                let began_ns = of_task.now_ns();
                let result = kv.put(&n.to_le_bytes(), b"1").await;
                (result, Duration::from_nanos(of_task.now_ns() - began_ns))
            })
        };
        let tasks: Vec<_> = (0..8).map(write).collect();
        for (n, task) in tasks.into_iter().enumerate() {
            let (result, took) = task.await.unwrap();
            assert!(matches!(result, Err(ClientError::TimedOut { .. })), "{n}: {result:?}");
            assert!(took >= PATIENCE && took < PATIENCE + 2 * MS, "{n}: {took:?}");
        }
    });
    assert!(cluster.world.run_until(20 * SECOND, move |_| stop.get()));
    if opened {
        // They take packets and answer nothing.
        (1..=hosts).for_each(|id| cluster.world.pause(host(id), 60 * SECOND));
    }
    cluster.finish(&ended);
}

#[test]
fn writes_end_in_their_time_when_the_nodes_hang() {
    let mut cluster = Cluster::new(50, 3, 1, |_| {});
    cluster.leader();
    assert_writes_end(&mut cluster, true);
}

#[test]
fn writes_that_wait_for_a_session_end_in_their_time_when_the_nodes_hang() {
    let mut cluster = Cluster::new(51, 3, 1, |_| {});
    cluster.leader();
    (1..=3).for_each(|id| cluster.world.pause(host(id), 60 * SECOND));
    assert_writes_end(&mut cluster, false);
}

#[test]
fn writes_end_in_their_time_when_no_node_runs() {
    // No machine runs, or none has a process.
    for has_machines in [false, true] {
        let mut cluster = Cluster::hosts(52, 3, 1);
        if has_machines {
            (1..=3).for_each(|id| cluster.start(id, false, |_| {}));
            (1..=3).for_each(|id| cluster.world.kill(host(id)));
        }
        assert_writes_end(&mut cluster, false);
    }
}
