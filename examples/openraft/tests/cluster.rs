//! Nodes over real sockets: writes, the end of the leader, a node that needs a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use courser::Server;
use courser::service::RpcError;
use courser_example_openraft::network::NodeClient;
use courser_example_openraft::{Command, Running, config, start};
use openraft::error::{CheckIsLeaderError, ClientWriteError, RaftError};
use openraft::{BasicNode, Config, SnapshotPolicy};

/// Only a defect takes longer.
const LIMIT: Duration = Duration::from_secs(60);

struct Cluster {
    scheme: &'static str,
    nodes: BTreeMap<u64, (String, Running)>,
}

fn settings() -> Config {
    // A new node needs a snapshot, because the log before it is gone.
    Config {
        snapshot_policy: SnapshotPolicy::LogsSinceLast(20),
        max_in_snapshot_log_to_keep: 0,
        purge_batch_size: 1,
        snapshot_max_chunk_size: 100,
        ..config()
    }
}

fn put(key: &str, value: &str) -> Command {
    Command::Put { key: key.to_owned(), value: value.to_owned() }
}

impl Cluster {
    /// A cluster of three.
    async fn start(scheme: &'static str) -> Cluster {
        let mut cluster = Cluster { scheme, nodes: BTreeMap::new() };
        cluster.run(1).await;
        let (uri, first) = &cluster.nodes[&1];
        first.raft.initialize(BTreeMap::from([(1, BasicNode::new(uri))])).await.unwrap();
        first.raft.wait(Some(LIMIT)).current_leader(1, "it leads").await.unwrap();
        for id in [2, 3] {
            cluster.run(id).await;
            cluster.client(1).await.add(id, cluster.nodes[&id].0.clone()).await.unwrap();
        }
        cluster
    }

    async fn run(&mut self, id: u64) {
        let server = Server::bind(&format!("{}://127.0.0.1:0", self.scheme)).unwrap();
        let uri = server.local_uri();
        self.nodes.insert(id, (uri, start(id, server, settings()).await.unwrap()));
    }

    async fn stop(&mut self, id: u64) {
        let (_, node) = self.nodes.remove(&id).unwrap();
        node.raft.shutdown().await.unwrap();
        node.serving.handle().stop();
        node.serving.await.unwrap();
    }

    /// A connection to a node.
    async fn client(&self, id: u64) -> NodeClient {
        NodeClient::connect(&self.nodes[&id].0).await.unwrap()
    }

    /// Waits until every node has applied a value.
    async fn wait_for(&self, key: &str, value: &str) {
        let first = &self.nodes[&1].1.raft;
        let last = first.metrics().borrow().last_log_index;
        for (_, node) in self.nodes.values() {
            node.raft.wait(Some(LIMIT)).applied_index_at_least(last, "all").await.unwrap();
            assert_eq!(node.state.get(key).as_deref(), Some(value));
        }
    }

    /// The leader, besides one that has ended.
    async fn leader(&self, ended: u64) -> u64 {
        let follower = self.nodes.values().next().unwrap();
        let other = |leader: Option<u64>| leader.is_some_and(|id| id != ended);
        let found = follower.1.raft.wait(Some(LIMIT));
        let metrics = found.metrics(|metrics| other(metrics.current_leader), "a leader").await;
        metrics.unwrap().current_leader.unwrap()
    }
}

async fn writes_survive_the_end_of_the_leader(scheme: &'static str) {
    let mut cluster = Cluster::start(scheme).await;
    let leader = cluster.client(1).await;
    assert_eq!(leader.write(put("apple", "green")).await.unwrap(), None);
    assert_eq!(leader.write(put("apple", "red")).await.unwrap(), Some("green".to_owned()));
    assert_eq!(leader.read("apple".to_owned()).await.unwrap(), Some("red".to_owned()));
    // Another node names the leader.
    match cluster.client(2).await.read("apple".to_owned()).await {
        Err(RpcError::Service(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(to)))) => {
            assert_eq!(to.leader_node.unwrap().addr, cluster.nodes[&1].0);
        }
        other => panic!("{other:?}"),
    }
    cluster.stop(1).await;
    let next = cluster.leader(1).await;
    let client = cluster.client(next).await;
    assert_eq!(client.read("apple".to_owned()).await.unwrap(), Some("red".to_owned()));
    assert_eq!(client.write(put("pear", "yellow")).await.unwrap(), None);
    let delete = Command::Delete { key: "apple".to_owned() };
    assert_eq!(client.write(delete).await.unwrap(), Some("red".to_owned()));
    assert_eq!(client.read("apple".to_owned()).await.unwrap(), None);
}

