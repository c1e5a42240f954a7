//! The request of a worker handler, which also sends the answer.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use courser_buf::{Addr, AllocError, Arena, MsgBuf};
use courser_proto::{ReplyError, RequestId, SessionId, Status};

use crate::control::mailbox::AnswerBody;
use crate::core::deadline::Deadline;
use crate::core::message::{Reply, to_message, zeroed};
use crate::core::shares::Place;
use crate::counts::CallOutcome;
use crate::run::worker::dropping;
use crate::run::worker::origin::Origin;
use crate::service::trailer::Arrived;
use crate::service::{Caller, Observation, Peer, Watched, current};

/// A request that a worker handler owns and must answer, or a one-way message, to which there is no
/// answer. Dereferences to its bytes.
///
/// It may be stored, sent to other threads, and answered from any of them after the handler has
/// returned. Dropping it answers with an error, so that the client does not wait for its deadline:
/// [`Status::NoReply`], [`Status::Expired`] after the deadline, [`Status::Panicked`] when a panic
/// drops it, or [`Status::Dropped`] when a [`crate::Server`] or its runtime drops the handler that
/// has it. If the endpoint or the session has ended by then, the answer is dropped. All answers to a
/// one-way message are ignored.
///
/// Answering takes the endpoint's mailbox lock for some ten nanoseconds, and one system call if
/// the endpoint sleeps.
///
/// ```
/// # use courser_example_store::*;
/// use courser::Nexus;
/// use courser::Work;
///
/// /// May block, and answer from any thread.
/// fn hash(work: Work) {
///     let hash = work.iter().fold(17_u64, |hash, byte| hash.wrapping_mul(31) ^ u64::from(*byte));
///     work.reply(hash.to_le_bytes());
/// }
///
/// # fn main() -> Done {
/// let nexus = Nexus::bind("udp://127.0.0.1:0")?;
/// let mut rpc = nexus.endpoint()?;
/// rpc.on_worker(ECHO, hash)?;
/// # let (uri, handle) = (nexus.local_uri(), rpc.handle());
/// # let client = std::thread::spawn(move || {
/// #     let client = courser::Client::connect(&uri).wait().expect("it is there");
/// #     let answer = client.call(ECHO, client.alloc(1).expect("memory")).wait();
/// #     handle.stop();
/// #     assert_eq!(answer.expect("an answer").len(), 8);
/// # });
/// # rpc.run()?;
/// # client.join().expect("no panic");
/// # Ok(()) }
/// ```
#[must_use = "dropping a request answers it with an error"]
pub struct Work {
    incoming: Incoming,
    req_type: u16,
    /// `None` after [`Work::take`].
    request: Option<MsgBuf>,
    deadline: Option<Deadline>,
    origin: Arc<Origin>,
    stage: Stage,
    client: Sender,
}

/// The client of a request, where it is needed.
enum Sender {
    Unknown,
    /// It has a place in the queue of workers.
    Queued(Place),
    /// The control connection of the client.
    Known(u64),
    /// The handler has a context.
    Asked(Box<Asker>),
}

/// The client of a request whose handler has a context.
struct Asker {
    control: u64,
    peer: Option<Addr>,
    /// The largest answer, bytes.
    limit: usize,
    watched: Option<Arc<dyn Watched>>,
    arrived: Option<Arc<Arrived>>,
    /// Middleware that sees the end of the call.
    observation: Option<Observation>,
}

/// How far a request has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its handler has not started.
    Waiting,
    Started,
    Answered,
}

/// What a [`Work`] is.
#[derive(Clone, Copy)]
pub(super) enum Incoming {
    Request(RequestId),
    Message(SessionId),
}

impl Work {
    pub(super) fn new(
        incoming: Incoming,
        req_type: u16,
        request: MsgBuf,
        deadline: Option<Deadline>,
        origin: Arc<Origin>,
    ) -> Self {
        if let Incoming::Message(_) = incoming {
            origin.message_begins();
        }
        let (request, stage, client) = (Some(request), Stage::Waiting, Sender::Unknown);
        Work { incoming, req_type, request, deadline, origin, stage, client }
    }

