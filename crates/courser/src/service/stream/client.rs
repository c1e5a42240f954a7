//! Opening of streams at the client.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use courser_buf::MsgBuf;

use super::counted::CountedStream;
use super::pool::{Idle, OpenCall, Opened, Pool, Return};
use super::{Duplex, Streaming, Upload};
use crate::channel::method::{ACCEPT, MARKED, MethodId};
use crate::channel::{CallOptions, Channel};
use crate::error::failure::CallFailure;
use crate::error::service::{EncodeError, NoError, RpcError, StreamError};
use crate::service::answer::{self, tag};
use crate::service::binding::ChannelMemory;
use crate::service::binding::{Asking, Binding, unmade};
use crate::service::client::Types;
use crate::service::codec::Decode;
use crate::service::context::{Given, Metadata, MetadataValue, trailer};
use crate::service::writer::{self, Writer};

/// Accept calls of a stream that is opened: a server with very many of them answers the oldest ones
/// before their streams are open.
const ASK_AGAIN: u32 = 64;

/// Slots that a stream needs: for the open call, and a pull or push.
const SLOTS: u32 = 2;

/// Slots that a stream each way needs: for the open call, two pulls, which may wait for items, and a push.
const SLOTS_BOTH: u32 = 4;

/// In the place of a request that is being changed.
const NO_REQUEST: EncodeError = EncodeError::TooLarge { limit: 0 };

/// A stream that is about to be opened.
struct Plan<'a, C: Channel> {
    channel: &'a C,
    pool: &'a Arc<Pool<C>>,
    service: &'a Binding,
    index: u16,
    stream: u32,
    /// Slots that it needs.
    slots: u32,
    request: Result<MsgBuf, RpcError<NoError>>,
    options: CallOptions,
    given: Given,
}

impl<'a, C: Channel> Plan<'a, C> {
    fn new(
        channel: &'a C,
        (pool, service): (&'a Arc<Pool<C>>, &'a Binding),
        (index, slots): (u16, u32),
        encode: impl FnOnce(&mut Writer<'_>) -> Result<(), EncodeError>,
    ) -> Self {
        let stream = pool.number();
        let request = writer::message(&ChannelMemory(channel), |out| {
            encode(out)?;
            let written = out.extend(&stream.to_le_bytes());
            written.map_err(|_| out.reason(EncodeError::TooLarge { limit: 0 }))
        });
        let request = request.map_err(RpcError::from);
        let (options, given) = (CallOptions::default(), Given::default());
        Plan { channel, pool, service, index, stream, slots, request, options, given }
    }

    /// Passes the opening with the deadline of its client to the middleware, and adds the metadata to the
    /// request, if there is some.
    fn complete(&mut self) {
        self.options = self.service.complete(self.options);
        let request = std::mem::replace(&mut self.request, Err(NO_REQUEST.into()));
        let completed = std::mem::take(&mut self.given).complete(self.service.defaults());
        self.request = completed.map_err(RpcError::from).and_then(|mut metadata| {
            let index = self.index;
            if let Some(observed) = self.service.observe(index, &mut self.options, &mut metadata)? {
                observed.forget();
            }
            let memory = ChannelMemory(self.channel);
            let (request, is_marked) = metadata.append_to(request?, 0, &memory)?;
            self.index |= if is_marked { MARKED } else { 0 };
            Ok(request)
        });
        self.service = self.service.real();
    }

    fn start(mut self) -> Connecting<'a, C> {
        let counted = CountedStream::begin(self.channel, self.service, self.index);
        self.complete();
        let known = if self.request.is_ok() { self.pool.take() } else { None };
        let state = match (&self.request, known) {
            (Ok(_), None) => State::Connecting { future: self.channel.another(self.options) },
            (_, known) => State::Connected { session: known },
        };
        Connecting { plan: Some(self), state, opening: None, counted }
    }
}

/// A stream whose open call has started.
struct Starting<C: Channel> {
    channel: C,
    pool: Return<C>,
    stream: u32,
    options: CallOptions,
    open: C::OwnedCall,
    /// `None`: the stream has ended, and the answer of the open call follows.
    accept: Option<C::OwnedCall>,
    /// Accept calls that were made.
    asked: u32,
}

impl<C: Channel> Starting<C> {
    fn ask(&mut self) -> Result<(), CallFailure> {
        let mut request = self.channel.alloc(4)?;
        request.copy_from_slice(&self.stream.to_le_bytes());
        // It ends with the open call, which has the deadline.
        let options = CallOptions { deadline: None, is_detached: true, ..self.options };
        self.accept = Some(self.channel.call_owned(ACCEPT, request, options));
        self.asked += 1;
        Ok(())
    }

