//! Sessions as futures.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use courser_proto::{SessionId, SessionState};

use super::local::{Local, Session};
use crate::core::lent;
use crate::core::queue::LocalCommand;
use crate::error::SessionError;

/// A session that is being connected, made by [`Local::connect`]. Dropping it gives up.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_local(async |local, uri| {
/// use std::time::Duration;
///
/// // A shorter time than `Config::connect_timeout`.
/// let session = local.timeout(Duration::from_secs(4), local.connect(&uri)).await??;
/// assert_eq!(session.uri(), Some(uri.as_str()));
/// # Ok(()) }) }
/// ```
///
/// # Panics
/// A poll outside of the endpoint: see [`Local`].
#[must_use = "a session is connected when it is awaited"]
pub struct Connecting {
    local: Local,
    uri: String,
    session: Option<SessionId>,
}

impl Connecting {
    pub(super) fn new(local: Local, uri: &str) -> Self {
        Connecting { local, uri: uri.to_owned(), session: None }
    }
}

impl Future for Connecting {
    type Output = Result<Session, SessionError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        lent::with(this.local.lender(), |core| {
            let session = match this.session {
                Some(session) => session,
                None => *this.session.insert(core.connect(&this.uri)?),
            };
            let dials = &mut core.tasks.dials.0;
            dials.retain(|(of, _)| *of != session);
            if core.proto.session_state(session) == SessionState::Connecting {
                let waiter = core.tasks.waiter(cx);
                core.tasks.dials.0.push((session, waiter));
                core.queue.set_news();
                return Poll::Pending;
            }
            let ended = core.session_error(session);
            this.session = None;
            Poll::Ready(match ended {
                Some(e) => Err(e),
                None => Ok(Session::owned(this.local.clone(), session, &this.uri)),
            })
        })
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if let Some(session) = self.session {
            self.local.queue().push(LocalCommand::Close(session));
        }
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").field("uri", &self.uri).finish_non_exhaustive()
    }
}
