//! Raw windows: the same transport without a protocol, as fast as it goes.
//!
//! * [`PingPong`]: one datagram there and back, spinning.
//! * [`EchoTrains`]: trains of equal small frames, a few of them in flight, echoed.
//! * [`SinkTrains`]: trains of full frames, a few of them in flight, counted on arrival.
//!
//! What is lost is counted, never waited for long, and never counts as done.

use std::time::{Duration, Instant};

use courser::{MsgBuf, Transport};
use courser_buf::{Addr, Arena, PacketAccess, PathId, RxBurst, TxBurst, TxFrame};
use courser_net::{AnyTransport, Caps};

use super::side::{Over, open_raw};
use super::spec::BenchError;
use crate::clock::Clock;
use crate::line::Line;
use crate::stats;
use crate::window::{Sample, Workload, WorkloadError};

mod echo;
mod peer;
mod sink;

pub use echo::{EchoTrains, PingPong};
pub use peer::RawPeer;
pub use sink::{QUERY, RECEIPT_TRAINS, Receipt, SinkTrains};

/// Frames in a train of the raw rate.
pub const RATE_TRAIN: usize = 32;

/// Bursts that a receive queue holds, over transports without trains.
const BURSTS_QUEUED: usize = 8;

/// How long [`shared_memory`] tries. Usually the second frame arrives.
const TRIAL: Duration = Duration::from_secs(1);

/// How long the other side may take to change its role: it looks at the line after every poll.
const ROLE_LIMIT: Duration = Duration::from_secs(5);

/// After this long without an answer on an idle path, what is missing counts as lost: thousands
/// of round trips, and longer than the gaps in which the host takes a core away.
const LOST_NS: u64 = 5_000_000;

/// A window in which this much is lost in a row has failed: the other side is gone. Five seconds.
const MAX_LOST_IN_A_ROW: u32 = 1000;

/// The server process, as workloads see it.
#[derive(Clone, Debug)]
pub struct Other {
    /// `None`: a server elsewhere, which has one role only.
    pub line: Option<Line>,
    /// Both sides share one core: the waiting side must yield.
    pub yields: bool,
}

impl Other {
    /// Has it take up a role.
    pub fn ask(&self, role: u32) -> Result<(), WorkloadError> {
        match &self.line {
            Some(line) => Ok(line.ask_role(role, ROLE_LIMIT)?),
            None => Ok(()),
        }
    }

    /// What a poll does that found nothing. Not the pause instruction: on some processors it takes
    /// as long as a cache line between two cores does.
    #[inline]
    pub fn idle(&self) {
        if self.yields {
            std::thread::yield_now();
        }
    }
}

/// Why a raw window failed.
#[derive(Debug, thiserror::Error)]
#[error("the other side does not answer")]
pub struct Silent;

/// A raw socket with a peer.
pub struct Link {
    /// The socket.
    pub transport: AnyTransport,
    path: PathId,
    /// Largest frame on the path, bytes.
    pub max_frame: usize,
    /// The data of all frames; its contents have no meaning.
    payload: MsgBuf,
    burst: TxBurst,
    /// Where received frames end up: see [`copy_out`].
    room: Vec<u8>,
    /// The clock of windows.
    pub clock: Clock,
    /// The other side.
    pub other: Other,
    /// Frames that were lost, in either direction.
    pub lost: u64,
}

impl Link {
    /// Opens the way to the peer's raw socket.
    ///
    /// # Errors
    /// [`BenchError::Raw`].
    pub fn new(
        mut transport: AnyTransport,
        peer: Addr,
        clock: Clock,
        other: Other,
    ) -> Result<Self, BenchError> {
        let raw = |text: String| BenchError::Raw(text);
        let path = transport.path_open(peer, None).map_err(|e| raw(e.to_string()))?;
        let payload = payload(path.max_frame).map_err(|e| raw(e.to_string()))?;
        let (path, max_frame) = (path.id, path.max_frame);
        let (burst, room) = (TxBurst::new(), Vec::new());
        Ok(Self { transport, path, max_frame, payload, burst, room, clock, other, lost: 0 })
    }

    /// Frames of a size that are sent together at most.
    pub fn train_of(&self, frame: usize) -> usize {
        train_of(self.transport.caps(), frame)
    }

