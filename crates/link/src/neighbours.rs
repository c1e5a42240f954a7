//! Link-layer addresses of neighbours, and packets that wait for one.
//!
//! The table follows the kernel's (see [`netlink`](crate::netlink)) and does no I/O. The kernel
//! resolves a neighbour in at most 3 seconds; until then a few packets wait, in order.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::netlink::{Change, Mac};

/// The user's number of a link.
pub type PortId = u8;

/// Packets that wait for one neighbour, at most: those of a few flows that begin with bursts. Linux
/// keeps about 100.
const WAITING_PER_NEIGHBOUR: usize = 32;
/// Neighbours of a port being resolved, at most, so that a scan of a network has a limit, too, and
/// does not keep other ports from resolving theirs.
const RESOLVING: usize = 256;
/// Neighbours, at most. The kernel's default limit is 1,024 of each IP version.
const NEIGHBOURS: usize = 16_384;
/// The kernel sends three requests, one per second.
const RESOLVED_WITHIN: Duration = Duration::from_secs(3);
/// Packets for a neighbour that did not answer are dropped that long before the next attempt.
const FAILED_FOR: Duration = Duration::from_secs(1);
/// An address in use that is to be confirmed is reported to the kernel that often.
const CONFIRM_EVERY: Duration = Duration::from_secs(1);

type Key = (PortId, IpAddr);

#[derive(Debug)]
enum State {
    Known(Mac),
    Stale { mac: Mac, confirmed: Option<Instant> },
    Resolving { since: Instant, packets: Vec<Box<[u8]>> },
    Failed { since: Instant },
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// The reading of the kernel's table in which the neighbour occurred last.
    reading: u32,
}

/// The treatment of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Send it.
    Send(Mac),
    /// Send it, and ask the kernel to confirm the address.
    Confirm(Mac),
    /// It waits, and the kernel is to be asked for the address.
    Resolve,
    /// It waits.
    Waits,
}

/// Why a packet cannot be sent to a neighbour, nor wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreachable {
    /// Too many packets wait, or too many neighbours are being resolved or known.
    NoRoom,
    /// The neighbour did not answer in the last second.
    Failed,
}

/// The neighbours of all links.
#[derive(Debug, Default)]
pub struct Neighbours {
    entries: HashMap<Key, Entry>,
    /// Neighbours being resolved, oldest first.
    resolving: Vec<Key>,
    reading: u32,
    is_full_since: Option<Instant>,
    /// Packets that waited for a neighbour in vain.
    pub unresolved: u64,
    /// Packets whose neighbour did not answer, until they are reported.
    pub unanswered: VecDeque<Box<[u8]>>,
}

impl Neighbours {
    /// Finds a neighbour for a packet, which is copied if it has to wait.
    ///
    /// # Errors
    /// The packet cannot wait, or the neighbour does not answer.
    #[inline]
    pub fn find(
        &mut self,
        port: PortId,
        address: IpAddr,
        packet: &[u8],
        now: Instant,
    ) -> Result<Found, Unreachable> {
        let key = (port, address);
        match self.entries.get_mut(&key).map(|entry| &mut entry.state) {
            Some(State::Known(mac)) => Ok(Found::Send(*mac)),
            Some(State::Stale { mac, confirmed }) => {
                if confirmed.is_some_and(|at| now.saturating_duration_since(at) < CONFIRM_EVERY) {
                    return Ok(Found::Send(*mac));
                }
                *confirmed = Some(now);
                Ok(Found::Confirm(*mac))
            }
            Some(State::Resolving { packets, .. }) => {
                if packets.len() == WAITING_PER_NEIGHBOUR {
                    return Err(Unreachable::NoRoom);
                }
                packets.push(packet.into());
                Ok(Found::Waits)
            }
            Some(State::Failed { since }) if now.saturating_duration_since(*since) < FAILED_FOR => {
                Err(Unreachable::Failed)
            }
            Some(State::Failed { .. }) | None => self.resolve(key, packet, now),
        }
    }

    fn resolve(&mut self, key: Key, packet: &[u8], now: Instant) -> Result<Found, Unreachable> {
        let of_port = self.resolving.iter().filter(|other| other.0 == key.0).count();
        if of_port >= RESOLVING || !self.has_room(&key, now) {
            return Err(Unreachable::NoRoom);
        }
        let state = State::Resolving { since: now, packets: vec![packet.into()] };
        self.entries.insert(key, Entry { state, reading: self.reading });
        self.resolving.push(key);
        Ok(Found::Resolve)
    }

