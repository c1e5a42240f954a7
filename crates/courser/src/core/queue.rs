//! What reply handles and futures of the endpoint's thread leave to its event loop.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use courser_proto::{RequestId, SessionId, Status};

use crate::core::timer::TimerId;

/// A future of this thread that has no result.
pub(crate) type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// One thing to do in the event loop.
pub(crate) enum LocalCommand {
    /// A reply handle was dropped: answer its request with this status.
    Reply(RequestId, Status),
    /// The future of a call or message was dropped: its entry.
    DropCall(u32),
    /// A sleep was dropped.
    CancelTimer(TimerId),
    /// The last handle of a session was dropped.
    Close(SessionId),
    /// A new task.
    Spawn(LocalFuture),
}

/// The commands for one endpoint's event loop. Clones are the same queue, and so identify the
/// endpoint.
#[derive(Clone, Default)]
pub(crate) struct LocalQueue(Rc<Inner>);

#[derive(Default)]
struct Inner {
    /// There may be commands, or tasks with something to do.
    news: Cell<bool>,
    closed: Cell<bool>,
    commands: RefCell<Vec<LocalCommand>>,
}

impl LocalQueue {
    /// Whether there may be commands, or tasks with something to do. One load, since every pass
    /// calls it.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.0.news.get()
    }

    /// The next pass has something to do for tasks.
    #[inline]
    pub(crate) fn set_news(&self) {
        self.0.news.set(true);
    }

    /// After the commands were run. `tasks`: tasks have something to do.
    pub(crate) fn update_news(&self, tasks: bool) {
        self.0.news.set(tasks || self.has_commands());
    }

    /// Returns whether two handles are of the same endpoint.
    #[inline]
    pub(crate) fn is(&self, other: &LocalQueue) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Drops the command when the endpoint is gone.
    pub(crate) fn push(&self, command: LocalCommand) {
        if self.0.closed.get() {
            return;
        }
        self.set_news();
        self.0.commands.borrow_mut().push(command);
    }

    /// Returns whether there are commands.
    pub(crate) fn has_commands(&self) -> bool {
        !self.0.commands.borrow().is_empty()
    }

    /// The commands so far, in order.
    pub(crate) fn take(&self) -> Vec<LocalCommand> {
        self.0.commands.take()
    }

    /// The endpoint is gone: drops the commands, and later ones.
    pub(crate) fn close(&self) {
        self.0.closed.set(true);
        drop(self.take());
    }
}

/// Notified at the end of what a future waits for.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// A task of this endpoint.
    Task(u32),
    /// A combinator within a task, or a future that something else polls.
    Other(Waker),
}

impl Waiter {
    pub(super) fn other(cx: &Context<'_>) -> Waiter {
        Waiter::Other(cx.waker().clone())
    }
}

impl std::fmt::Debug for LocalQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalQueue").field("news", &self.0.news).finish_non_exhaustive()
    }
}
