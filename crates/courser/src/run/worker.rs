//! Workers: long-running handlers execute on threads of their own (`[eRPC §3.2]`, E10-E12).
//!
//! ```text
//! endpoint's thread                         pool of the nexus, "courser-worker-N"
//! dispatch: admit, copy small requests ---> pool::submit -> queue -> Work -> handler
//! on_mail: send_answers <------------------ origin::answer (Mailbox) <- Work::reply, refuse, drop
//! ```
//!
//! A request of one packet is copied into message memory, as the received frame is valid only
//! during the dispatch. A request of several packets moves without a copy (E28). For the protocol
//! the request is being executed: retransmissions are answered "in progress", and the answer is a
//! deferred one. So a long handler delays neither dispatch handlers nor credit returns (E12).
//!
//! Limits: queued jobs by `Config::worker_queue`, over all endpoints of the nexus; answers in
//! mailboxes by the number of submitted requests; answers handled per pass by the mailbox
//! (`control/mailbox.rs`).

mod dropping;
mod hand_over;
mod origin;
mod own;
mod owned;
mod pool;
mod queue;
#[cfg(test)]
mod tests;
mod virtual_time;
mod work;
mod workers;

use std::rc::Rc;
use std::sync::Arc;

use courser_net::Transport;
use courser_proto::Status;

use crate::control::mailbox::{Answer, AnswerBody};
use crate::core::context::Context;
use crate::core::handled::HandlerStats;
use crate::core::message::Request;
use crate::core::shares::{Entrance, Full, Place};
use crate::error::WorkerError;
use crate::machine::Thread;
use crate::run::endpoint::Rpc;
use origin::Origin;
use own::{Refused, own, place_for_message};
use pool::{Job, Registered};
use work::Incoming;

pub(crate) use dropping::drop_as;
pub(crate) use hand_over::HandOver;
pub(crate) use owned::{Arrived, asker, client};
pub(crate) use pool::Pool;
pub use pool::WorkerStats;
pub use work::Work;
pub(crate) use workers::Workers;

impl<T: Transport> Rpc<T> {
    /// Registers a handler that runs on the worker threads of the nexus, for request types that
    /// take longer than about a microsecond `[eRPC §3.2]`. It may block, and runs on several
    /// threads concurrently. It replaces an earlier handler of the type, including one of
    /// [`Rpc::on`], and is replaced in the same way; requests that were already submitted keep
    /// their handler.
    ///
    /// The first registration starts `Config::workers` threads. A request costs the endpoint's
    /// thread its copy (if it came in one packet), a short lock, and a system call only when a
    /// worker must be woken. When `Config::worker_queue` requests are queued, the next one is
    /// refused with [`Status::WorkersBusy`]. A queued request whose deadline passes is not started
    /// but answered with [`Status::DeadlineExceeded`]. A queued request whose client has cancelled
    /// it or is gone is not started either. A handler that panics fails only its own request
    /// ([`Status::Panicked`]).
    ///
    /// When the endpoint is dropped, queued requests are dropped. Running handlers continue; the
    /// drop does not wait for them.
    ///
    /// # Errors
    /// `Config::workers` is 0, or the system cannot start a thread.
    pub fn on_worker(
        &mut self,
        req_type: u16,
        handler: impl Fn(Work) + Send + Sync + 'static,
    ) -> Result<(), WorkerError> {
        let to = self.worker_handler(handler)?;
        let submit_request =
            move |cx: &mut Context<'_>, request: Request<'_>| submit_request(cx, request, &to);
        self.register(req_type, Box::new(submit_request));
        Ok(())
    }

    /// Registers a handler of one-way messages that runs on the worker threads, for types that take
    /// longer than about a microsecond. It replaces an earlier handler of the type, including one of
    /// [`Rpc::on_message`], and is replaced in the same way. There is nothing to answer: answers of
    /// its [`Work`] are ignored.
    ///
    /// Several workers take messages in the order in which they take requests, by arrival except
    /// under overload, and their handlers run concurrently. When `Config::worker_queue` requests and
    /// messages are queued, the next message is dropped and counted
    /// ([`HandlerStats::messages_busy`]): its sender is not notified. A queued message whose deadline
    /// passes is dropped too ([`WorkerStats::expired`]), and so are those that are queued when the
    /// endpoint is dropped ([`WorkerStats::abandoned`]); a graceful shutdown waits for them. Threads,
    /// costs and panics are as for [`Rpc::on_worker`].
    ///
    /// # Errors
    /// `Config::workers` is 0, or the system cannot start a thread.
    pub fn on_message_worker(
        &mut self,
        msg_type: u16,
        handler: impl Fn(Work) + Send + Sync + 'static,
    ) -> Result<(), WorkerError> {
        let to = self.worker_handler(handler)?;
        self.on_message(msg_type, move |cx, message| submit_message(cx, message, &to));
        Ok(())
    }

