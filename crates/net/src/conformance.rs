//! Requirements for every transport, as tests that any crate can run against its own.
//!
//! ```
//! use courser_net::{MemConfig, MemNetwork, conformance};
//!
//! conformance::run(|| {
//!     let net = MemNetwork::new();
//!     let endpoint = || net.endpoint(MemConfig::default()).unwrap();
//!     (endpoint(), endpoint())
//! });
//! ```
//!
//! The two endpoints must reach each other without loss while at most [`Caps::rx_queue_frames`]
//! frames are in flight: on the same host, or over a quiet link.

mod checks;

use std::time::{Duration, Instant};

use courser_buf::{
    Addr, Arena, ArenaConfig, Ecn, Heap, MsgBuf, PacketAccess, PathId, RX_HEAD, RxBurst, RxFrame,
    TxBurst, TxFrame,
};

use crate::{Caps, Path, Transport};

/// Timeout of every wait. Long, because the machine may be busy; it expires only after a defect.
const PATIENCE: Duration = Duration::from_secs(30);

/// One requirement.
pub struct Check<A, B> {
    /// The requirement, as a sentence.
    pub name: &'static str,
    /// Panics when the requirement is not met.
    pub run: fn(&mut Rig<A, B>),
}

/// All requirements.
pub fn checks<A: Transport, B: Transport>() -> Vec<Check<A, B>> {
    checks::all()
}

/// Runs all checks, each with a fresh pair of endpoints.
///
/// # Panics
/// When a check fails; its name is printed.
pub fn run<A: Transport, B: Transport>(mut make_pair: impl FnMut() -> (A, B)) {
    for check in checks() {
        let (a, b) = make_pair();
        let name = Named(check.name);
        (check.run)(&mut Rig::new(a, b));
        drop(name);
    }
}

/// Prints the name of the check that panics.
struct Named(&'static str);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("conformance: not met: {}", self.0);
        }
    }
}

/// A copy of a received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Got {
    src: Addr,
    data: Vec<u8>,
    ecn: Ecn,
}

/// Two endpoints and a path from the first to the second.
pub struct Rig<A, B> {
    /// `None` once a check has dropped it.
    a: Option<A>,
    b: B,
    path: Path,
    arena: Arena,
}

impl<A: Transport, B: Transport> Rig<A, B> {
    fn new(mut a: A, b: B) -> Self {
        let path = a.path_open(b.local_addr(), None).expect("a path to the other endpoint");
        let cfg = ArenaConfig {
            limit_bytes: 256 << 20,
            data_per_packet: a.caps().max_frame.max(64),
            headroom: a.caps().headroom,
        };
        let source = a.memory().unwrap_or_else(|| std::sync::Arc::new(Heap::default()));
        let arena = Arena::new(source, cfg).expect("an arena");
        Rig { a: Some(a), b, path, arena }
    }

    fn a(&mut self) -> &mut A {
        self.a.as_mut().expect("dropped only at the end of a check")
    }

    fn caps(&mut self) -> Caps {
        self.a().caps().clone()
    }

    /// Frames that may be in flight without loss, at most 256.
    fn window(&self) -> usize {
        self.b.caps().rx_queue_frames.min(256)
    }

    /// A buffer whose bytes depend on `tag` and their position.
    fn buf(&self, tag: usize, len: usize) -> MsgBuf {
        let mut buf = self.arena.alloc(len).expect("memory for a test frame");
        for (i, byte) in buf.iter_mut().enumerate() {
            *byte = (tag.wrapping_mul(31) + i * 7 + i / 251) as u8;
        }
        buf
    }

    fn frame(&self, tag: usize, len: usize) -> TxFrame {
        whole(self.path.id, &self.buf(tag, len))
    }

    /// Sends all of `burst`, with retries while the queue is full.
    fn send(&mut self, burst: &mut TxBurst) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.a().tx_burst(burst);
            if burst.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{} frames cannot be sent", burst.len());
            self.a().tx_reclaim();
            self.a().tx_flush();
        }
    }

    /// Sends frames of these lengths in bursts that fit the receiver and checks that exactly these
    /// arrive, in order.
    fn exchange(&mut self, lens: &[usize]) {
        for (round, chunk) in lens.chunks(self.window()).enumerate() {
            let base = round * 1000;
            let tagged = || chunk.iter().enumerate().map(|(i, &len)| (base + i, len));
            let mut burst = tagged().map(|(tag, len)| self.frame(tag, len)).collect();
            self.send(&mut burst);
            let got = receive(&mut self.b, chunk.len());
            for ((tag, len), got) in tagged().zip(&got) {
                assert_eq!(got.data.len(), len, "length of frame {tag} of {chunk:?}");
                assert_eq!(got.data, self.buf(tag, len)[..], "bytes of frame {tag}");
            }
        }
        assert_quiet(&mut self.b);
    }
}

/// A frame of all bytes of `buf`.
fn whole(path: PathId, buf: &MsgBuf) -> TxFrame {
    TxFrame::one(path, buf.data_seg(0..buf.len()).expect("all of it"))
}

/// A frame's bytes, with its tail.
fn bytes(frame: &RxFrame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.copy_to(&mut bytes);
    assert_eq!(bytes.len(), frame.len());
    assert!(frame.tail().is_empty() || frame.data.len() >= RX_HEAD, "a short front");
    bytes
}

/// One receive burst, copied.
fn poll(t: &mut impl Transport) -> Vec<Got> {
    let mut out = RxBurst::new();
    t.rx_burst(&mut out);
    out.iter().map(|f| Got { src: f.src, data: bytes(f), ecn: f.ecn }).collect()
}

/// Receives until `n` frames have arrived.
fn receive(t: &mut impl Transport, n: usize) -> Vec<Got> {
    let deadline = Instant::now() + PATIENCE;
    let mut got = Vec::new();
    while got.len() < n {
        assert!(Instant::now() < deadline, "{} of {n} frames arrived", got.len());
        got.extend(poll(t));
    }
    assert_eq!(got.len(), n, "more frames arrived than were sent");
    got
}

/// No further frame arrives: neither duplicated nor invented.
fn assert_quiet(t: &mut impl Transport) {
    for _ in 0..20 {
        assert_eq!(poll(t), [], "frames that were not sent");
    }
}
