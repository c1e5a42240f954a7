//! Closing an endpoint: gracefully with [`Rpc::shutdown`], at once by dropping it.

use std::time::Duration;

use courser_net::Transport;

use crate::core::drain::DrainToken;
use crate::error::RunError;
use crate::rpc::Rpc;

/// Interval of the checks whether the endpoint is drained, ns. A check visits every session.
const CHECK_INTERVAL_NS: u64 = 200_000;

/// Time to wait when only acknowledgements are missing, ns. A client whose event loop runs
/// acknowledges a response within 0.4 s (ADR 6), so the others do not run theirs.
const ACK_GRACE_NS: u64 = 1_000_000_000;

/// Time after which a stream of which no item moves ends.
const STALL: Duration = Duration::from_millis(75);

/// Longest time in which clients are informed of an end, ns.
const NOTICE_NS: u64 = 100_000_000;

/// The end of a grace.
#[derive(Clone, Copy)]
pub(crate) struct Grace {
    /// When requests that are not answered end, ns.
    pub(crate) end_ns: u64,
    /// Time in which clients are informed: of the end of streams before `end_ns`, of that of requests
    /// after it.
    notice_ns: u64,
}

impl Grace {
    pub(crate) fn begin(now_ns: u64, grace: Duration) -> Self {
        let grace_ns = u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX);
        let end_ns = now_ns.saturating_add(grace_ns);
        Grace { end_ns, notice_ns: NOTICE_NS.min(grace_ns / 2) }
    }

    /// When all streams end, ns.
    pub(crate) fn streams_end_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.notice_ns)
    }
}

/// The calls, requests and messages that a graceful shutdown did not finish.
///
/// ```
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let serving = courser::Server::bind("udp://127.0.0.1:0")?.serve()?;
/// serving.handle().shutdown(Duration::from_secs(1));
/// let report = serving.wait()?;
/// if !report.is_clean() {
///     eprintln!("{} requests were not answered", report.executing);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShutdownReport {
    /// Calls of this endpoint that had not ended. Their continuations are dropped without being
    /// called.
    pub calls: u64,
    /// Requests that were executing, whose clients see [`courser_proto::Status::GraceEnded`], or
    /// arriving, which are refused. Without a grace both fail with
    /// [`courser_proto::CallError::PeerFailed`].
    pub executing: usize,
    /// Responses that clients have not acknowledged. They may be lost.
    pub unacknowledged: usize,
    /// One-way messages of this endpoint that were not acknowledged. They may be lost.
    pub messages: u64,
    /// One-way messages that workers had not finished. Those that they have not begun are dropped.
    pub with_workers: usize,
}

impl ShutdownReport {
    /// Returns whether everything was finished.
    pub fn is_clean(&self) -> bool {
        *self == ShutdownReport::default()
    }
}

impl<T: Transport> Rpc<T> {
    /// Shuts the endpoint down gracefully, within `grace`:
    ///
    /// 1. New sessions are refused. New requests are answered with
    ///    [`courser_proto::Status::ShuttingDown`] and not executed, so that clients can use another
    ///    server. Only those of the standard service for health ([`Rpc::add_health`]) are answered.
    /// 2. The event loop runs until all handlers have answered, workers have finished their
    ///    messages, the clients have acknowledged the answers, and the calls of this endpoint have
    ///    ended. When only acknowledgements are missing, it waits at most one second, as their
    ///    clients do not run their event loops. Streams of typed services of which no item moves for
    ///    75 to 150 ms end with [`crate::service::MidStreamError::ShuttingDown`], all others 100 ms before
    ///    the end of the grace, or at half of it.
    /// 3. Requests that are not answered at the end of the grace end with
    ///    [`courser_proto::Status::GraceEnded`], or with `ShuttingDown` if no handler was started, and
    ///    the answers of their handlers are dropped. Their clients have half the grace to get that,
    ///    100 ms at most.
    /// 4. The sessions are closed and the peers notified.
    ///
    /// Dropping the endpoint does only step 4, so calls of its peers end with `PeerFailed`.
    /// Dropping is safe at any time; call this function where answers matter.
    ///
    /// Typically called after [`Rpc::run`] has returned, for instance because a signal handler
    /// called [`crate::EndpointHandle::stop`].
    ///
    /// A program with its own event loop does the steps itself: [`Rpc::begin_shutdown`],
    /// [`Rpc::poll`] until [`Rpc::is_drained`], [`Rpc::left_behind`], [`Rpc::end_requests`] and further
    /// polls if there are any, drop.
    ///
    /// # Errors
    /// The system's poll failed, or time is virtual ([`crate::Nexus::bind_in`]). The endpoint is
    /// closed nevertheless.
    pub fn shutdown(self, grace: Duration) -> Result<ShutdownReport, RunError> {
        let grace = Grace::begin(self.core.now_ns(), grace);
        self.shutdown_within(grace)
    }

