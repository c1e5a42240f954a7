//! The client's end of a stream of the server.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use courser_buf::MsgBuf;
use futures_core::Stream;

use super::WINDOW;
use super::batch::Reading;
use super::counted::CountedStream;
use super::halves::{Half, Halves};
use super::pool::{OpenCall, Opened, Return};
use crate::channel::method::PULL;
use crate::channel::{CallOptions, Channel};
use crate::error::failure::CallFailure;
use crate::error::service::{DecodeError, EncodeError, MidStreamError, RpcError, StreamError};
use crate::service::answer::{self, tag};
use crate::service::binding::ChannelMemory;
use crate::service::client::Types;
use crate::service::codec::{Decode, Payload};

/// The items of a stream of the server, or the receiving half of a [`Duplex`](super::Duplex). An error is
/// the last item. Dropping the stream cancels it: the server drops the stream of its handler.
///
/// It has a session of its own, so a reader that stalls delays no other call. At most two batches
/// are here or on the way, each with up to 64 KiB of items, or one larger item. The server holds
/// two more, and the item that did not fit.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use futures::TryStreamExt;
///
/// let store = StoreClient::connect(&uri).await?;
/// let mut keys = store.list("b".to_owned()).await?;
/// assert_eq!(keys.next().await.transpose()?.as_deref(), Some("pear"));
/// assert!(keys.next().await.is_none());
/// // It is a `Stream`, too.
/// let all: Vec<String> = store.list("a".to_owned()).await?.try_collect().await?;
/// assert_eq!(all, ["apple", "pear"]);
/// # Ok(()) }) }
/// ```
pub struct Streaming<C: Channel, K, T, E> {
    channel: C,
    pool: Return<C>,
    stream: u32,
    /// Until the end has arrived.
    open: Option<End<C>>,
    pulls: VecDeque<Pull<C::OwnedCall>>,
    next_pull: u32,
    reading: Option<Reading>,
    /// Batches that were read.
    read: u32,
    /// Items that were returned.
    items: u64,
    /// The number of batches, and the outcome.
    end: Option<(u32, Option<RpcError<E>>)>,
    /// The server has answered a pull that nothing follows.
    no_more: bool,
    done: bool,
    counted: CountedStream<C>,
    types: Types<(K, T, E)>,
}

/// The answer of the open call that is awaited.
pub(super) enum End<C: Channel> {
    Call(C::OwnedCall),
    /// The sending half has it, too.
    Shared(Receiver<C>),
}

/// The receiving half of a stream each way. Dropping it cancels the stream.
pub(super) struct Receiver<C: Channel>(Arc<Halves<C>>);

impl<C: Channel> Drop for Receiver<C> {
    fn drop(&mut self) {
        self.0.cancel(Half::Receiver);
    }
}

impl<C: Channel> End<C> {
    pub(super) fn of_both(halves: Arc<Halves<C>>) -> Self {
        End::Shared(Receiver(halves))
    }

    fn poll<E>(&mut self, cx: &mut Context<'_>) -> Poll<Result<MsgBuf, RpcError<E>>> {
        match self {
            End::Call(call) => Pin::new(call).poll(cx).map_err(RpcError::from),
            End::Shared(receiver) => receiver.0.poll_end(cx).map_err(RpcError::widen),
        }
    }
}

/// The result of a step of a stream.
enum Step<T, E> {
    /// The next item, or the end.
    Next(Option<Result<T, RpcError<E>>>),
    Again,
    Wait,
}

/// A pull, whose answer may arrive before that of an earlier one.
enum Pull<F> {
    Running(F),
    Answered(Option<Result<MsgBuf, CallFailure>>),
}

impl<F: Future<Output = Result<MsgBuf, CallFailure>> + Unpin> Pull<F> {
    fn poll(&mut self, cx: &mut Context<'_>) {
        if let Pull::Running(call) = self
            && let Poll::Ready(answer) = Pin::new(call).poll(cx)
        {
            *self = Pull::Answered(Some(answer));
        }
    }

    fn take(&mut self) -> Option<Result<MsgBuf, CallFailure>> {
        match self {
            Pull::Running(_) => None,
            Pull::Answered(answer) => answer.take(),
        }
    }
}

impl<C: Channel, K, T, E> Unpin for Streaming<C, K, T, E> {}

impl<C: Channel, K, T, E> fmt::Debug for Streaming<C, K, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streaming")
            .field("stream", &self.stream)
            .field("batches", &self.read)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