    /// Waits until the stream is accepted, or has ended. Returns the answer of the open call if that
    /// was first.
    fn poll<E>(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<MsgBuf>, RpcError<E>>> {
        loop {
            // Both are polled, so that both are started.
            if let Poll::Ready(answer) = Pin::new(&mut self.open).poll(cx) {
                return Poll::Ready(answer.map(Some).map_err(RpcError::from));
            }
            let Some(accept) = &mut self.accept else { return Poll::Pending };
            let answer = ready!(Pin::new(accept).poll(cx)).map_err(RpcError::from);
            let answer = answer.and_then(|answer| Ok(answer::split(answer)?));
            let (tag, payload) = answer.map_err(RpcError::mid_stream)?;
            self.accept = None;
            match tag {
                tag::OK => return Poll::Ready(Ok(None)),
                tag::ENDED => {}
                tag => match answer::refused(tag, &payload) {
                    RpcError::Stream(StreamError::TooMany) if self.asked < ASK_AGAIN => {
                        self.ask()?;
                    }
                    error => return Poll::Ready(Err(error)),
                },
            }
        }
    }
}

pin_project_lite::pin_project! {
    #[project = StateProjection]
    enum State<F, C>
    where
        C: Channel,
    {
        Connecting { #[pin] future: F },
        /// The server of the new session is asked for the service.
        Asking { channel: Option<C>, asking: Asking<C> },
        Connected { session: Option<Idle<C>> },
    }
}

pin_project_lite::pin_project! {
    /// Connects the session of a stream, and opens the stream.
    struct Connecting<'a, C>
    where
        C: Channel,
        C: 'a,
    {
        plan: Option<Plan<'a, C>>,
        #[pin]
        state: State<C::Another<'a>, C>,
        opening: Option<Starting<C>>,
        counted: CountedStream<C>,
    }
}

/// Waits for a session on which the numbers of the methods are known. `None`: it was taken before.
fn connected<E, C: Channel>(
    mut state: Pin<&mut State<C::Another<'_>, C>>,
    plan: &Plan<'_, C>,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<Idle<C>>, RpcError<E>>> {
    loop {
        let next = match state.as_mut().project() {
            StateProjection::Connecting { future } => {
                let channel = ready!(future.poll(cx))?;
                match plan.service.is_adopted() {
                    true => State::Connected { session: Some((channel, None)) },
                    false => {
                        let asking = plan.service.ask(&channel, plan.options)?;
                        State::Asking { channel: Some(channel), asking }
                    }
                }
            }
            StateProjection::Asking { channel, asking } => {
                let numbers = ready!(Pin::new(asking).poll(cx)).map_err(unmade)?;
                State::Connected { session: channel.take().map(|c| (c, Some(numbers))) }
            }
            StateProjection::Connected { session } => return Poll::Ready(Ok(session.take())),
        };
        state.set(next);
    }
}

impl<C: Channel> Connecting<'_, C> {
    /// The counter of a stream that is open.
    fn counted(self: Pin<&mut Self>) -> CountedStream<C> {
        std::mem::take(self.project().counted)
    }

    /// Counts a stream that was not opened.
    fn failed<E>(self: Pin<&mut Self>, error: RpcError<E>) -> RpcError<E> {
        self.project().counted.fail(&error);
        error
    }

    fn poll<E>(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Opened<C>, RpcError<E>>> {
        let mut this = self.project();
        if this.opening.is_none() {
            let Some(plan) = this.plan.as_ref() else { return Poll::Pending }; // after its end
            let session = ready!(connected(this.state.as_mut(), plan, cx))?;
            let Some(Plan { pool, service, index, stream, slots, request, options, .. }) =
                this.plan.take()
            else {
                return Poll::Pending;
            };
            let mut request = request.map_err(RpcError::widen)?;
            let Some((channel, numbers)) = session else { return Poll::Pending };
            let method = match &numbers {
                Some(numbers) if index & MARKED != 0 => {
                    trailer::address(&mut request, numbers, index).map(MethodId::from)
                }
                Some(numbers) => numbers.number(index).map(MethodId::from),
                None => Ok(service.adopted_method(index)),
            };
            let pool = Return::new(pool, numbers);
            if let Some(known) = channel.slots().filter(|known| *known < slots) {
                pool.put(channel);
                return Poll::Ready(Err(RpcError::FewSlots { slots: known, needed: slots }));
            }
            let method = match method {
                Ok(method) => method,
                Err(mismatch) => {
                    pool.put(channel);
                    return Poll::Ready(Err(mismatch.into()));
                }
            };
            let open = channel.open_method(method, request, options);
            let mut starting =
                Starting { channel, pool, stream, options, open, accept: None, asked: 0 };
            if let Err(e) = starting.ask() {
                drop(starting.open); // it has not begun
                starting.pool.put(starting.channel);
                return Poll::Ready(Err(e.into()));
            }
            *this.opening = Some(starting);
        }
        let Some(starting) = this.opening else { return Poll::Pending };
        let result = ready!(starting.poll(cx));
        let Some(Starting { channel, pool, stream, open, .. }) = this.opening.take() else {
            return Poll::Pending;
        };
        Poll::Ready(match result {
            Ok(answer) => {
                let open = answer.map_or(OpenCall::Running(open), OpenCall::Answered);
                Ok(Opened { channel, pool, stream, open })
            }
            Err(e) => {
                // The server of this session does not have the method, and the call was not made.
                if let RpcError::UnknownMethod(_) | RpcError::ShapeMismatch(_) = e {
                    pool.put(channel);
                }
                Err(e)
            }
        })
    }
}

macro_rules! opening {
    (
        slots: $slots:expr,
        $(#[$about:meta])* $plan:ident,
        $(#[$future_about:meta])* $future:ident -> $opened:ident, $($types:ident),*
    ) => {
        $(#[$about])*
        #[must_use = "a stream is opened when it is awaited"]
        pub struct $plan<'a, C: Channel, $($types),*> {
            plan: Plan<'a, C>,
            types: Types<($($types),*)>,
        }

        impl<C: Channel, $($types),*> std::fmt::Debug for $plan<'_, C, $($types),*> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($plan)).field("method", &self.plan.index).finish_non_exhaustive()
            }
        }

        impl<'a, C: Channel, $($types),*> $plan<'a, C, $($types),*> {
            pub(crate) fn new(
                channel: &'a C,
                shared: (&'a Arc<Pool<C>>, &'a Binding),
                index: u16,
                encode: impl FnOnce(&mut Writer<'_>) -> Result<(), EncodeError>,
            ) -> Self {
                $plan { plan: Plan::new(channel, shared, (index, $slots), encode), types: PhantomData }
            }

            /// The whole stream ends with an error if it has not ended within `after`, counted from
            /// when its session is connected. `None`, the default: it has the deadline of its client
            /// (`with_deadline`), or no deadline.
            pub fn deadline(mut self, after: impl Into<Option<Duration>>) -> Self {
                self.plan.options.deadline = after.into();
                self
            }

            /// Sends a pair of metadata with the call that opens the stream: see
            /// [`Unary::metadata`](crate::service::Unary::metadata).
            pub fn metadata<'v>(mut self, key: &str, value: impl Into<MetadataValue<'v>>) -> Self {
                self.plan.given.insert(key, value);
                self
            }

            /// Sends all pairs: see [`Unary::metadata`](crate::service::Unary::metadata).
            pub fn all_metadata(mut self, metadata: &Metadata) -> Self {
                self.plan.given.extend(metadata);
                self
            }

            /// Without a connection to the server, waits for it in place of failing at once, if the
            /// channel is a [`crate::Client`]: see [`crate::ClientCall::wait_for_ready`].
            pub fn wait_for_ready(mut self, waits: bool) -> Self {
                self.plan.options.wait_for_ready = Some(waits);
                self
            }
        }

        impl<'a, C: Channel, $($types),*> IntoFuture for $plan<'a, C, $($types),*>
        where
            K: Decode<T> + Decode<E>,
        {
            type Output = Result<$opened<C, $($types),*>, RpcError<E>>;
            type IntoFuture = $future<'a, C, $($types),*>;

            fn into_future(self) -> Self::IntoFuture {
                $future { connecting: self.plan.start(), types: PhantomData }
            }
        }

        pin_project_lite::pin_project! {
            $(#[$future_about])*
            #[must_use = "futures do nothing unless they are polled"]
            pub struct $future<'a, C, $($types),*>
            where
                C: Channel,
                C: 'a,
            {
                #[pin]
                connecting: Connecting<'a, C>,
                types: Types<($($types),*)>,
            }
        }

        impl<C: Channel, $($types),*> std::fmt::Debug for $future<'_, C, $($types),*> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($future)).finish_non_exhaustive()
            }
        }

        impl<C: Channel, $($types),*> Future for $future<'_, C, $($types),*>
        where
            K: Decode<T> + Decode<E>,
        {
            type Output = Result<$opened<C, $($types),*>, RpcError<E>>;

            fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                let mut connecting = self.project().connecting;
                let opened = ready!(connecting.as_mut().poll(cx)).and_then($opened::new);
                Poll::Ready(match opened {
                    Ok(stream) => Ok(stream.counted(connecting.counted())),
                    Err(e) => Err(connecting.failed(e)),
                })
            }
        }
    };
}

