//! Bodies of the fuzz targets `shm_ring` and `shm_meeting`, which use private parts of this module.
//! Not part of the public interface.

#![doc(hidden)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use courser_buf::{Arena, PacketAccess, RxBurst, TxBurst, TxFrame};

use super::map::{Mapping, PAGE};
use super::msg::{self, Hello, Received, Welcome};
use super::ring::{Broken, Consumer, Producer, Refused, Shape};
use super::{ShmConfig, ShmTransport, dir, map};
use crate::Transport;

const SHAPE: Shape = Shape { slots: 16, data: 4096, max_frame: 1024 };
/// Expires only after a defect, not on a slow machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Reads numbers from the front of the input; zero at its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }
    fn half(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }
    fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }
}

/// Both sides of a ring, and writes to its memory as the input directs. Before the first such write
/// the ring must be a queue. Afterwards every access must stay inside, lengths must not exceed the
/// agreed one, and both sides must terminate.
pub fn ring(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (fd, memory) = map::create("fuzz", SHAPE.bytes(), false).expect("memory");
    let again = || map::adopt(fd.as_fd(), SHAPE.bytes(), true).expect("memory");
    let (mut tx, mut rx) = (Producer::new(again(), SHAPE), Consumer::new(again(), SHAPE));
    let (mut honest, mut queue, mut sent) = (true, VecDeque::new(), 0_u8);
    while !input.0.is_empty() {
        match input.byte() % 8 {
            0..2 => {
                let len = input.half() % (SHAPE.max_frame as usize + 1);
                sent = sent.wrapping_add(1);
                match tx.push(&[&vec![sent; len]], len) {
                    Ok(()) => queue.push_back((sent, len)),
                    Err(Refused::Full) => {}
                    Err(Refused::Broken) => assert!(!honest, "the count was valid"),
                }
            }
            2 => match tx.push_one(&[sent; 100]) {
                Ok(()) => queue.push_back((sent, 100)),
                Err(refused) => assert!(!honest || refused == Refused::Full),
            },
            3..6 => {
                let lent = input.byte() % 2 == 1;
                match take(&mut rx, lent) {
                    Ok(Some(got)) if honest => {
                        let (fill, len) = queue.pop_front().expect("a frame was invented");
                        assert!(got.len() == len && got.iter().all(|&b| b == fill));
                    }
                    Ok(None) if honest => assert!(queue.is_empty(), "a frame was lost"),
                    Ok(got) => assert!(got.is_none_or(|f| f.len() <= SHAPE.max_frame as usize)),
                    Err(Broken) => return assert!(!honest, "the header was valid"),
                }
            }
            6 => {
                honest = false;
                let record = u64::from(input.byte());
                let len = input.half() as u64 * 2;
                let at = PAGE + record as usize % 16 * 256;
                memory.word(at).store((record + 1) << 32 | len, Ordering::Relaxed);
            }
            _ => {
                honest = false;
                let at = match input.byte() {
                    0 => 128,
                    high => usize::from(high) * 64 % SHAPE.bytes(),
                };
                memory.word(at).store(input.word() >> (input.byte() % 64), Ordering::Relaxed);
            }
        }
    }
}

/// The next frame, copied out at once, or lent and then copied.
fn take(rx: &mut Consumer<Mapping>, lent: bool) -> Result<Option<Vec<u8>>, Broken> {
    let Some(len) = rx.peek()? else { return Ok(None) };
    let mut out = vec![0; len.next_multiple_of(16)];
    if lent {
        // Each loan ends at once, so the next one succeeds.
        let at = rx.lend(len).expect("nothing is lent");
        // SAFETY: only this thread writes to the memory, elsewhere in `ring`.
        // Test: `fuzz_targets_run`.
        out[..len].copy_from_slice(unsafe { rx.memory().lend(at, len) });
        rx.release();
    } else {
        rx.pop(len, &mut out);
        rx.release();
    }
    out.truncate(len);
    Ok(Some(out))
}

/// A live endpoint, a correct peer, and files to send.
struct Live {
    t: ShmTransport,
    peer: ShmTransport,
    dir: std::path::PathBuf,
    files: Vec<OwnedFd>,
    inputs: u32,
}

thread_local! {
    static LIVE: RefCell<Option<Live>> = const { RefCell::new(None) };
}

