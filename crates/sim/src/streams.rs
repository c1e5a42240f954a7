//! The network of the control plane: reliable byte streams between hosts, as TCP provides, with
//! their failures: a process that ends closes its streams, a machine that crashes sends nothing,
//! and a partition delays bytes until it heals.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use courser::parts::machine::{Listener, Stream};

use crate::host::life::Life;
use crate::host::port::lock;
use crate::host::{host_of, ip_of};
use crate::packet::HostId;

/// Bytes that a stream buffers for a receiver that does not read.
const WINDOW: usize = 64 << 10;

/// Connections that await acceptance, per listener: the backlog of a nexus.
const BACKLOG: usize = 4_096;

pub(crate) type SharedStreams = Arc<Mutex<Streams>>;

/// Segments between hosts, reliable and in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Segment {
    /// Connection request.
    Syn {
        port: u16,
    },
    /// The connection is established.
    SynAck,
    Data(Vec<u8>),
    /// This number of bytes was read: the window opens by as many.
    Window(usize),
    /// End of stream.
    Fin,
    /// No such connection, or no longer.
    Reset,
}

/// A segment in flight: from which side of which connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    pub(crate) from: HostId,
    pub(crate) to: HostId,
    pub(crate) conn: u64,
    /// The receiving side: 0 dialed, 1 listened.
    pub(crate) side: usize,
    pub(crate) segment: Segment,
}

/// One side of a connection.
#[derive(Debug)]
struct End {
    life: Life,
    addr: SocketAddr,
    connected: bool,
    error: Option<io::ErrorKind>,
    inbox: VecDeque<u8>,
    /// The send window, bytes.
    window: usize,
    fin: bool,
    token: Option<u64>,
    abort: bool,
}

#[derive(Debug)]
struct Conn {
    ends: [Option<End>; 2],
    hosts: [HostId; 2],
}

#[derive(Default, Debug)]
struct Listening {
    /// Connections, and their owners.
    backlog: VecDeque<(u64, SocketAddr)>,
}

/// All control connections of a world.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    hosts: usize,
    conns: BTreeMap<u64, Conn>,
    listeners: BTreeMap<(HostId, u16), (Life, Listening)>,
    /// Ready tokens, by process.
    ready: BTreeMap<Life, BTreeSet<u64>>,
    /// Segments that were sent and that the world has not fetched yet.
    pub(crate) sent: Vec<Sent>,
    /// Processes whose control loop has work.
    pub(crate) stirred: BTreeSet<Life>,
    next: u64,
    /// Connections that a listener's machine has established.
    pub(crate) established: u64,
}

impl Streams {
    pub(crate) fn new(hosts: usize) -> Self {
        Streams { hosts, ..Streams::default() }
    }

    pub(crate) fn listen(&mut self, life: Life, port: u16) -> io::Result<u16> {
        let taken = |port: u16| self.listeners.contains_key(&(life.host, port));
        let port = match port {
            0 => (32_768..=u16::MAX).find(|&p| !taken(p)),
            port => Some(port).filter(|&p| !taken(p)),
        };
        let port = port.ok_or(io::ErrorKind::AddrInUse)?;
        self.listeners.insert((life.host, port), (life, Listening::default()));
        Ok(port)
    }

    /// Returns whether no segment and no process awaits the world.
    pub(crate) fn is_quiet(&self) -> bool {
        self.sent.is_empty() && self.stirred.is_empty()
    }

    /// Connections open on either side: for the check that none are left over.
    pub(crate) fn open(&self) -> usize {
        self.conns.len()
    }

    /// Returns whether the process that dialed a connection still exists and waits for it.
    pub(crate) fn is_wanted(&mut self, conn: u64) -> bool {
        self.end(conn, 0).is_some_and(|end| !end.connected && end.error.is_none())
    }

    fn end(&mut self, conn: u64, side: usize) -> Option<&mut End> {
        self.conns.get_mut(&conn)?.ends[side].as_mut()
    }

    fn send(&mut self, conn: u64, side: usize, segment: Segment) {
        let Some(c) = self.conns.get(&conn) else { return };
        let (from, to) = (c.hosts[side], c.hosts[1 - side]);
        self.sent.push(Sent { from, to, conn, side: 1 - side, segment });
    }

