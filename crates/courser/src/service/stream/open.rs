//! The entries of streams, as their handlers and their calls hold them.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::accepts::Key;
use super::table::{Direction, Ends, Entry, Stream};
use super::{WINDOW, slot};
use crate::core::shares::{Client, FindClient};
use crate::counters::count;
use crate::error::service::StreamError;
use crate::service::answer::Refusal;
use crate::service::services::Services;

/// An open stream. Dropping it ends the stream.
#[derive(Debug)]
#[doc(hidden)]
pub struct Open {
    services: Services,
    key: Key,
    ends: Ends,
}

impl Open {
    /// Opens a stream. `also`: its other direction, if it has both.
    pub(super) fn new(
        services: &Services,
        key: Key,
        (direction, also): (Direction, Option<Direction>),
        client: Option<Arc<Client>>,
    ) -> Result<Self, Refusal> {
        let share = match client.map(|client| client.open_stream()) {
            Some(None) => return Err(services.stream_error(StreamError::Limit)),
            share => share.flatten(),
        };
        let mut table = services.streams().lock();
        if table.entries.contains_key(&key) {
            return Err(services.stream_error(StreamError::Open));
        }
        let entry = |direction, share| {
            Arc::new(Entry::new(direction, services.streams().held.clone(), share))
        };
        let second = also.map(|direction| entry(direction, None));
        let ends = Ends { first: entry(direction, share), second };
        table.entries.insert(key, ends.clone());
        drop(table);
        count(&services.counters().streams_opened);
        Ok(Open { services: services.clone(), key, ends })
    }

    /// The entry of its only direction, or of the first one.
    pub(super) fn entry(&self) -> &Arc<Entry> {
        &self.ends.first
    }

    /// The entry of a direction that it has.
    pub(super) fn entry_of(&self, direction: Direction) -> &Arc<Entry> {
        self.ends.of(direction)
    }

    /// Returns whether it has both directions.
    pub(super) fn is_both(&self) -> bool {
        self.ends.second.is_some()
    }

    /// Bytes of the buffers with batches that were not pulled, of all streams of the server.
    pub(super) fn held_by_all(&self) -> usize {
        self.services.streams().held()
    }

    /// Accepts the stream: its client may send calls about it.
    pub(super) fn accept(&self) {
        let mut table = self.services.streams().lock();
        self.ends.each().for_each(|entry| entry.lock().accepted = true);
        let waker = table.accepts.accepted(self.key);
        drop(table);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Runs the handler of a stream of the client, and accepts the stream when the handler waits. It
    /// runs at most until the stream is to end because the server shuts down.
    ///
    /// # Errors
    /// It is; the handler is dropped.
    pub async fn run<T>(&self, handler: impl Future<Output = T>) -> Result<T, Refusal> {
        let mut handler = pin!(handler);
        let mut accepted = false;
        poll_fn(|cx| {
            if let Poll::Ready(outcome) = handler.as_mut().poll(cx) {
                return Poll::Ready(Ok(outcome));
            }
            if !std::mem::replace(&mut accepted, true) {
                self.accept();
            }
            match self.entry().lock().own(cx.waker()) {
                true => Poll::Ready(Err(Refusal::ShuttingDown(self.entry().taken()))),
                false => Poll::Pending,
            }
        })
        .await
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut table = self.services.streams().lock();
        table.entries.remove(&self.key);
        let waker = table.accepts.ended(self.key);
        drop(table);
        waker.into_iter().for_each(Waker::wake);
        self.ends.each().for_each(|entry| entry.lock().close());
    }
}

/// A pull or a push that uses a stream, and occupies the slot of its batch.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) number: u32,
    pub(super) entry: Arc<Entry>,
}

impl Use {
    /// Finds the stream of a call. `check` tests the state of the stream, whose slot for the batch is
    /// free.
    pub(super) fn new(
        services: &Services,
        (key, client): (Key, Option<&dyn FindClient>),
        number: u32,
        direction: Direction,
        check: impl FnOnce(&mut Stream) -> Result<(), StreamError>,
    ) -> Result<Self, Refusal> {
        let error = |e| Err(services.stream_error(e));
        let table = services.streams().lock();
        let known = table.entries.get(&key).map(|ends| ends.of(direction).clone());
        drop(table);
        let unknown = || {
            client.and_then(FindClient::find).inspect(|client| client.count_unknown_stream());
            error(StreamError::Unknown)
        };
        let Some(entry) = known else { return unknown() };
        let mut stream = entry.lock();
        if !stream.accepted {
            drop(stream);
            return unknown();
        }
        if entry.direction != direction {
            return error(StreamError::Direction);
        }
        // The call to a stream that has ended is answered at once.
        if !stream.ended {
            let in_window = number.checked_sub(stream.next).is_some_and(|ahead| ahead < WINDOW);
            if !in_window || stream.waiting[slot(number)].is_some() {
                return error(StreamError::Sequence);
            }
            if let Err(e) = check(&mut stream) {
                return error(e);
            }
            stream.waiting[slot(number)] = Some(None);
        }
        drop(stream);
        Ok(Use { number, entry })
    }

    /// Waits for a change of the stream.
    pub(super) fn wait(&self, stream: &mut Stream, waker: &Waker) {
        stream.waiting[slot(self.number)] = Some(Some(waker.clone()));
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut stream = self.entry.lock();
        // The slot of an earlier batch is that of a later one.
        if self.number >= stream.next {
            stream.waiting[slot(self.number)] = None;
        }
    }
}
