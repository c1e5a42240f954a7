//! Datagrams with numbers between all pairs of hosts.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use courser_kit::Failure;
use courser_kit::units::show_per_second;
use courser_router::netns;
use serde::Serialize;

use super::NODES;
use crate::cli::cluster::Demo;

/// UDP port of the receivers.
const PORT: u16 = 5_000;
/// Flows of a pair: IPv4 and IPv6 in turn.
const FLOWS: usize = 4;
/// Datagrams of a flow in each tick.
const BURST: usize = 2;
/// Time between bursts.
const TICK: Duration = Duration::from_millis(4);
/// Bytes of a datagram.
const PAYLOAD: usize = 400;
/// Receivers stop when nothing has arrived for this long, or after [`DRAIN_LIMIT`].
const DRAIN: Duration = Duration::from_millis(150);
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
/// Bytes of a receiver's queue: a thread that does not run for some time loses nothing.
const QUEUE: usize = 16 << 20;

/// Senders and receivers, a thread each for each host.
pub(super) struct Traffic {
    begin: Instant,
    stop_senders: Arc<AtomicBool>,
    stop_receivers: Arc<AtomicBool>,
    arrivals: Arc<[AtomicU64; NODES]>,
    /// Hosts to which nothing is sent.
    paused: Arc<[AtomicBool; NODES]>,
    senders: Vec<JoinHandle<Sent>>,
    receivers: Vec<JoinHandle<Received>>,
}

/// Number of datagrams to each host.
type Sent = [u64; NODES];
/// Datagrams from each host.
type Received = [Option<Arrived>; NODES];

/// What became of the datagrams of a pair.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Pair {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) packets_sent: u64,
    pub(super) packets_received: u64,
    pub(super) packets_lost: u64,
    /// Arrived after one of the same flow that was sent later, or twice.
    pub(super) packets_reordered: u64,
    /// From the sender to the receiver.
    pub(super) latency_p50_ns: Option<u64>,
    pub(super) latency_p99_ns: Option<u64>,
    pub(super) latency_max_ns: u64,
    /// Longest time between two arrivals.
    pub(super) longest_gap_ns: u64,
}

/// What became of all datagrams.
pub(super) struct Outcome {
    pub(super) pairs: Vec<Pair>,
    /// From the first to the last datagram sent.
    pub(super) time: Duration,
}

impl Outcome {
    fn sum(&self, among: impl Fn(&Pair) -> bool, value: impl Fn(&Pair) -> u64) -> u64 {
        self.pairs.iter().filter(|pair| among(pair)).map(value).sum()
    }

    pub(super) fn sent(&self, among: impl Fn(&Pair) -> bool) -> u64 {
        self.sum(among, |pair| pair.packets_sent)
    }

    pub(super) fn lost(&self, among: impl Fn(&Pair) -> bool) -> u64 {
        self.sum(among, |pair| pair.packets_lost)
    }

    pub(super) fn reordered(&self, among: impl Fn(&Pair) -> bool) -> u64 {
        self.sum(among, |pair| pair.packets_reordered)
    }

    /// Datagrams a second that were received.
    pub(super) fn rate_pps(&self) -> f64 {
        self.sum(|_| true, |pair| pair.packets_received) as f64 / self.time.as_secs_f64().max(1e-9)
    }

    /// A line about pairs.
    pub(super) fn words(&self, among: impl Fn(&Pair) -> bool + Copy) -> String {
        let sent = self.sent(among);
        format!(
            "{sent} datagrams, {}: {} lost, {} out of order",
            show_per_second(sent as f64 / self.time.as_secs_f64().max(1e-9), "/s"),
            self.lost(among),
            self.reordered(among)
        )
    }
}

impl Traffic {
    /// Starts to send.
    pub(super) fn start(demo: &Demo) -> Result<Self, Failure> {
        let failed = |error| Failure::Runtime(format!("a host has no socket: {error}; repeat"));
        let mut traffic = Self {
            begin: Instant::now(),
            stop_senders: Arc::default(),
            stop_receivers: Arc::default(),
            arrivals: Arc::default(),
            paused: Arc::default(),
            senders: Vec::new(),
            receivers: Vec::new(),
        };
        let mut senders = Vec::new();
        for host in 0..NODES {
            // Sockets belong to the namespace in which they were opened; their threads do not.
            let _inside = demo.host(host).enter().map_err(failed)?;
            let socket = receiving_socket().map_err(failed)?;
            senders.push(Sender::new(host).map_err(failed)?);
            let (arrivals, stop) = (traffic.arrivals.clone(), traffic.stop_receivers.clone());
            let begin = traffic.begin;
            let receive = move || receive(&socket, begin, &arrivals[host], &stop);
            traffic.receivers.push(std::thread::spawn(receive));
        }
        for sender in senders {
            let (begin, stop) = (traffic.begin, traffic.stop_senders.clone());
            let paused = traffic.paused.clone();
            traffic.senders.push(std::thread::spawn(move || sender.run(begin, &paused, &stop)));
        }
        Ok(traffic)
    }

