//! How handlers learn that their server shuts down.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::panics::wake_all;
use crate::sync::{AtomicBool, Mutex, MutexGuard};

#[cfg(all(loom, test))]
mod model;

/// States whether a server shuts down: for services, which hold one to end long calls early. Clones
/// are the same token, and may be used on any thread.
///
/// From [`crate::Server::drain_token`] or [`crate::Rpc::drain_token`]. It is set when the shutdown
/// begins, and also when the server stops without one. It is never unset.
///
/// ```
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = courser::Server::bind("udp://127.0.0.1:0")?;
/// let token = server.drain_token();
/// let serving = server.serve()?;
/// assert!(!token.is_draining());
/// serving.handle().shutdown(Duration::from_secs(1));
/// futures::executor::block_on(token.draining());
/// assert!(token.is_draining());
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct DrainToken(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Written under the lock.
    is_set: AtomicBool,
    waiting: Mutex<Slab<Waker>>,
}

impl std::fmt::Debug for DrainToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DrainToken").field("is_draining", &self.is_draining()).finish()
    }
}

impl DrainToken {
    /// Returns whether the server shuts down, or has ended. One load.
    #[inline]
    pub fn is_draining(&self) -> bool {
        self.0.is_set.load(Ordering::Acquire)
    }

    /// A future that ends when the server begins to shut down. Takes a few words of memory while it
    /// waits.
    pub fn draining(&self) -> Draining {
        Draining { token: self.clone(), key: None }
    }

    fn lock(&self) -> MutexGuard<'_, Slab<Waker>> {
        // Only a failed allocation panics under this lock, before the list changes.
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shutdown begins.
    pub(crate) fn set(&self) {
        let mut waiting = self.lock();
        self.0.is_set.store(true, Ordering::Release);
        let woken = std::mem::take(&mut *waiting);
        drop(waiting); // a waker may run code of the application
        wake_all(woken.into_iter().map(|(_, waker)| waker));
    }
}

/// The future of [`DrainToken::draining`].
///
/// ```
/// use futures::{StreamExt, stream};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = courser::Server::bind("udp://127.0.0.1:0")?;
/// let draining = server.drain_token().draining();
/// // A stream without an end, which ends when the server is to stop.
/// let items = stream::repeat(1).take_until(draining);
/// server.serve()?.handle().stop();
/// futures::executor::block_on(items.for_each(|_| async {}));
/// # Ok(()) }
/// ```
#[must_use = "futures do nothing unless they are polled"]
#[derive(Debug)]
pub struct Draining {
    token: DrainToken,
    /// The key of its waker.
    key: Option<usize>,
}

impl Future for Draining {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let token = self.token.clone();
        let mut waiting = token.lock();
        if token.is_draining() {
            return Poll::Ready(());
        }
        let known = self.key.and_then(|key| waiting.get_mut(key));
        let old = match known {
            Some(known) if known.will_wake(cx.waker()) => None,
            Some(known) => Some(std::mem::replace(known, cx.waker().clone())),
            None => {
                self.key = Some(waiting.insert(cx.waker().clone()));
                None
            }
        };
        drop(waiting);
        drop(old); // may run code of the application
        Poll::Pending
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut waiting = self.token.lock();
        // Empty after the token was set.
        let waker = waiting.try_remove(key);
        drop(waiting);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::executor::block_on;

    use super::*;

    #[test]
    fn a_token_wakes_all_that_wait_and_keeps_no_future_that_was_dropped() {
        let token = DrainToken::default();
        let waiting: Vec<_> = (0..8)
            .map(|_| {
                let token = token.clone();
                std::thread::spawn(move || block_on(token.draining()))
            })
            .collect();
        while token.lock().len() < 8 {
            std::thread::yield_now();
        }
        let mut polled_twice = pin!(token.draining());
        for _ in 0..2 {
            assert!(
                polled_twice.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
            );
        }
        {
            let mut dropped = pin!(token.draining());
            assert!(dropped.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert_eq!(token.lock().len(), 10);
        }
        assert!(token.lock().len() == 9 && !token.is_draining());
        token.set();
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(token.is_draining() && token.lock().is_empty());
        block_on(token.draining());
    }
}