impl<C: Channel, K: Decode<T> + Decode<E>, T, E> Streaming<C, K, T, E> {
    /// # Errors
    /// The open call has ended with an error, before the first item.
    pub(super) fn new(opened: Opened<C>) -> Result<Self, RpcError<E>> {
        let Opened { channel, pool, stream, open } = opened;
        let (open, ended) = match open {
            OpenCall::Running(call) => (Some(End::Call(call)), None),
            OpenCall::Answered(answer) => (None, Some(answer)),
        };
        Streaming::opened((channel, pool, stream), open, ended)
    }

    /// `ended`: the answer of an open call that has ended.
    ///
    /// # Errors
    /// As [`Streaming::new`].
    pub(super) fn opened(
        (channel, pool, stream): (C, Return<C>, u32),
        open: Option<End<C>>,
        ended: Option<MsgBuf>,
    ) -> Result<Self, RpcError<E>> {
        let mut new = Streaming {
            channel,
            pool,
            stream,
            open,
            pulls: VecDeque::new(),
            next_pull: 0,
            reading: None,
            read: 0,
            items: 0,
            end: None,
            no_more: false,
            done: false,
            counted: CountedStream::default(),
            types: PhantomData,
        };
        if let Some(answer) = ended {
            let error = match new.read_end(answer) {
                Err(refused) => Some(refused),
                Ok(()) => match &mut new.end {
                    Some((0, error)) => error.take(),
                    _ => None,
                },
            };
            if let Some(error) = error {
                new.close(false, Ok(())); // the error is counted by the opening
                return Err(error);
            }
        }
        Ok(new)
    }
}

impl<C: Channel, K, T, E> Streaming<C, K, T, E> {
    /// Counts the stream.
    pub(super) fn counted(mut self, counted: CountedStream<C>) -> Self {
        self.counted = counted;
        self
    }

    /// Pulls batches as far as the window allows.
    fn pull(&mut self) -> Result<(), RpcError<E>> {
        let held = u32::from(self.reading.is_some());
        while !self.no_more && self.end.is_none() && (self.pulls.len() as u32) + held < WINDOW {
            let request = self.channel.alloc(8).map_err(CallFailure::from);
            let mut request = request.map_err(MidStreamError::Call)?;
            request[..4].copy_from_slice(&self.stream.to_le_bytes());
            request[4..].copy_from_slice(&self.next_pull.to_le_bytes());
            self.next_pull = self.next_pull.wrapping_add(1);
            self.pulls.push_back(Pull::Running(self.channel.call_owned(
                PULL,
                request,
                CallOptions::OF_STREAM,
            )));
        }
        Ok(())
    }
}

