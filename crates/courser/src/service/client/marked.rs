//! Calls with metadata.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::started::{Ended, Started};
use super::{OneWay, Sending, TypedClient, Types, Unary, UnaryCall};
use crate::channel::{Answer, BlockingChannel, Channel};
use crate::error::service::RpcError;
use crate::service::answer;
use crate::service::binding::Binding;
use crate::service::codec::Decode;
use crate::service::context::trailer::{self, ANSWERS};
use crate::service::context::{Given, Metadata, MetadataValue};
use crate::service::counted::CountedCall;
use crate::service::middleware::ClientMiddleware;
use crate::service::retries::Retries;

impl<C: Channel> TypedClient<C> {
    /// A client whose calls have this metadata.
    pub fn with_metadata(&self, metadata: Metadata) -> Self {
        let service = Arc::new(Binding::with_defaults(self.service.clone(), metadata));
        TypedClient { channel: self.channel.clone(), service, pool: self.pool.clone() }
    }
}

impl<C: Channel> TypedClient<C> {
    /// A client whose calls are seen by middleware.
    pub fn with_middleware(&self, middleware: impl ClientMiddleware) -> Self {
        let of = self.service.clone();
        let service = Arc::new(Binding::with_middleware(of, Arc::new(middleware)));
        TypedClient { channel: self.channel.clone(), service, pool: self.pool.clone() }
    }

    /// A client whose calls have this deadline, unless they have one of their own.
    pub fn with_deadline(&self, after: impl Into<Option<Duration>>) -> Self {
        let service = Arc::new(Binding::with_deadline(self.service.clone(), after.into()));
        TypedClient { channel: self.channel.clone(), service, pool: self.pool.clone() }
    }

    /// A client whose calls are repeated.
    pub fn with_retries(&self, retries: impl Into<Retries>) -> Self {
        let service = Arc::new(Binding::with_retries(self.service.clone(), retries.into()));
        TypedClient { channel: self.channel.clone(), service, pool: self.pool.clone() }
    }
}

/// Generates the settings of a call or message with metadata.
macro_rules! settings {
    ($type:ident, $field:ident $(, $of:ident)*) => {
        impl<C: Channel, $($of),*> $type<'_, C, $($of),*> {
            /// Sends a pair of metadata with the call, in place of an earlier one with this key: see
            /// [`Metadata`] for what is allowed. It is not sent to servers that do not read metadata.
            ///
            /// A pair that is not allowed is the error of the awaited call
            /// ([`EncodeError::Codec`](crate::service::EncodeError::Codec)), which is not made.
            pub fn metadata<'v>(mut self, key: &str, value: impl Into<MetadataValue<'v>>) -> Self {
                self.given.insert(key, value);
                self
            }

            /// Sends all pairs: see `metadata`.
            pub fn all_metadata(mut self, metadata: &Metadata) -> Self {
                self.given.extend(metadata);
                self
            }

            /// As that of the call without metadata.
            pub fn deadline(mut self, after: impl Into<Option<Duration>>) -> Self {
                self.$field = self.$field.deadline(after);
                self
            }

            /// As that of the call without metadata.
            pub fn wait_for_ready(mut self, waits: bool) -> Self {
                self.$field = self.$field.wait_for_ready(waits);
                self
            }
        }

        impl<C: Channel, $($of),*> std::fmt::Debug for $type<'_, C, $($of),*> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($type))
                    .field("call", &self.$field)
                    .field("given", &self.given)
                    .finish()
            }
        }
    };
}

/// A typed call with metadata: [`Unary::metadata`].
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use std::time::Duration;
///
/// let store = StoreClient::connect(&uri).await?;
/// let call = store.tenant().metadata("tenant", "blue").metadata("request", "17");
/// assert_eq!(call.deadline(Duration::from_secs(5)).await?, "blue");
/// # Ok(()) }) }
/// ```
#[must_use = "a call starts when it is awaited"]
pub struct MarkedCall<'a, C: Channel, K, T, E> {
    call: Unary<'a, C, K, T, E>,
    given: Given,
}

settings!(MarkedCall, call, K, T, E);

