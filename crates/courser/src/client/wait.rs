//! The futures of calls and one-way messages.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use courser_buf::MsgBuf;

use super::blocking::block_on;
use super::endpoint::{self, Next};
use super::{Client, calls, misplaced};
use crate::channel::call::{Call, Outcome, Target};
use crate::core::deadline::{earliest, inherited};
use crate::error::failure::CallFailure;
use crate::platform::cpus;
use crate::service::{CallOptions, MethodId};

/// Checks for a result that a blocking call makes before its thread sleeps: some 20 us.
const SPINS: u32 = 1_000;

/// A call or message on its way.
struct Submission {
    client: Client,
    stage: Stage,
}

enum Stage {
    New {
        method: MethodId,
        message: MsgBuf,
        options: CallOptions,
        one_way: bool,
    },
    /// A pause that has not begun.
    Pause(Duration),
    Submitted(Arc<Call>),
    Over,
}

impl Submission {
    fn new(client: Client, method: MethodId, message: MsgBuf, one_way: bool) -> Self {
        let stage = Stage::New { method, message, options: CallOptions::default(), one_way };
        Submission { client, stage }
    }

    /// Changes the options of a call that has not begun.
    fn set(&mut self, change: impl FnOnce(&mut CallOptions)) {
        if let Stage::New { options, .. } = &mut self.stage {
            change(options);
        }
    }

    /// Submits the call on the first poll.
    fn poll(&mut self, waker: &Waker) -> Poll<Outcome> {
        let next = match &self.stage {
            Stage::Submitted(call) if call.is_done() => Next::Wait,
            Stage::Submitted(call) => {
                // It is not woken for what it finds itself.
                drop(call.take_waker());
                self.client.inner.endpoint().drive(call)
            }
            Stage::New { .. } | Stage::Pause(_) => match self.submit() {
                Ok(next) => next,
                Err(e) => return Poll::Ready(Err(e)),
            },
            Stage::Over => panic!("a call was polled after its end"),
        };
        let Stage::Submitted(call) = &self.stage else { return Poll::Pending };
        let outcome = call.poll(waker);
        if outcome.is_ready() {
            self.client.inner.endpoint().ended(call);
            self.stage = Stage::Over;
        } else if next == Next::Yield {
            endpoint::yield_task(waker);
        }
        outcome
    }

