//! Errors of a server.

use std::io;

use crate::error::{BindError, RunError};

/// Why a [`crate::Server`] was not started, or has ended by itself.
///
/// ```
/// use courser::{Server, ServerError};
///
/// let error = Server::bind("udp://somewhere").unwrap_err();
/// assert!(matches!(error, ServerError::Bind(_)));
/// // The text states what happened, and what to do.
/// println!("{error}");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The address or an endpoint could not be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The system refused a thread.
    #[error(
        "no thread for an endpoint or for handlers could be started: {0}; raise the limit of threads (`ulimit -u`)"
    )]
    Thread(#[source] io::Error),
    /// A setting is out of its range.
    #[error("Server::{name} is {value}; set it from 1 to {most}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: usize,
        /// The largest value.
        most: usize,
    },
    /// A handler was set for the request type of a service.
    #[error(
        "request type {req_type:#06x} is that of a service, and has another handler; set one below \
         0x4000 for that one, except 0x03f0 to 0x03ff"
    )]
    Taken {
        /// The request type.
        req_type: u16,
    },
    /// The nexus was made with [`crate::Nexus::bind_in`], where threads do not see the time pass.
    #[error(
        "in virtual time the simulation drives every endpoint, and a server has threads that do; \
         use an Rpc and its async handlers"
    )]
    VirtualTime,
    /// The thread of an endpoint panicked.
    #[error("the thread of an endpoint panicked; read the log")]
    Panicked,
    /// The runtime of the handlers has ended (`Server::on_tokio`, [`crate::Spawn::watch`]).
    /// The server has refused requests since then.
    #[error(
        "the runtime of the handlers has ended, so that no handler can run; stop the server before \
         its runtime"
    )]
    RuntimeEnded,
    /// An event loop failed.
    #[error(transparent)]
    Run(#[from] RunError),
}
