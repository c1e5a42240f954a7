//! Handlers that are futures.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use courser_net::Transport;
use courser_proto::Status;

use super::counted::{Method, Uncounted, Unwinding, Waiting};
use crate::core::Lender;
use crate::core::context::Context;
use crate::core::counting::LocalMethod;
use crate::core::lent;
use crate::core::message::{Reply, ReplyHandle, Request};
use crate::core::shares::{Full, Place};
use crate::counts::CallOutcome;
use crate::panics::caught;
use crate::rpc::Rpc;
use crate::service::miss;

impl<T: Transport> Rpc<T> {
    /// Registers an async handler of a request type, in place of an earlier one. It runs as one of
    /// [`Rpc::on`] does, until its future waits for the first time; from then on the future is a task
    /// of the endpoint. Its result is the answer. Handlers of requests of one session may run
    /// interleaved, and end in any order.
    ///
    /// The request is lent to the function, not to its future: what the future needs is decoded or
    /// copied before ([`Request::take`]).
    ///
    /// The future is dropped when its client cancels the call or is gone, or when the deadline of the
    /// call has passed at its client. Calls that the future makes have at most the time that is left
    /// to the request.
    ///
    /// A future that is ready when it is first polled costs no allocation, one that waits costs two.
    /// A panic is answered with [`Status::Panicked`].
    ///
    /// ```no_run
    /// # const GET: u16 = 1;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut rpc = courser::Nexus::bind("udp://0.0.0.0:31850")?.endpoint()?;
    /// let local = rpc.local();
    /// rpc.on_async(GET, move |request| {
    ///     let (local, key) = (local.clone(), request.to_vec());
    ///     async move {
    ///         local.sleep(std::time::Duration::from_millis(1)).await;
    ///         key
    ///     }
    /// });
    /// # Ok(()) }
    /// ```
    pub fn on_async<F, H>(&mut self, req_type: u16, mut handler: H)
    where
        H: FnMut(Request<'_>) -> F + 'static,
        F: Future + 'static,
        F::Output: Reply,
    {
        self.on_async_in(req_type, Uncounted, move |_, request| handler(request));
    }

    /// [`Rpc::on_async`] for a function that uses the endpoint. `method`: it is counted.
    pub(super) fn on_async_in<F, H, M>(&mut self, req_type: u16, method: M, mut handler: H)
    where
        M: Method,
        H: FnMut(&Context<'_>, Request<'_>) -> F + 'static,
        F: Future + 'static,
        F::Output: Reply,
    {
        // The place of a future that was ready is used for the next one.
        let mut spare: Option<Pin<Box<Option<F>>>> = None;
        let lender = self.core.lender.clone();
        self.on(req_type, move |cx, request| {
            let expires_ns = request.expires_ns;
            let unwinding = Unwinding(method.get().map(|method| &**method));
            let future = handler(cx, request);
            let mut place = spare.take().unwrap_or_else(|| Box::pin(None));
            place.as_mut().set(Some(future));
            let polled = first_poll(cx, &lender, &mut place, expires_ns);
            unwinding.ended();
            match polled {
                Poll::Ready(reply) => {
                    if let Some(reply) = reply {
                        if let Some(method) = method.get() {
                            cx.core.count_ended(method, reply.outcome());
                        }
                        cx.reply(reply);
                    }
                    place.as_mut().set(None);
                    spare = Some(place);
                }
                Poll::Pending => {
                    let waiting = Waiting::of(cx, method.get(), expires_ns);
                    suspend(cx, req_type, place, expires_ns, waiting);
                }
            }
        });
    }

    /// Registers an async handler of one-way messages ([`Rpc::on_message`]), in place of an earlier
    /// one: see [`Rpc::on_async`]. Its future is not dropped when the client is gone.
    ///
    /// At most 16,384 futures of messages wait at an endpoint, in which clients and addresses have
    /// shares, as they have in the memory of large messages. Messages beyond are dropped and counted
    /// ([`crate::HandlerStats::messages_busy`]).
    pub fn on_message_async<F, H>(&mut self, msg_type: u16, mut handler: H)
    where
        H: FnMut(Request<'_>) -> F + 'static,
        F: Future<Output = ()> + 'static,
    {
        self.on_message_async_in(msg_type, Uncounted, move |_, message| handler(message));
    }

    /// [`Rpc::on_message_async`] for a function that uses the endpoint.
    pub(super) fn on_message_async_in<F, H, M>(&mut self, msg_type: u16, method: M, mut handler: H)
    where
        M: Method,
        H: FnMut(&Context<'_>, Request<'_>) -> F + 'static,
        F: Future<Output = ()> + 'static,
    {
        let mut spare: Option<Pin<Box<Option<F>>>> = None;
        let lender = self.core.lender.clone();
        self.on_message(msg_type, move |cx, message| {
            let (session, expires_ns) = (message.session, message.expires_ns);
            if let Err(full) = cx.core.tasks.messages.would_refuse(&cx.core.proto, session) {
                return refused(cx, method.get(), full);
            }
            let held = message.held();
            let unwinding = Unwinding(method.get().map(|method| &**method));
            let future = handler(cx, message);
            let mut place = spare.take().unwrap_or_else(|| Box::pin(None));
            place.as_mut().set(Some(future));
            let polled = first_poll(cx, &lender, &mut place, expires_ns);
            unwinding.ended();
            if polled.is_ready() {
                if let Some(method) = method.get() {
                    cx.core.count_ended(method, CallOutcome::Ok);
                }
                place.as_mut().set(None);
                spare = Some(place);
                return;
            }
            match cx.core.tasks.messages.take_with_memory(&cx.core.proto, session, held) {
                Ok(share) => {
                    // The future is not dropped at the deadline.
                    let counted = (share, Waiting::of(cx, method.get(), u64::MAX));
                    suspend_message(cx, msg_type, place, expires_ns, counted);
                }
                Err(full) => refused(cx, method.get(), full),
            }
        });
    }
}

/// Counts a message for which there is no place.
#[cold]
fn refused(cx: &mut Context<'_>, method: Option<&Rc<LocalMethod>>, full: Full) {
    if let Some(method) = method {
        method.cells.refuse(CallOutcome::Overload);
    }
    cx.core.handled.message_refused(full);
}

/// Polls a handler's future for the first time.
#[inline]
fn first_poll<F: Future>(
    cx: &mut Context<'_>,
    lender: &Lender,
    place: &mut Pin<Box<Option<F>>>,
    expires_ns: u64,
) -> Poll<Option<F::Output>> {
    let at = cx.core.tasks.next_slot();
    cx.core.poll_in(lender, at, expires_ns, |task| match place.as_mut().as_pin_mut() {
        Some(future) => future.poll(task).map(Some),
        None => Poll::Ready(None),
    })
}

/// Makes the future of a message a task.
#[cold]
fn suspend_message<F>(
    cx: &mut Context<'_>,
    msg_type: u16,
    mut place: Pin<Box<Option<F>>>,
    expires_ns: u64,
    (share, mut waiting): (Place, Option<Waiting>),
) where
    F: Future<Output = ()> + 'static,
{
    let lender = cx.core.lender.clone();
    let task = poll_fn(move |task| {
        let _counts = &share; // until the task is dropped
        let Some(future) = place.as_mut().as_pin_mut() else { return Poll::Ready(()) };
        let mut polled = Poll::Ready(());
        let mut panicked = caught("async message", msg_type, || polled = future.poll(task));
        if polled.is_ready() {
            panicked |= caught("async message", msg_type, || place.as_mut().set(None));
        }
        lent::with(&lender, |core| core.handled.panics += u64::from(panicked));
        if polled.is_ready() {
            let outcome = if panicked { CallOutcome::Panicked } else { CallOutcome::Ok };
            if panicked {
                miss(outcome);
            }
            ended(&lender, &mut waiting, outcome);
        }
        polled
    });
    cx.core.tasks.install(Box::pin(task), None, expires_ns);
}

/// Counts a handler that has waited, if it is counted.
fn ended(lender: &Lender, waiting: &mut Option<Waiting>, outcome: CallOutcome) {
    if let Some(waiting) = waiting {
        waiting.end(lent::with(lender, |core| core.now_ns()), outcome);
    }
}

/// Makes the future a task.
#[cold]
fn suspend<F>(
    cx: &mut Context<'_>,
    req_type: u16,
    mut place: Pin<Box<Option<F>>>,
    expires_ns: u64,
    mut waiting: Option<Waiting>,
) where
    F: Future + 'static,
    F::Output: Reply,
{
    // Dropped with the future, it answers the request with an error.
    let Some(handle) = cx.defer() else { return };
    let (id, lender) = (handle.id, cx.core.lender.clone());
    let mut handle = Some(handle);
    let task = poll_fn(move |task| {
        let mut polled = Poll::Ready(None);
        let panicked = caught("async", req_type, || {
            if let Some(future) = place.as_mut().as_pin_mut() {
                polled = future.poll(task).map(Some);
            }
        });
        if polled.is_pending() {
            return Poll::Pending;
        }
        let outcome = match &polled {
            Poll::Ready(Some(reply)) => reply.outcome(),
            _ => CallOutcome::Panicked,
        };
        ended(&lender, &mut waiting, outcome);
        // Encoding the answer and dropping the future run code of the application too.
        let failed = caught("async", req_type, || {
            if let (Poll::Ready(reply), Some(handle)) = (polled, handle.take()) {
                lent::with(&lender, |core| answer(core, handle, reply));
            }
        });
        let spiteful = caught("async", req_type, || place.as_mut().set(None));
        if panicked | failed | spiteful {
            lent::with(&lender, |core| core.handled.panics += 1);
        }
        Poll::Ready(())
    });
    cx.core.tasks.install(Box::pin(task), Some(id), expires_ns);
}

fn answer(core: &mut crate::core::Core, handle: ReplyHandle, reply: Option<impl Reply>) {
    let cx = &mut Context { core, request: None };
    match reply {
        // The client gets the error.
        Some(reply) => drop(cx.reply_to(handle, reply)),
        None => {
            cx.core.proto.reply_status(handle.id, Status::Panicked);
            handle.settle();
        }
    }
}
