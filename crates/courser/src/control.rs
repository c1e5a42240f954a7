//! The control plane's driver: one management thread per nexus that speaks TCP (E66, F13).
//!
//! What the two sides of a handshake decide is `courser-proto`'s; this module carries their
//! messages. It knows connections and endpoints, not sessions, and sees no packet of the datapath.
//!
//! ```text
//! endpoint threads                 control thread "courser-control"            other nexuses
//! Control::send(Command) --------> driver  --- conn: greeting, framing ------> TCP
//! Mailbox::take_all(..)    <------ route   <-- conn -------------------------- TCP
//!                                  dial    --- resolver threads, attempts
//! ```
//! An endpoint's event loop pays one load per pass for this ([`Mailbox::has_mail`]).
//!
//! Everything has a limit ([`Limits`]): connections in either direction and of one host, the time
//! of a greeting and of a dial, the time that an open connection may be silent, bytes that a peer
//! has not read, mail that an endpoint has not taken. What comes from outside never ends more than
//! the connection that it came by.
//!
//! The driver is generic over its network and has its clock from outside: on a simulated machine
//! the same code runs in virtual time, turned by the machine ([`virtual_time`]).
//!
//! Peers that fail (E66): the kernel of a process that ends, however it ends, closes or resets the
//! connection, which is noticed at once. For a process that stands still, or a machine or network
//! that is dead, there are heartbeats (`courser_proto::Heartbeat`) in both directions.

mod conn;
mod dial;
mod driver;
mod mailbox;
mod network;
mod route;
mod tcp;
#[cfg(test)]
mod tests;
mod upkeep;
mod virtual_time;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use courser_proto::{ControlError, ControlMsg};

use driver::{Driver, Parts};
use tcp::Tcp;
use virtual_time::{Streams, TurnedDriver};

use crate::machine::{ControlLoop, Machine, Thread};
use crate::platform::Platform;

pub(crate) use mailbox::Mailbox;

/// What the control thread tells an endpoint.
#[derive(Debug)]
pub(crate) enum Mail {
    /// Answer to [`Command::Dial`].
    Dialed {
        /// The dial's ticket.
        ticket: u64,
        /// The connection, or why there is none.
        result: Result<Dialed, DialError>,
    },
    /// A control message for this endpoint.
    Msg {
        /// The connection it came by.
        control: u64,
        /// The other host, as this connection shows it.
        remote: IpAddr,
        /// This host, as this connection shows it.
        local: IpAddr,
        /// The message.
        msg: ControlMsg,
    },
    /// The connection is gone; every session over it has failed.
    Lost {
        /// The connection.
        control: u64,
        /// Why.
        reason: LostReason,
    },
}

