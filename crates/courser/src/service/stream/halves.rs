//! The state that both halves of a stream each way have at the client: the open call, and the items on
//! their way to the server.
//!
//! Either half may be polled while the other one is not, so each makes the progress of both: the calls
//! wake the tasks of both halves, and a half that finds an answer wakes the task of the other one. The
//! calls of some channels wake no task for an answer that a poll finds.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use courser_buf::MsgBuf;
use courser_proto::{CallError, Executed};

use super::pushing::Pushing;
use crate::channel::Channel;
use crate::error::failure::CallFailure;
use crate::error::service::{MidStreamError, NoError, RpcError};

/// A half, as the place of its task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Half {
    Sender = 0,
    Receiver = 1,
}

/// The tasks that wait for the calls of a stream.
#[derive(Debug, Default)]
struct Tasks(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    wakers: [Option<Waker>; 2],
    /// The calls are being polled: tasks are woken afterwards, as a waker may drop a task in place, which
    /// locks the state.
    polled: bool,
    /// The tasks to be woken then.
    woken: [bool; 2],
}

impl Tasks {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, half: Half, waker: Option<Waker>) {
        let old = std::mem::replace(&mut self.lock().wakers[half as usize], waker);
        drop(old); // may run code of the application
    }
}

impl Wake for Tasks {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut waiting = self.lock();
        if waiting.polled {
            waiting.woken = [true; 2];
            return;
        }
        let wakers = std::mem::take(&mut waiting.wakers);
        drop(waiting);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

/// The call that opened a stream.
enum OpenCall<C: Channel> {
    Running(C::OwnedCall),
    /// It has ended, or the stream is cancelled: for the receiver.
    Ended(Result<MsgBuf, RpcError<NoError>>),
    Taken,
}

/// See the module.
struct State<C: Channel> {
    open: OpenCall<C>,
    pushing: Pushing<C>,
    /// The error of the sender, which is returned once.
    error: Option<RpcError<NoError>>,
}

impl<C: Channel> State<C> {
    /// Polls all calls. Returns whether there was an answer or an error, which the other half may wait for.
    fn progress(&mut self, cx: &mut Context<'_>) -> bool {
        let mut changed = false;
        if let OpenCall::Running(call) = &mut self.open
            && let Poll::Ready(answer) = Pin::new(call).poll(cx)
        {
            match &answer {
                // Pushes on their way are answered, and no others follow.
                Ok(_) => self.pushing.discard(),
                Err(failure) => self.fail(MidStreamError::Call(failure.clone()).into()),
            }
            self.open = OpenCall::Ended(answer.map_err(RpcError::from));
            changed = true;
        }
        match self.pushing.progress(cx) {
            Ok(answered) => changed || answered,
            Err(e) => {
                // The handler has got the error of an item that it could not decode, and decides.
                // Otherwise items are missing, and it would wait for them.
                let remote = |e: &_| matches!(e, MidStreamError::Decode(e) if e.is_remote());
                if !matches!(&e, RpcError::MidStream(e) if remote(e)) {
                    self.end(e.clone());
                }
                self.fail(e);
                true
            }
        }
    }

    fn fail(&mut self, error: RpcError<NoError>) {
        self.pushing.clear();
        self.error.get_or_insert(error);
    }

