//! Nodes over real sockets: writes, the end of the leader, a node that needs a snapshot.

use std::collections::BTreeMap;
use std::time::Duration;

use courser::Server;
use courser::service::RpcError;
use courser_example_openraft::network::NodeClient;
use courser_example_openraft::{Command, Running, config, start};
use openraft::error::{CheckIsLeaderError, RaftError};
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