impl<'a, C: Channel, K, T, E> Unary<'a, C, K, T, E> {
    /// Sends a pair of metadata with the call: see [`Metadata`] for what is allowed. It is not sent to
    /// servers that do not read metadata. Costs a copy of a request that has no room for it, and a
    /// map of its own at the server.
    ///
    /// A pair that is not allowed is the error of the awaited call ([`EncodeError::Codec`](crate::service::EncodeError::Codec)), which is
    /// not made.
    ///
    /// ```
    /// # use courser::service::CallContext;
    /// #[courser::service]
    /// trait Store {
    ///     async fn get(&self, cx: CallContext, key: String) -> String;
    /// }
    ///
    /// struct Texts;
    ///
    /// impl Store for Texts {
    ///     async fn get(&self, cx: CallContext, key: String) -> String {
    ///         cx.respond_with("served-by", "texts-1").expect("a short pair");
    ///         format!("{key} of {}", cx.metadata().text("tenant").unwrap_or("all"))
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = courser::Server::bind("udp://127.0.0.1:0")?.add_service(StoreServer::new(Texts))?;
    /// let (uri, _serving) = (server.local_uri(), server.serve()?);
    /// # futures::executor::block_on(async {
    /// let store = StoreClient::connect(&uri).await?;
    /// let call = store.get("a key".to_owned()).metadata("tenant", "blue");
    /// let (text, answered) = call.with_response_metadata().await;
    /// assert_eq!(text?, "a key of blue");
    /// assert_eq!(answered.text("served-by"), Some("texts-1"));
    /// # Ok(()) })
    /// # }
    /// ```
    pub fn metadata<'v>(
        self,
        key: &str,
        value: impl Into<MetadataValue<'v>>,
    ) -> MarkedCall<'a, C, K, T, E> {
        MarkedCall { call: self, given: Given::default() }.metadata(key, value)
    }

    /// Sends all pairs: see [`Unary::metadata`].
    pub fn all_metadata(self, metadata: &Metadata) -> MarkedCall<'a, C, K, T, E> {
        MarkedCall { call: self, given: Given::default() }.all_metadata(metadata)
    }

    /// Returns the metadata that the handler has added to its answer beside the result: see
    /// [`Answered`].
    pub fn with_response_metadata(self) -> Answered<'a, C, K, T, E> {
        Answered(MarkedCall { call: self, given: Given::default() })
    }
}

impl<'a, C: Channel, K, T, E> MarkedCall<'a, C, K, T, E> {
    /// Returns the metadata that the handler has added to its answer beside the result: see
    /// [`Answered`].
    pub fn with_response_metadata(self) -> Answered<'a, C, K, T, E> {
        Answered(self)
    }

    fn start(self, flags: u8) -> (CountedCall<'a, C>, Started<'a, C, C::Call<'a>>) {
        let MarkedCall { call, given } = self;
        let Unary { channel, service, index, request, options, .. } = call;
        let given = (given, flags);
        let counted = CountedCall::begin(channel, service, index);
        let make = C::call_method;
        (counted, Started::marked(channel, service, index, request, options, given, make))
    }
}

impl<C: BlockingChannel, K: Decode<T> + Decode<E>, T, E> MarkedCall<'_, C, K, T, E> {
    /// Blocks a plain thread until the call has ended.
    ///
    /// # Errors
    /// As of the awaited call.
    pub fn wait(self) -> Result<T, RpcError<E>> {
        let channel = self.call.channel;
        channel.wait(self.into_future())
    }
}

impl<'a, C: Channel, K: Decode<T> + Decode<E>, T, E> IntoFuture for MarkedCall<'a, C, K, T, E> {
    type Output = Result<T, RpcError<E>>;
    type IntoFuture = UnaryCall<'a, C, K, T, E>;

    fn into_future(self) -> Self::IntoFuture {
        let (counted, state) = self.start(0);
        UnaryCall { state, counted, types: PhantomData }
    }
}

/// A typed call that returns its result and the metadata of its answer, which the handler adds with
/// [`CallContext::respond_with`](crate::service::CallContext::respond_with), also to errors of its own.
/// The metadata is empty if there is no answer, or the server has none.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// let store = StoreClient::connect(&uri).await?;
/// let (tenant, metadata) = store.tenant().metadata("tenant", "blue").with_response_metadata().await;
/// assert_eq!(tenant?, "blue");
/// assert_eq!(metadata.text("served-by"), Some("texts-1"));
/// # Ok(()) }) }
/// ```
#[must_use = "a call starts when it is awaited"]
#[derive(Debug)]
pub struct Answered<'a, C: Channel, K, T, E>(MarkedCall<'a, C, K, T, E>);

impl<C: BlockingChannel, K: Decode<T> + Decode<E>, T, E> Answered<'_, C, K, T, E> {
    /// Blocks a plain thread until the call has ended.
    pub fn wait(self) -> (Result<T, RpcError<E>>, Metadata) {
        let channel = self.0.call.channel;
        channel.wait(self.into_future())
    }
}

impl<'a, C: Channel, K: Decode<T> + Decode<E>, T, E> IntoFuture for Answered<'a, C, K, T, E> {
    type Output = (Result<T, RpcError<E>>, Metadata);
    type IntoFuture = AnsweredCall<'a, C, K, T, E>;

    fn into_future(self) -> Self::IntoFuture {
        let (counted, state) = self.0.start(ANSWERS);
        AnsweredCall { state, counted, types: PhantomData }
    }
}

