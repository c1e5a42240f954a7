//! Raw speed of the shared-memory transport, without any protocol: the ceiling for everything
//! above it.
//!
//! `cargo run --release -p courser-net --example raw_shm`
//!
//! Two threads on two cores. Interleaved: the round trip of one cache line between the cores
//! (which says where the cores are at the moment), the round trip of 32 bytes, frames of 48 bytes
//! one way in bursts of 32, and large frames one way. Only received frames count: a sender
//! that outruns its receiver drops.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use courser_buf::{
    Arena, ArenaConfig, Heap, MsgBuf, PacketAccess, PathId, RxBurst, TxBurst, TxFrame,
};
use courser_net::{ShmConfig, ShmTransport, Transport};
use rustix::thread::{CpuSet, sched_setaffinity};

const WINDOW: Duration = Duration::from_millis(30);
const ROUNDS: usize = 12;

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    // Without the permission to pin threads the numbers are noisier.
    let _ = sched_setaffinity(None, &set);
}

fn bind(max_frame: usize) -> ShmTransport {
    let cfg = ShmConfig { max_frame, ..ShmConfig::default() };
    ShmTransport::bind(&cfg).expect("an endpoint")
}

fn buf(len: usize) -> MsgBuf {
    let cfg = ArenaConfig { data_per_packet: len.max(64), ..ArenaConfig::default() };
    let arena = Arena::new(std::sync::Arc::new(Heap::default()), cfg).expect("an arena");
    arena.alloc(len).expect("memory")
}

fn frame(buf: &MsgBuf, path: PathId) -> TxFrame {
    TxFrame::one(path, buf.data_seg(0..buf.len()).expect("within the buffer"))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The bare round trip of one line between the two cores, ns.
fn line() -> f64 {
    #[repr(align(128))]
    struct Line(AtomicU64);
    let (there, back, stop) = (Line(0.into()), Line(0.into()), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            pin(1);
            let mut seen = 0;
            while !stop.load(Ordering::Relaxed) {
                let now = there.0.load(Ordering::Acquire);
                if now != seen {
                    seen = now;
                    back.0.store(now, Ordering::Release);
                }
            }
        });
        let (mut trips, begin) = (0, Instant::now());
        while begin.elapsed() < WINDOW {
            for _ in 0..200 {
                trips += 1;
                there.0.store(trips, Ordering::Release);
                while back.0.load(Ordering::Acquire) != trips {
                    spin_loop();
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        begin.elapsed().as_nanos() as f64 / trips as f64
    })
}

/// Echoes frames until `stop` is set.
fn echo(mut t: ShmTransport, client: courser_buf::Addr, stop: &AtomicBool) {
    pin(1);
    let path = t.path_open(client, None).expect("a path").id;
    let reply = buf(32);
    let mut burst = TxBurst::new();
    while !stop.load(Ordering::Relaxed) {
        let mut out = RxBurst::new();
        t.rx_burst(&mut out);
        burst.extend(out.iter().map(|_| frame(&reply, path)));
        drop(out);
        t.tx_burst(&mut burst);
    }
}

/// Median round trip of `len` bytes, ns: the time of 50 trips over 50.
fn ping_pong(len: usize) -> f64 {
    let (mut t, server) = (bind(8192), bind(8192));
    let path = t.path_open(server.local_addr(), None).expect("a path").id;
    let (me, stop) = (t.local_addr(), AtomicBool::new(false));
    let request = buf(len);
    let mut times = Vec::new();
    std::thread::scope(|s| {
        s.spawn(|| echo(server, me, &stop));
        let begin = Instant::now();
        let mut burst = TxBurst::new();
        while begin.elapsed() < WINDOW {
            let start = Instant::now();
            for _ in 0..50 {
                burst.push_back(frame(&request, path));
                t.tx_burst(&mut burst);
                loop {
                    let mut out = RxBurst::new();
                    t.rx_burst(&mut out);
                    if !out.is_empty() {
                        break;
                    }
                }
            }
            times.push(start.elapsed().as_nanos() as f64 / 50.0);
        }
        stop.store(true, Ordering::Relaxed);
    });
    median(times)
}

/// A receive burst that is copied to private memory.
fn receive(t: &mut ShmTransport, room: &mut Vec<u8>) {
    let mut out = RxBurst::new();
    t.rx_burst(&mut out);
    for frame in out.iter().filter(|frame| !frame.tail().is_empty()) {
        room.clear();
        frame.tail().append_to(room);
    }
}

/// Frames and bytes received a second.
fn one_way(frames: usize, size: usize) -> (f64, f64) {
    let (mut t, mut sink) = (bind(size.max(64)), bind(size.max(64)));
    let path = t.path_open(sink.local_addr(), None).expect("a path").id;
    let stop = AtomicBool::new(false);
    let payload = buf(size);
    std::thread::scope(|s| {
        let receiver = s.spawn(|| {
            pin(1);
            let mut room = Vec::new();
            // The ring's first lap, with its page faults, is not of interest.
            while sink.stats().rx_frames < 4096 {
                receive(&mut sink, &mut room);
            }
            let (begin, before) = (Instant::now(), sink.stats());
            while begin.elapsed() < WINDOW {
                for _ in 0..16 {
                    receive(&mut sink, &mut room);
                }
            }
            stop.store(true, Ordering::Relaxed);
            let (now, secs) = (sink.stats(), begin.elapsed().as_secs_f64());
            let rate = |now: u64, before: u64| (now - before) as f64 / secs;
            (rate(now.rx_frames, before.rx_frames), rate(now.rx_bytes, before.rx_bytes))
        });
        let mut burst = TxBurst::with_capacity(frames);
        while !stop.load(Ordering::Relaxed) {
            burst.extend((0..frames).map(|_| frame(&payload, path)));
            t.tx_burst(&mut burst);
        }
        receiver.join().expect("the receiver")
    })
}

fn main() {
    pin(0);
    for _ in 0..ROUNDS {
        print!("line {:4.0} ns", line());
        print!(
            " | 32 B {:4.0} ns, 72 B {:4.0} ns, 200 B {:4.0} ns",
            ping_pong(32),
            ping_pong(72),
            ping_pong(200)
        );
        print!(
            " | 48 B {:5.1} M/s, 72 B {:5.1} M/s",
            one_way(32, 48).0 / 1e6,
            one_way(32, 72).0 / 1e6
        );
        print!(" | GB/s:");
        for size in [1024, 4096, 8192, 16_384, 32_768] {
            print!(" {} K {:4.1}", size / 1024, one_way(8, size).1 / 1e9);
        }
        println!(" | line {:4.0} ns", line());
    }
}
