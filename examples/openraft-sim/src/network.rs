//! openraft's network over a typed service, and the service of a node.

use std::error::Error;
use std::future::Future;

use courser::service::RpcError;
use courser::{Local, Session};
use futures::future::{LocalBoxFuture, Shared};
use openraft::alias::{SnapshotMetaOf, SnapshotOf, VoteOf};
use openraft::async_runtime::Select2;
use openraft::errors::{
    ClientWriteError, Fatal, LinearizableReadError, NetworkError, RPCError, RaftError,
    ReplicationClosed, StreamingError, Unreachable,
};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::storage::Snapshot;
use openraft::{AsyncRuntime, BasicNode, ReadPolicy};

use crate::runtime::{Runtime, current};
use crate::store::StateMachine;
use crate::{Command, Raft, Types};

/// The error of a write.
pub type WriteError = RaftError<Types, ClientWriteError<Types>>;
/// The error of a read.
pub type ReadError = RaftError<Types, LinearizableReadError<Types>>;

/// The service between nodes, and for clients.
#[courser::service]
pub trait Node {
    /// Entries of the leader, or a heartbeat.
    async fn append(
        &self,
        request: AppendEntriesRequest<Types>,
    ) -> Result<AppendEntriesResponse<Types>, RaftError<Types>>;
    /// A vote for a candidate.
    async fn vote(
        &self,
        request: VoteRequest<Types>,
    ) -> Result<VoteResponse<Types>, RaftError<Types>>;
    /// The vote that a candidate would get.
    async fn pre_vote(
        &self,
        request: VoteRequest<Types>,
    ) -> Result<VoteResponse<Types>, RaftError<Types>>;
    /// A snapshot, which fits a message.
    async fn snapshot(
        &self,
        vote: VoteOf<Types>,
        meta: SnapshotMetaOf<Types>,
        data: Vec<u8>,
    ) -> Result<SnapshotResponse<Types>, Fatal<Types>>;
    /// The leader asks this node to lead.
    async fn transfer(
        &self,
        request: TransferLeaderRequest<Types>,
    ) -> Result<TransferLeaderResponse<Types>, Fatal<Types>>;
    /// Writes, at the leader. The result is the value before.
    async fn write(&self, command: Command) -> Result<Option<String>, WriteError>;
    /// Reads, at the leader, what the last write stored that ended before.
    async fn read(&self, key: String) -> Result<Option<String>, ReadError>;
}

/// A node, as its server sees it.
pub struct Member {
    /// The endpoint.
    pub local: Local,
    /// The node, when it has started.
    pub raft: Shared<LocalBoxFuture<'static, Raft>>,
    /// Its state machine.
    pub state: StateMachine,
}

impl Member {
    /// Calls the node when it has started.
    async fn call<T>(&self, call: impl AsyncFnOnce(Raft) -> T) -> T {
        self.local.enter(async { call(self.raft.clone().await).await }).await
    }
}

impl LocalNode for Member {
    async fn append(
        &self,
        request: AppendEntriesRequest<Types>,
    ) -> Result<AppendEntriesResponse<Types>, RaftError<Types>> {
        self.call(async |raft| raft.append_entries(request).await).await
    }

    async fn vote(
        &self,
        request: VoteRequest<Types>,
    ) -> Result<VoteResponse<Types>, RaftError<Types>> {
        self.call(async |raft| raft.vote(request).await).await
    }

    async fn pre_vote(
        &self,
        request: VoteRequest<Types>,
    ) -> Result<VoteResponse<Types>, RaftError<Types>> {
        self.call(async |raft| raft.pre_vote(request).await).await
    }

    async fn snapshot(
        &self,
        vote: VoteOf<Types>,
        meta: SnapshotMetaOf<Types>,
        data: Vec<u8>,
    ) -> Result<SnapshotResponse<Types>, Fatal<Types>> {
        let snapshot = Snapshot { meta, snapshot: data };
        self.call(async |raft| raft.install_full_snapshot(vote, snapshot).await).await
    }

    async fn transfer(
        &self,
        request: TransferLeaderRequest<Types>,
    ) -> Result<TransferLeaderResponse<Types>, Fatal<Types>> {
        self.call(async |raft| raft.handle_transfer_leader(request).await).await
    }

    async fn write(&self, command: Command) -> Result<Option<String>, WriteError> {
        let written = self.call(async |raft| raft.client_write(command).await).await;
        written.map(|response| response.data)
    }

    async fn read(&self, key: String) -> Result<Option<String>, ReadError> {
        self.call(async |raft| raft.ensure_linearizable(ReadPolicy::ReadIndex).await).await?;
        Ok(self.state.get(&key))
    }
}

/// Makes connections to other nodes.
pub struct Network;

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, _: u64, node: &BasicNode) -> Peer {
        Peer { uri: node.addr.clone(), client: None }
    }
}

/// A connection to another node, which is made when it is needed.
pub struct Peer {
    uri: String,
    client: Option<NodeClient<Session>>,
}

impl Peer {
    /// The connection. While a call is in progress, this has none.
    async fn client(&mut self) -> Result<NodeClient<Session>, RPCError<Types>> {
        if let Some(client) = self.client.take() {
            return Ok(client);
        }
        let session = current().connect(&self.uri).await.map_err(|e| Unreachable::new(&e))?;
        Ok(NodeClient::new(session).await.map_err(|e| Unreachable::new(&e))?)
    }

    /// The result of a call, for openraft, which has no place for an error of the other node: it is
    /// one of the network. After a failure the next call makes another connection.
    fn result<T, E: Error + 'static>(
        &mut self,
        client: NodeClient<Session>,
        result: Result<T, RpcError<E>>,
    ) -> Result<T, RPCError<Types>> {
        if matches!(result, Ok(_) | Err(RpcError::Service(_))) {
            self.client = Some(client);
        }
        result.map_err(|error| NetworkError::new(&error).into())
    }
}

impl RaftNetworkV2<Types> for Peer {
    type SnapshotData = Vec<u8>;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let client = self.client().await?;
        let result = client.append(request).deadline(option.hard_ttl()).await;
        self.result(client, result)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let client = self.client().await?;
        let result = client.vote(request).deadline(option.hard_ttl()).await;
        self.result(client, result)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let client = self.client().await?;
        let result = client.pre_vote(request).deadline(option.hard_ttl()).await;
        self.result(client, result)
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<Types>,
        snapshot: SnapshotOf<Types, Vec<u8>>,
        cancel: impl Future<Output = ReplicationClosed> + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let client = self.client().await?;
        let call = client.snapshot(vote, snapshot.meta, snapshot.snapshot);
        let call = call.deadline(option.hard_ttl()).into_future();
        match Runtime::select2(call, cancel).await {
            Select2::First(result) => Ok(self.result(client, result)?),
            Select2::Second(closed) => Err(closed.into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let client = self.client().await?;
        let result = client.transfer(request).deadline(option.hard_ttl()).await;
        self.result(client, result)
    }
}
