//! The streams of a server: one entry for each, by its session and its number.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use courser_buf::MsgBuf;

use super::{WINDOW, batch::Filling, slot};
use crate::service::answer::Refusal;
use crate::service::error::StreamError;
use crate::service::registry::SessionKey;
use crate::service::services::{Services, count};

/// Streams of a session that have pulls or pushes and no open call. Only packets that overtake each
/// other make them, of the one stream that a client has on a session, or a hostile client.
const MAX_UNOPENED: u32 = 4;

/// A stream of a session.
pub(super) type Key = (SessionKey, u32);

/// The streams of a server.
#[derive(Debug, Default)]
pub(crate) struct Streams(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    entries: BTreeMap<Key, Arc<Entry>>,
    /// By session, where there are any.
    unopened: BTreeMap<SessionKey, u32>,
}

impl Table {
    fn unopened(&self, session: SessionKey) -> u32 {
        self.unopened.get(&session).copied().unwrap_or(0)
    }

    fn begin_unopened(&mut self, session: SessionKey) {
        *self.unopened.entry(session).or_default() += 1;
    }

    fn end_unopened(&mut self, session: SessionKey) {
        match self.unopened(session) {
            0 | 1 => drop(self.unopened.remove(&session)),
            more => drop(self.unopened.insert(session, more - 1)),
        }
    }
}

impl Streams {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Streams that are open, or have calls that wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().entries.len()
    }
}

/// Which end sends the items.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Outgoing,
    Incoming,
}

/// A stream.
#[derive(Debug, Default)]
pub(super) struct Entry(Mutex<Stream>);

impl Entry {
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// A locked stream. Its tasks are woken after it is unlocked: a waker may drop a task in place, which
/// locks the stream and the table.
pub(super) struct Locked<'a>(Option<MutexGuard<'a, Stream>>);

impl Deref for Locked<'_> {
    type Target = Stream;
    fn deref(&self) -> &Stream {
        self.0.as_ref().expect("locked until the drop")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Stream {
        self.0.as_mut().expect("locked until the drop")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if let Some(mut stream) = self.0.take() {
            let woken = std::mem::take(&mut stream.woken);
            drop(stream);
            woken.into_iter().flatten().for_each(Waker::wake);
        }
    }
}

/// The state of a stream. The wakers of calls that wait have the slot of their batch.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// `None`: its open call did not arrive yet.
    pub(super) direction: Option<Direction>,
    /// The open call has ended, or the handler wants no more items.
    pub(super) ended: bool,
    /// Calls that use the entry, besides the open call.
    calls: usize,
    /// The first batch that was not pulled, or whose items the handler did not take.
    pub(super) next: u32,
    /// Pulls or pushes whose answer is due later: whether there is one, and its waker.
    pub(super) waiting: [Option<Option<Waker>>; WINDOW as usize],
    /// The future of the open call, or the handler that reads items.
    pub(super) handler: Option<Waker>,
    /// To be woken when the stream is unlocked: the waiting calls, and the handler.
    woken: [Option<Waker>; WINDOW as usize + 1],
    /// Outgoing: complete batches, at most [`WINDOW`].
    pub(super) ready: VecDeque<MsgBuf>,
    pub(super) filling: Filling,
    /// Outgoing: no items follow. Incoming: the last batch is `last`.
    pub(super) complete: bool,
    pub(super) last: u32,
    /// Incoming: batches that the handler did not begin to read.
    pub(super) pushed: [Option<MsgBuf>; WINDOW as usize],
    /// Incoming: the handler reads batch `next`.
    pub(super) reading: bool,
    /// Incoming: a batch could not be decoded.
    pub(super) undecoded: bool,
}

impl Stream {
    /// Wakes the call of a batch, when the stream is unlocked.
    pub(super) fn wake(&mut self, number: u32) {
        let at = slot(number);
        if let Some(waker) = self.waiting[at].as_mut().and_then(Option::take) {
            self.woken[at] = Some(waker);
        }
    }

    /// Moves the window past its first batch, whose call is answered.
    pub(super) fn advance(&mut self) {
        let number = self.next;
        self.wake(number);
        self.waiting[slot(number)] = None;
        self.next = number.wrapping_add(1);
    }

    /// Wakes the handler, when the stream is unlocked.
    pub(super) fn wake_handler(&mut self) {
        if let Some(waker) = self.handler.take() {
            self.woken[WINDOW as usize] = Some(waker);
        }
    }

