//! The nexus: a process's address, and the maker of its endpoints (`[eRPC App. B]`, E66).

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use courser_net::{
    AnyTransport, BindSpec, CommonOptions, OpenError, ThisProcess, Transport, Uri, any, host_of,
};

use crate::config::Config;
use crate::control::{Control, ControlStats, Limits};
use crate::error::BindError;
use crate::machine::Machine;
use crate::platform::Platform;
use crate::run::endpoint::{Events, Handlers, Rpc, Shared};
use crate::run::links::Links;
use crate::run::worker::{Pool, WorkerStats};

/// A process's address: listens for control connections and makes endpoints, one per thread.
/// Threads share it by reference.
///
/// Dropping it does not end its endpoints. Its worker threads end when the nexus and all its
/// endpoints are dropped: sleeping ones at once, others when their handler returns. The drop does
/// not wait for them.
///
/// ```
/// use courser::Nexus;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let nexus = Nexus::bind("udp://127.0.0.1:0")?;
/// // One endpoint for each thread, at the addresses `udp://host:port/0` and `udp://host:port/1`.
/// let (first, second) = (nexus.endpoint()?, nexus.endpoint()?);
/// assert_eq!((first.index(), second.index()), (0, 1));
/// println!("clients connect to {}", nexus.local_uri());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Nexus {
    uri: Uri,
    bound: SocketAddr,
    config: Config,
    platform: Platform,
    control: Control,
    next_index: AtomicU16,
    workers: Pool,
    links: Links,
    /// The process that made it.
    process: ThisProcess,
}

impl Nexus {
    /// Listens on an address, for example `udp://0.0.0.0:31850`, or `shm://127.0.0.1:31850` for
    /// clients of the same machine and user. Port 0 selects a free port, for clients.
    ///
    /// # Errors
    /// The address cannot be read or listened on.
    pub fn bind(uri: &str) -> Result<Nexus, BindError> {
        Nexus::bind_with(uri, Config::default())
    }

    /// [`Nexus::bind`] with settings.
    ///
    /// # Errors
    /// The address cannot be read or listened on, or a setting is out of range.
    pub fn bind_with(uri: &str, config: Config) -> Result<Nexus, BindError> {
        Nexus::bind_on(Platform::System, uri, config)
    }

    /// [`Nexus::bind_with`] on a simulated machine in place of the operating system: see
    /// [`crate::parts::machine`]. The host may also be a name that
    /// [`Machine::resolve`] knows. `Config::workers` should be set, since its default depends on
    /// the computer that simulates; `spin`, `socket_buffer` and `transport` mean nothing here.
    ///
    /// Blocking functions ([`Rpc::run`], [`Rpc::wait_connected`], [`Rpc::shutdown`]) fail
    /// with [`crate::RunError::VirtualTime`]; there is no [`Rpc::event_fd`].
    ///
    /// # Errors
    /// As [`Nexus::bind_with`].
    pub fn bind_in(
        machine: Arc<dyn Machine>,
        uri: &str,
        config: Config,
    ) -> Result<Nexus, BindError> {
        Nexus::bind_on(Platform::Virtual(machine), uri, config)
    }

    fn bind_on(platform: Platform, uri: &str, config: Config) -> Result<Nexus, BindError> {
        config.validate()?;
        let uri: Uri = uri.parse()?;
        let addr = bind_addr(&platform, &uri)?;
        any::check_host(&uri.scheme, addr.ip())?;
        let spec = BindSpec { options: config.transport.clone(), ..uri.clone().into() };
        any::check_options(&spec)?;
        let sockets = any::control_sockets(&spec)?;
        let limits = Limits {
            failure_timeout: config.failure_timeout,
            inbound: config.max_connections,
            inbound_per_host: config.max_connections_per_address,
            // Its error names the cause, so it comes before the endpoint's own time-out.
            dial: config.connect_timeout - config.connect_timeout / 16,
            ..Limits::default()
        };
        let (control, bound) = Control::start(&platform, &sockets, addr, limits)?;
        let workers = Pool::new(&platform, config.workers, config.worker_queue);
        let next_index = AtomicU16::new(0);
        let links = Links::default();
        let process = ThisProcess::new();
        Ok(Nexus { uri, bound, config, platform, control, next_index, workers, links, process })
    }

    /// Makes this thread an endpoint on the transport that the address names. Endpoint `N` of a
    /// nexus that was bound to port `P` has datapath port `P + N`; of one that was bound to port 0,
    /// any free port.
    ///
    /// # Errors
    /// The transport cannot be opened, or a setting is out of range.
    pub fn endpoint(&self) -> Result<Rpc, BindError> {
        self.endpoint_with(|transport| transport)
    }

