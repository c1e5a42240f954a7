//! Time for futures.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::local::Local;
use crate::core::lent;
use crate::core::queue::LocalCommand;
use crate::core::queue::Waiter;
use crate::core::timer::TimerId;

/// A future that ends at a time, and stays at its end, made by [`Local::sleep`] and
/// [`Local::sleep_until`]. Costs a timer ([`crate::Context::after`]) and an allocation.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_local(async |local, uri| {
/// use std::time::Duration;
///
/// # let _ = uri;
/// let begun_ns = local.now_ns();
/// local.sleep_until(begun_ns + 2_000_000).await;
/// assert!(local.now_ns() >= begun_ns + 2_000_000);
/// # Ok(()) }) }
/// ```
///
/// # Panics
/// A poll outside of the endpoint: see [`Local`].
#[must_use = "a sleep begins when it is awaited"]
pub struct Sleep {
    local: Local,
    end: End,
    begun: Option<(TimerId, Rc<RefCell<Alarm>>)>,
}

#[derive(Clone, Copy, Debug)]
enum End {
    /// From the first poll.
    After(Duration),
    At(u64),
}

enum Alarm {
    Set(Waiter),
    Rung,
}

/// The time of a [`Timeout`] is up.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_local(async |local, uri| {
/// use std::time::Duration;
///
/// use courser::Elapsed;
///
/// # let _ = uri;
/// let endless = std::future::pending::<()>();
/// let ended = local.timeout(Duration::from_millis(1), endless).await;
/// assert!(matches!(ended, Err(Elapsed { .. })));
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the time of the future is up; set a longer one, or check what it waits for")]
pub struct Elapsed;

impl Sleep {
    pub(super) fn after(local: Local, after: Duration) -> Self {
        Sleep { local, end: End::After(after), begun: None }
    }

    pub(super) fn until(local: Local, at_ns: u64) -> Self {
        Sleep { local, end: End::At(at_ns), begun: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        lent::with(this.local.lender(), |core| {
            let waiter = core.tasks.waiter(cx);
            if let Some((_, alarm)) = &this.begun {
                let mut alarm = alarm.borrow_mut();
                if let Alarm::Set(old) = &mut *alarm {
                    *old = waiter;
                    return Poll::Pending;
                }
                return Poll::Ready(());
            }
            let alarm = Rc::new(RefCell::new(Alarm::Set(waiter)));
            let ring = alarm.clone();
            let end_ns = match this.end {
                End::After(after) => core.deadline_ns(after),
                End::At(at_ns) => at_ns,
            };
            let timer = core.timers.add_once(
                end_ns,
                Box::new(move |cx| {
                    if let Alarm::Set(waiter) = ring.replace(Alarm::Rung) {
                        cx.core.tasks.wake(waiter);
                    }
                }),
            );
            this.begun = Some((timer, alarm));
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((timer, alarm)) = &self.begun
            && matches!(*alarm.borrow(), Alarm::Set(_))
        {
            let timer = *timer;
            self.local.queue().push(LocalCommand::CancelTimer(timer));
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("end", &self.end).finish_non_exhaustive()
    }
}

pin_project_lite::pin_project! {
    /// A future and a limit of its time, made by [`Local::timeout`] and [`Local::timeout_at`]. It
    /// returns the future's result, or [`Elapsed`] if the future still waits when the time is up.
    /// The future is dropped at either end, in the poll. A further poll returns [`Elapsed`].
    ///
    /// ```
    /// # use courser_example_store::*;
    /// # fn main() -> Done { run_local(async |local, uri| {
    /// use std::time::Duration;
    ///
    /// # let _ = uri;
    /// assert_eq!(local.timeout(Duration::from_secs(5), async { 1 }).await?, 1);
    /// let endless = std::future::pending::<()>();
    /// assert!(local.timeout(Duration::from_millis(1), endless).await.is_err());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Panics
    /// A poll outside of the endpoint: see [`Local`].
    #[must_use = "the future runs when the timeout is awaited"]
    pub struct Timeout<F> {
        #[pin]
        future: Option<F>,
        sleep: Sleep,
    }
}

impl<F> Timeout<F> {
    pub(super) fn new(sleep: Sleep, future: F) -> Self {
        Timeout { future: Some(future), sleep }
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(future) = this.future.as_mut().as_pin_mut() else {
            return Poll::Ready(Err(Elapsed));
        };
        let result = match future.poll(cx) {
            Poll::Ready(result) => Ok(result),
            Poll::Pending => {
                ready!(Pin::new(this.sleep).poll(cx));
                Err(Elapsed)
            }
        };
        this.future.set(None);
        Poll::Ready(result)
    }
}

impl<F> fmt::Debug for Timeout<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout").field("sleep", &self.sleep).finish_non_exhaustive()
    }
}
