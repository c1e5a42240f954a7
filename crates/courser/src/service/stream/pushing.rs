//! The client's items on their way to the server: batches, and the pushes that carry them.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use courser_buf::{AllocError, MsgBuf};

use super::WINDOW;
use super::batch::{self, Added, Filling};
use crate::channel::method::PUSH;
use crate::channel::{CallOptions, Channel};
use crate::error::service::{EncodeError, MidStreamError, NoError, RpcError, StreamError};
use crate::service::answer::{self, tag};
use crate::service::binding::ChannelMemory;
use crate::service::codec::Encode;
use crate::service::writer::Memory;

/// Bytes behind the items of a push.
const TRAILER: usize = 9;

/// A push whose answer has not arrived.
struct Push<F> {
    call: F,
    has_items: bool,
}

/// See the module.
pub(super) struct Pushing<C: Channel> {
    channel: C,
    stream: u32,
    pushes: VecDeque<Push<C::OwnedCall>>,
    next_push: u32,
    filling: Filling,
    /// A complete batch that waits for the window.
    complete: Option<MsgBuf>,
    /// The handler takes no more items.
    discards: bool,
    /// Items were discarded.
    lost: bool,
    /// The last push is sent when the window has room for it.
    finishing: bool,
    finished: bool,
}

impl<C: Channel> fmt::Debug for Pushing<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pushing")
            .field("stream", &self.stream)
            .field("batches", &self.next_push)
            .field("discards", &self.discards)
            .field("finishing", &self.finishing)
            .finish_non_exhaustive()
    }
}

/// The memory of a connection, less the trailer.
pub(super) struct BatchMemory<'a, C>(pub(super) &'a C);

impl<C: Channel> Memory for BatchMemory<'_, C> {
    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.0.alloc(len)
    }
    fn limit(&self) -> usize {
        self.0.limit().saturating_sub(TRAILER)
    }
}

impl<C: Channel> Pushing<C> {
    pub(super) fn new(channel: C, stream: u32) -> Self {
        Pushing {
            channel,
            stream,
            pushes: VecDeque::new(),
            next_push: 0,
            filling: Filling::default(),
            complete: None,
            discards: false,
            lost: false,
            finishing: false,
            finished: false,
        }
    }

    /// Returns whether the handler takes no more items.
    pub(super) fn discards(&self) -> bool {
        self.discards
    }

    /// Returns whether items were discarded.
    pub(super) fn has_lost(&self) -> bool {
        self.lost
    }

    /// Returns whether the end of the items is sent, or will be.
    pub(super) fn is_finishing(&self) -> bool {
        self.finishing
    }

    /// Returns whether another item can be added.
    pub(super) fn has_room(&self) -> bool {
        self.complete.is_none() && !self.filling.is_full()
    }

    /// Returns whether nothing waits for the handler to take it, and the end is sent if there is one.
    pub(super) fn is_taken(&self) -> bool {
        let is_sent = self.filling.is_empty() && self.complete.is_none();
        let has_ended = !self.finishing || self.finished || self.discards;
        is_sent && has_ended && self.pushes.is_empty()
    }

    /// Adds an item, if there is room for it.
    pub(super) fn add<K: Encode<I>, I>(&mut self, item: &I) -> Result<(), EncodeError> {
        let added = self.filling.add::<K, I>(item, &BatchMemory(&self.channel))?;
        self.complete = completed(added);
        Ok(())
    }

    /// Takes the batch that is filled, for the time in which an item is encoded.
    pub(super) fn take_filling(&mut self) -> Filling {
        std::mem::take(&mut self.filling)
    }

    pub(super) fn put_back(&mut self, filling: Filling, added: Option<Added>) {
        (self.filling, self.complete) = (filling, added.and_then(completed));
    }

    /// Sends the end behind the items.
    pub(super) fn finish(&mut self) {
        self.finishing = true;
    }

    /// Sends no more items. Those that wait for the window are lost.
    pub(super) fn discard(&mut self) {
        self.discards = true;
        self.lost |= self.complete.is_some() || !self.filling.is_empty();
        (self.complete, self.filling) = (None, Filling::default());
    }

    /// Frees everything, and cancels the pushes on their way.
    pub(super) fn clear(&mut self) {
        self.lost |= self.pushes.iter().any(|push| push.has_items);
        self.pushes.clear();
        self.discard();
    }

    /// Sends batches as far as the window allows, and takes answers. Returns whether there was one.
    ///
    /// # Errors
    /// A batch could not be sent, or the server has refused it.
    pub(super) fn progress(&mut self, cx: &mut Context<'_>) -> Result<bool, RpcError<NoError>> {
        let mut any = false;
        loop {
            let answered = self.poll_pushes(cx)?;
            any |= answered;
            if self.discards {
                self.discard();
            }
            let pushed = self.fill_window()?;
            if !answered && !pushed {
                return Ok(any);
            }
        }
    }

    /// Sends batches. Returns whether there was one.
    fn fill_window(&mut self) -> Result<bool, RpcError<NoError>> {
        let mut any = false;
        while !self.discards && (self.pushes.len() as u32) < WINDOW {
            if let Some(complete) = self.complete.take() {
                self.push(Some(complete), false)?;
            } else if self.finishing && !self.finished {
                self.finished = true;
                let batch = self.filling.take();
                self.push(batch, true)?;
            } else if let Some(batch) = self.filling.take() {
                self.push(Some(batch), false)?;
            } else {
                break;
            }
            any = true;
        }
        Ok(any)
    }

    fn push(&mut self, batch: Option<MsgBuf>, is_last: bool) -> Result<(), RpcError<NoError>> {
        let has_items = batch.is_some();
        let mut trailer = [0; TRAILER];
        trailer[..4].copy_from_slice(&self.stream.to_le_bytes());
        trailer[4..8].copy_from_slice(&self.next_push.to_le_bytes());
        trailer[8] = u8::from(is_last);
        let request = batch::with_trailer(batch, &trailer, &ChannelMemory(&self.channel));
        let request = request.map_err(MidStreamError::Encode)?;
        self.next_push = self.next_push.wrapping_add(1);
        let call = self.channel.call_owned(PUSH, request, CallOptions::OF_STREAM);
        self.pushes.push_back(Push { call, has_items });
        Ok(())
    }

    /// Takes the answers of pushes. Returns whether there was one.
    fn poll_pushes(&mut self, cx: &mut Context<'_>) -> Result<bool, RpcError<NoError>> {
        let (mut any, mut discards, mut lost, mut error) = (false, false, false, None);
        self.pushes.retain_mut(|push| {
            let Poll::Ready(answer) = Pin::new(&mut push.call).poll(cx) else { return true };
            any = true;
            let checked = answer.map_err(RpcError::from).and_then(|m| Ok(answer::split(m)?));
            match checked {
                Ok((tag::OK, _)) => return false,
                // The outcome of the open call follows, or its handler wants no more items.
                Ok((tag::ENDED, _)) => discards = true,
                Ok((tag, payload)) => match answer::refused(tag, &payload) {
                    RpcError::Stream(StreamError::Unknown) => discards = true,
                    refused => error = Some(refused.mid_stream()),
                },
                Err(e) => error = Some(e.mid_stream()),
            }
            lost |= push.has_items;
            false
        });
        self.discards |= discards;
        self.lost |= lost;
        error.map_or(Ok(any), Err)
    }
}

/// The batch that is complete. `Nowhere` is for servers that are short of memory.
fn completed(added: Added) -> Option<MsgBuf> {
    match added {
        Added::Here => None,
        Added::Next(complete) | Added::Nowhere(complete) => Some(complete),
    }
}
