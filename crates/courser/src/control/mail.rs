//! Messages of the control thread to endpoints.

use std::net::SocketAddr;

use courser_proto::ControlMsg;

use crate::error::control::{DialError, LostReason};

/// A message from the control thread to an endpoint.
#[derive(Debug)]
pub(crate) enum Mail {
    /// The result of [`Command::Dial`].
    Dialed {
        /// The ticket of the dial.
        ticket: u64,
        /// The connection, or the error.
        result: Result<Dialed, DialError>,
    },
    /// A control message for this endpoint.
    Msg {
        /// The connection that it arrived on.
        control: u64,
        /// The address of the other host on this connection.
        remote: SocketAddr,
        /// The address of this host on this connection.
        local: SocketAddr,
        /// True if both nexuses are known to be on one host.
        same_host: bool,
        /// The message.
        msg: ControlMsg,
    },
    /// The connection is gone; every session over it has failed.
    Lost {
        /// The connection.
        control: u64,
        /// The reason.
        reason: LostReason,
    },
    /// The other side of a connection does not answer: the time of its last frame on the datapath is
    /// wanted ([`Command::SignOfLife`]).
    Unanswered {
        /// The connection.
        control: u64,
    },
    /// Connections are scarce: sessions that were never used are to end, so that their connections
    /// can be closed for others.
    Scarce {
        /// The host whose connections are scarce, as in [`courser_buf::Addr`]; `None`: those of all.
        host: Option<u128>,
    },
}

/// A connection to another nexus, ready for messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dialed {
    /// Its number, which is never reused.
    pub(crate) control: u64,
    /// The control address of the other nexus.
    pub(crate) remote: SocketAddr,
    /// The local address of the connection.
    pub(crate) local: SocketAddr,
    /// True if both nexuses are known to be on one host.
    pub(crate) same_host: bool,
}
