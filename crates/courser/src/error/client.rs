//! Errors of connecting a client.

use std::io;

use crate::error::{BindError, FORKED, SessionError};

/// Why a [`crate::Client`] was not connected, or its endpoints were not started.
///
/// ```
/// use courser::{Client, ClientError};
///
/// let error = Client::connect("tcp://127.0.0.1:1").wait().unwrap_err();
/// assert!(matches!(error, ClientError::Bind(_) | ClientError::Session(_)), "{error:?}");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The endpoint could not be made.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The session could not be connected.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The server does not have the services that the client uses, in their versions: the text of a
    /// [`crate::service::HelloError`].
    #[error("{0}")]
    Service(String),
    /// The system refused a thread.
    #[error(
        "no thread for an endpoint could be started: {0}; raise the limit of threads (`ulimit -u`)"
    )]
    Thread(#[source] io::Error),
    /// A setting is out of its range.
    #[error("{name} is {value}; set it from 1 to {most}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: usize,
        /// The largest value.
        most: usize,
    },
    /// The nexus was made with [`crate::Nexus::bind_in`], where threads do not see the time pass.
    #[error(
        "in virtual time the simulation drives every endpoint, and a client has a thread that does; \
         use an Rpc and its futures"
    )]
    VirtualTime,
    /// The process was forked from that of the endpoints.
    #[error("{FORKED}")]
    Forked,
    /// The endpoint's thread has ended.
    #[error("the thread of the endpoint has ended; start other endpoints")]
    Stopped,
}

impl ClientError {
    /// Returns whether a later connect may succeed without a change of this program.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, ClientError::Session(e) if e.may_pass())
    }
}
