//! How commands reach a cluster.

use std::future::Future;
use std::time::Duration;

use clap::Args;
use courser::{Local, Nexus, Uri};
use courser_kit::{Failure, units};
use courser_raft_kv::address;
use courser_raft_kv::client::{Client, ClientError};

#[derive(Clone, Debug, Args)]
pub(crate) struct Reach {
    /// Addresses of nodes, of which one that runs is enough
    #[arg(long, env = "RAFT_KV_NODES", value_delimiter = ',', required = true, value_name = "URI", value_parser = node)]
    pub(crate) nodes: Vec<String>,
    /// Time after which the command gives up
    #[arg(long, default_value = "10s", value_parser = units::nonzero_time)]
    pub(crate) timeout: Duration,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Checks the address of a node.
pub(crate) fn node(text: &str) -> Result<String, String> {
    address::check(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

/// Runs a future at an endpoint of this thread.
pub(crate) fn at_endpoint<T, F>(node: &str, task: impl FnOnce(Local) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let node: Uri = node.parse().map_err(|error| Failure::Usage(format!("{error}")))?;
    let mut rpc = Nexus::bind(&node.bind_for_client().to_string())?.endpoint()?;
    let local = rpc.local();
    rpc.block_on(task(local)).map_err(|error| Failure::Runtime(error.to_string()))?
}

/// Runs a future with a client.
pub(crate) fn with_client<T, F>(
    reach: &Reach,
    task: impl FnOnce(Client<Local>) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let first = reach.nodes.first().cloned().unwrap_or_default();
    at_endpoint(&first, |local| task(Client::new(local, reach.nodes.clone(), reach.timeout)))
}

/// The error of a call, as one of a command.
pub(crate) fn failure(error: ClientError) -> Failure {
    Failure::Runtime(error.to_string())
}
