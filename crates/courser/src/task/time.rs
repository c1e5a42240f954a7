//! Time for futures.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::local::Local;
use crate::core::lent;
use crate::core::queue::LocalCommand;
use crate::core::queue::Waiter;
use crate::core::timer::TimerId;

/// A future that ends at a time, and stays at its end, made by [`Local::sleep`]. Costs a timer
/// ([`crate::Context::after`]) and an allocation.
///
/// # Panics
/// A poll outside of the endpoint: see [`Local`].
#[must_use = "a sleep begins when it is awaited"]
pub struct Sleep {
    local: Local,
    after: Duration,
    begun: Option<(TimerId, Rc<RefCell<Alarm>>)>,
}

enum Alarm {
    Set(Waiter),
    Rung,
}

/// The time of [`Local::timeout`] is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the time of the future is up; set a longer one, or check what it waits for")]
pub struct Elapsed;

impl Sleep {
    pub(super) fn new(local: Local, after: Duration) -> Self {
        Sleep { local, after, begun: None }
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
            let timer = core.timers.add_once(
                core.deadline_ns(this.after),
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
        f.debug_struct("Sleep").field("after", &self.after).finish_non_exhaustive()
    }
}

/// The result of `future`, if it ends before `sleep`.
pub(super) async fn timeout<F: Future>(sleep: Sleep, future: F) -> Result<F::Output, Elapsed> {
    let (mut sleep, mut future) = (pin!(sleep), pin!(future));
    poll_fn(|cx| {
        if let Poll::Ready(result) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(result));
        }
        sleep.as_mut().poll(cx).map(|()| Err(Elapsed))
    })
    .await
}
