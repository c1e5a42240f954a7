//! One control connection: greeting, framing, buffers. Independent of endpoints.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use courser_buf::Addr;
use courser_proto::{
    CONTROL_MAX, CONTROL_PREAMBLE, ConnectAccept, ControlDecoder, ControlMsg, Heartbeat,
    HostIdentity,
};

use super::network::Stream;
use super::usage::Usage;
use crate::error::control::LostReason;

/// The state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// TCP's handshake is under way (outbound only).
    Connecting,
    /// The other side's greeting has not arrived.
    Greeting,
    /// Open: messages are exchanged.
    Open,
}

/// The result of parsing received bytes.
#[derive(Debug)]
pub(super) enum Step {
    /// The greeting was received: the phase is [`Phase::Open`] now.
    Greeted,
    /// A message.
    Msg(ControlMsg),
}

/// One connection.
#[derive(Debug)]
pub(super) struct Conn<S> {
    pub(super) stream: S,
    pub(super) phase: Phase,
    /// The address of the other side. A mapped IPv6 address is converted to IPv4.
    pub(super) remote: SocketAddr,
    /// The local address.
    pub(super) local: SocketAddr,
    /// Both sides are known to be on one host.
    pub(super) same_host: bool,
    /// The dial that opened it; `None`: inbound.
    pub(super) dial: Option<u64>,
    /// Expiry of its timer. Before the connection is open, it ends then; afterwards its heartbeat
    /// is checked.
    pub(super) deadline: Instant,
    /// It has got more time for its greeting because this thread was late.
    pub(super) excused: bool,
    /// Failure detection of an open connection.
    pub(super) heartbeat: Option<Heartbeat>,
    /// Endpoints of this nexus that exchanged messages over it; they are notified when it ends.
    pub(super) used: BTreeSet<u16>,
    /// Its users.
    pub(super) usage: Usage,
    /// Its key in the list of idle inbound connections; `None`: not in the list.
    pub(super) idle_since: Option<Instant>,
    /// In the list of connections to flush at the end of the pass.
    pub(super) dirty: bool,
    /// In the list of connections to read in the next pass.
    pub(super) ready: bool,
    /// `out` contains an unsent `Pong`, which answers every `Ping` until it is written.
    pub(super) pong: bool,
    decoder: ControlDecoder,
    /// The identity of this host is queued.
    stated_host: bool,
    /// A message that arrived together with the greeting.
    held: Option<ControlMsg>,
    out: Vec<u8>,
    /// Bytes of `out` that were written.
    written: usize,
    /// Bytes of this connection in the driver's sum of unsent bytes.
    counted: usize,
}

impl<S: Stream> Conn<S> {
    /// Wraps a stream and queues the greeting.
    pub(super) fn new(
        stream: S,
        phase: Phase,
        remote: SocketAddr,
        dial: Option<u64>,
        now: Instant,
        deadline: Instant,
    ) -> Self {
        Conn {
            phase,
            remote: canonical(remote),
            local: remote,
            same_host: false,
            dial,
            deadline,
            excused: false,
            heartbeat: None,
            used: BTreeSet::new(),
            usage: Usage::new(now),
            idle_since: None,
            dirty: false,
            ready: false,
            pong: false,
            decoder: ControlDecoder::default(),
            stated_host: false,
            held: None,
            out: CONTROL_PREAMBLE.to_vec(),
            written: 0,
            counted: 0,
            stream,
        }
    }

    /// The host of the other side, as in [`Addr`]: with the zone of a link-local address.
    pub(super) fn host(&self) -> u128 {
        Addr::from_socket(self.remote).host
    }

    /// Handles the end of the TCP handshake: sets the socket's options and reads its address.
    pub(super) fn connected(&mut self) -> io::Result<()> {
        self.local = canonical(self.stream.local_addr()?);
        if self.local == self.remote {
            // TCP connects a socket to itself when the dialed port is free and the kernel assigns
            // it as the source port. Nothing listens there.
            return Err(rustix::io::Errno::CONNREFUSED.into());
        }
        self.stream.prepare()?;
        self.phase = Phase::Greeting;
        Ok(())
    }