    /// [`Rpc::shutdown`] whose grace has begun.
    pub(crate) fn shutdown_within(mut self, grace: Grace) -> Result<ShutdownReport, RunError> {
        self.may_block()?;
        self.begin_shutdown();
        let (end_ns, mut streams_end_ns) = (grace.end_ns, grace.streams_end_ns());
        // Set while only acknowledgements are missing.
        let mut ack_deadline_ns = None;
        let mut next_check_ns = 0;
        loop {
            let now_ns = self.core.now_ns();
            if now_ns >= streams_end_ns {
                streams_end_ns = u64::MAX;
                self.end_streams();
            }
            if now_ns >= next_check_ns {
                if self.is_drained() {
                    break;
                }
                if !self.core.proto.is_answered() || self.messages_with_workers() > 0 {
                    ack_deadline_ns = None;
                } else if ack_deadline_ns.is_none() {
                    ack_deadline_ns = Some(now_ns.saturating_add(ACK_GRACE_NS));
                }
                next_check_ns = now_ns + CHECK_INTERVAL_NS;
            }
            if now_ns >= ack_deadline_ns.map_or(end_ns, |at| at.min(end_ns)) {
                break;
            }
            if !self.poll() {
                self.rest(Some(next_check_ns.min(end_ns)))?;
            }
        }
        self.give_notice(grace)
    }

    /// Ends the requests that are not answered, and waits until their clients know it.
    fn give_notice(mut self, grace: Grace) -> Result<ShutdownReport, RunError> {
        let left = self.left_behind();
        if left.executing == 0 {
            return Ok(left);
        }
        self.end_requests();
        let end_ns = self.core.now_ns().saturating_add(grace.notice_ns);
        loop {
            let (polled, now_ns) = (self.poll(), self.core.now_ns());
            let is_sent = self.core.proto.is_sent() && self.is_flushed();
            if now_ns >= end_ns || is_sent && self.core.proto.unacknowledged() == 0 {
                break;
            }
            if !polled {
                self.rest(Some(end_ns.min(now_ns + CHECK_INTERVAL_NS)))?;
            }
        }
        let ShutdownReport { unacknowledged, .. } = self.left_behind();
        Ok(ShutdownReport { unacknowledged: left.unacknowledged.min(unacknowledged), ..left })
    }

    /// The first step of [`Rpc::shutdown`]: refuses new sessions and new requests from now on,
    /// while requests that have begun and the items of open streams continue. It sets the
    /// [`DrainToken`], and cannot be undone.
    pub fn begin_shutdown(&mut self) {
        if self.core.proto.is_shutting_down() {
            return;
        }
        self.refuse_sessions();
        let (services, index) = (self.handlers.services.clone(), self.index);
        let accepted = services.accepted_in_drain();
        let has_services = !accepted.is_empty();
        self.core.proto.shut_down_except(&accepted);
        services.drain_token().set();
        if has_services {
            services.end_stalled_streams(index); // none yet
            self.context().every(STALL, move |_| services.end_stalled_streams(index));
        }
    }

    /// Answers all requests that have no answer: with [`courser_proto::Status::GraceEnded`], or with
    /// `ShuttingDown` if no handler was started. The answers of their handlers are dropped.
    /// [`Rpc::shutdown`] does so at the end of its grace. Visits every session.
    pub fn end_requests(&mut self) {
        self.shed_all();
        self.core.proto.end_unanswered();
    }

    /// Ends the open streams of typed services with an error that names the shutdown, also those
    /// whose items flow. [`Rpc::shutdown`] does so shortly before the end of its grace.
    pub fn end_streams(&mut self) {
        self.handlers.services.end_streams(self.index);
    }

    /// A token that is set when the shutdown begins, or when the endpoint is dropped: for services
    /// that end long calls early.
    pub fn drain_token(&self) -> DrainToken {
        self.handlers.services.drain_token().clone()
    }

    /// Whether the second step of [`Rpc::shutdown`] is complete, so that dropping the endpoint
    /// loses nothing. Visits every session.
    pub fn is_drained(&self) -> bool {
        self.core.proto.is_drained() && self.is_flushed() && self.messages_with_workers() == 0
    }

    /// The calls, requests and messages that dropping the endpoint now would not finish. Visits every
    /// session.
    pub fn left_behind(&self) -> ShutdownReport {
        ShutdownReport {
            calls: self.core.proto.outstanding_calls(),
            executing: self.core.proto.executing(),
            unacknowledged: self.core.proto.unacknowledged(),
            messages: self.core.proto.outstanding_messages(),
            with_workers: self.messages_with_workers(),
        }
    }
}
