//! Opening of streams at the client.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use courser_buf::MsgBuf;

use super::{Streaming, Upload};
use crate::service::binding::{Asking, Binding, Numbers, number, unmade};
use crate::service::channel::{CallOptions, Channel, ChannelMemory};
use crate::service::client::Types;
use crate::service::error::{EncodeError, RpcError};
use crate::service::writer::{self, Writer};

/// Sessions without a stream that are kept for the next ones.
const MAX_IDLE: usize = 8;

/// The sessions of a client's streams.
pub(crate) struct Pool<C> {
    idle: Mutex<Vec<Idle<C>>>,
    /// The number of the next stream.
    next: AtomicU32,
}

/// A session, and the request types that its server has assigned to the methods. `None`: the
/// connection knows them.
type Idle<C> = (C, Option<Numbers>);

impl<C> Default for Pool<C> {
    fn default() -> Self {
        Pool { idle: Mutex::default(), next: AtomicU32::new(0) }
    }
}

impl<C: Channel> Pool<C> {
    /// A session that was used before.
    fn take(&self) -> Option<Idle<C>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find(|(channel, _)| channel.is_usable())
    }
}

/// The way back of a stream's session to its pool.
pub(super) struct Return<C> {
    pool: Arc<Pool<C>>,
    numbers: Option<Numbers>,
}

impl<C: Channel> Return<C> {
    /// Returns the session of a stream that has ended.
    pub(super) fn put(&self, channel: C) {
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE && channel.is_usable() {
            idle.push((channel, self.numbers.clone()));
        }
    }
}

/// A stream that is about to be opened.
struct Plan<'a, C: Channel> {
    channel: &'a C,
    pool: &'a Arc<Pool<C>>,
    service: &'a Binding,
    index: u16,
    stream: u32,
    request: Result<MsgBuf, EncodeError>,
    options: CallOptions,
}

impl<'a, C: Channel> Plan<'a, C> {
    fn new(
        channel: &'a C,
        (pool, service): (&'a Arc<Pool<C>>, &'a Binding),
        index: u16,
        encode: impl FnOnce(&mut Writer<'_>) -> Result<(), EncodeError>,
    ) -> Self {
        let stream = pool.next.fetch_add(1, Ordering::Relaxed);
        let request = writer::message(&ChannelMemory(channel), |out| {
            encode(out)?;
            let written = out.extend(&stream.to_le_bytes());
            written.map_err(|_| out.reason(EncodeError::TooLarge { limit: 0 }))
        });
        Plan { channel, pool, service, index, stream, request, options: CallOptions::default() }
    }

    fn start(self) -> Connecting<'a, C> {
        let state = match (&self.request, self.pool.take()) {
            (Ok(_), None) => State::Connecting { future: self.channel.another(self.options) },
            (_, known) => State::Connected { session: known },
        };
        Connecting { plan: Some(self), state }
    }
}

/// A stream whose open call has started.
pub(super) struct Opened<C: Channel> {
    pub(super) channel: C,
    pub(super) pool: Return<C>,
    pub(super) stream: u32,
    pub(super) open: C::OwnedCall,
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
    /// Connects the session of a stream.
    struct Connecting<'a, C>
    where
        C: Channel,
        C: 'a,
    {
        plan: Option<Plan<'a, C>>,
        #[pin]
        state: State<C::Another<'a>, C>,
    }
}

impl<C: Channel> Connecting<'_, C> {
    fn poll<E>(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Opened<C>, RpcError<E>>> {
        let mut this = self.project();
        let Some(plan) = this.plan.as_ref() else { return Poll::Pending }; // polled after its end
        let session = loop {
            let next = match this.state.as_mut().project() {
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
                StateProjection::Connected { session } => break session.take(),
            };
            this.state.set(next);
        };
        let Some(Plan { pool, service, index, stream, request, options, .. }) = this.plan.take()
        else {
            return Poll::Pending;
        };
        let request = request?;
        let Some((channel, numbers)) = session else { return Poll::Pending };
        let method = match &numbers {
            Some(numbers) => number(numbers, index).into(),
            None => service.adopted_method(index),
        };
        let open = channel.open_method(method, request, options);
        let pool = Return { pool: pool.clone(), numbers };
        Poll::Ready(Ok(Opened { channel, pool, stream, open }))
    }
}

macro_rules! opening {
    ($(#[$about:meta])* $plan:ident, $(#[$future_about:meta])* $future:ident -> $opened:ident, $($types:ident),*) => {
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
                $plan { plan: Plan::new(channel, shared, index, encode), types: PhantomData }
            }

            /// The whole stream ends with an error if it has not ended within `after`, counted from
            /// when its session is connected.
            pub fn deadline(mut self, after: impl Into<Option<Duration>>) -> Self {
                self.plan.options.deadline = after.into();
                self
            }

            /// Without a connection to the server, waits for it in place of failing at once, if the
            /// channel is a [`crate::Client`]: see [`crate::ClientCall::wait_for_ready`].
            pub fn wait_for_ready(mut self, waits: bool) -> Self {
                self.plan.options.wait_for_ready = Some(waits);
                self
            }
        }

        impl<'a, C: Channel, $($types),*> IntoFuture for $plan<'a, C, $($types),*> {
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

        impl<C: Channel, $($types),*> Future for $future<'_, C, $($types),*> {
            type Output = Result<$opened<C, $($types),*>, RpcError<E>>;

            fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                let opened = ready!(self.project().connecting.poll(cx))?;
                Poll::Ready(Ok($opened::new(opened)))
            }
        }
    };
}

opening! {
    /// A stream of the server that is opened by `.await`, which connects its session.
    OpenStream,
    /// The future of [`OpenStream`].
    Opening -> Streaming, K, T, E
}

opening! {
    /// A stream of the client that is opened by `.await`, which connects its session.
    OpenUpload,
    /// The future of [`OpenUpload`].
    OpeningUpload -> Upload, K, I, T, E
}
