//! Raw workloads: the same transport without a protocol, at its highest speed.
//!
//! * [`PingPong`]: one datagram in flight, echoed; both sides poll.
//! * [`EchoTrains`]: several trains of equal small frames in flight, echoed.
//! * [`SinkTrains`]: several trains of full frames in flight, counted on arrival.
//!
//! Lost frames are counted after a short timeout, but not as completed operations.

use std::time::{Duration, Instant};

use courser::{MsgBuf, Transport};
use courser_buf::{Addr, Arena, PacketAccess, PathId, RxBurst, TxBurst, TxFrame};
use courser_net::{AnyTransport, Caps};

use super::error::BenchError;
use super::side::{Over, open_raw};
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

/// Bursts that a receive queue holds on transports without trains.
const BURSTS_QUEUED: usize = 8;

/// Time limit of [`shared_memory`]. Usually the second frame arrives.
const TRIAL: Duration = Duration::from_secs(1);

/// Time limit for a change of role, which the other side checks after every poll.
const ROLE_LIMIT: Duration = Duration::from_secs(5);

/// Time without a response after which frames count as lost: thousands of round trips, and longer than
/// the preemptions of a host.
const LOST_NS: u64 = 5_000_000;

/// Consecutive losses after which a window fails, because the other side has ended: five seconds.
const MAX_LOST_IN_A_ROW: u32 = 1000;

/// The interface of workloads to the other side.
#[derive(Clone, Debug)]
pub struct Other {
    /// Shared memory; `None` for a separate server, which has a single role.
    pub line: Option<Line>,
    /// Both sides may share a core, so an idle side must yield.
    pub yields: bool,
}

impl Other {
    /// Changes its role.
    pub fn request(&self, role: u32) -> Result<(), WorkloadError> {
        match &self.line {
            Some(line) => Ok(line.ask_role(role, ROLE_LIMIT)?),
            None => Ok(()),
        }
    }

    /// Called after an empty poll. No pause instruction: on some processors it takes as long as the
    /// transfer of a cache line between two cores.
    #[inline]
    pub fn idle(&self) {
        if self.yields {
            std::thread::yield_now();
        }
    }
}

/// Error of a raw window: the other side does not answer.
#[derive(Debug, thiserror::Error)]
#[error("the other side does not answer; end other programs and repeat")]
pub struct Silent;

/// A raw socket with a path to its peer.
pub struct Link {
    /// The socket.
    pub transport: AnyTransport,
    path: PathId,
    /// Largest frame on the path, bytes.
    pub max_frame: usize,
    /// The data of all frames, which is arbitrary.
    payload: MsgBuf,
    burst: TxBurst,
    /// Destination of received frames: see [`copy_out`].
    room: Vec<u8>,
    /// The clock of windows.
    pub clock: Clock,
    /// The other side.
    pub other: Other,
    /// Lost frames of both directions.
    pub lost: u64,
}

impl Link {
    /// Opens the path to the peer's raw socket.
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

    /// Most frames of a size that are sent together.
    pub fn train_of(&self, frame: usize) -> usize {
        train_of(self.transport.caps(), frame)
    }

    /// The candidates (trains in flight) that the receive queue of the other side can hold, at least
    /// the smallest.
    pub fn windows(&self, (train, frame): (usize, usize), all: &[usize]) -> Vec<usize> {
        let queue = queued(self.transport.caps(), frame);
        let fit = all.iter().take_while(|&&trains| trains * train <= queue).count();
        all[..fit.max(1).min(all.len())].to_vec()
    }

    /// Sends `count` frames of `len` bytes, as one train if the system supports it. Frames beyond the
    /// send queue are lost.
    fn send(&mut self, count: usize, len: usize) {
        queue(&mut self.burst, self.path, &self.payload, count, len);
        self.transport.tx_burst(&mut self.burst);
        self.burst.clear();
    }

