//! The state that both halves of a stream each way have at the client: the open call, and the items on
//! their way to the server.
//!
//! Either half may be polled while the other one is not, so each makes the progress of both: the calls
//! wake the tasks of both halves, and a half that finds an answer wakes the task of the other one. The
//! calls of some channels wake no task for an answer that a poll finds.
//!
//! One half polls the calls at a time, and nothing is locked meanwhile: a poll may call any waker, which may
//! poll or drop the other half in place. That half only notes that there is more to do.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use courser_buf::MsgBuf;
use courser_proto::{CallError, Executed};

use super::WINDOW;
use super::pushing::{Answers, Items, Pushes};
use crate::channel::Channel;
use crate::error::failure::CallFailure;
use crate::error::service::{MidStreamError, NoError, RpcError};
use crate::panics::{caught, wake_all};

/// A half, as the place of its task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Half {
    Sender = 0,
    Receiver = 1,
}

/// Steps of one poll. A thread that adds items all the time does not keep another one in its poll for longer.
const MOST_STEPS: usize = 64;

/// The tasks that wait for the calls of a stream.
#[derive(Debug, Default)]
struct Tasks(Mutex<[Option<Waker>; 2]>);

impl Tasks {
    fn lock(&self) -> MutexGuard<'_, [Option<Waker>; 2]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, half: Half, waker: Option<Waker>) {
        let old = std::mem::replace(&mut self.lock()[half as usize], waker);
        drop(old); // may run code of the application
    }

    /// Wakes the tasks of the halves other than `by`.
    fn wake_other(&self, by: Option<Half>) {
        let mut wakers = self.lock();
        let [sender, receiver] = [Half::Sender, Half::Receiver]
            .map(|half| if by == Some(half) { None } else { wakers[half as usize].take() });
        drop(wakers);
        // A waker that panics does not keep the other task asleep.
        wake_all([sender, receiver].into_iter().flatten());
    }
}

impl Wake for Tasks {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_other(None);
    }
}

/// The open call and the pushes on their way. A poll takes them out of the state, so that nothing is locked
/// while code of the channel runs, and the wakers that it calls.
struct Calls<C: Channel> {
    open: Option<C::OwnedCall>,
    pushes: Pushes<C>,
}

/// The call that opened a stream.
enum OpenCall {
    Running,
    /// It has ended, or the stream is cancelled: for the receiver.
    Ended(Result<MsgBuf, RpcError<NoError>>),
    Taken,
}

/// See the module.
struct State<C: Channel> {
    open: OpenCall,
    items: Items,
    /// `None`: they are polled.
    calls: Option<Calls<C>>,
    /// There is something to do for the thread that polls the calls.
    again: bool,
    /// The error of the sender, which is returned once.
    error: Option<RpcError<NoError>>,
}

impl<C: Channel> State<C> {
    /// Takes note of answers. Returns whether there was one, which the other half may wait for.
    fn note(&mut self, opened: Option<Result<MsgBuf, CallFailure>>, answers: Answers) -> bool {
        let mut changed = false;
        if let (OpenCall::Running, Some(answer)) = (&self.open, opened) {
            match &answer {
                // Pushes on their way are answered, and no others follow.
                Ok(_) => self.items.discard(),
                Err(failure) => self.fail(MidStreamError::Call(failure.clone()).into()),
            }
            self.open = OpenCall::Ended(answer.map_err(RpcError::from));
            changed = true;
        }
        match self.items.note(answers) {
            Ok(answered) => changed | answered,
            Err(e) => {
                self.refused(e);
                true
            }
        }
    }

    /// A batch could not be sent, or the server has refused it.
    fn refused(&mut self, error: RpcError<NoError>) {
        // The handler has got the error of an item that it could not decode, and decides.
        // Otherwise items are missing, and it would wait for them.
        let remote = |e: &_| matches!(e, MidStreamError::Decode(e) if e.is_remote());
        if !matches!(&error, RpcError::MidStream(e) if remote(e)) {
            self.end(error.clone());
        }
        self.fail(error);
    }