/// A connection to another nexus, ready for messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dialed {
    /// Its number, never used again.
    pub(crate) control: u64,
    /// Where the other nexus listens.
    pub(crate) remote: SocketAddr,
    /// This side of the connection.
    pub(crate) local: SocketAddr,
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
        /// What the resolver said.
        cause: Arc<io::Error>,
    },
    /// No connection to the address.
    #[error("{}", connect_text(.addr, .cause))]
    Connect {
        /// The address.
        addr: SocketAddr,
        /// What the operating system said.
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
    /// Something answers there, but not in this protocol.
    #[error("{addr} answers, but no session is possible: {cause}")]
    Handshake {
        /// The address.
        addr: SocketAddr,
        /// What is wrong with the answer.
        cause: ControlError,
    },
    /// This nexus holds as many connections as it may.
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

/// What a failed connect means, and what to do about it.
fn connect_text(addr: &SocketAddr, cause: &io::Error) -> String {
    use io::ErrorKind as K;
    if is_exhausted(cause) {
        return format!("cannot connect to {addr}: {cause}; raise the limit of open files");
    }
    match cause.kind() {
        K::ConnectionRefused => {
            format!("nothing listens on {addr}; start the server there, or check the address")
        }
        K::UnexpectedEof | K::ConnectionReset | K::ConnectionAborted | K::BrokenPipe => format!(
            "{addr} closed the connection before it greeted; check that it is a Courser server and \
             below its limit of connections"
        ),
        K::HostUnreachable | K::NetworkUnreachable => {
            format!("no route to {addr}: {cause}; check the address and the network")
        }
        _ => format!("cannot connect to {addr}: {cause}; check the address and the network"),
    }
}

/// Whether an error says that descriptors or kernel memory have run out.
fn is_exhausted(e: &io::Error) -> bool {
    use rustix::io::Errno;
    let exhausted = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    e.raw_os_error().is_some_and(|code| exhausted.iter().any(|x| x.raw_os_error() == code))
}

/// Why a control connection ended.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The other side closed it: its nexus has ended.
    #[error("the other nexus closed the control connection; connect again when it is back")]
    Closed,
    /// The operating system ended it.
    #[error("the control connection broke: {0}; check the network, then connect again")]
    Io(Arc<io::Error>),
    /// The other side sent what cannot be understood.
    #[error("the control connection was closed: {0}")]
    Protocol(#[from] ControlError),
    /// The other side does not read what it is sent.
    #[error(
        "the other nexus left {pending} bytes of control messages unread; check that its process is \
         not stopped or starved of CPU time"
    )]
    NotReading {
        /// Bytes that wait.
        pending: usize,
    },
    /// Nothing was heard, not even answers to heartbeats.
    #[error(
        "the other nexus sent nothing for {after:?}, not even answers to heartbeats; check that its \
         process is not stopped or starved of CPU time, that its machine runs, and that the \
         network passes TCP, or raise Config::failure_timeout"
    )]
    Silent {
        /// How long: `Config::failure_timeout`.
        after: Duration,
    },
    /// The greeting did not arrive in time.
    #[error("the other side did not greet within {0:?}; check that it is a Courser server")]
    NoGreeting(Duration),
    /// This side closed it: no endpoint had a session over it for this long.
    #[error("no session has used the control connection for {0:?}; connect again")]
    Unused(Duration),
    /// A local endpoint does not take its mail, so that messages would be lost.
    #[error(
        "a local endpoint has not taken {pending} control messages; run its event loop more often"
    )]
    NotRunning {
        /// Mail that waits.
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

/// What endpoints ask of the control thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Makes an endpoint known; one of the same index is unregistered first.
    Register {
        /// Its number in this nexus.
        index: u16,
        /// Its random number.
        id: u64,
        /// Where its mail goes.
        mailbox: Mailbox,
        /// Whether it takes sessions from clients.
        accepts: bool,
    },
    /// Changes whether an endpoint takes sessions from clients.
    SetAccepts {
        /// Which.
        index: u16,
        /// Whether it does.
        accepts: bool,
    },
    /// Forgets an endpoint, and tells every nexus that it had to do with.
    Unregister {
        /// Which.
        index: u16,
    },
    /// Connects to another nexus, or finds the connection that there is. Answered by
    /// [`Mail::Dialed`].
    Dial {
        /// Who asks.
        index: u16,
        /// Comes back with the answer.
        ticket: u64,
        /// Name or address.
        host: String,
        /// Control port.
        port: u16,
    },
    /// Sends a message; dropped when the connection is gone, of which [`Mail::Lost`] tells.
    Send {
        /// The connection.
        control: u64,
        /// The message.
        msg: ControlMsg,
    },
    /// Ends the thread and all connections.
    Stop,
    /// Tells how full the tables are.
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
    dials: usize,
    targets: usize,
    timers: usize,
    queued: usize,
    /// Bytes of the largest buffer that waits to be written.
    pending: usize,
}

/// `Config::failure_timeout` by default: detection in less than a second.
pub(crate) const DEFAULT_FAILURE_TIMEOUT: Duration = Duration::from_millis(800);

/// Limits of a nexus's control plane.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Connections from other nexuses; one descriptor each, and about 1 KiB of this process's
    /// memory while they say nothing, 2 KiB with an unfinished message.
    pub(crate) inbound: usize,
    /// How many of them one remote address may hold, so that no host can take them all.
    pub(crate) inbound_per_host: usize,
    /// Connections to other nexuses, with dials under way.
    pub(crate) outbound: usize,
    /// Longest time from a TCP connection to the end of the greeting, inbound.
    pub(crate) greeting: Duration,
    /// How long an open connection may be silent: `Config::failure_timeout`.
    pub(crate) failure_timeout: Duration,
    /// How long a connection that was dialed stays when the last session over it has ended; up to
    /// a quarter of the failure timeout longer.
    pub(crate) unused: Duration,
    /// Longest time of a dial: name, all addresses, greeting.
    pub(crate) dial: Duration,
    /// Bytes that may wait for one peer to read: the answers to thousands of connects at once.
    pub(crate) pending_write: usize,
    /// Bytes that may wait for all peers together. Above it, a connection with more than a few
    /// kilobytes waiting is closed when it is sent more.
    pub(crate) pending_total: usize,
    /// Names that are being resolved at the same time; a thread each.
    pub(crate) resolvers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            inbound: 4096,
            inbound_per_host: 2048,
            outbound: 4096,
            greeting: Duration::from_secs(2),
            failure_timeout: DEFAULT_FAILURE_TIMEOUT,
            unused: Duration::from_secs(30),
            dial: Duration::from_secs(5),
            pending_write: 1 << 20,
            pending_total: 64 << 20,
            resolvers: 16,
        }
    }
}