    /// Cancels the open call. `error` is that of the receiver.
    fn end(&mut self, error: RpcError<NoError>) {
        if let OpenCall::Running(_) = self.open {
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

/// The locked state. Tasks are woken after it is unlocked.
struct Locked<'a, C: Channel> {
    state: Option<MutexGuard<'a, State<C>>>,
    tasks: &'a Tasks,
}

impl<C: Channel> Locked<'_, C> {
    fn state(&mut self) -> &mut State<C> {
        self.state.as_mut().expect("locked until the drop")
    }

    /// Makes progress, and wakes the tasks of the halves other than `by` if there is some.
    fn progress(&mut self, by: Option<Half>, waker: &Waker) {
        if self.state().progress(&mut Context::from_waker(waker)) {
            self.wake(by);
        }
    }

    /// Wakes the tasks of the halves other than `by`.
    fn wake(&self, by: Option<Half>) {
        let woken = &mut self.tasks.lock().woken;
        for half in [Half::Sender, Half::Receiver] {
            woken[half as usize] |= by != Some(half);
        }
    }
}

impl<C: Channel> Drop for Locked<'_, C> {
    fn drop(&mut self) {
        let mut waiting = self.tasks.lock();
        waiting.polled = false;
        let woken = std::mem::take(&mut waiting.woken);
        let halves = [Half::Sender, Half::Receiver];
        let wakers = halves.map(|half| {
            if woken[half as usize] { waiting.wakers[half as usize].take() } else { None }
        });
        drop(waiting);
        self.state = None;
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl<C: Channel> Halves<C> {
    /// `open`: until the stream has ended.
    // Not `Send` for the sessions of a thread, which is right: the halves are not either.
    #[allow(clippy::arc_with_non_send_sync)]
    pub(super) fn new(open: Option<C::OwnedCall>, mut pushing: Pushing<C>) -> Arc<Self> {
        if open.is_none() {
            pushing.discard();
        }
        let open = open.map_or(OpenCall::Taken, OpenCall::Running);
        let tasks = Arc::<Tasks>::default();
        let waker = Waker::from(tasks.clone());
        let state = Mutex::new(State { open, pushing, error: None });
        Arc::new(Halves { state, tasks, waker })
    }

    fn lock(&self) -> Locked<'_, C> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.tasks.lock().polled = true;
        Locked { state: Some(state), tasks: &self.tasks }
    }

    /// Uses the items on their way to the server.
    pub(super) fn with<R>(&self, then: impl FnOnce(&mut Pushing<C>) -> R) -> R {
        then(&mut self.lock().state().pushing)
    }

    /// Makes the progress that is possible now.
    pub(super) fn progress(&self) {
        self.lock().progress(None, &self.waker);
    }

    /// Makes progress. If the result is pending, the task of the half is woken by the next one.
    fn poll<R>(
        &self,
        half: Half,
        cx: &Context<'_>,
        then: impl FnOnce(&mut State<C>) -> Poll<R>,
    ) -> Poll<R> {
        self.tasks.set(half, Some(cx.waker().clone()));
        let mut locked = self.lock();
        locked.progress(Some(half), &self.waker);
        let result = then(locked.state());
        drop(locked);
        if result.is_ready() {
            self.tasks.set(half, None);
        }
        result
    }

    /// Waits until another item can be added.
    pub(super) fn poll_room<E>(&self, cx: &Context<'_>) -> Poll<Result<(), RpcError<E>>> {
        self.poll(Half::Sender, cx, |state| {
            if state.pushing.discards() {
                Poll::Ready(Err(state.closed()))
            } else if state.pushing.has_room() {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        })
    }

    /// Waits until the handler has taken all items.
    pub(super) fn poll_taken<E>(&self, cx: &Context<'_>) -> Poll<Result<(), RpcError<E>>> {
        self.poll(Half::Sender, cx, |state| {
            if !state.pushing.is_taken() {
                return Poll::Pending;
            }
            let failed = state.error.is_some() || state.pushing.has_lost();
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
        let mut locked = self.lock();
        let state = locked.state();
        // A sender that has finished, or can send no more, is not needed.
        let is_over = state.pushing.is_finishing() || state.pushing.discards();
        if !matches!(state.open, OpenCall::Running(_)) || (is_over && matches!(by, Half::Sender)) {
            return;
        }
        state.pushing.clear();
        let cancelled = CallError::Cancelled(Executed::Maybe);
        state.end(CallFailure::Failed(cancelled).into());
        locked.wake(None);
    }
}
