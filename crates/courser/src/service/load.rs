//! The load that decoding is: turns of large requests, and the heap of decoded ones.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::core::shares::{ByControl, Client, FindClient};
use crate::error::service::DecodeError;
use crate::platform::cpus;
use crate::sync::{Mutex, MutexGuard};

#[cfg(all(loom, test))]
mod model;

/// Bytes of a request from which it waits for its turn to be decoded.
pub(crate) const LARGE: usize = 64 << 10;

/// The load of a server's typed services.
#[derive(Debug, Default)]
pub(crate) struct Load {
    turns: Mutex<Turns>,
    /// Heap of decoded requests in progress.
    heap: AtomicUsize,
}

/// Large requests that are decoded, and those that wait. At most half of the CPUs decode large
/// requests, so that others find a thread. Clients take turns: a request of a client that has others
/// waiting, on whatever session, comes after the first ones of all clients (start-time fair queueing).
#[derive(Debug, Default)]
struct Turns {
    running: usize,
    /// By round and arrival.
    waiting: BTreeMap<(u64, u64), Waiting>,
    /// The round of the last request that began.
    round: u64,
    arrivals: u64,
}

#[derive(Debug)]
struct Waiting {
    client: u64,
    waker: Waker,
}

impl Turns {
    fn has_room(&self) -> bool {
        self.running < (cpus() / 2).max(1)
    }

    /// The place of a new request.
    fn place(&mut self, client: u64) -> (u64, u64) {
        self.arrivals += 1;
        let own = self.waiting.iter().rev().find(|(_, other)| other.client == client);
        let round = own.map_or(self.round, |((round, _), _)| round + 1);
        (round, self.arrivals)
    }

    /// The waker of the request that is next, if it may begin.
    fn next(&self) -> Option<Waker> {
        let (_, first) = self.waiting.first_key_value()?;
        self.has_room().then(|| first.waker.clone())
    }
}

impl Load {
    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the request that is next.
    fn wake_next(&self, turns: MutexGuard<'_, Turns>) {
        let next = turns.next();
        drop(turns);
        next.into_iter().for_each(Waker::wake);
    }

    /// Bytes that were counted are free again.
    pub(crate) fn free(&self, bytes: usize, client: Option<&Client>) {
        self.heap.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(client) = client {
            client.free_heap(bytes);
        }
    }

    /// Waits until a large request of a client, by its control connection, may be decoded. Decoding does
    /// not wait, so turns end soon.
    pub(crate) async fn turn(&self, client: u64) -> Turn<'_> {
        let mut place = Place { load: self, at: None };
        poll_fn(|cx| place.poll(client, cx)).await
    }
}

/// A request in the queue, which its drop leaves.
struct Place<'a> {
    load: &'a Load,
    at: Option<(u64, u64)>,
}

impl<'a> Place<'a> {
    fn poll(&mut self, client: u64, cx: &Context<'_>) -> Poll<Turn<'a>> {
        let mut turns = self.load.lock();
        let at = self.at.unwrap_or_else(|| turns.place(client));
        let is_first = turns.waiting.first_key_value().is_none_or(|(first, _)| at <= *first);
        if !turns.has_room() || !is_first {
            let old = turns.waiting.insert(at, Waiting { client, waker: cx.waker().clone() });
            self.at = Some(at);
            drop(turns);
            drop(old); // may run code of the application
            return Poll::Pending;
        }
        let own = turns.waiting.remove(&at);
        self.at = None;
        turns.round = turns.round.max(at.0);
        turns.running += 1;
        self.load.wake_next(turns);
        drop(own);
        Poll::Ready(Turn(self.load))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(at) = self.at {
            let mut turns = self.load.lock();
            let own = turns.waiting.remove(&at);
            self.load.wake_next(turns);
            drop(own);
        }
    }
}

/// The turn of a request. Its drop is that of the next one.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Load);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.0.lock();
        turns.running -= 1;
        self.0.wake_next(turns);
    }
}

/// The heap of the arguments of one request, until its handler has ended.
#[derive(Debug)]
pub(crate) struct Charge<'a> {
    load: &'a Load,
    /// Most bytes of all requests together.
    limit: usize,
    bytes: Cell<usize>,
    of: Of<'a>,
    /// The client that the bytes are charged to, once there are some.
    client: OnceCell<Option<Arc<Client>>>,
}

