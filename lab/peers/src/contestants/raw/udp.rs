//! One datagram per request and per answer, one system call each.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};

use anyhow::{Context, Result, ensure};
use courser_bench::clock::Clock;
use courser_bench::window::Sample;

use super::{Idle, Patience};
use crate::contestants::{Client, Contestant, Ready, Role};
use crate::work::{Kind, Meter, Work, receipt, request};

pub(in crate::contestants) const UDP: Contestant = Contestant {
    name: "raw-udp",
    about: "bare UDP socket, spinning",
    transport: "udp",
    role: Role::Limit,
    max_request: MAX_DATAGRAM - 1,
    serve,
    connect,
};

/// What a datagram over IPv4 carries.
const MAX_DATAGRAM: usize = 65_507;

/// Asked for; holds all that is in flight here, so that nothing is dropped.
const SOCKET_BUFFER: usize = 4 << 20;

fn bind() -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    socket2::SockRef::from(&socket).set_recv_buffer_size(SOCKET_BUFFER)?;
    Ok(socket)
}

/// A request is the payload and then its kind, one byte, so that the payload stands aligned.
fn serve(ready: Ready<'_>) -> Result<()> {
    let socket = bind()?;
    ready(&socket.local_addr()?.to_string());
    let mut buffer = vec![0; MAX_DATAGRAM];
    let mut idle = Idle::new();
    loop {
        let (len, from) = match socket.recv_from(&mut buffer) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                idle.wait(&socket)?;
                continue;
            }
            // What an earlier answer met at a client that is gone.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
            Err(error) => return Err(error.into()),
        };
        idle.worked();
        let sent = match buffer[..len].split_last() {
            Some((0, payload)) => socket.send_to(payload, from),
            Some((_, payload)) => socket.send_to(&receipt(payload), from),
            None => continue,
        };
        // As any datagram, an answer may be lost: the client sees to it.
        if let Err(error) = sent
            && !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused)
        {
            return Err(error.into());
        }
    }
}

fn connect(address: &str) -> Result<Box<dyn Client>> {
    let socket = bind()?;
    socket.connect(address)?;
    Ok(Box::new(Udp { socket, clock: Clock::new() }))
}

struct Udp {
    socket: UdpSocket,
    clock: Clock,
}

impl Client for Udp {
    fn run(&mut self, work: &Work) -> Result<Sample> {
        ensure!(work.size < MAX_DATAGRAM, "a datagram carries at most {MAX_DATAGRAM} bytes");
        let mut requests: Vec<Vec<u8>> =
            (0..work.in_flight).map(|index| request(index, work.size)).collect();
        for request in &mut requests {
            request.push(u8::from(work.kind == Kind::Sink));
        }
        let mut buffer = vec![0; MAX_DATAGRAM];
        let mut patience = Patience::new();
        let mut meter = Meter::start(&self.clock, work);
        for request in &requests {
            self.socket.send(request).context("cannot send")?;
        }
        // Loopback keeps the order: answers come as requests went, and are checked for it.
        let (mut next, mut open) = (0, work.in_flight);
        while open > 0 {
            let len = match self.socket.recv(&mut buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    patience.waited()?;
                    continue;
                }
                Err(error) => return Err(error).context("cannot receive"),
            };
            patience.heard();
            meter.check(next, &requests[next][..work.size], &buffer[..len])?;
            if meter.ended(next) {
                self.socket.send(&requests[next]).context("cannot send")?;
            } else {
                open -= 1;
            }
            next = (next + 1) % work.in_flight;
        }
        Ok(meter.sample())
    }
}
