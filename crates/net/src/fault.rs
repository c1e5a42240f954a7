//! Fault injection: middleware that loses, duplicates, delays and corrupts frames.
//!
//! Only the seed and each frame's position in its direction decide: the same seed and the same
//! traffic have the same faults. Probabilities are integers, per million.

mod plan;
#[cfg(test)]
mod tests;
mod text;

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use courser_buf::{
    Addr, Arena, ArenaConfig, Ecn, Heap, PacketAccess, PathId, RxBurst, RxFrame, TxBurst, TxFrame,
};

use plan::{Dice, Verdict};
pub use plan::{Fault, FaultConfig, FaultCounts, FaultPlan};
pub use text::FaultSyntax;

use crate::delayed_completion::share;
use crate::{Caps, Transport};

/// Most frames kept in one direction, delayed or waiting for room; more are lost and counted.
const STORE: usize = 4096;

/// A received frame in memory of our own.
struct Stored {
    src: Addr,
    ecn: Ecn,
    /// In the inner transport; 0: not known.
    waited_ns: u64,
    data: Vec<u8>,
}

/// The frames of one direction.
struct Lane<F> {
    dice: Dice,
    /// Delayed frames with the number of later frames that still have to overtake them.
    delayed: Vec<(u32, F)>,
    /// Frames to pass on next.
    ready: VecDeque<F>,
}

impl<F> Lane<F> {
    fn new(seed: u64, plan: FaultPlan) -> Self {
        Lane { dice: Dice::new(seed, plan), delayed: Vec::new(), ready: VecDeque::new() }
    }

    /// Passes a frame on, followed by the delayed frames that are now due.
    fn pass(&mut self, frame: F) {
        self.ready.push_back(frame);
        self.tick();
    }

    /// Counts a later frame for all delayed ones. A call without a frame counts too, so that the
    /// last frame of a conversation is delayed, not lost.
    fn tick(&mut self) {
        for (left, _) in &mut self.delayed {
            *left -= 1;
        }
        let due = self.delayed.extract_if(.., |(left, _)| *left == 0);
        self.ready.extend(due.map(|(_, frame)| frame));
    }

    fn len(&self) -> usize {
        self.delayed.len() + self.ready.len()
    }
}

/// Any transport with injected faults.
///
/// Without faults, received frames cost nothing and sent frames cost a random number each.
///
/// Delayed frames, and those that did not fit the send queue, are held ([`Caps::holds_frames`]):
/// `tx_reclaim` advances them, `tx_flush` sends them all.
pub struct FaultTransport<T> {
    inner: T,
    caps: Caps,
    tx: Lane<TxFrame>,
    rx: Lane<Stored>,
    lent: Vec<Stored>,
    spare: Vec<Vec<u8>>,
    /// No faults on receive: frames are lent as the inner transport lends them, without a copy.
    rx_is_sound: bool,
    /// Memory for corrupted copies of sent frames.
    arena: Option<Arena>,
}

impl<T: Transport> FaultTransport<T> {
    /// Wraps `inner`.
    pub fn new(inner: T, cfg: FaultConfig) -> Self {
        let caps = Caps { holds_frames: true, ..inner.caps().clone() };
        let source = inner.memory().unwrap_or_else(|| Arc::new(Heap::default()));
        // Without memory, frames to corrupt are lost instead, so that the seed's other faults stay.
        let arena = (cfg.tx.corrupts())
            .then(|| ArenaConfig {
                limit_bytes: 64 << 20,
                data_per_packet: caps.max_frame.max(64),
                headroom: caps.headroom,
            })
            .and_then(|arena_cfg| Arena::new(source, arena_cfg).ok());
        FaultTransport {
            inner,
            caps,
            rx_is_sound: cfg.rx.is_none(),
            // The directions use different random streams of the same seed.
            tx: Lane::new(cfg.seed, cfg.tx),
            rx: Lane::new(!cfg.seed, cfg.rx),
            lent: Vec::new(),
            spare: Vec::new(),
            arena,
        }
    }

    /// Counters of faults of sent frames.
    pub fn tx_faults(&self) -> FaultCounts {
        self.tx.dice.counts
    }

    /// Counters of faults of received frames.
    pub fn rx_faults(&self) -> FaultCounts {
        self.rx.dice.counts
    }

