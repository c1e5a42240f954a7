//! Raft messages as bytes. The parser of the Raft library is an old Protocol Buffers that recurses
//! without a limit and keeps unknown fields, so messages from the network never reach it: they have a form
//! of ours, by serde and postcard, which has no recursion and no fields but the known ones. Changes of
//! members, which are the data of an entry, reach that parser after a check ([`conf_change`]).
//!
//! ```text
//! received bytes -> batch: lengths, count -> form: fields, counts, kinds
//!                -> crate::core::guard: what a message may state
//! ```
//!
//! Invariant: a message takes memory in proportion to its bytes, and all of its lists are within their
//! limits.

mod conf_change;
mod form;
#[cfg(test)]
mod tests;

use raft::eraftpb::Message;

pub use conf_change::conf_change;
pub use form::{MAX_ENTRIES, MAX_MEMBERS};

use crate::command::MAX_COMMAND;
use form::{Form, Received};

/// Most messages of a batch.
pub const MAX_BATCH: usize = 1_024;
/// Largest message without the data of a snapshot, bytes: one entry of the largest command, or several
/// that are smaller.
pub const MAX_MESSAGE: usize = MAX_COMMAND + (64 << 10);
/// Largest batch, bytes.
pub const MAX_BATCH_BYTES: usize = MAX_MESSAGE + (64 << 10);

/// Bytes that are refused, with what is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}; use the same version of raft-kv on all nodes")]
pub struct Malformed(pub &'static str);

/// Bytes of the length in front of each message.
const LENGTH: usize = 4;

/// Appends a message to a batch. False: the batch has no room for it, and is as before.
pub fn push(batch: &mut Vec<u8>, message: &Message) -> bool {
    let most = form::bound(message);
    if most > MAX_MESSAGE || batch.len() + LENGTH + most > MAX_BATCH_BYTES {
        return false;
    }
    let front = batch.len();
    batch.reserve(LENGTH + most);
    batch.extend_from_slice(&[0; LENGTH]);
    *batch = append(std::mem::take(batch), message);
    let len = (batch.len() - front - LENGTH) as u32;
    batch[front..front + LENGTH].copy_from_slice(&len.to_le_bytes());
    true
}

fn append(bytes: Vec<u8>, message: &Message) -> Vec<u8> {
    // Only a failed allocation or a type that is no data has an error, and neither is possible here.
    postcard::to_extend(&Form::of(message), bytes).expect("messages are data")
}

/// Entries of a part of a message, and their bytes.
const PART: (usize, usize) = (1_024, 256 << 10);

/// Cuts a message with more entries or bytes than fit a batch. The Raft library puts everything that was
/// proposed since its last step into one message, whatever its limit of bytes is.
pub fn split(mut message: Message) -> Vec<Message> {
    let mut parts = Vec::new();
    let mut entries = std::mem::take(&mut message.entries).into_iter().peekable();
    loop {
        let mut part = message.clone();
        let mut bytes = 0;
        while let Some(entry) = entries.next_if(|entry| {
            bytes += form::entry_bound(entry);
            part.entries.is_empty() || (part.entries.len() < PART.0 && bytes <= PART.1)
        }) {
            part.entries.push(entry);
        }
        if let Some(last) = part.entries.last() {
            (message.index, message.log_term) = (last.index, last.term);
        }
        parts.push(part);
        if entries.peek().is_none() {
            return parts;
        }
    }
}

/// Bytes that a message takes at most in a batch.
pub fn size(message: &Message) -> usize {
    LENGTH + form::bound(message)
}

/// Decodes a batch.
///
/// # Errors
/// It exceeds a limit, or one of its messages is malformed. Nothing is used of it.
pub fn decode(mut batch: &[u8]) -> Result<Vec<Message>, Malformed> {
    if batch.len() > MAX_BATCH_BYTES {
        return Err(Malformed("a batch of too many bytes"));
    }
    let mut messages = Vec::new();
    while !batch.is_empty() {
        let (len, rest) =
            batch.split_first_chunk::<LENGTH>().ok_or(Malformed("a batch that is cut off"))?;
        let len = u32::from_le_bytes(*len) as usize;
        if len > rest.len() {
            return Err(Malformed("a batch that is cut off"));
        }
        if messages.len() == MAX_BATCH {
            return Err(Malformed("a batch of too many messages"));
        }
        let (bytes, rest) = rest.split_at(len);
        messages.push(message(bytes)?);
        batch = rest;
    }
    Ok(messages)
}

/// Decodes a message.
///
/// # Errors
/// See [`decode`].
pub fn message(bytes: &[u8]) -> Result<Message, Malformed> {
    if bytes.len() > MAX_MESSAGE {
        return Err(Malformed("a message of too many bytes"));
    }
    match postcard::take_from_bytes::<Form<'_, Received>>(bytes) {
        Ok((form, [])) => {
            form.message().ok_or(Malformed("a message with unknown or too large parts"))
        }
        _ => Err(Malformed("no Raft message")),
    }
}

/// Encodes a message alone, for the head of a snapshot.
pub fn encode(message: &Message) -> Vec<u8> {
    append(Vec::new(), message)
}
