//! Errors of asking a server for a service.

use crate::error::ClientError;
use crate::error::failure::CallFailure;
use crate::error::service::{DecodeError, EncodeError};

/// A client and its server have different codecs for a service.
///
/// Example: [`HelloError`](crate::service::HelloError).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// The name that the client has asked for.
    pub service: String,
    /// The client's codec.
    pub client_codec: String,
    /// The server's codec.
    pub server_codec: String,
}

/// A typed client could not be made.
///
/// ```
/// # use courser_example_store::*;
/// use courser::service::HelloError;
///
/// #[courser::service]
/// trait Other {
///     async fn get(&self) -> u64;
/// }
///
/// # fn main() -> Done { run(async |uri| {
/// let error = OtherClient::connect(&uri).await.unwrap_err();
/// assert!(matches!(error, HelloError::NoService { .. }), "{error}");
/// # Ok(()) }) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// Both ends have the service, with different codecs.
    #[error(
        "the client has service {} with codec {}, the server with codec {}; use the same codec at both \
         ends, or give the service another name",
        .0.service, .0.client_codec, .0.server_codec
    )]
    Mismatch(Box<Mismatch>),
    /// The server has other services only.
    #[error("the server has no service {service}, but {others}; check the address and the name")]
    NoService {
        /// The name that the client has asked for.
        service: String,
        /// Names of the server's services, up to 16, in words.
        others: String,
    },
    /// The server does not allow this client to use the service.
    #[error(
        "the server does not allow this client to use service {service} ({reason}); use a client \
         that it allows"
    )]
    Denied {
        /// The name that the client has asked for.
        service: String,
        /// The server's text.
        reason: Box<str>,
    },
    /// The server was not reached, or did not answer.
    #[error(transparent)]
    Call(#[from] CallFailure),
    /// The address cannot be used, or there is no connection.
    #[error(transparent)]
    Connect(#[from] ClientError),
    /// The request could not be made.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The answer is malformed.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}