    fn connect(&mut self, life: Life, to: SocketAddr) -> io::Result<u64> {
        let host = host_of(to.ip(), self.hosts).ok_or(io::ErrorKind::NetworkUnreachable)?;
        let number = self.next;
        self.next += 1;
        let port = 49_152 + (number % 16_384) as u16;
        let end = End::new(life, SocketAddr::new(ip_of(life.host).into(), port));
        let ends = [Some(end), None];
        self.conns.insert(number, Conn { ends, hosts: [life.host, host] });
        self.send(number, 0, Segment::Syn { port: to.port() });
        Ok(number)
    }

    fn stir(&mut self, conn: u64, side: usize) {
        let Some(end) = self.end(conn, side) else { return };
        let (life, token) = (end.life, end.token);
        if let Some(token) = token {
            self.ready.entry(life).or_default().insert(token);
        }
        self.stirred.insert(life);
    }

    /// A segment arrives at a host whose machine runs; `process` is the life of its process.
    pub(crate) fn arrive(&mut self, s: Sent, process: Option<Life>) {
        if let Segment::Syn { port } = s.segment {
            return self.on_syn(&s, port, process);
        }
        let here = self.end(s.conn, s.side).is_some_and(|end| Some(end.life) == process);
        if !here {
            // The process of the connection has ended: its machine answers with a reset.
            if !matches!(s.segment, Segment::Reset | Segment::Fin | Segment::Window(_)) {
                self.send(s.conn, s.side, Segment::Reset);
            }
            self.drop_end(s.conn, s.side);
            return;
        }
        let Some(end) = self.end(s.conn, s.side) else { return };
        match s.segment {
            Segment::Syn { .. } => {}
            Segment::SynAck => end.connected = true,
            Segment::Data(bytes) => end.inbox.extend(bytes),
            Segment::Window(bytes) => end.window += bytes,
            Segment::Fin => end.fin = true,
            Segment::Reset => {
                let refused = !end.connected;
                let kind = if refused {
                    io::ErrorKind::ConnectionRefused
                } else {
                    io::ErrorKind::ConnectionReset
                };
                // Data that has arrived can still be read.
                end.error = Some(kind);
            }
        }
        self.stir(s.conn, s.side);
    }

    fn on_syn(&mut self, s: &Sent, port: u16, process: Option<Life>) {
        let remote = self.end(s.conn, 0).map(|end| end.addr);
        let listening = self.listeners.get_mut(&(s.to, port));
        let (Some(remote), Some((life, listening))) = (remote, listening) else {
            return self.send(s.conn, 1, Segment::Reset);
        };
        if Some(*life) != process || listening.backlog.len() >= BACKLOG {
            return self.send(s.conn, 1, Segment::Reset);
        }
        let life = *life;
        listening.backlog.push_back((s.conn, remote));
        let mut end = End::new(life, SocketAddr::new(ip_of(s.to).into(), port));
        end.connected = true;
        if let Some(conn) = self.conns.get_mut(&s.conn) {
            conn.ends[1] = Some(end);
        }
        self.established += 1;
        self.send(s.conn, 1, Segment::SynAck);
        self.stirred.insert(life);
    }

    /// Removes a side that is no longer needed.
    fn drop_end(&mut self, conn: u64, side: usize) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        c.ends[side] = None;
        if c.ends.iter().all(Option::is_none) {
            self.conns.remove(&conn);
        }
    }

    /// The application has dropped a stream: the kernel notifies the other side.
    fn close(&mut self, conn: u64, side: usize) {
        let Some(end) = self.end(conn, side) else { return };
        let unread = !end.inbox.is_empty();
        let segment = if end.abort || unread { Segment::Reset } else { Segment::Fin };
        let known = end.error.is_none();
        if known {
            self.send(conn, side, segment);
        }
        self.drop_end(conn, side);
    }

    /// Ends a process with its listeners. `silently`: with its whole machine, so that no peer is
    /// notified.
    pub(crate) fn process_ends(&mut self, life: Life, silently: bool) {
        self.listeners.retain(|_, (of, _)| *of != life);
        self.ready.remove(&life);
        self.stirred.remove(&life);
        let mut gone = Vec::new();
        for (&number, conn) in &self.conns {
            for (side, end) in conn.ends.iter().enumerate() {
                if end.as_ref().is_some_and(|end| end.life == life) {
                    gone.push((number, side));
                }
            }
        }
        for (number, side) in gone {
            if silently {
                self.drop_end(number, side);
            } else {
                self.close(number, side);
            }
        }
    }
}

