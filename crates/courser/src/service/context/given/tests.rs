use std::cell::Cell;

use courser_buf::{AllocError, Arena};

use super::*;

/// Memory with a limit of messages, for a number of further allocations.
struct Scarce {
    arena: Arena,
    limit: usize,
    left: Cell<u32>,
}

impl Memory for Scarce {
    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        let left = self.left.get().checked_sub(1);
        self.left.set(left.ok_or(AllocError::Exhausted { asked: len, in_use: 0, limit: 0 })?);
        self.arena.alloc(len)
    }
    fn limit(&self) -> usize {
        self.limit
    }
}

fn pairs(of: &[(&str, &str)]) -> Metadata {
    let mut metadata = Metadata::new();
    of.iter().for_each(|(key, value)| metadata.insert(key, *value).unwrap());
    metadata
}

/// A request of 256 bytes with metadata, in messages of at most `limit` bytes.
fn append(own: Metadata, limit: usize, allocations: u32) -> Result<(Vec<u8>, bool), EncodeError> {
    let memory = Scarce { arena: Arena::heap(), limit, left: Cell::new(allocations) };
    let request = memory.arena.alloc(256).unwrap();
    let mut all = own.clone();
    all.fill_from(&pairs(&[("baggage", "inherited")])).unwrap();
    let appended = Complete { own, inherited: Some(all) }.append_to(request, 0, &memory);
    appended.map(|(message, marked)| (message[256..].to_vec(), marked))
}

#[test]
fn what_a_call_inherits_is_left_out_where_there_is_no_room_or_no_memory_for_it() {
    let own = pairs(&[("k", "v")]);
    let with_own = trailer::of_request(&own, 0);
    let with_all = trailer::of_request(&pairs(&[("k", "v"), ("baggage", "inherited")]), 0);
    let room = 256 + with_all.len();
    assert_eq!(append(own.clone(), room, 1), Ok((with_all, true)));
    assert_eq!(append(own.clone(), room - 1, 1), Ok((with_own.clone(), true)));
    // A call without metadata of its own is made as others are.
    assert_eq!(append(Metadata::new(), 256, 1), Ok((vec![], false)));
    assert_eq!(append(Metadata::new(), 10_000, 0), Ok((vec![], false)));
    // Its own are needed.
    let too_large = EncodeError::TooLarge { limit: 256 };
    assert_eq!(append(own.clone(), 256, 1), Err(too_large));
    assert!(append(own, 10_000, 0).is_err());
}
