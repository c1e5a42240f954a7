//! Raft messages as bytes. The parser of the Raft library is an old Protocol Buffers that recurses
//! without a limit and keeps unknown fields, so bytes from the network pass a decoder first that knows
//! the fields of these messages and accepts nothing else.
//!
//! ```text
//! received bytes -> batch: lengths, count -> check: fields, wire types, sizes, counts, depth
//!                -> the parser of the library -> crate::core::guard: what a message may state
//! ```
//!
//! Invariant: the parser is passed only messages that consist of known fields, each of them once unless
//! it is a list within its limit, at most [`MAX_DEPTH`] deep, with all lengths within their enclosing
//! message. So it takes memory in proportion to the bytes.

mod fields;
#[cfg(test)]
mod tests;

use protobuf::Message as _;
use raft::eraftpb::{ConfChange, Message};

use fields::{CONF_CHANGE, MESSAGE, check};
pub use fields::{
    MAX_BATCH, MAX_BATCH_BYTES, MAX_DEPTH, MAX_ENTRIES, MAX_MEMBERS, MAX_MESSAGE, Malformed,
};

/// Bytes of the length in front of each message.
const LENGTH: usize = 4;

/// Appends a message to a batch. False: the batch has no room for it, and is as before.
pub fn push(batch: &mut Vec<u8>, message: &Message) -> bool {
    let len = message.compute_size() as usize;
    if len > MAX_MESSAGE || batch.len() + LENGTH + len > MAX_BATCH_BYTES {
        return false;
    }
    batch.extend_from_slice(&(len as u32).to_le_bytes());
    // Writing to memory fails for a message that lacks a required field, and these have none.
    message.write_to_vec(batch).expect("proto3 has no required fields");
    true
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
            bytes += entry.compute_size() as usize;
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

/// Encoded bytes of a message in a batch.
pub fn size(message: &Message) -> usize {
    LENGTH + message.compute_size() as usize
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
    check(bytes, &MESSAGE, MAX_DEPTH)?;
    Message::parse_from_bytes(bytes).map_err(|_| Malformed("no Raft message"))
}

/// Encodes a message alone, for the head of a snapshot.
pub fn encode(message: &Message) -> Vec<u8> {
    message.write_to_bytes().expect("proto3 has no required fields")
}

/// Decodes the data of an entry that changes the members. `None`: it is malformed, and changes nothing
/// on any node.
pub fn conf_change(bytes: &[u8]) -> Option<ConfChange> {
    check(bytes, &CONF_CHANGE, 1).ok()?;
    ConfChange::parse_from_bytes(bytes).ok()
}