    /// Parses the next greeting or message of the received bytes. Queues the rest of the greeting when
    /// the other side's version is known; `host` is this host.
    pub(super) fn step(&mut self, host: HostIdentity) -> Result<Option<Step>, LostReason> {
        if let Some(msg) = self.held.take() {
            return Ok(Some(Step::Msg(msg)));
        }
        let msg = self.decoder.next_msg();
        if self.decoder.wants_host() && !std::mem::replace(&mut self.stated_host, true) {
            self.out.extend_from_slice(&host.0);
        }
        if self.phase == Phase::Greeting && self.decoder.greeted() {
            self.phase = Phase::Open;
            // Addresses alone prove nothing, and machines that were copied have one identity.
            let same_address = self.remote.ip() == self.local.ip();
            self.same_host = same_address && host.is_same(self.decoder.host());
            // The decoder keeps the bytes of an invalid message, so the next call returns the error
            // again.
            self.held = msg.unwrap_or_default().map(|msg| self.with_dialed_port(msg));
            return Ok(Some(Step::Greeted));
        }
        Ok(msg?.map(|msg| Step::Msg(self.with_dialed_port(msg))))
    }

    /// Reads once. Returns false when there is nothing more to read.
    pub(super) fn fill(&mut self) -> Result<bool, LostReason> {
        let mut buf = [0; 4 + CONTROL_MAX];
        // Only a complete message fills the buffer, and `step` has consumed complete messages.
        let room = self.decoder.room().min(buf.len());
        loop {
            match self.stream.read(&mut buf[..room]) {
                Ok(0) => return Err(LostReason::Closed),
                Ok(n) => {
                    self.decoder.push(&buf[..n]);
                    return Ok(true);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Queues a message. The driver checks the limits.
    pub(super) fn queue(&mut self, msg: &ControlMsg) {
        let bytes = match msg {
            ControlMsg::Accept { to, from, accept } if self.is_at_dialed_port(accept) => {
                let accept = ConnectAccept { port: ConnectAccept::DIALED_PORT, ..accept.clone() };
                self.decoder.encode(&ControlMsg::Accept { to: *to, from: *from, accept })
            }
            msg => self.decoder.encode(msg),
        };
        // Compact when more than half is written: each byte is moved once on average.
        if self.written > self.out.len() / 2 {
            self.out.drain(..self.written);
            self.written = 0;
        }
        self.out.extend_from_slice(&bytes);
    }

    /// Returns whether a server's datapath has the port of its side of this connection. The client's side
    /// may have another one, by a translation of addresses.
    fn is_at_dialed_port(&self, accept: &ConnectAccept) -> bool {
        let is_own = accept.port == u32::from(self.local.port());
        self.dial.is_none() && is_own && self.decoder.names_dialed_port()
    }

    /// Replaces the name of the dialed port in a server's answer by the port.
    fn with_dialed_port(&self, mut msg: ControlMsg) -> ControlMsg {
        if let ControlMsg::Accept { accept, .. } = &mut msg
            && accept.port == ConnectAccept::DIALED_PORT
            && self.dial.is_some()
        {
            accept.port = self.remote.port().into();
        }
        msg
    }

    /// Unsent bytes.
    pub(super) fn pending(&self) -> usize {
        self.out.len() - self.written
    }

    /// Updates the driver's sum of unsent bytes.
    pub(super) fn count_pending(&mut self, sum: &mut usize) {
        *sum = *sum - self.counted + self.pending();
        self.counted = self.pending();
    }

    /// Subtracts this connection from the driver's sum.
    pub(super) fn forget_pending(&mut self, sum: &mut usize) {
        *sum -= std::mem::take(&mut self.counted);
    }

    /// Writes as much as the socket accepts.
    pub(super) fn flush(&mut self) -> Result<(), LostReason> {
        while self.pending() > 0 {
            match self.stream.write(&self.out[self.written..]) {
                Ok(0) => return Err(LostReason::Closed),
                Ok(n) => self.written += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    // Keep only unsent bytes, so that the limits bound memory.
                    if self.written > self.pending() {
                        self.out.drain(..self.written);
                        self.written = 0;
                        self.out.shrink_to(2 * self.out.len());
                    }
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        // Free the buffer, which may have grown in a burst.
        self.out = Vec::new();
        self.written = 0;
        self.pong = false;
        Ok(())
    }
}

/// Converts a mapped IPv6 address to IPv4.
pub(super) fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, v6.port())),
            None => addr,
        },
        SocketAddr::V4(_) => addr,
    }
}
