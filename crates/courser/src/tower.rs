//! Layers of [tower](https://docs.rs/tower) around unary calls, at a client and at a server (feature
//! `tower`): time limits, limits of concurrency, load shedding, and others that need the future of the call.
//! Middleware that needs no future ([`ServerMiddleware`](crate::service::ServerMiddleware),
//! [`ClientMiddleware`](crate::service::ClientMiddleware)) costs less, and sees streams and messages too.
//!
//! ```
//! use std::time::Duration;
//!
//! use courser::tower::{LayeredClient, layered};
//! use courser::{Client, Server};
//! use tower::limit::ConcurrencyLimitLayer;
//! use tower::timeout::TimeoutLayer;
//!
//! #[courser::service]
//! trait Store {
//!     async fn get(&self, key: String) -> String;
//! }
//! # struct Texts;
//! # impl Store for Texts { async fn get(&self, key: String) -> String { key } }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // At most 100 handlers of the service run at a time; others wait.
//! let store = layered(StoreServer::new(Texts), ConcurrencyLimitLayer::new(100));
//! let server = Server::bind("udp://127.0.0.1:0")?.add_service(store)?;
//! let (uri, _serving) = (server.local_uri(), server.serve()?);
//!
//! let client = Client::connect(&uri).await?;
//! let limited = LayeredClient::new(client, TimeoutLayer::new(Duration::from_secs(1)));
//! let store = StoreClient::new(limited).await?;
//! assert_eq!(store.get("a".to_owned()).await?, "a");
//! # Ok(()) }
//! ```
//!
//! A layer wraps [`Next`], and gets a [`Request`] for each call: the names of its method, its metadata and its
//! encoded arguments. It is made once for a client or a service, and its service is cloned for each call.
//! So it has to be `Clone`, which a rate limit is in a `tower::buffer::Buffer`. Streams and one-way messages
//! pass without layers.
//!
//! # Errors
//! The error of a layer is [`CallFailure::Middleware`] at the client, with its text: never executed if the
//! layer has not passed the call on, else it may have been. A layer of a server may also return a
//! [`Denied`](crate::service::Denied), which the client gets as it does those of other middleware.
//!
//! # Cost
//! Some allocations for each call, also for its copy where a request or an answer of one packet would have
//! been read in place.

mod client;
mod server;

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use courser_buf::MsgBuf;
use courser_proto::Executed;
use tower_service::Service;

pub use client::{LayeredCall, LayeredClient};
pub use server::{Layered, layered};

use crate::error::failure::CallFailure;
use crate::service::{CallOutcome, Metadata, Peer, outcome_of, split_answer};

/// The error of any layer.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A future of an answer.
pub type AnswerFuture = Pin<Box<dyn Future<Output = Result<Response, BoxError>> + Send>>;

/// The rest of a call, behind the layers.
type Run = Box<dyn FnOnce(Parts) -> AnswerFuture + Send>;

/// The parts of a request that layers may change.
struct Parts {
    metadata: Metadata,
    body: MsgBuf,
    deadline: Option<Duration>,
}

/// A unary call on its way through layers.
pub struct Request {
    service: &'static str,
    method: &'static str,
    peer: Option<Peer>,
    parts: Parts,
    /// The call was passed on by the layers.
    passed: Arc<AtomicBool>,
    run: Run,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("service", &self.service)
            .field("method", &self.method)
            .field("metadata", &self.parts.metadata)
            .finish_non_exhaustive()
    }
}

impl Request {
    /// The name of the service.
    pub fn service(&self) -> &'static str {
        self.service
    }

    /// The name of the method.
    pub fn method(&self) -> &'static str {
        self.method
    }

    /// The client; `None` at the client itself, or if its session has ended.
    pub fn peer(&self) -> Option<Peer> {
        self.peer
    }

    /// The metadata of the call.
    pub fn metadata(&self) -> &Metadata {
        &self.parts.metadata
    }

    /// The metadata of the call, to be changed before it is passed on.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.parts.metadata
    }

    /// The encoded arguments.
    pub fn body(&self) -> &[u8] {
        &self.parts.body
    }

    /// At a client the deadline of the call, from when it is passed on; at a server the time that was left
    /// when it arrived. `None`: it has none.
    pub fn deadline(&self) -> Option<Duration> {
        self.parts.deadline
    }

    /// Sets the deadline at a client; without an effect at a server.
    pub fn set_deadline(&mut self, after: impl Into<Option<Duration>>) {
        self.parts.deadline = after.into();
    }
}

/// The answer to a unary call.
pub struct Response(MsgBuf);

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response").field("outcome", &self.outcome()).finish_non_exhaustive()
    }
}

impl Response {
    /// How the call has ended at the server.
    pub fn outcome(&self) -> CallOutcome {
        outcome_of(Ok(&self.0))
    }

    /// The metadata of the answer. Empty: it has none.
    pub fn metadata(&self) -> Metadata {
        split_answer(&self.0).map(|(metadata, _)| metadata).unwrap_or_default()
    }

    /// The encoded value or application error, by [`Response::outcome`].
    pub fn body(&self) -> &[u8] {
        let len = split_answer(&self.0).map_or(0, |(_, len)| len.saturating_sub(1));
        &self.0[..len]
    }
}

/// The call itself, as the innermost service of layers.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Next;

impl Service<Request> for Next {
    type Response = Response;
    type Error = BoxError;
    type Future = AnswerFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> AnswerFuture {
        request.passed.store(true, Ordering::Relaxed);
        (request.run)(request.parts)
    }
}

/// The services that layers make of [`Next`].
pub trait CallService:
    Service<Request, Response = Response, Error: Into<BoxError>, Future: Send + 'static>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S> CallService for S where
    S: Service<Request, Response = Response, Error: Into<BoxError>, Future: Send + 'static>
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// Passes a call to the layers. An error has whether they have passed it on.
async fn pass<S: CallService>(
    mut service: S,
    request: Request,
) -> Result<Response, (BoxError, bool)> {
    let passed = request.passed.clone();
    let has_passed = |e: S::Error| (e.into(), passed.load(Ordering::Relaxed));
    std::future::poll_fn(|cx| service.poll_ready(cx)).await.map_err(&has_passed)?;
    service.call(request).await.map_err(&has_passed)
}

/// The verdict about a call that was passed on, or not.
fn executed(has_passed: bool) -> Executed {
    if has_passed { Executed::Maybe } else { Executed::Never }
}

/// The error of a layer at a client.
fn failure((error, has_passed): (BoxError, bool)) -> CallFailure {
    match error.downcast::<CallFailure>() {
        Ok(failure) => *failure,
        Err(error) => {
            let (reason, executed) = (error.to_string().into(), executed(has_passed));
            CallFailure::Middleware { reason, executed }
        }
    }
}
