use courser_buf::{Arena, PacketAccess, TxFrame};

use super::*;

fn frame(path: PathId, byte: u8) -> TxFrame {
    let mut m = Arena::heap().alloc(4).unwrap();
    m.fill(byte);
    TxFrame::one(path, m.data_seg(0..4).unwrap())
}

fn endpoint(net: &MemNetwork, port: u32, depth: usize) -> MemTransport {
    net.endpoint(MemConfig { port, depth, ..MemConfig::default() }).unwrap()
}

fn drain(t: &mut MemTransport) -> Vec<u8> {
    let mut got = Vec::new();
    loop {
        let mut out = RxBurst::new();
        t.rx_burst(&mut out);
        if out.is_empty() {
            return got;
        }
        got.extend(out.iter().map(|f| f.data[0]));
    }
}

#[test]
fn a_full_queue_drops_the_newest_and_counts() {
    let net = MemNetwork::new();
    let (mut a, mut b) = (endpoint(&net, 1, 8), endpoint(&net, 2, 8));
    let path = a.path_open(b.local_addr(), None).unwrap().id;
    for _ in 0..3 {
        let mut burst = (0..20).map(|i| frame(path, i)).collect();
        a.tx_burst(&mut burst);
        assert!(burst.is_empty());
        assert_eq!(drain(&mut b), (0..8).collect::<Vec<_>>());
    }
    assert_eq!(b.stats().rx_overflow, 36);
}

#[test]
fn a_queue_has_its_depth_while_a_burst_is_lent() {
    let net = MemNetwork::new();
    let (mut a, mut b) = (endpoint(&net, 1, 200), endpoint(&net, 2, 200));
    let path = a.path_open(b.local_addr(), None).unwrap().id;
    a.tx_burst(&mut (0..200).map(|_| frame(path, 1)).collect());
    let mut out = RxBurst::new();
    b.rx_burst(&mut out);
    assert_eq!(out.len(), RX_BURST);
    a.tx_burst(&mut (0..RX_BURST).map(|_| frame(path, 2)).collect());
    drop(out);
    assert_eq!(drain(&mut b).len(), 200);
    assert_eq!(b.stats().rx_overflow, 0);
}

#[test]
fn an_address_has_one_owner_and_paths_reach_the_next() {
    let net = MemNetwork::new();
    let (mut a, b) = (endpoint(&net, 1, 8), endpoint(&net, 2, 8));
    let cfg = MemConfig { port: 2, ..MemConfig::default() };
    assert!(matches!(net.endpoint(cfg), Err(MemError::InUse(2, 1))));
    let path = a.path_open(b.local_addr(), None).unwrap().id;
    drop(b);
    a.tx_burst(&mut TxBurst::from([frame(path, 1)]));
    assert_eq!(a.stats().tx_dropped, 1);
    let mut b = endpoint(&net, 2, 8);
    a.tx_burst(&mut TxBurst::from([frame(path, 2)]));
    assert_eq!(drain(&mut b), [2]);
}

#[test]
fn settings_have_limits() {
    let net = MemNetwork::new();
    for cfg in [
        MemConfig { depth: 0, ..MemConfig::default() },
        MemConfig { depth: MAX_DEPTH + 1, ..MemConfig::default() },
        MemConfig { max_frame: 0, ..MemConfig::default() },
        MemConfig { max_frame: MAX_FRAME + 1, ..MemConfig::default() },
    ] {
        assert!(matches!(net.endpoint(cfg), Err(MemError::Range(..))));
    }
}

/// A foreign event loop is signalled for every frame after an empty burst.
#[test]
fn the_descriptor_works_without_wait() {
    let net = MemNetwork::new();
    let (mut a, mut b) = (endpoint(&net, 1, 8), endpoint(&net, 2, 8));
    let path = a.path_open(b.local_addr(), None).unwrap().id;
    b.signal_always();
    for i in 0..5 {
        a.tx_burst(&mut TxBurst::from([frame(path, i)]));
        // Returns only because the descriptor is readable.
        crate::wait_readable(b.inbox.event.as_fd(), -1, None).unwrap();
        assert_eq!(drain(&mut b), [i]);
    }
}

#[test]
fn a_receiver_that_does_not_sleep_is_not_signalled() {
    let net = MemNetwork::new();
    let (mut a, mut b) = (endpoint(&net, 1, 8), endpoint(&net, 2, 8));
    let path = a.path_open(b.local_addr(), None).unwrap().id;
    assert!(b.event_fd().is_some());
    assert_eq!(drain(&mut b), []);
    a.tx_burst(&mut TxBurst::from([frame(path, 1)]));
    let mut count = [0; 8];
    let read = rustix::io::read(&b.inbox.event, &mut count);
    assert_eq!(read, Err(rustix::io::Errno::AGAIN));
    assert_eq!(drain(&mut b), [1]);
}

/// No wake-up is lost between threads: each wait is without a limit, so a lost one would hang.
#[test]
fn sleepers_are_woken_across_threads() {
    let net = MemNetwork::new();
    let (mut a, mut b) = (endpoint(&net, 1, 8), endpoint(&net, 2, 8));
    let (to_b, to_a) = (
        a.path_open(b.local_addr(), None).unwrap().id,
        b.path_open(a.local_addr(), None).unwrap().id,
    );
    let bounce = |mut t: MemTransport, path, first: bool| {
        if first {
            t.tx_burst(&mut TxBurst::from([frame(path, 0)]));
        }
        let mut count = 0;
        while count < 2000 {
            t.wait(-1, None).unwrap();
            let n = drain(&mut t).len();
            count += n;
            t.tx_burst(&mut (0..n).map(|_| frame(path, 0)).collect());
        }
        t
    };
    let other = std::thread::spawn(move || bounce(b, to_a, false));
    let a = bounce(a, to_b, true);
    let b = other.join().unwrap();
    assert_eq!((a.stats().rx_overflow, b.stats().rx_overflow), (0, 0));
}

/// The conformance suite detects a transport that overstates its queue.
#[test]
fn a_queue_that_is_shorter_than_its_caps_is_found() {
    let found = |overstate: fn(&mut Caps)| {
        let made = || {
            let net = MemNetwork::new();
            let [mut a, mut b] = [1, 2].map(|port| endpoint(&net, port, 64));
            overstate(&mut a.caps);
            overstate(&mut b.caps);
            (a, b)
        };
        let run = std::panic::AssertUnwindSafe(|| crate::conformance::run(made));
        let panic = std::panic::catch_unwind(run).expect_err("it is true");
        panic.downcast_ref::<String>().expect("a text").clone()
    };
    let text = found(|caps| caps.rx_queue_small_frames += 1);
    assert!(text.contains("lost, 65 at a time"), "{text}");
    let text = found(|caps| caps.rx_queue_small_frames -= 1);
    assert!(text.contains("rx_queue_small_frames: 63"), "{text}");
    let text = found(|caps| caps.small_frame += 1);
    assert!(text.contains("small_frame"), "{text}");
}
