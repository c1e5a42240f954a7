//! One control connection: greeting, framing, buffers. Knows nothing of endpoints.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use courser_proto::{CONTROL_MAX, CONTROL_PREAMBLE, ControlDecoder, ControlMsg, Heartbeat};

use super::LostReason;
use super::network::Stream;
use super::upkeep::Usage;

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// TCP's handshake is under way (outbound only).
    Connecting,
    /// The other side's greeting has not arrived.
    Greeting,
    /// Messages flow.
    Open,
}

/// What the other side's bytes led to.
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
    /// The other side, IPv4 never in IPv6's clothes.
    pub(super) remote: SocketAddr,
    /// This side.
    pub(super) local: SocketAddr,
    /// The dial that made it; `None`: inbound.
    pub(super) dial: Option<u64>,
    /// When its timer goes off: it ends unless it is open by then; once it is, its heartbeat is
    /// looked at.
    pub(super) deadline: Instant,
    /// Failure detection, once it is open.
    pub(super) heartbeat: Option<Heartbeat>,
    /// Endpoints of this nexus that had to do with it: each has had mail from here.
    pub(super) used: BTreeSet<u16>,
    /// Who uses it; of interest when it was dialed.
    pub(super) usage: Usage,
    /// Queued to be flushed at the end of the pass.
    pub(super) dirty: bool,
    /// Queued to be read in the next pass.
    pub(super) ready: bool,
    /// A `Pong` waits in `out`: it answers every `Ping` that comes until it is written.
    pub(super) pong: bool,
    decoder: ControlDecoder,
    /// A message that came together with the greeting.
    held: Option<ControlMsg>,
    out: Vec<u8>,
    /// Bytes of `out` that are written.
    written: usize,
    /// Bytes that the driver has counted as waiting here.
    counted: usize,
}

impl<S: Stream> Conn<S> {
    /// Takes over a stream; the greeting is queued.
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
            dial,
            deadline,
            heartbeat: None,
            used: BTreeSet::new(),
            usage: Usage::new(now),
            dirty: false,
            ready: false,
            pong: false,
            decoder: ControlDecoder::default(),
            held: None,
            out: CONTROL_PREAMBLE.to_vec(),
            written: 0,
            counted: 0,
            stream,
        }
    }

    /// TCP's handshake is over: sets the socket's options and reads its address.
    pub(super) fn connected(&mut self) -> io::Result<()> {
        self.local = canonical(self.stream.local_addr()?);
        if self.local == self.remote {
            // TCP may connect a socket to itself, when the port dialed is a free one that the
            // kernel has just given to the socket: no server listens there.
            return Err(rustix::io::Errno::CONNREFUSED.into());
        }
        self.stream.prepare()?;
        self.phase = Phase::Greeting;
        Ok(())
    }

    /// The next thing that the bytes received so far amount to.
    pub(super) fn step(&mut self) -> Result<Option<Step>, LostReason> {
        if let Some(msg) = self.held.take() {
            return Ok(Some(Step::Msg(msg)));
        }
        let msg = self.decoder.next_msg();
        if self.phase == Phase::Greeting && self.decoder.greeted() {
            self.phase = Phase::Open;
            // An error after the greeting is found again by the next call: the decoder keeps the
            // bytes that it could not understand.
            self.held = msg.unwrap_or_default();
            return Ok(Some(Step::Greeted));
        }
        Ok(msg?.map(Step::Msg))
    }

    /// Reads once. False: there is nothing more for now.
    pub(super) fn fill(&mut self) -> Result<bool, LostReason> {
        let mut buf = [0; 4 + CONTROL_MAX];
        // Only a complete message leaves no room, and steps have taken those out.
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

    /// Queues a message. How much may wait is the driver's question.
    pub(super) fn queue(&mut self, msg: &ControlMsg) {
        let bytes = msg.encode();
        // What is written goes when it is the larger part: each byte moves once on average.
        if self.written > self.out.len() / 2 {
            self.out.drain(..self.written);
            self.written = 0;
        }
        self.out.extend_from_slice(&bytes);
    }

    /// Bytes that wait to be written.
    pub(super) fn pending(&self) -> usize {
        self.out.len() - self.written
    }

    /// Brings the driver's sum of waiting bytes up to date.
    pub(super) fn count_pending(&mut self, sum: &mut usize) {
        *sum = *sum - self.counted + self.pending();
        self.counted = self.pending();
    }

    /// Takes this connection out of the driver's sum.
    pub(super) fn forget_pending(&mut self, sum: &mut usize) {
        *sum -= std::mem::take(&mut self.counted);
    }

    /// Writes what the socket takes.
    pub(super) fn flush(&mut self) -> Result<(), LostReason> {
        while self.pending() > 0 {
            match self.stream.write(&self.out[self.written..]) {
                Ok(0) => return Err(LostReason::Closed),
                Ok(n) => self.written += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    // What is kept is what waits, so that the limits bound memory.
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
        // A burst's buffer is not kept for the life of the connection.
        self.out = Vec::new();
        self.written = 0;
        self.pong = false;
        Ok(())
    }
}

/// IPv4 as IPv4, whatever socket it came by.
fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, v6.port())),
            None => addr,
        },
        SocketAddr::V4(_) => addr,
    }
}
