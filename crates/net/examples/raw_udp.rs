//! Raw speed of the UDP transport, without any protocol: the ceiling for everything above it.
//!
//! `cargo run --release -p courser-net --example raw_udp`
//!
//! Two threads on two cores; the round trip of 32 bytes, trains of 32 frames of 48 bytes one
//! way, and trains of 44 frames of 1472 bytes one way. Only received frames count.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use courser_buf::{Arena, MsgBuf, PacketAccess, PathId, RxBurst, TxBurst, TxFrame};
use courser_net::{Transport, UdpConfig, UdpTransport};
use rustix::thread::{CpuSet, sched_setaffinity};

const WINDOW: Duration = Duration::from_millis(700);

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    // Without the permission to pin threads the numbers are noisier.
    let _ = sched_setaffinity(None, &set);
}

fn bind() -> UdpTransport {
    let cfg = UdpConfig::new("127.0.0.1:0".parse().expect("an address"));
    UdpTransport::bind(cfg).expect("a loopback socket")
}

fn frame(buf: &MsgBuf, path: PathId) -> TxFrame {
    TxFrame::one(path, buf.data_seg(0..buf.len()).expect("within the buffer"))
}

/// Echoes frames until `stop` is set.
fn echo(mut t: UdpTransport, client: courser_buf::Addr, stop: &AtomicBool) {
    pin(1);
    let path = t.path_open(client, None).expect("a loopback path").id;
    let buf = Arena::heap().alloc(32).expect("memory");
    let mut burst = TxBurst::new();
    while !stop.load(Ordering::Relaxed) {
        let mut out = RxBurst::new();
        t.rx_burst(&mut out);
        burst.extend(out.iter().map(|_| frame(&buf, path)));
        drop(out);
        t.tx_burst(&mut burst);
    }
}

fn ping_pong() {
    let (mut t, server) = (bind(), bind());
    let path = t.path_open(server.local_addr(), None).expect("a loopback path").id;
    let (me, stop) = (t.local_addr(), AtomicBool::new(false));
    let buf = Arena::heap().alloc(32).expect("memory");
    let mut times = Vec::with_capacity(1 << 20);
    std::thread::scope(|s| {
        s.spawn(|| echo(server, me, &stop));
        let begin = Instant::now();
        while begin.elapsed() < WINDOW {
            let start = Instant::now();
            t.tx_burst(&mut TxBurst::from([frame(&buf, path)]));
            while start.elapsed() < Duration::from_millis(5) {
                let mut out = RxBurst::new();
                t.rx_burst(&mut out);
                if !out.is_empty() {
                    times.push(start.elapsed().as_nanos() as u64);
                    break;
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    times.sort_unstable();
    let p = |q: usize| times[(times.len() - 1) * q / 100] as f64 / 1000.0;
    println!(
        "round trip of 32 B: p50 {:.2} us, p99 {:.2} us ({} trips)",
        p(50),
        p(99),
        times.len()
    );
}

fn one_way(frames: usize, size: usize) {
    let (mut t, mut sink) = (bind(), bind());
    let path = t.path_open(sink.local_addr(), None).expect("a loopback path").id;
    let stop = AtomicBool::new(false);
    let buf = Arena::heap().alloc(size).expect("memory");
    let (sent, got) = std::thread::scope(|s| {
        let receiver = s.spawn(|| {
            pin(1);
            while !stop.load(Ordering::Relaxed) {
                sink.rx_burst(&mut RxBurst::new());
            }
            sink.stats()
        });
        let begin = Instant::now();
        let mut burst = TxBurst::with_capacity(frames);
        while begin.elapsed() < WINDOW {
            while burst.len() < frames {
                burst.push_back(frame(&buf, path));
            }
            t.tx_burst(&mut burst);
        }
        stop.store(true, Ordering::Relaxed);
        (t.stats(), receiver.join().expect("the receiver"))
    });
    let secs = WINDOW.as_secs_f64();
    println!(
        "{frames} x {size} B: received {:.2} M frames/s, {:.1} Gbit/s ({:.1} % lost)",
        got.rx_frames as f64 / secs / 1e6,
        got.rx_bytes as f64 * 8.0 / secs / 1e9,
        100.0 * (1.0 - got.rx_frames as f64 / sent.tx_frames as f64),
    );
}

fn main() {
    pin(0);
    for _ in 0..2 {
        ping_pong();
        one_way(1, 48);
        one_way(32, 48);
        one_way(44, 1472);
    }
}
