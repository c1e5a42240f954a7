//! Courser over Unix datagram sockets: an example of a transport in a crate of its own.
//!
//! A program calls [`register`] once; from then on `Nexus::bind("unix://127.0.0.1:0")` works, and
//! nothing else in the program changes. The options are [`UnixOptions`], in code or in the address
//! (`unix://127.0.0.1:0?max_frame=4096`).
//!
//! Endpoints have names in the abstract namespace of Unix sockets, made of host and port, so every
//! process in the same network namespace can send to them. The kernel's queue is short: 10 frames
//! by default (`sysctl net.unix.max_dgram_qlen`). When it is full the frame is dropped, as by a
//! network.

use std::io;
use std::net::{IpAddr, SocketAddr as IpSocketAddr};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use courser_buf::{Addr, Ecn, PathId, RX_BURST, RxBurst, RxFrame, TX_GATHER, TxBurst};
use courser_net::any::{self, RegisterError};
use courser_net::options::{NamedOption, set};
use courser_net::{
    BindSpec, Caps, OpenError, Path, PathError, PathTable, Transport, TransportOptions,
    TransportStats, wait_readable,
};

const SCHEME: &str = "unix";
/// Largest frame. Ten of these, with the kernel's overhead, fit the default send buffer of 208 KiB,
/// which counts frames until the receiver has read them.
const MAX_FRAME: usize = 8192;
/// Smallest limit of frames: leaves room for protocol headers.
const MIN_FRAME: usize = 512;
/// Frames that the kernel queues for a receiver, unless it is configured to queue fewer.
const QUEUE_FRAMES: usize = 10;
/// Ports to choose from when any free one is wanted.
const EPHEMERAL: std::ops::Range<u16> = 32_768..61_000;

/// Options of this transport.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnixOptions {
    /// Largest frame in bytes, 512 to 8192. Default: 8192.
    pub max_frame: Option<usize>,
    /// Endpoints reach only those with the same word here. Default: `default`.
    pub namespace: Option<String>,
}

impl TransportOptions for UnixOptions {
    const SCHEME: &'static str = SCHEME;
    const NAMED: &'static [NamedOption<Self>] = &[
        ("max_frame", |options, text| set(&mut options.max_frame, text)),
        ("namespace", |options, text| set(&mut options.namespace, text)),
    ];

    fn check_host(host: IpAddr) -> Result<(), OpenError> {
        if host.is_loopback() {
            return Ok(());
        }
        let why = format!("Unix sockets stay on this machine: use 127.0.0.1 instead of {host}");
        Err(io::Error::new(io::ErrorKind::InvalidInput, why).into())
    }
}

/// Makes `unix://` addresses known to this process.
///
/// # Errors
/// The scheme is registered already.
pub fn register() -> Result<(), RegisterError> {
    any::register(|spec: &BindSpec, options: UnixOptions| {
        let at = spec.socket_addr()?;
        UnixOptions::check_host(at.ip())?;
        let options =
            UnixOptions { max_frame: options.max_frame.or(spec.common.max_frame), ..options };
        Ok(Box::new(UnixTransport::bind(at, &options)?))
    })
}

/// The names of endpoints in one namespace.
#[derive(Debug)]
struct Names {
    prefix: String,
}

impl Names {
    fn of(&self, addr: Addr) -> io::Result<SocketAddr> {
        let name = format!("{}/{:x}/{}", self.prefix, addr.host, addr.port);
        SocketAddr::from_abstract_name(name)
    }

    /// The address of a sender; `None` for one that is not of this namespace.
    fn parse(&self, name: &SocketAddr) -> Option<Addr> {
        let name = std::str::from_utf8(name.as_abstract_name()?).ok()?;
        let rest = name.strip_prefix(&self.prefix)?.strip_prefix('/')?;
        let (host, port) = rest.split_once('/')?;
        Some(Addr { host: u128::from_str_radix(host, 16).ok()?, port: port.parse().ok()? })
    }
}

/// A Unix datagram socket as a transport.
#[derive(Debug)]
pub struct UnixTransport {
    socket: UnixDatagram,
    names: Names,
    local: Addr,
    caps: Caps,
    paths: PathTable<SocketAddr>,
    /// The frame that is sent, in one piece.
    frame: Vec<u8>,
    /// Receive memory: a largest frame and one byte, which shows truncation, for each of a burst.
    memory: Vec<u8>,
    /// Sender and length of the frames in `memory`; `None` for one that is discarded.
    received: Vec<Option<(Addr, usize)>>,
    stats: TransportStats,
}

