//! The platform of a nexus and its endpoints: the operating system, or a simulated machine.
//!
//! One test of an enum where the clock is read; everything else is asked for once an endpoint or
//! a session.

mod processors;
mod stopwatch;

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crate::machine::{Machine, Thread, VirtualClock};

pub(crate) use processors::{cpus, few_cpus, process_cpus};
pub(crate) use stopwatch::{Durations, Stopwatch};

/// Where a nexus runs.
#[derive(Clone, Debug)]
pub(crate) enum Platform {
    System,
    Virtual(Arc<dyn Machine>),
}

impl Platform {
    /// The clock of a thread.
    pub(crate) fn clock(&self, thread: Thread) -> Clock {
        match self {
            Platform::System => Clock::System,
            Platform::Virtual(machine) => Clock::Virtual(machine.clock(thread)),
        }
    }

    /// 64 random bits.
    pub(crate) fn random_u64(&self) -> u64 {
        match self {
            Platform::System => random_u64(),
            Platform::Virtual(machine) => machine.random_u64(),
        }
    }

    /// The simulated machine, if it is one.
    pub(crate) fn machine(&self) -> Option<&Arc<dyn Machine>> {
        match self {
            Platform::System => None,
            Platform::Virtual(machine) => Some(machine),
        }
    }

    /// Returns whether time is virtual, so that nothing may wait for it.
    pub(crate) fn is_virtual(&self) -> bool {
        self.machine().is_some()
    }
}

/// Zero of the [`Instant`]s of virtual time. It may be any instant, since instants are only added
/// and subtracted, which is exact.
static ZERO: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A thread's clock.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    System,
    Virtual(Arc<VirtualClock>),
}

impl Clock {
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        match self {
            Clock::System => Instant::now(),
            Clock::Virtual(clock) => *ZERO + Duration::from_nanos(clock.now_ns()),
        }
    }

    /// An instant in the time of [`VirtualClock`]s, ns.
    pub(crate) fn virtual_ns(at: Instant) -> u64 {
        at.saturating_duration_since(*ZERO).as_nanos() as u64
    }
}

/// 64 random bits from the kernel.
pub(crate) fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    loop {
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(8) => return u64::from_ne_bytes(bytes),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // No such system call, or forbidden by a filter: the standard library has its own
            // ways to seed its hash tables.
            Err(_) => return RandomState::new().hash_one(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_instants_are_exact() {
        let clock = Arc::new(VirtualClock::default());
        let c = Clock::Virtual(clock.clone());
        let start = c.now();
        for ns in [1, 7, 1_000_000_007, u64::MAX >> 4] {
            clock.set(ns);
            assert_eq!(c.now() - start, Duration::from_nanos(ns));
            assert_eq!(Clock::virtual_ns(c.now()), ns);
        }
        clock.set(3);
        assert_eq!(clock.now_ns(), u64::MAX >> 4, "it does not go back");
        clock.spend(5);
        assert_eq!(clock.now_ns(), (u64::MAX >> 4) + 5);
    }
}
