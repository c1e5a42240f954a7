//! Typed calls of a client.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use courser_buf::MsgBuf;

mod marked;
mod started;

pub use marked::{Answered, AnsweredCall, MarkedCall, MarkedMessage};

use started::{Ended, Started};

use super::answer;
use super::binding::Binding;
use super::codec::{Decode, Encode};
use super::counted::CountedCall;
use super::stream::{OpenDuplex, OpenStream, OpenUpload, Pool};
use super::writer;
use crate::channel::method::ServiceInfo;
use crate::channel::{BlockingChannel, CallOptions, Channel};
use crate::counts::MethodStats;
use crate::error::hello::HelloError;
use crate::error::service::{EncodeError, RpcError};
use crate::service::binding::ChannelMemory;

/// Types that a value has to do with, without holding any.
pub(super) type Types<T> = PhantomData<fn() -> T>;

/// The part of generated clients that does not depend on the service. Methods have the places that
/// they have in [`ServiceInfo::methods`].
#[doc(hidden)]
pub struct TypedClient<C> {
    channel: C,
    service: Arc<Binding>,
    pool: Arc<Pool<C>>,
}

impl<C: Channel> Clone for TypedClient<C> {
    fn clone(&self) -> Self {
        let (service, pool) = (self.service.clone(), self.pool.clone());
        TypedClient { channel: self.channel.clone(), service, pool }
    }
}

impl<C> std::fmt::Debug for TypedClient<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TypedClient").finish_non_exhaustive()
    }
}

impl<C: Channel> TypedClient<C> {
    /// A client of a server that has the service in the same version.
    pub async fn checked(channel: C, info: &'static ServiceInfo) -> Result<Self, HelloError> {
        let service = Binding::new(&channel, info, true);
        let asking = service.ask(&channel, CallOptions::default())?;
        service.set(asking.await?);
        Ok(TypedClient::of(channel, service))
    }

    /// A client that asks for the request types with its first call.
    pub fn unchecked(channel: C, info: &'static ServiceInfo) -> Self {
        let service = Binding::new(&channel, info, false);
        TypedClient::of(channel, service)
    }

    // Not `Send` for the sessions of a thread, which is right: the clients are not either.
    #[allow(clippy::arc_with_non_send_sync)]
    fn of(channel: C, service: Binding) -> Self {
        TypedClient { channel, service: Arc::new(service), pool: Arc::new(Pool::default()) }
    }

    pub fn channel(&self) -> &C {
        &self.channel
    }

    /// The counters of the methods of the service, of all its clients on the connection.
    pub fn method_stats(&self) -> Vec<MethodStats> {
        self.service.counts()
    }

    #[inline]
    fn encode<K: Encode<A>, A: ?Sized>(&self, arguments: &A) -> Result<MsgBuf, EncodeError> {
        writer::message(&ChannelMemory(&self.channel), |out| K::encode(arguments, out))
    }

    #[inline]
    pub fn unary<K: Encode<A>, A, T, E>(&self, index: u16, arguments: &A) -> Unary<'_, C, K, T, E> {
        let request = self.encode::<K, A>(arguments);
        let (channel, service) = (&self.channel, &*self.service);
        Unary {
            channel,
            service,
            index,
            request,
            options: CallOptions::default(),
            types: PhantomData,
        }
    }

    #[inline]
    pub fn one_way<K: Encode<A>, A>(&self, index: u16, arguments: &A) -> OneWay<'_, C> {
        let message = self.encode::<K, A>(arguments);
        let (channel, service) = (&self.channel, &*self.service);
        OneWay { channel, service, index, message, options: CallOptions::default() }
    }

    pub fn open_stream<K: Encode<A>, A, T, E>(
        &self,
        index: u16,
        arguments: &A,
    ) -> OpenStream<'_, C, K, T, E> {
        OpenStream::new(&self.channel, (&self.pool, &self.service), index, |out| {
            K::encode(arguments, out)
        })
    }

    pub fn open_upload<K: Encode<A>, A, I, T, E>(
        &self,
        index: u16,
        arguments: &A,
    ) -> OpenUpload<'_, C, K, I, T, E> {
        OpenUpload::new(&self.channel, (&self.pool, &self.service), index, |out| {
            K::encode(arguments, out)
        })
    }

    pub fn open_duplex<K: Encode<A>, A, I, T, E>(
        &self,
        index: u16,
        arguments: &A,
    ) -> OpenDuplex<'_, C, K, I, T, E> {
        OpenDuplex::new(&self.channel, (&self.pool, &self.service), index, |out| {
            K::encode(arguments, out)
        })
    }
}

