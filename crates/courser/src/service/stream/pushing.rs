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

/// The pushes of a stream whose answers have not arrived. They are polled without the items, which others may
/// use meanwhile.
pub(super) struct Pushes<C: Channel> {
    channel: C,
    stream: u32,
    calls: VecDeque<Push<C::OwnedCall>>,
}

/// A push that is to be sent.
pub(super) struct Next {
    number: u32,
    batch: Option<MsgBuf>,
    is_last: bool,
}

/// The content of the answers of pushes.
#[derive(Default)]
pub(super) struct Answers {
    count: usize,
    /// The number of those whose push had items.
    with_items: usize,
    discards: bool,
    lost: bool,
    error: Option<RpcError<NoError>>,
}

/// The items of a stream that are on their way to the server.
#[derive(Default)]
pub(super) struct Items {
    next_push: u32,
    filling: Filling,
    /// A complete batch that waits for the window.
    complete: Option<MsgBuf>,
    /// Pushes that are on their way, and the number of those with items.
    on_way: (usize, usize),
    /// The handler takes no more items.
    discards: bool,
    /// The pushes on their way are cancelled.
    cleared: bool,
    /// Items were discarded.
    lost: bool,
    /// The last push is sent when the window has room for it.
    finishing: bool,
    finished: bool,
}

impl fmt::Debug for Items {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Items")
            .field("batches", &self.next_push)
            .field("discards", &self.discards)
            .field("finishing", &self.finishing)
            .finish_non_exhaustive()
    }
}

/// See the module.
pub(super) struct Pushing<C: Channel> {
    items: Items,
    pushes: Pushes<C>,
}

impl<C: Channel> fmt::Debug for Pushing<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pushing")
            .field("stream", &self.pushes.stream)
            .field("items", &self.items)
            .finish()
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

impl Items {
    /// Returns whether the handler takes no more items.
    pub(super) fn discards(&self) -> bool {
        self.discards
    }

    /// Returns whether items were discarded.
    pub(super) fn has_lost(&self) -> bool {
        self.lost
    }

    /// Returns whether the pushes on their way are cancelled.
    pub(super) fn is_cleared(&self) -> bool {
        self.cleared
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
        is_sent && has_ended && self.on_way.0 == 0
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

    /// Frees everything. The pushes on their way are to be dropped, which cancels them.
    pub(super) fn clear(&mut self) {
        self.lost |= self.on_way.1 > 0;
        (self.on_way, self.cleared) = ((0, 0), true);
        self.discard();
    }

    /// Takes note of the answers of pushes. Returns whether there was one.
    ///
    /// # Errors
    /// The server has refused a batch, or it is lost.
    pub(super) fn note(&mut self, answers: Answers) -> Result<bool, RpcError<NoError>> {
        let Answers { count, with_items, discards, lost, error } = answers;
        if self.cleared {
            self.discard(); // items that were added meanwhile
            return Ok(false);
        }
        self.on_way = (self.on_way.0 - count, self.on_way.1 - with_items);
        self.lost |= lost;
        if self.discards | discards {
            self.discard();
        }
        error.map_or(Ok(count > 0), Err)
    }

    /// The next push that the window allows.
    pub(super) fn next(&mut self) -> Option<Next> {
        if self.discards || self.on_way.0 >= WINDOW as usize {
            return None;
        }
        let (batch, is_last) = if let Some(complete) = self.complete.take() {
            (Some(complete), false)
        } else if self.finishing && !self.finished {
            self.finished = true;
            (self.filling.take(), true)
        } else {
            (Some(self.filling.take()?), false)
        };
        let number = self.next_push;
        self.next_push = number.wrapping_add(1);
        self.on_way = (self.on_way.0 + 1, self.on_way.1 + usize::from(batch.is_some()));
        Some(Next { number, batch, is_last })
    }
}

impl<C: Channel> Pushes<C> {
    pub(super) fn new(channel: C, stream: u32) -> Self {
        Pushes { channel, stream, calls: VecDeque::new() }
    }

    /// Cancels all.
    pub(super) fn clear(&mut self) {
        self.calls.clear();
    }

    /// All of them, to be dropped elsewhere.
    pub(super) fn take(&mut self) -> impl Sized + use<C> {
        std::mem::take(&mut self.calls)
    }

    /// Sends a push.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn send(&mut self, next: Next) -> Result<(), RpcError<NoError>> {
        let Next { number, batch, is_last } = next;
        let has_items = batch.is_some();
        let mut trailer = [0; TRAILER];
        trailer[..4].copy_from_slice(&self.stream.to_le_bytes());
        trailer[4..8].copy_from_slice(&number.to_le_bytes());
        trailer[8] = u8::from(is_last);
        let request = batch::with_trailer(batch, &trailer, &ChannelMemory(&self.channel));
        let request = request.map_err(MidStreamError::Encode)?;
        let call = self.channel.call_owned(PUSH, request, CallOptions::OF_STREAM);
        self.calls.push_back(Push { call, has_items });
        Ok(())
    }

    /// Takes the answers that have arrived.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Answers {
        let mut answers = Answers::default();
        self.calls.retain_mut(|push| {
            let Poll::Ready(answer) = Pin::new(&mut push.call).poll(cx) else { return true };
            answers.count += 1;
            answers.with_items += usize::from(push.has_items);
            let checked = answer.map_err(RpcError::from).and_then(|m| Ok(answer::split(m)?));
            match checked {
                Ok((tag::OK, _)) => return false,
                // The outcome of the open call follows, or its handler wants no more items.
                Ok((tag::ENDED, _)) => answers.discards = true,
                Ok((tag, payload)) => match answer::refused(tag, &payload) {
                    RpcError::Stream(StreamError::Unknown) => answers.discards = true,
                    refused => answers.error = Some(refused.mid_stream()),
                },
                Err(e) => answers.error = Some(e.mid_stream()),
            }
            answers.lost |= push.has_items;
            false
        });
        answers
    }
}

impl<C: Channel> Pushing<C> {
    pub(super) fn new(channel: C, stream: u32) -> Self {
        Pushing { items: Items::default(), pushes: Pushes::new(channel, stream) }
    }

    /// The items.
    pub(super) fn items(&self) -> &Items {
        &self.items
    }

    /// Adds an item, if there is room for it.
    pub(super) fn add<K: Encode<I>, I>(&mut self, item: &I) -> Result<(), EncodeError> {
        let memory = BatchMemory(&self.pushes.channel);
        let added = self.items.filling.add::<K, I>(item, &memory)?;
        self.items.complete = completed(added);
        Ok(())
    }

    /// Sends the end behind the items.
    pub(super) fn finish(&mut self) {
        self.items.finish();
    }

    /// Frees everything, and cancels the pushes on their way.
    pub(super) fn clear(&mut self) {
        self.items.clear();
        self.pushes.clear();
    }

    /// Sends batches as far as the window allows, and takes answers.
    ///
    /// # Errors
    /// A batch could not be sent, or the server has refused it.
    pub(super) fn progress(&mut self, cx: &mut Context<'_>) -> Result<(), RpcError<NoError>> {
        loop {
            let mut again = self.items.note(self.pushes.poll(cx))?;
            while let Some(next) = self.items.next() {
                self.pushes.send(next)?;
                again = true;
            }
            if !again {
                return Ok(());
            }
        }
    }
}

/// The batch that is complete. `Nowhere` is for servers that are short of memory.
fn completed(added: Added) -> Option<MsgBuf> {
    match added {
        Added::Here => None,
        Added::Next(complete) | Added::Nowhere(complete) => Some(complete),
    }
}
