//! The production network: TCP sockets, polled with epoll, and resolver threads.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::conn::canonical;
use super::network::{Network, Ready, Stream};
use super::{Event, Inlet, Wake};

/// The listener's token.
const LISTENER: Token = Token(0);
/// The waker's token.
const WAKER: Token = Token(1);
/// Readiness events per wait.
const EVENTS: usize = 1024;
/// Established connections that the kernel queues for `accept`.
const BACKLOG: i32 = 1024;

/// The control thread's sockets.
pub(super) struct Tcp {
    poll: Poll,
    events: Events,
    listener: TcpListener,
    /// The local address of outbound connections; `None`: what the kernel selects.
    source: Option<SocketAddr>,
    /// The queue for results of resolver threads.
    inlet: Inlet,
}

impl Tcp {
    /// Listens on `bind` and returns the bound address. `events` is the control thread's queue.
    pub(super) fn listen(bind: SocketAddr, events: Sender<Event>) -> io::Result<(Tcp, SocketAddr)> {
        let (mut listener, bound) = listen(bind)?;
        let poll = Poll::new()?;
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let inlet = Inlet { events, wake: Wake::Poll(waker) };
        let mut source = canonical(bound);
        source.set_port(0);
        let source = (!source.ip().is_unspecified()).then_some(source);
        let events = Events::with_capacity(EVENTS);
        Ok((Tcp { poll, events, listener, source, inlet }, bound))
    }

    /// The queue whose wake-up ends [`Tcp::wait`].
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

impl Network for Tcp {
    type Stream = TcpStream;

    fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        self.listener.accept()
    }

    fn connect(&mut self, to: SocketAddr) -> io::Result<TcpStream> {
        match self.source {
            Some(source) => connect_from(source, to),
            None => TcpStream::connect(to),
        }
    }

    fn register(&mut self, stream: &mut TcpStream, n: u64) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(stream, Token(n as usize), both)
    }

    fn deregister(&mut self, stream: &mut TcpStream) {
        // Closing the socket deregisters it in any case, so an error can be ignored.
        let _ = self.poll.registry().deregister(stream);
    }

    /// Resolves in a thread. It may outlive the control thread, as a resolver cannot be
    /// interrupted.
    fn resolve(&mut self, dial: u64, host: &str, port: u16) -> io::Result<Option<Vec<SocketAddr>>> {
        let (inlet, host) = (self.inlet.clone(), host.to_owned());
        let thread = std::thread::Builder::new().name("courser-resolve".into());
        thread.spawn(move || {
            let addrs = (host.as_str(), port).to_socket_addrs();
            inlet.send(Event::Resolved { dial, result: addrs.map(Iterator::collect) });
        })?;
        Ok(None)
    }
}

impl Stream for TcpStream {
    fn connected(&mut self) -> io::Result<Option<()>> {
        if let Some(e) = self.take_error()? {
            return Err(e);
        }
        match self.peer_addr() {
            Ok(_) => Ok(Some(())),
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        TcpStream::local_addr(self)
    }

    /// Sets neither keep-alive nor a user timeout: a connection that is not open has its deadline,
    /// and an open one has heartbeats, which check the process and not only its kernel.
    fn prepare(&mut self) -> io::Result<()> {
        self.set_nodelay(true)
    }

    fn abort_on_close(&self) {
        // On failure the socket is closed without a reset.
        let _ = SockRef::from(self).set_linger(Some(Duration::ZERO));
    }
}

/// Connects from `source`, which frames of the datapath come from too: the server accepts them from
/// the address of the control connection only.
fn connect_from(source: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    use rustix::io::Errno;
    let to = canonical(to);
    if source.is_ipv4() != to.is_ipv4() {
        return Err(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            format!("this nexus is bound to {}, of the other address family", source.ip()),
        ));
    }
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.bind(&source.into())?;
    match socket.connect(&to.into()) {
        Err(e) if e.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => Err(e),
        _ => Ok(TcpStream::from_std(socket.into())),
    }
}

/// Listens. IPv6 wildcards accept IPv4 too, and become IPv4 on a host without IPv6.
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
