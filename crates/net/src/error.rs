//! Why a transport could not be opened, whatever its kind.

use crate::{UriError, ZoneError};

/// Why an endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No transport has this scheme.
    #[error("no transport is registered for {scheme:?}; use one of {}", known.join(", "))]
    UnknownScheme {
        /// The scheme of the address.
        scheme: String,
        /// The schemes that are registered.
        known: Vec<String>,
    },
    /// The text is no address.
    #[error(transparent)]
    Uri(#[from] UriError),
    /// The transport has no such option.
    #[error("{scheme}:// has no option {name:?}; use one of {known}")]
    UnknownOption {
        /// The transport.
        scheme: &'static str,
        /// The option in the address.
        name: String,
        /// The options that the transport has, with commas between.
        known: String,
    },
    /// The value of an option does not fit.
    #[error("option {name}={value:?} has a wrong value; write {expected}")]
    BadOption {
        /// The option.
        name: String,
        /// Its value in the address.
        value: String,
        /// The values that it takes.
        expected: &'static str,
    },
    /// The host is unknown.
    #[error(
        "{0:?} is not an IP address, and not a known name: {1}; check its spelling and the DNS"
    )]
    Host(String, #[source] std::io::Error),
    /// The zone of a link-local address names no interface.
    #[error(transparent)]
    Zone(#[from] ZoneError),
    /// Another endpoint has the port; a nexus that was bound to port 0 tries another one.
    #[error(transparent)]
    InUse(Box<dyn std::error::Error + Send + Sync>),
    /// The transport cannot be opened for another reason.
    #[error(transparent)]
    Transport(Box<dyn std::error::Error + Send + Sync>),
}

impl OpenError {
    /// [`OpenError::InUse`], with the transport's own error.
    pub fn in_use(cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        OpenError::InUse(Box::new(cause))
    }

    /// [`OpenError::Transport`], with the transport's own error.
    pub fn transport(cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        OpenError::Transport(Box::new(cause))
    }

    /// Returns whether another port can succeed.
    pub fn is_in_use(&self) -> bool {
        matches!(self, OpenError::InUse(_))
    }
}

/// For transports over the system's sockets: `EADDRINUSE` is [`OpenError::InUse`].
impl From<std::io::Error> for OpenError {
    fn from(e: std::io::Error) -> Self {
        match e.kind() {
            std::io::ErrorKind::AddrInUse => OpenError::in_use(e),
            _ => OpenError::transport(e),
        }
    }
}