/// Sends messages of an unknown peer to a live endpoint's socket; the input selects their bytes and
/// files. Parsed messages must be re-encoded identically, no state of the peer may remain after its
/// end, and frames of correct peers must be received.
pub fn meeting(bytes: &[u8]) {
    if let Some(hello) = Hello::parse(bytes) {
        assert_eq!(Hello::parse(&hello.to_bytes()), Some(hello));
        assert!(hello.shape.is_valid());
    }
    if let Some(welcome) = Welcome::parse(bytes) {
        assert_eq!(Welcome::parse(&welcome.to_bytes()), Some(welcome));
    }
    LIVE.with_borrow_mut(|live| live.get_or_insert_with(Live::new).meet(Input(bytes)));
}

impl Live {
    fn new() -> Live {
        let dir = std::env::temp_dir().join(format!("courser-fuzz-{}", std::process::id()));
        let cfg = ShmConfig { dir: Some(dir.clone()), max_peers: 8, ..ShmConfig::default() };
        let endpoint = || ShmTransport::bind(&cfg).expect("an endpoint");
        let file = |bytes, guarded| map::create("fuzz", bytes, guarded).expect("a file").0;
        let open = |path| OwnedFd::from(std::fs::File::open(path).expect("a file"));
        let files = vec![
            file(SHAPE.bytes(), false),
            file(SHAPE.bytes(), true),
            file(PAGE, false),
            open("/dev/null"),
            open("/"),
        ];
        Live { t: endpoint(), peer: endpoint(), dir, files, inputs: 0 }
    }

    fn meet(&mut self, mut input: Input<'_>) {
        let port = self.t.local_addr().port as u16;
        let Ok(socket) = dir::connect(&self.dir, port) else { return };
        while !input.0.is_empty() {
            let choice = input.byte();
            let good = Hello { port: 9, shape: SHAPE, trust: choice & 64 != 0 }.to_bytes();
            let len = usize::from(input.byte()).min(input.0.len());
            let (own, rest) = input.0.split_at(len);
            // Either the bytes of the input, or a valid message with some bytes changed.
            let mut message = if choice & 128 == 0 { own.to_vec() } else { good.to_vec() };
            if choice & 128 != 0 {
                for change in own.chunks_exact(2) {
                    message[usize::from(change[0]) % good.len()] ^= change[1];
                }
            }
            input.0 = rest;
            let first = self.files[usize::from(choice) % self.files.len()].as_fd();
            let fds: &[BorrowedFd<'_>] = match choice >> 3 & 3 {
                0 => &[],
                1 | 2 => &[first],
                _ => &[first, first],
            };
            if msg::send(socket.as_fd(), &message, fds).is_err() {
                break;
            }
            self.t.rx_burst(&mut RxBurst::new());
        }
        self.poll_until(|t| {
            t.rx_burst(&mut RxBurst::new());
            !matches!(msg::receive(socket.as_fd()), Received::Nothing)
        });
        drop(socket);
        self.poll_until(|t| {
            t.rx_burst(&mut RxBurst::new());
            t.inbound.is_empty()
        });
        self.inputs += 1;
        if self.inputs.is_multiple_of(64) {
            self.honest_peer_is_received();
        }
    }

    /// Takes at most a second, the timeout of a silent connection.
    fn poll_until(&mut self, mut done: impl FnMut(&mut ShmTransport) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(&mut self.t) {
            assert!(Instant::now() < end, "state of a peer remains");
        }
    }

    fn honest_peer_is_received(&mut self) {
        let path = self.peer.path_open(self.t.local_addr(), None).expect("a path").id;
        let message = Arena::heap().alloc(50).expect("memory");
        let peer = &mut self.peer;
        let end = Instant::now() + PATIENCE;
        loop {
            let frame = TxFrame::one(path, message.data_seg(0..50).expect("all of it"));
            peer.tx_burst(&mut TxBurst::from([frame]));
            let mut out = RxBurst::new();
            self.t.rx_burst(&mut out);
            if !out.is_empty() {
                break;
            }
            assert!(Instant::now() < end, "frames of a correct peer are not received");
        }
        peer.path_close(path);
        self.poll_until(|t| {
            t.rx_burst(&mut RxBurst::new());
            t.inbound.is_empty()
        });
    }
}
