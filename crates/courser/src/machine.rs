//! The machine under a nexus: clock, random bits, transports, control connections, threads (ADR 12).
//!
//! In production it is the operating system. In a simulation it implements [`Machine`]: then no part
//! of a nexus reads a clock, draws randomness, opens a descriptor or starts a thread. The machine
//! turns the [`ControlLoop`] and runs the jobs of the [`VirtualWorkers`], and the owner of an
//! endpoint calls [`crate::Rpc::poll`]. The code is that of production.
//!
//! # Duties of the simulation
//! * An endpoint is polled when it was woken ([`Machine::wake`]), when its transport has a frame,
//!   and at [`crate::Rpc::next_deadline_ns`], which counts from when the endpoint was made; each
//!   time until `poll` returns false.
//! * The control loop is turned when it was woken, when its listener or one of its streams has
//!   something, and when its [`Turn::due`] has come.
//! * A job is taken from the workers when they were woken, and when one of them has ended its job.
//! * Calls of a [`Machine`] come from within `poll`, `turn` and `run`. They only record: none of
//!   them may call back into the nexus, its endpoints, its control loop or its workers.
//!
//! Objects that a nexus passes to its machine hold the machine weakly, so that there is no cycle.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use courser_net::{AnyTransport, BindSpec, OpenError};
use courser_proto::RequestId;

/// A thread of a nexus, as the machine knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Thread {
    /// Runs the [`ControlLoop`].
    Control,
    /// Runs the endpoint of this number.
    Endpoint(u16),
    /// The worker threads, all together.
    Workers,
}

/// A simulated machine, as a nexus uses it.
///
/// All methods are called from the one thread that drives the simulation; the bounds only say that
/// a [`crate::Nexus`] stays `Send` and `Sync`.
pub trait Machine: Send + Sync + fmt::Debug {
    /// The clock of a thread. All clocks of a machine count from the same zero.
    fn clock(&self, thread: Thread) -> Arc<VirtualClock>;

    /// 64 random bits, of the simulation's seed.
    fn random_u64(&self) -> u64;

    /// Opens the datapath of the endpoint of this number. The settings of `spec`
    /// come from [`crate::Config`]; those that do not apply may be ignored. The transport's scheme must be that of the address which the nexus was
    /// bound to.
    ///
    /// # Errors
    /// The address is taken or cannot be used. A nexus that was bound to port 0 tries any port
    /// when [`OpenError::is_in_use`].
    fn open(&self, endpoint: u16, spec: &BindSpec) -> Result<AnyTransport, OpenError>;

    /// The addresses of a host name, at once. Addresses that are written out do not come here.
    ///
    /// # Errors
    /// The name is unknown.
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;

    /// Listens for control connections (port 0: any). `wake(Thread::Control)` belongs to it.
    ///
    /// # Errors
    /// The address is taken.
    fn listen(&self, bind: SocketAddr) -> io::Result<(Box<dyn Listener>, SocketAddr)>;

    /// Takes the control loop, to call [`ControlLoop::turn`] when it was woken, when its listener
    /// or one of its streams has something, and when the time comes that it gave. It is dropped
    /// after the turn that ends it, or when the process dies.
    fn start_control(&self, control: ControlLoop);

    /// Takes the worker handlers, to be run by `threads` virtual threads; called by the first
    /// [`crate::Rpc::on_worker`] of the nexus. They are dropped when the process ends or dies.
    fn start_workers(&self, workers: VirtualWorkers, threads: usize);

    /// Another thread has queued work for this one: mail, a command, a job. Called at least once
    /// before the thread takes it.
    fn wake(&self, thread: Thread);

    /// A dispatch handler of an endpoint is about to run, of a request or, `None`, of a one-way
    /// message. The machine charges its cost to the thread's clock and may keep account of what was
    /// executed. Worker handlers are reported by [`VirtualJob`].
    fn handler_runs(&self, endpoint: u16, number: u16, request: Option<RequestId>);
}

/// A listening socket for control connections.
pub trait Listener: Send {
    /// The next connection that waits; `WouldBlock` when there is none.
    ///
    /// # Errors
    /// `WouldBlock`, or the error of the system.
    fn accept(&mut self) -> io::Result<(Box<dyn Stream>, SocketAddr)>;

    /// Begins a connection; the stream is usable once [`Stream::connected`] returns true.
    ///
    /// # Errors
    /// The address cannot be reached at all.
    fn connect(&mut self, to: SocketAddr) -> io::Result<Box<dyn Stream>>;

    /// Adds the tokens of streams that have become readable, writable, connected or broken since
    /// the last call. Edge-triggered, as with epoll.
    fn ready(&mut self, tokens: &mut Vec<u64>);
}

