//! openraft's network over a typed service, and the service of a node.

use std::error::Error;

use courser::service::RpcError;
use openraft::error::{
    CheckIsLeaderError, ClientWriteError, InstallSnapshotError, NetworkError, RPCError, RaftError,
    RemoteError, Unreachable,
};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{BasicNode, ChangeMembers, Raft};

use crate::store::StateMachine;
use crate::{Command, Types};

/// The error of a write.
pub type WriteError = RaftError<u64, ClientWriteError<u64, BasicNode>>;
/// The error of a read.
pub type ReadError = RaftError<u64, CheckIsLeaderError<u64, BasicNode>>;
type PeerError<E> = RPCError<u64, BasicNode, E>;

/// The service between nodes, and for clients.
#[courser::service]
pub trait Node {
    /// Entries of the leader, or a heartbeat.
    async fn append(
        &self,
        request: AppendEntriesRequest<Types>,
    ) -> Result<AppendEntriesResponse<u64>, RaftError<u64>>;
    /// A vote for a candidate.
    async fn vote(&self, request: VoteRequest<u64>) -> Result<VoteResponse<u64>, RaftError<u64>>;
    /// A part of a snapshot. Its bytes are a parameter of their own, because those are copied at once.
    async fn snapshot(
        &self,
        request: InstallSnapshotRequest<Types>,
        data: Vec<u8>,
    ) -> Result<InstallSnapshotResponse<u64>, RaftError<u64, InstallSnapshotError>>;
    /// Writes, at the leader. The result is the value before.
    async fn write(&self, command: Command) -> Result<Option<String>, WriteError>;
    /// Reads, at the leader, what the last write stored that ended before.
    async fn read(&self, key: String) -> Result<Option<String>, ReadError>;
    /// Adds a node, which begins as a learner and becomes a voter when it has all entries.
    async fn add(&self, id: u64, uri: String) -> Result<(), WriteError>;
    /// The leader that this node knows.
    async fn leader(&self) -> Option<u64>;
}

/// A node, as its server sees it.
pub struct Member {
    /// The node.
    pub raft: Raft<Types>,
    /// Its state machine.
    pub state: StateMachine,
}

impl Node for Member {
    async fn append(
        &self,
        request: AppendEntriesRequest<Types>,
    ) -> Result<AppendEntriesResponse<u64>, RaftError<u64>> {
        self.raft.append_entries(request).await
    }

    async fn vote(&self, request: VoteRequest<u64>) -> Result<VoteResponse<u64>, RaftError<u64>> {
        self.raft.vote(request).await
    }

    async fn snapshot(
        &self,
        mut request: InstallSnapshotRequest<Types>,
        data: Vec<u8>,
    ) -> Result<InstallSnapshotResponse<u64>, RaftError<u64, InstallSnapshotError>> {
        request.data = data;
        self.raft.install_snapshot(request).await
    }

    async fn write(&self, command: Command) -> Result<Option<String>, WriteError> {
        self.raft.client_write(command).await.map(|response| response.data)
    }

    async fn read(&self, key: String) -> Result<Option<String>, ReadError> {
        self.raft.ensure_linearizable().await?;
        Ok(self.state.get(&key))
    }

    async fn add(&self, id: u64, uri: String) -> Result<(), WriteError> {
        self.raft.add_learner(id, BasicNode::new(uri), true).await?;
        let voter = ChangeMembers::AddVoterIds([id].into());
        self.raft.change_membership(voter, false).await?;
        Ok(())
    }

    async fn leader(&self) -> Option<u64> {
        self.raft.current_leader().await
    }
}

/// Makes connections to other nodes.
#[derive(Clone, Debug, Default)]
pub struct Network;

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Peer {
        Peer { id: target, uri: node.addr.clone(), client: None }
    }
}

/// A connection to another node, which is made when it is needed.
pub struct Peer {
    id: u64,
    uri: String,
    client: Option<NodeClient>,
}

impl Peer {
    /// The connection. While a call is in progress, this has none.
    async fn client<E: Error>(&mut self) -> Result<NodeClient, PeerError<E>> {
        match self.client.take() {
            Some(client) => Ok(client),
            None => Ok(NodeClient::connect(&self.uri).await.map_err(|e| Unreachable::new(&e))?),
        }
    }

    /// The result of a call, for openraft. After a failure the next call makes another connection.
    #[expect(clippy::result_large_err, reason = "the error is openraft's")]
    fn result<T, E>(
        &mut self,
        client: NodeClient,
        result: Result<T, RpcError<E>>,
    ) -> Result<T, PeerError<E>>
    where
        E: Error + 'static,
    {
        match result {
            Ok(response) => {
                self.client = Some(client);
                Ok(response)
            }
            Err(RpcError::Service(error)) => {
                self.client = Some(client);
                Err(RemoteError::new(self.id, error).into())
            }
            Err(error) => Err(NetworkError::new(&error).into()),
        }
    }
}

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, PeerError<RaftError<u64>>> {
        let client = self.client().await?;
        let result = client.append(request).deadline(option.hard_ttl()).await;
        self.result(client, result)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, PeerError<RaftError<u64>>> {
        let client = self.client().await?;
        let result = client.vote(request).deadline(option.hard_ttl()).await;
        self.result(client, result)
    }

    async fn install_snapshot(
        &mut self,
        mut request: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, PeerError<RaftError<u64, InstallSnapshotError>>> {
        let client = self.client().await?;
        let data = std::mem::take(&mut request.data);
        let result = client.snapshot(request, data).deadline(option.hard_ttl()).await;
        self.result(client, result)
    }
}