impl UnixTransport {
    /// Binds a socket. Port 0: any free port.
    ///
    /// # Errors
    /// The name is in use ([`io::ErrorKind::AddrInUse`]), an option is out of range, or the system
    /// refuses the socket.
    pub fn bind(at: IpSocketAddr, options: &UnixOptions) -> io::Result<Self> {
        let max_frame = options.max_frame.unwrap_or(MAX_FRAME);
        if !(MIN_FRAME..=MAX_FRAME).contains(&max_frame) {
            let why =
                format!("max_frame is {max_frame}; it must be from {MIN_FRAME} to {MAX_FRAME}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let namespace = options.namespace.as_deref().unwrap_or("default");
        let names = Names { prefix: format!("courser/{namespace}") };
        let (socket, local) = bind(&names, Addr::from_socket(at))?;
        socket.set_nonblocking(true)?;
        let queue = queue_frames();
        Ok(UnixTransport {
            socket,
            names,
            local,
            caps: Caps {
                scheme: SCHEME,
                max_frame,
                headroom: 0,
                tailroom: 0,
                gather: TX_GATHER,
                gather_from: usize::MAX,
                train_frames: 1,
                train_bytes: max_frame,
                rx_queue_frames: queue,
                small_frame: max_frame, // the queue counts frames, whatever their size
                rx_queue_small_frames: queue,
                rx_queue_per_peer: false,
                polls_memory: false,
                holds_frames: false,
                line_rate_bps: None,
            },
            paths: PathTable::default(),
            frame: Vec::with_capacity(max_frame),
            memory: vec![0; RX_BURST * (max_frame + 1)],
            received: Vec::with_capacity(RX_BURST),
            stats: TransportStats::default(),
        })
    }

    /// Sends `self.frame`; a full queue, an absent receiver and a frame that is too large drop it.
    fn send(&mut self, path: PathId) {
        let fits = self.frame.len() <= self.caps.max_frame;
        let sent = match self.paths.get_mut(path).filter(|_| fits) {
            Some(to) => self.socket.send_to_addr(&self.frame, to).is_ok(),
            None => false,
        };
        self.stats.tx_calls += 1;
        if sent {
            self.stats.tx_frames += 1;
            self.stats.tx_bytes += self.frame.len() as u64;
        } else {
            self.stats.tx_dropped += 1;
        }
    }
}

/// A socket with the name of an address, or of the first free port.
fn bind(names: &Names, at: Addr) -> io::Result<(UnixDatagram, Addr)> {
    let try_port = |port: u32| {
        let addr = Addr { port, ..at };
        Ok((UnixDatagram::bind_addr(&names.of(addr)?)?, addr))
    };
    let in_use = |e: &io::Error| e.kind() == io::ErrorKind::AddrInUse;
    if at.port != 0 {
        return try_port(at.port).map_err(|e| match in_use(&e) {
            true => {
                io::Error::new(e.kind(), format!("unix port {} is in use; use port 0", at.port))
            }
            false => e,
        });
    }
    let mut tried = EPHEMERAL.map(|port| try_port(port.into()));
    tried.find(|tried| !matches!(tried, Err(e) if in_use(e))).unwrap_or_else(|| {
        Err(io::Error::new(io::ErrorKind::AddrInUse, "every unix port is in use"))
    })
}

/// Frames that the kernel queues for a receiver before it refuses more.
fn queue_frames() -> usize {
    let limit = std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen");
    let limit = limit.ok().and_then(|text| text.trim().parse().ok());
    limit.unwrap_or(QUEUE_FRAMES).clamp(1, QUEUE_FRAMES)
}

impl Transport for UnixTransport {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn local_addr(&self) -> Addr {
        self.local
    }

    fn path_open(&mut self, remote: Addr, _local: Option<Addr>) -> Result<Path, PathError> {
        if remote.port == 0 {
            return Err(PathError::Unsupported(remote, SCHEME, self.local));
        }
        let name = self.names.of(remote).map_err(|e| PathError::Io(remote, e))?;
        Ok(Path { id: self.paths.open(name)?, max_frame: self.caps.max_frame })
    }

    fn path_close(&mut self, path: PathId) {
        self.paths.close(path);
    }

    fn tx_burst(&mut self, burst: &mut TxBurst) {
        while let Some(frame) = burst.pop_front() {
            self.frame.clear();
            frame.copy_to(&mut self.frame);
            self.send(frame.path);
        }
    }

    fn tx_reclaim(&mut self) -> usize {
        0
    }

    fn tx_flush(&mut self) {}

    fn rx_burst<'a>(&'a mut self, out: &mut RxBurst<'a>) {
        let max_frame = self.caps.max_frame;
        self.received.clear();
        for place in self.memory.chunks_exact_mut(max_frame + 1).take(out.remaining_capacity()) {
            let Ok((len, sender)) = self.socket.recv_from(place) else { break };
            self.stats.rx_calls += 1;
            let sender = self.names.parse(&sender).filter(|_| len <= max_frame);
            self.received.push(sender.map(|sender| (sender, len)));
        }
        for (place, received) in self.memory.chunks_exact(max_frame + 1).zip(&self.received) {
            let Some((sender, len)) = *received else {
                self.stats.rx_dropped += 1;
                continue;
            };
            self.stats.rx_frames += 1;
            self.stats.rx_bytes += len as u64;
            out.push(RxFrame::new(sender, &place[..len], Ecn::NotEct));
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn wait(&mut self, wake: RawFd, timeout_ns: Option<u64>) -> io::Result<()> {
        wait_readable(self.socket.as_fd(), wake, timeout_ns)
    }

    fn stats(&self) -> TransportStats {
        self.stats
    }
}