    /// [`Nexus::endpoint`] with a wrapper around the transport, for example a
    /// [`FaultTransport`](courser_net::FaultTransport) that loses frames on purpose.
    ///
    /// # Errors
    /// As [`Nexus::endpoint`].
    pub fn endpoint_with<T: Transport>(
        &self,
        wrap: impl FnOnce(AnyTransport) -> T,
    ) -> Result<Rpc<T>, BindError> {
        let index = self.next_index()?;
        self.counting(self.make(wrap(self.open(index)?), index, Handlers::default())?)
    }

    /// Makes an endpoint for an application that needs no thread of its own.
    pub(crate) fn endpoint_of<A: Events>(
        &self,
        handlers: A::Handlers,
    ) -> Result<Rpc<AnyTransport, A>, BindError> {
        let index = self.next_index()?;
        self.make(self.open(index)?, index, handlers)
    }

    /// Opens the transport of an endpoint.
    fn open(&self, index: u16) -> Result<AnyTransport, BindError> {
        let wanted = self.bound.port().checked_add(index).unwrap_or(0);
        let wanted = self.bind_spec(wanted);
        let open = |spec: &BindSpec| match &self.platform {
            Platform::System => any::open(spec),
            Platform::Virtual(machine) => machine.open(index, spec),
        };
        Ok(match open(&wanted) {
            Err(e) if e.is_in_use() && self.uri.port == 0 => open(&self.bind_spec(0))?,
            opened => opened?,
        })
    }

    /// Makes an endpoint for this thread on your own transport (ADR 0).
    ///
    /// # Errors
    /// A setting is out of range, or the system refuses a descriptor.
    pub fn endpoint_on<T: Transport>(&self, transport: T) -> Result<Rpc<T>, BindError> {
        let index = self.next_index()?;
        self.counting(self.make(transport, index, Handlers::default())?)
    }

    /// The endpoint counts the calls of typed methods, if it is to.
    fn counting<T: Transport>(&self, rpc: Rpc<T>) -> Result<Rpc<T>, BindError> {
        rpc.handlers.services.set_counting(self.config.count_methods);
        Ok(rpc)
    }

    /// Where and how the transport of an endpoint is opened.
    fn bind_spec(&self, port: u16) -> BindSpec {
        let c = &self.config;
        let mut common = CommonOptions::default();
        common.max_frame = c.max_frame;
        common.queue_bytes = Some(c.socket_buffer);
        let uri = Uri { host: host_of(self.bound), port, ..self.uri.clone() };
        BindSpec { uri, common, options: c.transport.clone() }
    }

    fn next_index(&self) -> Result<u16, BindError> {
        if self.process.was_forked() {
            return Err(BindError::Forked);
        }
        let next = |i: u16| i.checked_add(1);
        let took = self.next_index.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        took.map_err(|_| BindError::TooManyEndpoints)
    }

    fn make<T: Transport, A: Events>(
        &self,
        transport: T,
        index: u16,
        handlers: A::Handlers,
    ) -> Result<Rpc<T, A>, BindError> {
        let Nexus { config, platform, control, workers, links, .. } = self;
        let shared = Shared { config, platform, control, workers, links };
        Rpc::new(transport, index, &shared, handlers)
    }

    /// The control port that clients connect to.
    pub fn port(&self) -> u16 {
        self.bound.port()
    }

    /// An address for clients on this machine: the bind address, or the loopback for a wildcard.
    pub fn local_uri(&self) -> String {
        let port = self.bound.port();
        let host = match self.bound.ip().to_canonical() {
            host if host.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
            host if host.is_ipv4() => host.to_string(),
            _ => host_of(self.bound),
        };
        Uri { host, port, options: Vec::new(), ..self.uri.clone() }.to_string()
    }

    /// Counters of control connections and connects that were refused.
    pub fn control_stats(&self) -> ControlStats {
        self.control.stats()
    }

    /// Counters of the worker threads.
    pub fn worker_stats(&self) -> WorkerStats {
        self.workers.stats()
    }

    /// Returns whether a simulated machine is below it.
    pub(crate) fn is_virtual(&self) -> bool {
        self.platform.is_virtual()
    }

    /// The settings of the nexus.
    pub fn config(&self) -> &Config {
        &self.config
    }
}

/// The address to listen on.
fn bind_addr(platform: &Platform, uri: &Uri) -> Result<SocketAddr, BindError> {
    if let Some(addr) = uri.socket_addr().map_err(OpenError::from)? {
        return Ok(addr);
    }
    let known = match platform.machine() {
        None if uri.host.eq_ignore_ascii_case("localhost") => {
            Some((Ipv4Addr::LOCALHOST, uri.port).into())
        }
        None => None,
        Some(machine) => machine.resolve(&uri.host, uri.port).ok().and_then(|a| a.first().copied()),
    };
    known.ok_or_else(|| BindError::Host(uri.host.clone()))
}