    /// Ends the stream: calls that wait are answered, batches are freed.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.ready.clear();
        self.filling = Filling::default();
        self.pushed = Default::default();
        (0..WINDOW).for_each(|number| self.wake(number));
    }
}

/// An open stream. Dropping it ends the stream.
#[derive(Debug)]
#[doc(hidden)]
pub struct Open {
    services: Services,
    key: Key,
    pub(super) entry: Arc<Entry>,
}

impl Open {
    /// Opens a stream, or the one whose pulls or pushes have arrived earlier.
    pub(super) fn new(
        services: &Services,
        key: Key,
        direction: Direction,
    ) -> Result<Self, Refusal> {
        let mut table = services.streams().lock();
        let entry = table.entries.entry(key).or_default().clone();
        let mut stream = entry.lock();
        if stream.direction.is_some() {
            return Err(services.stream_error(StreamError::Open));
        }
        stream.direction = Some(direction);
        if direction == Direction::Outgoing {
            // Of pushes that came before, which are refused.
            (stream.pushed, stream.complete) = (Default::default(), false);
        }
        if stream.calls > 0 {
            table.end_unopened(key.0);
        }
        (0..WINDOW).for_each(|number| stream.wake(number)); // they check the direction
        drop(table); // before the tasks are woken
        drop(stream);
        count(&services.counters().streams_opened);
        Ok(Open { services: services.clone(), key, entry })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut table = self.services.streams().lock();
        table.entries.remove(&self.key);
        drop(table);
        let mut stream = self.entry.lock();
        stream.end();
        stream.wake_handler();
    }
}

/// A pull or a push that uses a stream, and occupies the slot of its batch.
#[derive(Debug)]
pub(super) struct Use {
    services: Services,
    key: Key,
    pub(super) number: u32,
    pub(super) entry: Arc<Entry>,
}

impl Use {
    /// Finds the stream of a call, which may not be open yet. `accept` checks the state of the
    /// stream, whose slot for the batch is free.
    pub(super) fn new(
        services: &Services,
        key: Key,
        number: u32,
        direction: Direction,
        accept: impl FnOnce(&mut Stream) -> Result<(), StreamError>,
    ) -> Result<Self, Refusal> {
        let error = |e| Err(services.stream_error(e));
        let mut table = services.streams().lock();
        let known = table.entries.get(&key).cloned();
        let entry = match known {
            Some(entry) => entry,
            // The first calls may overtake the open call, later ones follow an answer.
            None if number >= WINDOW => return error(StreamError::Unknown),
            None if table.unopened(key.0) >= MAX_UNOPENED => return error(StreamError::TooMany),
            None => Arc::default(),
        };
        let mut stream = entry.lock();
        if stream.direction.is_some_and(|actual| actual != direction) {
            return error(StreamError::Direction);
        }
        // The call to a stream that has ended is answered at once.
        if !stream.ended {
            let in_window = number.checked_sub(stream.next).is_some_and(|ahead| ahead < WINDOW);
            if !in_window && stream.direction.is_none() {
                return error(StreamError::Unknown);
            }
            if !in_window || stream.waiting[slot(number)].is_some() {
                return error(StreamError::Sequence);
            }
            if let Err(e) = accept(&mut stream) {
                return error(e);
            }
            stream.waiting[slot(number)] = Some(None);
        }
        if stream.calls == 0 && stream.direction.is_none() {
            table.entries.insert(key, entry.clone());
            table.begin_unopened(key.0);
        }
        stream.calls += 1;
        drop(table); // before tasks are woken
        drop(stream);
        Ok(Use { services: services.clone(), key, number, entry })
    }

    pub(super) fn services(&self) -> &Services {
        &self.services
    }

    /// Waits for a change of the stream.
    pub(super) fn wait(&self, stream: &mut Stream, waker: &Waker) {
        stream.waiting[slot(self.number)] = Some(Some(waker.clone()));
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut table = self.services.streams().lock();
        let mut stream = self.entry.lock();
        // The slot of an earlier batch is that of a later one.
        if self.number >= stream.next {
            stream.waiting[slot(self.number)] = None;
        }
        stream.calls -= 1;
        if stream.calls == 0 && stream.direction.is_none() {
            table.entries.remove(&self.key);
            table.end_unopened(self.key.0);
        }
    }
}