opening! {
    slots: SLOTS,
    /// A stream of the server that is opened by `.await`. It ends when the server has accepted the
    /// stream: one round trip, and those of connecting a session unless one is kept from an earlier
    /// stream. The handler has made its stream then, and the stream was polled once.
    ///
    /// ```
    /// # use courser_example_store::*;
    /// # fn main() -> Done { run(async |uri| {
    /// use std::time::Duration;
    ///
    /// let store = StoreClient::connect(&uri).await?;
    /// let opening = store.list("a".to_owned()).deadline(Duration::from_secs(5)).metadata("tenant", "blue");
    /// let mut keys = opening.await?;
    /// assert_eq!(keys.next().await.transpose()?.as_deref(), Some("apple"));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// The request was refused, or the handler's stream has begun with an error.
    OpenStream,
    /// The future of [`OpenStream`]. Dropping it cancels the stream.
    ///
    /// ```
    /// # use courser_example_store::*;
    /// # fn main() -> Done { run(async |uri| {
    /// use futures::future::join;
    ///
    /// let store = StoreClient::connect(&uri).await?;
    /// let open = |from: &str| store.list(from.to_owned()).into_future();
    /// let (all, last) = join(open("a"), open("b")).await;
    /// assert_eq!(all?.next().await.transpose()?.as_deref(), Some("apple"));
    /// assert_eq!(last?.next().await.transpose()?.as_deref(), Some("pear"));
    /// # Ok(()) }) }
    /// ```
    Opening -> Streaming, K, T, E
}

