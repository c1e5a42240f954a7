//! Shares of clients and addresses of a limited number of places: of handlers in progress, and of
//! requests and messages that wait for workers; and of the memory of streams and decoded requests
//! (ADR 46).
//!
//! A place is held for as long as a handler likes, and cannot be taken back. So the last places are
//! kept for others: a client that alone holds all it can leaves two 32nds of the places, and the
//! clients of its address together leave one. Each further client of the address gets half of what is
//! left to the address. The clients of each further address get half of what is left, and the first of
//! them a third. Below 8 places there are no shares.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use courser_proto::{Endpoint, SessionId};

use crate::core::continuations::Cont;

mod heap;
mod stats;
mod streams;

pub use stats::ClientStats;
pub(crate) use streams::{ByControl, FindClient, StreamShare};

/// Fewest places that are shared out.
const FEWEST: usize = 8;
/// The part of the places that is kept for other addresses, and as much again for other clients.
const KEPT_PART: usize = 32;
/// The part of the memory that is left which messages of one client may hold, and of one address.
const MEMORY_PARTS: (u64, u64) = (3, 2);

/// Why there is no place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Full {
    /// All are held.
    All,
    /// The client, or its address, holds its share.
    Share,
}

/// Places and memory that the clients of one address hold.
#[derive(Debug, Default)]
struct Address {
    places: AtomicUsize,
    bytes: AtomicU64,
    /// Bytes of the batches of streams.
    batches: AtomicUsize,
    /// Bytes of the heap of decoded requests.
    heap: AtomicUsize,
}

/// Places and memory that one client, the process behind a control connection, holds.
#[derive(Debug)]
pub(crate) struct Client {
    control: u64,
    host: u128,
    places: AtomicUsize,
    bytes: AtomicU64,
    /// Open streams, and the bytes of their batches.
    streams: AtomicUsize,
    batches: AtomicUsize,
    /// Bytes of the heap of decoded requests.
    heap: AtomicUsize,
    /// Calls about streams that the server does not have.
    unknown_streams: AtomicU64,
    address: Arc<Address>,
    shares: Arc<Shares>,
}

#[cfg(feature = "tower")]
impl Client {
    /// Its control connection.
    pub(crate) fn control(&self) -> u64 {
        self.control
    }
}

/// A place that is held, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    client: Arc<Client>,
    /// Bytes of a one-way message.
    bytes: u32,
    /// Was not left.
    counts: bool,
}

impl Place {
    /// The control connection of the client.
    #[inline]
    pub(crate) fn control(&self) -> u64 {
        self.client.control
    }

