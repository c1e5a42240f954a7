//! Trains of full frames in one direction. The receiver reports the received bytes, which are the
//! result.
//!
//! A datagram of [`QUERY`] bytes requests a [`Receipt`]. The receiver also sends one after every
//! [`RECEIPT_TRAINS`] trains of frames, which opens the sender's window. The path keeps the order of
//! frames, so all frames that were sent before a query and are not in its receipt are lost.

use std::time::Duration;

use courser::Transport;
use courser_buf::RxBurst;

use super::{LOST_NS, Link, MAX_LOST_IN_A_ROW, Silent, Windowed, copy_out};
use crate::rpc::role;
use crate::window::{Sample, Workload, WorkloadError};

/// Length of a query: its number. Data frames are longer.
pub const QUERY: usize = 8;

/// Trains between two receipts that are sent without a query.
pub const RECEIPT_TRAINS: usize = 2;

/// Counters of the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Data bytes since its start.
    pub bytes: u64,
    /// Data frames.
    pub frames: u64,
    /// Number of the last query.
    pub query: u64,
}

impl Receipt {
    /// Length on the wire.
    pub const LEN: usize = 24;

    /// Encodes a receipt.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        for (part, value) in bytes.chunks_exact_mut(8).zip([self.bytes, self.frames, self.query]) {
            part.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// Decodes a receipt; `None` for other data.
    pub fn read(data: &[u8]) -> Option<Self> {
        let (parts, []) = data.as_chunks::<8>() else { return None };
        let &[bytes, frames, query] = parts else { return None };
        let [bytes, frames, query] = [bytes, frames, query].map(u64::from_le_bytes);
        Some(Self { bytes, frames, query })
    }
}

/// Trains of full frames, counted by the receiver.
pub struct SinkTrains {
    link: Link,
    /// Frames of a train, and their size.
    train: usize,
    size: usize,
    /// Most trains in flight.
    window: usize,
    queries: u64,
    seen: Receipt,
}

impl SinkTrains {
    /// Trains of the largest length.
    pub fn new(link: Link) -> Self {
        let (train, size) = (link.train_of(link.max_frame), link.max_frame);
        Self { link, train, size, window: RECEIPT_TRAINS, queries: 0, seen: Receipt::default() }
    }

    /// The socket and its counter of lost frames.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Frames of a train, and their size.
    pub fn shape(&self) -> (usize, usize) {
        (self.train, self.size)
    }

    /// Receives one burst; true if it contains a receipt.
    fn receive(&mut self) -> bool {
        let mut arrived = RxBurst::new();
        self.link.transport.rx_burst(&mut arrived);
        copy_out(&arrived, &mut self.link.room);
        let newest = arrived.iter().filter_map(|frame| Receipt::read(frame.data)).next_back();
        self.seen = newest.unwrap_or(self.seen);
        newest.is_some()
    }

    /// Sends queries until a receipt answers the last one.
    fn settle(&mut self) -> Result<(), Silent> {
        for _ in 0..MAX_LOST_IN_A_ROW {
            self.queries += 1;
            self.link.send_bytes(&self.queries.to_le_bytes());
            let start_ns = self.link.clock.now_ns();
            while self.link.clock.now_ns().saturating_sub(start_ns) < LOST_NS {
                if self.receive() && self.seen.query == self.queries {
                    return Ok(());
                }
                self.link.other.idle();
            }
        }
        Err(Silent)
    }
}

impl Workload for SinkTrains {
    fn name(&self) -> &str {
        "raw"
    }

    fn prepare(&mut self) -> Result<(), WorkloadError> {
        self.link.other.request(role::SINK)?;
        self.link.drain();
        Ok(self.settle()?)
    }

    fn run(&mut self, duration: Duration) -> Result<Sample, WorkloadError> {
        let start_ns = self.link.clock.now_ns();
        let end_ns = start_ns + u64::try_from(duration.as_nanos())?;
        let (first, train, limit) = (self.seen, self.train as u64, self.train * self.window);
        // `lost`: frames that earlier stalls of this window have counted as lost.
        let (mut sent, mut lost) = (0_u64, 0_u64);
        let (mut now_ns, mut last_ns) = (start_ns, start_ns);
        while now_ns < end_ns {
            let arrived = self.seen.frames.wrapping_sub(first.frames);
            if sent.saturating_sub(arrived + lost) + train <= limit as u64 {
                self.link.send(self.train, self.size);
                sent += train;
            } else if self.receive() {
                last_ns = now_ns;
            } else if now_ns.saturating_sub(last_ns) > LOST_NS {
                self.settle()?;
                lost = sent.saturating_sub(self.seen.frames.wrapping_sub(first.frames));
                last_ns = now_ns;
            } else {
                self.link.other.idle();
            }
            now_ns = self.link.clock.now_ns();
        }
        self.settle()?;
        let elapsed_ns = self.link.clock.now_ns() - start_ns;
        let operations = self.seen.frames.wrapping_sub(first.frames);
        self.link.lost += sent.saturating_sub(operations);
        let bytes = self.seen.bytes.wrapping_sub(first.bytes);
        Ok(Sample { operations, bytes, elapsed_ns, ..Sample::default() })
    }
}

impl Windowed for SinkTrains {
    fn set_window(&mut self, trains: usize) {
        // With fewer trains, the receiver would not send receipts without a query.
        self.window = trains.max(RECEIPT_TRAINS);
    }

    fn speed(sample: &Sample) -> f64 {
        sample.goodput_bps()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_are_decoded_and_other_data_is_not() {
        let receipt = Receipt { bytes: 1 << 40, frames: 7, query: u64::MAX };
        assert_eq!(Receipt::read(&receipt.to_bytes()), Some(receipt));
        for len in [0, 8, 23, 25, 32] {
            assert_eq!(Receipt::read(&vec![1; len]), None, "{len} bytes");
        }
    }
}
