//! The result of a task, and its end before time.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::queue::LocalFuture;

/// A task, made by [`crate::Local::spawn`]: a future of its result. Dropping it lets the task run on.
#[must_use = "dropping the handle lets the task run on; `drop` it to say so"]
pub struct JoinHandle<T>(Rc<RefCell<Shared<T>>>);

/// A task ended without a result: it was aborted, it panicked, or its endpoint was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the task ended without a result; check whether it was aborted or its endpoint dropped")]
pub struct TaskEnded;

struct Shared<T> {
    state: State<T>,
    /// Set by `abort`.
    aborted: bool,
    task: Option<Waker>,
    joiner: Option<Waker>,
}

enum State<T> {
    Runs,
    Ended(T),
    Lost,
}

/// Ends the task's side, also when the future is dropped.
struct End<T>(Rc<RefCell<Shared<T>>>);

impl<T> End<T> {
    fn set(&self, state: State<T>) {
        let mut shared = self.0.borrow_mut();
        if let State::Runs = shared.state {
            shared.state = state;
            let joiner = shared.joiner.take();
            shared.task = None;
            drop(shared);
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
    let shared = Shared { state: State::Runs, aborted: false, task: None, joiner: None };
    let shared = Rc::new(RefCell::new(shared));
    let end = End(shared.clone());
    let task = async move {
        let mut future = pin!(future);
        let result = poll_fn(|cx| {
            let mut shared = end.0.borrow_mut();
            if shared.aborted {
                return Poll::Ready(None);
            }
            if shared.task.as_ref().is_none_or(|task| !task.will_wake(cx.waker())) {
                shared.task = Some(cx.waker().clone());
            }
            drop(shared);
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
        let mut shared = self.0.borrow_mut();
        shared.aborted = true;
        let task = shared.task.take();
        drop(shared);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        !matches!(self.0.borrow().state, State::Runs)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, TaskEnded>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut shared = self.0.borrow_mut();
        match std::mem::replace(&mut shared.state, State::Lost) {
            State::Runs => {
                shared.state = State::Runs;
                shared.joiner = Some(cx.waker().clone());
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
