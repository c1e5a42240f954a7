//! Middleware of a server.

use std::fmt;
use std::time::{Duration, Instant};

use super::end::{CallEnd, Subject};
use crate::service::access::{Denied, Peer};
use crate::service::context::{Metadata, MetadataError, MetadataValue};
use crate::shape::method::MethodKind;

/// Sees the calls of a server's typed services: [`crate::Server::middleware`],
/// [`crate::Rpc::middleware`].
///
/// Both functions run on any thread of the server, `before` on that of the endpoint. They should take a
/// microsecond at most, and must not block. Middleware is called in the order in which it was added, at the
/// end in the opposite order. Handlers without a service are not seen; [`crate::service::Authorize`] is asked
/// about them too, and about all requests before the first middleware.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use courser::service::{CallEnd, CallOutcome, Denied, IncomingCall, ServerMiddleware};
///
/// /// Lets calls with the right token pass, and counts those that failed.
/// struct Tokens {
///     token: &'static str,
///     failed: AtomicU64,
/// }
///
/// impl ServerMiddleware for Tokens {
///     fn before(&self, call: &mut IncomingCall<'_>) -> Result<(), Denied> {
///         match call.metadata().text("token") {
///             Some(token) if token == self.token => Ok(()),
///             Some(_) => Err(Denied::new("the token is not that of this service")),
///             None => Err(Denied::unauthenticated("calls need a token")),
///         }
///     }
///     fn after(&self, end: &CallEnd<'_>) {
///         if end.outcome != CallOutcome::Ok {
///             self.failed.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// #[courser::service]
/// trait Store {
///     async fn get(&self, key: String) -> String;
/// }
/// # struct Texts;
/// # impl Store for Texts {
/// #     async fn get(&self, key: String) -> String { key }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = courser::Server::bind("udp://127.0.0.1:0")?.add_service(StoreServer::new(Texts))?;
/// let server = server.middleware(Tokens { token: "blue", failed: AtomicU64::new(0) });
/// let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
/// let store = StoreClient::connect(&uri).await?;
/// let error = store.get("a".to_owned()).await.unwrap_err();
/// assert!(matches!(error, courser::service::RpcError::Unauthenticated(_)));
/// assert_eq!(store.get("a".to_owned()).metadata("token", "blue").await?, "a");
/// # Ok(()) })
/// # }
/// ```
///
/// # Cost
/// A server without middleware has none. With it a call costs its functions and two readings of the clock, on
/// a [`crate::Server`] also an allocation, and otherwise one if its handler waits. A call takes no lock that
/// the threads of a server share.
pub trait ServerMiddleware: Send + Sync + 'static {
    /// Sees a call before anything of its arguments is decoded: a request, a one-way message, or the
    /// opening of a stream, whose items are not seen. A panic refuses the call.
    ///
    /// # Errors
    /// The call is refused: it ends with [`RpcError::Denied`](crate::service::RpcError::Denied),
    /// [`RpcError::Unauthenticated`](crate::service::RpcError::Unauthenticated) or
    /// [`RpcError::TooMany`](crate::service::RpcError::TooMany), and a one-way message is dropped. It is counted in
    /// [`ServiceStats::denied`](crate::service::ServiceStats::denied).
    fn before(&self, call: &mut IncomingCall<'_>) -> Result<(), Denied>;

    /// Sees the end of each call that `before` has let pass, once, also of those that were refused later
    /// and of those that were cancelled. The end of a stream is that of its handler, or of its last item if
    /// that is later.
    fn after(&self, _end: &CallEnd<'_>) {}
}

/// A call that has arrived, as [`ServerMiddleware::before`] sees it.
///
/// ```
/// # use courser_example_store::*;
/// use courser::service::{Denied, IncomingCall, ServerMiddleware};
///
/// /// Refuses long requests, and gives the others a tenant.
/// struct Rules;
///
/// impl ServerMiddleware for Rules {
///     fn before(&self, call: &mut IncomingCall<'_>) -> Result<(), Denied> {
///         if call.request_len() > 100 {
///             return Err(Denied::new(format!("{} takes short keys", call.method())));
///         }
///         call.add_metadata("tenant", "green").map_err(|e| Denied::new(e.to_string()))
///     }
/// }
///
/// # fn main() -> Done {
/// let server = server()?.middleware(Rules);
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
/// let store = StoreClient::connect(&uri).await?;
/// assert_eq!(store.tenant().await?, "green");
/// assert!(store.len("x".repeat(200)).await.is_err());
/// # Ok(()) }) }
/// ```
pub struct IncomingCall<'a> {
    subject: Subject,
    begun: Instant,
    req_type: u16,
    len: usize,
    time_left: Option<Duration>,
    metadata: &'a mut Metadata,
}

impl fmt::Debug for IncomingCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingCall")
            .field("service", &self.service())
            .field("method", &self.method())
            .field("peer", &self.peer())
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

impl<'a> IncomingCall<'a> {
    /// A call with these metadata. `len`: bytes of the request.
    pub(super) fn new(
        (subject, begun): (Subject, Instant),
        (req_type, len): (u16, usize),
        time_left: Option<Duration>,
        metadata: &'a mut Metadata,
    ) -> Self {
        IncomingCall { subject, begun, req_type, len, time_left, metadata }
    }

    /// The name of the service on the network.
    pub fn service(&self) -> &'static str {
        self.subject.service
    }

    /// The name of the method.
    pub fn method(&self) -> &'static str {
        self.subject.method
    }

    /// The kind of the method.
    pub fn kind(&self) -> MethodKind {
        self.subject.kind
    }

    /// The client.
    pub fn peer(&self) -> Peer {
        self.subject.peer
    }

    /// The request type that this server has assigned to the method.
    pub fn req_type(&self) -> u16 {
        self.req_type
    }

    /// Bytes of the encoded arguments, without the metadata; 4 more if it opens a stream.
    pub fn request_len(&self) -> usize {
        self.len
    }

    /// When the endpoint passed the call to the first middleware, by the endpoint's clock: simulated time in
    /// a simulated datacenter, so that a rate limit behaves there as it does in production.
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// Time until the deadline of the call: see
    /// [`CallContext::time_left`](crate::service::CallContext::time_left).
    pub fn time_left(&self) -> Option<Duration> {
        self.time_left
    }

    /// The metadata of the request. Handlers read it in their contexts.
    pub fn metadata(&self) -> &Metadata {
        self.metadata
    }

    /// Adds a pair to the metadata, in place of an earlier one with this key. Handlers read it, and the keys
    /// that calls pass on go on to the calls that they make.
    ///
    /// # Errors
    /// The key or the value is not allowed, or there is no room for it.
    pub fn add_metadata<'v>(
        &mut self,
        key: &str,
        value: impl Into<MetadataValue<'v>>,
    ) -> Result<(), MetadataError> {
        self.metadata.insert(key, value)
    }
}
