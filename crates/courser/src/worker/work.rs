//! What a worker handler gets: a request of its own, and the duty to answer it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use courser_buf::{AllocError, Arena, MsgBuf};
use courser_proto::{ReplyError, RequestId, SessionId, Status};

use crate::message::{Reply, ReplySink};
use crate::worker::home::{Home, Outcome};
use crate::worker::queue::Term;

/// A request in the hands of a worker, and the duty to answer it. Reads as a byte slice.
///
/// It may be kept, sent to other threads and answered from any of them, later than the handler's
/// return. Dropping it answers with an error, so that no client waits for ever:
/// [`Status::NoReply`], or [`Status::Panicked`] when a panic drops it. When the endpoint or the
/// session is gone by then, an answer goes nowhere, and its memory back.
///
/// Answering takes the endpoint's mailbox lock for some ten nanoseconds, and one system call if
/// the endpoint sleeps.
#[must_use = "dropping a request answers it with an error"]
pub struct Work {
    id: RequestId,
    req_type: u16,
    /// `None` once taken.
    request: Option<MsgBuf>,
    term: Option<Term>,
    home: Arc<Home>,
    answered: bool,
}

impl Work {
    pub(super) fn new(
        id: RequestId,
        req_type: u16,
        request: MsgBuf,
        term: Option<Term>,
        home: Arc<Home>,
    ) -> Self {
        Work { id, req_type, request: Some(request), term, home, answered: false }
    }

    /// The type it was sent as.
    pub fn req_type(&self) -> u16 {
        self.req_type
    }

    /// The session it came on.
    pub fn session(&self) -> SessionId {
        self.id.session()
    }

    /// How long the client still waits; zero when its deadline has passed, `None` without one.
    /// Reads the clock.
    pub fn time_left(&self) -> Option<Duration> {
        self.term.map(|t| t.until.saturating_duration_since(self.home.clock.now()))
    }

    /// Takes the request's buffer, to be kept or to be answered with; the request reads as empty
    /// afterwards. `None` when it was taken before. It counts against the endpoint's memory limit
    /// until it is dropped.
    pub fn take(&mut self) -> Option<MsgBuf> {
        self.request.take()
    }

    /// Message memory of the request's endpoint: `len` bytes of arbitrary content.
    ///
    /// # Errors
    /// The endpoint's memory limit is reached.
    pub fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.home.arena.alloc(len)
    }

    /// Answers. Bytes are copied into message memory, a [`MsgBuf`] is not; a response that is too
    /// large or finds no memory reaches the client as [`Status::ResponseFailed`].
    pub fn reply(self, reply: impl Reply) {
        // The client was told; the handler did not ask.
        let _ = self.try_reply(reply);
    }

    /// [`Work::reply`] that says whether the response could be held. What the session then makes
    /// of it, its limit on responses say, is decided on the endpoint's thread.
    ///
    /// # Errors
    /// No memory for the response; the client gets an error instead.
    pub fn try_reply(mut self, reply: impl Reply) -> Result<(), ReplyError> {
        let response = reply.send_to(InMemory(&self.home.arena));
        match response {
            Ok(m) => {
                self.answer(Outcome::Response(m));
                Ok(())
            }
            Err(e) => {
                self.answer(Outcome::Status(Status::ResponseFailed));
                Err(e.into())
            }
        }
    }

    /// Rejects the request: its call ends with [`Status::Rejected`].
    pub fn reject(self) {
        self.fail(Status::Rejected);
    }

    pub(super) fn fail(mut self, status: Status) {
        self.answer(Outcome::Status(status));
    }

    /// The request's number at its endpoint.
    pub(super) fn id(&self) -> RequestId {
        self.id
    }

    /// Ends the duty to answer here; the owner of the request's number has it.
    pub(super) fn disown(mut self) {
        self.answered = true;
    }

    fn answer(&mut self, outcome: Outcome) {
        self.answered = true;
        self.home.answer(self.id, outcome);
    }

    pub(super) fn term(&self) -> Option<Term> {
        self.term
    }

    pub(super) fn is_of(&self, home: &Arc<Home>) -> bool {
        Arc::ptr_eq(&self.home, home)
    }

    pub(super) fn home(&self) -> &Home {
        &self.home
    }
}

/// Makes a message of a reply.
struct InMemory<'a>(&'a Arena);

impl ReplySink for InMemory<'_> {
    type Output = Result<MsgBuf, AllocError>;

    fn bytes(self, bytes: &[u8]) -> Self::Output {
        let mut m = self.0.alloc(bytes.len())?;
        m.copy_from_slice(bytes);
        Ok(m)
    }

    fn msg(self, msg: MsgBuf) -> Self::Output {
        Ok(msg)
    }
}

impl Deref for Work {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.request.as_deref().unwrap_or_default()
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if !self.answered {
            let panics = std::thread::panicking();
            let status = if panics { Status::Panicked } else { Status::NoReply };
            self.answer(Outcome::Status(status));
        }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("req_type", &self.req_type)
            .field("session", &self.session())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
