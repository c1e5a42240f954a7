//! openraft's runtime over the tasks, timers and random numbers of an endpoint of Courser.
//!
//! The trait's functions have no `self`. They find the endpoint with [`Local::current`], so all
//! futures that call openraft have entered it ([`Local::enter`]).

use std::convert::Infallible;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

use courser::{Elapsed, JoinHandle, Local, Nexus, Sleep, TaskEnded, Timeout};
use openraft::OptionalSend;
use openraft::async_runtime::{self, AsyncRuntime};
use openraft_rt_tokio::{TokioMpsc, TokioMutex, TokioOneshot};

use crate::watch::Watch;

/// The endpoint of the caller.
pub(crate) fn current() -> Local {
    Local::current().expect("openraft runs in `Local::enter`; wrap the future that calls it")
}

/// The runtime. openraft uses it as a type only.
#[derive(Debug)]
pub struct Runtime;

/// A time of the endpoint's clock, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Instant(u64);

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, after: Duration) -> Instant {
        Instant(self.0.saturating_add(nanos(after)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    fn sub(self, before: Duration) -> Instant {
        Instant(self.0.saturating_sub(nanos(before)))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, after: Duration) {
        *self = *self + after;
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, before: Duration) {
        *self = *self - before;
    }
}

impl async_runtime::Instant for Instant {
    fn now() -> Instant {
        Instant(current().now_ns())
    }
}

/// The endpoint's seeded generator.
#[derive(Debug)]
pub struct Random(Local);

impl rand::TryRng for Random {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.0.random() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.0.random())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.0.random().to_le_bytes()[..part.len()]);
        }
        Ok(())
    }
}

impl AsyncRuntime for Runtime {
    type JoinError = TaskEnded;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = Instant;
    type TimeoutError = Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = Random;
    // These of tokio need none of its runtime, and wake in order.
    type Mpsc = TokioMpsc;
    type Watch = Watch;
    type Oneshot = TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = TokioMutex<T>;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        let local = current();
        local.spawn(local.enter(future))
    }

    fn sleep(duration: Duration) -> Sleep {
        current().sleep(duration)
    }

    fn sleep_until(deadline: Instant) -> Sleep {
        current().sleep_until(deadline.0)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Timeout<F> {
        current().timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Instant,
        future: F,
    ) -> Timeout<F> {
        current().timeout_at(deadline.0, future)
    }

    /// A task that panics ends the event loop with that panic, so no handle reports one.
    fn is_panic(_: &TaskEnded) -> bool {
        false
    }

    fn thread_rng() -> Random {
        Random(current())
    }

    fn new(_threads: usize) -> Runtime {
        Runtime
    }

    /// Runs the future on an endpoint of its own. A node runs on one that has its address instead.
    ///
    /// # Panics
    /// The system has no memory or descriptors for an endpoint.
    fn block_on<F: Future<Output = T>, T>(&mut self, future: F) -> T {
        let nexus = Nexus::bind("mem://127.0.0.1:0").expect("a network in memory");
        let mut rpc = nexus.endpoint().expect("an endpoint in memory");
        let entered = rpc.local().enter(future);
        rpc.block_on(entered).expect("an endpoint that runs")
    }
}
