//! The production network: TCP or Unix sockets, as the transport says ([`ControlSockets`]), polled
//! with epoll, and resolver threads.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use courser_net::shm::{ControlListener, may_listen};
use courser_net::{ControlSockets, OpenError};
use courser_proto::HostIdentity;
use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::conn::canonical;
use super::event::{Event, Inlet, Wake};
use super::network::{Network, Ready, Stream};

/// The listener's token.
const LISTENER: Token = Token(0);
/// The waker's token.
const WAKER: Token = Token(1);
/// Readiness events per wait.
const EVENTS: usize = 1024;
/// Established connections that the kernel queues for `accept`: as many as Linux allows by default
/// (`net.core.somaxconn`). When it is full, a client's request is dropped, and repeated after a second.
const BACKLOG: i32 = 4096;

/// Why a nexus cannot listen.
pub(super) enum ListenError {
    Tcp(io::Error),
    Unix(OpenError),
    /// Descriptors have run out.
    Poll(io::Error),
}

/// The listener, and how connections to other nexuses are opened.
enum Listener {
    Tcp {
        listener: TcpListener,
        /// The local address of outbound connections; `None`: what the kernel selects.
        source: Option<SocketAddr>,
        /// The address that it is bound to.
        ip: IpAddr,
        /// It was to be bound to `[::]`, and this system has no IPv6.
        no_ipv6: bool,
    },
    Unix {
        listener: ControlListener,
        dir: PathBuf,
    },
}

/// The control thread's sockets.
pub(super) struct Sockets {
    poll: Poll,
    events: Events,
    listener: Listener,
    host: HostIdentity,
    /// The queue for results of resolver threads.
    inlet: Inlet,
    /// A descriptor for the connections that are refused when no other one is left; `None`: it was
    /// taken meanwhile.
    reserve: Option<OwnedFd>,
}

impl Sockets {
    /// Listens on `bind` and returns the bound address. `events` is the control thread's queue.
    pub(super) fn listen(
        kind: &ControlSockets,
        bind: SocketAddr,
        events: Sender<Event>,
    ) -> Result<(Sockets, SocketAddr), ListenError> {
        let (mut listener, bound) = match kind {
            ControlSockets::Unix(dir) => listen_unix(dir, bind).map_err(ListenError::Unix)?,
            _ => listen_tcp(bind).map_err(ListenError::Tcp)?,
        };
        let sockets = |listener: &mut Listener| {
            let poll = Poll::new()?;
            let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
            listener.register(poll.registry())?;
            Ok((poll, Inlet { events, wake: Wake::Poll(waker) }))
        };
        let (poll, inlet) = sockets(&mut listener).map_err(ListenError::Poll)?;
        let (events, host) = (Events::with_capacity(EVENTS), this_host());
        let reserve = reserve().ok();
        Ok((Sockets { poll, events, listener, host, inlet, reserve }, bound))
    }

    /// The queue whose wake-up ends [`Sockets::wait`].
    pub(super) fn inlet(&self) -> Inlet {
        self.inlet.clone()
    }

    /// Waits for readiness, for `timeout` at most, and appends the events to `ready`.
    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        ready: &mut Vec<Ready>,
    ) -> io::Result<()> {
        match self.poll.poll(&mut self.events, timeout) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(e) => return Err(e),
        }
        for e in &self.events {
            match e.token() {
                LISTENER => ready.push(Ready::Listener),
                WAKER => {}
                Token(n) => {
                    let writable = e.is_writable() || e.is_error();
                    ready.push(Ready::Conn { n: n as u64, writable });
                }
            }
        }
        Ok(())
    }
}

impl Listener {
    fn register(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Listener::Tcp { listener, .. } => {
                registry.register(listener, LISTENER, Interest::READABLE)
            }
            Listener::Unix { listener, .. } => {
                let fd = listener.as_fd().as_raw_fd();
                registry.register(&mut SourceFd(&fd), LISTENER, Interest::READABLE)
            }
        }
    }
}

impl Network for Sockets {
    type Stream = ControlStream;

    fn host(&self) -> HostIdentity {
        self.host
    }

    /// Only processes of this machine reach a Unix socket.
    fn is_within_host(&self) -> bool {
        matches!(self.listener, Listener::Unix { .. })
    }

    fn accept(&mut self) -> io::Result<(ControlStream, SocketAddr)> {
        match &self.listener {
            Listener::Tcp { listener, .. } => {
                listener.accept().map(|(stream, remote)| (ControlStream::Tcp(stream), remote))
            }
            Listener::Unix { listener, .. } => {
                let stream = UnixStream::from_std(listener.accept()?);
                let local = listener.local_addr();
                let remote = SocketAddr::new(local.ip(), 0);
                Ok((ControlStream::Unix { stream, local }, remote))
            }
        }
    }

