//! Echoed datagrams: one at a time for latency, trains for rate.

use std::time::Duration;

use courser::Transport;
use courser_buf::RxBurst;

use super::{LOST_NS, Link, MAX_LOST_IN_A_ROW, Silent, Windowed, copy_out};
use crate::latency::Pool;
use crate::placement::{Placement, Tag};
use crate::rpc::role;
use crate::window::{Sample, Workload, WorkloadError};
use courser_kit::latency::{Latency, Tail};

/// One datagram in flight.
pub struct PingPong {
    link: Link,
    size: usize,
    /// Datagrams are sent by a copy.
    copy: bool,
    latency: Latency,
    pool: Pool,
}

/// Polls between two clock reads.
const POLLS: u32 = 64;

impl PingPong {
    /// Datagrams of `size` bytes, at most a frame.
    pub fn new(link: Link, size: usize, copy: bool) -> Self {
        let size = size.min(link.max_frame);
        Self { link, size, copy, latency: Latency::new(), pool: Pool::new() }
    }

    /// The socket and its counter of lost frames.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Size of a datagram.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Polls for the echo; false if it does not arrive in time.
    fn answered(&mut self, sent_ns: u64) -> bool {
        loop {
            for _ in 0..POLLS {
                let mut arrived = RxBurst::new();
                self.link.transport.rx_burst(&mut arrived);
                if !arrived.is_empty() {
                    copy_out(&arrived, &mut self.link.room);
                    return true;
                }
                drop(arrived);
                self.link.other.idle();
            }
            if self.link.clock.now_ns().saturating_sub(sent_ns) > LOST_NS {
                return false;
            }
        }
    }
}

impl Workload for PingPong {
    fn name(&self) -> &str {
        "raw"
    }

    fn prepare(&mut self) -> Result<(), WorkloadError> {
        self.link.other.request(if self.copy { role::ECHO_COPY } else { role::ECHO })?;
        self.link.drain();
        Ok(())
    }

    fn run(&mut self, duration: Duration) -> Result<Sample, WorkloadError> {
        let start_ns = self.link.clock.now_ns();
        let end_ns = start_ns + u64::try_from(duration.as_nanos())?;
        let mut sample = Sample::default();
        let (mut now_ns, mut lost_in_a_row) = (start_ns, 0);
        // On a busy machine the other side may not run during a whole window.
        while now_ns < end_ns || sample.operations == 0 {
            self.link.send_one(self.size, self.copy);
            let answered = self.answered(now_ns);
            let done_ns = self.link.clock.now_ns();
            if answered {
                self.latency.record(done_ns - now_ns);
                sample.operations += 1;
                lost_in_a_row = 0;
            } else {
                self.link.lost += 1;
                lost_in_a_row += 1;
                if lost_in_a_row > MAX_LOST_IN_A_ROW {
                    return Err(Silent.into());
                }
            }
            now_ns = done_ns;
        }
        sample.bytes = sample.operations * self.size as u64;
        sample.elapsed_ns = now_ns - start_ns;
        sample.latency = self.latency.take();
        Ok(sample)
    }

    fn tagged(&mut self, tag: Tag) {
        self.pool.add(tag, &self.latency);
    }

    fn tail(&mut self, placement: Option<Placement>) -> Option<Tail> {
        self.pool.tail(placement)
    }
}

/// Trains of small frames, echoed.
pub struct EchoTrains {
    link: Link,
    /// Frames of a train, and their size.
    train: usize,
    size: usize,
    /// Most trains in flight.
    window: usize,
}

impl EchoTrains {
    /// Trains of `train` frames of `size` bytes, at most a full frame.
    pub fn new(link: Link, train: usize, size: usize) -> Self {
        let size = size.min(link.max_frame);
        let train = train.min(link.train_of(size));
        Self { link, train, size, window: 1 }
    }

    /// The socket and its counter of lost frames.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Frames of a train, and their size.
    pub fn shape(&self) -> (usize, usize) {
        (self.train, self.size)
    }
}

impl Workload for EchoTrains {
    fn name(&self) -> &str {
        "raw"
    }

    fn prepare(&mut self) -> Result<(), WorkloadError> {
        self.link.other.request(role::ECHO)?;
        self.link.drain();
        Ok(())
    }

    fn run(&mut self, duration: Duration) -> Result<Sample, WorkloadError> {
        let start_ns = self.link.clock.now_ns();
        let end_ns = start_ns + u64::try_from(duration.as_nanos())?;
        let limit = self.train * self.window;
        let (mut in_flight, mut back, mut lost_in_a_row) = (0, 0_u64, 0);
        let (mut now_ns, mut last_ns) = (start_ns, start_ns);
        loop {
            // On a busy machine the other side may not run during a whole window.
            while (now_ns < end_ns || back == 0) && in_flight + self.train <= limit {
                self.link.send(self.train, self.size);
                in_flight += self.train;
            }
            if in_flight == 0 {
                break;
            }
            let mut arrived = RxBurst::new();
            self.link.transport.rx_burst(&mut arrived);
            let count = arrived.len();
            copy_out(&arrived, &mut self.link.room);
            drop(arrived);
            now_ns = self.link.clock.now_ns();
            if count > 0 {
                back += count as u64;
                in_flight = in_flight.saturating_sub(count);
                (last_ns, lost_in_a_row) = (now_ns, 0);
            } else if now_ns.saturating_sub(last_ns) > LOST_NS {
                self.link.lost += in_flight as u64;
                (in_flight, last_ns) = (0, now_ns);
                lost_in_a_row += 1;
                if lost_in_a_row > MAX_LOST_IN_A_ROW {
                    return Err(Silent.into());
                }
            } else {
                self.link.other.idle();
            }
        }
        Ok(Sample {
            operations: back,
            bytes: back * self.size as u64,
            elapsed_ns: now_ns - start_ns,
            ..Sample::default()
        })
    }
}

impl Windowed for EchoTrains {
    fn set_window(&mut self, trains: usize) {
        self.window = trains;
    }

    fn speed(sample: &Sample) -> f64 {
        sample.rate()
    }
}