impl End {
    fn new(life: Life, addr: SocketAddr) -> Self {
        End {
            life,
            addr,
            connected: false,
            error: None,
            inbox: VecDeque::new(),
            window: WINDOW,
            fin: false,
            token: None,
            abort: false,
        }
    }
}

/// A listening socket and the dialer.
pub(crate) struct StreamListener {
    life: Life,
    port: u16,
    streams: SharedStreams,
}

impl StreamListener {
    pub(crate) fn new(life: Life, port: u16, streams: SharedStreams) -> Self {
        StreamListener { life, port, streams }
    }

    fn stream(&self, conn: u64, side: usize) -> Box<dyn Stream> {
        Box::new(SimStream { conn, side, streams: self.streams.clone() })
    }
}

impl Listener for StreamListener {
    fn accept(&mut self) -> io::Result<(Box<dyn Stream>, SocketAddr)> {
        let mut streams = lock(&self.streams);
        let listening = streams.listeners.get_mut(&(self.life.host, self.port));
        let conn = listening.and_then(|(_, l)| l.backlog.pop_front());
        let (conn, remote) = conn.ok_or(io::ErrorKind::WouldBlock)?;
        drop(streams);
        Ok((self.stream(conn, 1), remote))
    }

    fn connect(&mut self, to: SocketAddr) -> io::Result<Box<dyn Stream>> {
        let conn = lock(&self.streams).connect(self.life, to)?;
        Ok(self.stream(conn, 0))
    }

    fn ready(&mut self, tokens: &mut Vec<u64>) {
        if let Some(ready) = lock(&self.streams).ready.remove(&self.life) {
            tokens.extend(ready);
        }
    }
}

impl Drop for StreamListener {
    fn drop(&mut self) {
        let mut streams = lock(&self.streams);
        let key = (self.life.host, self.port);
        if streams.listeners.get(&key).is_some_and(|(life, _)| *life == self.life) {
            streams.listeners.remove(&key);
        }
    }
}

/// One side of a control connection.
pub(crate) struct SimStream {
    conn: u64,
    side: usize,
    streams: SharedStreams,
}

impl fmt::Debug for SimStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimStream({}, side {})", self.conn, self.side)
    }
}

impl Read for SimStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut streams = lock(&self.streams);
        let end = streams.end(self.conn, self.side).ok_or(io::ErrorKind::ConnectionReset)?;
        if let Some(kind) = end.error.filter(|_| end.inbox.is_empty()) {
            return Err(kind.into());
        }
        if end.inbox.is_empty() && !end.fin {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let n = end.inbox.read(buf)?;
        if n > 0 {
            streams.send(self.conn, self.side, Segment::Window(n));
        }
        Ok(n)
    }
}

impl Write for SimStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut streams = lock(&self.streams);
        let end = streams.end(self.conn, self.side).ok_or(io::ErrorKind::ConnectionReset)?;
        if let Some(kind) = end.error {
            return Err(kind.into());
        }
        let n = buf.len().min(end.window);
        if !end.connected || (n == 0 && !buf.is_empty()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        end.window -= n;
        streams.send(self.conn, self.side, Segment::Data(buf[..n].to_vec()));
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for SimStream {
    fn register(&mut self, token: u64) {
        let mut streams = lock(&self.streams);
        if let Some(end) = streams.end(self.conn, self.side) {
            end.token = Some(token);
        }
        streams.stir(self.conn, self.side);
    }

    fn connected(&mut self) -> io::Result<Option<()>> {
        let mut streams = lock(&self.streams);
        let end = streams.end(self.conn, self.side).ok_or(io::ErrorKind::ConnectionReset)?;
        match end.error {
            Some(kind) => Err(kind.into()),
            None => Ok(end.connected.then_some(())),
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        let mut streams = lock(&self.streams);
        let end = streams.end(self.conn, self.side).ok_or(io::ErrorKind::NotConnected)?;
        Ok(end.addr)
    }

    fn abort_on_close(&self) {
        if let Some(end) = lock(&self.streams).end(self.conn, self.side) {
            end.abort = true;
        }
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        lock(&self.streams).close(self.conn, self.side);
    }
}