    fn refuse(&mut self, bytes: &[u8]) -> io::Result<()> {
        drop(self.reserve.take().map_or_else(reserve, Ok)?);
        let refused = self.accept().map(|(mut stream, _)| {
            // The buffer of a new socket has room.
            let _ = stream.write(bytes);
        });
        self.reserve = reserve().ok();
        refused
    }

    fn connect(&mut self, to: SocketAddr) -> io::Result<ControlStream> {
        match &self.listener {
            Listener::Tcp { source: Some(source), .. } => connect_from(*source, to),
            Listener::Tcp { source: None, ip, no_ipv6, .. } if is_other_family(*ip, to) => {
                Err(if *no_ipv6 { without_ipv6() } else { other_family(*ip) })
            }
            Listener::Tcp { source: None, .. } => TcpStream::connect(to),
            Listener::Unix { listener, dir } => {
                return connect_unix(dir, listener.local_addr().ip(), canonical(to));
            }
        }
        .map(ControlStream::Tcp)
    }

    fn explain(&self, to: SocketAddr, e: io::Error) -> io::Error {
        if e.kind() != io::ErrorKind::ConnectionRefused {
            return e;
        }
        let text = match &self.listener {
            Listener::Unix { dir, .. } => format!(
                "nothing listens on shm://{to} in {}; start the server there as this user and with \
                 this directory (COURSER_SHM_DIR){}",
                dir.display(),
                if is_tcp_port(to.port()) {
                    ", or use udp://, as its TCP port is in use"
                } else {
                    ""
                }
            ),
            Listener::Tcp { .. } if to.ip().is_loopback() && may_listen(to) => format!(
                "nothing listens on udp://{to}, but a server of shared memory may; use shm://{to}"
            ),
            Listener::Tcp { .. } => return e,
        };
        io::Error::new(io::ErrorKind::ConnectionRefused, text)
    }

    fn register(&mut self, stream: &mut ControlStream, n: u64) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(stream.source(), Token(n as usize), both)
    }

    fn deregister(&mut self, stream: &mut ControlStream) {
        // Closing the socket deregisters it in any case, so an error can be ignored.
        let _ = self.poll.registry().deregister(stream.source());
    }

    /// Resolves in a thread. It may outlive the control thread, as a resolver cannot be
    /// interrupted.
    fn resolve(&mut self, dial: u64, host: &str, port: u16) -> io::Result<Option<Vec<SocketAddr>>> {
        if host == "localhost" {
            // The loopback of both families, whatever files of the system say [RFC 6761 section 6.3].
            let both: [IpAddr; 2] = [Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()];
            return Ok(Some(both.map(|ip| SocketAddr::new(ip, port)).into()));
        }
        let (inlet, host) = (self.inlet.clone(), host.to_owned());
        let thread = std::thread::Builder::new().name("courser-resolve".into());
        thread.spawn(move || {
            let addrs = (host.as_str(), port).to_socket_addrs();
            inlet.send(Event::Resolved { dial, result: addrs.map(Iterator::collect) });
        })?;
        Ok(None)
    }
}

/// A descriptor that can be replaced by another one.
fn reserve() -> io::Result<OwnedFd> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(eventfd(0, EventfdFlags::CLOEXEC)?)
}

/// The identity of this boot of the machine and of this thread's network namespace, which the nexus's
/// sockets belong to; unknown where the kernel does not tell.
fn this_host() -> HostIdentity {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let space = std::fs::metadata("/proc/thread-self/ns/net");
    let (Ok(boot), Ok(space)) = (boot, space) else { return HostIdentity::UNKNOWN };
    let digits: String = boot.trim().chars().filter(|&c| c != '-').collect();
    match u128::from_str_radix(&digits, 16) {
        Ok(boot) if digits.len() == 32 => {
            HostIdentity((boot ^ u128::from(space.ino())).to_be_bytes())
        }
        _ => HostIdentity::UNKNOWN,
    }
}

/// A connection.
#[derive(Debug)]
pub(super) enum ControlStream {
    Tcp(TcpStream),
    Unix { stream: UnixStream, local: SocketAddr },
}

impl ControlStream {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            ControlStream::Tcp(stream) => stream,
            ControlStream::Unix { stream, .. } => stream,
        }
    }
}

impl Read for ControlStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            ControlStream::Tcp(stream) => stream.read(buf),
            ControlStream::Unix { stream, .. } => stream.read(buf),
        }
    }
}

impl Write for ControlStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            ControlStream::Tcp(stream) => stream.write(buf),
            ControlStream::Unix { stream, .. } => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // sockets have no buffer here
    }
}

impl Stream for ControlStream {
    fn connected(&mut self) -> io::Result<Option<()>> {
        // A Unix socket is connected at once.
        let ControlStream::Tcp(stream) = self else { return Ok(Some(())) };
        if let Some(e) = stream.take_error()? {
            return Err(e);
        }
        match stream.peer_addr() {
            Ok(_) => Ok(Some(())),
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            ControlStream::Tcp(stream) => stream.local_addr(),
            ControlStream::Unix { local, .. } => Ok(*local),
        }
    }