    /// Datagrams that a host has received.
    pub(super) fn arrivals(&self, host: usize) -> u64 {
        self.arrivals[host].load(Ordering::Relaxed)
    }

    /// Sends nothing to a host, or sends again.
    pub(super) fn pause(&self, host: usize, is_paused: bool) {
        self.paused[host].store(is_paused, Ordering::Relaxed);
    }

    /// Stops the senders, and the receivers when nothing arrives any more.
    pub(super) fn stop(self) -> Result<Outcome, Failure> {
        self.stop_senders.store(true, Ordering::Relaxed);
        let crashed = |_| Failure::Runtime("a thread of a host ended early; repeat".to_owned());
        let sent: Result<Vec<Sent>, _> = self.senders.into_iter().map(JoinHandle::join).collect();
        let sent = sent.map_err(crashed)?;
        let time = self.begin.elapsed();
        drain(&self.arrivals);
        self.stop_receivers.store(true, Ordering::Relaxed);
        let received: Result<Vec<Received>, _> =
            self.receivers.into_iter().map(JoinHandle::join).collect();
        Ok(Outcome { pairs: pairs(&sent, received.map_err(crashed)?), time })
    }
}

/// Waits until nothing arrives.
fn drain(arrivals: &[AtomicU64; NODES]) {
    let begin = Instant::now();
    let all = || arrivals.iter().map(|n| n.load(Ordering::Relaxed)).sum::<u64>();
    let mut before = u64::MAX;
    while before != all() && begin.elapsed() < DRAIN_LIMIT {
        before = all();
        std::thread::sleep(DRAIN);
    }
}

fn pairs(sent: &[Sent], received: Vec<Received>) -> Vec<Pair> {
    let mut pairs = Vec::new();
    let mut received = received;
    for from in 0..NODES {
        for to in (0..NODES).filter(|to| *to != from) {
            let sent = sent[from][to];
            let mut pair = Pair {
                from: netns::name(from).to_string(),
                to: netns::name(to).to_string(),
                packets_sent: sent,
                packets_lost: sent,
                ..Pair::default()
            };
            if let Some(arrived) = received[to][from].as_mut() {
                arrived.latencies_ns.sort_unstable();
                pair.packets_received = arrived.count;
                pair.packets_lost = sent.saturating_sub(arrived.count);
                pair.packets_reordered = arrived.reordered;
                pair.latency_p50_ns = percentile(&arrived.latencies_ns, 50);
                pair.latency_p99_ns = percentile(&arrived.latencies_ns, 99);
                pair.latency_max_ns = arrived.latencies_ns.last().copied().unwrap_or_default();
                pair.longest_gap_ns = arrived.longest_gap_ns;
            }
            pairs.push(pair);
        }
    }
    pairs
}

/// A percentile of sorted values: the smallest that is at least as large as `percent` % of them.
fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}

/// The sockets by which a host sends, one a flow.
struct Sender {
    host: usize,
    flows: Vec<(usize, SocketAddr, UdpSocket)>,
}

impl Sender {
    fn new(host: usize) -> std::io::Result<Self> {
        let mut flows = Vec::new();
        for to in (0..NODES).filter(|to| *to != host) {
            for flow in 0..FLOWS {
                let (address, any): (IpAddr, _) = match flow % 2 {
                    0 => (netns::host_v4(to).into(), "0.0.0.0:0"),
                    _ => (netns::host_v6(to).into(), "[::]:0"),
                };
                flows.push((to, SocketAddr::new(address, PORT), UdpSocket::bind(any)?));
            }
        }
        Ok(Self { host, flows })
    }

    fn run(self, begin: Instant, paused: &[AtomicBool; NODES], stop: &AtomicBool) -> Sent {
        let mut sent = Sent::default();
        let mut numbers = vec![0_u64; self.flows.len()];
        let mut due = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            for ((flow, number), (to, address, socket)) in (0..).zip(&mut numbers).zip(&self.flows)
            {
                if paused[*to].load(Ordering::Relaxed) {
                    continue;
                }
                for _ in 0..BURST {
                    let datagram = Header {
                        from: self.host as u8,
                        flow,
                        number: *number,
                        sent_ns: begin.elapsed().as_nanos() as u64,
                    };
                    // The host refuses it: it was not sent.
                    if socket.send_to(&datagram.encode(), address).is_ok() {
                        *number += 1;
                        sent[*to] += 1;
                    }
                }
            }
            // Late bursts are left out, so that they do not become a larger one.
            due = (due + TICK).max(Instant::now());
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        sent
    }
}

