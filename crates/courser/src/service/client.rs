//! Typed calls of a client.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use courser_buf::MsgBuf;

use super::answer;
use super::channel::{BlockingChannel, CallOptions, Channel, ChannelMemory};
use super::codec::{Decode, Encode};
use super::error::{EncodeError, RpcError};
use super::stream::{OpenStream, OpenUpload, Pool};
use super::writer;
use crate::failure::CallFailure;

/// Types that a value has to do with, without holding any.
pub(super) type Types<T> = PhantomData<fn() -> T>;

/// The part of generated clients that does not depend on the service.
#[doc(hidden)]
pub struct TypedClient<C> {
    channel: C,
    pool: Arc<Pool<C>>,
}

impl<C: Channel> Clone for TypedClient<C> {
    fn clone(&self) -> Self {
        TypedClient { channel: self.channel.clone(), pool: self.pool.clone() }
    }
}

impl<C> std::fmt::Debug for TypedClient<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TypedClient").finish_non_exhaustive()
    }
}

impl<C: Channel> TypedClient<C> {
    // Not `Send` for the sessions of a thread, which is right: the clients are not either.
    #[allow(clippy::arc_with_non_send_sync)]
    pub fn new(channel: C) -> Self {
        TypedClient { channel, pool: Arc::new(Pool::default()) }
    }

    pub fn channel(&self) -> &C {
        &self.channel
    }

    #[inline]
    fn encode<K: Encode<A>, A: ?Sized>(&self, arguments: &A) -> Result<MsgBuf, EncodeError> {
        writer::message(&ChannelMemory(&self.channel), |out| K::encode(arguments, out))
    }

    #[inline]
    pub fn unary<K: Encode<A>, A, T, E>(
        &self,
        number: u16,
        arguments: &A,
    ) -> Unary<'_, C, K, T, E> {
        let request = self.encode::<K, A>(arguments);
        let channel = &self.channel;
        Unary { channel, number, request, options: CallOptions::default(), types: PhantomData }
    }

    #[inline]
    pub fn one_way<K: Encode<A>, A>(&self, number: u16, arguments: &A) -> OneWay<'_, C> {
        let message = self.encode::<K, A>(arguments);
        OneWay { channel: &self.channel, number, message, options: CallOptions::default() }
    }

    pub fn open_stream<K: Encode<A>, A, T, E>(
        &self,
        number: u16,
        arguments: &A,
    ) -> OpenStream<'_, C, K, T, E> {
        OpenStream::new(&self.channel, &self.pool, number, |out| K::encode(arguments, out))
    }

    pub fn open_upload<K: Encode<A>, A, I, T, E>(
        &self,
        number: u16,
        arguments: &A,
    ) -> OpenUpload<'_, C, K, I, T, E> {
        OpenUpload::new(&self.channel, &self.pool, number, |out| K::encode(arguments, out))
    }
}

/// A typed call that is started by `.await`. Dropping the future of a started call cancels it.
#[must_use = "a call starts when it is awaited"]
pub struct Unary<'a, C: Channel, K, T, E> {
    channel: &'a C,
    number: u16,
    request: Result<MsgBuf, EncodeError>,
    options: CallOptions,
    types: Types<(K, T, E)>,
}

impl<C: Channel, K, T, E> std::fmt::Debug for Unary<'_, C, K, T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unary")
            .field("number", &self.number)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<C: Channel, K, T, E> Unary<'_, C, K, T, E> {
    /// The call ends with an error if there is no response within `after`; the server's handler is
    /// dropped then. Takes a duration or an `Option`; `None`, the default, has no deadline, or that
    /// of the handler that makes the call.
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
        let state = match self.request {
            Ok(request) => {
                Started::Running { future: self.channel.call(self.number, request, self.options) }
            }
            Err(error) => Started::Failed { error: Some(error) },
        };
        UnaryCall { state, types: PhantomData }
    }
}

pin_project_lite::pin_project! {
    /// A future, or the reason that there is none.
    #[project = StartedProjection]
    enum Started<F> {
        Running { #[pin] future: F },
        Failed { error: Option<EncodeError> },
    }
}

impl<F: Future<Output = Result<T, CallFailure>>, T> Started<F> {
    #[inline]
    fn poll<E>(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T, RpcError<E>>> {
        match self.project() {
            StartedProjection::Running { future } => future.poll(cx).map_err(RpcError::Call),
            StartedProjection::Failed { error } => match error.take() {
                Some(error) => Poll::Ready(Err(error.into())),
                None => Poll::Pending, // polled after its end
            },
        }
    }
}

pin_project_lite::pin_project! {
    /// The future of a typed call.
    #[must_use = "futures do nothing unless they are polled"]
    pub struct UnaryCall<'a, C, K, T, E>
    where
        C: Channel,
        C: 'a,
    {
        #[pin]
        state: Started<C::Call<'a>>,
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
        let response = ready!(self.project().state.poll(cx))?;
        Poll::Ready(answer::decode::<K, T, E>(response))
    }
}

/// A one-way message that is sent by `.await`, which waits for room. There is no answer: the server
/// counts messages that it could not decode.
#[must_use = "a message is sent when it is awaited"]
pub struct OneWay<'a, C: Channel> {
    channel: &'a C,
    number: u16,
    message: Result<MsgBuf, EncodeError>,
    options: CallOptions,
}

impl<C: Channel> std::fmt::Debug for OneWay<'_, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OneWay")
            .field("number", &self.number)
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
        let state = match self.message {
            Ok(message) => {
                Started::Running { future: self.channel.send(self.number, message, self.options) }
            }
            Err(error) => Started::Failed { error: Some(error) },
        };
        Sending { state }
    }
}

pin_project_lite::pin_project! {
    /// The future of a one-way message.
    #[must_use = "futures do nothing unless they are polled"]
    pub struct Sending<'a, C>
    where
        C: Channel,
        C: 'a,
    {
        #[pin]
        state: Started<C::Sent<'a>>,
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
        self.project().state.poll(cx)
    }
}
