//! Workers: handlers that take long run beside the endpoint's thread (`[eRPC §3.2]`, E10-E12).
//!
//! ```text
//! endpoint's thread                         pool of the nexus, "courser-worker-N"
//! dispatch: admit, copy small requests ---> pool::submit -> queue -> Work -> handler
//! on_mail: give_answers <------------------ home::answer (Mailbox) <- Work::reply, refuse, drop
//! ```
//!
//! A request of one packet is copied into message memory, since the received frame is lent only
//! for the length of the dispatch; one of several packets moves without a copy (E28). To the
//! protocol the request is one that is still being handled: retransmissions of it are answered
//! "in progress", and it is answered like a deferred one. So a long handler delays neither
//! dispatch handlers nor credit returns (E12).
//!
//! What is bounded: jobs that wait, by `Config::worker_queue` over all endpoints of the nexus;
//! answers on their way back, by the requests that were handed out, one each; answers given to
//! the protocol per pass, by the mailbox (`control/mailbox.rs`).

mod home;
mod pool;
mod queue;
#[cfg(test)]
mod tests;
mod virtual_time;
mod work;

use std::sync::Arc;

use courser_buf::MsgBuf;
use courser_net::Transport;
use courser_proto::{Body, Status};

use crate::context::Context;
use crate::error::WorkerError;
use crate::machine::Thread;
use crate::message::Request;
use crate::rpc::Rpc;
use home::{Home, Outcome};
use pool::{Job, Registered};

pub(crate) use home::Answer;
pub(crate) use pool::Pool;
pub use pool::WorkerStats;
pub(crate) use queue::Term;
pub use work::Work;

/// What happened to requests on the way to or from the handlers of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct HandlerStats {
    /// Handlers that panicked, of either kind.
    pub panics: u64,
    /// Requests refused with [`Status::WorkersBusy`]: the workers' queue was full.
    pub workers_busy: u64,
    /// Requests refused with [`Status::NoMemory`]: none for the copy that a worker gets.
    pub no_memory: u64,
    /// Answers of workers to requests whose session was gone.
    pub gone: u64,
}

/// An endpoint's end of the pool.
#[derive(Debug)]
pub(crate) struct Workers {
    pool: Pool,
    /// Since the first [`Rpc::on_worker`].
    home: Option<Arc<Home>>,
    /// [`courser_proto::Endpoint::given_up`] when the queue was last searched, and when that was.
    seen_given_up: u64,
    searched_ns: u64,
}

/// Searching the queue for requests that were given up walks all of it: no more often than this.
const SEARCH_EVERY_NS: u64 = 1_000_000;

impl Workers {
    pub(crate) fn new(pool: Pool) -> Self {
        Workers { pool, home: None, seen_given_up: 0, searched_ns: 0 }
    }

    /// Worker handlers that panicked.
    fn panics(&self) -> u64 {
        self.home.as_ref().map_or(0, |home| home.panics())
    }
}

impl<T: Transport> Rpc<T> {
    /// Registers a handler that runs on the worker threads of the nexus, for request types that
    /// take longer than a microsecond or so `[eRPC §3.2]`; it may block. It runs on several
    /// threads at the same time. Replaces an earlier handler of the type, also one of
    /// [`Rpc::on`], and is replaced in the same way; requests that were handed out stay with
    /// theirs.
    ///
    /// The first registration starts the threads, `Config::workers`. A request costs the
    /// endpoint's thread its copy (if it came in one packet), a short lock, and a system call only
    /// when a worker must be woken. When `Config::worker_queue` requests wait, the next is refused
    /// with [`Status::WorkersBusy`]; one whose deadline passes while it waits is not started but
    /// answered with [`Status::DeadlineExceeded`], and one whose client has cancelled it or is gone
    /// is not started either. A handler that panics costs nothing but its
    /// own request ([`Status::Panicked`]).
    ///
    /// When the endpoint is dropped, queued requests are dropped, and those in handlers go on; the
    /// drop does not wait for them.
    ///
    /// # Errors
    /// `Config::workers` is 0, or the system refuses a thread.
    pub fn on_worker(
        &mut self,
        req_type: u16,
        handler: impl Fn(Work) + Send + Sync + 'static,
    ) -> Result<(), WorkerError> {
        self.workers.pool.start()?;
        let home = self.workers.home.get_or_insert_with(|| {
            let (mailbox, arena) = (self.mailbox.clone(), self.core.proto.arena().clone());
            Arc::new(Home::new(
                mailbox,
                arena,
                self.core.platform.clock(Thread::Workers),
                self.index,
            ))
        });
        let handler: Arc<Registered> = Arc::new(Registered { home: home.clone(), run: handler });
        let pool = self.workers.pool.clone();
        let hand_out = move |cx: &mut Context<'_>, request: Request<'_>| {
            hand_out(cx, request, &handler, &pool)
        };
        self.register(req_type, Box::new(hand_out));
        Ok(())
    }

