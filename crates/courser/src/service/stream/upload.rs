//! The client's end of a stream of the client.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use courser_buf::{AllocError, MsgBuf};
use futures_core::Stream;

use super::WINDOW;
use super::batch::{self, Added, Filling};
use super::client::{OpenCall, Opened, Return};
use crate::channel::method::PUSH;
use crate::channel::{CallOptions, Channel};
use crate::error::service::{MidStreamError, RpcError, StreamError};
use crate::service::answer::{self, tag};
use crate::service::binding::ChannelMemory;
use crate::service::codec::{Decode, Encode};
use crate::service::writer::Memory;

/// Bytes behind the items of a push.
const TRAILER: usize = 9;

/// A stream of the client: [`Upload::send`] its items, then [`Upload::finish`]. Dropping it cancels
/// the call: the server drops its handler.
///
/// It has a session of its own, so a handler that stalls delays no other call. At most two batches
/// are on the way, a third one is filled, each with up to 64 KiB of items, or one larger item, and
/// the next item waits. The server holds those on the way.
pub struct Upload<C: Channel, K, I, T, E> {
    channel: C,
    pool: Return<C>,
    stream: u32,
    /// Until the outcome has arrived.
    open: Option<C::OwnedCall>,
    outcome: Option<Result<T, RpcError<E>>>,
    pushes: VecDeque<C::OwnedCall>,
    next_push: u32,
    filling: Filling,
    /// A complete batch that waits for the window.
    complete: Option<MsgBuf>,
    /// The handler takes no more items.
    discards: bool,
    /// [`Upload::finish`] sends what is filled with the last push.
    finishing: bool,
    finished: bool,
    types: PhantomData<fn(K, I)>,
}

impl<C: Channel, K, I, T, E> Unpin for Upload<C, K, I, T, E> {}

impl<C: Channel, K, I, T, E> fmt::Debug for Upload<C, K, I, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload")
            .field("stream", &self.stream)
            .field("batches", &self.next_push)
            .field("ended", &self.outcome.is_some())
            .finish_non_exhaustive()
    }
}

/// The memory of a connection, less the trailer.
struct BatchMemory<'a, C>(&'a C);

impl<C: Channel> Memory for BatchMemory<'_, C> {
    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.0.alloc(len)
    }
    fn limit(&self) -> usize {
        self.0.limit().saturating_sub(TRAILER)
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
                    if let RpcError::Service(_) = e {
                        pool.put(channel);
                    }
                    return Err(e);
                }
            },
        };
        Ok(Upload {
            channel,
            pool,
            stream,
            open,
            outcome,
            pushes: VecDeque::new(),
            next_push: 0,
            filling: Filling::default(),
            complete: None,
            discards: false,
            finishing: false,
            finished: false,
            types: PhantomData,
        })
    }
}

impl<C: Channel, K, I, T, E> Upload<C, K, I, T, E> {
    /// Returns whether the handler has returned, or the call has failed: items are discarded.
    pub fn has_ended(&self) -> bool {
        self.outcome.is_some()
    }

    fn push(&mut self, batch: Option<MsgBuf>, is_last: bool) -> Result<(), RpcError<E>> {
        let mut trailer = [0; TRAILER];
        trailer[..4].copy_from_slice(&self.stream.to_le_bytes());
        trailer[4..8].copy_from_slice(&self.next_push.to_le_bytes());
        trailer[8] = u8::from(is_last);
        let request = batch::with_trailer(batch, &trailer, &ChannelMemory(&self.channel));
        let request = request.map_err(MidStreamError::Encode)?;
        self.next_push = self.next_push.wrapping_add(1);
        self.pushes.push_back(self.channel.call_owned(PUSH, request, CallOptions::FAIL_FAST));
        Ok(())
    }

    /// Frees what the stream holds.
    fn close(&mut self) {
        self.open = None;
        self.pushes.clear();
        (self.complete, self.filling) = (None, Filling::default());
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
        let added = self.filling.add::<K, I>(item, &BatchMemory(&self.channel));
        self.complete = match added.map_err(MidStreamError::Encode)? {
            Added::Here => None,
            // `Nowhere` is for servers that are short of memory.
            Added::Next(complete) | Added::Nowhere(complete) => Some(complete),
        };
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
            let sent = self.pushes.is_empty() && self.filling.is_empty() && self.complete.is_none();
            let sent = sent && !self.discards;
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
        self.finishing = true;
        poll_fn(|cx| self.poll_finish(cx)).await
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, RpcError<E>>> {
        loop {
            self.progress(cx);
            if let Some(outcome) = self.outcome.take() {
                let failed = !matches!(outcome, Ok(_) | Err(RpcError::Service(_)));
                self.close();
                if !failed {
                    self.pool.put(self.channel.clone());
                }
                return Poll::Ready(outcome);
            }
            let room = (self.pushes.len() as u32) < WINDOW;
            if self.finished || self.discards || !room || self.complete.is_some() {
                return Poll::Pending;
            }
            self.finished = true;
            let batch = self.filling.take();
            if let Err(e) = self.push(batch, true) {
                self.fail(e);
            }
        }
    }

    /// Waits until another item can be added.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.progress(cx);
        // When nothing is taken any more the outcome follows, which must not be a busy wait.
        let room = self.complete.is_none() && !self.filling.is_full() && !self.discards;
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
    }

    /// Sends batches as far as the window allows, and takes answers.
    fn progress(&mut self, cx: &mut Context<'_>) {
        loop {
            if self.outcome.is_some() {
                return;
            }
            if let Some(open) = &mut self.open
                && let Poll::Ready(answer) = Pin::new(open).poll(cx)
            {
                self.close();
                let outcome = answer.map_err(RpcError::from);
                self.outcome = Some(outcome.and_then(answer::decode::<K, T, E>));
                return;
            }
            let (answered, error) = self.poll_pushes(cx);
            if let Some(error) = error {
                return self.fail(error);
            }
            if self.discards {
                (self.complete, self.filling) = (None, Filling::default());
            }
            let mut pushed = false;
            while (self.pushes.len() as u32) < WINDOW {
                let next = match self.complete.take() {
                    None if !self.finishing => self.filling.take(),
                    complete => complete,
                };
                let Some(batch) = next else { break };
                if let Err(e) = self.push(Some(batch), false) {
                    return self.fail(e);
                }
                pushed = true;
            }
            if !answered && !pushed {
                return;
            }
        }
    }

    /// Takes the answers of pushes. Returns whether there was one, and an error.
    fn poll_pushes(&mut self, cx: &mut Context<'_>) -> (bool, Option<RpcError<E>>) {
        let (mut any, mut discards, mut error) = (false, false, None);
        self.pushes.retain_mut(|push| {
            let Poll::Ready(answer) = Pin::new(push).poll(cx) else { return true };
            any = true;
            let checked = answer.map_err(RpcError::from).and_then(|m| Ok(answer::split(m)?));
            match checked {
                Ok((tag::OK, _)) => {}
                // The outcome of the open call follows.
                Ok((tag::ENDED, _)) => discards = true,
                Ok((tag, payload)) => match answer::refused(tag, &payload) {
                    RpcError::Stream(StreamError::Unknown) => discards = true,
                    refused => error = Some(refused.mid_stream()),
                },
                Err(e) => error = Some(e.mid_stream()),
            }
            false
        });
        self.discards |= discards;
        (any, error)
    }
}
