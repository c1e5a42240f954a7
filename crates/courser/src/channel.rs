//! The connection below a typed client, as the client uses it.

pub(crate) mod call;
pub(crate) mod greeting;
pub(crate) mod link;
pub(crate) mod method;
pub(crate) mod opening;

use std::future::Future;
use std::num::NonZeroU16;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use courser_buf::{AllocError, Arena, MsgBuf};
use courser_proto::{CallError, Executed};

use crate::channel::greeting::Greeting;
use crate::channel::method::{MethodId, ServiceInfo};
use crate::counts::ServiceCells;
use crate::error::failure::CallFailure;
use crate::error::hello::HelloError;
use crate::platform::{Clock, random_u64};

/// The end of a [`Channel::pause`] at its time.
pub(crate) const PAUSED: CallFailure =
    CallFailure::Failed(CallError::DeadlineExceeded(Executed::Never));

/// Settings of one call, message or stream.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use std::time::Duration;
///
/// use courser::service::{CallOptions, Channel};
///
/// // For connections of your own; users of typed clients call `.deadline(..)` and `.wait_for_ready(..)`.
/// let mut options = CallOptions::default();
/// options.deadline = Some(Duration::from_secs(5));
/// let client = courser::Client::connect(&uri).await?;
/// assert_eq!(Channel::call(&client, ECHO, client.alloc(8)?, options).await?.len(), 8);
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CallOptions {
    /// See [`crate::CallBuilder::deadline`]; `None`: no deadline, or that of the handler that makes
    /// the call.
    pub deadline: Option<Duration>,
    /// See [`crate::ClientCall::wait_for_ready`]; `None`: the setting of the connection. Only
    /// connections that connect again by themselves have it.
    pub wait_for_ready: Option<bool>,
    /// The call does not end at the deadline of the handler that polls it, as the calls of a stream do not,
    /// which several handlers may poll.
    pub(crate) is_detached: bool,
}

impl CallOptions {
    /// A call of a stream besides the open call, which has the deadline: it ends with that one. It never
    /// waits for another connection, as it has a meaning on this one only.
    pub(crate) const OF_STREAM: CallOptions =
        CallOptions { deadline: None, wait_for_ready: Some(false), is_detached: true };
}

/// A response as a typed call reads it.
#[derive(Debug)]
#[doc(hidden)]
pub enum Answer<'a> {
    /// Where it was received, and memory for a copy of it.
    Shown(&'a [u8], &'a Arena),
    /// In a message of its own.
    Owned(MsgBuf),
}

/// The clock of a connection.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct CallClock(pub(crate) Clock);

impl Default for CallClock {
    /// The clock of the system.
    fn default() -> Self {
        CallClock(Clock::System)
    }
}

