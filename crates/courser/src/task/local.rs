//! The endpoint and its sessions, as futures of its thread hold them.

use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use courser_buf::{AllocError, Arena, MsgBuf};
use courser_net::Transport;
use courser_proto::SessionId;

use super::call::{Call, Sent};
use super::connect::Connecting;
use super::join::{self, JoinHandle};
use super::time::{Sleep, Timeout};
use crate::core::context::Context;
use crate::core::lent;
use crate::core::queue::{LocalCommand, LocalQueue};
use crate::core::{Core, Lender};
use crate::rpc::Rpc;

/// The endpoint as futures of its thread use it, made by [`Rpc::local`] and [`Context::local`].
/// Clones are the same endpoint.
///
/// ```
/// use std::time::Duration;
///
/// use courser::{Local, Nexus};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut rpc = Nexus::bind("udp://127.0.0.1:0")?.endpoint()?;
/// let local: Local = rpc.local();
/// let slept_ns = rpc.block_on(async move {
///     let begun_ns = local.now_ns();
///     local.sleep(Duration::from_millis(1)).await;
///     local.now_ns() - begun_ns
/// })?;
/// assert!(slept_ns >= 1_000_000);
/// # Ok(()) }
/// ```
///
/// # Panics
/// Futures of an endpoint have access to it while it polls them: in [`Rpc::block_on`], in tasks
/// ([`Local::spawn`]) and in handlers of [`Rpc::on_async`]. A poll by another executor panics, and
/// so do [`Local::now_ns`] and [`Local::random`] outside of it. Programs with a runtime of their own
/// use [`crate::Context`] in callbacks, or a client handle for other threads.
#[derive(Clone)]
pub struct Local {
    queue: LocalQueue,
    lender: Lender,
    arena: Arena,
    /// The largest message.
    limit: usize,
}

impl Local {
    pub(super) fn of(core: &Core) -> Local {
        Local {
            queue: core.queue.clone(),
            lender: core.lender.clone(),
            arena: core.proto.arena().clone(),
            limit: core.proto.config().max_msg_size as usize,
        }
    }

    #[inline]
    pub(super) fn queue(&self) -> &LocalQueue {
        &self.queue
    }

    #[inline]
    pub(super) fn lender(&self) -> &Lender {
        &self.lender
    }

    #[inline]
    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// [`crate::Config::max_msg_size`].
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Connects a session with a server, within [`crate::Config::connect_timeout`]. The session is closed
    /// when its last handle is dropped. A future that is dropped gives up its session, and not the
    /// control connection that is being opened: later connects to the same server wait for that one.
    pub fn connect(&self, uri: &str) -> Connecting {
        Connecting::new(self.clone(), uri)
    }

    /// A handle of a session that was connected by [`Rpc::connect`]. Dropping it closes nothing.
    pub fn session(&self, id: SessionId) -> Session {
        Session::unowned(self.clone(), id)
    }

    /// Runs a future as a task of the endpoint. It is polled from the next step of the event loop on,
    /// and dropped with the endpoint. Dropping the handle lets the task run on.
    ///
    /// A panic of a task ends the event loop with that panic, as one of a continuation does.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let (handle, task) = join::joined(future);
        self.queue.push(LocalCommand::Spawn(task));
        handle
    }

    /// Ends `after` from its first poll, or as soon after that as the event loop comes to it.
    pub fn sleep(&self, after: Duration) -> Sleep {
        Sleep::after(self.clone(), after)
    }

    /// Ends at a time of [`Local::now_ns`], or as soon after that as the event loop comes to it.
    pub fn sleep_until(&self, at_ns: u64) -> Sleep {
        Sleep::until(self.clone(), at_ns)
    }

    /// The result of a future, if it ends within `after` of its first poll; else [`Elapsed`].
    ///
    /// [`Elapsed`]: super::Elapsed
    pub fn timeout<F: Future>(&self, after: Duration, future: F) -> Timeout<F> {
        Timeout::new(self.sleep(after), future)
    }

    /// The result of a future, unless it still waits at a time of [`Local::now_ns`]; then [`Elapsed`].
    ///
    /// [`Elapsed`]: super::Elapsed
    pub fn timeout_at<F: Future>(&self, at_ns: u64, future: F) -> Timeout<F> {
        Timeout::new(self.sleep_until(at_ns), future)
    }

    /// Allocates a message buffer of `len` bytes, all 0. [`Self::alloc_recycled`] saves the time of
    /// clearing large ones.
    ///
    /// # Errors
    /// The endpoint's memory limit is reached.
    #[inline]
    pub fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        crate::core::message::zeroed(self.arena.alloc(len))
    }

    /// A message buffer of `len` bytes that have the contents of earlier messages of this endpoint:
    /// for messages that are overwritten in full. A byte that is not **reveals another message**.
    ///
    /// # Errors
    /// The endpoint's memory limit is reached.
    #[inline]
    pub fn alloc_recycled(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.arena.alloc(len)
    }

    /// The endpoint's clock: nanoseconds since it was made.
    pub fn now_ns(&self) -> u64 {
        lent::with(&self.lender, |core| core.now_ns())
    }

    /// The next number of the endpoint's seeded generator; not for secrets.
    pub fn random(&self) -> u64 {
        lent::with(&self.lender, Core::random)
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").finish_non_exhaustive()
    }
}

