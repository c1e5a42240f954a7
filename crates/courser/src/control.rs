//! The control plane: one control thread per nexus that exchanges control messages over TCP, or over
//! Unix sockets where the transport stays on the machine (E66, ADR 13).
//!
//! The handshake's state machines are in `courser-proto`; this module transports their messages. It
//! handles connections and endpoints, not sessions, and no packet of the datapath.
//!
//! ```text
//! endpoint threads                 control thread "courser-control"            other nexuses
//! Control::send(Command) --------> driver  --- conn: greeting, framing ------> sockets
//! Mailbox::take_all(..)    <------ route   <-- conn -------------------------- sockets
//!                                  dial    --- resolver threads, attempts
//! ```
//! The event loop of an endpoint pays one load per pass for the control plane
//! ([`Mailbox::has_mail`]).
//!
//! Everything has a limit ([`Limits`]): inbound and outbound connections, connections per host, the
//! duration of a greeting and of a dial, the silence of an open connection, unread bytes per peer,
//! and messages in an endpoint's mailbox. Invalid input ends at most the connection that it arrived
//! on.
//!
//! The driver is generic over its network and its clock: on a simulated machine, which calls
//! [`virtual_time`], the same code runs in virtual time.
//!
//! Failed peers (E66): when a process ends, for whatever reason, its kernel closes or resets the
//! connection, and the failure is detected at once. Heartbeats (`courser_proto::Heartbeat`) in both
//! directions detect a stopped process, a dead machine and a broken network.

mod conn;
mod dial;
mod driver;
pub(crate) mod mailbox;
mod network;
mod route;
mod scarce;
mod sockets;
#[cfg(test)]
mod tests;
mod upkeep;
mod virtual_time;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use courser_net::{ControlSockets, ThisProcess, is_exhausted};
use courser_proto::{ControlError, ControlMsg};

use driver::{Driver, Parts};
use sockets::{ListenError, Sockets};
use virtual_time::{SimDriver, Streams};

use crate::counters::{count, shared_stats};
use crate::error::BindError;
use crate::machine::{ControlLoop, Machine, Thread};
use crate::platform::Platform;

use mailbox::Mailbox;

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
        remote: IpAddr,
        /// The address of this host on this connection.
        local: IpAddr,
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
        /// The address whose connections are scarce; `None`: those of all.
        host: Option<IpAddr>,
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

/// Why another nexus could not be reached.
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
        K::HostUnreachable | K::NetworkUnreachable => {
            format!(
                "no route to {addr}, or a firewall rejects the connection: {cause}; check the address \
                 and the network"
            )
        }
        _ => format!("cannot connect to {addr}: {cause}; check the address and the network"),
    }
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

/// A command of an endpoint to the control thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Adds an endpoint. An endpoint with the same index is unregistered first.
    Register {
        /// Its number in this nexus.
        index: u16,
        /// Its random number.
        id: u64,
        /// Its mailbox.
        mailbox: Mailbox,
        /// Whether it accepts sessions from clients.
        accepts: bool,
    },
    /// Changes whether an endpoint accepts sessions from clients.
    SetAccepts {
        /// The endpoint.
        index: u16,
        /// The new value.
        accepts: bool,
    },
    /// Removes an endpoint and notifies every nexus that exchanged messages with it.
    Unregister {
        /// The endpoint.
        index: u16,
    },
    /// Connects to another nexus, or reuses the connection to it. Answered by [`Mail::Dialed`].
    Dial {
        /// The endpoint.
        index: u16,
        /// Identifies the answer.
        ticket: u64,
        /// Name or address.
        host: String,
        /// Control port.
        port: u16,
    },
    /// Sends a message. It is dropped when the connection is gone; [`Mail::Lost`] reports that.
    Send {
        /// The connection.
        control: u64,
        /// The message.
        msg: ControlMsg,
    },
    /// The answer to [`Mail::Unanswered`].
    SignOfLife {
        /// The connection.
        control: u64,
        /// When the last frame of its other side arrived.
        at: Instant,
    },
    /// Ends the thread and all connections.
    Stop,
    /// Returns the sizes of the tables.
    #[cfg(test)]
    Inspect(Sender<Tables>),
}