/// A connection to a server, on which typed clients call: a session of this thread's endpoint, or a
/// handle for any thread.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::service::Channel;
///
/// /// A function for clients on any connection: [`courser::Client`], [`courser::Session`], or another one.
/// async fn has<C: Channel>(store: &StoreClient<C>, key: &str) -> bool {
///     store.channel().is_usable() && store.get(key.to_owned()).await.is_ok()
/// }
///
/// let store = StoreClient::connect(&uri).await?;
/// assert!(has(&store, "apple").await && !has(&store, "plum").await);
/// # Ok(()) }) }
/// ```
pub trait Channel: Clone + 'static {
    /// A call in progress. Dropping it cancels the call.
    type Call<'a>: Future<Output = Result<MsgBuf, CallFailure>> + 'a
    where
        Self: 'a;
    /// A one-way message that waits for room.
    type Sent<'a>: Future<Output = Result<(), CallFailure>> + 'a
    where
        Self: 'a;
    /// A session that is being connected.
    type Another<'a>: Future<Output = Result<Self, CallFailure>> + 'a
    where
        Self: 'a;
    /// A call that keeps its connection alive: those of a stream outlive the function that opened
    /// it. Usually a `Pin<Box<dyn Future>>`, `Send` if the connection is.
    type OwnedCall: Future<Output = Result<MsgBuf, CallFailure>> + Unpin + 'static;

    /// Allocates a message of `len` bytes, with the contents of earlier messages.
    ///
    /// # Errors
    /// The memory limit of the endpoint is reached.
    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError>;

    /// The largest message that can be sent: [`crate::Config::max_msg_size`].
    fn limit(&self) -> usize {
        usize::MAX
    }

    /// Calls.
    fn call(&self, req_type: u16, request: MsgBuf, options: CallOptions) -> Self::Call<'_>;

    /// [`Channel::call`] with a future that has a clone of this connection.
    fn call_owned(&self, req_type: u16, request: MsgBuf, options: CallOptions) -> Self::OwnedCall;

    /// Sends a one-way message when there is room for it.
    fn send(&self, msg_type: u16, message: MsgBuf, options: CallOptions) -> Self::Sent<'_>;

    /// Connects another session with the same server. A stream has a session of its own, so that a
    /// reader that stalls delays no other call. The options are those of the stream.
    fn another(&self, options: CallOptions) -> Self::Another<'_>;

    /// A connection that connects again by itself, or has several sessions, asks the server of each of
    /// them for a service. Returns the number of the service at this connection, for [`MethodId`].
    #[doc(hidden)]
    fn adopt(&self, _: Greeting) -> Option<NonZeroU16> {
        None
    }

    /// [`Channel::call`] of a method.
    #[doc(hidden)]
    #[inline]
    fn call_method(
        &self,
        method: MethodId,
        request: MsgBuf,
        options: CallOptions,
    ) -> Self::Call<'_> {
        self.call(method.req_type(), request, options)
    }

    /// Polls a call, and passes its response to `read`.
    #[doc(hidden)]
    #[inline]
    fn poll_call<'a, R>(
        call: Pin<&mut Self::Call<'a>>,
        cx: &mut Context<'_>,
        read: impl FnOnce(Answer<'_>) -> R,
    ) -> Poll<Result<R, CallFailure>>
    where
        Self: 'a,
    {
        call.poll(cx).map_ok(|response| read(Answer::Owned(response)))
    }

    /// [`Channel::call_owned`] of a method.
    #[doc(hidden)]
    fn open_method(
        &self,
        method: MethodId,
        request: MsgBuf,
        options: CallOptions,
    ) -> Self::OwnedCall {
        self.call_owned(method.req_type(), request, options)
    }

    /// [`Channel::send`] to a method.
    #[doc(hidden)]
    fn send_method(
        &self,
        method: MethodId,
        message: MsgBuf,
        options: CallOptions,
    ) -> Self::Sent<'_> {
        self.send(method.req_type(), message, options)
    }

    /// The clock of this connection.
    #[doc(hidden)]
    fn clock(&self) -> CallClock {
        CallClock::default()
    }

    /// The time that is left to the handler that makes calls on this connection now. `None`: it has no
    /// deadline, or this is no handler.
    #[doc(hidden)]
    fn time_left(&self) -> Option<Duration> {
        None
    }

    /// Calls that the session executes at a time: the smaller one of [`crate::Config::slots`] of both
    /// ends. `None`: it is not known.
    #[doc(hidden)]
    fn slots(&self) -> Option<u32> {
        None
    }

    /// 64 random bits; not for secrets.
    #[doc(hidden)]
    fn random(&self) -> u64 {
        random_u64()
    }

    /// A future that ends after this time of the connection's clock, with
    /// [`courser_proto::CallError::DeadlineExceeded`]; any other result ends a call without its retry.
    /// `None`: the connection has no timers, and calls are not repeated on it.
    #[doc(hidden)]
    fn pause(&self, _: Duration) -> Option<Self::OwnedCall> {
        None
    }

    /// Whether calls may still succeed. A session that has ended is not used for another stream.
    fn is_usable(&self) -> bool {
        true
    }

    /// Calls of typed methods are counted at this client.
    #[doc(hidden)]
    const COUNTS: bool = false;

    /// The counters of the methods of a service; `None`: they are not counted.
    #[doc(hidden)]
    fn counts(&self, _: &ServiceInfo) -> Option<ServiceCells> {
        None
    }

    /// A reading of a clock for latencies, for [`Channel::since_ns`].
    #[doc(hidden)]
    fn reading(&self) -> u64 {
        0
    }

    /// The time since a reading, ns.
    #[doc(hidden)]
    fn since_ns(&self, _begun: u64) -> u64 {
        0
    }
}

/// A connection of a plain thread, which can block.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::service::BlockingChannel;
///
/// /// For plain threads.
/// fn len<C: BlockingChannel>(store: &StoreClient<C>, key: &str) -> Option<u64> {
///     store.len(key.to_owned()).wait().ok()
/// }
///
/// assert_eq!(len(&StoreClient::connect(&uri).await?, "apple"), Some(5));
/// # Ok(()) }) }
/// ```
pub trait BlockingChannel: Channel {
    /// Runs a future of this connection to its end.
    fn wait<F: Future>(&self, future: F) -> F::Output;
}

/// A connection that is made from an address alone.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::service::Dial;
///
/// // `StoreClient::connect` of a generated client is these two steps.
/// let client = courser::Client::dial(&uri).await?;
/// let store = StoreClient::new(client).await?;
/// assert_eq!(store.len("apple".to_owned()).await?, 5);
/// # Ok(()) }) }
/// ```
pub trait Dial: Channel {
    /// Connects.
    fn dial(uri: &str) -> impl Future<Output = Result<Self, HelloError>> + Send;
}
