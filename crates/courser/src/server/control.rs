//! How a server is told to end, and how it reports its end.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::stats::{Published, ServerStats};
use courser_proto::EndpointStats;

use crate::control::mailbox::Mailbox;
use crate::core::drain::DrainToken;
use crate::core::shares::ClientStats;
use crate::counts::MethodStats;
use crate::error::ServerError;
use crate::panics::wake_all;
use crate::rpc::shutdown::ShutdownReport;
use crate::service::{ServiceStats, Services};
use crate::sync::{AtomicU8, Condvar, Mutex, MutexGuard};

#[cfg(all(loom, test))]
mod model;

thread_local! {
    /// This thread runs an endpoint of a server.
    pub(super) static IS_ENDPOINT: Cell<bool> = const { Cell::new(false) };
}

/// Time for a server whose runtime has ended to send the answers of its handlers, all of which were
/// dropped.
const RUNTIME_GRACE: Duration = Duration::from_secs(1);

/// What the threads of a server are to do; later ones replace earlier ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(super) enum Command {
    Run = 0,
    ShutDown = 1,
    Stop = 2,
}

/// Shared by a server, its handles and its threads.
#[derive(Default)]
pub(super) struct Control {
    command: AtomicU8,
    state: Mutex<State>,
    ended: Condvar,
    pub(super) published: Published,
    pub(super) drain: DrainToken,
    pub(super) services: Services,
}

#[derive(Default)]
struct State {
    grace: Duration,
    /// The mailboxes of the endpoints.
    mailboxes: Vec<Mailbox>,
    threads: usize,
    report: ShutdownReport,
    error: Option<ServerError>,
    waker: Option<Waker>,
    /// Wakes the task that waits for the end of the server on the runtime of its handlers.
    watcher: Option<Waker>,
}