    fn fail(&mut self, error: RpcError<NoError>) {
        self.items.clear();
        self.error.get_or_insert(error);
    }

    /// Cancels the open call. `error` is that of the receiver.
    fn end(&mut self, error: RpcError<NoError>) {
        if let OpenCall::Running = self.open {
            self.open = OpenCall::Ended(Err(error));
        }
    }

    /// The error of a sender that can send no more.
    fn closed<E>(&mut self) -> RpcError<E> {
        self.error.take().map_or(MidStreamError::Closed.into(), RpcError::widen)
    }
}

/// See the module.
pub(super) struct Halves<C: Channel> {
    state: Mutex<State<C>>,
    tasks: Arc<Tasks>,
    waker: Waker,
}

/// The calls, while this thread polls them. They are in the state again after the drop, also after a panic.
/// Then both halves look again, as what was noted meanwhile is left to them.
struct Polling<'a, C: Channel> {
    halves: &'a Halves<C>,
    calls: Option<Calls<C>>,
}

impl<C: Channel> Drop for Polling<'_, C> {
    fn drop(&mut self) {
        let Some(mut calls) = self.calls.take() else { return };
        let mut state = self.halves.lock();
        // A half that was cancelled meanwhile has left it to this poll.
        let is_over = !matches!(state.open, OpenCall::Running);
        let pushes = state.items.is_cleared().then(|| calls.pushes.take());
        let dropped = (calls.open.take_if(|_| is_over), pushes);
        state.calls = Some(calls);
        state.again = false;
        drop(state);
        caught("call", 0, || drop(dropped)); // may run code of the channel
        self.halves.tasks.wake_other(None);
    }
}

impl<C: Channel> Polling<'_, C> {
    /// Polls the calls, and sends what the window allows. Returns whether another step may do more.
    fn step(&mut self, by: Option<Half>) -> bool {
        let Some(calls) = &mut self.calls else { return false };
        let cx = &mut Context::from_waker(&self.halves.waker);
        let opened = calls.open.as_mut().and_then(|open| match Pin::new(open).poll(cx) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        });
        if opened.is_some() {
            calls.open = None;
        }
        let answers = calls.pushes.poll(cx);
        let mut state = self.halves.lock();
        let mut changed = state.note(opened, answers);
        let mut again = changed;
        // Dropping a call cancels it, and may run code of the channel.
        let dropped = calls.open.take_if(|_| !matches!(state.open, OpenCall::Running));
        let cleared = state.items.is_cleared();
        let next: [_; WINDOW as usize] = std::array::from_fn(|_| state.items.next());
        drop(state);
        drop(dropped);
        if cleared {
            calls.pushes.clear();
        }
        for next in next.into_iter().flatten() {
            again = true;
            if let Err(e) = calls.pushes.send(next) {
                self.halves.lock().refused(e);
                changed = true;
                break;
            }
        }
        if changed {
            self.halves.tasks.wake_other(by);
        }
        again
    }

    /// Puts the calls back, unless there is more to do. Returns whether there is.
    fn is_wanted(&mut self) -> bool {
        let mut state = self.halves.lock();
        if std::mem::take(&mut state.again) {
            return true;
        }
        state.calls = self.calls.take();
        false
    }
}

impl<C: Channel> Halves<C> {
    /// `open`: until the stream has ended.
    // Not `Send` for the sessions of a thread, which is right: the halves are not either.
    #[allow(clippy::arc_with_non_send_sync)]
    pub(super) fn new(open: Option<C::OwnedCall>, pushes: Pushes<C>) -> Arc<Self> {
        let mut items = Items::default();
        if open.is_none() {
            items.discard();
        }
        let tasks = Arc::<Tasks>::default();
        let waker = Waker::from(tasks.clone());
        let state = State {
            open: if open.is_some() { OpenCall::Running } else { OpenCall::Taken },
            items,
            calls: Some(Calls { open, pushes }),
            again: false,
            error: None,
        };
        Arc::new(Halves { state: Mutex::new(state), tasks, waker })
    }

    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses the items on their way to the server.
    pub(super) fn with<R>(&self, then: impl FnOnce(&mut Items) -> R) -> R {
        then(&mut self.lock().items)
    }