    /// The numbers of trains of frames of a size in flight, of those to try, that the other side's
    /// receive queue holds: all of them, or at least the smallest.
    pub fn windows(&self, (train, frame): (usize, usize), all: &[usize]) -> Vec<usize> {
        let queue = queued(self.transport.caps(), frame);
        let fit = all.iter().take_while(|&&trains| trains * train <= queue).count();
        all[..fit.max(1).min(all.len())].to_vec()
    }

    /// Sends `count` frames of `len` bytes, as one train where the system can. What the send
    /// queue does not take is lost.
    fn send(&mut self, count: usize, len: usize) {
        queue(&mut self.burst, self.path, &self.payload, count, len);
        self.transport.tx_burst(&mut self.burst);
        self.burst.clear();
    }

    /// Sends a frame of `len` bytes, by a copy or as a burst of one.
    #[inline]
    fn send_one(&mut self, len: usize, copy: bool) {
        let frame = &self.payload[..len.min(self.payload.len())];
        if !(copy && self.transport.tx_copy(self.path, frame)) {
            self.send(1, len);
        }
    }

    /// Sends a few bytes.
    fn send_bytes(&mut self, bytes: &[u8]) {
        // What the transport still holds of the payload cannot be written.
        self.transport.tx_flush();
        if let Some(buf) = self.payload.get_mut() {
            buf[..bytes.len()].copy_from_slice(bytes);
        }
        self.send(1, bytes.len());
    }

    /// Throws away what still arrives from an earlier window.
    fn drain(&mut self) {
        // Bounded: a peer that never stops must not hang this side.
        for _ in 0..1_000 {
            let mut arrived = RxBurst::new();
            self.transport.rx_burst(&mut arrived);
            if arrived.is_empty() {
                return;
            }
        }
    }
}

/// Copies what a transport has left of the frames of a burst in memory that others can write, one
/// frame over the other: the raw transport receives into private memory, as it sends from there.
#[inline]
fn copy_out(arrived: &RxBurst<'_>, room: &mut Vec<u8>) {
    for frame in arrived {
        if !frame.tail.is_empty() {
            room.clear();
            frame.tail.append_to(room);
        }
    }
}

/// How many frames of a size are sent together at most: what the system takes as one, or, where each
/// frame is for itself, a burst of which the receive queue holds several, so that both sides work at
/// the same time.
pub fn train_of(caps: &Caps, frame: usize) -> usize {
    if caps.train_frames > 1 {
        return caps.train_frames.min(caps.train_bytes / frame.max(1)).max(1);
    }
    RATE_TRAIN.min(queued(caps, frame) / BURSTS_QUEUED).max(1)
}

/// Frames of a size that a receive queue holds, going by its bytes. Where it holds fewer, what is
/// lost makes [`best_window`] choose a smaller one.
fn queued(caps: &Caps, frame: usize) -> usize {
    caps.rx_queue_frames * (caps.max_frame / frame.max(1)).max(1)
}

/// A buffer for raw frames of up to `len` bytes.
pub fn payload(len: usize) -> Result<MsgBuf, courser::AllocError> {
    let mut payload = Arena::heap().alloc(len)?;
    payload.fill(0xa5);
    Ok(payload)
}

/// Appends `count` frames of `len` bytes from the front of `payload`; one longer than that is
/// cut.
#[inline]
pub fn queue(burst: &mut TxBurst, path: PathId, payload: &MsgBuf, count: usize, len: usize) {
    let len = len.min(payload.len());
    for _ in 0..count {
        if let Some(seg) = payload.data_seg(0..len) {
            burst.push_back(TxFrame::one(path, seg));
        }
    }
}

/// Whether a frame gets from one endpoint in shared memory to another.
///
/// # Errors
/// Why not, in words.
pub fn shared_memory() -> Result<(), String> {
    let words = |error: BenchError| match error {
        BenchError::Raw(text) => text,
        other => other.to_string(),
    };
    let open = || open_raw(Over::Shm, "", None).map_err(words);
    let (mut from, mut to) = (open()?, open()?);
    let path = from.path_open(to.local_addr(), None).map_err(|e| e.to_string())?.id;
    let payload = payload(QUERY).map_err(|e| e.to_string())?;
    let mut burst = TxBurst::new();
    let end = Instant::now() + TRIAL;
    // The memory is made for the first frame, and what goes wrong with it looks like a loss.
    while Instant::now() < end {
        queue(&mut burst, path, &payload, 1, QUERY);
        from.tx_burst(&mut burst);
        burst.clear();
        let mut arrived = RxBurst::new();
        to.rx_burst(&mut arrived);
        if !arrived.is_empty() {
            return Ok(());
        }
    }
    Err("no frame gets through; is memfd_create allowed, and are there file descriptors?"
        .to_owned())
}