    fn submit(&mut self) -> Result<Next, CallFailure> {
        let (method, message, options, one_way) =
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::New { method, message, options, one_way } => {
                    (method, message, options, one_way)
                }
                Stage::Pause(after) => return self.begin_pause(after),
                submitted => {
                    self.stage = submitted;
                    return Ok(Next::Wait);
                }
            };
        let inner = &*self.client.inner;
        // An instant that the clock cannot represent is no deadline.
        let own = options.deadline.and_then(|after| inner.endpoint().now().checked_add(after));
        let of_handler = if options.is_detached { None } else { inherited() };
        let expires = earliest(own, of_handler);
        let wait_for_ready = options.wait_for_ready.unwrap_or(inner.limits.wait_for_ready);
        let target = Target { link: inner.link, method, one_way, wait_for_ready, expires };
        let call = Arc::new(Call::new(target, message, None));
        let next = inner.endpoint().submit(&call)?;
        self.stage = Stage::Submitted(call);
        Ok(next)
    }

    /// Submits a pause as a call of no client, which the thread of the endpoint ends at its time.
    #[cold]
    fn begin_pause(&mut self, after: Duration) -> Result<Next, CallFailure> {
        let (link, method) = (calls::PAUSES, MethodId::of_pause(after));
        let target = Target { link, method, one_way: false, wait_for_ready: true, expires: None };
        let call = Arc::new(Call::new(target, self.client.alloc_recycled(0)?, None));
        let next = self.client.inner.endpoint().submit(&call)?;
        self.stage = Stage::Submitted(call);
        Ok(next)
    }

    /// Blocks the thread: it checks for the result for a while, and then sleeps.
    fn wait(mut self) -> Outcome {
        self.submit()?;
        if let Stage::Submitted(call) = &self.stage {
            let endpoint = self.client.inner.endpoint();
            while !call.is_done() && endpoint.drive(call) == Next::Yield {}
            // If another thread drives: with two CPUs it would take that of its endpoint or server.
            let spins = if cpus() > 2 { SPINS } else { 0 };
            for _ in 0..spins {
                if call.is_done() {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        block_on(std::future::poll_fn(|cx| self.poll(cx.waker())))
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        if let Stage::Submitted(call) = &self.stage {
            self.client.inner.endpoint().drop_call(call);
        }
    }
}

/// Generates the settings of a call or message, with the given comments, and its `Debug`.
macro_rules! settings {
    (
        impl $type:ident
        $(#[$of_deadline:meta])* deadline
        $(#[$of_wait_for_ready:meta])* wait_for_ready
    ) => {
        impl $type {
            $(#[$of_deadline])*
            pub fn deadline(mut self, after: impl Into<Option<Duration>>) -> Self {
                let deadline = after.into();
                self.submission.set(|options| options.deadline = deadline);
                self
            }

            $(#[$of_wait_for_ready])*
            pub fn wait_for_ready(mut self, waits: bool) -> Self {
                self.submission.set(|options| options.wait_for_ready = Some(waits));
                self
            }

            pub(super) fn options(mut self, new: CallOptions) -> Self {
                self.submission.set(|options| *options = new);
                self
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($type))
                    .field("client", &self.submission.client)
                    .finish_non_exhaustive()
            }
        }
    };
}

/// A call of [`Client::call`]: a future of the response, which may be dropped at any time. That
/// cancels the call, and the server's handler if it is a future ([`crate::Server`]).
///
/// Polled after its end, it panics.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use std::time::Duration;
///
/// use courser::{Client, Executed};
///
/// let client = Client::connect(&uri).await?;
/// let call = client.call(ECHO, client.alloc(8)?).deadline(Duration::from_secs(5));
/// assert_eq!(call.await?.len(), 8);
/// // The server has no handler of this type.
/// let error = client.call(7, client.alloc(8)?).await.unwrap_err();
/// assert_eq!(error.executed(), Executed::Never);
/// # Ok(()) }) }
/// ```
#[must_use = "a call does nothing unless it is awaited, or waited for with `wait`"]
pub struct ClientCall {
    submission: Submission,
}

settings! {
    impl ClientCall
    /// Ends the call within `after` from its start, with
    /// [`crate::CallError::DeadlineExceeded`]: see [`crate::CallBuilder::deadline`]. A call that a
    /// handler of a [`crate::Server`] makes while it is polled also ends at the handler's deadline.
    deadline
    /// Without a connection to the server, the call waits for one until its deadline, or for
    /// [`crate::Config::connect_timeout`] if it has none. By default (`false`, or
    /// [`crate::ClientBuilder::wait_for_ready`]) it fails with [`CallFailure::NotConnected`] as soon
    /// as a connect has failed: [`Client`] has the details. Either way it has not run.
    wait_for_ready
}

impl ClientCall {
    pub(super) fn new(client: Client, method: MethodId, request: MsgBuf) -> Self {
        ClientCall { submission: Submission::new(client, method, request, false) }
    }

    /// Ends after this time, with an error.
    pub(super) fn pause(client: Client, after: Duration) -> Self {
        ClientCall { submission: Submission { client, stage: Stage::Pause(after) } }
    }

    /// Blocks the thread until the call has ended. Not for tasks: a runtime's thread would run no
    /// other task meanwhile. Spins for up to some 20 us before it sleeps.
    ///
    /// # Errors
    /// The call has no response.
    pub fn wait(self) -> Result<MsgBuf, CallFailure> {
        self.submission.wait()?.ok_or_else(misplaced)
    }
}

impl Future for ClientCall {
    type Output = Result<MsgBuf, CallFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.submission.poll(cx.waker()).map(|outcome| outcome?.ok_or_else(misplaced))
    }
}

/// A one-way message of [`Client::send`]: a future that ends when the message is with the endpoint,
/// which sends it until the server has it or the session ends. Dropped before that, it is not sent.
///
/// Polled after its end, it panics.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// let client = courser::Client::connect(&uri).await?;
/// client.send(ECHO, client.alloc(8)?).await?;
/// // A plain thread blocks until there is room.
/// client.send(ECHO, client.alloc(8)?).wait()?;
/// # Ok(()) }) }
/// ```
#[must_use = "a message is not sent unless it is awaited, or waited for with `wait`"]
pub struct ClientSend {
    submission: Submission,
}

settings! {
    impl ClientSend
    /// The message is not delivered later than `after` from now: see
    /// [`crate::MessageBuilder::deadline`].
    deadline
    /// Without a connection to the server, the message waits for one: see
    /// [`ClientCall::wait_for_ready`].
    wait_for_ready
}

impl ClientSend {
    pub(super) fn new(client: Client, method: MethodId, message: MsgBuf) -> Self {
        ClientSend { submission: Submission::new(client, method, message, true) }
    }

    /// Blocks the thread until there is room for the message.
    ///
    /// # Errors
    /// The message was not sent.
    pub fn wait(self) -> Result<(), CallFailure> {
        self.submission.wait().map(drop)
    }
}

impl Future for ClientSend {
    type Output = Result<(), CallFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.submission.poll(cx.waker()).map(|outcome| outcome.map(drop))
    }
}
