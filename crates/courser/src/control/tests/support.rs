//! Shared by the tests: a nexus's control plane, its endpoints, and scripted peers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use courser_net::ControlSockets;
use courser_proto::{
    CONTROL_GREETING, CONTROL_PREAMBLE, ConnectAccept, ConnectRequest, ControlDecoder, ControlMsg,
    ControlRefusal, EndpointRef, Integrity, Recovery, RemoteSession, Room, Schemes,
};

use socket2::{Domain, Socket, Type};

use crate::control::mailbox::Mailbox;
use crate::control::{Command, Control, DEFAULT_FAILURE_TIMEOUT, Dialed, Limits, Mail, Tables};
use crate::error::{DialError, LostReason};
use crate::platform::{Platform, random_u64};

/// Time after which a test fails.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// The endpoint of a scripted peer.
pub(super) const PEER_ENDPOINT: EndpointRef = EndpointRef { index: 1, id: 0x5712 };

/// Waits until `holds` returns true.
pub(super) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// One nexus's control plane.
pub(super) struct Node {
    pub(super) control: Control,
    pub(super) port: u16,
}

impl Node {
    /// Starts one. The default failure timeout is raised, as scripted peers answer pings only while
    /// they are read.
    pub(super) fn start(bind: &str, limits: Limits) -> Node {
        Node::start_over(&ControlSockets::Tcp, bind, limits)
    }

    /// [`Node::start`] over other sockets.
    pub(super) fn start_over(sockets: &ControlSockets, bind: &str, mut limits: Limits) -> Node {
        if limits.failure_timeout == DEFAULT_FAILURE_TIMEOUT {
            limits.failure_timeout = 10 * PATIENCE;
        }
        let (control, bound) =
            Control::start(&Platform::System, sockets, bind.parse().unwrap(), limits).unwrap();
        Node { control, port: bound.port() }
    }

    /// The sizes of its tables.
    pub(super) fn tables(&self) -> Tables {
        let (to, tables) = std::sync::mpsc::channel();
        assert!(self.control.send(Command::Inspect(to)));
        tables.recv().unwrap()
    }

    pub(super) fn at_loopback(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    pub(super) fn register(&self, index: u16, accepts: bool) -> End {
        let mailbox = Mailbox::new(&Platform::System, index).unwrap();
        let id = random_u64();
        let register = Command::Register { index, id, mailbox: mailbox.clone(), accepts };
        assert!(self.control.send(register));
        End { index, id, mailbox, unread: RefCell::default() }
    }

    pub(super) fn ask(&self, e: &End, ticket: u64, host: &str, port: u16) {
        let dial = Command::Dial { index: e.index, ticket, host: host.into(), port };
        assert!(self.control.send(dial));
    }

    pub(super) fn dial(&self, e: &End, host: &str, port: u16) -> Result<Dialed, DialError> {
        let ticket = random_u64();
        self.ask(e, ticket, host, port);
        e.dialed(ticket)
    }

    pub(super) fn send(&self, control: u64, msg: ControlMsg) {
        assert!(self.control.send(Command::Send { control, msg }));
    }
}

/// A registered endpoint and its mailbox.
pub(super) struct End {
    pub(super) index: u16,
    pub(super) id: u64,
    pub(super) mailbox: Mailbox,
    unread: RefCell<VecDeque<Mail>>,
}

impl End {
    pub(super) fn me(&self) -> EndpointRef {
        EndpointRef { index: self.index, id: self.id }
    }

    /// The next mail except questions for signs of life.
    pub(super) fn next(&self) -> Mail {
        loop {
            match self.next_any() {
                Mail::Unanswered { .. } => {}
                mail => return mail,
            }
        }
    }

    pub(super) fn next_any(&self) -> Mail {
        let mut unread = self.unread.borrow_mut();
        if unread.is_empty() {
            eventually("mail", || self.mailbox.has_mail());
            let mut out = Vec::new();
            self.mailbox.take(&mut out);
            unread.extend(out);
        }
        unread.pop_front().unwrap()
    }