    /// It is of the client with this control connection.
    #[inline]
    pub(super) fn set_client(&mut self, control: u64) {
        self.client = Sender::Known(control);
    }

    /// The control connection of its client.
    pub(crate) fn client(&self) -> Option<u64> {
        match &self.client {
            Sender::Known(control) => Some(*control),
            Sender::Asked(asker) => Some(asker.control),
            Sender::Unknown | Sender::Queued(_) => None,
        }
    }

    /// Its handler has a context, which names the peer.
    pub(super) fn set_asker(
        &mut self,
        (control, peer, limit): (u64, Option<Addr>, usize),
        observation: Option<Observation>,
    ) {
        let (watched, arrived) = (None, current::arrived());
        let asker = Asker { control, peer, limit, watched, arrived, observation };
        self.client = Sender::Asked(Box::new(asker));
    }

    /// Middleware sees its end.
    pub(crate) fn is_observed(&self) -> bool {
        matches!(&self.client, Sender::Asked(asker) if asker.observation.is_some())
    }

    /// Reports its end to middleware, before that of its handler.
    #[cold]
    pub(crate) fn end_observed(&mut self, outcome: CallOutcome) {
        if let Sender::Asked(asker) = &mut self.client
            && let Some(observation) = asker.observation.take()
        {
            observation.end(outcome);
        }
    }

    /// Its metadata.
    pub(crate) fn arrived(&self) -> Option<Arc<Arrived>> {
        match &self.client {
            Sender::Asked(asker) => asker.arrived.clone(),
            Sender::Unknown | Sender::Queued(_) | Sender::Known(_) => None,
        }
    }

    /// Its handler has a context, which states whether the handler was cancelled.
    pub(crate) fn watch(&mut self, watched: Arc<dyn Watched>) {
        if let Sender::Asked(asker) = &mut self.client {
            asker.watched = Some(watched);
        }
    }

    /// Its origin, for the context of its handler.
    pub(crate) fn caller(&self) -> Caller {
        let (expires, clock) = (self.expires(), self.origin.clock.clone());
        let (peer, watched, limit) = match &self.client {
            Sender::Asked(asker) => (asker.peer.map(Peer::new), asker.watched.clone(), asker.limit),
            Sender::Unknown | Sender::Queued(_) | Sender::Known(_) => (None, None, usize::MAX),
        };
        Caller { peer, expires, clock, watched, endpoint: None, limit, arrived: self.arrived() }
    }

    /// It waits for a worker.
    pub(super) fn queue(&mut self, place: Place) {
        self.client = Sender::Queued(place);
    }

    /// A worker has taken it. The memory of a message counts until it is dropped.
    pub(super) fn leave_queue(&mut self) {
        if let Sender::Queued(place) = &mut self.client {
            place.leave();
        }
    }

    /// The type of the request or message.
    pub fn req_type(&self) -> u16 {
        self.req_type
    }

    /// The session that it arrived on.
    pub fn session(&self) -> SessionId {
        match self.incoming {
            Incoming::Request(id) => id.session(),
            Incoming::Message(session) => session,
        }
    }

    /// The number of the endpoint that received it.
    pub(crate) fn endpoint(&self) -> u16 {
        self.origin.endpoint
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.origin.arena
    }

