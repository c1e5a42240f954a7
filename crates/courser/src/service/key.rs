//! The number of a session at a server.

use courser_proto::SessionId;

/// A session of a server: its endpoint, and the session's number there, with its generation.
///
/// ```
/// use courser::service::{CallContext, SessionKey};
///
/// #[courser::service]
/// trait Sessions {
///     async fn id(&self, cx: CallContext) -> String;
/// }
///
/// struct Texts;
///
/// impl Sessions for Texts {
///     async fn id(&self, cx: CallContext) -> String {
///         let session: SessionKey = cx.session();
///         format!("{session:?}")
///     }
/// }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = courser::Server::bind("udp://127.0.0.1:0")?.add_service(SessionsServer::new(Texts))?;
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
///
/// let sessions = SessionsClient::connect(&uri).await?;
/// // Calls one after the other are on one session.
/// assert_eq!(sessions.id().await?, sessions.id().await?);
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SessionKey {
    endpoint: u16,
    number: u64,
}

impl SessionKey {
    /// A number that no other session of this endpoint has or had.
    pub fn new(endpoint: u16, number: u64) -> Self {
        SessionKey { endpoint, number }
    }

    /// A session of an endpoint, by the endpoint's number in its nexus.
    pub fn of(endpoint: u16, session: SessionId) -> Self {
        SessionKey { endpoint, number: session.key() }
    }

    /// Returns whether it is a session of an endpoint.
    pub(super) fn is_of(&self, endpoint: u16) -> bool {
        self.endpoint == endpoint
    }
}