    /// The handler that has it panicked.
    pub(crate) fn count_panic(&self) {
        self.client.shares.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Frees the place. The memory of a message counts until the drop.
    #[inline]
    pub(crate) fn leave(&mut self) {
        if std::mem::take(&mut self.counts) {
            let Client { places, address, shares, .. } = &*self.client;
            for count in [places, &address.places, &shares.held] {
                count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Place {
    #[inline]
    fn drop(&mut self) {
        self.leave();
        if self.bytes > 0 {
            let Client { bytes, address, .. } = &*self.client;
            bytes.fetch_sub(self.bytes.into(), Ordering::Relaxed);
            address.bytes.fetch_sub(self.bytes.into(), Ordering::Relaxed);
        }
    }
}

/// Places that the clients of all endpoints of a nexus share.
#[derive(Debug)]
pub(crate) struct Shares {
    limit: usize,
    /// Most open streams of a client.
    max_streams: usize,
    held: AtomicUsize,
    /// Handlers with a place that panicked.
    panics: AtomicU64,
    holders: Mutex<Holders>,
}

/// Clients and addresses that hold places, or have a session at some endpoint.
#[derive(Debug, Default)]
struct Holders {
    clients: BTreeMap<u64, Weak<Client>>,
    addresses: BTreeMap<u128, Weak<Address>>,
    /// Length of the lists from which on they are searched for those that are gone.
    search_at: usize,
}

impl Shares {
    /// Places of which streams take none.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Shares::with_streams(limit, 0)
    }

    /// Places, and open streams of each client.
    pub(crate) fn with_streams(limit: usize, max_streams: usize) -> Arc<Self> {
        let (held, panics) = (AtomicUsize::new(0), AtomicU64::new(0));
        Arc::new(Shares { limit, max_streams, held, panics, holders: Mutex::default() })
    }

    /// A place of a client, for tests.
    #[cfg(test)]
    pub(crate) fn place(self: &Arc<Self>, control: u64) -> Result<Place, Full> {
        self.client(control, 0).take()
    }

    /// Places that are held.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Handlers that panicked.
    pub(crate) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Places that are kept for other addresses, and as many again for other clients.
    fn kept(&self) -> usize {
        if self.limit < FEWEST { 0 } else { (self.limit / KEPT_PART).max(1) }
    }

    /// Returns whether shares count: one load.
    #[inline]
    fn is_scarce(&self) -> bool {
        self.held() + 2 * self.kept() >= self.limit
    }

    /// Returns whether a client that holds `of_client` places, at an address that holds
    /// `of_address`, may have another one.
    fn check(&self, of_client: usize, of_address: usize) -> Result<(), Full> {
        let left = self.limit.saturating_sub(self.held());
        if left == 0 {
            return Err(Full::All);
        }
        let kept = self.kept();
        if left > 2 * kept {
            return Ok(());
        }
        let of_address_left = left.saturating_sub(kept).max(left.saturating_sub(of_address));
        if kept == 0 || of_client < of_address_left { Ok(()) } else { Err(Full::Share) }
    }

    fn lock(&self) -> MutexGuard<'_, Holders> {
        // Only a failed allocation panics under this lock, and it leaves the lists intact.
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry of a client, which all endpoints share.
    fn client(self: &Arc<Self>, control: u64, host: u128) -> Arc<Client> {
        let mut holders = self.lock();
        if let Some(known) = holders.clients.get(&control).and_then(Weak::upgrade) {
            return known;
        }
        if holders.clients.len() + holders.addresses.len() >= holders.search_at {
            holders.clients.retain(|_, client| client.strong_count() > 0);
            holders.addresses.retain(|_, address| address.strong_count() > 0);
            holders.search_at = 2 * (holders.clients.len() + holders.addresses.len()) + 16;
        }
        let address = holders.addresses.get(&host).and_then(Weak::upgrade).unwrap_or_default();
        holders.addresses.insert(host, Arc::downgrade(&address));
        let zero = || AtomicUsize::new(0);
        let client = Arc::new(Client {
            control,
            host,
            places: zero(),
            bytes: AtomicU64::new(0),
            streams: zero(),
            batches: zero(),
            heap: zero(),
            unknown_streams: AtomicU64::new(0),
            address,
            shares: self.clone(),
        });
        holders.clients.insert(control, Arc::downgrade(&client));
        client
    }
}

impl Client {
    /// Takes a place. Endpoints that do so at the same time may take one each beyond the limit.
    #[inline]
    fn take(self: &Arc<Self>) -> Result<Place, Full> {
        let Client { places, address, shares, .. } = &**self;
        if shares.is_scarce() {
            let held = |count: &AtomicUsize| count.load(Ordering::Relaxed);
            shares.check(held(places), held(&address.places))?;
        }
        for count in [places, &address.places, &shares.held] {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Place { client: self.clone(), bytes: 0, counts: true })
    }

    /// Charges the memory of a message, of which `free` bytes are left. A client whose address holds
    /// none may have a message of any size.
    fn charge(&self, bytes: u64, free: u64) -> Result<(), Full> {
        let of_client = self.bytes.load(Ordering::Relaxed) + bytes;
        let before = self.address.bytes.load(Ordering::Relaxed);
        let (client_part, address_part) = MEMORY_PARTS;
        let fits = client_part * of_client <= free && address_part * (before + bytes) <= free;
        if before > 0 && !fits {
            return Err(Full::Share);
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.address.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// A client of an endpoint: its control connection, and its entry.
type Known = (u64, Arc<Client>);

/// How the clients of one endpoint take places.
#[derive(Debug)]
pub(crate) struct Entrance {
    shares: Arc<Shares>,
    /// By the endpoint's number of the client.
    clients: RefCell<Vec<Option<Known>>>,
}

impl Entrance {
    pub(crate) fn new(shares: Arc<Shares>) -> Self {
        Entrance { shares, clients: RefCell::default() }
    }

    /// Returns whether a request or message of this session would get no place. One load while
    /// there are many.
    #[inline]
    pub(crate) fn would_refuse(
        &self,
        proto: &Endpoint<Cont>,
        session: SessionId,
    ) -> Result<(), Full> {
        if self.shares.is_scarce() { self.take(proto, session).map(drop) } else { Ok(()) }
    }

    /// Takes a place for a request or message of this session.
    #[inline]
    pub(crate) fn take(&self, proto: &Endpoint<Cont>, session: SessionId) -> Result<Place, Full> {
        // A handler that ran before may have ended the session.
        let Some((number, control)) = proto.client_of(session) else { return Err(Full::Share) };
        let clients = self.clients.borrow();
        if let Some(Some((known, client))) = clients.get(number as usize)
            && *known == control
        {
            return client.take();
        }
        drop(clients);
        self.add(proto, number, control).take()
    }

    /// [`Entrance::take`] for a message, of which so much memory counts besides.
    #[inline]
    pub(crate) fn take_with_memory(
        &self,
        proto: &Endpoint<Cont>,
        session: SessionId,
        bytes: u32,
    ) -> Result<Place, Full> {
        let mut place = self.take(proto, session)?;
        if bytes == 0 {
            return Ok(place);
        }
        let arena = proto.arena();
        let free = arena.config().limit_bytes.saturating_sub(arena.in_use_bytes());
        place.client.charge(bytes.into(), free as u64)?;
        place.bytes = bytes;
        Ok(place)
    }

    /// Forgets the clients that have no session any more.
    pub(crate) fn forget_gone(&self, proto: &Endpoint<Cont>) {
        for (number, slot) in self.clients.borrow_mut().iter_mut().enumerate() {
            if slot.as_ref().is_some_and(|(control, _)| !proto.is_client(number as u32, *control)) {
                *slot = None;
            }
        }
    }

    fn add(&self, proto: &Endpoint<Cont>, number: u32, control: u64) -> Arc<Client> {
        let client = self.shares.client(control, proto.client_host(number));
        let mut clients = self.clients.borrow_mut();
        let at = number as usize;
        if clients.len() <= at {
            clients.resize(at + 1, None);
        }
        clients[at] = Some((control, client.clone()));
        client
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes places until there is none.
    fn fill(client: &Arc<Client>) -> Vec<Place> {
        std::iter::from_fn(|| client.take().ok()).collect()
    }

    #[test]
    fn a_lone_client_has_nearly_all_places_and_leaves_some_to_each_other_one() {
        let shares = Shares::new(16_384);
        let lone = fill(&shares.client(1, 1));
        assert_eq!(lone.len(), 15_360);
        let others: Vec<_> = (2..7).map(|n| fill(&shares.client(n, 1))).collect();
        assert_eq!(others.iter().map(Vec::len).collect::<Vec<_>>(), [256, 128, 64, 32, 16]);
        let address = shares.client(100, 2);
        let of_address = fill(&address);
        assert_eq!((of_address.len(), fill(&shares.client(101, 3)).len()), (176, 118));
        assert_eq!(shares.client(1, 1).take().err(), Some(Full::Share));
        drop((lone, others, of_address));
        assert_eq!(shares.held(), 0);
        assert_eq!(fill(&address).len(), 15_360, "after the others");
    }

    #[test]
    fn whatever_addresses_hold_there_is_a_place_for_the_next() {
        let shares = Shares::new(1_024);
        let mut held = Vec::new();
        for address in 0..5_u64 {
            for client in 0..10 {
                let places = fill(&shares.client(100 * address + client, address.into()));
                assert!(client > 0 || !places.is_empty(), "{address}");
                held.extend(places);
            }
        }
        assert!(shares.held() <= 1_024);
    }

    #[test]
    fn few_places_are_not_shared_out_and_some_are_from_eight_on() {
        for (limit, of_one) in [(1, 1), (7, 7), (8, 6), (64, 60)] {
            let shares = Shares::new(limit);
            let held = fill(&shares.client(1, 1));
            assert_eq!(held.len(), of_one, "of {limit}");
            let refused = if limit < 8 { Full::All } else { Full::Share };
            assert_eq!(shares.client(1, 1).take().err(), Some(refused));
            assert_eq!(shares.client(2, 2).take().is_ok(), limit >= 8);
        }
    }

    #[test]
    fn messages_of_a_client_hold_a_third_of_the_memory_that_is_left() {
        let shares = Shares::new(64);
        let (one, other) = (shares.client(1, 1), shares.client(2, 2));
        one.charge(900, 100).expect("a single one of any size");
        assert_eq!(one.charge(1, 100), Err(Full::Share));
        assert_eq!((other.charge(30, 70), other.charge(10, 60)), (Ok(()), Err(Full::Share)));
    }

    #[test]
    fn entries_of_clients_that_are_gone_are_forgotten() {
        let shares = Shares::new(64);
        let kept = shares.client(0, 0);
        for n in 1..1_000 {
            drop(shares.client(n, n.into()));
        }
        let holders = shares.holders.lock().expect("no panic");
        assert!(holders.clients.len() + holders.addresses.len() < 40);
        assert!(holders.clients[&0].ptr_eq(&Arc::downgrade(&kept)));
    }
}