    /// Makes the progress that is possible now, and wakes the tasks of the halves other than `by` if there is
    /// some. If another poll has the calls, it does so.
    pub(super) fn progress(&self, by: Option<Half>) {
        let mut state = self.lock();
        let Some(calls) = state.calls.take() else {
            state.again = true;
            return;
        };
        state.again = false;
        drop(state);
        let mut polling = Polling { halves: self, calls: Some(calls) };
        for _ in 0..MOST_STEPS {
            if !polling.step(by) && !polling.is_wanted() {
                return;
            }
        }
        drop(polling); // wakes both
    }

    /// Makes progress. If the result is pending, the task of the half is woken by the next one.
    fn poll<R>(
        &self,
        half: Half,
        cx: &Context<'_>,
        then: impl FnOnce(&mut State<C>) -> Poll<R>,
    ) -> Poll<R> {
        self.tasks.set(half, Some(cx.waker().clone()));
        self.progress(Some(half));
        let result = then(&mut self.lock());
        if result.is_ready() {
            self.tasks.set(half, None);
        }
        result
    }

    /// Waits until another item can be added.
    pub(super) fn poll_room<E>(&self, cx: &Context<'_>) -> Poll<Result<(), RpcError<E>>> {
        self.poll(Half::Sender, cx, |state| {
            if state.items.discards() {
                Poll::Ready(Err(state.closed()))
            } else if state.items.has_room() {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        })
    }

    /// Waits until the handler has taken all items.
    pub(super) fn poll_taken<E>(&self, cx: &Context<'_>) -> Poll<Result<(), RpcError<E>>> {
        self.poll(Half::Sender, cx, |state| {
            if !state.items.is_taken() {
                return Poll::Pending;
            }
            let failed = state.error.is_some() || state.items.has_lost();
            Poll::Ready(if failed { Err(state.closed()) } else { Ok(()) })
        })
    }

    /// Waits for the end of the stream, which is returned once.
    pub(super) fn poll_end(&self, cx: &Context<'_>) -> Poll<Result<MsgBuf, RpcError<NoError>>> {
        self.poll(Half::Receiver, cx, |state| {
            match std::mem::replace(&mut state.open, OpenCall::Taken) {
                OpenCall::Ended(answer) => Poll::Ready(answer),
                other => {
                    state.open = other;
                    Poll::Pending
                }
            }
        })
    }

    /// A half is dropped: cancels the stream if it has not ended.
    pub(super) fn cancel(&self, by: Half) {
        let mut state = self.lock();
        // A sender that has finished, or can send no more, is not needed.
        let is_over = state.items.is_finishing() || state.items.discards();
        let is_running = matches!(state.open, OpenCall::Running);
        if !is_running || (is_over && matches!(by, Half::Sender)) {
            return;
        }
        state.items.clear();
        let cancelled = CallError::Cancelled(Executed::Maybe);
        state.end(CallFailure::Failed(cancelled).into());
        drop(state);
        self.drop_calls();
        self.tasks.wake_other(None);
    }

    /// Drops the calls of a stream that is cancelled. If a poll has them, it does so.
    fn drop_calls(&self) {
        let mut state = self.lock();
        let Some(calls) = &mut state.calls else {
            state.again = true;
            return;
        };
        let dropped = (calls.open.take(), calls.pushes.take());
        drop(state);
        drop(dropped); // may run code of the channel
    }
}

#[cfg(test)]
mod tests;
