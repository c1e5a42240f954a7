//! The handle for other threads and runtimes: calls that are futures of any runtime, or block a
//! plain thread.
//!
//! ```text
//! ClientCall::poll --> endpoint::submit --> engine: calls::Clients picks a session, starts the call
//!                  --> endpoint::drive  --> engine: passes until the answer is there
//!    another thread drives: --> Inbox   --> it takes the call before it leaves
//!    nothing drives: courser-client-N (driver) sleeps on the descriptor, drives, wakes the task
//! ```
//!
//! A call is one allocation ([`crate::channel::call::Call`]). See [`endpoint`] for the threads.

mod app;
mod batch;
mod blocking;
mod calls;
mod channel;
mod connect;
mod driver;
mod endpoint;
mod endpoints;
mod engine;
mod inbox;
mod patience;
mod pauses;
mod polling;
mod shared;
#[cfg(test)]
mod tests;
mod virtual_time;
mod wait;

use std::fmt;
use std::sync::Arc;

use courser_buf::{AllocError, Arena, MsgBuf};

use crate::channel::greeting::Greetings;
use crate::channel::link::Limits;
use crate::config::Config;
use crate::core::message::zeroed;
use crate::counts::MethodStats;
use crate::error::failure::CallFailure;
use endpoint::Endpoint;
use endpoints::User;

pub use channel::{DefaultChannel, dial};
pub use connect::{ClientAnother, ClientBuilder, ClientConnect};
pub use endpoints::Endpoints;
pub use polling::PollingStats;
pub use virtual_time::VirtualClients;
pub use wait::{ClientCall, ClientSend};

/// Calls of a stream at a time: the open call, and two pulls and two pushes; the calls of an earlier stream
/// may still end.
const CALLS_OF_STREAM: usize = 16;

/// A connection to a server for any number of threads and tasks, of any runtime or none.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use std::time::Duration;
///
/// use courser::Client;
///
/// let client = Client::connect(&uri).await?;
/// let mut request = client.alloc(3)?;
/// request.copy_from_slice(b"key");
/// let response = client.call(ECHO, request).deadline(Duration::from_secs(5)).await?;
/// assert_eq!(&response[..], b"key");
/// # Ok(()) }) }
/// ```
///
/// A plain thread ends each of these with `.wait()` in place of `.await`.
///
/// # Back-pressure
/// A call is never refused because there are many. [`ClientBuilder::in_flight`] calls are in
/// progress at a time, and further ones wait in their order. A call that waits holds its request and
/// about 200 bytes.
///
/// # Sessions
/// The client begins with one session, and connects further ones, up to
/// [`ClientBuilder::sessions`], while all slots of those it has are in use. The sessions are closed
/// when the last clone of the client and the last of its calls are dropped.
///
/// # A lost server
/// When the last session is lost, calls in progress end with [`CallFailure::Lost`], which states
/// whether they ran. The client connects again, with pauses of 2.5 to 500 ms, until 30 s after the
/// last call. Calls that begin meanwhile wait for the connect that is under way. When it fails, they
/// fail with its cause ([`CallFailure::NotConnected`], never executed), and further calls fail at
/// once until the next connect begins: a server whose system refuses connections costs a call less
/// than a millisecond, one that is silent at most [`Config::connect_timeout`]. Calls with
/// [`ClientCall::wait_for_ready`] wait for the server instead.
///
/// # Cost
/// The clients of a process share one endpoint with its thread, and a connection to each server, if they
/// have the same transport and the same [`Config`]. It begins with the first of them and ends with the
/// last. Clients that need more packets a second than one core handles, or whose wakers may block, use
/// [`Endpoints`].
///
/// The task that begins a call sends it, lets the other tasks of its thread run, and polls for the
/// answer when it is polled again: at most for twice the time that answers usually take and 20 us, and
/// for [`Config::spin`]. Where that is in vain, the next calls leave their answers to the thread of the
/// endpoint, which sleeps until they come. [`Client::polling`] has the numbers. A call costs about a
/// microsecond more than one of [`crate::Rpc::call`], and a change of threads if its answer takes
/// longer. The feature `tokio` makes the turns of tasks cheap on that runtime.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

