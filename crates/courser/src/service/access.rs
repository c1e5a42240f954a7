//! Authorization: whether a peer may use a service and make a request.

use std::fmt;
use std::time::Duration;

use courser_buf::Addr;

use super::context::MetadataError;
use crate::counts::CallOutcome;

/// A client as a server knows it.
///
/// ```
/// use courser::service::{CallContext, Peer};
///
/// #[courser::service]
/// trait Whoami {
///     async fn address(&self, cx: CallContext) -> Option<String>;
/// }
///
/// struct Addresses;
///
/// impl Whoami for Addresses {
///     async fn address(&self, cx: CallContext) -> Option<String> {
///         let peer: Peer = cx.peer()?;
///         peer.addr().to_socket().map(|socket| socket.ip().to_string())
///     }
/// }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = courser::Server::bind("udp://127.0.0.1:0")?.add_service(WhoamiServer::new(Addresses))?;
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
///
/// let client = WhoamiClient::connect(&uri).await?;
/// assert_eq!(client.address().await?.as_deref(), Some("127.0.0.1"));
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Peer {
    pub(super) addr: Addr,
}

impl Peer {
    pub(crate) fn new(addr: Addr) -> Self {
        Peer { addr }
    }

    /// The address that its packets come from: over UDP a socket ([`Addr::to_socket`]). Networks can
    /// be made to deliver packets with another sender's address: see docs/security.md.
    pub fn addr(&self) -> Addr {
        self.addr
    }
}

/// A peer may not use a service, or make a request.
///
/// ```
/// # use courser_example_store::*;
/// use std::time::Duration;
///
/// use courser::service::{Denied, Peer, RpcError, Target};
///
/// # fn main() -> Done {
/// let server = server()?.authorize(|_: &Peer, target: &Target<'_>| match target.method {
///     Some((_, "len")) => Ok(()),
///     Some((_, "get")) => Err(Denied::too_many("ten reads in a second", Duration::from_millis(100))),
///     _ => Err(Denied::new("lengths only")),
/// });
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
/// let store = StoreClient::connect(&uri).await?;
/// assert_eq!(store.len("apple".to_owned()).await?, 5);
/// let error = store.get("apple".to_owned()).await.unwrap_err();
/// assert!(matches!(error, RpcError::TooMany { .. }), "{error:?}");
/// let error = store.tenant().await.unwrap_err();
/// assert!(matches!(error, RpcError::Denied(reason) if &*reason == "lengths only"));
/// # Ok(()) }) }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denied {
    reason: Box<str>,
    pub(super) cause: Cause,
}

/// The kind of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    NotAllowed,
    Unauthenticated,
    TooMany { retry_after: Duration },
}

impl Denied {
    /// The client may not do this: [`RpcError::Denied`](super::RpcError::Denied). The text is for the client,
    /// which gets up to 200 bytes of it if the request is to a service.
    pub fn new(reason: impl Into<Box<str>>) -> Self {
        Denied { reason: reason.into(), cause: Cause::NotAllowed }
    }

    /// The client has not shown that it is one that may do this, as its token is missing or has expired:
    /// [`RpcError::Unauthenticated`](super::RpcError::Unauthenticated).
    pub fn unauthenticated(reason: impl Into<Box<str>>) -> Self {
        Denied { reason: reason.into(), cause: Cause::Unauthenticated }
    }

    /// There are too many requests, and the client may make this one again after a time, with a precision of
    /// microseconds and up to 71 minutes: [`RpcError::TooMany`](super::RpcError::TooMany). Clients with
    /// retries wait for it.
    pub fn too_many(reason: impl Into<Box<str>>, retry_after: Duration) -> Self {
        Denied { reason: reason.into(), cause: Cause::TooMany { retry_after } }
    }
}

