//! The context of a typed call: its peer, its deadline, its cancellation.
//!
//! A method that has a parameter of type [`CallContext`] gets one for each request. Others have none, so
//! that their requests cost nothing more.

mod caller;
pub(crate) mod current;
mod given;
pub(crate) mod marked;
mod metadata;
mod reply;
mod scope;
mod trace;
pub(crate) mod trailer;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use super::access::Peer;
use super::answer::Concluded;
use super::key::SessionKey;
use super::registry::Received;
use super::services::Services;
use crate::core::drain::{DrainToken, Draining};

pub(crate) use caller::{Caller, Source, Watched};
pub(super) use given::{Complete, Given};
pub use metadata::{Metadata, MetadataError, MetadataValue};
pub use reply::Told;
pub use scope::Scoped;
pub use trace::{TraceParent, TraceParentError};

/// The context of a call, for the handler of a typed method that has a parameter of this type. Clones
/// are the same context, and may be used on any thread, also after the end of the handler.
///
/// The parameter is in the server's trait only: the client's method does not have it, it is not sent,
/// and clients need no other version when a method gets one. It may be at any place among the others.
///
/// ```
/// use courser::service::{CallContext, Incoming, Stream};
///
/// #[courser::service]
/// trait Store {
///     async fn get(&self, cx: CallContext, key: String) -> Result<String, String>;
///     fn scan(&self, cx: CallContext) -> impl Stream<Item = String>;
///     async fn load(&self, cx: CallContext, pairs: Incoming<(String, String)>) -> u64;
///     #[oneway]
///     async fn hint(&self, cx: CallContext, key: String);
/// }
///
/// # use futures::{StreamExt, stream};
/// struct Texts;
///
/// impl Store for Texts {
///     async fn get(&self, cx: CallContext, key: String) -> Result<String, String> {
///         let peer = cx.peer().map(|peer| peer.addr());
///         let left = cx.time_left();
///         Ok(format!("{}.{} {key} of {peer:?}, {left:?} left", cx.service(), cx.method()))
///     }
///     fn scan(&self, cx: CallContext) -> impl Stream<Item = String> {
///         // Ends before the server does.
///         stream::repeat("text".to_owned()).take_until(cx.drain_token().draining())
///     }
///     # async fn load(&self, _cx: CallContext, _pairs: Incoming<(String, String)>) -> u64 { 0 }
///     # async fn hint(&self, _cx: CallContext, _key: String) {}
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = courser::Server::bind("udp://127.0.0.1:0")?.add_service(StoreServer::new(Texts))?;
/// let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
/// let store = StoreClient::connect(&uri).await?;
/// let text = store.get("a key".to_owned()).await?;
/// assert!(text.starts_with("Store.get a key of Some("), "{text}");
/// # Ok(()) })
/// # }
/// ```
///
/// # Cost
/// Two allocations for each request of a method that has the parameter, and two more on a
/// [`crate::Server`]. Metadata takes more, for copies of its bytes and of what is passed on.
#[derive(Clone)]
pub struct CallContext(Arc<Inner>);

struct Inner {
    service: &'static str,
    method: &'static str,
    session: SessionKey,
    caller: Caller,
    drain: DrainToken,
    /// Set when the handler is dropped before its end.
    cancelled: DrainToken,
    /// The handler has returned.
    ended: AtomicBool,
    /// For the answer.
    response: Mutex<Metadata>,
}

