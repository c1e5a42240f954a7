//! The services: what clients call, and what nodes send to each other.

use courser::service::Stream;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::command::{Ticket, Unwritten, Written};
use crate::core::{MemberChange, MemberError, Status};
use crate::store::{Change, Identity};

/// Most watches of a node. Each takes some kilobytes and the batches of its stream, and costs a wake-up for
/// every batch of entries that is applied.
pub const MAX_WATCHES: usize = 1_024;

/// Why a call of a client has no result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum KvError {
    /// Another node leads. A write may have been accepted before; its retry with the same ticket is
    /// applied once.
    #[error("this node does not lead; call {}", leader.as_deref().unwrap_or("another one"))]
    NotLeader {
        /// Address of the leader, if it is known.
        leader: Option<String>,
    },
    /// The write was not applied.
    #[error(transparent)]
    Unwritten(Unwritten),
    /// A key or a value is too large.
    #[error("a key or value has {size} bytes, and at most {limit} are stored; split it")]
    TooLarge {
        /// Its bytes.
        size: u64,
        /// Most bytes.
        limit: u64,
    },
    /// The members cannot be changed like this.
    #[error(transparent)]
    Members(MemberError),
    /// Too many calls are not answered. Nothing was done.
    #[error("the node has too many calls in progress; call again later")]
    Busy,
    /// The node has as many watches as it may have.
    #[error(
        "the node has {MAX_WATCHES} watches, and at most these; end others, or watch another node"
    )]
    Watches,
    /// The node has stopped.
    #[error("the node has stopped: {0}")]
    Stopped(String),
}

/// A part of the entries, in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Page {
    /// Keys with their values.
    pub entries: Vec<(ByteBuf, ByteBuf)>,
    /// There are more, from the last key on.
    pub more: bool,
}

/// The service for clients. All but `watch` and `status` are for the leader; another node answers with
/// [`KvError::NotLeader`].
#[courser::service(codec = Postcard)]
pub trait Kv {
    /// Opens a session for writes.
    async fn open(&self) -> Result<u64, KvError>;
    /// Ends a session.
    async fn close(&self, session: u64) -> Result<(), KvError>;
    /// Stores a value.
    async fn put(&self, ticket: Ticket, key: Vec<u8>, value: Vec<u8>) -> Result<Written, KvError>;
    /// Removes a key.
    async fn delete(&self, ticket: Ticket, key: Vec<u8>) -> Result<Written, KvError>;
    /// Replaces a value if the present one is the expected one; `None` is an absent key.
    async fn cas(
        &self,
        ticket: Ticket,
        key: Vec<u8>,
        expected: Option<ByteBuf>,
        value: Option<ByteBuf>,
    ) -> Result<Written, KvError>;
    /// Reads a key: the value of the last write that ended before this call began, or of a later one.
    async fn get(&self, key: Vec<u8>) -> Result<Option<ByteBuf>, KvError>;
    /// Reads a page of entries from a key on, up to and without `end`: all of one point in time.
    async fn scan(&self, from: Vec<u8>, end: Option<ByteBuf>, limit: u32) -> Result<Page, KvError>;
    /// Changes of keys with a prefix, after an index of the log, or from the present on. Any node has
    /// them, in the same order.
    fn watch(
        &self,
        prefix: Vec<u8>,
        after: Option<u64>,
    ) -> impl Stream<Item = Result<Change, KvError>>;
    /// The state of this node.
    async fn status(&self) -> Status;
    /// Changes the members by one. Returns false if they are so already.
    async fn change(&self, change: MemberChange) -> Result<bool, KvError>;
}

/// The first messages on a connection between nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Name of the cluster.
    pub cluster: String,
    /// The sender's cluster.
    pub identity: Identity,
    /// The sender's number.
    pub id: u64,
    /// The sender's address.
    pub uri: String,
    /// The sender's shortest election timeout, ns.
    pub election_ns: u64,
    /// The sender's tick, ns.
    pub tick_ns: u64,
    /// The sender reads by leases.
    pub leases: bool,
    /// A random number of the sender's process.
    pub process: u64,
}