    /// Starts the workers, and prepares a handler for them.
    fn worker_handler(
        &mut self,
        handler: impl Fn(Work) + Send + Sync + 'static,
    ) -> Result<WorkerHandler, WorkerError> {
        self.workers.pool.start()?;
        let handler = Arc::new(Registered { origin: self.origin(), run: handler });
        let (pool, entrance) = (self.workers.pool.clone(), self.workers.entrance.clone());
        Ok(WorkerHandler { handler, pool, entrance })
    }

    /// The state of requests that leave this thread.
    fn origin(&mut self) -> Arc<Origin> {
        let origin = self.workers.origin.get_or_insert_with(|| {
            let (mailbox, arena) = (self.mailbox.clone(), self.core.proto.arena().clone());
            let clock = self.core.platform.clock(Thread::Workers);
            Arc::new(Origin::new(mailbox, arena, clock, self.index))
        });
        origin.clone()
    }

    /// The counters of this endpoint's handlers.
    pub fn handler_stats(&self) -> HandlerStats {
        let mut stats = self.core.handled;
        stats.panics += self.workers.panics();
        stats
    }

    /// Passes the answers of workers to the protocol; they are sent in this pass.
    pub(crate) fn send_answers(&mut self, answers: &mut Vec<Answer>) {
        for Answer { id, outcome } in answers.drain(..) {
            // Also after the session has ended: its number is reserved until all handlers have
            // answered.
            let gone = !self.core.proto.is_answerable(id);
            match outcome {
                // On an error the client has been sent a failure.
                AnswerBody::Response(m) => drop(self.core.proto.reply_msg(id, m)),
                AnswerBody::Status(status) => self.core.proto.reply_status(id, status),
            }
            self.core.handled.gone += u64::from(gone);
        }
    }

    /// Removes cancelled requests and requests of lost clients from the queue, without executing
    /// them. Returns whether there were any.
    pub(crate) fn shed_cancelled(&mut self, now_ns: u64) -> bool {
        let w = &mut self.workers;
        if w.search_due_ns().is_none_or(|due_ns| now_ns < due_ns) {
            return false;
        }
        w.search(now_ns);
        let Some(origin) = &w.origin else { return false };
        let shed = w.pool.shed(origin, |id| self.core.proto.is_cancelled(id));
        for &id in &shed {
            self.core.proto.reply_status(id, Status::Cancelled);
        }
        !shed.is_empty()
    }

    /// Removes all requests from the queue, without executing them, as the server shuts down.
    pub(crate) fn shed_all(&mut self) {
        let Some(origin) = &self.workers.origin else { return };
        for id in self.workers.pool.shed(origin, |_| true) {
            self.core.proto.reply_status(id, Status::ShuttingDown);
        }
    }

    /// One-way messages that workers have not finished.
    pub(crate) fn messages_with_workers(&self) -> usize {
        self.workers.origin.as_ref().map_or(0, |origin| origin.messages())
    }

    /// Detaches from the worker pool: later answers are dropped.
    pub(crate) fn detach_workers(&mut self) {
        if let Some(origin) = &self.workers.origin {
            self.mailbox.close();
            self.workers.pool.forget(origin);
        }
    }
}

/// A handler for workers, and how its requests reach it.
struct WorkerHandler {
    handler: Arc<Registered>,
    pool: Pool,
    entrance: Rc<Entrance>,
}

/// Step 13 of a packet's path, for worker handlers.
fn submit_request(cx: &mut Context<'_>, request: Request<'_>, to: &WorkerHandler) {
    let Some(id) = cx.request.take() else { return };
    // Before the copy, as refusing must be cheap under overload.
    let submitted = match to.entrance.take(&cx.core.proto, id.session()) {
        Ok(place) => submit(cx, Incoming::Request(id), request, place, to),
        Err(full) => Err(to.refuse(full)),
    };
    if let Err(refused) = submitted {
        refused.answer(cx, id);
    }
}

/// The same for worker handlers of one-way messages.
fn submit_message(cx: &mut Context<'_>, message: Request<'_>, to: &WorkerHandler) {
    let incoming = Incoming::Message(message.session);
    let submitted = match place_for_message(cx, &message, &to.entrance) {
        Ok(place) => submit(cx, incoming, message, place, to),
        Err(full) => Err(to.refuse(full)),
    };
    if let Err(refused) = submitted {
        refused.drop_message(cx);
    }
}

impl WorkerHandler {
    fn refuse(&self, full: Full) -> Refused {
        self.pool.count_refused();
        Refused::Busy(full)
    }
}

fn submit(
    cx: &Context<'_>,
    incoming: Incoming,
    request: Request<'_>,
    place: Place,
    to: &WorkerHandler,
) -> Result<(), Refused> {
    let (mut work, _) = own(cx, incoming, request, &to.handler.origin)?;
    work.queue(place);
    let job = Job { handler: to.handler.clone(), work };
    to.pool.submit(job).map_err(|job| {
        // Other endpoints filled the queue after the check.
        job.work.drop_unanswered();
        to.refuse(Full::All)
    })
}
