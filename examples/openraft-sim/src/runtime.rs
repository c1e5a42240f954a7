//! openraft's runtime over the tasks, timers and random numbers of an endpoint of Courser.
//!
//! The trait's functions have no `self`: they find the endpoint in a thread-local variable, which
//! [`within`] sets while it polls a future.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use courser::{Elapsed, JoinHandle, Local, Sleep, TaskEnded};
use openraft::OptionalSend;
use openraft::async_runtime::{self, AsyncRuntime};
use openraft_rt_tokio::{TokioMpsc, TokioMutex, TokioOneshot, TokioWatch};

thread_local! {
    static CURRENT: RefCell<Option<Local>> = const { RefCell::new(None) };
}

/// The endpoint whose future is being polled.
fn current() -> Local {
    let local = CURRENT.with_borrow(Clone::clone);
    local.expect("openraft runs in futures that `within` wraps; wrap this one")
}

/// Restores the endpoint that was set before, also when a future panics.
struct Restore(Option<Local>);

impl Restore {
    fn enter(local: &Local) -> Restore {
        Restore(CURRENT.replace(Some(local.clone())))
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

pin_project_lite::pin_project! {
    /// A future in which openraft finds its endpoint, made by [`within`].
    pub struct Within<F> {
        local: Local,
        #[pin]
        future: F,
    }
}

/// Runs a future that calls openraft as one of an endpoint.
pub fn within<F: Future>(local: Local, future: F) -> Within<F> {
    Within { local, future }
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _restore = Restore::enter(this.local);
        this.future.poll(cx)
    }
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

pin_project_lite::pin_project! {
    /// A future with a limit of its time. `Local::timeout` has no name for its type.
    pub struct Timeout<F> {
        #[pin]
        future: F,
        sleep: Sleep,
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, TimeUp>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(result) = this.future.poll(cx) {
            return Poll::Ready(Ok(result));
        }
        Pin::new(this.sleep).poll(cx).map(|()| Err(Elapsed))
    }
}

/// The error of a timeout.
pub type TimeUp = Elapsed;

impl AsyncRuntime for Runtime {
    type JoinError = TaskEnded;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = Instant;
    type TimeoutError = TimeUp;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = Random;
    // Channels of tokio need none of its runtime.
    type Mpsc = TokioMpsc;
    type Watch = TokioWatch;
    type Oneshot = TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = TokioMutex<T>;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        let local = current();
        local.spawn(within(local.clone(), future))
    }

    fn sleep(duration: Duration) -> Sleep {
        current().sleep(duration)
    }

    fn sleep_until(deadline: Instant) -> Sleep {
        let local = current();
        local.sleep(deadline - Instant(local.now_ns()))
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Timeout<F> {
        Timeout { future, sleep: Self::sleep(duration) }
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Instant,
        future: F,
    ) -> Timeout<F> {
        Timeout { future, sleep: Self::sleep_until(deadline) }
    }

    /// A task that panics ends the event loop with that panic, so no handle reports one.
    fn is_panic(_: &TaskEnded) -> bool {
        false
    }

    fn thread_rng() -> Random {
        Random(current())
    }

    /// Endpoints run futures, and this is only their name: [`within`] is how a program enters it.
    fn new(_threads: usize) -> Runtime {
        Runtime
    }

    /// # Panics
    /// Always: an endpoint's `Rpc::block_on` runs a future to its end, in [`within`].
    fn block_on<F: Future<Output = T>, T>(&mut self, _future: F) -> T {
        panic!("use `Rpc::block_on` with a future that `within` wraps")
    }
}