    /// Sets neither keep-alive nor a user timeout: a connection that is not open has its deadline,
    /// and an open one has heartbeats, which check the process and not only its kernel.
    fn prepare(&mut self) -> io::Result<()> {
        match self {
            ControlStream::Tcp(stream) => stream.set_nodelay(true),
            ControlStream::Unix { .. } => Ok(()),
        }
    }

    /// Unread data of a Unix socket is kept by its reader's kernel buffer only, which is limited.
    fn abort_on_close(&self) {
        if let ControlStream::Tcp(stream) = self {
            // On failure the socket is closed without a reset.
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
    }
}

/// Returns whether a TCP socket of this host listens on a port, by the kernel's tables, in which
/// listening sockets come first.
fn is_tcp_port(port: u16) -> bool {
    /// The state of a listening socket.
    const LISTEN: &str = "0A";
    let is_port = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = fields.next().and_then(|local| local.rsplit_once(':'));
        let is_listening = fields.nth(1) == Some(LISTEN);
        is_listening.then(|| local.is_some_and(|(_, n)| u16::from_str_radix(n, 16) == Ok(port)))
    };
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let Ok(table) = File::open(table) else { return false };
        let lines = BufReader::new(table).lines().skip(1).map_while(Result::ok);
        lines.map_while(|line| is_port(&line)).any(|found| found)
    })
}

/// Connects to a nexus of this user whose address has the same host as this one's.
fn connect_unix(dir: &Path, host: IpAddr, to: SocketAddr) -> io::Result<ControlStream> {
    if to.ip() != host {
        return Err(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            format!("this nexus is bound to {host}; bind it to the host of the server's address"),
        ));
    }
    let stream = UnixStream::from_std(ControlListener::connect(dir, to)?);
    Ok(ControlStream::Unix { stream, local: SocketAddr::new(host, 0) })
}

/// Connects from `source`, which frames of the datapath come from too: the server accepts them from
/// the address of the control connection only.
fn connect_from(source: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    use rustix::io::Errno;
    let to = canonical(to);
    if source.is_ipv4() != to.is_ipv4() {
        return Err(other_family(source.ip()));
    }
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.bind(&source.into())?;
    match socket.connect(&to.into()) {
        Err(e) if e.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => Err(e),
        _ => Ok(TcpStream::from_std(socket.into())),
    }
}

/// Returns whether a nexus that is bound to a wildcard has no datapath to an address. The connect fails
/// then, so that another address of the name is tried.
fn is_other_family(wildcard: IpAddr, to: SocketAddr) -> bool {
    wildcard.is_ipv4() && canonical(to).is_ipv6()
}

fn other_family(bound: IpAddr) -> io::Error {
    let text = format!(
        "this nexus is bound to {bound}, of the other address family; bind it to [::] for both"
    );
    io::Error::new(io::ErrorKind::AddrNotAvailable, text)
}

fn without_ipv6() -> io::Error {
    let text = "this system has no IPv6; use an IPv4 address of the server, or a name that has one";
    io::Error::new(io::ErrorKind::AddrNotAvailable, text)
}

fn listen_unix(dir: &Path, bind: SocketAddr) -> Result<(Listener, SocketAddr), OpenError> {
    let listener = ControlListener::bind(dir, bind)?;
    let bound = listener.local_addr();
    Ok((Listener::Unix { listener, dir: dir.to_path_buf() }, bound))
}

/// Listens. Outbound connections come from the same address, unless it is a wildcard.
fn listen_tcp(bind: SocketAddr) -> io::Result<(Listener, SocketAddr)> {
    let (listener, bound) = listen(bind)?;
    let mut source = canonical(bound);
    source.set_port(0);
    let ip = source.ip();
    let source = (!ip.is_unspecified()).then_some(source);
    let no_ipv6 = bind.ip().is_unspecified() && bind.is_ipv6() && bound.is_ipv4();
    Ok((Listener::Tcp { listener, source, ip, no_ipv6 }, bound))
}

/// IPv6 wildcards accept IPv4 too, and become IPv4 on a host without IPv6.
fn listen(bind: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    use rustix::io::Errno;
    match listen_on(bind) {
        Err(e) if bind.is_ipv6() && bind.ip().is_unspecified() => {
            let missing = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL];
            if !missing.iter().any(|x| e.raw_os_error() == Some(x.raw_os_error())) {
                return Err(e);
            }
            listen_on(SocketAddr::from((Ipv4Addr::UNSPECIFIED, bind.port())))
        }
        other => other,
    }
}

fn listen_on(bind: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = Socket::new(Domain::for_address(bind), Type::STREAM, Some(Protocol::TCP))?;
    if bind.is_ipv6() && bind.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    // Lets a restarted nexus bind its port at once.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&bind.into())?;
    socket.listen(BACKLOG)?;
    let listener = TcpListener::from_std(socket.into());
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}
