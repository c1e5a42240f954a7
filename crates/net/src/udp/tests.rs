//! Tests of UDP beyond the conformance suite.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use courser_buf::{Arena, Ecn, PacketAccess, PathId, RxBurst, RxFrame, TxBurst, TxFrame};

use super::*;

fn bind(addr: &str) -> UdpTransport {
    UdpTransport::bind(UdpConfig::new(addr.parse().unwrap())).unwrap()
}

fn frame(arena: &Arena, path: PathId, len: usize) -> TxFrame {
    let mut m = arena.alloc(len).unwrap();
    m.fill(len as u8);
    TxFrame::one(path, m.data_seg(0..len).unwrap())
}

/// Receives until `n` frames have arrived, each of which it passes to `see`; panics after a timeout.
fn each_frame(rx: &mut UdpTransport, n: usize, mut see: impl FnMut(&RxFrame<'_>)) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut got = 0;
    while got < n {
        assert!(Instant::now() < deadline, "{got} of {n} frames came");
        let mut out = RxBurst::new();
        rx.rx_burst(&mut out);
        out.iter().for_each(&mut see);
        got += out.len();
    }
}

fn receive(rx: &mut UdpTransport, n: usize) -> Vec<(Addr, Vec<u8>)> {
    let mut got = Vec::new();
    each_frame(rx, n, |f| got.push((f.src, f.data.to_vec())));
    got
}

/// Two transports on each loopback that there is, and the path from the first to the second.
fn each_loopback(mut run: impl FnMut(bool, (&mut UdpTransport, PathId), &mut UdpTransport)) {
    for (ip, v6) in [("127.0.0.1:0", false), ("[::1]:0", true)] {
        let Ok(_) = std::net::UdpSocket::bind(ip) else {
            println!("skipped {ip}: no such loopback");
            continue;
        };
        let (mut a, mut b) = (bind(ip), bind(ip));
        let path = a.path_open(b.local_addr(), None).unwrap().id;
        run(v6, (&mut a, path), &mut b);
    }
}

#[test]
fn binding_errors_name_the_next_step() {
    let first = bind("127.0.0.1:0");
    let taken = first.local_addr().to_socket().unwrap();
    let err = UdpTransport::bind(UdpConfig::new(taken)).err().unwrap();
    assert!(matches!(err, UdpError::InUse(a) if a == taken), "{err}");
    assert!(err.to_string().contains(&taken.port().to_string()), "{err}");
    // No host has an address of TEST-NET-1 (RFC 5737).
    let foreign: SocketAddr = "192.0.2.1:0".parse().unwrap();
    let err = UdpTransport::bind(UdpConfig::new(foreign)).err().unwrap();
    assert!(matches!(err, UdpError::NoSuchAddress(_)), "{err}");
    for n in [0, 547, 65_508] {
        let cfg = UdpConfig { max_frame: Some(n), ..UdpConfig::default() };
        assert!(matches!(UdpTransport::bind(cfg), Err(UdpError::MaxFrame(m)) if m == n));
    }
    let cfg = UdpConfig { max_paths: (1 << 20) + 1, ..UdpConfig::default() };
    assert!(matches!(UdpTransport::bind(cfg), Err(UdpError::MaxPaths(_))));
}

#[test]
fn the_wildcard_is_reached_by_ipv4() {
    let mut server = UdpTransport::bind(UdpConfig::default()).unwrap();
    let mut client = bind("127.0.0.1:0");
    let to = Addr { port: server.local_addr().port, ..client.local_addr() };
    let arena = Arena::heap();
    let path = client.path_open(to, None).unwrap();
    let mut burst = TxBurst::from([frame(&arena, path.id, 40)]);
    client.tx_burst(&mut burst);
    let got = receive(&mut server, 1);
    assert_eq!(got[0].0, client.local_addr());
    // The reply leaves from the address that the client used, although the system prefers another.
    let asked = Addr::from_socket("127.0.0.9:0".parse().unwrap());
    let back = server.path_open(got[0].0, Some(asked)).unwrap();
    server.tx_burst(&mut TxBurst::from([frame(&arena, back.id, 41), frame(&arena, back.id, 41)]));
    for (src, data) in receive(&mut client, 2) {
        assert_eq!(src, Addr { port: server.local_addr().port, ..asked });
        assert_eq!(data.len(), 41);
    }
}

#[test]
fn jumbo_frames_when_configured() {
    let cfg =
        |max| UdpConfig { max_frame: Some(max), ..UdpConfig::new("127.0.0.1:0".parse().unwrap()) };
    let mut a = UdpTransport::bind(cfg(MAX_DATAGRAM)).unwrap();
    let mut b = UdpTransport::bind(cfg(MAX_DATAGRAM)).unwrap();
    let path = a.path_open(b.local_addr(), None).unwrap();
    assert!(path.max_frame > 1472 && path.max_frame <= MAX_DATAGRAM);
    a.tx_burst(&mut TxBurst::from([frame(&Arena::heap(), path.id, path.max_frame)]));
    assert_eq!(receive(&mut b, 1)[0].1.len(), path.max_frame);
}

#[test]
fn without_gro_larger_datagrams_are_dropped_and_counted() {
    let cfg = UdpConfig { gro: Offload::Off, ..UdpConfig::new("127.0.0.1:0".parse().unwrap()) };
    let mut small = UdpTransport::bind(cfg).unwrap();
    let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = small.local_addr().to_socket().unwrap();
    sender.send_to(&[1; 4000], to).unwrap();
    sender.send_to(&[2; 10], to).unwrap();
    assert_eq!(receive(&mut small, 1)[0].1, [2; 10]);
    assert_eq!(small.stats().rx_dropped, 1);
}

#[test]
fn empty_datagrams_are_frames_between_trains() {
    let (mut a, mut b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let path = a.path_open(b.local_addr(), None).unwrap().id;
    let arena = Arena::heap();
    let lens = [5, 0, 0, 5, 5, 0, 3];
    let mut burst: TxBurst = lens
        .iter()
        .map(|&n| TxFrame::one(path, arena.alloc(8).unwrap().data_seg(0..n).unwrap()))
        .collect();
    a.tx_burst(&mut burst);
    assert!(burst.is_empty());
    let got: Vec<_> = receive(&mut b, lens.len()).iter().map(|(_, d)| d.len()).collect();
    assert_eq!(got, lens);
}

#[test]
fn frames_in_pieces_arrive_whole_and_in_order() {
    let local = || UdpConfig::new("127.0.0.1:0".parse().unwrap());
    let arena = Arena::heap();
    // Trains of linearized frames, one that stays in pieces, and frames of one piece.
    let lens = [[1_000; 40].as_slice(), &[30_000, 30_000], &[900; 5], &[16, 800, 800, 799]];
    let frames: Vec<Vec<u8>> = (0u8..)
        .zip(lens.concat())
        .map(|(seed, len)| (0u8..251).cycle().map(|b| b ^ seed).take(len).collect())
        .collect();
    for gso in [Offload::Auto, Offload::Off] {
        let cfg = || UdpConfig { max_frame: Some(40_000), gso, ..local() };
        let (mut a, mut b) =
            (UdpTransport::bind(cfg()).unwrap(), UdpTransport::bind(cfg()).unwrap());
        let path = a.path_open(b.local_addr(), None).unwrap().id;
        // In total more than the buffer for linearized frames.
        for _round in 0..8 {
            let mut burst = TxBurst::new();
            for (i, data) in frames.iter().enumerate() {
                let mut m = arena.alloc(data.len()).unwrap();
                m.copy_from_slice(data);
                let cut = (i * 37) % data.len().min(200);
                let pieces = (m.data_seg(0..cut).unwrap(), m.data_seg(cut..data.len()).unwrap());
                burst.push_back(match i % 8 {
                    0 => TxFrame::one(path, m.data_seg(0..data.len()).unwrap()),
                    _ => TxFrame::two(path, pieces.0, pieces.1),
                });
            }
            a.tx_burst(&mut burst);
            assert!(burst.is_empty());
            let got = receive(&mut b, frames.len()).into_iter().map(|(_, data)| data);
            assert!(got.collect::<Vec<_>>() == frames);
        }
        // The buffer is empty again for each call.
        let m = arena.alloc(700).unwrap();
        let pieces = (m.data_seg(0..24).unwrap(), m.data_seg(24..700).unwrap());
        a.tx_burst(&mut TxBurst::from([TxFrame::two(path, pieces.0, pieces.1)]));
        assert_eq!((receive(&mut b, 1).len(), a.tx.pieces()), (1, 1));
    }
}

#[test]
fn a_train_is_one_call() {
    let (mut a, mut b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    if a.caps().train_frames == 1 {
        println!("skipped: no UDP_SEGMENT here");
        return;
    }
    let path = a.path_open(b.local_addr(), None).unwrap().id;
    let arena = Arena::heap();
    let mut burst: TxBurst = (0..150).map(|_| frame(&arena, path, 300)).collect();
    a.tx_burst(&mut burst);
    assert!(burst.is_empty());
    assert_eq!(a.stats().tx_calls, 1);
    assert_eq!(a.stats().tx_frames, 150);
    assert_eq!(receive(&mut b, 150).len(), 150);
}

/// The queue holds `rx_queue_frames` frames, also while it is read (ADR 7).
#[test]
fn the_receive_queue_holds_the_stated_number_of_frames() {
    for (gso, rcvbuf) in [(Offload::Off, 106_496), (Offload::Auto, 106_496), (Offload::Off, 8_192)]
    {
        let cfg = UdpConfig {
            rcvbuf_bytes: rcvbuf,
            gso,
            ..UdpConfig::new("127.0.0.1:0".parse().unwrap())
        };
        let (mut a, mut b) =
            (UdpTransport::bind(cfg.clone()).unwrap(), UdpTransport::bind(cfg).unwrap());
        let depth = b.caps().rx_queue_frames;
        let path = a.path_open(b.local_addr(), None).unwrap();
        let arena = Arena::heap();
        let mut sent = depth;
        let mut burst: TxBurst = (0..depth).map(|_| frame(&arena, path.id, 1472)).collect();
        a.tx_burst(&mut burst);
        // Loopback delivery happens within the send call, so what is not in the queue is lost.
        // Refill by the number of frames read, for some rounds.
        let mut received = 0;
        for _ in 0..300 {
            let mut out = RxBurst::new();
            b.rx_burst(&mut out);
            let n = out.len();
            assert!(n > 0, "lost {} of {sent}", sent - received);
            received += n;
            let mut burst: TxBurst = (0..n).map(|_| frame(&arena, path.id, 1472)).collect();
            a.tx_burst(&mut burst);
            sent += n;
        }
        received += receive(&mut b, depth).len();
        assert_eq!((received, b.stats().rx_overflow), (sent, 0));
    }
}

#[test]
fn the_kernel_counts_dropped_frames() {
    let cfg = UdpConfig {
        rcvbuf_bytes: 4096,
        gso: Offload::Off,
        ..UdpConfig::new("127.0.0.1:0".parse().unwrap())
    };
    let (mut a, mut b) =
        (UdpTransport::bind(cfg.clone()).unwrap(), UdpTransport::bind(cfg).unwrap());
    let path = a.path_open(b.local_addr(), None).unwrap().id;
    let arena = Arena::heap();
    let mut delivered = 0;
    // A datagram that arrives after the drop reports the count.
    for _ in 0..2 {
        a.tx_burst(&mut (0..100).map(|_| frame(&arena, path, 1000)).collect());
        let before = delivered;
        loop {
            let mut out = RxBurst::new();
            b.rx_burst(&mut out);
            if out.is_empty() && delivered > before {
                break;
            }
            delivered += out.len() as u64;
        }
    }
    let overflow = b.stats().rx_overflow;
    assert!(overflow > 0 && overflow + delivered <= 200, "{overflow} of {delivered}");
}

#[test]
fn frames_for_closed_paths_are_dropped_and_counted() {
    let (mut a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let path = a.path_open(b.local_addr(), None).unwrap().id;
    a.path_close(path);
    let again = a.path_open(b.local_addr(), None).unwrap().id;
    assert_ne!(path, again);
    let arena = Arena::heap();
    a.tx_burst(&mut TxBurst::from([frame(&arena, path, 9), frame(&arena, again, 9)]));
    assert_eq!((a.stats().tx_frames, a.stats().tx_dropped), (1, 1));
}

#[test]
fn a_dead_destination_does_not_affect_others() {
    let (mut a, mut b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let gone = bind("127.0.0.1:0").local_addr();
    let (dead, live) = (a.path_open(gone, None).unwrap().id, a.path_open(b.local_addr(), None));
    let live = live.unwrap().id;
    let arena = Arena::heap();
    for _ in 0..10 {
        a.tx_burst(&mut TxBurst::from([frame(&arena, dead, 9), frame(&arena, live, 9)]));
        a.rx_burst(&mut RxBurst::new());
    }
    assert_eq!(receive(&mut b, 10).len(), 10);
}

#[test]
fn a_transport_moves_between_threads() {
    let (mut a, mut b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let path = a.path_open(b.local_addr(), None).unwrap().id;
    for _ in 0..3 {
        let sent = std::thread::spawn(move || {
            a.tx_burst(&mut TxBurst::from([frame(&Arena::heap(), path, 30)]));
            a
        });
        a = sent.join().unwrap();
        let got = std::thread::spawn(move || (receive(&mut b, 1), b)).join().unwrap();
        b = got.1;
    }
}

#[test]
fn congestion_marks_are_seen_on_every_frame() {
    each_loopback(|v6, (a, path), b| {
        let (level, name) = match v6 {
            false => (libc::IPPROTO_IP, libc::IP_TOS),
            true => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        };
        let arena = Arena::heap();
        for (tos, want) in [(2, Ecn::Ect0), (3, Ecn::Ce), (0, Ecn::NotEct), (1, Ecn::Ect1)] {
            socket::set(&a.socket, level, name, tos).unwrap();
            a.tx_burst(&mut (0..40).map(|_| frame(&arena, path, 48)).collect());
            each_frame(b, 40, |f| assert_eq!(f.ecn, want, "{tos}, IPv6: {v6}"));
        }
    });
}

#[test]
fn the_time_that_frames_wait_in_the_socket_is_known() {
    each_loopback(|v6, (a, path), b| {
        let arena = Arena::heap();
        // The kernel begins to take times a while after a socket has asked for them.
        let known = (0..1_000).any(|_| {
            a.tx_burst(&mut (0..40).map(|_| frame(&arena, path, 300)).collect());
            std::thread::sleep(Duration::from_millis(2));
            let mut waited = 0;
            each_frame(b, 40, |f| {
                assert!(f.waited_ns().is_some(), "IPv6: {v6}");
                waited += u32::from(f.waited_ns() >= Some(1_900_000));
            });
            waited == 40
        });
        assert!(known, "IPv6: {v6}");
    });
}

/// The kernel refuses trains without checksums, as for devices without checksum offload.
#[test]
fn trains_that_the_system_refuses_are_given_up_for_good() {
    let (mut a, mut b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    if a.caps().train_frames == 1 {
        println!("skipped: no UDP_SEGMENT here");
        return;
    }
    socket::set(&a.socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
    let path = a.path_open(b.local_addr(), None).unwrap().id;
    let arena = Arena::heap();
    for _ in 0..2 {
        a.tx_burst(&mut (0..40).map(|_| frame(&arena, path, 48)).collect());
        assert_eq!(receive(&mut b, 40).len(), 40);
    }
    assert_eq!((a.stats().tx_frames, a.stats().tx_dropped), (80, 0));
    assert!(!a.tx.gso && a.warnings().iter().any(|w| w.contains("refused trains")));
}

/// A destination that refuses all frames must not disable trains for the others.
#[test]
fn a_refusing_destination_does_not_give_up_trains() {
    let (mut a, mut b) = (bind("0.0.0.0:0"), bind("127.0.0.1:0"));
    // A source address that no host has (RFC 5737): the kernel returns EINVAL.
    let foreign = Addr::from_socket("192.0.2.7:1".parse().unwrap());
    let bad = a.path_open(b.local_addr(), Some(foreign)).unwrap().id;
    let good = a.path_open(b.local_addr(), None).unwrap().id;
    let arena = Arena::heap();
    let trains = [bad, good, bad, good];
    let frames = trains.iter().flat_map(|&p| (0..10).map(move |_| p));
    let mut burst = frames.map(|p| frame(&arena, p, 48)).collect();
    a.tx_burst(&mut burst);
    assert!(burst.is_empty());
    assert_eq!(receive(&mut b, 20).len(), 20);
    assert_eq!((a.stats().tx_frames, a.stats().tx_dropped), (20, 20));
    assert_eq!(a.tx.gso, a.caps().train_frames > 1);
}

/// Frames of an open path pass, with few paths and with more than the filter compares; those of a
/// path that was opened since pass after the next call.
#[test]
fn strangers_are_dropped_and_later_paths_pass() {
    const FIRST: u8 = 7;
    let arrives = |to: &mut UdpTransport, from: &std::net::UdpSocket| {
        let at = to.local_addr().to_socket().unwrap();
        from.send_to(&[FIRST, 1], at).unwrap();
        let end = Instant::now() + Duration::from_millis(50);
        while Instant::now() < end {
            let mut burst = RxBurst::new();
            to.rx_burst(&mut burst);
            if !burst.is_empty() {
                return true;
            }
        }
        false
    };
    let mut to = bind("127.0.0.1:0");
    let socket = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let (known, later, stranger) = (socket(), socket(), socket());
    let addr = |socket: &std::net::UdpSocket| Addr::from_socket(socket.local_addr().unwrap());
    to.path_open(addr(&known), None).unwrap();
    assert!(to.drop_strangers(Some(FIRST)));
    assert!(arrives(&mut to, &known) && !arrives(&mut to, &stranger));
    to.path_open(addr(&later), None).unwrap();
    assert!(to.drop_strangers(Some(FIRST)) && arrives(&mut to, &later));
    let others = |n: usize| Addr { port: n as u32 + 1, ..addr(&known) };
    let mut opened = Vec::new();
    for n in 0..shield::SOURCES {
        opened.push(to.path_open(others(n), None).unwrap().id);
    }
    // Twice: the filter that accepts all addresses stays.
    for _ in 0..2 {
        assert!(to.drop_strangers(Some(FIRST)) && arrives(&mut to, &stranger));
        assert!(!to.shield.as_ref().unwrap().is_old);
    }
    opened.into_iter().for_each(|path| to.path_close(path));
    to.path_open(others(0), None).unwrap();
    assert!(to.drop_strangers(Some(FIRST)) && !arrives(&mut to, &stranger));
    assert!(!to.drop_strangers(None) && arrives(&mut to, &stranger));
}
