//! Notes of a chat, by their places.

use std::collections::{HashMap, VecDeque};

use courser::grpc::Status;

use crate::routeguide::{Point, RouteNote};

/// Places of a chat with notes.
const PLACES: usize = 1_024;
/// Notes of a place that are kept: the newest ones.
const NOTES: usize = 8;
/// Most bytes of a note.
const BYTES: usize = 4 << 10;

/// Notes of one chat, in memory that is bounded whatever the client sends.
#[derive(Debug, Default)]
pub struct Notes {
    by_place: HashMap<Point, VecDeque<RouteNote>>,
}

impl Notes {
    /// Adds a note, and returns the notes of its place, the new one last.
    ///
    /// # Errors
    /// The note has no place, is too long, or there are too many places.
    pub fn add(&mut self, note: RouteNote) -> Result<Vec<RouteNote>, Status> {
        let place =
            note.location.ok_or_else(|| Status::invalid_argument("a note without a place"))?;
        if note.message.len() > BYTES {
            return Err(Status::invalid_argument(format!("a note of more than {BYTES} bytes")));
        }
        if self.by_place.len() >= PLACES && !self.by_place.contains_key(&place) {
            return Err(Status::resource_exhausted(format!("a chat of more than {PLACES} places")));
        }
        let notes = self.by_place.entry(place).or_default();
        if notes.len() == NOTES {
            notes.pop_front();
        }
        notes.push_back(note);
        Ok(notes.iter().cloned().collect())
    }
}