    /// What happened to requests on the way to or from handlers.
    pub fn handler_stats(&self) -> HandlerStats {
        let mut stats = self.core.handled;
        stats.panics += self.workers.panics();
        stats
    }

    /// Gives the answers of workers to the protocol; they leave in this pass.
    pub(crate) fn give_answers(&mut self, answers: &mut Vec<Answer>) {
        for Answer { id, outcome } in answers.drain(..) {
            // Also without a receiver: the session's number is kept until all handlers have answered.
            let gone = !self.core.proto.is_answerable(id);
            match outcome {
                // A failure has reached the client.
                Outcome::Response(m) => drop(self.core.proto.reply_msg(id, m)),
                Outcome::Status(status) => self.core.proto.reply_status(id, status),
            }
            self.core.handled.gone += u64::from(gone);
        }
    }

    /// Whether [`Rpc::shed_given_up`] may find something.
    #[inline]
    pub(crate) fn may_shed(&self) -> bool {
        self.core.proto.given_up() != self.workers.seen_given_up && self.workers.home.is_some()
    }

    /// Takes requests out of the queue whose clients have cancelled them or are gone: they are
    /// never executed. Whether there were any.
    pub(crate) fn shed_given_up(&mut self, now_ns: u64) -> bool {
        let given_up = self.core.proto.given_up();
        let w = &mut self.workers;
        if given_up == w.seen_given_up || now_ns - w.searched_ns < SEARCH_EVERY_NS {
            return false;
        }
        let Some(home) = &w.home else { return false };
        (w.seen_given_up, w.searched_ns) = (given_up, now_ns);
        let shed = w.pool.shed(home, |id| self.core.proto.is_cancelled(id));
        for &id in &shed {
            self.core.proto.reply_status(id, Status::Cancelled);
        }
        !shed.is_empty()
    }

    /// When the queue is to be searched because the search before was too recent, ns.
    pub(crate) fn search_due_ns(&self) -> Option<u64> {
        let w = &self.workers;
        let due = w.home.is_some() && self.core.proto.given_up() != w.seen_given_up;
        due.then(|| w.searched_ns.saturating_add(SEARCH_EVERY_NS))
    }

    /// Detaches from the worker pool: its answers have no receiver any more.
    pub(crate) fn leave_workers(&mut self) {
        if let Some(home) = &self.workers.home {
            self.mailbox.close();
            self.workers.pool.forget(home);
        }
    }
}

/// Step 13 of a packet's path, for worker handlers.
fn hand_out(cx: &mut Context<'_>, request: Request<'_>, handler: &Arc<Registered>, pool: &Pool) {
    let Some(id) = cx.request.take() else { return };
    let refused = |cx: &mut Context<'_>| {
        cx.core.handled.workers_busy += 1;
        pool.count_refused();
        cx.core.proto.reply_status(id, Status::WorkersBusy);
    };
    // Before the copy: under overload a refusal must be cheap.
    if pool.is_full() {
        return refused(cx);
    }
    let deadline_ns = request.deadline_ns();
    let Request { body, req_type, .. } = request;
    let Some(body) = owned(body, cx) else {
        cx.core.handled.no_memory += 1;
        cx.core.proto.reply_status(id, Status::NoMemory);
        return;
    };
    let term = deadline_ns.and_then(|ns| cx.core.term(ns));
    let work = Work::new(id, req_type, body, term, handler.home.clone());
    if let Err(job) = pool.submit(Job { handler: handler.clone(), work }) {
        // Other endpoints were faster.
        job.work.disown();
        refused(cx);
    }
}

fn owned(body: Body<'_>, cx: &Context<'_>) -> Option<MsgBuf> {
    match body {
        Body::Owned(m) => Some(m),
        Body::Borrowed(bytes) => {
            let mut m = cx.alloc(bytes.len()).ok()?;
            m.copy_from_slice(bytes);
            Some(m)
        }
    }
}
