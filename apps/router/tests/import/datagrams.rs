//! Datagrams to many prefixes, and where they arrive.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;

/// Datagrams that were sent and have not arrived, at most.
const WINDOW: u64 = 100;

/// Datagrams that have arrived at one host.
#[derive(Default)]
pub(crate) struct Arrived {
    /// All datagrams.
    all: AtomicU64,
    /// Datagrams to prefixes whose number is not a multiple of 4.
    kept: AtomicU64,
    /// Datagrams to the others that were sent after the mark.
    after: AtomicU64,
}

impl Arrived {
    pub(crate) fn kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    pub(crate) fn after(&self) -> u64 {
        self.after.load(Ordering::Relaxed)
    }

    fn receive(&self, socket: &UdpSocket, end: &AtomicBool) {
        let mut datagram = [0; 16];
        while !end.load(Ordering::Relaxed) {
            let Ok((8, _)) = socket.recv_from(&mut datagram) else { continue };
            let word = |at: usize| {
                u32::from_le_bytes(datagram[at..at + 4].try_into().expect("four bytes"))
            };
            let (net, marked) = (word(0), word(4) == 1);
            if net % 4 != 0 {
                self.kept.fetch_add(1, Ordering::Relaxed);
            } else if marked {
                self.after.fetch_add(1, Ordering::Relaxed);
            }
            self.all.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) sent: u64,
    /// At the first and at the third host.
    pub(crate) arrived: [Arrived; 2],
}

impl Outcome {
    pub(crate) fn received(&self) -> u64 {
        self.arrived.iter().map(|host| host.all.load(Ordering::Relaxed)).sum()
    }
}

/// A host takes datagrams for all addresses in 20.0.0.0/8.
fn receiver(running: &Running, host: usize) -> UdpSocket {
    let at = running.cluster.host(host);
    at.run("ip route replace local 20.0.0.0/8 dev lo").expect("a route");
    let _inside = at.enter().expect("may enter");
    let socket = UdpSocket::bind("0.0.0.0:5000").expect("binds");
    socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 4 << 20).expect("root");
    socket
}

/// Sends datagrams from the second host to the networks 20.N in turn, while `change` runs, and then
/// marked ones.
pub(crate) fn send(running: &Running, nets: u32, change: impl FnOnce()) -> Outcome {
    let sockets = [receiver(running, 0), receiver(running, 2)];
    let sender = {
        let _inside = running.cluster.host(1).enter().expect("may enter");
        UdpSocket::bind("0.0.0.0:0").expect("binds")
    };
    let mut outcome = Outcome { sent: 0, arrived: [Arrived::default(), Arrived::default()] };
    let (end, marked) = (AtomicBool::new(false), AtomicBool::new(false));
    let arrived = &outcome.arrived;
    let sent = std::thread::scope(|scope| {
        for (socket, arrived) in sockets.iter().zip(arrived) {
            let end = &end;
            scope.spawn(move || arrived.receive(socket, end));
        }
        let received = || arrived.iter().map(|host| host.all.load(Ordering::Relaxed)).sum::<u64>();
        let marked = &marked;
        let send = scope.spawn(move || {
            let (mut sent, mut after) = (0, 0);
            let mut net = 0;
            while after < 4_000 {
                let mark = u32::from(marked.load(Ordering::Relaxed));
                after += mark;
                // All networks within some rounds, in an order that visits each quarter.
                net = (net + 7_919) % nets;
                let address = Ipv4Addr::new(20, (net / 256) as u8, (net % 256) as u8, 1);
                let datagram = [net.to_le_bytes(), mark.to_le_bytes()].concat();
                while sender.send_to(&datagram, (address, 5_000)).is_err() {}
                sent += 1;
                if !catches_up(sent, &received) {
                    break;
                }
            }
            sent
        });
        change();
        marked.store(true, Ordering::Relaxed);
        let sent = send.join().expect("no panic");
        let last = Instant::now();
        while received() < sent && last.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(5));
        }
        end.store(true, Ordering::Relaxed);
        sent
    });
    outcome.sent = sent;
    outcome
}

/// Waits until few datagrams are under way. False: some are lost.
fn catches_up(sent: u64, received: &impl Fn() -> u64) -> bool {
    let begin = Instant::now();
    while sent - received() > WINDOW {
        if begin.elapsed() > Duration::from_secs(10) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}
