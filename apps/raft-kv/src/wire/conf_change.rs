//! Changes of the members in entries. The Raft library writes and reads them by an old Protocol Buffers,
//! whose parser recurses without a limit and keeps unknown fields. So the bytes are checked first: known
//! fields alone, each of them once.

use protobuf::Message as _;
use raft::eraftpb::ConfChange;

use crate::command::MAX_URI;

const NUMBER: u64 = 0;
const DELIMITED: u64 = 2;

/// Decodes the data of an entry that changes the members. `None`: it is malformed, and changes nothing
/// on any node.
pub fn conf_change(bytes: &[u8]) -> Option<ConfChange> {
    check(bytes)?;
    ConfChange::parse_from_bytes(bytes).ok()
}

/// `None`: the bytes are no change of members.
fn check(mut bytes: &[u8]) -> Option<()> {
    let mut seen = [false; 5];
    while !bytes.is_empty() {
        let tag = number(&mut bytes)?;
        let value = number(&mut bytes)?;
        let is_valid = match (tag >> 3, tag & 7) {
            // The number of the change, and the node.
            (1 | 3, NUMBER) => true,
            // The kind: adds a node, removes one, adds a learner.
            (2, NUMBER) => value <= 2,
            // The address.
            (4, DELIMITED) => {
                let len = usize::try_from(value).ok().filter(|&len| len <= MAX_URI)?;
                bytes = bytes.get(len..)?;
                true
            }
            _ => false,
        };
        if !is_valid || std::mem::replace(&mut seen[(tag >> 3) as usize], true) {
            return None;
        }
    }
    Some(())
}

/// The number at the front.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for at in 0..10 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7F);
        if at == 9 && bits > 1 {
            return None;
        }
        value |= bits << (7 * at);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_change_is_read_back() {
        let mut change = ConfChange::default();
        (change.id, change.node_id) = (u64::MAX, 3);
        change.set_change_type(raft::eraftpb::ConfChangeType::AddLearnerNode);
        change.context = vec![b'a'; MAX_URI].into();
        assert_eq!(conf_change(&change.write_to_bytes().unwrap()), Some(change.clone()));
        change.context = vec![b'a'; MAX_URI + 1].into();
        assert_eq!(conf_change(&change.write_to_bytes().unwrap()), None);
        assert_eq!(conf_change(&[]), Some(ConfChange::default()));
    }

    #[test]
    fn groups_unknown_fields_and_kinds_and_repeated_fields_are_refused() {
        let refused: [&[u8]; 9] = [
            // A group, which the library's parser reads by recursion.
            &[5 << 3 | 3; 100],
            &[1 << 3 | 3; 100],
            &[5 << 3, 1],
            &[0, 1],
            &[2 << 3, 3],
            &[1 << 3, 1, 1 << 3, 1],
            &[1 << 3],
            &[1 << 3, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2],
            &[4 << 3 | 2, 5, 0],
        ];
        for bytes in refused {
            assert_eq!(conf_change(bytes), None, "{bytes:?}");
        }
        assert!(conf_change(&[1 << 3, 1, 2 << 3, 2, 3 << 3, 7, 4 << 3 | 2, 1, b'a']).is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_a_change_of_known_fields(
            bytes in proptest::collection::vec(any::<u8>(), 0..20)
        ) {
            if let Some(change) = conf_change(&bytes) {
                prop_assert!(change.unknown_fields.fields.is_none());
                prop_assert_eq!(conf_change(&change.write_to_bytes().unwrap()), Some(change));
            }
        }
    }
}