/// The first bytes of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Header {
    from: u8,
    flow: u8,
    number: u64,
    sent_ns: u64,
}

impl Header {
    const LEN: usize = 18;

    fn encode(self) -> [u8; PAYLOAD] {
        let mut bytes = [0; PAYLOAD];
        bytes[0] = self.from;
        bytes[1] = self.flow;
        bytes[2..10].copy_from_slice(&self.number.to_le_bytes());
        bytes[10..Self::LEN].copy_from_slice(&self.sent_ns.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let bytes = bytes.get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let (&from, &flow) = (bytes.first()?, bytes.get(1)?);
        Some(Self { from, flow, number: word(2)?, sent_ns: word(10)? })
    }
}

/// Datagrams of one host that have arrived.
struct Arrived {
    count: u64,
    reordered: u64,
    /// The number expected next, by flow.
    next: BTreeMap<u8, u64>,
    /// A phase has some thousand datagrams.
    latencies_ns: Vec<u64>,
    last_ns: u64,
    longest_gap_ns: u64,
}

impl Arrived {
    fn new(now_ns: u64) -> Self {
        Self {
            count: 0,
            reordered: 0,
            next: BTreeMap::new(),
            latencies_ns: Vec::new(),
            last_ns: now_ns,
            longest_gap_ns: 0,
        }
    }

    fn add(&mut self, datagram: Header, now_ns: u64) {
        let next = self.next.entry(datagram.flow).or_default();
        self.count += 1;
        self.reordered += u64::from(datagram.number < *next);
        *next = (*next).max(datagram.number + 1);
        self.latencies_ns.push(now_ns.saturating_sub(datagram.sent_ns));
        self.longest_gap_ns = self.longest_gap_ns.max(now_ns.saturating_sub(self.last_ns));
        self.last_ns = now_ns;
    }
}

/// A socket for datagrams of both families.
fn receiving_socket() -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT))?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    // A smaller queue works, too.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, QUEUE);
    Ok(socket)
}

fn receive(
    socket: &UdpSocket,
    begin: Instant,
    arrivals: &AtomicU64,
    stop: &AtomicBool,
) -> Received {
    let mut received = Received::default();
    let mut bytes = [0; PAYLOAD];
    while !stop.load(Ordering::Relaxed) {
        let Ok((length, _)) = socket.recv_from(&mut bytes) else { continue };
        let now_ns = begin.elapsed().as_nanos() as u64;
        let Some(datagram) = Header::decode(&bytes[..length]) else { continue };
        let Some(from) = received.get_mut(usize::from(datagram.from)) else { continue };
        from.get_or_insert_with(|| Arrived::new(now_ns)).add(datagram, now_ns);
        arrivals.fetch_add(1, Ordering::Relaxed);
    }
    received
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(flow: u8, number: u64) -> Header {
        Header { from: 2, flow, number, sent_ns: number * 10 }
    }

    #[test]
    fn headers_are_read_as_written_and_short_ones_are_refused() {
        let header = datagram(3, u64::MAX / 20);
        assert_eq!(Header::decode(&header.encode()), Some(header));
        assert_eq!(Header::decode(&header.encode()[..Header::LEN - 1]), None);
        assert_eq!(Header::decode(&[]), None);
    }

    #[test]
    fn late_and_repeated_datagrams_of_a_flow_are_out_of_order_and_gaps_are_lost() {
        let mut arrived = Arrived::new(0);
        for (at, number) in (0..).zip([0, 1, 3, 2, 3, 6]) {
            arrived.add(datagram(1, number), 100 * at);
        }
        // Another flow has its own order.
        arrived.add(datagram(2, 0), 1_000);
        assert_eq!((arrived.count, arrived.reordered), (7, 2));
        assert_eq!(arrived.longest_gap_ns, 500);
        let mut received = vec![Received::default(), Received::default(), Received::default()];
        received[0][2] = Some(arrived);
        let mut sent = vec![Sent::default(); NODES];
        sent[2] = [9, 5, 0];
        let pairs = pairs(&sent, received);
        let of = |from: &str, to: &str| {
            pairs.iter().find(|p| p.from == from && p.to == to).cloned().unwrap_or_default()
        };
        assert_eq!((of("c", "a").packets_received, of("c", "a").packets_lost), (7, 2));
        let latencies = (of("c", "a").latency_p50_ns, of("c", "a").latency_p99_ns);
        assert_eq!((latencies, of("c", "a").latency_max_ns), ((Some(280), Some(1_000)), 1_000));
        assert_eq!((of("c", "b").packets_received, of("c", "b").packets_lost), (0, 5));
        assert_eq!(pairs.len(), 6);
    }
}
