//! The streams of a server: one entry for each, by its session and its number.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use courser_buf::MsgBuf;

use super::accepts::{Accepts, Key};
use super::{WINDOW, batch::Filling, slot};
use crate::core::shares::StreamShare;
use crate::error::service::DecodeError;
use crate::sync::{Mutex, MutexGuard};

/// The streams of a server.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(super) table: Mutex<Table>,
    /// Bytes of the buffers with batches that were not pulled.
    pub(super) held: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) entries: BTreeMap<Key, Ends>,
    pub(super) accepts: Accepts,
}

impl Table {
    /// Returns whether the handler of an open call has accepted the stream.
    pub(super) fn is_accepted(&self, key: Key) -> bool {
        self.entries.get(&key).is_some_and(|ends| ends.first.lock().accepted)
    }
}

impl Streams {
    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the buffers with batches of a server that were not pulled.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Streams that are open, and calls that wait for one.
    pub(crate) fn len(&self) -> usize {
        let table = self.lock();
        table.entries.len() + table.accepts.len()
    }

    /// Ends open streams of an endpoint, as the server shuts down: all, or those in which no batch was
    /// pulled and no item taken since the last call.
    pub(crate) fn shut_down(&self, endpoint: u16, all: bool) {
        let table = self.lock();
        let of_endpoint = table.entries.iter().filter(|((session, _), _)| session.is_of(endpoint));
        let all_ends: Vec<_> = of_endpoint.map(|(_, ends)| ends.clone()).collect();
        drop(table); // before tasks are woken
        for ends in all_ends {
            let progress = ends.each().map(|entry| entry.progress()).sum();
            let mut stream = ends.first.lock();
            let stalls = stream.seen.replace(progress) == Some(progress);
            if all || stalls {
                stream.shut_down();
            }
        }
    }
}

/// Which end sends the items.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Outgoing,
    Incoming,
}

/// The entries of a stream: one, or one for each direction of its items.
#[derive(Clone, Debug)]
pub(super) struct Ends {
    /// The entry that the future of the open call waits at.
    pub(super) first: Arc<Entry>,
    pub(super) second: Option<Arc<Entry>>,
}

impl Ends {
    /// The entry of a direction, or the other one if there is none.
    pub(super) fn of(&self, direction: Direction) -> &Arc<Entry> {
        let mut second = self.second.iter();
        second.find(|entry| entry.direction == direction).unwrap_or(&self.first)
    }

    pub(super) fn each(&self) -> impl Iterator<Item = &Arc<Entry>> {
        std::iter::once(&self.first).chain(&self.second)
    }
}

/// One direction of a stream.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) direction: Direction,
    pub(super) stream: Mutex<Stream>,
    /// Incoming: items that the handler took.
    pub(super) taken: AtomicU64,
}

impl Entry {
    pub(super) fn new(
        direction: Direction,
        total: Arc<AtomicUsize>,
        share: Option<StreamShare>,
    ) -> Self {
        let stream = Mutex::new(Stream::new(total, share));
        Entry { direction, stream, taken: AtomicU64::new(0) }
    }

    pub(super) fn lock(&self) -> Locked<'_> {
        Locked(Some(self.stream.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    pub(super) fn take_item(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// A number that changes when a batch is pulled or an item is taken.
    fn progress(&self) -> u64 {
        u64::from(self.lock().next) + self.taken()
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
            stream.count_held();
            drop(stream);
            woken.into_iter().flatten().for_each(Waker::wake);
        }
    }
}

/// The state of a stream. The wakers of calls that wait have the slot of their batch.
#[derive(Debug)]
pub(super) struct Stream {
    /// The handler has made its stream, or waits for the first item.
    pub(super) accepted: bool,
    /// Outgoing: the client wants items.
    pub(super) pulled: bool,
    /// The open call has ended, or the handler wants no more items.
    pub(super) ended: bool,
    /// The first batch that was not pulled, or whose items the handler did not take.
    pub(super) next: u32,
    /// Pulls or pushes whose answer is due later: whether there is one, and its waker.
    pub(super) waiting: [Option<Option<Waker>>; WINDOW as usize],
    /// The future of the open call, or the handler that reads items.
    pub(super) handler: Option<Waker>,
    /// To be woken when the stream is unlocked: the waiting calls, and the handler.
    woken: [Option<Waker>; WINDOW as usize + 2],
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
    /// Incoming: why an item could not be decoded.
    pub(super) undecoded: Option<DecodeError>,
    /// Bytes of the buffers of `ready` and `filling`, as counted in the sum over all streams.
    held: usize,
    total: Arc<AtomicUsize>,
    /// The same, of its client; `None`: the server does not know clients, or the stream has ended.
    share: Option<StreamShare>,
    /// The server shuts down, and the stream is to end.
    pub(super) shuts_down: bool,
    /// The future of the open call, to be woken when it is.
    owner: Option<Waker>,
    /// The progress of the stream when the server last looked at it.
    seen: Option<u64>,
}

impl Stream {
    pub(super) fn new(total: Arc<AtomicUsize>, share: Option<StreamShare>) -> Self {
        Stream {
            held: 0,
            total,
            share,
            accepted: false,
            pulled: false,
            ended: false,
            next: 0,
            waiting: Default::default(),
            handler: None,
            woken: Default::default(),
            ready: VecDeque::new(),
            filling: Filling::default(),
            complete: false,
            last: 0,
            pushed: Default::default(),
            reading: false,
            undecoded: None,
            shuts_down: false,
            owner: None,
            seen: None,
        }
    }

    /// Updates the sum of what streams hold.
    fn count_held(&mut self) {
        let ready: usize = self.ready.iter().map(MsgBuf::capacity).sum();
        let held = ready + self.filling.capacity();
        if held != self.held {
            self.total.fetch_add(held.wrapping_sub(self.held), Ordering::Relaxed);
            self.held = held;
            if let Some(share) = &mut self.share {
                share.hold(held);
            }
        }
    }

    /// Returns whether the stream may hold batches that its client does not wait for, when all
    /// streams may hold `left` more bytes.
    pub(super) fn may_read_ahead(&self, left: usize) -> bool {
        self.share.as_ref().map_or(left > 0, |share| share.may_read_ahead(left))
    }

    /// Returns whether the client waits for the next batch and there is none.
    pub(super) fn is_awaited(&self) -> bool {
        self.ready.is_empty() && self.waiting[slot(self.next)].is_some()
    }

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

    /// Makes the future of the open call end the stream.
    fn shut_down(&mut self) {
        self.shuts_down = true;
        if let Some(waker) = self.owner.take() {
            self.woken[WINDOW as usize + 1] = Some(waker);
        }
    }

    /// The future of the open call is pending. Whether it has to end instead.
    pub(super) fn own(&mut self, waker: &Waker) -> bool {
        if !self.owner.as_ref().is_some_and(|known| known.will_wake(waker)) {
            self.owner = Some(waker.clone());
        }
        self.shuts_down
    }

    /// Ends the stream with its open call, and wakes its handler.
    pub(super) fn close(&mut self) {
        self.end();
        self.share = None;
        self.wake_handler();
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