    /// Returns true if there is room for a neighbour. Those that failed make room, but the search for them
    /// has a cost, so that it is not repeated for each packet of a scan.
    fn has_room(&mut self, key: &Key, now: Instant) -> bool {
        if self.entries.len() < NEIGHBOURS || self.entries.contains_key(key) {
            return true;
        }
        let age = |since| now.saturating_duration_since(since);
        if self.is_full_since.is_none_or(|since| age(since) >= FAILED_FOR) {
            self.is_full_since = Some(now);
            self.entries.retain(|_, entry| {
                !matches!(entry.state, State::Failed { since } if age(since) >= FAILED_FOR)
            });
        }
        self.entries.len() < NEIGHBOURS
    }

    /// Takes over a change of the kernel's table, and releases packets that waited for it.
    pub fn update(
        &mut self,
        port: PortId,
        address: IpAddr,
        change: Change,
        now: Instant,
        release: &mut dyn FnMut(Mac, &[u8]),
    ) {
        let key = (port, address);
        match change {
            Change::Known(mac) | Change::Stale(mac) => {
                // Multicast groups are in the kernel's table, and are no neighbours.
                if mac.0[0] & 1 != 0 || !self.has_room(&key, now) {
                    return;
                }
                let state = match (change, self.entries.get(&key).map(|entry| &entry.state)) {
                    (Change::Stale(_), Some(&State::Stale { confirmed, .. })) => {
                        State::Stale { mac, confirmed }
                    }
                    (Change::Stale(_), _) => State::Stale { mac, confirmed: None },
                    _ => State::Known(mac),
                };
                let entry = Entry { state, reading: self.reading };
                for packet in self.replace(key, entry) {
                    release(mac, &packet);
                }
            }
            Change::Failed => self.fail(key, now),
            // The kernel no longer has the address; a packet asks for it again.
            Change::Incomplete | Change::Gone => {
                if let Some(State::Known(_) | State::Stale { .. }) =
                    self.entries.get(&key).map(|entry| &entry.state)
                {
                    self.entries.remove(&key);
                }
            }
        }
    }

    /// Gives up neighbours that were not resolved in time.
    pub fn expire(&mut self, now: Instant) {
        while let Some(&key) = self.resolving.first() {
            match self.entries.get(&key).map(|entry| &entry.state) {
                Some(State::Resolving { since, .. })
                    if now.saturating_duration_since(*since) < RESOLVED_WITHIN =>
                {
                    return;
                }
                _ => self.fail(key, now),
            }
        }
    }

    /// A port went down: drops packets that wait for its neighbours, and returns their number. The
    /// kernel reports each neighbour that it forgets; those that the administrator has set remain.
    pub fn clear(&mut self, port: PortId) -> u64 {
        let keys: Vec<Key> = self.resolving.iter().copied().filter(|key| key.0 == port).collect();
        let dropped = keys.into_iter().map(|key| self.take_waiting(key).len() as u64).sum();
        self.unresolved += dropped;
        self.entries.retain(|key, entry| {
            key.0 != port || matches!(entry.state, State::Known(_) | State::Stale { .. })
        });
        dropped
    }

    /// The interface of a port is gone, with all its neighbours.
    pub fn forget(&mut self, port: PortId) {
        self.entries.retain(|key, _| key.0 != port);
    }

    /// A new reading of the kernel's table begins.
    pub fn begin(&mut self) {
        self.reading = self.reading.wrapping_add(1);
    }

    /// The reading is complete: an address that did not occur is not valid any more.
    pub fn end(&mut self) {
        let reading = self.reading;
        self.entries.retain(|_, entry| {
            entry.reading == reading
                || matches!(entry.state, State::Resolving { .. } | State::Failed { .. })
        });
    }

    /// Returns true while packets wait for neighbours.
    pub fn is_resolving(&self) -> bool {
        !self.resolving.is_empty()
    }

    /// Only a neighbour in use fails: the others are resolved when they are used.
    fn fail(&mut self, key: Key, now: Instant) {
        if self.entries.contains_key(&key) {
            let entry = Entry { state: State::Failed { since: now }, reading: self.reading };
            let packets = self.replace(key, entry);
            self.unresolved += packets.len() as u64;
            self.unanswered.extend(packets);
        } else {
            self.take_waiting(key);
        }
    }

    /// Replaces an entry, and returns the packets that waited for it.
    fn replace(&mut self, key: Key, entry: Entry) -> Vec<Box<[u8]>> {
        let packets = self.take_waiting(key);
        self.entries.insert(key, entry);
        packets
    }

    fn take_waiting(&mut self, key: Key) -> Vec<Box<[u8]>> {
        self.resolving.retain(|other| *other != key);
        match self.entries.get_mut(&key).map(|entry| &mut entry.state) {
            Some(State::Resolving { packets, .. }) => std::mem::take(packets),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
