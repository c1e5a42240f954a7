//! Copies of a message within this process: what moving it costs at least.
//!
//! From one message buffer of the endpoint's arena into another, so through memory of the same kind
//! as a request leaves from and is put together in.

use std::time::Duration;

use courser::{MsgBuf, Rpc};

use super::spec::BenchError;
use crate::clock::Clock;
use crate::window::{Sample, Workload, WorkloadError};

/// Copies between two looks at the clock, so that a look is below a percent of them.
const BYTES_A_LOOK: usize = 256 << 10;

/// `memcpy` of messages of one size.
pub struct Copies {
    from: MsgBuf,
    to: MsgBuf,
    clock: Clock,
}

impl Copies {
    /// Makes both buffers and touches them.
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
        let at_a_time = (BYTES_A_LOOK / size.max(1)).max(1) as u64;
        let start_ns = self.clock.now_ns();
        let end_ns = start_ns + u64::try_from(duration.as_nanos())?;
        let (mut operations, mut now_ns) = (0, start_ns);
        while now_ns < end_ns {
            for _ in 0..at_a_time {
                // Neither the copy nor its repetition may be left out.
                std::hint::black_box(&mut self.to[..])
                    .copy_from_slice(std::hint::black_box(&self.from[..]));
            }
            operations += at_a_time;
            now_ns = self.clock.now_ns();
        }
        let elapsed_ns = now_ns - start_ns;
        Ok(Sample { operations, bytes: operations * size as u64, elapsed_ns, latency: None })
    }
}