impl fmt::Debug for CallContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallContext")
            .field("service", &self.service())
            .field("method", &self.method())
            .field("peer", &self.peer())
            .field("time_left", &self.time_left())
            .field("is_cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}

impl CallContext {
    /// The client. `None`: its session had ended when the request was passed to the handler, or the
    /// server is a registry of your own.
    pub fn peer(&self) -> Option<Peer> {
        self.0.caller.peer
    }

    /// The session that the request has arrived on. Each stream has one of its own.
    pub fn session(&self) -> SessionKey {
        self.0.session
    }

    /// The name of the service on the network.
    pub fn service(&self) -> &'static str {
        self.0.service
    }

    /// The name of the method.
    pub fn method(&self) -> &'static str {
        self.0.method
    }

    /// Time until the deadline of the call: zero when it has passed, `None`: the call has none, or
    /// had more than 134 s when it was sent. Reads the clock.
    ///
    /// An estimate: up to about a round trip before the client's own deadline
    /// ([`crate::Request::deadline_ns`]). Calls that the handler makes end by then, except those of a
    /// [`crate::Client`] in a handler on an endpoint's own thread ([`crate::Rpc`]): they do in
    /// [`CallContext::scope`].
    pub fn time_left(&self) -> Option<Duration> {
        self.0.caller.time_left()
    }

    /// Returns whether the call is cancelled: its client has cancelled it or is gone, its deadline has
    /// passed, the server has stopped, or the handler has panicked. Never after the handler has
    /// returned.
    ///
    /// A handler is dropped when its call is cancelled. So this is for handlers that compute for long
    /// without an `.await`, and for tasks that they have spawned. Takes a lock for some ten nanoseconds,
    /// and reads the clock if the call has a deadline.
    ///
    /// Cancellations arrive at the endpoint. While a handler computes on the endpoint's own thread, it
    /// sees its deadline, but not that its client has cancelled the call or is gone. Handlers
    /// run on this thread with an [`crate::Rpc`], with [`crate::Server::in_place`], and on tokio if those
    /// of its type have been short.
    pub fn is_cancelled(&self) -> bool {
        if self.0.cancelled.is_draining() {
            return true;
        }
        // In this order: the place of a handler that has ended is used by another one later.
        let watched = self.0.caller.watched.as_ref();
        let is_over = watched.is_some_and(|watched| watched.is_cancelled())
            || self.time_left() == Some(Duration::ZERO);
        is_over && !self.0.ended.load(Ordering::Acquire)
    }

    /// A future that ends when the call is cancelled, as [`CallContext::is_cancelled`] states it, and
    /// the handler was dropped. It never ends after the handler has returned, so select it with other
    /// work. For tasks that the handler has spawned.
    ///
    /// ```
    /// # use courser::service::CallContext;
    /// # async fn write(_page: &[u8]) {}
    /// /// Writes pages in a task of its own while the call is wanted.
    /// async fn write_all(cx: CallContext, pages: Vec<Vec<u8>>) {
    ///     for page in pages {
    ///         if cx.is_cancelled() {
    ///             return;
    ///         }
    ///         write(&page).await;
    ///     }
    /// }
    /// ```
    pub fn cancelled(&self) -> Cancelled {
        Cancelled(self.0.cancelled.draining())
    }

    /// The metadata of the request. Empty: it has none.
    pub fn metadata(&self) -> &Metadata {
        static NONE: LazyLock<Metadata> = LazyLock::new(Metadata::new);
        self.0.caller.arrived.as_ref().map_or(&NONE, |arrived| &arrived.metadata)
    }

    /// Adds a pair to the metadata of the answer, in place of an earlier one with this key. It is sent
    /// with the handler's value or error to a client that reads it
    /// ([`Unary::with_response_metadata`](super::Unary::with_response_metadata)), unless there is no
    /// memory for the longer answer, or it would be above the limit of the session
    /// ([`crate::Config::max_msg_size`]).
    ///
    /// Clients read that of unary calls only. The end of a stream has a place for metadata, in the answer to
    /// the call that has opened it, and a server would send it there; but clients that open a stream do not
    /// ask for it, and read the end, whose last bytes are the number of batches, without it. One-way messages
    /// have no answer.
    ///
    /// # Errors
    /// The key or the value is not allowed, or there is no room for it.
    pub fn respond_with<'v>(
        &self,
        key: &str,
        value: impl Into<MetadataValue<'v>>,
    ) -> Result<(), MetadataError> {
        self.response().insert(key, value)
    }

    fn response(&self) -> MutexGuard<'_, Metadata> {
        // Metadata changes after its checks.
        self.0.response.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The metadata of the answer. `None`: the client does not read it.
    fn take_response(&self) -> Option<Metadata> {
        let reads = self.0.caller.arrived.as_ref().is_some_and(|arrived| arrived.answers);
        reads.then(|| std::mem::take(&mut *self.response()))
    }

    /// States whether the server shuts down: [`crate::Server::drain_token`].
    pub fn drain_token(&self) -> &DrainToken {
        &self.0.drain
    }
}