/// Entries of the control thread's tables.
#[cfg(test)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Tables {
    conns: usize,
    inbound: usize,
    hosts: usize,
    idle: usize,
    dials: usize,
    targets: usize,
    timers: usize,
    queued: usize,
    /// Size of the largest write buffer, bytes.
    pending: usize,
}

/// `Config::failure_timeout` by default: detection in less than a second.
pub(crate) const DEFAULT_FAILURE_TIMEOUT: Duration = Duration::from_millis(800);

/// Limits of a nexus's control plane.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Connections from other nexuses. Each takes one descriptor and about 1 KiB of memory, or 2
    /// KiB while a message is incomplete.
    pub(crate) inbound: usize,
    /// Inbound connections from one remote address, so that one host cannot use up `inbound`.
    pub(crate) inbound_per_host: usize,
    /// Connections to other nexuses, including dials.
    pub(crate) outbound: usize,
    /// Time from the TCP connection to the end of the greeting, inbound.
    pub(crate) greeting: Duration,
    /// Time without received bytes after which an open connection has failed:
    /// `Config::failure_timeout`.
    pub(crate) failure_timeout: Duration,
    /// Time that an outbound connection is kept after its last session has ended. The check may
    /// come up to a quarter of the failure timeout later.
    pub(crate) unused: Duration,
    /// Time without a session after which an inbound connection may be closed for another one, when
    /// connections are scarce. Also the least time from one [`Mail::Scarce`] to the next.
    pub(crate) idle: Duration,
    /// Time of a dial: name resolution, all addresses, greeting.
    pub(crate) dial: Duration,
    /// Unsent bytes of one connection: enough for answers to thousands of connects at once.
    pub(crate) pending_write: usize,
    /// Unsent bytes of all connections. Above it, a connection with more than a few kilobytes of
    /// unsent bytes is closed when another message is sent on it.
    pub(crate) pending_total: usize,
    /// Concurrent name resolutions, each in a thread.
    pub(crate) resolvers: usize,
}

/// `Config::max_connections` by default.
pub(crate) const DEFAULT_CONNECTIONS: usize = 4096;

impl Default for Limits {
    fn default() -> Self {
        Limits {
            inbound: DEFAULT_CONNECTIONS,
            inbound_per_host: DEFAULT_CONNECTIONS / 2,
            outbound: 4096,
            greeting: Duration::from_secs(2),
            failure_timeout: DEFAULT_FAILURE_TIMEOUT,
            unused: Duration::from_secs(30),
            idle: Duration::from_millis(500),
            dial: Duration::from_secs(5),
            pending_write: 1 << 20,
            pending_total: 64 << 20,
            resolvers: 16,
        }
    }
}

shared_stats! {
    /// Counters of connections and messages that a nexus's control plane rejected since it was bound.
    #[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
    #[non_exhaustive]
    pub struct ControlStats: "control plane" {
        /// Connections closed because there were too many, in total or from their host.
        pub excess_connections: u64 = counter(connections),
        /// Connections that ended before a valid greeting.
        pub failed_greetings: u64 = counter(connections),
        /// Connections closed because the other side sent invalid bytes.
        pub protocol_errors: u64 = counter(connections),
        /// Connections closed because nothing was received for `Config::failure_timeout`.
        pub silent_peers: u64 = counter(connections),
        /// Messages for endpoints that do not exist.
        pub misdirected: u64 = counter(messages),
        /// Sessions refused by the control thread, without an endpoint.
        pub refused: u64 = counter(sessions),
        /// Failed accepts because descriptors or memory had run out.
        pub exhausted: u64 = counter(accepts),
        /// Connections without a session that were closed for others, as there were too many in total or
        /// from their host.
        pub evicted_connections: u64 = counter(connections),
    }

    /// The counters of the control thread.
    pub(crate) shared Counters;
}