pin_project_lite::pin_project! {
    /// The future of a typed call that returns the metadata of its answer.
    ///
    /// ```
    /// # use courser_example_store::*;
    /// # fn main() -> Done { run(async |uri| {
    /// use futures::future::join;
    ///
    /// let store = StoreClient::connect(&uri).await?;
    /// let call = || store.tenant().with_response_metadata().into_future();
    /// let ((one, _), (other, metadata)) = join(call(), call()).await;
    /// assert_eq!((one?, other?), ("none".to_owned(), "none".to_owned()));
    /// assert_eq!(metadata.text("served-by"), Some("texts-1"));
    /// # Ok(()) }) }
    /// ```
    #[must_use = "futures do nothing unless they are polled"]
    pub struct AnsweredCall<'a, C, K, T, E>
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

impl<C: Channel, K, T, E> std::fmt::Debug for AnsweredCall<'_, C, K, T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnsweredCall").finish_non_exhaustive()
    }
}

impl<C: Channel, K: Decode<T> + Decode<E>, T, E> Future for AnsweredCall<'_, C, K, T, E> {
    type Output = (Result<T, RpcError<E>>, Metadata);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let failed = |e| (Err(e), Metadata::new());
        let answered = match ready!(this.state.running(cx, C::call_method)) {
            Ok(call) => match ready!(C::poll_call(call, cx, read::<K, T, E>)) {
                Ok(Ok(answered)) => answered,
                Ok(Err(e)) => failed(e),
                Err(failure) => failed(failure.into()),
            },
            Err(ended) => match *ended {
                Ended::Failed(e) => failed(e),
                Ended::Answered(answer) => {
                    read::<K, T, E>(Answer::Owned(answer)).unwrap_or_else(failed)
                }
            },
        };
        this.counted.end(&answered.0);
        Poll::Ready(answered)
    }
}

/// The outcome of an answer, and its metadata.
type Outcome<T, E> = (Result<T, RpcError<E>>, Metadata);

/// Decodes the answer of a call that may have metadata.
fn read<K: Decode<T> + Decode<E>, T, E>(answer: Answer<'_>) -> Result<Outcome<T, E>, RpcError<E>> {
    let (answer, metadata) = match answer {
        Answer::Shown(bytes, memory) => {
            let (metadata, len) = trailer::split_answer(bytes)?;
            (Answer::Shown(&bytes[..len], memory), metadata)
        }
        Answer::Owned(mut message) => {
            let (metadata, len) = trailer::split_answer(&message)?;
            message.truncate(len);
            (Answer::Owned(message), metadata)
        }
    };
    Ok((answer::read::<K, T, E>(answer), metadata))
}

/// A one-way message with metadata: [`OneWay::metadata`].
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::service::Metadata;
///
/// let mut metadata = Metadata::new();
/// metadata.insert("tenant", "blue")?;
/// let store = StoreClient::connect(&uri).await?;
/// store.hint("apple".to_owned()).all_metadata(&metadata).await?;
/// # Ok(()) }) }
/// ```
#[must_use = "a message is sent when it is awaited"]
pub struct MarkedMessage<'a, C: Channel> {
    message: OneWay<'a, C>,
    given: Given,
}

settings!(MarkedMessage, message);

impl<'a, C: Channel> OneWay<'a, C> {
    /// Sends a pair of metadata with the message: see [`Unary::metadata`].
    pub fn metadata<'v>(
        self,
        key: &str,
        value: impl Into<MetadataValue<'v>>,
    ) -> MarkedMessage<'a, C> {
        MarkedMessage { message: self, given: Given::default() }.metadata(key, value)
    }

    /// Sends all pairs: see [`Unary::metadata`].
    pub fn all_metadata(self, metadata: &Metadata) -> MarkedMessage<'a, C> {
        MarkedMessage { message: self, given: Given::default() }.all_metadata(metadata)
    }
}

impl<C: BlockingChannel> MarkedMessage<'_, C> {
    /// Blocks a plain thread until there is room for the message.
    ///
    /// # Errors
    /// As of the awaited message.
    pub fn wait(self) -> Result<(), RpcError<crate::service::NoError>> {
        let channel = self.message.channel;
        channel.wait(self.into_future())
    }
}

impl<'a, C: Channel> IntoFuture for MarkedMessage<'a, C> {
    type Output = Result<(), RpcError<crate::service::NoError>>;
    type IntoFuture = Sending<'a, C>;

    fn into_future(self) -> Sending<'a, C> {
        let MarkedMessage { message, given } = self;
        let OneWay { channel, service, index, message, options } = message;
        let given = (given, 0);
        let counted = CountedCall::begin(channel, service, index);
        let state =
            Started::marked(channel, service, index, message, options, given, C::send_method);
        Sending { state, counted }
    }
}
