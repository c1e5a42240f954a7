//! The client's end of a stream of the client.

use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use futures_core::Stream;

use super::counted::CountedStream;
use super::pool::{OpenCall, Opened, Return};
use super::pushing::Pushing;
use crate::channel::Channel;
use crate::error::service::{MidStreamError, RpcError};
use crate::service::answer;
use crate::service::codec::{Decode, Encode};

/// A stream of the client: [`Upload::send`] its items, then [`Upload::finish`]. Dropping it cancels
/// the call: the server drops its handler.
///
/// It has a session of its own, so a handler that stalls delays no other call. At most two batches
/// are on the way, a third one is filled, each with up to 64 KiB of items, or one larger item, and
/// the next item waits. The server holds those on the way.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// let store = StoreClient::connect(&uri).await?;
/// let mut keys = store.load().await?;
/// for key in ["apple", "pear", "plum"] {
///     keys.send(&key.to_owned()).await?;
/// }
/// assert_eq!(keys.finish().await?, 3);
/// # Ok(()) }) }
/// ```
pub struct Upload<C: Channel, K, I, T, E> {
    channel: C,
    pool: Return<C>,
    /// Until the outcome has arrived.
    open: Option<C::OwnedCall>,
    outcome: Option<Result<T, RpcError<E>>>,
    pushing: Pushing<C>,
    counted: CountedStream<C>,
    types: PhantomData<fn(K, I)>,
}

impl<C: Channel, K, I, T, E> Unpin for Upload<C, K, I, T, E> {}

impl<C: Channel, K, I, T, E> fmt::Debug for Upload<C, K, I, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload")
            .field("pushing", &self.pushing)
            .field("ended", &self.outcome.is_some())
            .finish_non_exhaustive()
    }
}

impl<C: Channel, K: Decode<T> + Decode<E>, I, T, E> Upload<C, K, I, T, E> {
    /// # Errors
    /// The open call has ended with an error, before the first item.
    pub(super) fn new(opened: Opened<C>) -> Result<Self, RpcError<E>> {
        let Opened { channel, pool, stream, open } = opened;
        let (open, outcome) = match open {
            OpenCall::Running(open) => (Some(open), None),
            OpenCall::Answered(answer) => match answer::decode::<K, T, E>(answer) {
                Ok(value) => (None, Some(Ok(value))),
                Err(e) => {
                    pool.put(channel);
                    return Err(e);
                }
            },
        };
        let pushing = Pushing::new(channel.clone(), stream);
        let counted = CountedStream::default();
        Ok(Upload { channel, pool, open, outcome, pushing, counted, types: PhantomData })
    }
}

impl<C: Channel, K, I, T, E> Upload<C, K, I, T, E> {
    /// Counts the stream.
    pub(super) fn counted(mut self, counted: CountedStream<C>) -> Self {
        self.counted = counted;
        self.count_end();
        self
    }

    /// Counts the end of the stream, once there is an outcome.
    fn count_end(&mut self) {
        if let Some(outcome) = &self.outcome {
            self.counted.end(outcome);
        }
    }

    /// Returns whether the handler has returned, or the call has failed: items are discarded.
    pub fn has_ended(&self) -> bool {
        self.outcome.is_some()
    }

    /// Frees what the stream holds.
    fn close(&mut self) {
        self.open = None;
        self.pushing.clear();
    }
}

impl<C: Channel, K: Encode<I> + Decode<T> + Decode<E>, I, T, E> Upload<C, K, I, T, E> {
    /// Sends an item, when there is room for it. Items share batches while two batches are on the
    /// way.
    ///
    /// Dropping the future before its end sends nothing of the item. After the handler has returned
    /// without an error, items are discarded: see [`Upload::has_ended`].
    ///
    /// # Errors
    /// The item cannot be encoded, and others may be sent; or the call has ended with this error.
    pub async fn send(&mut self, item: &I) -> Result<(), RpcError<E>> {
        poll_fn(|cx| self.poll_room(cx)).await;
        self.ended_with()?;
        if self.outcome.is_some() {
            return Ok(());
        }
        self.pushing.add::<K, I>(item).map_err(MidStreamError::Encode)?;
        self.counted.item();
        poll_fn(|cx| {
            self.progress(cx);
            Poll::Ready(())
        })
        .await;
        self.ended_with()
    }

    /// Sends the items of a stream, until it ends or the handler has returned.
    ///
    /// # Errors
    /// As [`Upload::send`]; the items after it were not sent.
    pub async fn send_all<S: Stream<Item = I>>(&mut self, items: S) -> Result<(), RpcError<E>> {
        let mut items = pin!(items);
        while !self.has_ended()
            && let Some(item) = poll_fn(|cx| items.as_mut().poll_next(cx)).await
        {
            self.send(&item).await?;
        }
        Ok(())
    }

    /// Waits until the handler has taken all items.
    ///
    /// # Errors
    /// The call has ended with this error.
    pub async fn flush(&mut self) -> Result<(), RpcError<E>> {
        poll_fn(|cx| {
            self.progress(cx);
            let sent = self.pushing.items().is_taken() && !self.pushing.items().discards();
            if sent || self.outcome.is_some() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.ended_with()
    }

    /// Ends the stream, and waits for the handler's outcome.
    ///
    /// # Errors
    /// The handler has returned its error, or the call has failed.
    pub async fn finish(mut self) -> Result<T, RpcError<E>> {
        self.pushing.finish();
        poll_fn(|cx| self.poll_finish(cx)).await
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, RpcError<E>>> {
        self.progress(cx);
        let Some(outcome) = self.outcome.take() else { return Poll::Pending };
        let failed = !matches!(outcome, Ok(_) | Err(RpcError::Service(_)));
        self.close();
        if !failed {
            self.pool.put(self.channel.clone());
        }
        Poll::Ready(outcome)
    }

    /// Waits until another item can be added.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.progress(cx);
        // When nothing is taken any more the outcome follows, which must not be a busy wait.
        let room = self.pushing.items().has_room() && !self.pushing.items().discards();
        if room || self.outcome.is_some() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The error with which the call has ended, once.
    fn ended_with(&mut self) -> Result<(), RpcError<E>> {
        match self.outcome.take() {
            Some(Err(e)) => {
                self.outcome = Some(Err(crate::error::failure::CallFailure::Stopped.into()));
                Err(e)
            }
            other => {
                self.outcome = other;
                Ok(())
            }
        }
    }

    fn fail(&mut self, error: RpcError<E>) {
        self.close();
        self.outcome = Some(Err(error));
        self.count_end();
    }

    /// Sends batches as far as the window allows, and takes answers.
    fn progress(&mut self, cx: &mut Context<'_>) {
        if self.outcome.is_some() {
            return;
        }
        if let Some(open) = &mut self.open
            && let Poll::Ready(answer) = Pin::new(open).poll(cx)
        {
            self.close();
            let outcome = answer.map_err(RpcError::from);
            self.outcome = Some(outcome.and_then(answer::decode::<K, T, E>));
            return self.count_end();
        }
        self.counted.batch();
        if let Err(e) = self.pushing.progress(cx) {
            self.fail(e.widen());
        }
    }
}
