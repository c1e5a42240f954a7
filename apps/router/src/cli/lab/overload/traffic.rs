//! Datagrams from one host to another: a flood with a rate, and requests that are answered.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use courser_kit::Failure;
use courser_kit::latency::{Latency, Percentiles};
use courser_router::netns::Namespace;

/// Bytes of a datagram's payload: a packet of 50 bytes, which the link pads to 64 with its header.
pub(super) const PAYLOAD: usize = 22;
/// Flows of a flood.
pub(super) const FLOWS: usize = 16;

const FLOOD_PORT: u16 = 7_000;
const ECHO_PORT: u16 = 7_001;
/// Bytes of a receiver's queue, as far as the system allows it.
const QUEUE: usize = 64 << 20;
/// A receiver looks that often whether it should end.
const LOOK: Duration = Duration::from_millis(50);
/// A flood is sent in bursts of at most this many datagrams of a flow.
const BURST: u64 = 64;
/// A sender that is ahead of its rate sleeps for this long.
const AHEAD: Duration = Duration::from_micros(20);
/// A request that is not answered for so long counts as lost.
const ANSWER: Duration = Duration::from_millis(500);
/// Time between two requests.
const PAUSE: Duration = Duration::from_micros(500);

/// From one host to another.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) from: &'a Namespace,
    pub(super) to: &'a Namespace,
    pub(super) address: IpAddr,
}

/// The result of a flood.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Flood {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Arrived after one of the same flow that was sent later, or twice.
    pub(super) out_of_order: u64,
    /// Time in which they were sent.
    pub(super) time: Duration,
}

impl Flood {
    pub(super) fn offered_pps(&self) -> f64 {
        self.sent as f64 / self.time.as_secs_f64().max(1e-9)
    }

    pub(super) fn delivered_pps(&self) -> f64 {
        self.received as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// The result of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answers {
    pub(super) latency: Option<Percentiles>,
    pub(super) lost: u64,
}

/// Opens a socket of a host, by a thread that returns to its own namespace.
fn socket(host: &Namespace, port: u16) -> io::Result<UdpSocket> {
    let _inside = host.enter()?;
    let socket = UdpSocket::bind(("0.0.0.0", port))?;
    // Without the privilege the system's limit remains.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, QUEUE);
    Ok(socket)
}

fn failed(error: io::Error) -> Failure {
    Failure::Runtime(format!("a host's socket failed: {error}; repeat"))
}

/// Sends datagrams for some time, `rate_pps` a second or as many as the sender can, and counts
/// those that arrive.
pub(super) fn flood(
    pair: Pair<'_>,
    rate_pps: Option<f64>,
    time: Duration,
) -> Result<Flood, Failure> {
    let receiver = socket(pair.to, FLOOD_PORT).map_err(failed)?;
    receiver.set_read_timeout(Some(LOOK)).map_err(failed)?;
    let to = SocketAddr::from((pair.address, FLOOD_PORT));
    let flows: io::Result<Vec<UdpSocket>> = (0..FLOWS)
        .map(|_| {
            let socket = socket(pair.from, 0)?;
            socket.connect(to)?;
            Ok(socket)
        })
        .collect();
    let flows = flows.map_err(failed)?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let counting = scope.spawn(|| count(&receiver, &done));
        let (sent, time) = send(&flows, rate_pps, time);
        // Datagrams on their way arrive.
        thread::sleep(2 * LOOK);
        done.store(true, Ordering::Relaxed);
        let (received, out_of_order) = joined(counting)?.map_err(failed)?;
        Ok(Flood { sent, received, out_of_order, time })
    })
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> Result<T, Failure> {
    thread.join().map_err(|_| Failure::Runtime("a host's thread ended early; repeat".to_owned()))
}

/// Returns the number of datagrams that were sent, and the time that it took.
fn send(flows: &[UdpSocket], rate_pps: Option<f64>, time: Duration) -> (u64, Duration) {
    let begin = Instant::now();
    let (mut sent, mut turn) = (0, 0);
    let mut numbers = [0_u32; FLOWS];
    let mut datagram = [0; PAYLOAD];
    loop {
        let elapsed = begin.elapsed();
        if elapsed >= time {
            return (sent, elapsed);
        }
        let due = rate_pps.map_or(u64::MAX, |rate| (elapsed.as_secs_f64() * rate) as u64);
        let burst = due.saturating_sub(sent).min(BURST);
        if burst == 0 {
            thread::sleep(AHEAD);
            continue;
        }
        for _ in 0..burst {
            datagram[..4].copy_from_slice(&numbers[turn].to_le_bytes());
            datagram[4] = turn as u8;
            // A datagram that the sender's own system refuses was not offered.
            if flows[turn].send(&datagram).is_ok() {
                numbers[turn] += 1;
                sent += 1;
            }
        }
        turn = (turn + 1) % flows.len();
    }
}

/// Returns the numbers of datagrams, and of those out of order.
fn count(receiver: &UdpSocket, done: &AtomicBool) -> io::Result<(u64, u64)> {
    let (mut received, mut out_of_order) = (0, 0);
    let mut next = [0_u32; FLOWS];
    let mut datagram = [0; PAYLOAD];
    while !done.load(Ordering::Relaxed) {
        match receiver.recv(&mut datagram) {
            Ok(PAYLOAD) => {
                let [a, b, c, d, flow, ..] = datagram;
                let number = u32::from_le_bytes([a, b, c, d]);
                let Some(next) = next.get_mut(usize::from(flow)) else { continue };
                received += 1;
                out_of_order += u64::from(number < *next);
                *next = (*next).max(number + 1);
            }
            Ok(_) => {}
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok((received, out_of_order))
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Sends requests for some time, one after the other, and measures the time until their answers.
pub(super) fn ask(pair: Pair<'_>, time: Duration) -> Result<Answers, Failure> {
    let server = socket(pair.to, ECHO_PORT).map_err(failed)?;
    server.set_read_timeout(Some(LOOK)).map_err(failed)?;
    let client = socket(pair.from, 0).map_err(failed)?;
    client.connect((pair.address, ECHO_PORT)).map_err(failed)?;
    client.set_read_timeout(Some(ANSWER)).map_err(failed)?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let answering = scope.spawn(|| answer(&server, &done));
        let asked = requests(&client, time);
        done.store(true, Ordering::Relaxed);
        joined(answering)?;
        asked.map_err(failed)
    })
}

fn requests(client: &UdpSocket, time: Duration) -> io::Result<Answers> {
    let begin = Instant::now();
    let (mut latency, mut lost, mut number) = (Latency::new(), 0, 0_u64);
    let mut answer = [0; PAYLOAD];
    while begin.elapsed() < time {
        let mut request = [0; PAYLOAD];
        request[..8].copy_from_slice(&number.to_le_bytes());
        let sent = Instant::now();
        client.send(&request)?;
        loop {
            match client.recv(&mut answer) {
                // The answer to an earlier request, which counted as lost.
                Ok(_) if answer != request => {}
                Ok(_) => break latency.record(sent.elapsed().as_nanos() as u64),
                Err(error) if is_timeout(&error) => break lost += 1,
                Err(error) => return Err(error),
            }
        }
        number += 1;
        thread::sleep(PAUSE);
    }
    Ok(Answers { latency: latency.take(), lost })
}

fn answer(server: &UdpSocket, done: &AtomicBool) {
    let mut datagram = [0; PAYLOAD];
    while !done.load(Ordering::Relaxed) {
        if let Ok((length, from)) = server.recv_from(&mut datagram) {
            // An answer that is refused counts as lost at the other end.
            let _ = server.send_to(&datagram[..length], from);
        }
    }
}