impl<C: Channel, K: Decode<T> + Decode<E>, T, E> Streaming<C, K, T, E> {
    /// The next item; `None` after the last one.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Next<'_, Self> {
        Next::new(self)
    }

    /// An item of the batch that is read.
    fn item(&mut self) -> Option<Result<T, RpcError<E>>> {
        let reading = self.reading.as_mut()?;
        let memory = ChannelMemory(&self.channel);
        let item = match reading.next()? {
            Ok(bytes) => <K as Decode<T>>::decode(Payload::borrowed(bytes, &memory)),
            Err(e) => Err(e),
        };
        let is_last = reading.is_empty();
        if item.is_ok() {
            self.items += 1;
            self.counted.item();
        }
        if is_last {
            self.reading = None;
            self.read = self.read.wrapping_add(1);
            self.counted.batch();
        }
        Some(item.map_err(|e| MidStreamError::Decode(e).into()))
    }

    /// Reads the end from the answer of the open call.
    fn read_end(&mut self, response: MsgBuf) -> Result<(), RpcError<E>> {
        let (tag, mut payload) = answer::split(response)?;
        if !matches!(tag, tag::OK | tag::FAILED | tag::ITEM_UNENCODED | tag::SHUTTING_DOWN) {
            return Err(answer::refused(tag, &payload));
        }
        let Some((value, batches)) = payload.split_last_chunk::<4>() else {
            return Err(DecodeError::Form("an end of a stream without its length").into());
        };
        let (len, batches) = (value.len(), u32::from_le_bytes(*batches));
        payload.truncate(len);
        let error = match tag {
            tag::FAILED => {
                Some(RpcError::Service(<K as Decode<E>>::decode(Payload::owned(payload))?))
            }
            tag::ITEM_UNENCODED => {
                let text = answer::peer_text(&payload);
                Some(MidStreamError::Encode(EncodeError::Remote(text)).into())
            }
            // The items are counted when it is returned.
            tag::SHUTTING_DOWN if len == 0 => {
                Some(MidStreamError::ShuttingDown { items: 0 }.into())
            }
            _ if len == 0 => None,
            _ => return Err(DecodeError::Trailing { left: len }.into()),
        };
        self.end = Some((batches, error));
        Ok(())
    }

    /// Takes the answer of the oldest pull.
    fn pulled(&mut self, response: MsgBuf) -> Result<(), RpcError<E>> {
        let (tag, payload) = answer::split(response)?;
        match tag {
            tag::OK if payload.is_empty() => {
                return Err(DecodeError::Form("a batch without items").into());
            }
            tag::OK => self.reading = Some(Reading::new(payload)),
            tag::ENDED => {
                self.no_more = true;
                self.pulls.clear();
            }
            tag => match answer::refused(tag, &payload) {
                // The stream has ended before this pull: its end follows.
                RpcError::Stream(StreamError::Unknown) => {
                    self.no_more = true;
                    self.pulls.clear();
                }
                error => return Err(error),
            },
        }
        Ok(())
    }

    fn step(&mut self, cx: &mut Context<'_>) -> Step<T, E> {
        if let Some(item) = self.item() {
            return Step::Next(Some(item));
        }
        if let Err(e) = self.pull() {
            return Step::Next(Some(Err(e)));
        }
        if let Some(open) = &mut self.open
            && let Poll::Ready(answer) = open.poll(cx)
        {
            self.open = None;
            if let Err(e) = answer.and_then(|m| self.read_end(m)) {
                return Step::Next(Some(Err(e)));
            }
        }
        if let Some((batches, error)) = &mut self.end
            && *batches == self.read
        {
            let mut error = error.take();
            if let Some(RpcError::MidStream(MidStreamError::ShuttingDown { items })) = &mut error {
                *items = self.items;
            }
            return Step::Next(error.map(Err));
        }
        // All of them are polled, so that each is started.
        self.pulls.iter_mut().for_each(|pull| pull.poll(cx));
        match self.pulls.front_mut().map(Pull::take) {
            Some(Some(answer)) => {
                self.pulls.pop_front();
                match answer.map_err(RpcError::from).and_then(|m| self.pulled(m)) {
                    Ok(()) => Step::Again,
                    Err(e) => Step::Next(Some(Err(e.mid_stream()))),
                }
            }
            Some(None) => Step::Wait,
            // All pulls are answered, and the end says that there were more batches.
            None if self.end.is_some() => {
                let error = DecodeError::Form("an end of a stream with too large a length");
                Step::Next(Some(Err(error.into())))
            }
            None => Step::Wait,
        }
    }

    /// Frees what a stream holds that has ended, or has failed.
    fn close(&mut self, failed: bool, end: Result<(), &RpcError<E>>) {
        match end {
            Ok(()) => self.counted.end::<_, E>(&Ok(())),
            Err(e) => self.counted.fail(e),
        }
        self.done = true;
        self.open = None;
        self.pulls.clear();
        self.reading = None;
        if !failed {
            self.pool.put(self.channel.clone());
        }
    }
}

impl<C: Channel, K: Decode<T> + Decode<E>, T, E> Stream for Streaming<C, K, T, E> {
    type Item = Result<T, RpcError<E>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.done {
            return Poll::Ready(None);
        }
        loop {
            match this.step(cx) {
                Step::Again => {}
                Step::Next(item) => {
                    match &item {
                        Some(Ok(_)) => {}
                        None => this.close(false, Ok(())),
                        Some(Err(e @ RpcError::Service(_))) => this.close(false, Err(e)),
                        Some(Err(e)) => this.close(true, Err(e)),
                    }
                    return Poll::Ready(item);
                }
                Step::Wait => return Poll::Pending,
            }
        }
    }
}

/// The future of the next item of a stream.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// let store = StoreClient::connect(&uri).await?;
/// let mut keys = store.list("a".to_owned()).await?;
/// let mut count = 0;
/// while let Some(key) = keys.next().await {
///     count += key?.len();
/// }
/// assert_eq!(count, 9);
/// # Ok(()) }) }
/// ```
#[must_use = "futures do nothing unless they are polled"]
#[derive(Debug)]
pub struct Next<'a, S>(&'a mut S);

impl<'a, S> Next<'a, S> {
    pub(super) fn new(stream: &'a mut S) -> Self {
        Next(stream)
    }
}

impl<S: Stream + Unpin> Future for Next<'_, S> {
    type Output = Option<S::Item>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut *self.0).poll_next(cx)
    }
}
