//! A key-value store that is replicated by openraft 0.10, on the tasks and typed services of
//! Courser's endpoints, so that it runs in the simulated datacenter.
//!
//! * [`runtime`] is openraft's runtime, [`watch`] a channel of it.
//! * [`network`] is its network, and the service of a node.
//! * [`store`] is its log and its state machine.
//! * [`scenario`] is a run in the simulated datacenter.

pub mod network;
pub mod runtime;
pub mod scenario;
pub mod store;
pub mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use courser::{Nexus, Rpc};
use futures::FutureExt;
use openraft::{BasicNode, Config, SnapshotPolicy};
use serde::{Deserialize, Serialize};

use network::{Member, Network, NodeServer};
use store::{Disk, StateMachine};

/// A write: stores a value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Command {
    /// Its key.
    pub key: String,
    /// The value.
    pub value: String,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.key, self.value)
    }
}

openraft::declare_raft_types!(
    /// The types of the store.
    pub Types:
        D = Command,
        R = Option<String>,
        AsyncRuntime = runtime::Runtime,
);

/// A node of it.
pub type Raft = openraft::Raft<Types, StateMachine>;

/// Times and limits, the same on all nodes.
#[must_use]
pub fn config() -> Config {
    Config {
        cluster_name: "courser".to_owned(),
        heartbeat_interval: 50,
        election_timeout_min: 200,
        election_timeout_max: 400,
        enable_pre_vote: Some(true),
        // A node that was away needs a snapshot.
        snapshot_policy: SnapshotPolicy::LogsSinceLast(15),
        max_in_snapshot_log_to_keep: 5,
        purge_batch_size: 1,
        ..Config::default()
    }
}

/// Makes the endpoint of a node, and starts the node on it. `started` has it as soon as it runs. The
/// first one of `members` begins the cluster, unless its disk is that of an earlier run.
///
/// # Errors
/// The endpoint cannot be made, or the disk is damaged.
pub fn node(
    nexus: &Nexus,
    id: u64,
    disk: &Disk,
    members: BTreeMap<u64, String>,
    started: impl FnOnce(Raft, StateMachine) + 'static,
) -> anyhow::Result<Rpc> {
    let mut rpc = nexus.endpoint()?;
    let (log, state) = (disk.clone(), StateMachine::open(disk.clone())?);
    let config = Arc::new(config().validate()?);
    let machine = state.clone();
    // Calls that arrive before the node runs wait for it.
    let raft = async move {
        let raft = Raft::new(id, config, Network, log, machine.clone()).await;
        let raft = raft.expect("a log that was read");
        started(raft.clone(), machine);
        raft
    };
    let raft = raft.boxed_local().shared();
    rpc.add_service(NodeServer::local(Member { local: rpc.local(), raft: raft.clone(), state }))?;
    let local = rpc.local();
    drop(local.spawn(local.enter(async move {
        let raft = raft.await;
        if members.keys().next() == Some(&id) {
            let nodes = members.into_iter().map(|(id, uri)| (id, BasicNode::new(uri)));
            // It is refused if the log has entries.
            let _ = raft.initialize(nodes.collect::<BTreeMap<_, _>>()).await;
        }
    })));
    Ok(rpc)
}
