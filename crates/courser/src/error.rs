//! Errors of the public API. Each text states what happened and, after its last semicolon, what to
//! do; `tests/error_texts.rs` checks every variant.

pub(crate) mod client;
pub(crate) mod control;
pub(crate) mod failure;
pub(crate) mod hello;
pub(crate) mod method;
pub(crate) mod register;
pub(crate) mod server;
pub(crate) mod service;

use std::io;

use courser_buf::MsgBuf;
use courser_net::UriError;
use courser_proto::{
    ConfigError, ConnectError, ConnectRefuseReason, ControlError, RejectReason, SessionEnd,
};

pub use client::ClientError;
pub use control::{DialError, LostReason};
pub use failure::CallFailure;
pub use server::ServerError;

/// Why a nexus or an endpoint could not be made.
///
/// Example: [`ServerError`](crate::ServerError).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The address cannot be read.
    #[error(transparent)]
    Uri(#[from] UriError),
    /// The host of a bind address must be an IP address of this machine.
    #[error("cannot bind to {0}; use an IP address of this machine, 0.0.0.0 or [::]")]
    Host(String),
    /// The control port cannot be listened on.
    #[error("cannot listen for control connections on {addr}: {source}{}", hint(.addr, source))]
    Control {
        /// Where.
        addr: String,
        /// Why.
        source: io::Error,
    },
    /// The transport cannot be opened.
    #[error(transparent)]
    Transport(#[from] courser_net::OpenError),
    /// A setting is out of its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A time of [`Config`](crate::Config) is out of its range.
    #[error("Config::{name} is {value:?}; set it {range}")]
    Duration {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: std::time::Duration,
        /// The allowed range.
        range: &'static str,
    },
    /// Message memory cannot be set up.
    #[error("cannot set up message memory: {0}")]
    Memory(String),
    /// The system refused a descriptor or a thread.
    #[error(
        "the system refused a descriptor or a thread: {0}; raise its limits (`ulimit -n`, `ulimit -u`)"
    )]
    System(#[from] io::Error),
    /// A number of [`Config`](crate::Config) is out of its range.
    #[error("Config::{name} is {value}; set it {range}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The allowed range.
        range: &'static str,
    },
    /// The process was forked from that of the nexus.
    #[error("{FORKED}")]
    Forked,
    /// Every endpoint number is taken.
    #[error("a nexus has at most 65,535 endpoints; bind another nexus")]
    TooManyEndpoints,
}

fn hint(addr: &str, e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::InvalidInput
            if addr.parse().is_ok_and(|addr| control::needs_zone(&addr)) =>
        {
            " (each link may have a link-local address); write its interface, as in [fe80::1%eth0]"
        }
        io::ErrorKind::AddrInUse => " (another process has the port); choose another, or port 0",
        io::ErrorKind::AddrNotAvailable => "; use an address of this machine (`ip addr`)",
        io::ErrorKind::PermissionDenied => " (ports below 1024 need root); choose a higher one",
        _ => "; check the address and the limit of open files (`ulimit -n`)",
    }
}

/// Why a session is not, or no longer, connected.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_local(async |local, uri| {
/// use courser::SessionError;
///
/// // No server listens on this port.
/// let error = local.connect("udp://127.0.0.1:1").await.unwrap_err();
/// assert!(matches!(error, SessionError::Dial(_)), "{error:?}");
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The address cannot be read.
    #[error(transparent)]
    Uri(#[from] UriError),
    /// The address is of another transport than the endpoint.
    #[error("an endpoint on {ours} cannot connect to a {theirs} address; bind a nexus to {theirs}")]
    Scheme {
        /// The endpoint's transport.
        ours: &'static str,
        /// The address's.
        theirs: String,
    },
    /// A limit of this endpoint.
    #[error(transparent)]
    Local(#[from] ConnectError),
    /// The server's control port could not be reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The server refused.
    #[error("the server refused the session: {0}")]
    Refused(#[from] ConnectRefuseReason),
    /// The datapath address cannot be reached.
    #[error("no datapath to the server: {0}")]
    Path(String),
    /// The server's control port answers, but the endpoint does not.
    #[error(
        "{server} accepted the control connection but none of its endpoints answered within \
         {after_ms} ms; check that the thread of the endpoint runs its event loop"
    )]
    Timeout {
        /// The server.
        server: String,
        /// How long it was given, ms.
        after_ms: u64,
    },
    /// The peer failed, or its control connection broke.
    #[error("the peer failed: {0}")]
    PeerFailed(#[from] LostReason),
    /// The server's endpoint was closed.
    #[error("the server has closed its endpoint; connect to another endpoint or server")]
    EndpointGone,
    /// The server ended the session before its first call, to make room for another one or for
    /// another control connection.
    #[error(
        "the server ended the session, which had made no call, to make room for another; connect \
         again when there are calls to make, or raise the server's max_sessions"
    )]
    Evicted,
    /// The control connection lives, but the datapath answers nothing.
    #[error(
        "no packet arrives from {datapath} although its control connection is up; {}",
        silent_advice(scheme, *packet)
    )]
    DatapathSilent {
        /// The transport.
        scheme: &'static str,
        /// The server's datapath address.
        datapath: String,
        /// Data bytes per packet.
        packet: u16,
    },
    /// The session is still being connected, and in virtual time no function can block for it.
    #[error("{NO_WAITING}")]
    VirtualTime,
    /// The process was forked from that of the endpoint.
    #[error("{FORKED}")]
    Forked,
    /// There is no such session.
    #[error("the session was closed, or ended long ago; try again with a new one")]
    Gone,
}

