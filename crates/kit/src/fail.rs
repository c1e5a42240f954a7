//! Errors of commands: one line of text, and an exit status for scripts.

use std::io;
use std::process::ExitCode;

use courser::{BindError, SessionError};

/// Error of a command.
#[derive(Debug)]
pub enum Failure {
    /// The command cannot run as given: a wrong address, a port in use, no server. Status 2.
    Usage(String),
    /// The command failed. Status 1.
    Runtime(String),
    /// The reader closed the output. Status 0, no error is printed.
    ReaderGone,
}

impl Failure {
    /// The exit status; the argument parser also uses 2.
    pub fn code(&self) -> ExitCode {
        match self {
            Failure::Usage(_) => ExitCode::from(2),
            Failure::Runtime(_) => ExitCode::FAILURE,
            Failure::ReaderGone => ExitCode::SUCCESS,
        }
    }

    /// The line for standard error.
    pub fn text(&self) -> Option<&str> {
        match self {
            Failure::Usage(text) | Failure::Runtime(text) => Some(text),
            Failure::ReaderGone => None,
        }
    }

    /// A file that could not be written.
    pub fn writing(path: &std::path::Path, error: &io::Error) -> Self {
        let path = path.display();
        Failure::Usage(format!("cannot write {path}: {error}; choose a path that can be written"))
    }
}

/// Standard output failed.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ReaderGone,
            _ => Failure::Runtime(format!("cannot write to standard output: {error}")),
        }
    }
}

impl From<BindError> for Failure {
    fn from(error: BindError) -> Self {
        match error {
            BindError::Memory(_) | BindError::System(_) => Failure::Runtime(error.to_string()),
            _ => Failure::Usage(error.to_string()),
        }
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::PeerFailed(_) | SessionError::Gone => Failure::Runtime(error.to_string()),
            _ => Failure::Usage(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_output_is_no_error() {
        let gone = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(matches!(gone, Failure::ReaderGone));
        assert_eq!(gone.text(), None);
        let full = Failure::from(io::Error::from(io::ErrorKind::StorageFull));
        assert!(matches!(full, Failure::Runtime(_)));
    }

    #[test]
    fn wrong_addresses_are_usage_errors_and_lost_peers_are_not() {
        let wrong = courser::Nexus::bind("udp://127.0.0.1").expect_err("no port");
        assert!(matches!(Failure::from(wrong), Failure::Usage(_)));
        assert!(matches!(Failure::from(SessionError::Gone), Failure::Runtime(_)));
    }
}
