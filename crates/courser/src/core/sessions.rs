//! Sessions as handlers and futures connect and close them.

use courser_net::{Uri, any};
use courser_proto::{SessionId, SessionState};

use crate::core::app::App;
use crate::core::{Core, PendingCommand};
use crate::error::SessionError;

impl<A: App> Core<A> {
    /// The part of a connect that needs no transport, for handlers too.
    pub(crate) fn connect(&mut self, uri: &str) -> Result<SessionId, SessionError> {
        if self.process.was_forked() {
            return Err(SessionError::Forked);
        }
        let uri = uri.parse::<Uri>()?.without_options()?;
        let ours = self.local.scheme;
        if uri.scheme != ours {
            return Err(SessionError::Scheme { ours, theirs: uri.scheme });
        }
        // Check the host before dialing.
        if let Some(host) = uri.ip() {
            any::check_host(ours, host).map_err(|e| SessionError::Path(e.to_string()))?;
        }
        // The control connection is not open yet; `connect_over` sets its number. Numbers start at
        // 1.
        let random = self.platform.random_u64();
        let dialed = self.proto.dial(0, random, self.local.port, self.local.max_frame)?;
        let session = dialed.session;
        self.pending_commands.push(PendingCommand::Dial(uri, dialed));
        Ok(session)
    }

    /// The part of a close that needs no transport, for handlers too.
    pub(crate) fn close(&mut self, session: SessionId) {
        let closed = self.proto.close(session);
        self.pending_commands.push(PendingCommand::Close(session, closed));
    }

    /// The error of a session that has ended; `None` while it is connecting or connected.
    pub(crate) fn session_error(&self, session: SessionId) -> Option<SessionError> {
        if self.proto.session_state(session) != SessionState::Gone {
            return None;
        }
        let known = self.failures.iter().rev().find(|(s, _)| *s == session);
        Some(known.map_or(SessionError::Gone, |(_, e)| e.clone()))
    }
}
