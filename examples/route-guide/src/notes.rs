//! Notes of a chat, by their places, and the memory that all chats share.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use courser::grpc::Status;

use crate::routeguide::{Point, RouteNote};

/// Places of a chat with notes.
const PLACES: usize = 1_024;
/// Notes of a place that are kept: the newest ones.
const NOTES: usize = 8;
/// Most bytes of a note.
const BYTES: usize = 4 << 10;

/// Most bytes of the notes of all chats.
const ALL_BYTES: usize = 64 << 20;
/// Most bytes of the notes of all chats of one client.
const CLIENT_BYTES: usize = 16 << 20;
/// Bytes that a note takes beside its text, with its place.
const NOTE_BYTES: usize = 256;

/// The memory for the notes of all chats of a server. Clones share it.
#[derive(Clone, Debug)]
pub struct Memory {
    all_bytes: usize,
    client_bytes: usize,
    held: Arc<Mutex<Held>>,
}

/// Bytes of notes.
#[derive(Debug, Default)]
struct Held {
    all: usize,
    /// By the host of the client.
    by_client: HashMap<u128, usize>,
}

impl Default for Memory {
    fn default() -> Self {
        Memory::with_limits(ALL_BYTES, CLIENT_BYTES)
    }
}

impl Memory {
    /// Memory of which one client gets a part.
    pub fn with_limits(all_bytes: usize, client_bytes: usize) -> Self {
        Memory { all_bytes, client_bytes, held: Arc::default() }
    }

    /// Bytes of the notes of all chats.
    pub fn held(&self) -> usize {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves `bytes` in place of `old` ones, which stay reserved if it fails.
    fn replace(&self, client: u128, old: usize, bytes: usize) -> Result<(), Status> {
        let mut held = self.lock();
        let of_client = held.by_client.get(&client).copied().unwrap_or_default() - old + bytes;
        let all = held.all - old + bytes;
        if of_client > self.client_bytes || all > self.all_bytes {
            return Err(Status::resource_exhausted("there is no memory for more notes"));
        }
        held.all = all;
        held.by_client.insert(client, of_client);
        Ok(())
    }

    fn release(&self, client: u128, bytes: usize) {
        let mut held = self.lock();
        held.all -= bytes;
        if let Some(of_client) = held.by_client.get_mut(&client) {
            *of_client -= bytes;
            if *of_client == 0 {
                held.by_client.remove(&client);
            }
        }
    }
}

/// Notes of one chat, in memory that is bounded whatever the client sends.
#[derive(Debug, Default)]
pub struct Notes {
    by_place: HashMap<Point, VecDeque<RouteNote>>,
    memory: Memory,
    /// The host of the client.
    client: u128,
}

fn bytes(note: &RouteNote) -> usize {
    note.message.capacity() + NOTE_BYTES
}

impl Drop for Notes {
    fn drop(&mut self) {
        let held = self.by_place.values().flatten().map(bytes).sum();
        self.memory.release(self.client, held);
    }
}

impl Notes {
    /// The notes of a chat of the client on this host.
    pub fn new(memory: Memory, client: u128) -> Self {
        Notes { by_place: HashMap::new(), memory, client }
    }

    /// Adds a note, and returns the notes of its place, the new one last.
    ///
    /// # Errors
    /// The note has no place, is too long, there are too many places, or all chats, or those of the client,
    /// hold as much as they may.
    pub fn add(&mut self, note: RouteNote) -> Result<Vec<RouteNote>, Status> {
        let place =
            note.location.ok_or_else(|| Status::invalid_argument("a note without a place"))?;
        if note.message.len() > BYTES {
            return Err(Status::invalid_argument(format!("a note of more than {BYTES} bytes")));
        }
        if self.by_place.len() >= PLACES && !self.by_place.contains_key(&place) {
            return Err(Status::resource_exhausted(format!("a chat of more than {PLACES} places")));
        }
        let full = self.by_place.get(&place).filter(|notes| notes.len() == NOTES);
        let oldest = full.and_then(VecDeque::front).map_or(0, bytes);
        self.memory.replace(self.client, oldest, bytes(&note))?;
        let notes = self.by_place.entry(place).or_default();
        if notes.len() == NOTES {
            notes.pop_front();
        }
        notes.push_back(note);
        Ok(notes.iter().cloned().collect())
    }
}
