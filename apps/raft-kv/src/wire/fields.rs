//! The fields of Raft's messages, and the check of bytes against them.

use crate::command::{MAX_COMMAND, MAX_URI};

/// Most members of a cluster.
pub const MAX_MEMBERS: usize = 64;
/// Most entries of a message.
pub const MAX_ENTRIES: usize = 4_096;
/// Most messages of a batch.
pub const MAX_BATCH: usize = 1_024;
/// Largest encoded message without the data of a snapshot, bytes: one entry of the largest command, or
/// several that are smaller.
pub const MAX_MESSAGE: usize = MAX_COMMAND + (64 << 10);
/// Largest batch, bytes.
pub const MAX_BATCH_BYTES: usize = MAX_MESSAGE + (64 << 10);
/// Levels of nesting: message, snapshot, metadata, members.
pub const MAX_DEPTH: usize = 4;

/// Bytes that are refused, with what is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}; use the same version of raft-kv on all nodes")]
pub struct Malformed(pub &'static str);

/// The type of a field.
enum Type {
    /// A number.
    Number,
    /// A number up to this one.
    Enum(u64),
    /// Numbers, each alone or all in one field, of this count at most.
    Numbers(usize),
    /// Bytes, of this length at most.
    Bytes(usize),
    /// A message, this many times at most.
    Message(&'static Schema, usize),
}

/// Fields by number.
pub(super) struct Schema(&'static [(u32, Type)]);

const ENTRY: Schema = Schema(&[
    (1, Type::Enum(2)),
    (2, Type::Number),
    (3, Type::Number),
    (4, Type::Bytes(MAX_COMMAND)),
    (5, Type::Number),
    (6, Type::Bytes(0)),
]);

const CONF_STATE: Schema = Schema(&[
    (1, Type::Numbers(MAX_MEMBERS)),
    (2, Type::Numbers(MAX_MEMBERS)),
    (3, Type::Numbers(MAX_MEMBERS)),
    (4, Type::Numbers(MAX_MEMBERS)),
    (5, Type::Number),
]);

const METADATA: Schema =
    Schema(&[(1, Type::Message(&CONF_STATE, 1)), (2, Type::Number), (3, Type::Number)]);

/// The data of a snapshot comes in chunks of its own.
const SNAPSHOT: Schema = Schema(&[(1, Type::Bytes(0)), (2, Type::Message(&METADATA, 1))]);

/// `eraftpb.Message`.
pub(super) const MESSAGE: Schema = Schema(&[
    (1, Type::Enum(18)),
    (2, Type::Number),
    (3, Type::Number),
    (4, Type::Number),
    (5, Type::Number),
    (6, Type::Number),
    (7, Type::Message(&ENTRY, MAX_ENTRIES)),
    (8, Type::Number),
    (9, Type::Message(&SNAPSHOT, 1)),
    (10, Type::Number),
    (11, Type::Number),
    (12, Type::Bytes(64)),
    (13, Type::Number),
    (14, Type::Number),
    (15, Type::Number),
    (16, Type::Number),
]);

/// `eraftpb.ConfChange`.
pub(super) const CONF_CHANGE: Schema =
    Schema(&[(1, Type::Number), (2, Type::Enum(2)), (3, Type::Number), (4, Type::Bytes(MAX_URI))]);

const NUMBER: u64 = 0;
const DELIMITED: u64 = 2;

fn number(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0;
    for at in 0..10 {
        let Some((&byte, rest)) = bytes.split_first() else { break };
        *bytes = rest;
        let bits = u64::from(byte & 0x7F);
        if at == 9 && bits > 1 {
            break;
        }
        value |= bits << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Malformed("a number that is cut off or too large"))
}

fn delimited<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let len = number(bytes)?;
    if len > bytes.len() as u64 {
        return Err(Malformed("a field that is cut off"));
    }
    let (field, rest) = bytes.split_at(len as usize);
    *bytes = rest;
    Ok(field)
}

/// Checks that the bytes are a message of these fields, with at most `depth` levels.
pub(super) fn check(mut bytes: &[u8], schema: &Schema, depth: usize) -> Result<(), Malformed> {
    if depth == 0 {
        return Err(Malformed("a message that is nested too deep"));
    }
    let mut counts = [0; 17];
    while !bytes.is_empty() {
        let tag = number(&mut bytes)?;
        let (field, wire) = (tag >> 3, tag & 7);
        let known = schema.0.iter().find(|(number, _)| u64::from(*number) == field);
        let (_, kind) = known.ok_or(Malformed("a field that is not known"))?;
        let count = &mut counts[field as usize];
        let limit = match (kind, wire) {
            (Type::Number, NUMBER) => {
                number(&mut bytes)?;
                1
            }
            (Type::Enum(most), NUMBER) => {
                if number(&mut bytes)? > *most {
                    return Err(Malformed("a kind that is not known"));
                }
                1
            }
            (Type::Numbers(most), NUMBER) => {
                number(&mut bytes)?;
                *most
            }
            (Type::Numbers(most), DELIMITED) => {
                let mut list = delimited(&mut bytes)?;
                while !list.is_empty() {
                    number(&mut list)?;
                    *count += 1;
                    if *count > *most {
                        return Err(Malformed("a list that is too long"));
                    }
                }
                most + 1
            }
            (Type::Bytes(most), DELIMITED) => {
                if delimited(&mut bytes)?.len() > *most {
                    return Err(Malformed("a field that is too long"));
                }
                1
            }
            (Type::Message(schema, most), DELIMITED) => {
                check(delimited(&mut bytes)?, schema, depth - 1)?;
                *most
            }
            _ => return Err(Malformed("a field of another type")),
        };
        *count += 1;
        if *count > limit {
            return Err(Malformed("a field that occurs too often"));
        }
    }
    Ok(())
}