fn silent_advice(scheme: &str, packet: u16) -> String {
    match scheme {
        "shm" => "check that the threads of its endpoints run, and its limit of open files (`ulimit -n`) \
                  and of memory, which a new peer needs"
            .to_owned(),
        _ => format!(
            "check that firewalls pass UDP to this port, that a translation of addresses (NAT) or a proxy on \
             the way maps it, and that the path carries packets of {packet} data bytes (Config::max_frame \
             lowers them)"
        ),
    }
}

impl SessionError {
    /// Returns whether a later connect may succeed without a change of this program: the server is
    /// not there, or not ready.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            SessionError::Dial(e) => {
                let refused = |e: &ControlError| matches!(e, ControlError::Refused(_));
                // An interface may come up, as an address may.
                matches!(
                    e,
                    DialError::Connect { .. } | DialError::Timeout { .. } | DialError::Zone(_)
                ) || matches!(e, DialError::Handshake { cause, .. } if refused(cause))
            }
            SessionError::Refused(_)
            | SessionError::Timeout { .. }
            | SessionError::PeerFailed(_)
            | SessionError::EndpointGone
            | SessionError::Evicted
            | SessionError::DatapathSilent { .. } => true,
            _ => false,
        }
    }

    /// The kind of the cause, as calls on the session report it ([`crate::CallError::NotConnected`]).
    pub fn end(&self) -> SessionEnd {
        match self {
            SessionError::Dial(_) => SessionEnd::Unreachable,
            SessionError::Timeout { .. } => SessionEnd::Unanswered,
            SessionError::Refused(reason) => SessionEnd::Refused(*reason),
            SessionError::Path(_) | SessionError::Uri(_) | SessionError::Scheme { .. } => {
                SessionEnd::NoPath
            }
            SessionError::PeerFailed(_) => SessionEnd::PeerFailed,
            SessionError::EndpointGone => SessionEnd::EndpointGone,
            SessionError::Evicted => SessionEnd::Evicted,
            SessionError::DatapathSilent { .. } => SessionEnd::DatapathSilent,
            SessionError::Local(ConnectError::BadAnswer) => SessionEnd::BadAnswer,
            SessionError::Local(ConnectError::Closed) => SessionEnd::Closed,
            SessionError::Local(_)
            | SessionError::VirtualTime
            | SessionError::Forked
            | SessionError::Gone => SessionEnd::Unknown,
        }
    }
}

/// A call that did not start: nothing was queued or sent. Returns the request buffer.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_rpc(|mut rpc, uri| {
/// use courser::RejectReason;
///
/// let session = rpc.connect(&uri)?;
/// rpc.close(session);
/// let request = rpc.alloc(3)?;
/// // A session that is gone takes no calls; the buffer returns.
/// let rejected = rpc.call(session, ECHO, request, |_, _| {}).unwrap_err();
/// println!("{}", rejected.reason);
/// assert_eq!(rejected.request.len(), 3);
/// # Ok(()) }) }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct CallRejected {
    /// The reason, with what to do.
    pub reason: RejectReason,
    /// The request buffer.
    pub request: MsgBuf,
}

/// Why a worker handler could not be registered.
///
/// ```
/// use courser::{Config, Nexus, WorkerError};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config { workers: 0, ..Config::default() };
/// let mut rpc = Nexus::bind_with("udp://127.0.0.1:0", config)?.endpoint()?;
/// let error = rpc.on_worker(1, |work| work.reply("done")).unwrap_err();
/// assert!(matches!(error, WorkerError::Disabled));
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// `Config::workers` is 0.
    #[error("Config::workers is 0; set it to at least 1, or register the handler with Rpc::on")]
    Disabled,
    /// The system refused a thread.
    #[error("no worker thread could be started: {0}; raise the limit of threads (`ulimit -u`)")]
    Threads(#[source] io::Error),
}

/// Why an event loop ended.
///
/// Example: [`ServerError`](crate::ServerError).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The system's poll failed.
    #[error("waiting for packets failed: {0}; drop the endpoint and make a new one")]
    Wait(#[from] io::Error),
    /// The nexus was made with [`crate::Nexus::bind_in`]. Virtual time stands still while a function
    /// blocks.
    #[error("{NO_WAITING}")]
    VirtualTime,
    /// The process was forked from that of the endpoint.
    #[error("{FORKED}")]
    Forked,
}

/// A copy of an endpoint has its cookies and frame numbers.
pub(crate) const FORKED: &str = "this process was forked from the one that made the nexus, which still uses its \
     sockets and sessions; bind a nexus of its own in each process";

/// The advice for calls that would block.
const NO_WAITING: &str = "in virtual time the simulation drives the event loop; return from here and \
     use callbacks, or tasks of Local::spawn";
