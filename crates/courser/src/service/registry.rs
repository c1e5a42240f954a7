//! What a typed service needs of the server below it.

use std::future::Future;
use std::sync::Arc;

use courser_buf::{AllocError, Arena, MsgBuf};
use courser_proto::Body;

use super::codec::{Decode, Payload};
use super::context::{Caller, Source};
use super::key::SessionKey;
use super::load::Charge;
use super::services::Services;
use crate::core::message::Reply;
use crate::core::shares::{Client, FindClient};
use crate::counts::MethodCells;
use crate::error::register::RegisterError;
use crate::error::service::DecodeError;

/// A request, or a one-way message, that a server passes to a typed service.
///
/// ```
/// # use courser_example_store::*;
/// use courser::Server;
/// use courser::service::{Received, Registry};
///
/// # fn main() -> Done {
/// let mut server = Server::bind("udp://127.0.0.1:0")?;
/// // As generated servers do, with a request type that no service has.
/// server.on_request(1, |received: Received<'_>| {
///     let len = received.bytes().len();
///     async move { format!("{len} bytes") }
/// });
/// let (uri, _serving) = (server.local_uri(), server.serve()?);
/// let client = courser::Client::connect(&uri).wait()?;
/// assert_eq!(&client.call(1, client.alloc(8)?).wait()?[..], b"8 bytes");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Received<'a> {
    payload: Payload<'a>,
    session: SessionKey,
    arena: &'a Arena,
    limit: usize,
    client: Option<&'a dyn Source>,
    cells: Option<&'a Arc<MethodCells>>,
    is_message: bool,
}

impl<'a> Received<'a> {
    /// A request or message of an endpoint with this arena and largest message.
    #[inline]
    pub(crate) fn new(body: Body<'a>, session: SessionKey, arena: &'a Arena, limit: usize) -> Self {
        match body {
            Body::Borrowed(bytes) => Received::borrowed(bytes, session, arena, limit),
            Body::Owned(message) => Received::owned(message, session, arena, limit),
        }
    }

    /// Bytes that were received in one packet. `arena` is that of the endpoint, `limit` its largest
    /// message.
    #[inline]
    pub fn borrowed(bytes: &'a [u8], session: SessionKey, arena: &'a Arena, limit: usize) -> Self {
        let payload = Payload::borrowed(bytes, arena);
        Received { payload, session, arena, limit, client: None, cells: None, is_message: false }
    }

    /// A message of its own. See [`Received::borrowed`].
    #[inline]
    pub fn owned(message: MsgBuf, session: SessionKey, arena: &'a Arena, limit: usize) -> Self {
        let payload = Payload::owned(message);
        Received { payload, session, arena, limit, client: None, cells: None, is_message: false }
    }

    /// Counts the heap of its arguments.
    pub(crate) fn charged_to(mut self, charge: &'a Charge<'a>) -> Self {
        self.payload.charged_to(charge);
        self
    }

    /// Returns whether the heap of what is decoded is counted.
    pub(crate) fn is_charged(&self) -> bool {
        self.payload.is_charged()
    }

    /// Charges its stream to a client, from which it has come.
    #[inline]
    pub(crate) fn of(mut self, client: &'a dyn Source) -> Self {
        self.client = Some(client);
        self
    }

    /// Counts the items of its stream in the cells of its method.
    #[inline]
    pub(crate) fn counted(mut self, cells: Option<&'a Arc<MethodCells>>) -> Self {
        self.cells = cells;
        self
    }

    /// [`Received::counted`] for a one-way message.
    #[inline]
    pub(crate) fn counted_message(mut self, cells: Option<&'a Arc<MethodCells>>) -> Self {
        (self.cells, self.is_message) = (cells, true);
        self
    }

    /// The cells that count a message which cannot be decoded; requests are counted by their answers.
    #[inline]
    pub(super) fn message_cells(&self) -> Option<&'a MethodCells> {
        self.cells.filter(|_| self.is_message).map(|cells| &**cells)
    }

    /// The cells of its method, if it is counted.
    pub(crate) fn cells(&self) -> Option<Arc<MethodCells>> {
        self.cells.cloned()
    }

    /// The client, where streams are charged to clients.
    pub(crate) fn client(&self) -> Option<Arc<Client>> {
        self.client?.find()
    }

    /// [`Received::client`], when it is needed.
    pub(crate) fn finder(&self) -> Option<&'a dyn FindClient> {
        self.client.map(|client| client as &dyn FindClient)
    }

    /// Its origin.
    pub(crate) fn caller(&self) -> Caller {
        self.client.map(Source::caller).unwrap_or_default()
    }

    /// The session that it arrived on.
    pub fn session(&self) -> SessionKey {
        self.session
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.payload.bytes()
    }

    pub(crate) fn arena(&self) -> &Arena {
        self.arena
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    #[inline]
    pub(crate) fn decode<K: Decode<A>, A>(self) -> Result<A, DecodeError> {
        K::decode(self.payload)
    }

    /// Cuts `N` bytes off the end.
    pub(crate) fn split_trailer<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let Some((_, trailer)) = self.bytes().split_last_chunk::<N>() else {
            return Err(DecodeError::Form("a stream's message without its number"));
        };
        let trailer = *trailer;
        let len = self.bytes().len() - N;
        self.payload.truncate(len);
        Ok(trailer)
    }

    /// The bytes in a message of their own.
    pub(crate) fn take(self) -> Result<MsgBuf, AllocError> {
        self.payload.take()
    }
}

