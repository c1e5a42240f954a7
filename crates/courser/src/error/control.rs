//! Errors of control connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use courser_net::{ZoneError, is_exhausted};
use courser_proto::ControlError;

/// Why another nexus could not be reached.
///
/// Example: [`SessionError`](crate::SessionError).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// The name has no address.
    #[error("cannot resolve the host name {host:?}: {cause}; check its spelling and the DNS")]
    Resolve {
        /// The name.
        host: String,
        /// The resolver's error.
        cause: Arc<io::Error>,
    },
    /// The zone of a link-local address names no interface.
    #[error(transparent)]
    Zone(ZoneError),
    /// The TCP connection failed.
    #[error("{}", connect_text(.addr, .cause))]
    Connect {
        /// The address.
        addr: SocketAddr,
        /// The operating system's error.
        cause: Arc<io::Error>,
    },
    /// No answer.
    #[error(
        "{addr} did not answer within {after:?}; check that the host is up and that firewalls let \
         TCP to this port through"
    )]
    Timeout {
        /// Host and port.
        addr: String,
        /// How long this side waited.
        after: Duration,
    },
    /// The other side accepts the connection and is silent.
    #[error(
        "{addr} accepted the connection and did not greet within {after:?}; check that it is a Courser \
         server, that its process is not stopped, and its limit of open files (`ulimit -n`)"
    )]
    NoGreeting {
        /// The address.
        addr: SocketAddr,
        /// How long this side waited.
        after: Duration,
    },
    /// The other side answers with something else than this protocol.
    #[error("{addr} answers, but no session is possible: {cause}")]
    Handshake {
        /// The address.
        addr: SocketAddr,
        /// The error in the answer.
        cause: ControlError,
    },
    /// This nexus has reached its limit of outbound connections.
    #[error(
        "this nexus already has its {limit} connections to other nexuses; close sessions of some"
    )]
    TooManyConnections {
        /// The limit.
        limit: usize,
    },
    /// The nexus is shutting down.
    #[error("this nexus was stopped; bind a new one")]
    Stopped,
}

/// The error text of a failed connect, with the remedy.
fn connect_text(addr: &SocketAddr, cause: &io::Error) -> String {
    use io::ErrorKind as K;
    if is_exhausted(cause) {
        return format!(
            "cannot connect to {addr}: {cause}; raise the limit of open files of this process \
             (`ulimit -n`) or free memory"
        );
    }
    if cause.get_ref().is_some() {
        // A text of this library, which has its own advice.
        return format!("cannot connect to {addr}: {cause}");
    }
    match cause.kind() {
        K::InvalidInput if needs_zone(addr) => format!(
            "cannot connect to {addr}, a link-local address, which each link may have; write the \
             interface behind it, as in [{}%eth0]:{}",
            addr.ip(),
            addr.port()
        ),
        K::ConnectionRefused => {
            let rejected = match addr.ip().is_loopback() {
                true => "",
                false => ", or a firewall rejects the connection",
            };
            format!(
                "nothing listens on {addr}{rejected}; start the server there, or check the address"
            )
        }
        K::UnexpectedEof | K::ConnectionReset | K::ConnectionAborted | K::BrokenPipe => format!(
            "{addr} closed the connection before it greeted; check that it is a Courser server and \
             below its limits of connections and of open files"
        ),
        K::PermissionDenied => format!(
            "a firewall of this host or on the way does not permit a connection to {addr}: {cause}; \
             check its rules (`nft list ruleset`)"
        ),
        K::WouldBlock => format!(
            "too many connections wait at {addr}; check that the server's process is not stopped, and \
             its limit of open files (`ulimit -n`)"
        ),
        K::AddrNotAvailable => format!(
            "this system has no address, or no free port, from which {addr} can be reached: {cause}; \
             check `ip addr`, or use an address of the server of the other family"
        ),
        K::HostUnreachable | K::NetworkUnreachable => {
            format!(
                "no route to {addr}, or a firewall rejects the connection: {cause}; check the address \
                 and the network"
            )
        }
        _ => format!("cannot connect to {addr}: {cause}; check the address and the network"),
    }
}

/// Returns whether an address belongs to a link that it does not name.
pub(super) fn needs_zone(addr: &SocketAddr) -> bool {
    matches!(addr, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0)
}

/// A pause of this process that is worth to be named.
const PAUSE_NAMED: Duration = Duration::from_millis(100);

/// The error text of a silent peer, with the remedy.
fn silent_text(after: Duration, paused: Duration) -> String {
    let own = if paused < PAUSE_NAMED {
        String::new()
    } else {
        format!(", and this process did not run for {paused:.1?} of that time")
    };
    format!(
        "the other nexus sent nothing for {after:.1?}, not even answers to heartbeats{own}; check that \
         its process is not stopped or starved of CPU time, that its machine runs, and that the \
         network passes TCP, or raise Config::failure_timeout"
    )
}

/// Why a control connection ended.
///
/// Example: [`SessionError`](crate::SessionError).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The other side closed it because its nexus has ended.
    #[error(
        "the other nexus closed the control connection, as when its process ends; try again when it is back"
    )]
    Closed,
    /// The operating system ended it.
    #[error("the control connection broke: {0}; check the network, then try again")]
    Io(Arc<io::Error>),
    /// The other side sent invalid bytes.
    #[error("the control connection was closed: {0}")]
    Protocol(#[from] ControlError),
    /// The other side does not read its messages.
    #[error(
        "the other nexus left {pending} bytes of control messages unread; check that its process is \
         not stopped or starved of CPU time"
    )]
    NotReading {
        /// Bytes that are queued for it.
        pending: usize,
    },
    /// Nothing was received, neither answers to heartbeats nor frames of the datapath, while this
    /// process ran for `Config::failure_timeout`.
    #[error("{}", silent_text(*.after, *.paused))]
    Silent {
        /// Time since something was received.
        after: Duration,
        /// The part of it in which this process did not run.
        paused: Duration,
    },
    /// The greeting did not arrive in time.
    #[error("the other side did not greet within {0:?}; check that it is a Courser server")]
    NoGreeting(Duration),
    /// This side closed it: no endpoint had a session over it for this duration.
    #[error("no session has used the control connection for {0:?}; try again")]
    Unused(Duration),
    /// This side closed it, which had no session or only evicted ones, to make room for another one.
    #[error(
        "the control connection was closed for another one, as no session used it; raise \
         Config::max_connections"
    )]
    Scarce,
    /// A local endpoint does not read its mailbox, so that messages would be lost.
    #[error(
        "a local endpoint has not taken {pending} control messages; run its event loop more often"
    )]
    NotRunning {
        /// Messages in the mailbox.
        pending: usize,
    },
    /// This nexus is shutting down.
    #[error("this nexus was stopped; bind a new one")]
    Stopped,
}

impl From<io::Error> for LostReason {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::UnexpectedEof => LostReason::Closed,
            _ => LostReason::Io(Arc::new(e)),
        }
    }
}
