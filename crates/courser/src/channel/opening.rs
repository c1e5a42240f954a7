//! A session that is being connected: shared by its future and the thread of the endpoint.

use std::sync::PoisonError;
use std::task::{Poll, Waker};

use crate::error::ClientError;
use crate::sync::{Mutex, MutexGuard};

/// A client that is connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    /// Its number at its endpoint.
    pub(crate) link: usize,
    /// Slots of its session.
    pub(crate) slots: u32,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Opening {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The client, or why there is none.
    result: Option<Result<Opened, ClientError>>,
    waker: Option<Waker>,
    /// The future was dropped.
    abandoned: bool,
}

impl Opening {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the result, and returns the task to be woken.
    ///
    /// # Errors
    /// The future was dropped.
    pub(crate) fn finish(&self, result: Result<Opened, ClientError>) -> Result<Option<Waker>, ()> {
        let mut state = self.lock();
        if state.abandoned {
            return Err(());
        }
        state.result = Some(result);
        Ok(state.waker.take())
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.lock().abandoned
    }

    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Result<Opened, ClientError>> {
        let mut state = self.lock();
        if let Some(result) = state.result.take() {
            return Poll::Ready(result);
        }
        let old = state.waker.replace(waker.clone());
        drop(state);
        drop(old); // may run code of the application
        Poll::Pending
    }

    /// The future is dropped. Returns the number of a client that nothing will use.
    pub(crate) fn abandon(&self) -> Option<usize> {
        let mut state = self.lock();
        state.abandoned = true;
        let waker = state.waker.take();
        let result = state.result.take();
        drop(state);
        drop(waker);
        result.and_then(Result::ok).map(|opened| opened.link)
    }
}
