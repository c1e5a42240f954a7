//! The result of a task, and its end before time.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::core::queue::LocalFuture;

/// A task, made by [`crate::Local::spawn`]: a future of its result. Dropping it lets the task run on.
#[must_use = "dropping the handle lets the task run on; `drop` it to say so"]
pub struct JoinHandle<T>(Rc<Shared<T>>);

/// A task ended without a result: it was aborted, it panicked, or its endpoint was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the task ended without a result; check whether it was aborted or its endpoint dropped")]
pub struct TaskEnded;

struct Shared<T> {
    /// Set by `abort`.
    aborted: Cell<bool>,
    inner: RefCell<Inner<T>>,
}

struct Inner<T> {
    state: State<T>,
    /// The waker of the task's slot, which stays the same.
    task: Option<Waker>,
    joiner: Option<Waker>,
}

enum State<T> {
    Runs,
    Ended(T),
    Lost,
}

/// Ends the task's side, also when the future is dropped.
struct End<T>(Rc<Shared<T>>);

impl<T> End<T> {
    fn set(&self, state: State<T>) {
        let mut inner = self.0.inner.borrow_mut();
        if let State::Runs = inner.state {
            inner.state = state;
            let joiner = inner.joiner.take();
            inner.task = None;
            drop(inner);
            if let Some(joiner) = joiner {
                joiner.wake();
            }
        }
    }
}

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        self.set(State::Lost);
    }
}

/// A task without a result, and the handle that gets the result of `future`.
pub(super) fn joined<F>(future: F) -> (JoinHandle<F::Output>, LocalFuture)
where
    F: Future + 'static,
    F::Output: 'static,
{
    let inner = RefCell::new(Inner { state: State::Runs, task: None, joiner: None });
    let shared = Rc::new(Shared { aborted: Cell::new(false), inner });
    let end = End(shared.clone());
    let task = async move {
        let mut future = pin!(future);
        let mut begun = false;
        let result = poll_fn(|cx| {
            if end.0.aborted.get() {
                return Poll::Ready(None);
            }
            if !std::mem::replace(&mut begun, true) {
                end.0.inner.borrow_mut().task = Some(cx.waker().clone());
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await;
        end.set(result.map_or(State::Lost, State::Ended));
    };
    (JoinHandle(shared), Box::pin(task))
}

impl<T> JoinHandle<T> {
    /// Ends the task: its future is dropped in the next step of the event loop, unless it has ended.
    pub fn abort(&self) {
        self.0.aborted.set(true);
        let task = self.0.inner.borrow_mut().task.take();
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Returns whether the task has ended.
    pub fn is_finished(&self) -> bool {
        !matches!(self.0.inner.borrow().state, State::Runs)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, TaskEnded>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut inner = self.0.inner.borrow_mut();
        match std::mem::replace(&mut inner.state, State::Lost) {
            State::Runs => {
                inner.state = State::Runs;
                let old = inner.joiner.replace(cx.waker().clone());
                drop(inner);
                drop(old); // may run code of the application
                Poll::Pending
            }
            State::Ended(result) => Poll::Ready(Ok(result)),
            State::Lost => Poll::Ready(Err(TaskEnded)),
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("is_finished", &self.is_finished()).finish()
    }
}