    /// The inner transport.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    fn send(&mut self, frame: TxFrame) {
        match self.tx.dice.roll() {
            Verdict::Pass => self.tx.pass(frame),
            Verdict::Drop => {}
            Verdict::Duplicate => {
                self.tx.ready.push_back(share(&frame));
                self.tx.pass(frame);
            }
            Verdict::Delay(_) if self.tx.delayed.len() >= STORE => {
                self.tx.dice.counts.overflow += 1;
            }
            Verdict::Delay(k) => self.tx.delayed.push((k, frame)),
            Verdict::Corrupt(bits) => {
                if let Some(frame) = self.bent(&frame, bits) {
                    self.tx.pass(frame);
                }
            }
        }
    }

    /// A copy with one flipped bit: the original's memory belongs to the application.
    fn bent(&self, frame: &TxFrame, bits: u64) -> Option<TxFrame> {
        let mut copy = self.arena.as_ref()?.alloc(frame.len() as usize).ok()?;
        let mut at = 0;
        for seg in frame.segs() {
            copy.get(at..at + seg.len())?;
            copy[at..at + seg.len()].copy_from_slice(seg);
            at += seg.len();
        }
        flip(&mut copy, bits);
        Some(TxFrame::one(frame.path, copy.data_seg(0..at)?))
    }

    fn store(&mut self, frame: Stored) {
        match self.rx.dice.roll() {
            Verdict::Pass => self.rx.pass(frame),
            Verdict::Drop => self.spare.push(frame.data),
            Verdict::Duplicate => {
                let mut data = self.spare.pop().unwrap_or_default();
                data.clear();
                data.extend_from_slice(&frame.data);
                self.rx.ready.push_back(Stored { data, ..frame });
                self.rx.pass(frame);
            }
            Verdict::Delay(k) => self.rx.delayed.push((k, frame)),
            Verdict::Corrupt(bits) => {
                let mut frame = frame;
                flip(&mut frame.data, bits);
                self.rx.pass(frame);
            }
        }
    }

    /// Receives from the inner transport and applies the faults.
    fn fetch(&mut self) {
        let mut arrived = Vec::new();
        let mut burst = RxBurst::new();
        self.inner.rx_burst(&mut burst);
        for frame in &burst {
            let mut data = self.spare.pop().unwrap_or_default();
            data.clear();
            frame.copy_to(&mut data);
            let waited_ns = frame.waited_ns().unwrap_or(0).into();
            arrived.push(Stored { src: frame.src, ecn: frame.ecn, waited_ns, data });
        }
        drop(burst);
        if arrived.is_empty() {
            self.rx.tick();
        }
        for frame in arrived {
            self.store(frame);
        }
    }
}

/// Flips bit `bits` modulo the frame's length; an empty frame stays.
fn flip(data: &mut [u8], bits: u64) {
    if !data.is_empty() {
        let bit = (bits % (data.len() as u64 * 8)) as usize;
        data[bit / 8] ^= 1 << (bit % 8);
    }
}

impl<T: Transport> crate::Middleware for FaultTransport<T> {
    type Inner = T;

    fn inner(&self) -> &T {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn path_close(&mut self, path: PathId) {
        self.tx.delayed.retain(|(_, f)| f.path != path);
        self.tx.ready.retain(|f| f.path != path);
        self.inner.path_close(path);
    }

    fn tx_burst(&mut self, burst: &mut TxBurst) {
        self.inner.tx_burst(&mut self.tx.ready);
        // Accept no new frames while earlier ones wait: bounds the held frames to a burst.
        if self.tx.ready.is_empty() {
            while let Some(frame) = burst.pop_front() {
                self.send(frame);
            }
            self.inner.tx_burst(&mut self.tx.ready);
        }
    }

    fn tx_reclaim(&mut self) -> usize {
        self.tx.tick();
        self.inner.tx_burst(&mut self.tx.ready);
        self.tx.len() + self.inner.tx_reclaim()
    }

    fn tx_flush(&mut self) {
        let delayed = self.tx.delayed.drain(..);
        self.tx.ready.extend(delayed.map(|(_, frame)| frame));
        self.inner.tx_burst(&mut self.tx.ready);
        // Frames that do not fit the queue are lost: waiting for room could be endless.
        self.tx.dice.counts.overflow += self.tx.ready.len() as u64;
        self.tx.ready.clear();
        self.inner.tx_flush();
    }

    fn rx_burst<'a>(&'a mut self, out: &mut RxBurst<'a>) {
        if self.rx_is_sound {
            let before = out.len();
            self.inner.rx_burst(out);
            self.rx.dice.counts.frames += (out.len() - before) as u64;
            return;
        }
        self.spare.extend(self.lent.drain(..).map(|f| f.data));
        self.spare.truncate(2 * courser_buf::RX_BURST);
        if self.rx.ready.len() < out.remaining_capacity() {
            self.fetch();
        }
        if self.rx.len() > STORE {
            self.rx.dice.counts.overflow += (self.rx.len() - STORE) as u64;
            let excess = self.rx.len() - STORE;
            let newest = self.rx.delayed.len().saturating_sub(excess);
            self.rx.delayed.truncate(newest);
        }
        let count = out.remaining_capacity().min(self.rx.ready.len());
        self.lent.extend(self.rx.ready.drain(..count));
        let frames = self.lent.iter();
        out.extend(frames.map(|f| RxFrame::new(f.src, &f.data, f.ecn).with_wait(f.waited_ns)));
    }

    fn fall_asleep(&mut self) -> bool {
        self.rx.len() == 0 && self.inner.fall_asleep()
    }

    fn wake_up(&mut self) {
        self.inner.wake_up();
    }

    fn wait(&mut self, wake: RawFd, timeout_ns: Option<u64>) -> io::Result<()> {
        if self.rx.len() > 0 {
            // Each receive call advances delayed frames, so do not sleep.
            return Ok(());
        }
        self.inner.wait(wake, timeout_ns)
    }
}