/// A session, for futures of its endpoint's thread. Clones are the same session. One that
/// [`Local::connect`] made is closed when its last clone is dropped; its calls then end with an
/// error.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_local(async |local, uri| {
/// let session = local.connect(&uri).await?;
/// // Clones share the session: one for a typed client, one for calls without a service.
/// let store = StoreClient::new(session.clone()).await?;
/// assert_eq!(store.get("apple".to_owned()).await?, "about apple");
/// assert_eq!(session.call(ECHO, local.alloc(8)?).await?.len(), 8);
/// # Ok(()) }) }
/// ```
#[derive(Clone)]
pub struct Session {
    inner: Rc<Inner>,
}

struct Inner {
    local: Local,
    id: SessionId,
    /// The address, of a session that is to be closed.
    uri: Option<String>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.uri.is_some() {
            self.local.queue.push(LocalCommand::Close(self.id));
        }
    }
}

impl Session {
    pub(super) fn owned(local: Local, id: SessionId, uri: &str) -> Session {
        Session { inner: Rc::new(Inner { local, id, uri: Some(uri.to_owned()) }) }
    }

    fn unowned(local: Local, id: SessionId) -> Session {
        Session { inner: Rc::new(Inner { local, id, uri: None }) }
    }

    #[inline]
    pub(super) fn queue(&self) -> &LocalQueue {
        &self.inner.local.queue
    }

    #[inline]
    pub(super) fn lender(&self) -> &Lender {
        &self.inner.local.lender
    }

    /// The endpoint.
    pub fn local(&self) -> &Local {
        &self.inner.local
    }

    /// The number of the session, for calls with callbacks and for counters.
    #[inline]
    pub fn id(&self) -> SessionId {
        self.inner.id
    }

    /// The address that the session was connected to; `None` for one of [`Local::session`].
    pub fn uri(&self) -> Option<&str> {
        self.inner.uri.as_deref()
    }

    /// A call. It waits while [`crate::Config::call_queue`] calls wait on the session, so it is not
    /// refused for want of room.
    #[doc(alias = "enqueue_request")]
    #[inline]
    pub fn call(&self, req_type: u16, request: MsgBuf) -> Call<'_> {
        Call::new(self, req_type, request)
    }

    /// A one-way message: see [`Context::send`]. It waits while the queue of messages is full.
    pub fn send(&self, msg_type: u16, message: MsgBuf) -> Sent<'_> {
        Sent::new(self, msg_type, message)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id()).field("uri", &self.uri()).finish()
    }
}

impl Context<'_> {
    /// The endpoint as futures use it.
    pub fn local(&self) -> Local {
        Local::of(self.core)
    }
}

impl<T: Transport> Rpc<T> {
    /// The endpoint as futures use it: to connect, to spawn tasks, to sleep.
    pub fn local(&self) -> Local {
        Local::of(&self.core)
    }

    /// Tasks, and calls that futures await.
    pub fn task_stats(&self) -> crate::core::tasks::TaskStats {
        self.core.tasks.stats()
    }
}