    /// Sends one frame of `len` bytes, by a copy or as a burst of one.
    #[inline]
    fn send_one(&mut self, len: usize, copy: bool) {
        let frame = &self.payload[..len.min(self.payload.len())];
        if !(copy && self.transport.tx_copy(self.path, frame)) {
            self.send(1, len);
        }
    }

    /// Sends a few bytes.
    fn send_bytes(&mut self, bytes: &[u8]) {
        // The payload cannot be written while the transport holds references to it.
        self.transport.tx_flush();
        if let Some(buf) = self.payload.get_mut() {
            buf[..bytes.len()].copy_from_slice(bytes);
        }
        self.send(1, bytes.len());
    }

    /// Discards frames of an earlier window.
    fn drain(&mut self) {
        // Limited, so that a peer that never stops does not block this side.
        for _ in 0..1_000 {
            let mut arrived = RxBurst::new();
            self.transport.rx_burst(&mut arrived);
            if arrived.is_empty() {
                return;
            }
        }
    }
}

/// Copies the tails of frames, which other processes can still write, into private memory. Each frame
/// overwrites the one before.
#[inline]
fn copy_out(arrived: &RxBurst<'_>, room: &mut Vec<u8>) {
    for frame in arrived {
        if !frame.tail().is_empty() {
            room.clear();
            frame.tail().append_to(room);
        }
    }
}

/// Most frames of a size that are sent together: the train limit of the system, or, without trains, a
/// burst that fits into the receive queue several times, so that both sides can work at the same time.
pub fn train_of(caps: &Caps, frame: usize) -> usize {
    if caps.train_frames > 1 {
        return caps.train_frames.min(caps.train_bytes / frame.max(1)).max(1);
    }
    RATE_TRAIN.min(queued(caps, frame) / BURSTS_QUEUED).max(1)
}

/// Frames of a size that a receive queue holds, estimated from its bytes. If the estimate is too high,
/// losses make [`best_window`] choose a smaller window.
fn queued(caps: &Caps, frame: usize) -> usize {
    caps.rx_queue_frames * (caps.max_frame / frame.max(1)).max(1)
}

/// A buffer for raw frames of up to `len` bytes.
pub fn payload(len: usize) -> Result<MsgBuf, courser::AllocError> {
    let mut payload = Arena::heap().alloc(len)?;
    payload.fill(0xa5);
    Ok(payload)
}

/// Appends `count` frames of `len` bytes from the start of `payload`, at most its length.
#[inline]
pub fn queue(burst: &mut TxBurst, path: PathId, payload: &MsgBuf, count: usize, len: usize) {
    let len = len.min(payload.len());
    for _ in 0..count {
        if let Some(seg) = payload.data_seg(0..len) {
            burst.push_back(TxFrame::one(path, seg));
        }
    }
}

/// Checks that a frame can be sent from one endpoint to another over shared memory.
///
/// # Errors
/// The reason as text.
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
    // The memory is created for the first frame, and a failure of that looks like a loss.
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
    Err("no frame arrives; check that memfd_create is permitted and file descriptors are left"
        .to_owned())
}

/// A workload whose speed depends on the number of trains in flight.
pub trait Windowed: Workload {
    /// Sets the most trains in flight.
    fn set_window(&mut self, trains: usize);

    /// The quantity to maximize.
    fn speed(sample: &Sample) -> f64;
}

/// Length and number of the trials of [`best_window`] for each candidate: long enough for hundreds of
/// trains, and spread over time because the speed of the machine varies.
const TRY: Duration = Duration::from_millis(4);
const TRIES: usize = 7;

/// Sets and returns the fastest of `candidates`, by the median over short alternating windows.
///
/// # Errors
/// An error of the workload.
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
    fn shared_memory_passes_a_frame() {
        assert_eq!(shared_memory(), Ok(()));
    }

    #[test]
    fn trains_have_the_limit_of_the_transport_or_are_bursts() {
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
        let lens: Vec<u32> = burst.iter().map(|frame| frame.len()).collect();
        assert_eq!(lens, [48, 48, 48, 100]);
    }
}
