//! Bare sockets that spin: what the kernel allows to anybody who makes one system call per
//! message, or per batch of them over TCP. No library, no lost packets, no names: limits, not
//! peers.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(super) mod tcp;
pub(super) mod udp;

/// A server without work spins this long before it sleeps, as Courser's endpoints do.
const SPIN: Duration = Duration::from_micros(100);

/// A client that hears nothing for this long has failed.
const SILENCE: Duration = Duration::from_secs(5);

/// How a server passes its time.
struct Idle {
    since: Option<Instant>,
}

impl Idle {
    fn new() -> Self {
        Self { since: None }
    }

    fn worked(&mut self) {
        self.since = None;
    }

    /// Nothing was found to do: returns at once, or, after a while of that, when `socket` can be
    /// read, or a second later.
    fn wait(&mut self, socket: impl AsFd) -> Result<()> {
        if self.since.get_or_insert_with(Instant::now).elapsed() < SPIN {
            std::hint::spin_loop();
            return Ok(());
        }
        let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Fails a client that hears nothing.
struct Patience {
    until: Option<Instant>,
}

impl Patience {
    fn new() -> Self {
        Self { until: None }
    }

    fn heard(&mut self) {
        self.until = None;
    }

    fn waited(&mut self) -> Result<()> {
        let now = Instant::now();
        if now > *self.until.get_or_insert(now + SILENCE) {
            bail!("no answer for {SILENCE:?}");
        }
        Ok(())
    }
}
