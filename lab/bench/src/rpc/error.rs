//! Errors of benchmarks.

use std::io;
use std::time::Duration;

use courser_kit::Failure;
use courser_kit::affinity::AffinityError;

use crate::line::LineError;
use crate::netns::Unavailable;
use crate::window::RunError;

/// Error of a benchmark, in one line.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A value outside its range.
    #[error("{what} must be {limits}")]
    Spec {
        /// Name of the value.
        what: &'static str,
        /// Permitted values.
        limits: String,
    },
    /// Cores could not be chosen, or a thread could not be pinned.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// Error of the shared memory.
    #[error(transparent)]
    Line(#[from] LineError),
    /// Error of a window.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The endpoint of this side could not be opened.
    #[error(transparent)]
    Bind(#[from] courser::BindError),
    /// Error of the worker pool.
    #[error(transparent)]
    Workers(#[from] courser::WorkerError),
    /// Calls to a worker fail.
    #[error("the worker's capacity cannot be measured: {0}")]
    Capacity(String),
    /// A session could not be connected.
    #[error("cannot connect to {uri}: {source}")]
    Connect {
        /// The server.
        uri: String,
        /// The reason.
        source: courser::SessionError,
    },
    /// No memory for requests.
    #[error("no memory for the requests: {0}")]
    Memory(#[from] courser::AllocError),
    /// Error of the raw socket or of another part.
    #[error("raw socket: {0}")]
    Raw(String),
    /// The two hosts could not be made.
    #[error(transparent)]
    Host(#[from] Unavailable),
    /// The server process could not be started.
    #[error("cannot start the server process: {0}; raise the limit (ulimit -u)")]
    Spawn(#[source] io::Error),
    /// The server process was not ready in time.
    #[error("the server process was not ready within {0:?}{1}; end other programs and repeat")]
    NotReady(Duration, Said),
    /// The server process ended by itself.
    #[error("the server process ended ({status}){said}; repeat, or measure with --transport mem")]
    Ended {
        /// Exit status or signal.
        status: String,
        /// Its last line on standard error.
        said: Said,
    },
}

/// The last line that the server process wrote to its standard error, if any.
#[derive(Debug, Default)]
pub struct Said(pub Option<String>);

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(line) => write!(f, ": {line}"),
            None => Ok(()),
        }
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        let text = error.to_string();
        match error {
            BenchError::Bind(error) => error.into(),
            BenchError::Connect { source, .. } => match source.into() {
                Failure::Usage(_) => Failure::Usage(text),
                _ => Failure::Runtime(text),
            },
            BenchError::Spec { .. }
            | BenchError::Host(_)
            | BenchError::Run(RunError::Plan { .. }) => Failure::Usage(text),
            _ => Failure::Runtime(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_the_server_is_added() {
        let ended = |said| BenchError::Ended { status: "signal 9".into(), said: Said(said) };
        let advice = "; repeat, or measure with --transport mem";
        assert_eq!(ended(None).to_string(), format!("the server process ended (signal 9){advice}"));
        let text = ended(Some("no memory".into())).to_string();
        assert_eq!(text, format!("the server process ended (signal 9): no memory{advice}"));
    }
}
