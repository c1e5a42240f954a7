//! The result of a task, and its end before time.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::core::queue::LocalFuture;

/// A task, made by [`crate::Local::spawn`]: a future of its result. Dropping it lets the task run on.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_local(async |local, uri| {
/// # let _ = uri;
/// let task = local.spawn(async { 6 * 7 });
/// assert_eq!(task.await?, 42);
/// let endless = local.spawn(std::future::pending::<()>());
/// endless.abort();
/// assert!(endless.await.is_err());
/// # Ok(()) }) }
/// ```
#[must_use = "dropping the handle lets the task run on; `drop` it to say so"]
pub struct JoinHandle<T>(Rc<Shared<T>>);

/// A task ended without a result: it was aborted, it panicked, or its endpoint was dropped.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_local(async |local, uri| {
/// use courser::TaskEnded;
///
/// # let _ = uri;
/// let task = local.spawn(std::future::pending::<()>());
/// task.abort();
/// assert!(matches!(task.await, Err(TaskEnded { .. })));
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the task ended without a result; check whether it was aborted or its endpoint dropped")]
pub struct TaskEnded;

struct Shared<T> {
    phase: Cell<Phase>,
    inner: RefCell<Inner<T>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Not polled yet.
    New,
    Begun,
    Aborted,
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

impl<T> End<T> {
    /// Begins the task, unless it was aborted.
    fn begin(&self, cx: &Context<'_>) -> Poll<()> {
        if self.0.phase.replace(Phase::Begun) == Phase::Aborted {
            self.set(State::Lost);
            return Poll::Ready(());
        }
        self.0.inner.borrow_mut().task = Some(cx.waker().clone());
        Poll::Pending
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
    let shared = Rc::new(Shared { phase: Cell::new(Phase::New), inner });
    let end = End(shared.clone());
    (JoinHandle(shared), Box::pin(Task { future, end }))
}

pin_project_lite::pin_project! {
    /// A future whose result is for its handle. The future is dropped before its end.
    struct Task<F>
    where
        F: Future,
    {
        #[pin]
        future: F,
        end: End<F::Output>,
    }
}

impl<F: Future> Future for Task<F> {
    type Output = ();

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if this.end.0.phase.get() != Phase::Begun && this.end.begin(cx).is_ready() {
            return Poll::Ready(());
        }
        this.future.poll(cx).map(|result| this.end.set(State::Ended(result)))
    }
}

impl<T> JoinHandle<T> {
    /// Ends the task: its future is dropped in the next step of the event loop, unless it has ended.
    pub fn abort(&self) {
        self.0.phase.set(Phase::Aborted);
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