    pub(super) fn dialed(&self, expected: u64) -> Result<Dialed, DialError> {
        match self.next() {
            Mail::Dialed { ticket, result } if ticket == expected => result,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn msg(&self) -> (u64, IpAddr, IpAddr, ControlMsg) {
        match self.next() {
            Mail::Msg { control, remote, local, msg, .. } => {
                (control, remote.ip(), local.ip(), msg)
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn lost(&self) -> (u64, LostReason) {
        match self.next() {
            Mail::Lost { control, reason } => (control, reason),
            other => panic!("{other:?}"),
        }
    }
}

/// The remote end of a control connection, scripted byte by byte.
pub(super) struct Peer {
    pub(super) stream: TcpStream,
    decoder: ControlDecoder,
}

impl Peer {
    pub(super) fn connect(port: u16) -> Peer {
        Peer::new(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap())
    }

    pub(super) fn new(stream: TcpStream) -> Peer {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Peer { stream, decoder: ControlDecoder::default() }
    }

    /// Connects from another address of this host, which stands for another host.
    pub(super) fn connect_from(host: [u8; 4], port: u16) -> Peer {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((host, 0)).into()).unwrap();
        socket.connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into()).unwrap();
        Peer::new(socket.into())
    }

    /// Exchanges greetings.
    pub(super) fn greet(&mut self) {
        self.greet_as(&CONTROL_GREETING);
    }

    /// Exchanges greetings; this is that of the peer.
    pub(super) fn greet_as(&mut self, greeting: &[u8]) {
        self.stream.write_all(greeting).unwrap();
        // One of an older version gets no more than the preamble.
        let mut hello = vec![0; greeting.len()];
        self.stream.read_exact(&mut hello).unwrap();
        assert_eq!(hello[..8], CONTROL_PREAMBLE);
        hello[..8].copy_from_slice(&greeting[..8]);
        self.decoder.push(&hello);
    }

    pub(super) fn send(&mut self, msg: &ControlMsg) {
        self.stream.write_all(&msg.encode()).unwrap();
    }

    /// The next message except heartbeats; pings are answered. `None`: the connection is closed.
    pub(super) fn recv(&mut self) -> Option<ControlMsg> {
        loop {
            match self.recv_any() {
                Some(ControlMsg::Ping) => self.send(&ControlMsg::Pong),
                Some(ControlMsg::Pong) => {}
                other => return other,
            }
        }
    }

    /// The next message.
    pub(super) fn recv_any(&mut self) -> Option<ControlMsg> {
        loop {
            if let Some(msg) = self.decoder.next_msg().unwrap() {
                return Some(msg);
            }
            let mut buf = vec![0; self.decoder.room()];
            match self.read(&mut buf) {
                0 => return None,
                n => assert_eq!(self.decoder.push(&buf[..n]), n),
            }
        }
    }

    /// Reads; 0 when the connection was closed or reset.
    /// Returns whether it is refused in place of a greeting, as there are too many connections.
    pub(super) fn is_refused(&mut self) -> bool {
        let mut answer = [0; 8];
        assert_eq!(self.read(&mut answer), 8);
        let refused = answer == ControlRefusal::Connections.to_bytes();
        assert!(!refused || self.read(&mut answer) == 0, "it is closed");
        refused
    }

    pub(super) fn read(&mut self, buf: &mut [u8]) -> usize {
        match self.stream.read(buf) {
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => 0,
            Err(e) => panic!("neither data nor a close: {e}"),
        }
    }
}

/// Returns whether a descriptor becomes readable.
pub(super) fn poll_readable(fd: RawFd, timeout: Duration) -> bool {
    let mut poll = mio::Poll::new().unwrap();
    let mut source = mio::unix::SourceFd(&fd);
    poll.registry().register(&mut source, mio::Token(0), mio::Interest::READABLE).unwrap();
    let mut events = mio::Events::with_capacity(1);
    poll.poll(&mut events, Some(timeout)).unwrap();
    !events.is_empty()
}

pub(super) fn connect(from: EndpointRef, to: Option<u16>, session: u32) -> ControlMsg {
    let request = ConnectRequest {
        endpoint_id: from.id,
        port: 4000,
        session,
        peer: 0,
        cookie: 1,
        max_frame: 1500,
        credits: 32,
        pool: 32,
        slots: 8,
        max_msg_size: 1 << 20,
        first_req_num: 0,
        recovery: Recovery::Selective,
        integrity: Integrity::None,
        room: Room::UNIFORM,
    };
    ControlMsg::Connect { from, to, request }
}

pub(super) fn requested_session(msg: &ControlMsg) -> u32 {
    match msg {
        ControlMsg::Connect { request, .. } => request.session,
        other => panic!("{other:?}"),
    }
}

pub(super) fn accept(to: EndpointRef, from: EndpointRef, session: u32) -> ControlMsg {
    let accept = ConnectAccept {
        endpoint_id: from.id,
        port: 4001,
        client_session: 11,
        client_peer: 0,
        session: RemoteSession { number: session, first_req_num: 0 },
        peer: 0,
        client_cookie: 1,
        cookie: 2,
        data_per_packet: 1024,
        slots: 8,
        credits: 32,
        pool: 32,
        max_msg_size: 1 << 20,
        schemes: Schemes { recovery: Recovery::Selective, integrity: Integrity::None },
        room: Room::UNIFORM,
    };
    ControlMsg::Accept { to, from, accept }
}

pub(super) fn disconnect(from: EndpointRef, to: EndpointRef, number: u32) -> ControlMsg {
    let session = RemoteSession { number, first_req_num: 0 };
    ControlMsg::Disconnect { from, to, session }
}