/// How the client of a request is found.
#[derive(Debug)]
enum Of<'a> {
    Unknown,
    Control(ByControl<'a>),
    Client(&'a Arc<Client>),
}

impl<'a> Charge<'a> {
    pub(crate) fn new(load: &'a Load, limit: usize) -> Self {
        Charge { load, limit, bytes: Cell::new(0), of: Of::Unknown, client: OnceCell::new() }
    }

    /// Charges a client, too.
    pub(crate) fn of(mut self, client: ByControl<'a>) -> Self {
        self.of = Of::Control(client);
        self
    }

    /// Charges a client that was found before.
    pub(crate) fn of_client(mut self, client: Option<&'a Arc<Client>>) -> Self {
        self.of = client.map_or(Of::Unknown, Of::Client);
        self
    }

    fn find(&self) -> Option<Arc<Client>> {
        match self.of {
            Of::Unknown => None,
            Of::Control(control) => control.find(),
            Of::Client(client) => Some(client.clone()),
        }
    }

    /// Counts bytes.
    ///
    /// # Errors
    /// The requests in progress, or those of the client, would hold more than the limit.
    pub(crate) fn add(&self, bytes: usize) -> Result<(), DecodeError> {
        let longer = |held: usize| held.checked_add(bytes).filter(|held| *held <= self.limit);
        let added = self.load.heap.fetch_update(Ordering::Relaxed, Ordering::Relaxed, longer);
        let full = DecodeError::HeapFull { limit: self.limit };
        let Ok(before) = added else { return Err(full) };
        let left = self.limit.saturating_sub(before + bytes);
        let client = self.client.get_or_init(|| self.find());
        if client.as_ref().is_some_and(|client| !client.hold_heap(bytes, left)) {
            self.load.heap.fetch_sub(bytes, Ordering::Relaxed);
            return Err(full);
        }
        self.bytes.set(self.bytes.get() + bytes);
        Ok(())
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        let bytes = self.bytes.get();
        if bytes > 0 {
            self.load.free(bytes, self.client.get().and_then(Option::as_deref));
        }
    }
}

impl Charge<'_> {
    /// The bytes that were counted, and their client, for a handler that does not borrow the load: they are
    /// counted until [`Load::free`].
    #[cfg(feature = "tower")]
    pub(crate) fn keep(mut self) -> (usize, Option<Arc<Client>>) {
        (self.bytes.take(), self.client.take().flatten())
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;

    type Waits<'a> = Pin<Box<dyn Future<Output = Turn<'a>> + 'a>>;

    fn wait(load: &Load, client: u64) -> Waits<'_> {
        let mut future = Box::pin(load.turn(client));
        assert!(poll(future.as_mut()).is_none(), "it waits");
        future
    }

    fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    /// Occupies all turns.
    fn occupied(load: &Load) -> Vec<Turn<'_>> {
        let begin = |n| poll(pin!(load.turn(100 + n)));
        let turns: Vec<_> = (0..(cpus() / 2).max(1) as u64).map_while(begin).collect();
        assert_eq!(turns.len(), (cpus() / 2).max(1));
        turns
    }

    #[test]
    fn large_requests_take_turns_by_client() {
        let load = Load::default();
        let mut turns = occupied(&load);
        // Three requests of one client, then two of another.
        let mut waiting: Vec<_> = [1, 1, 1, 2, 2].map(|client| wait(&load, client)).into();
        let mut order = Vec::new();
        let mut numbers: Vec<_> = (0..5).collect();
        while !waiting.is_empty() {
            drop(turns.pop());
            let (at, turn) = (0..waiting.len())
                .find_map(|at| Some((at, poll(waiting[at].as_mut())?)))
                .expect("one is next");
            order.push(numbers.remove(at));
            drop(waiting.remove(at));
            turns.push(turn);
        }
        assert_eq!(order, [0, 3, 1, 4, 2]);
        drop(turns);
        assert!(poll(pin!(load.turn(1))).is_some());
        assert!(load.lock().waiting.is_empty() && load.lock().running == 0);
    }

    #[test]
    fn a_request_that_is_dropped_while_it_waits_leaves_its_turn_to_the_next() {
        let load = Load::default();
        let mut turns = occupied(&load);
        let first = wait(&load, 1);
        let mut second = wait(&load, 2);
        drop(turns.pop());
        assert!(poll(second.as_mut()).is_none(), "it is the turn of the first");
        drop(first);
        assert!(poll(second.as_mut()).is_some());
    }

    #[test]
    fn wakers_are_dropped_without_the_lock() {
        /// Its drop asks for the turn that a task within it had.
        struct Asks(Arc<Load>, Arc<AtomicUsize>);
        impl Wake for Asks {
            fn wake(self: Arc<Self>) {}
        }
        impl Drop for Asks {
            fn drop(&mut self) {
                let is_free = self.0.turns.try_lock().is_ok();
                self.1.fetch_add(usize::from(is_free), Ordering::Relaxed);
            }
        }
        let (load, free) = (Arc::new(Load::default()), Arc::new(AtomicUsize::new(0)));
        let poll = |place: &mut Place<'_>| {
            let waker = Waker::from(Arc::new(Asks(load.clone(), free.clone())));
            place.poll(1, &Context::from_waker(&waker)).is_ready()
        };
        let turns = occupied(&load);
        let [mut replaced, mut dropped] = [(); 2].map(|()| Place { load: &load, at: None });
        assert!(!poll(&mut replaced) && !poll(&mut replaced) && !poll(&mut dropped));
        assert_eq!(free.load(Ordering::Relaxed), 1, "replaced by that of another poll");
        drop(dropped);
        assert_eq!(free.load(Ordering::Relaxed), 2, "a request that was dropped");
        drop(turns);
        assert!(poll(&mut replaced));
        assert_eq!(free.load(Ordering::Relaxed), 4, "a request that began");
    }

    #[test]
    fn heap_is_counted_until_the_handler_has_ended() {
        let load = Load::default();
        let (first, second) = (Charge::new(&load, 1000), Charge::new(&load, 1000));
        assert_eq!(first.add(600), Ok(()));
        assert_eq!(second.add(400), Ok(()));
        assert_eq!(second.add(1), Err(DecodeError::HeapFull { limit: 1000 }));
        assert_eq!(second.add(usize::MAX), Err(DecodeError::HeapFull { limit: 1000 }));
        drop(first);
        assert_eq!(second.add(600), Ok(()));
        drop(second);
        assert_eq!(load.heap.load(Ordering::Relaxed), 0);
    }
}