/// A typed call that is started by `.await`. Dropping the future of a started call cancels it.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use std::time::Duration;
///
/// let store = StoreClient::connect(&uri).await?;
/// let call = store.get("apple".to_owned()).deadline(Duration::from_secs(5)).wait_for_ready(true);
/// assert_eq!(call.await?, "about apple");
/// // A plain thread blocks.
/// assert_eq!(store.get("pear".to_owned()).wait()?, "about pear");
/// # Ok(()) }) }
/// ```
#[must_use = "a call starts when it is awaited"]
pub struct Unary<'a, C: Channel, K, T, E> {
    channel: &'a C,
    service: &'a Binding,
    index: u16,
    request: Result<MsgBuf, EncodeError>,
    options: CallOptions,
    types: Types<(K, T, E)>,
}

impl<C: Channel, K, T, E> std::fmt::Debug for Unary<'_, C, K, T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unary")
            .field("method", &self.index)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<C: Channel, K, T, E> Unary<'_, C, K, T, E> {
    /// The call ends with an error if there is no response within `after`; the server's handler is
    /// dropped then. Takes a duration or an `Option`. With `None` the call has the deadline of its client
    /// (`with_deadline`), if there is one. A call of a handler also ends by that of the handler.
    #[inline]
    pub fn deadline(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.options.deadline = after.into();
        self
    }

    /// Without a connection to the server, waits for it in place of failing at once, if the channel
    /// is a [`crate::Client`]: see [`crate::ClientCall::wait_for_ready`].
    pub fn wait_for_ready(mut self, waits: bool) -> Self {
        self.options.wait_for_ready = Some(waits);
        self
    }
}

impl<C: BlockingChannel, K: Decode<T> + Decode<E>, T, E> Unary<'_, C, K, T, E> {
    /// Blocks a plain thread until the call has ended.
    ///
    /// # Errors
    /// As of the awaited call.
    pub fn wait(self) -> Result<T, RpcError<E>> {
        let channel = self.channel;
        channel.wait(self.into_future())
    }
}

impl<'a, C: Channel, K: Decode<T> + Decode<E>, T, E> IntoFuture for Unary<'a, C, K, T, E> {
    type Output = Result<T, RpcError<E>>;
    type IntoFuture = UnaryCall<'a, C, K, T, E>;

    #[inline]
    fn into_future(self) -> Self::IntoFuture {
        let Unary { channel, service, index, request, options, .. } = self;
        let counted = CountedCall::begin(channel, service, index);
        let state = Started::new(channel, service, index, request, options, C::call_method);
        UnaryCall { state, counted, types: PhantomData }
    }
}

pin_project_lite::pin_project! {
    /// The future of a typed call.
    ///
    /// ```
    /// # use courser_example_store::*;
    /// # fn main() -> Done { run(async |uri| {
    /// use futures::future::join_all;
    ///
    /// let store = StoreClient::connect(&uri).await?;
    /// let keys = (0..100).map(|i| "x".repeat(i));
    /// // All of them are made before the first one is awaited.
    /// let calls = keys.map(|key| store.len(key).into_future());
    /// let lens = join_all(calls).await.into_iter().collect::<Result<Vec<u64>, _>>()?;
    /// assert_eq!(lens, Vec::from_iter(0..100));
    /// # Ok(()) }) }
    /// ```
    #[must_use = "futures do nothing unless they are polled"]
    pub struct UnaryCall<'a, C, K, T, E>
    where
        C: Channel,
        C: 'a,
    {
        #[pin]
        state: Started<'a, C, C::Call<'a>>,
        counted: CountedCall<'a, C>,
        types: Types<(K, T, E)>,
    }
}

impl<C: Channel, K, T, E> std::fmt::Debug for UnaryCall<'_, C, K, T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnaryCall").finish_non_exhaustive()
    }
}

impl<C: Channel, K: Decode<T> + Decode<E>, T, E> Future for UnaryCall<'_, C, K, T, E> {
    type Output = Result<T, RpcError<E>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // In the place of the caller's, so that it is not moved.
        let polled = poll_unary::<C, K, T, E>(this.state, cx);
        this.counted.polled(&polled);
        polled
    }
}