async fn a_new_node_gets_a_snapshot_in_parts(scheme: &'static str) {
    let mut cluster = Cluster::start(scheme).await;
    let leader = cluster.client(1).await;
    for n in 0..60 {
        leader.write(put(&format!("key {n}"), &"v".repeat(50))).await.unwrap();
    }
    let is_purged = |metrics: &openraft::RaftMetrics<u64, BasicNode>| metrics.purged.is_some();
    let first = cluster.nodes[&1].1.raft.clone();
    first.wait(Some(LIMIT)).metrics(is_purged, "the log is purged").await.unwrap();
    cluster.run(4).await;
    leader.add(4, cluster.nodes[&4].0.clone()).await.unwrap();
    let fourth = &cluster.nodes[&4].1;
    let last = first.metrics().borrow().last_log_index;
    fourth.raft.wait(Some(LIMIT)).applied_index_at_least(last, "all").await.unwrap();
    assert!(fourth.raft.metrics().borrow().snapshot.is_some());
    for n in 0..60 {
        assert_eq!(fourth.state.get(&format!("key {n}")), Some("v".repeat(50)));
    }
}

/// The steps of the cluster in openraft's example `raft-kv-memstore`.
async fn the_steps_of_openrafts_example_cluster_pass(scheme: &'static str) {
    let mut cluster = Cluster { scheme, nodes: BTreeMap::new() };
    for id in 1..=3 {
        cluster.run(id).await;
    }
    let raft = |id: u64| cluster.nodes[&id].1.raft.clone();
    let node = |id: u64| BasicNode::new(&cluster.nodes[&id].0);
    let voters = |id: u64| {
        let metrics = raft(id).metrics().borrow().clone();
        metrics.membership_config.membership().get_joint_config().clone()
    };
    // A cluster of one node, and two learners.
    raft(1).initialize(BTreeMap::from([(1, node(1))])).await.unwrap();
    raft(1).wait(Some(LIMIT)).current_leader(1, "it leads").await.unwrap();
    for id in [2, 3] {
        raft(1).add_learner(id, node(id), true).await.unwrap();
    }
    assert_eq!(voters(1), [BTreeSet::from([1])]);
    let metrics = raft(1).metrics().borrow().clone();
    let known: BTreeMap<_, _> =
        metrics.membership_config.nodes().map(|(&id, node)| (id, node.clone())).collect();
    assert_eq!(known, BTreeMap::from([1, 2, 3].map(|id| (id, node(id)))));
    // The learners become voters.
    raft(1).change_membership(BTreeSet::from([1, 2, 3]), false).await.unwrap();
    assert_eq!(voters(1), [BTreeSet::from([1, 2, 3])]);
    let clients = [cluster.client(1).await, cluster.client(2).await, cluster.client(3).await];
    clients[0].write(put("foo", "bar")).await.unwrap();
    cluster.wait_for("foo", "bar").await;
    // Another node names the leader.
    let forward = match clients[1].write(put("foo", "wow")).await {
        Err(RpcError::Service(RaftError::APIError(ClientWriteError::ForwardToLeader(to)))) => to,
        other => panic!("{other:?}"),
    };
    let leader = NodeClient::connect(&forward.leader_node.unwrap().addr).await.unwrap();
    assert_eq!(leader.write(put("foo", "wow")).await.unwrap(), Some("bar".to_owned()));
    cluster.wait_for("foo", "wow").await;
    assert_eq!(clients[0].read("foo".to_owned()).await.unwrap(), Some("wow".to_owned()));
    match clients[1].read("foo".to_owned()).await {
        Err(RpcError::Service(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(to)))) => {
            assert_eq!((to.leader_id, to.leader_node), (Some(1), Some(node(1))));
        }
        other => panic!("{other:?}"),
    }
    // Without the nodes 1 and 2.
    raft(1).change_membership(BTreeSet::from([3]), false).await.unwrap();
    raft(3).wait(Some(LIMIT)).current_leader(3, "it leads").await.unwrap();
    assert_eq!(voters(3), [BTreeSet::from([3])]);
    assert_eq!(clients[2].write(put("foo", "zoo")).await.unwrap(), Some("wow".to_owned()));
    assert_eq!(clients[2].read("foo".to_owned()).await.unwrap(), Some("zoo".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn over_udp_the_steps_of_openrafts_example_cluster_pass() {
    the_steps_of_openrafts_example_cluster_pass("udp").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_shared_memory_the_steps_of_openrafts_example_cluster_pass() {
    the_steps_of_openrafts_example_cluster_pass("shm").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_udp_writes_survive_the_end_of_the_leader() {
    writes_survive_the_end_of_the_leader("udp").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_shared_memory_writes_survive_the_end_of_the_leader() {
    writes_survive_the_end_of_the_leader("shm").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_udp_a_new_node_gets_a_snapshot_in_parts() {
    a_new_node_gets_a_snapshot_in_parts("udp").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_shared_memory_a_new_node_gets_a_snapshot_in_parts() {
    a_new_node_gets_a_snapshot_in_parts("shm").await;
}