/// An input of the control thread.
#[derive(Debug)]
enum Event {
    Command(Command),
    /// A resolver thread has ended.
    Resolved {
        dial: u64,
        result: io::Result<Vec<SocketAddr>>,
    },
}

/// The sending side of the control thread's queue, with its wake-up.
#[derive(Clone, Debug)]
struct Inlet {
    events: Sender<Event>,
    wake: Wake,
}

/// The wake-up of the control thread.
#[derive(Clone, Debug)]
enum Wake {
    Poll(Arc<mio::Waker>),
    Machine(Arc<dyn Machine>),
}

impl Inlet {
    /// Returns false when the control thread has ended.
    fn send(&self, e: Event) -> bool {
        let sent = self.events.send(e).is_ok();
        match &self.wake {
            // A wake-up fails only when another one is pending.
            Wake::Poll(waker) => drop(waker.wake()),
            Wake::Machine(machine) => machine.wake(Thread::Control),
        }
        sent
    }
}

/// A nexus's control plane. The thread ends when the last clone is dropped; on a simulated machine
/// the loop ends at its next turn.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    process: ThisProcess,
    inlet: Inlet,
    counters: Arc<Counters>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    /// Listens on `bind` (port 0: any; `[::]` becomes `0.0.0.0` on a host without IPv6) and starts
    /// the thread, or passes its loop to the machine. Returns the bound address.
    ///
    /// # Errors
    /// The address cannot be bound, or descriptors or threads have run out.
    pub(crate) fn start(
        platform: &Platform,
        sockets: &ControlSockets,
        bind: SocketAddr,
        limits: Limits,
    ) -> Result<(Control, SocketAddr), BindError> {
        let cannot = |source| BindError::Control { addr: bind.to_string(), source };
        let counters = Arc::new(Counters::default());
        let (events, queue) = mpsc::channel();
        let clock = platform.clock(Thread::Control);
        let shared = Parts { queue, limits, counters: counters.clone(), clock };
        let (inlet, thread, bound) = match platform {
            Platform::System => {
                let listening = Sockets::listen(sockets, bind, events);
                let (sockets, bound) = listening.map_err(|e| match e {
                    ListenError::Tcp(source) => cannot(source),
                    ListenError::Unix(e) => e.into(),
                    ListenError::Poll(e) => e.into(),
                })?;
                let inlet = sockets.inlet();
                let driver = Driver::new(sockets, shared);
                let thread = std::thread::Builder::new().name("courser-control".into());
                (inlet, Some(thread.spawn(move || driver.run())?), bound)
            }
            Platform::Virtual(machine) => {
                let (streams, bound) = Streams::listen(machine, bind).map_err(cannot)?;
                let driver = SimDriver::new(Driver::new(streams, shared));
                machine.start_control(ControlLoop::new(driver));
                (Inlet { events, wake: Wake::Machine(machine.clone()) }, None, bound)
            }
        };
        let thread = Mutex::new(thread);
        let process = ThisProcess::new();
        Ok((Control { shared: Arc::new(Shared { process, inlet, counters, thread }) }, bound))
    }

    /// Sends a command to the thread. Returns false when the thread has ended.
    pub(crate) fn send(&self, c: Command) -> bool {
        self.shared.inlet.send(Event::Command(c))
    }

    /// The counters.
    pub(crate) fn stats(&self) -> ControlStats {
        self.shared.counters.read()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.process.was_forked() {
            // A forked process has no such thread: a join would never end.
            return std::mem::forget(thread);
        }
        self.inlet.send(Event::Command(Command::Stop));
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the control thread had panicked");
        }
    }
}
