//! Copies of a message within this process: a lower bound of the cost of moving it.
//!
//! The copies are between two message buffers of the endpoint's arena, which is the same kind of memory
//! as that of requests.

use std::time::Duration;

use courser::{MsgBuf, Rpc};

use super::error::BenchError;
use crate::clock::Clock;
use crate::window::{Sample, Workload, WorkloadError};

/// Bytes copied between two clock reads, so that a clock read is below 1 % of the time.
const BYTES_PER_CLOCK_READ: usize = 256 << 10;

/// `memcpy` of messages of one size.
pub struct Copies {
    from: MsgBuf,
    to: MsgBuf,
    clock: Clock,
}

impl Copies {
    /// Allocates and writes both buffers.
    ///
    /// # Errors
    /// No memory.
    pub fn new(rpc: &Rpc, size: usize, clock: &Clock) -> Result<Self, BenchError> {
        let (mut from, mut to) = (rpc.alloc(size)?, rpc.alloc(size)?);
        from.fill(0x5a);
        to.fill(0xa5);
        Ok(Self { from, to, clock: clock.clone() })
    }
}

impl Workload for Copies {
    fn name(&self) -> &str {
        "memcpy"
    }

    fn run(&mut self, duration: Duration) -> Result<Sample, WorkloadError> {
        let size = self.from.len();
        let at_a_time = (BYTES_PER_CLOCK_READ / size.max(1)).max(1) as u64;
        let start_ns = self.clock.now_ns();
        let end_ns = start_ns + u64::try_from(duration.as_nanos())?;
        let (mut operations, mut now_ns) = (0, start_ns);
        while now_ns < end_ns {
            for _ in 0..at_a_time {
                // The compiler must not remove the copy or its repetitions.
                std::hint::black_box(&mut self.to[..])
                    .copy_from_slice(std::hint::black_box(&self.from[..]));
            }
            operations += at_a_time;
            now_ns = self.clock.now_ns();
        }
        let elapsed_ns = now_ns - start_ns;
        let bytes = operations * size as u64;
        Ok(Sample { operations, bytes, elapsed_ns, ..Sample::default() })
    }
}