impl Control {
    pub(super) fn new(services: Services) -> Self {
        Control { drain: services.drain_token().clone(), services, ..Control::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only a failed allocation panics under this lock, and it leaves the state intact.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One load.
    #[inline]
    pub(super) fn command(&self) -> Command {
        match self.command.load(Ordering::Acquire) {
            0 => Command::Run,
            1 => Command::ShutDown,
            _ => Command::Stop,
        }
    }

    pub(super) fn grace(&self) -> Duration {
        self.lock().grace
    }

    fn set(&self, command: Command, grace: Duration) {
        let mut state = self.lock();
        if self.command() == Command::Run {
            state.grace = grace;
        }
        self.command.fetch_max(command as u8, Ordering::AcqRel);
        state.mailboxes.iter().for_each(Mailbox::wake);
        drop(state);
        self.drain.set();
    }

    /// A thread has an endpoint.
    pub(super) fn begin(&self, mailbox: Mailbox) {
        let mut state = self.lock();
        state.mailboxes.push(mailbox);
        state.threads += 1;
    }

    /// A thread has ended. The others end too after an error.
    pub(super) fn end(&self, result: Result<ShutdownReport, ServerError>) {
        let failed = result.is_err();
        let mut state = self.lock();
        state.threads -= 1;
        match result {
            Ok(report) => state.report = sum(state.report, report),
            Err(error) => {
                state.error.get_or_insert(error);
                self.command.fetch_max(Command::Stop as u8, Ordering::AcqRel);
                state.mailboxes.iter().for_each(Mailbox::wake);
            }
        }
        let wakers = match state.threads {
            0 => [state.waker.take(), state.watcher.take()],
            _ => [None, None],
        };
        drop(state);
        self.ended.notify_all();
        if failed {
            self.drain.set();
        }
        wake_all(wakers.into_iter().flatten());
    }

    /// The runtime of the handlers has ended: the server shuts down with an error.
    fn runtime_ended(&self) {
        let mut state = self.lock();
        if state.threads == 0 || self.command() != Command::Run {
            return; // it ends, or has ended, in another way
        }
        state.error.get_or_insert(ServerError::RuntimeEnded);
        drop(state);
        self.set(Command::ShutDown, RUNTIME_GRACE);
    }

    fn result(state: &mut State) -> Result<ShutdownReport, ServerError> {
        match state.error.take() {
            None => Ok(state.report),
            Some(e) => Err(e),
        }
    }

    /// The report when all threads have ended.
    pub(super) fn poll(&self, waker: &Waker) -> Poll<Result<ShutdownReport, ServerError>> {
        let mut state = self.lock();
        if state.threads == 0 {
            return Poll::Ready(Self::result(&mut state));
        }
        let old = state.waker.replace(waker.clone());
        drop(state);
        drop(old); // may run code of the application
        Poll::Pending
    }

    /// Blocks until all threads have ended.
    pub(super) fn wait(&self) -> Result<ShutdownReport, ServerError> {
        let mut state = self.lock();
        while state.threads > 0 {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Self::result(&mut state)
    }
}

/// A future that ends when the server has ended; [`super::Spawn::watch`].
pub(super) struct Watchman {
    control: Arc<Control>,
    /// It was polled, and the server has not ended.
    watches: bool,
}

impl Watchman {
    pub(super) fn new(control: Arc<Control>) -> Self {
        Watchman { control, watches: false }
    }
}

impl Future for Watchman {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.control.lock();
        let runs = state.threads > 0;
        let old = if runs { state.watcher.replace(cx.waker().clone()) } else { None };
        drop(state);
        drop(old); // may run code of the application
        self.watches = runs;
        if runs { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Watchman {
    fn drop(&mut self) {
        if self.watches {
            self.control.runtime_ended();
        }
    }
}

fn sum(a: ShutdownReport, b: ShutdownReport) -> ShutdownReport {
    ShutdownReport {
        calls: a.calls + b.calls,
        executing: a.executing + b.executing,
        unacknowledged: a.unacknowledged + b.unacknowledged,
        messages: a.messages + b.messages,
        with_workers: a.with_workers + b.with_workers,
    }
}

/// Ends a [`crate::Server`], and reads its counters, from any thread; made by [`crate::Server::handle`].
///
/// ```
/// # use courser_example_store::*;
/// use courser::{Server, ServerHandle};
/// use std::time::Duration;
///
/// # fn main() -> Done {
/// let server = Server::bind("udp://127.0.0.1:0")?.add_service(StoreServer::new(Texts))?;
/// let handle: ServerHandle = server.handle();
/// let ending = std::thread::spawn(move || server.run());
/// handle.shutdown(Duration::from_secs(1));
/// assert!(ending.join().expect("no panic")?.is_clean());
/// assert_eq!(handle.stats().in_progress, 0);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ServerHandle {
    pub(super) control: Arc<Control>,
}

impl ServerHandle {
    /// Ends the server at once: handlers in progress are dropped, and calls of clients end with
    /// [`crate::CallError::PeerFailed`].
    pub fn stop(&self) {
        self.control.set(Command::Stop, Duration::ZERO);
    }

    /// Ends the server gracefully, within `grace`: new requests are refused with
    /// [`crate::Status::ShuttingDown`] (except checks of health), handlers in progress end, and their clients get the answers,
    /// or [`crate::Status::GraceEnded`] at the end of the grace; streams end as [`crate::Rpc::shutdown`]
    /// states. Long calls may end early, since their services
    /// can hold a [`DrainToken`]. [`crate::Server::run`] and [`crate::Server::serve`] then return
    /// what was left. A second call has no effect, and [`ServerHandle::stop`] cuts it short.
    pub fn shutdown(&self, grace: Duration) {
        self.control.set(Command::ShutDown, grace);
    }
}

impl ServerHandle {
    /// The counters of the server, also after its end; all 0 before it runs.
    pub fn stats(&self) -> ServerStats {
        self.control.published.sum()
    }

    /// The counters of the protocol of each endpoint: retransmissions, drops, calls. Blocks its thread until
    /// the endpoints have published them, some microseconds, or 20 ms if one is busy, whose last ones are
    /// returned then. It is for plain threads: tasks use [`ServerHandle::fresh_endpoint_stats`]. On the
    /// thread of an endpoint, where a handler must not block, it returns the last ones at once.
    pub fn endpoint_stats(&self) -> Vec<EndpointStats> {
        self.control.published.protocols(|| self.wake_endpoints(), !IS_ENDPOINT.get())
    }

    fn wake_endpoints(&self) {
        self.control.lock().mailboxes.iter().for_each(Mailbox::wake);
    }

    /// The counters of [`ServerHandle::endpoint_stats`] for tasks and handlers, wherever they run: the future
    /// blocks no thread, and its counters are those after this call. It waits up to 20 ms for an endpoint
    /// that does not run its event loop, whose last ones are returned then. The endpoints that run keep
    /// this time: if none does, as all are in handlers, the future is pending until one of them runs or
    /// ends, so that a handler that blocks its endpoint must not wait for it. Before the server runs, it
    /// is ready once the endpoints have begun.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let serving = courser::Server::bind("udp://127.0.0.1:0")?.endpoints(2).serve()?;
    /// let handle = serving.handle();
    /// let all = futures::executor::block_on(handle.fresh_endpoint_stats());
    /// assert_eq!(all.len(), 2);
    /// # Ok(()) }
    /// ```
    pub fn fresh_endpoint_stats(
        &self,
    ) -> impl Future<Output = Vec<EndpointStats>> + Send + 'static + use<> {
        let wanted = self.control.published.ask(|| self.wake_endpoints());
        FreshStats { control: self.control.clone(), wanted, key: None }
    }

    /// The counters of the typed services, also after the end of the server.
    pub fn service_stats(&self) -> ServiceStats {
        self.control.services.stats()
    }

    /// The counters of each method of the typed services, also after the end of the server: see
    /// [`MethodStats`].
    pub fn method_stats(&self) -> Vec<MethodStats> {
        self.control.services.method_stats()
    }

    /// The clients of the server that have a session or a handler in progress, ordered by their
    /// connections; none before it runs. It takes a lock that endpoints take for new clients, and some
    /// 50 ns for each client.
    pub fn clients(&self) -> Vec<ClientStats> {
        self.control.published.places.get().map_or(Vec::new(), |places| places.clients())
    }
}

/// The future of [`ServerHandle::fresh_endpoint_stats`].
struct FreshStats {
    control: Arc<Control>,
    /// The number of its request.
    wanted: u64,
    /// The key of its waker.
    key: Option<usize>,
}

impl Future for FreshStats {
    type Output = Vec<EndpointStats>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.control.published.poll_protocols(this.wanted, &mut this.key, cx.waker())
    }
}

impl Drop for FreshStats {
    fn drop(&mut self) {
        self.control.published.forget(self.key.take());
    }
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle").field("command", &self.control.command()).finish()
    }
}