/// The process that answers at an address.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Who {
    /// Name of its cluster.
    pub cluster: String,
    /// Its cluster.
    pub identity: Identity,
    /// Its number.
    pub id: u64,
    /// A random number of the process.
    pub process: u64,
}

/// A part of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Chunk {
    /// The sender.
    pub from: u64,
    /// Its term.
    pub term: u64,
    /// Index of the snapshot.
    pub index: u64,
    /// Bytes of the whole.
    pub total: u64,
    /// Place of this part.
    pub offset: u64,
    /// The Raft message, in the last part.
    pub head: ByteBuf,
}

/// Why a node refuses another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum PeerError {
    /// It belongs to another cluster.
    #[error(
        "the node that refuses belongs to the cluster {0:?}; start both with the same --cluster, or \
         correct --peers"
    )]
    Cluster(String),
    /// It belongs to another cluster of the same name.
    #[error(
        "the nodes have data of different clusters; compare --peers, --id and --data of all nodes"
    )]
    Identity,
    /// It introduced itself with data before, and has none.
    #[error(
        "node {0} had data, and this one has none: its directory was lost, or two nodes have one number; \
         correct --id or --data, or remove it with `raft-kv member remove`, and add it again under \
         another number"
    )]
    Lost(u64),
    /// Its election timeout is another one, and one of both nodes reads by leases.
    #[error(
        "the node has an election timeout of {own_ns} ns in ticks of {own_tick_ns} ns, the caller another \
         one, and reads by leases need the same on all nodes; start both with the same --election"
    )]
    Election {
        /// The timeout of the node that refuses, ns.
        own_ns: u64,
        /// Its tick, ns.
        own_tick_ns: u64,
    },
    /// Another process answers under its number at its known address.
    #[error(
        "node {id} runs twice: one process answers at {known}, and another one introduced itself with \
         the address {other}, perhaps from a copy of the directory; stop the copy, and do not start it \
         again"
    )]
    Twice {
        /// The number.
        id: u64,
        /// The known address.
        known: String,
        /// The address of the process that is refused.
        other: String,
    },
    /// The node finds out whether another process has the caller's number. The caller introduces itself
    /// again.
    #[error("the node finds out whether another process has the caller's number; call again later")]
    Checking,
    /// The message is malformed, or exceeds a limit.
    #[error("{0}; use the same version of raft-kv on all nodes")]
    Malformed(String),
    /// A snapshot exceeds the limit of the node.
    #[error(
        "the snapshot has {total} bytes, and its receiver takes at most {limit}; start the receiver with a \
         larger --max-snapshot"
    )]
    Large {
        /// Bytes of the snapshot.
        total: u64,
        /// Most bytes.
        limit: u64,
    },
    /// The contents of a snapshot contradict the state of the node.
    #[error("{0}; use the same version of raft-kv on all nodes")]
    Snapshot(String),
    /// The node receives the snapshot of another one, or its disk has not taken what came before. The part
    /// may be sent again later.
    #[error(
        "the node receives another snapshot, or its disk has not taken earlier data; send the part \
         again later"
    )]
    Busy,
    /// A part of a snapshot does not follow the one before.
    #[error("the node expects another part of a snapshot; send it again from the begin")]
    Order,
}

impl PeerError {
    /// Returns whether both have the same cause, for which an operator does the same.
    pub(crate) fn has_cause_of(&self, other: &PeerError) -> bool {
        match (self, other) {
            (PeerError::Large { limit: one, .. }, PeerError::Large { limit: two, .. }) => {
                one == two
            }
            _ => self == other,
        }
    }
}

/// The service between nodes.
#[courser::service(codec = Postcard)]
pub trait Peers {
    /// Introduces the sender. Returns the introduction of the receiver.
    async fn hello(&self, hello: Hello) -> Result<Hello, PeerError>;
    /// The process of the receiver.
    async fn who(&self) -> Who;
    /// Raft messages that fit a packet.
    #[oneway]
    async fn send(&self, batch: Vec<u8>);
    /// Raft messages that need more: the sender waits, so that they keep their order.
    async fn deliver(&self, batch: Vec<u8>) -> Result<(), PeerError>;
    /// A part of a snapshot. Returns the place of the next one.
    async fn chunk(&self, chunk: Chunk, data: Vec<u8>) -> Result<u64, PeerError>;
}