impl Denied {
    /// The outcome of a call that is refused for this reason.
    pub(crate) fn outcome(&self) -> CallOutcome {
        match self.cause {
            Cause::NotAllowed | Cause::Unauthenticated => CallOutcome::Denied,
            Cause::TooMany { .. } => CallOutcome::Overload,
        }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// The client may not do this, with the text of the error: metadata that middleware cannot add.
impl From<MetadataError> for Denied {
    fn from(error: MetadataError) -> Self {
        Denied::new(error.to_string())
    }
}

/// For layers of `courser::tower`, which return it as their error.
impl std::error::Error for Denied {}

/// The handler that a request or a one-way message is for.
///
/// ```
/// # use courser_example_store::*;
/// use courser::service::{Denied, Peer, Target};
///
/// /// Allows a service, and one-way messages of any kind.
/// fn allow(_: &Peer, target: &Target<'_>) -> Result<(), Denied> {
///     match target.method {
///         Some(("Store", _)) => Ok(()),
///         _ if target.is_message => Ok(()),
///         _ => Err(Denied::new("this server has a store only")),
///     }
/// }
///
/// # fn main() -> Done {
/// let server = server()?.authorize(allow);
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
/// let client = courser::Client::connect(&uri).await?;
/// client.send(ECHO, client.alloc(8)?).await?;
/// assert!(client.call(ECHO, client.alloc(8)?).await.is_err());
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Target<'a> {
    /// Its request type, or type of messages. Servers assign those of the methods of services.
    pub req_type: u16,
    /// It is a one-way message.
    pub is_message: bool,
    /// The names of the service and of the method. `None`: a handler without a service, such as those
    /// of [`crate::Server::on`] and [`crate::Rpc::on`].
    pub method: Option<(&'a str, &'a str)>,
}

/// Decides what clients may do: see [`crate::Server::authorize`].
///
/// It runs on the thread of the endpoint, before anything of the request is decoded, copied or
/// counted as in progress. So it should take a microsecond at most, and look things up rather than
/// ask for them. A panic denies the request.
///
/// A closure of a peer and a target is one that allows every service.
///
/// ```
/// # use courser_example_store::*;
/// use std::net::IpAddr;
///
/// use courser::service::{Authorize, Denied, Peer, Target};
///
/// /// Addresses that may use the server. A closure is enough for less.
/// struct Allowed(Vec<IpAddr>);
///
/// impl Authorize for Allowed {
///     fn request(&self, peer: &Peer, _: &Target<'_>) -> Result<(), Denied> {
///         match peer.addr().to_socket() {
///             Some(socket) if self.0.contains(&socket.ip()) => Ok(()),
///             _ => Err(Denied::new("this address is not on the list")),
///         }
///     }
/// }
///
/// # fn main() -> Done {
/// let server = server()?.authorize(Allowed(vec!["127.0.0.1".parse()?]));
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
/// assert_eq!(StoreClient::connect(&uri).await?.len("apple".to_owned()).await?, 5);
/// # Ok(()) }) }
/// ```
pub trait Authorize: Send + Sync + 'static {
    /// Returns whether a peer may use a service. It is called when a client asks for the service on
    /// a new session, and before each request to a method, as a client need not ask.
    ///
    /// # Errors
    /// It may not: the client is not made, or the request not passed to its handler.
    fn service(&self, _peer: &Peer, _service: &str) -> Result<(), Denied> {
        Ok(())
    }

    /// Returns whether a peer may make a request, send a one-way message, or open a stream. It is
    /// called for each that has a handler, with a service or without; for methods if the peer may use
    /// the service. The items of an open stream are not asked about.
    ///
    /// # Errors
    /// It may not: a call of a method ends with [`super::RpcError::Denied`], another one with
    /// [`Status::Denied`](crate::Status::Denied), and a one-way message is dropped.
    fn request(&self, peer: &Peer, target: &Target<'_>) -> Result<(), Denied>;
}

impl<F> Authorize for F
where
    F: Fn(&Peer, &Target<'_>) -> Result<(), Denied> + Send + Sync + 'static,
{
    fn request(&self, peer: &Peer, target: &Target<'_>) -> Result<(), Denied> {
        self(peer, target)
    }
}