/// A control connection: a reliable byte stream. Dropping it closes it.
pub trait Stream: io::Read + io::Write + Send + fmt::Debug {
    /// Readiness is announced by this token from now on, beginning with what is ready already.
    fn register(&mut self, token: u64);

    /// Returns whether the connection stands; `None`: not yet.
    ///
    /// # Errors
    /// It failed: refused, no route, reset.
    fn connected(&mut self) -> io::Result<Option<()>>;

    /// This side's address.
    ///
    /// # Errors
    /// Not connected.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Dropping it resets the connection instead of closing it.
    fn abort_on_close(&self);
}

/// A thread's clock in virtual time: what the machine's oscillator shows, plus what the thread
/// has spent since it last began to run.
#[derive(Debug, Default)]
pub struct VirtualClock {
    now_ns: AtomicU64,
}

impl VirtualClock {
    /// Now, ns since the machine's zero.
    pub fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    /// Sets it. It does not go back: a time that is over already leaves it as it is.
    pub fn set(&self, now_ns: u64) {
        self.now_ns.fetch_max(now_ns, Ordering::Relaxed);
    }

    /// Lets time pass for the thread that runs.
    pub fn spend(&self, ns: u64) {
        self.now_ns.store(self.now_ns().saturating_add(ns), Ordering::Relaxed);
    }
}

/// The result of a turn of the control loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// When the next turn has something to do by itself, in the time of the clock of
    /// [`Thread::Control`], ns; a time that has come already: at once. `None`: not until something
    /// happens.
    pub due: Option<u64>,
    /// The nexus is gone, and with it all of its connections: the loop is to be dropped.
    pub ended: bool,
}

/// The control plane behind a [`ControlLoop`].
pub(crate) trait ControlPlane: Send + fmt::Debug {
    /// See [`ControlLoop::turn`].
    fn turn(&mut self) -> Turn;
}

/// A nexus's control thread, in the hands of a simulated machine. Dropping it before it has ended
/// drops all connections, as the death of the process would.
#[derive(Debug)]
pub struct ControlLoop {
    plane: Box<dyn ControlPlane>,
}

impl ControlLoop {
    pub(crate) fn new(plane: impl ControlPlane + 'static) -> Self {
        ControlLoop { plane: Box::new(plane) }
    }

    /// One pass of the control thread: takes what its streams and its queue have, within limits,
    /// and does what is due. Never blocks.
    pub fn turn(&mut self) -> Turn {
        self.plane.turn()
    }
}

/// The queue behind [`VirtualWorkers`].
pub(crate) trait JobQueue: Send + Sync {
    /// See [`VirtualWorkers::next`].
    fn next(&self) -> Option<VirtualJob>;
}

/// The worker handlers of a nexus, in the hands of a simulated machine.
pub struct VirtualWorkers {
    queue: Box<dyn JobQueue>,
}

impl VirtualWorkers {
    pub(crate) fn new(queue: impl JobQueue + 'static) -> Self {
        VirtualWorkers { queue: Box::new(queue) }
    }

    /// The next request to execute, in the order of production. Requests without a caller are
    /// answered and skipped. `None`: none is queued, or the nexus and all of its endpoints are gone.
    pub fn next(&self) -> Option<VirtualJob> {
        self.queue.next()
    }
}

impl fmt::Debug for VirtualWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualWorkers").finish_non_exhaustive()
    }
}

/// A request or message that a virtual worker thread has begun to execute. The handler itself takes no
/// virtual time: a simulation that models a service time calls [`VirtualJob::run`] after it. Dropped,
/// it counts as a handler without an answer.
#[must_use = "a job that is not run is answered with an error"]
pub struct VirtualJob {
    pub(crate) req_type: u16,
    pub(crate) request: Option<RequestId>,
    pub(crate) endpoint: u16,
    /// Runs the handler. It holds the request, so dropping it answers the request with an error.
    pub(crate) handler: Box<dyn FnOnce() + Send>,
}

impl VirtualJob {
    /// The type of the request.
    pub fn req_type(&self) -> u16 {
        self.req_type
    }

    /// The request; `None` for a one-way message.
    pub fn request(&self) -> Option<RequestId> {
        self.request
    }

    /// The number of the endpoint that it came to.
    pub fn endpoint(&self) -> u16 {
        self.endpoint
    }

    /// Runs the handler. Its panics are caught and counted, as those on a thread.
    pub fn run(self) {
        (self.handler)();
    }
}

impl fmt::Debug for VirtualJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualJob")
            .field("endpoint", &self.endpoint)
            .field("req_type", &self.req_type)
            .finish_non_exhaustive()
    }
}