/// A workload whose speed depends on how much it keeps in flight.
pub trait Windowed: Workload {
    /// Trains in flight at most.
    fn set_window(&mut self, trains: usize);

    /// What is to be large.
    fn speed(sample: &Sample) -> f64;
}

/// Length and number of the tries of [`best_window`], for each candidate: long enough for
/// hundreds of trains, and spread over time as the machine's speed is.
const TRY: Duration = Duration::from_millis(4);
const TRIES: usize = 7;

/// Sets the fastest of `candidates`, and returns it: by the median over short windows in turn.
///
/// # Errors
/// Those of the workload.
pub fn best_window<W: Windowed>(
    workload: &mut W,
    candidates: &[usize],
) -> Result<usize, WorkloadError> {
    let mut speeds = vec![Vec::with_capacity(TRIES); candidates.len()];
    for _ in 0..TRIES {
        for (&trains, speeds) in candidates.iter().zip(&mut speeds) {
            workload.set_window(trains);
            workload.prepare()?;
            speeds.push(W::speed(&workload.run(TRY)?));
        }
    }
    let medians = speeds.iter_mut().map(|speeds| stats::median(speeds).unwrap_or(0.0));
    let best = candidates.iter().zip(medians).max_by(|a, b| a.1.total_cmp(&b.1));
    let best = best.map_or(1, |(&trains, _)| trains);
    workload.set_window(best);
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fastest at a given window, slower the farther away.
    struct Scripted {
        best: usize,
        now: usize,
    }

    impl Workload for Scripted {
        fn name(&self) -> &str {
            "scripted"
        }

        fn run(&mut self, _: Duration) -> Result<Sample, WorkloadError> {
            let operations = 1_000 - 100 * self.now.abs_diff(self.best) as u64;
            Ok(Sample { operations, elapsed_ns: 1_000, ..Sample::default() })
        }
    }

    impl Windowed for Scripted {
        fn set_window(&mut self, trains: usize) {
            self.now = trains;
        }

        fn speed(sample: &Sample) -> f64 {
            sample.rate()
        }
    }

    #[test]
    fn the_fastest_window_is_found_and_kept() {
        for best in 1..=4 {
            let mut scripted = Scripted { best, now: 0 };
            assert_eq!(best_window(&mut scripted, &[1, 2, 3, 4]).expect("no failure"), best);
            assert_eq!(scripted.now, best);
        }
    }

    #[test]
    fn shared_memory_is_tried_with_a_frame() {
        assert_eq!(shared_memory(), Ok(()));
    }

    #[test]
    fn trains_are_what_the_transport_has_and_bursts_otherwise() {
        let raw = open_raw(Over::Mem, "raw-train", None).expect("opens");
        let caps = Caps { max_frame: 1472, train_bytes: 65_507, ..raw.caps().clone() };
        let of = |train_frames, rx_queue_frames, frame| {
            train_of(&Caps { train_frames, rx_queue_frames, ..caps.clone() }, frame)
        };
        assert_eq!(of(64, 1_000, 1472), 44);
        assert_eq!(of(64, 1_000, 48), 64);
        assert_eq!(of(1, 111, 48), RATE_TRAIN);
        assert_eq!(of(1, 128, 1472), 16);
        assert_eq!(of(1, 4, 1472), 1);
    }

    #[test]
    fn frames_are_cut_from_the_payload() {
        let payload = payload(100).expect("memory");
        let mut burst = TxBurst::new();
        queue(&mut burst, PathId(0), &payload, 3, 48);
        queue(&mut burst, PathId(0), &payload, 1, 1_000);
        let lens: Vec<u32> = burst.iter().map(|frame| frame.len).collect();
        assert_eq!(lens, [48, 48, 48, 100]);
    }
}
