//! Length, kind and payload over one TCP connection; all that is ready goes into one system call,
//! requests without a copy of our own.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use anyhow::{Context, Result, bail, ensure};
use courser_bench::clock::Clock;
use courser_bench::window::Sample;

use super::{Idle, Patience};
use crate::contestants::{Client, Contestant, Ready, Role};
use crate::work::{Kind, MAX_REQUEST, Meter, RECEIPT, Work, receipt, request};

pub(in crate::contestants) const TCP: Contestant = Contestant {
    name: "raw-tcp",
    about: "bare TCP socket, spinning",
    transport: "tcp",
    role: Role::Limit,
    max_request: MAX_REQUEST,
    serve,
    connect,
};

/// Before each request: its length and its kind, four bytes each, little-endian.
const HEAD: usize = 8;

/// Bytes asked of one receive call.
const CHUNK: usize = 256 << 10;

/// A non-blocking stream with what was received.
struct Pipe {
    stream: TcpStream,
    received: Vec<u8>,
    /// Where what is not yet used begins and ends.
    begin: usize,
    end: usize,
}

impl Pipe {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, received: vec![0; CHUNK], begin: 0, end: 0 })
    }

    /// What has arrived and is not used up.
    fn arrived(&self) -> &[u8] {
        &self.received[self.begin..self.end]
    }

    fn use_up(&mut self, len: usize) {
        self.begin += len;
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
    }

    /// Makes room for a message of `len` bytes that begins with what has arrived.
    fn reserve(&mut self, len: usize) {
        if self.begin + len > self.received.len() {
            self.received.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
            self.received.resize(self.received.len().max(len + CHUNK), 0);
        }
    }

    /// Receives what there is. False: nothing.
    fn receive(&mut self) -> Result<bool> {
        self.reserve(self.end - self.begin + 1);
        match self.stream.read(&mut self.received[self.end..]) {
            Ok(0) => bail!("the other side closed the connection"),
            Ok(len) => {
                self.end += len;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends what the socket takes of `parts`. Returns how many bytes.
    fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize> {
        match self.stream.write_vectored(parts) {
            Ok(len) => Ok(len),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

fn serve(ready: Ready<'_>) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    ready(&listener.local_addr()?.to_string());
    loop {
        let (stream, _) = listener.accept()?;
        // One client after another; how one of them ends is its own business.
        let _ = serve_one(Pipe::new(stream)?);
    }
}

fn serve_one(mut pipe: Pipe) -> Result<()> {
    let mut idle = Idle::new();
    let (mut unsent, mut sent) = (Vec::new(), 0);
    loop {
        let mut worked = pipe.receive()?;
        while let Some(&[l0, l1, l2, l3, kind, ..]) = pipe.arrived().first_chunk::<HEAD>() {
            let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
            ensure!(len <= MAX_REQUEST, "a request of {len} bytes");
            let Some(payload) = pipe.arrived().get(HEAD..HEAD + len) else {
                pipe.reserve(HEAD + len);
                break;
            };
            match kind {
                0 => unsent.extend_from_slice(payload),
                _ => unsent.extend_from_slice(&receipt(payload)),
            }
            pipe.use_up(HEAD + len);
        }
        if sent < unsent.len() {
            let len = pipe.send(&[IoSlice::new(&unsent[sent..])])?;
            worked |= len > 0;
            sent += len;
        }
        if sent == unsent.len() {
            unsent.clear();
            sent = 0;
        }
        if worked {
            idle.worked();
        } else if unsent.is_empty() {
            idle.wait(&pipe.stream)?;
        }
    }
}

fn connect(address: &str) -> Result<Box<dyn Client>> {
    let pipe = Pipe::new(TcpStream::connect(address).context("cannot connect")?)?;
    Ok(Box::new(Tcp { pipe, clock: Clock::new() }))
}

struct Tcp {
    pipe: Pipe,
    clock: Clock,
}

/// Requests that are still to be sent.
struct Outbox {
    messages: Vec<Vec<u8>>,
    /// Which of the messages, in order.
    queue: VecDeque<usize>,
    /// Bytes of the first that are sent.
    offset: usize,
}

impl Outbox {
    /// One message for each request in flight, all to be sent.
    fn new(work: &Work) -> Self {
        let message = |index| {
            let mut message = Vec::with_capacity(HEAD + work.size);
            message.extend((work.size as u32).to_le_bytes());
            message.extend([u8::from(work.kind == Kind::Sink), 0, 0, 0]);
            message.extend(request(index, work.size));
            message
        };
        Self {
            messages: (0..work.in_flight).map(message).collect(),
            queue: (0..work.in_flight).collect(),
            offset: 0,
        }
    }

    /// Sends what the socket takes. False: nothing.
    fn send(&mut self, pipe: &mut Pipe) -> Result<bool> {
        const PARTS: usize = 64;
        if self.queue.is_empty() {
            return Ok(false);
        }
        let mut parts = [IoSlice::new(&[]); PARTS];
        let mut offset = self.offset;
        let count = self.queue.len().min(PARTS);
        for (part, &index) in parts.iter_mut().zip(&self.queue) {
            *part = IoSlice::new(&self.messages[index][offset..]);
            offset = 0;
        }
        let sent = pipe.send(&parts[..count])?;
        self.offset += sent;
        while let Some(&index) = self.queue.front()
            && self.offset >= self.messages[index].len()
        {
            self.offset -= self.messages[index].len();
            self.queue.pop_front();
        }
        Ok(sent > 0)
    }
}

impl Client for Tcp {
    fn run(&mut self, work: &Work) -> Result<Sample> {
        let answer_len = if work.kind == Kind::Echo { work.size } else { RECEIPT };
        ensure!(answer_len > 0, "an answer without a byte cannot be told from none");
        let mut outbox = Outbox::new(work);
        let mut patience = Patience::new();
        let mut meter = Meter::start(&self.clock, work);
        // Answers come in the order of the requests.
        let (mut next, mut open) = (0, work.in_flight);
        while open > 0 {
            let mut worked = outbox.send(&mut self.pipe)?;
            worked |= self.pipe.receive()?;
            while open > 0 && self.pipe.arrived().len() >= answer_len {
                let answer = &self.pipe.arrived()[..answer_len];
                meter.check(next, &outbox.messages[next][HEAD..], answer)?;
                self.pipe.use_up(answer_len);
                if meter.ended(next) {
                    outbox.queue.push_back(next);
                } else {
                    open -= 1;
                }
                next = (next + 1) % work.in_flight;
            }
            if worked {
                patience.heard();
            } else {
                patience.waited()?;
            }
        }
        Ok(meter.sample())
    }
}
