//! The control socket of a running node: changes of its routes, and its counters.
//!
//! A Unix stream socket (mode 0600) with lines of text. Each request is a line; its answer is any
//! number of lines and then one that is `ok` or begins with `error: `. Requests may follow each
//! other without waiting for answers, which come in their order.
//!
//! | request | answer |
//! | --- | --- |
//! | `route add PREFIX via NODE:INTERFACE[@GATEWAY[,onlink]][*WEIGHT] ...` | `ok`, if this node announces no route for it yet |
//! | `route add PREFIX unreachable` | as above; packets are rejected |
//! | `route replace PREFIX ...` | `ok`; adds or replaces |
//! | `route del PREFIX` | `ok`, if this node announces it |
//! | `batch begin` ... `batch commit` | this node applies the `route` lines between together, or none of them |
//! | `batch abort` | forgets them |
//! | `route get ADDRESS [FLOW]` | the route, and the next hop of a flow (a hash, 0 if absent) |
//! | `routes [PREFIX]` | all routes, or those within a prefix, with their origins |
//! | `nodes` | the nodes and their state |
//! | `stats` | counters as one line of JSON |
//! | `help` | this list |
//!
//! A route that is changed here has the node as its origin. The node sends it to all others, so one
//! node is enough for each route. At the node itself, no packet is forwarded between two changes of a
//! batch. Other nodes get the changes in one call or several, and forward packets between those: a
//! batch is not atomic for the cluster. Between lines of `routes`, packets are forwarded and routes
//! may change.
//!
//! Empty lines and comments, from `#` on, have no answer. A request without a line feed before the
//! end of the stream may be incomplete: it is refused, not carried out.
//!
//! # Routing daemons
//!
//! A node takes over the routes of BIRD or FRR from a table of its kernel, without this socket: see
//! [`crate::import`]. A route that is changed here has precedence over an imported one for the same
//! prefix, until it is removed. Imported routes cannot be removed here. A controller of another kind
//! lists `routes` when it connects, and sends what differs between `batch begin` and `batch commit`,
//! in groups of at most [`BATCH_CHANGES`]; after a restart of the node the connection ends, and the
//! node has its files only.
//!
//! # Limits
//!
//! The node's thread reads requests between packets, so a client must not delay or exhaust it.
//! There are at most [`CLIENTS`] clients; a line has at most [`LINE`] bytes, a batch at most
//! [`BATCH_CHANGES`] changes, fewer if their prefixes are short. A client that does not read its answers gets no further ones, and its
//! requests wait. [`Server::poll`] handles a bounded number of requests.

mod answer;
mod client;
mod connection;
mod parse;
mod server;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use ipnet::IpNet;

pub use self::answer::{changed, find, list};
pub use self::client::{Client, ClientError};
pub use self::server::{BindError, Server};
use crate::routes::{Change, Origin};

/// Clients at most. Others get an error.
pub const CLIENTS: usize = 16;
/// Bytes of a line at most, the line feed included. The connection ends after a longer one.
pub const LINE: usize = 4_096;
/// Changes of a batch at most.
pub const BATCH_CHANGES: usize = 4_096;
/// Next hops of the routes of a batch at most.
pub const BATCH_HOPS: usize = 16_384;

/// [Entries of the FIB](crate::fib::Fib::work) that a batch changes at most, of all families.
pub const BATCH_WORK: usize = (1 << 24) + BATCH_CHANGES * 128;

/// What the node is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Change the routes that this node announces, all or none, see [`changed`]. One for a line
    /// outside of batches.
    Change(Vec<Change>),
    /// Find the route of an address, see [`find`].
    Find(IpAddr, u32),
    /// List routes, see [`list`].
    Routes {
        /// Those within this prefix.
        within: Option<IpNet>,
        /// Those after this one.
        after: Option<(IpNet, Origin)>,
    },
    /// Describe the nodes and their state, one a line.
    Nodes,
    /// Report the counters, as one line of JSON.
    Stats,
}

/// What the node answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// Success, with lines of text or none.
    Done(String),
    /// Lines of text, of which more follow: the same request, after this route.
    Part(String, (IpNet, Origin)),
    /// Failure, with its reason.
    Error(String),
}