/// What the control thread had to turn away, since its start.
#[derive(Default, Debug)]
pub(crate) struct Counters {
    /// Connections closed because of [`Limits::inbound`] or [`Limits::inbound_per_host`].
    pub(crate) excess_connections: AtomicU64,
    /// Inbound connections that ended before a valid greeting.
    pub(crate) failed_greetings: AtomicU64,
    /// Connections ended because of what the other side sent.
    pub(crate) protocol_errors: AtomicU64,
    /// Connections ended because nothing was heard for [`Limits::failure_timeout`].
    pub(crate) silent_peers: AtomicU64,
    /// Messages for endpoints that are not there.
    pub(crate) misdirected: AtomicU64,
    /// Sessions refused here, without asking an endpoint.
    pub(crate) refused: AtomicU64,
    /// Times that no connection could be accepted for want of descriptors or memory.
    pub(crate) exhausted: AtomicU64,
}

/// What a nexus's control plane had to turn away, since it was bound.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ControlStats {
    /// Connections closed because there were too many, in all or from their host.
    pub excess_connections: u64,
    /// Connections that ended before a valid greeting.
    pub failed_greetings: u64,
    /// Connections ended because of what the other side sent.
    pub protocol_errors: u64,
    /// Connections ended because nothing was heard for `Config::failure_timeout`.
    pub silent_peers: u64,
    /// Messages for endpoints that are not there.
    pub misdirected: u64,
    /// Sessions refused without asking an endpoint.
    pub refused: u64,
    /// Times that no connection could be accepted for want of descriptors or memory.
    pub exhausted: u64,
}

/// Adds one; nothing is ordered by counters.
fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What reaches the control thread from others.
#[derive(Debug)]
enum Event {
    Command(Command),
    /// A resolver thread has ended.
    Resolved {
        dial: u64,
        result: io::Result<Vec<SocketAddr>>,
    },
}

/// The way to the control thread for all others: a queue and a wake-up.
#[derive(Clone, Debug)]
struct Inlet {
    events: Sender<Event>,
    wake: Wake,
}

/// How the control thread is woken.
#[derive(Clone, Debug)]
enum Wake {
    Poll(Arc<mio::Waker>),
    Machine(Arc<dyn Machine>),
}

impl Inlet {
    /// Whether the control thread is there to take it.
    fn send(&self, e: Event) -> bool {
        let sent = self.events.send(e).is_ok();
        match &self.wake {
            // A wake-up can fail only when one is pending already.
            Wake::Poll(waker) => drop(waker.wake()),
            Wake::Machine(machine) => machine.wake(Thread::Control),
        }
        sent
    }
}

/// A nexus's control plane. When the last clone is dropped, the thread ends; that of a simulated
/// machine when it is turned next.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inlet: Inlet,
    counters: Arc<Counters>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    /// Listens on `bind` (port 0: any; `[::]` becomes `0.0.0.0` where there is no IPv6) and starts
    /// the thread, or hands its loop to the machine. Gives the address that it listens on.
    ///
    /// # Errors
    /// The address cannot be bound, or descriptors or threads have run out.
    pub(crate) fn start(
        platform: &Platform,
        bind: SocketAddr,
        limits: Limits,
    ) -> io::Result<(Control, SocketAddr)> {
        let counters = Arc::new(Counters::default());
        let (events, queue) = mpsc::channel();
        let clock = platform.clock(Thread::Control);
        let shared = Parts { queue, limits, counters: counters.clone(), clock };
        let (inlet, thread, bound) = match platform {
            Platform::System => {
                let (tcp, bound) = Tcp::listen(bind, events)?;
                let inlet = tcp.inlet();
                let driver = Driver::new(tcp, shared);
                let thread = std::thread::Builder::new().name("courser-control".into());
                (inlet, Some(thread.spawn(move || driver.run())?), bound)
            }
            Platform::Virtual(machine) => {
                let (streams, bound) = Streams::listen(machine, bind)?;
                let driver = TurnedDriver::new(Driver::new(streams, shared));
                machine.start_control(ControlLoop::new(driver));
                (Inlet { events, wake: Wake::Machine(machine.clone()) }, None, bound)
            }
        };
        let thread = Mutex::new(thread);
        Ok((Control { shared: Arc::new(Shared { inlet, counters, thread }) }, bound))
    }

    /// Hands a command to the thread; false when it has ended.
    pub(crate) fn send(&self, c: Command) -> bool {
        self.shared.inlet.send(Event::Command(c))
    }

    /// What was turned away so far.
    pub(crate) fn stats(&self) -> ControlStats {
        let c = &self.shared.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ControlStats {
            excess_connections: read(&c.excess_connections),
            failed_greetings: read(&c.failed_greetings),
            protocol_errors: read(&c.protocol_errors),
            silent_peers: read(&c.silent_peers),
            misdirected: read(&c.misdirected),
            refused: read(&c.refused),
            exhausted: read(&c.exhausted),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.inlet.send(Event::Command(Command::Stop));
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the control thread had panicked");
        }
    }
}