/// The state that all clones of a client share.
struct Inner {
    /// The client's number at its endpoint.
    link: usize,
    /// Slots of its first session.
    slots: u32,
    thread: usize,
    uri: Arc<str>,
    limits: Limits,
    greetings: Greetings,
    user: User,
}

impl Inner {
    fn arena(&self) -> &Arena {
        &self.endpoint().arena
    }

    /// The largest message.
    fn limit(&self) -> usize {
        self.endpoint().limit
    }

    fn endpoint(&self) -> &Endpoint {
        &self.user.thread(self.thread).endpoint
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.endpoint().close(self.link);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("server", &self.inner.uri)
            .field("polling", &self.polling())
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to a server, for example `udp://db1:31850`, on the endpoint that the clients of this
    /// process share. Await the result, or block with [`ClientConnect::wait`].
    pub fn connect(uri: &str) -> ClientConnect {
        Client::builder().connect(uri)
    }

    /// [`Client::connect`] with settings of the endpoint, which only clients with the same ones share.
    pub fn connect_with(uri: &str, config: Config) -> ClientConnect {
        Client::builder().config(config).connect(uri)
    }

    /// [`Client::connect`] on these threads.
    pub fn connect_on(endpoints: &Endpoints, uri: &str) -> ClientConnect {
        Client::builder().endpoints(endpoints).connect(uri)
    }

    /// A client with other settings than the default.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Another client of the same server, with the same limits and the same endpoint, that has
    /// sessions of its own: its calls do not wait behind those of this one.
    pub fn another(&self) -> ClientConnect {
        let limits = self.inner.limits;
        self.connect_another(limits, limits.wait_for_ready)
    }

    /// Another client for a stream, whose calls have a meaning on one session.
    fn connect_for_stream(&self, wait_for_ready: Option<bool>) -> ClientConnect {
        let own = self.inner.limits;
        let limits = Limits { sessions: 1, in_flight: own.in_flight.max(CALLS_OF_STREAM), ..own };
        self.connect_another(limits, wait_for_ready.unwrap_or(own.wait_for_ready))
    }

    fn connect_another(&self, limits: Limits, waits: bool) -> ClientConnect {
        let Inner { uri, user, thread, greetings, .. } = &*self.inner;
        ClientConnect::begin(user.clone(), *thread, uri.clone(), limits, greetings.clone(), waits)
    }

    /// The address of the server.
    pub fn uri(&self) -> &str {
        &self.inner.uri
    }

    /// Counters of each method that the typed clients on this client call: see [`MethodStats`]. Clones
    /// share them.
    pub fn method_stats(&self) -> Vec<MethodStats> {
        self.inner.greetings.callers.read()
    }

    /// Counters of the callers that poll this client's endpoint, which other clients share.
    pub fn polling(&self) -> PollingStats {
        self.inner.endpoint().polling()
    }

    /// Allocates a message of `len` bytes, all 0.
    ///
    /// # Errors
    /// The memory limit of the endpoint is reached.
    pub fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        zeroed(self.inner.arena().alloc(len))
    }

    /// A message of `len` bytes that have the contents of earlier messages of this endpoint: for
    /// messages that are overwritten in full. A byte that is not **reveals another message**.
    ///
    /// # Errors
    /// The memory limit of the endpoint is reached.
    #[inline]
    pub fn alloc_recycled(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.inner.arena().alloc(len)
    }

    /// Calls a handler of the server. The call begins when it is first polled, or by
    /// [`ClientCall::wait`].
    #[inline]
    pub fn call(&self, req_type: u16, request: MsgBuf) -> ClientCall {
        ClientCall::new(self.clone(), req_type.into(), request)
    }

    /// Sends a one-way message ([`crate::Context::send`]) when there is room for it. It begins when
    /// it is first polled, or by [`ClientSend::wait`]. Messages of one client leave in the order in
    /// which they begin.
    pub fn send(&self, msg_type: u16, message: MsgBuf) -> ClientSend {
        ClientSend::new(self.clone(), msg_type.into(), message)
    }
}

/// The failure of a call whose result is that of a message, or the reverse; it does not happen.
fn misplaced() -> CallFailure {
    CallFailure::Stopped
}
