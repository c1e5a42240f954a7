//! A key-value store that is replicated by openraft. [`network`] is the part that uses Courser.

pub mod network;
pub mod store;

use std::io::Cursor;
use std::sync::Arc;

use courser::{Server, Serving};
use openraft::{Config, Raft};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use network::{Member, Network, NodeServer};
use store::{Log, StateMachine};

/// A write.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Stores a value.
    Put {
        /// Its key.
        key: String,
        /// The value.
        value: String,
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: String,
    },
}

openraft::declare_raft_types!(
    /// The types of the store.
    pub Types:
        D = Command,
        R = Option<String>,
);

/// Times and limits, the same on all nodes.
#[must_use]
pub fn config() -> Config {
    Config {
        cluster_name: "courser".to_owned(),
        heartbeat_interval: 100,
        election_timeout_min: 400,
        election_timeout_max: 800,
        ..Config::default()
    }
}

/// A node that runs.
pub struct Running {
    /// The node.
    pub raft: Raft<Types>,
    /// Its state machine.
    pub state: StateMachine,
    /// Its server.
    pub serving: Serving,
}

/// Starts a node at the address of a bound server. A cluster begins with one that calls
/// `raft.initialize`.
///
/// # Errors
/// The settings are wrong, or the server cannot start.
pub async fn start(id: u64, server: Server, config: Config) -> anyhow::Result<Running> {
    let state = StateMachine::default();
    let config = Arc::new(config.validate()?);
    let raft = Raft::new(id, config, Network, Log::default(), state.clone()).await?;
    // Calls wait for openraft's tasks, so their handlers are tasks of its runtime too.
    let server = server.on_tokio(Handle::current());
    let member = Member { raft: raft.clone(), state: state.clone() };
    let serving = server.add_service(NodeServer::new(member))?.serve()?;
    Ok(Running { raft, state, serving })
}