/// A server whose handlers run on its own thread, such as an [`crate::Rpc`].
///
/// ```
/// # use courser_example_store::*;
/// use courser::Nexus;
/// use courser::service::LocalRegistry;
///
/// # fn main() -> Done {
/// let mut rpc = Nexus::bind("udp://127.0.0.1:0")?.endpoint()?;
/// rpc.on(1, |cx, _| cx.reply("plain"));
/// rpc.add_service(StoreServer::new(Texts))?;
/// // An endpoint is one: its services, beside handlers without a service.
/// assert!(LocalRegistry::is_taken(&rpc, 1));
/// assert_eq!(LocalRegistry::services(&rpc).list()[0].name, "Store");
/// # Ok(()) }
/// ```
pub trait LocalRegistry {
    /// The state that all services of this server share.
    fn services(&self) -> &Services;

    /// Returns whether requests of this type have a handler.
    fn is_taken(&self, number: u16) -> bool;

    /// Registers a handler. The future is polled at once, and dropped when its client cancelled the
    /// call, the deadline passed, or the client is gone.
    fn on_request<H, F>(&mut self, number: u16, handler: H)
    where
        H: FnMut(Received<'_>) -> F + 'static,
        F: Future + 'static,
        F::Output: Reply;

    /// Registers a handler of one-way messages.
    fn on_message<H, F>(&mut self, number: u16, handler: H)
    where
        H: FnMut(Received<'_>) -> F + 'static,
        F: Future<Output = ()> + 'static;
}

/// A server whose handlers run on any thread.
///
/// ```
/// # use courser_example_store::*;
/// use courser::Server;
/// use courser::service::{Received, Registry, Service, Services};
///
/// /// Writes a line for each registered method, and passes it on.
/// struct Listed<'a, R>(&'a mut R);
///
/// impl<R: Registry> Registry for Listed<'_, R> {
///     fn services(&self) -> &Services {
///         self.0.services()
///     }
///     fn is_taken(&self, number: u16) -> bool {
///         self.0.is_taken(number)
///     }
///     fn on_request<H, F>(&mut self, number: u16, handler: H)
///     where
///         H: Fn(Received<'_>) -> F + Send + Sync + 'static,
///         F: Future<Output: courser::Reply + Send> + Send + 'static,
///     {
///         println!("requests of type {number:#x}");
///         self.0.on_request(number, handler);
///     }
///     fn on_message<H, F>(&mut self, number: u16, handler: H)
///     where
///         H: Fn(Received<'_>) -> F + Send + Sync + 'static,
///         F: Future<Output = ()> + Send + 'static,
///     {
///         self.0.on_message(number, handler);
///     }
/// }
///
/// # fn main() -> Done {
/// let mut server = Server::bind("udp://127.0.0.1:0")?;
/// StoreServer::new(Texts).register(&mut Listed(&mut server))?;
/// assert_eq!(server.services().list()[0].name, "Store");
/// # Ok(()) }
/// ```
pub trait Registry {
    /// The state that all services of this server share.
    fn services(&self) -> &Services;

    /// Returns whether requests of this type have a handler.
    fn is_taken(&self, number: u16) -> bool;

    /// Registers a handler. The future is dropped when its client cancelled the call, the deadline
    /// passed, or the client is gone.
    fn on_request<H, F>(&mut self, number: u16, handler: H)
    where
        H: Fn(Received<'_>) -> F + Send + Sync + 'static,
        F: Future + Send + 'static,
        F::Output: Reply + Send;

    /// Registers a handler of one-way messages.
    fn on_message<H, F>(&mut self, number: u16, handler: H)
    where
        H: Fn(Received<'_>) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static;
}

/// A service for any thread. Generated servers implement it.
///
/// ```
/// # use courser_example_store::*;
/// use courser::Server;
/// use std::sync::Arc;
///
/// use courser::service::{RegisterError, Registry, Service};
///
/// /// All services of a program, as one.
/// struct All(StoreServer<Arc<Texts>>);
///
/// impl Service for All {
///     fn register<R: Registry>(self, registry: &mut R) -> Result<(), RegisterError> {
///         self.0.register(registry)
///     }
/// }
///
/// # fn main() -> Done {
/// let server = Server::bind("udp://127.0.0.1:0")?.add_service(All(StoreServer::new(Texts)))?;
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
/// assert_eq!(StoreClient::connect(&uri).await?.len("apple".to_owned()).await?, 5);
/// # Ok::<_, Box<dyn std::error::Error>>(()) })?;
/// # Ok(()) }
/// ```
pub trait Service {
    /// Registers the handlers of all methods.
    ///
    /// # Errors
    /// See [`RegisterError`].
    fn register<R: Registry>(self, registry: &mut R) -> Result<(), RegisterError>;
}

/// A service for the thread of one endpoint. Generated servers implement it.
///
/// ```
/// use std::cell::Cell;
///
/// use courser::Nexus;
/// use courser::service::LocalService;
///
/// #[courser::service]
/// trait Count {
///     async fn next(&self) -> u64;
/// }
///
/// /// State of one thread needs no lock.
/// struct Counter(Cell<u64>);
///
/// impl LocalCount for Counter {
///     async fn next(&self) -> u64 {
///         self.0.replace(self.0.get() + 1)
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut rpc = Nexus::bind("udp://127.0.0.1:0")?.endpoint()?;
/// // `rpc.add_service(..)` does this.
/// CountServer::local(Counter(Cell::new(1))).register_local(&mut rpc)?;
/// # Ok(()) }
/// ```
pub trait LocalService {
    /// Registers the handlers of all methods.
    ///
    /// # Errors
    /// See [`RegisterError`].
    fn register_local<R: LocalRegistry>(self, registry: &mut R) -> Result<(), RegisterError>;
}
