//! Calls on their way through layers.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use courser_buf::MsgBuf;
use courser_proto::Executed;
use tower_service::Service;

use crate::error::failure::CallFailure;
use crate::service::{CallOutcome, Metadata, MethodKind, Peer, outcome_of, split_answer};

/// The error of any layer.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A future of an answer.
pub type AnswerFuture = Pin<Box<dyn Future<Output = Result<Response, BoxError>> + Send>>;

/// The rest of a call, behind the layers.
pub(super) type Run = Box<dyn FnOnce(Parts) -> AnswerFuture + Send>;

/// The parts of a request that layers may change.
pub(super) struct Parts {
    pub(super) metadata: Metadata,
    pub(super) body: MsgBuf,
    pub(super) deadline: Option<Duration>,
}

/// The way of a call through layers. They may pass it on from another task too, but not after its end.
#[derive(Default)]
pub(super) struct Passage(AtomicU8);

/// Bytes of the number of a stream behind the arguments that open it.
const STREAM_NUMBER: usize = 4;

const PASSED: u8 = 1;
const ENDED: u8 = 2;

impl Passage {
    /// The layers pass the call on. Returns false if it has ended.
    fn pass(&self) -> bool {
        self.leave(PASSED) == 0
    }

    /// The call ends. Returns whether the layers have passed it on.
    pub(super) fn end(&self) -> bool {
        self.leave(ENDED) == PASSED
    }

    /// Changes the state, for the first time. Returns the earlier one.
    fn leave(&self, to: u8) -> u8 {
        let ordering = Ordering::Relaxed;
        self.0.compare_exchange(0, to, ordering, ordering).unwrap_or_else(|before| before)
    }
}

/// Ends a call at the drop.
struct Ends(Arc<Passage>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A call, a one-way message, or the opening of a stream on its way through layers.
///
/// ```
/// # use courser_example_store::*;
/// use courser::Server;
/// use courser::tower::{Request, layered};
/// use tower::util::MapRequestLayer;
///
/// # fn main() -> Done {
/// // A layer of tower that adds a tenant to calls without one.
/// let tenant = MapRequestLayer::new(|mut request: Request| {
///     if request.metadata().get("tenant").is_none() {
///         let _ = request.metadata_mut().insert("tenant", "green");
///     }
///     request
/// });
/// let server = Server::bind("udp://127.0.0.1:0")?;
/// let server = server.add_service(layered(StoreServer::new(Texts), tenant))?;
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
/// assert_eq!(StoreClient::connect(&uri).await?.tenant().await?, "green");
/// # Ok(()) }) }
/// ```
pub struct Request {
    pub(super) service: &'static str,
    pub(super) method: &'static str,
    pub(super) kind: MethodKind,
    pub(super) peer: Option<Peer>,
    pub(super) parts: Parts,
    pub(super) passage: Arc<Passage>,
    pub(super) run: Run,
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

    /// The kind of the method. Clients pass unary calls to layers, servers all.
    pub fn kind(&self) -> MethodKind {
        self.kind
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
        let trailer = match self.kind {
            MethodKind::Unary | MethodKind::OneWay => 0,
            _ => STREAM_NUMBER,
        };
        let body = &self.parts.body;
        &body[..body.len().saturating_sub(trailer)]
    }

    /// At a client the deadline of the call, in which the layers wait too; at a server the time that was left
    /// when it arrived. `None`: it has none.
    pub fn deadline(&self) -> Option<Duration> {
        self.parts.deadline
    }

    /// Sets the deadline at a client, from when the call is passed on. One beyond that of the call has no
    /// effect, and at a server none has.
    pub fn set_deadline(&mut self, after: impl Into<Option<Duration>>) {
        self.parts.deadline = after.into();
    }
}

/// The answer to a call. That to a one-way message is that its handler has ended, and that to the opening of
/// a stream that it is open, or its end if it has ended at once.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::tower::{LayeredClient, Response};
/// use tower::util::MapResponseLayer;
///
/// let reads = MapResponseLayer::new(|response: Response| {
///     println!("{:?}, {} bytes", response.outcome(), response.body().len());
///     response
/// });
/// let client = courser::Client::connect(&uri).await?;
/// let store = StoreClient::new(LayeredClient::new(client, reads)).await?;
/// assert_eq!(store.len("apple".to_owned()).await?, 5);
/// # Ok(()) }) }
/// ```
pub struct Response(pub(super) MsgBuf);

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
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use std::task::{Context, Poll};
///
/// use courser::tower::{LayeredClient, Next, Request};
/// use tower::{Service, layer::layer_fn};
///
/// /// A service around the call itself, or around the service of another layer.
/// #[derive(Clone)]
/// struct Printed<S>(S);
///
/// impl<S: Service<Request>> Service<Request> for Printed<S> {
///     type Response = S::Response;
///     type Error = S::Error;
///     type Future = S::Future;
///     fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
///         self.0.poll_ready(cx)
///     }
///     fn call(&mut self, request: Request) -> S::Future {
///         println!("{}.{}", request.service(), request.method());
///         self.0.call(request)
///     }
/// }
///
/// let client = courser::Client::connect(&uri).await?;
/// let layered = LayeredClient::new(client, layer_fn(|next: Next| Printed(next)));
/// let store = StoreClient::new(layered).await?;
/// assert_eq!(store.len("apple".to_owned()).await?, 5);
/// # Ok(()) }) }
/// ```
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
        match request.passage.pass() {
            true => (request.run)(request.parts),
            false => Box::pin(std::future::ready(Err("the call has ended".into()))),
        }
    }
}

/// The services that layers make of [`Next`].
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::tower::{CallService, LayeredClient, Next};
/// use tower::Layer;
/// use tower::limit::ConcurrencyLimitLayer;
///
/// /// A client with any layers.
/// async fn connect<S: CallService>(
///     uri: &str,
///     layer: impl Layer<Next, Service = S>,
/// ) -> Result<StoreClient<LayeredClient<S>>, Box<dyn std::error::Error>> {
///     let client = courser::Client::connect(uri).await?;
///     Ok(StoreClient::new(LayeredClient::new(client, layer)).await?)
/// }
///
/// let store = connect(&uri, ConcurrencyLimitLayer::new(8)).await?;
/// assert_eq!(store.len("apple".to_owned()).await?, 5);
/// # Ok(()) }) }
/// ```
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
pub(super) async fn pass<S: CallService>(
    mut service: S,
    request: Request,
) -> Result<Response, (BoxError, bool)> {
    let ends = Ends(request.passage.clone());
    let has_passed = |e: S::Error| (e.into(), ends.0.end());
    std::future::poll_fn(|cx| service.poll_ready(cx)).await.map_err(&has_passed)?;
    service.call(request).await.map_err(&has_passed)
}

/// The verdict about a call that was passed on, or not.
pub(super) fn executed(has_passed: bool) -> Executed {
    if has_passed { Executed::Maybe } else { Executed::Never }
}

/// The error of a layer at a client.
pub(super) fn failure((error, has_passed): (BoxError, bool)) -> CallFailure {
    match error.downcast::<CallFailure>() {
        Ok(failure) => *failure,
        Err(error) => {
            let (reason, executed) = (error.to_string().into(), executed(has_passed));
            CallFailure::Middleware { reason, executed }
        }
    }
}