/// Polls a typed call.
#[inline(always)] // into the poll of the call
fn poll_unary<'a, C: Channel, K: Decode<T> + Decode<E>, T, E>(
    state: Pin<&mut Started<'a, C, C::Call<'a>>>,
    cx: &mut Context<'_>,
) -> Poll<Result<T, RpcError<E>>> {
    let call = match ready!(state.running(cx, C::call_method)) {
        Ok(call) => call,
        Err(ended) => return Poll::Ready(ended.read::<K, T>()),
    };
    match ready!(C::poll_call(call, cx, answer::read::<K, T, E>)) {
        Ok(decoded) => Poll::Ready(decoded),
        Err(failure) => Poll::Ready(Err(failure.into())),
    }
}

/// A one-way message that is sent by `.await`, which waits for room. There is no answer: the server
/// counts messages that it could not decode.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use std::time::Duration;
///
/// let store = StoreClient::connect(&uri).await?;
/// store.hint("apple".to_owned()).deadline(Duration::from_secs(5)).await?;
/// # Ok(()) }) }
/// ```
#[must_use = "a message is sent when it is awaited"]
pub struct OneWay<'a, C: Channel> {
    channel: &'a C,
    service: &'a Binding,
    index: u16,
    message: Result<MsgBuf, EncodeError>,
    options: CallOptions,
}

impl<C: Channel> std::fmt::Debug for OneWay<'_, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OneWay")
            .field("method", &self.index)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<C: Channel> OneWay<'_, C> {
    /// The message is not delivered later than `after`: see [`crate::MessageBuilder::deadline`].
    pub fn deadline(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.options.deadline = after.into();
        self
    }

    /// Without a connection to the server, waits for it in place of failing at once, if the channel
    /// is a [`crate::Client`]: see [`crate::ClientCall::wait_for_ready`].
    pub fn wait_for_ready(mut self, waits: bool) -> Self {
        self.options.wait_for_ready = Some(waits);
        self
    }
}

impl<C: BlockingChannel> OneWay<'_, C> {
    /// Blocks a plain thread until there is room for the message.
    ///
    /// # Errors
    /// As of the awaited message.
    pub fn wait(self) -> Result<(), RpcError<super::NoError>> {
        let channel = self.channel;
        channel.wait(self.into_future())
    }
}

impl<'a, C: Channel> IntoFuture for OneWay<'a, C> {
    type Output = Result<(), RpcError<super::NoError>>;
    type IntoFuture = Sending<'a, C>;

    fn into_future(self) -> Sending<'a, C> {
        let OneWay { channel, service, index, message, options } = self;
        let counted = CountedCall::begin(channel, service, index);
        let state = Started::new(channel, service, index, message, options, C::send_method);
        Sending { state, counted }
    }
}

pin_project_lite::pin_project! {
    /// The future of a one-way message.
    ///
    /// ```
    /// # use courser_example_store::*;
    /// # fn main() -> Done { run(async |uri| {
    /// use std::pin::pin;
    ///
    /// use futures::future::join;
    ///
    /// let store = StoreClient::connect(&uri).await?;
    /// let (first, second) = ("apple".to_owned(), "pear".to_owned());
    /// let sending = join(store.hint(first).into_future(), store.hint(second).into_future());
    /// let (first, second) = pin!(sending).await;
    /// first?;
    /// second?;
    /// # Ok(()) }) }
    /// ```
    #[must_use = "futures do nothing unless they are polled"]
    pub struct Sending<'a, C>
    where
        C: Channel,
        C: 'a,
    {
        #[pin]
        state: Started<'a, C, C::Sent<'a>>,
        counted: CountedCall<'a, C>,
    }
}

impl<C: Channel> std::fmt::Debug for Sending<'_, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sending").finish_non_exhaustive()
    }
}

impl<C: Channel> Future for Sending<'_, C> {
    type Output = Result<(), RpcError<super::NoError>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = match ready!(this.state.running(cx, C::send_method)) {
            Ok(message) => ready!(message.poll(cx)).map_err(RpcError::from),
            Err(ended) => match *ended {
                Ended::Failed(error) => Err(error),
                Ended::Answered(_) => Ok(()), // messages have no answers
            },
        };
        this.counted.end(&result);
        Poll::Ready(result)
    }
}