opening! {
    slots: SLOTS,
    /// A stream of the client that is opened by `.await`. It ends when the server has accepted the
    /// stream: one round trip, and those of connecting a session unless one is kept from an earlier
    /// stream. The handler has begun then.
    ///
    /// ```
    /// # use courser_example_store::*;
    /// # fn main() -> Done { run(async |uri| {
    /// use std::time::Duration;
    ///
    /// let store = StoreClient::connect(&uri).await?;
    /// let mut keys = store.load().deadline(Duration::from_secs(5)).await?;
    /// keys.send(&"plum".to_owned()).await?;
    /// assert_eq!(keys.finish().await?, 1);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// The request was refused, or the handler has returned an error before it has waited for an item.
    OpenUpload,
    /// The future of [`OpenUpload`]. Dropping it cancels the stream.
    ///
    /// ```
    /// # use courser_example_store::*;
    /// # fn main() -> Done { run(async |uri| {
    /// use futures::future::join;
    ///
    /// let store = StoreClient::connect(&uri).await?;
    /// let (one, other) = join(store.load().into_future(), store.load().into_future()).await;
    /// assert_eq!((one?.finish().await?, other?.finish().await?), (0, 0));
    /// # Ok(()) }) }
    /// ```
    OpeningUpload -> Upload, K, I, T, E
}

opening! {
    slots: SLOTS_BOTH,
    /// A stream each way that is opened by `.await`. It ends when the server has accepted the stream: one
    /// round trip, and those of connecting a session unless one is kept from an earlier stream. The
    /// handler has made its stream then, and the stream was polled once.
    ///
    /// ```
    /// # use courser_example_store::*;
    /// # fn main() -> Done { run(async |uri| {
    /// use std::time::Duration;
    ///
    /// let store = StoreClient::connect(&uri).await?;
    /// let mut followed = store.follow().deadline(Duration::from_secs(5)).await?;
    /// followed.send(&"pear".to_owned()).await?;
    /// assert_eq!(followed.next().await.transpose()?.as_deref(), Some("pear!"));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// The request was refused, or the handler's stream has begun with an error.
    OpenDuplex,
    /// The future of [`OpenDuplex`]. Dropping it cancels the stream.
    ///
    /// ```
    /// # use courser_example_store::*;
    /// # fn main() -> Done { run(async |uri| {
    /// use futures::future::join;
    ///
    /// let store = StoreClient::connect(&uri).await?;
    /// let (one, other) = join(store.follow().into_future(), store.follow().into_future()).await;
    /// assert!(one?.finish().next().await.is_none());
    /// assert!(other?.finish().next().await.is_none());
    /// # Ok(()) }) }
    /// ```
    OpeningDuplex -> Duplex, K, I, T, E
}