/// The future of [`CallContext::cancelled`].
///
/// ```
/// use courser::service::CallContext;
/// use futures::channel::mpsc::{UnboundedSender, unbounded};
/// # use futures::StreamExt;
/// # use futures::future::select;
///
/// #[courser::service]
/// trait Work {
///     async fn endless(&self, cx: CallContext);
/// }
///
/// struct Worker(UnboundedSender<&'static str>);
///
/// impl Work for Worker {
///     async fn endless(&self, cx: CallContext) {
///         let report = self.0.clone();
///         let _ = report.unbounded_send("begun");
///         // A thread or task of the handler's own sees when its result is not wanted any more.
///         std::thread::spawn(move || {
///             futures::executor::block_on(cx.cancelled());
///             let _ = report.unbounded_send("cancelled");
///         });
///         std::future::pending().await
///     }
/// }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (report, mut reports) = unbounded();
/// # let server = courser::Server::bind("udp://127.0.0.1:0")?.add_service(WorkServer::new(Worker(report)))?;
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
///
/// let work = WorkClient::connect(&uri).await?;
/// let call = Box::pin(work.endless().into_future());
/// let begun = select(call, reports.next()).await;
/// // The call is in `begun`.
/// drop(begun);
/// assert_eq!(reports.next().await, Some("cancelled"));
/// # Ok(()) }) }
/// ```
#[must_use = "futures do nothing unless they are polled"]
#[derive(Debug)]
pub struct Cancelled(Draining);

impl Future for Cancelled {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}

/// A method whose handler has a context.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Asks {
    drain: DrainToken,
    service: &'static str,
    method: &'static str,
}

impl Services {
    /// A method whose handler has a context. Call it before its handler is registered.
    #[doc(hidden)]
    pub fn asks(&self, number: u16) -> Asks {
        self.set_asking(number);
        let (service, method) = self.method(number).unwrap_or_default();
        Asks { drain: self.drain_token().clone(), service, method }
    }
}

impl Asks {
    /// The context of a request, and its end.
    pub fn begin(&self, received: &Received<'_>) -> (CallContext, InCall) {
        let Asks { drain, service, method } = self.clone();
        let context = CallContext(Arc::new(Inner {
            service,
            method,
            session: received.session(),
            caller: received.caller(),
            drain,
            cancelled: DrainToken::default(),
            ended: AtomicBool::new(false),
            response: Mutex::default(),
        }));
        (context.clone(), InCall(context))
    }
}

/// A handler with a context that has not returned. Dropping it cancels the context.
#[doc(hidden)]
#[derive(Debug)]
pub struct InCall(CallContext);

impl InCall {
    /// The handler has returned this, unless it was dropped before its end.
    pub fn end<R: Concluded>(self, reply: R) -> Told<R> {
        // Otherwise the drop cancels the context.
        self.0.0.ended.store(reply.is_concluded(), Ordering::Release);
        Told { reply, context: self.0.clone() }
    }

    /// The handler of a one-way message has returned.
    pub fn end_message(self) {
        self.0.0.ended.store(true, Ordering::Release);
    }
}

impl Drop for InCall {
    fn drop(&mut self) {
        if !self.0.0.ended.load(Ordering::Acquire) {
            self.0.0.cancelled.set();
        }
    }
}