    /// Time until its deadline: zero when it has passed, `None` without a deadline. Reads
    /// the clock.
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline.map(|t| t.expires.saturating_duration_since(self.origin.clock.now()))
    }

    /// Takes the request's buffer, to store it or to reply with it; the request reads as empty
    /// afterwards. `None` when it was taken before. The buffer counts against the endpoint's memory
    /// limit until it is dropped.
    pub fn take(&mut self) -> Option<MsgBuf> {
        self.request.take()
    }

    /// Allocates message memory of the request's endpoint: `len` bytes, all 0.
    ///
    /// # Errors
    /// The endpoint's memory limit is reached.
    pub fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        zeroed(self.origin.arena.alloc(len))
    }

    /// A message buffer of `len` bytes that have the contents of earlier messages of this endpoint:
    /// for messages that are overwritten in full. A byte that is not **reveals another message**.
    ///
    /// # Errors
    /// The endpoint's memory limit is reached.
    #[inline]
    pub fn alloc_recycled(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.origin.arena.alloc(len)
    }

    /// Answers. Bytes are copied into message memory, a [`MsgBuf`] is not. If the response is too
    /// large or there is no memory, the client gets [`Status::ResponseFailed`].
    pub fn reply(self, reply: impl Reply) {
        // The client gets the error; the handler ignores it.
        let _ = self.try_reply(reply);
    }

    /// [`Work::reply`] that returns an error when there is no memory for the response. Limits of
    /// the session, such as the size of a response, are checked later on the endpoint's thread.
    ///
    /// # Errors
    /// No memory for the response; the client gets an error.
    pub fn try_reply(mut self, reply: impl Reply) -> Result<(), ReplyError> {
        let response = to_message(reply, &self.origin.arena);
        match response {
            Ok(m) => {
                self.answer(AnswerBody::Response(m));
                Ok(())
            }
            Err(e) => {
                self.answer(AnswerBody::Status(Status::ResponseFailed));
                Err(e.into())
            }
        }
    }

    /// Rejects the request: its call ends with [`Status::Rejected`].
    pub fn reject(self) {
        self.fail(Status::Rejected);
    }

    pub(crate) fn fail(mut self, status: Status) {
        self.answer(AnswerBody::Status(status));
    }

    /// The endpoint's number of the request; `None` for a message.
    pub(super) fn id(&self) -> Option<RequestId> {
        match self.incoming {
            Incoming::Request(id) => Some(id),
            Incoming::Message(_) => None,
        }
    }

    /// Its handler starts: from here on an answer states that it may have run.
    pub(crate) fn start(&mut self) {
        self.stage = Stage::Started;
    }

    /// Drops the request without an answer; the caller answers it.
    pub(super) fn drop_unanswered(mut self) {
        self.stage = Stage::Answered;
    }

    fn answer(&mut self, outcome: AnswerBody) {
        self.stage = Stage::Answered;
        if let Sender::Asked(asker) = &mut self.client
            && let Some(observation) = asker.observation.take()
        {
            let is_message = matches!(self.incoming, Incoming::Message(_));
            observation.answered(outcome.answer(), is_message);
        }
        if let Incoming::Request(id) = self.incoming {
            self.origin.answer(id, outcome);
        }
    }

    /// The status of a request that is dropped now.
    fn unanswered(&self) -> Status {
        let dropping = dropping::status();
        // The handler of a message has ended, though late. It has no answer.
        let has_ended = dropping.is_none_or(|status| status == Status::NoReply)
            && matches!(self.incoming, Incoming::Message(_));
        match dropping {
            _ if self.stage == Stage::Waiting && self.is_late() => Status::DeadlineExceeded,
            _ if self.stage == Stage::Waiting => Status::NotStarted,
            Some(Status::Panicked) => Status::Panicked,
            _ if std::thread::panicking() => Status::Panicked,
            _ if !has_ended && self.is_late() => Status::Expired,
            dropping => dropping.unwrap_or(Status::NoReply),
        }
    }

    /// Returns whether its deadline has passed. Reads the clock if there is one.
    pub(crate) fn is_late(&self) -> bool {
        self.time_left().is_some_and(|left| left.is_zero())
    }

    /// The time of the deadline.
    pub(crate) fn expires(&self) -> Option<Instant> {
        self.deadline.map(|deadline| deadline.expires)
    }

    pub(super) fn deadline(&self) -> Option<Deadline> {
        self.deadline
    }

    pub(super) fn is_from(&self, origin: &Arc<Origin>) -> bool {
        Arc::ptr_eq(&self.origin, origin)
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
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
        if self.stage != Stage::Answered {
            self.answer(AnswerBody::Status(self.unanswered()));
        }
        if let Incoming::Message(_) = self.incoming {
            self.request = None; // its memory is free when the endpoint learns of it
            self.origin.message_ends();
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
