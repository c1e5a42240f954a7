use proptest::prelude::*;
use raft::eraftpb::{Entry, MessageType, Snapshot};

use super::*;
use crate::command::MAX_COMMAND;

fn append(entries: usize, len: usize) -> Message {
    let mut message = Message::default();
    message.set_msg_type(MessageType::MsgAppend);
    (message.to, message.from, message.term, message.index) = (2, 1, u64::MAX, 7);
    let entry = |at: usize| {
        let data = vec![at as u8; len].into();
        Entry { index: 8 + at as u64, data, ..Entry::default() }
    };
    message.set_entries((0..entries).map(entry).collect());
    message
}

fn snapshot(voters: usize) -> Message {
    let mut message = Message::default();
    message.set_msg_type(MessageType::MsgSnapshot);
    let mut snapshot = Snapshot::default();
    snapshot.mut_metadata().index = 9;
    snapshot.mut_metadata().mut_conf_state().voters = (1..=voters as u64).collect();
    message.set_snapshot(snapshot);
    message
}

#[test]
fn messages_are_read_back_from_their_batch() {
    let sent = [append(3, 100), snapshot(3), append(0, 0), append(1, MAX_COMMAND)];
    for messages in [&sent[..3], &sent[3..]] {
        let mut batch = Vec::new();
        assert!(messages.iter().all(|message| push(&mut batch, message)));
        assert_eq!(decode(&batch).unwrap(), messages);
    }
    assert!(decode(&[]).unwrap().is_empty());
}

#[test]
fn a_message_is_cut_into_parts_that_follow_each_other_and_fit() {
    for (entries, len, parts) in [(0, 0, 1), (3, 100, 1), (10_000, 10, 10), (3, MAX_COMMAND, 3)] {
        let whole = append(entries, len);
        let cut = split(whole.clone());
        assert_eq!(cut.len(), parts);
        let mut index = whole.index;
        for part in &cut {
            assert_eq!((part.index, part.commit, part.term), (index, whole.commit, whole.term));
            index += part.entries.len() as u64;
            assert!(push(&mut Vec::new(), part));
            assert_eq!(message(&encode(part)).as_ref(), Ok(part));
        }
        let joined: Vec<_> = cut.into_iter().flat_map(|part| part.entries).collect();
        assert_eq!(joined, whole.entries.to_vec());
    }
}

#[test]
fn a_batch_takes_no_more_than_its_limit() {
    let mut batch = Vec::new();
    assert!(!push(&mut batch, &append(3, MAX_COMMAND)));
    assert!(batch.is_empty());
    assert!(push(&mut batch, &append(1, MAX_COMMAND)));
    let before = batch.clone();
    assert!(!push(&mut batch, &append(1, MAX_COMMAND)));
    assert_eq!(batch, before);
    let many = [0; 4 * (MAX_BATCH + 1)];
    assert_eq!(decode(&many), Err(Malformed("a batch of too many messages")));
    assert_eq!(decode(&vec![0; MAX_BATCH_BYTES + 1]).unwrap_err().0, "a batch of too many bytes");
}

#[test]
fn lists_fields_and_depths_above_their_limits_are_refused() {
    assert!(message(&encode(&snapshot(MAX_MEMBERS))).is_ok());
    assert_eq!(
        message(&encode(&snapshot(MAX_MEMBERS + 1))),
        Err(Malformed("a field that occurs too often"))
    );
    assert!(message(&encode(&append(MAX_ENTRIES, 1))).is_ok());
    assert!(message(&encode(&append(MAX_ENTRIES + 1, 1))).is_err());
    // The same list in one field.
    let list: Vec<u8> = std::iter::repeat_n(1, MAX_MEMBERS + 1).collect();
    let wrap = |field: u8, bytes: &[u8]| [&[field << 3 | 2, bytes.len() as u8][..], bytes].concat();
    let members = wrap(9, &wrap(2, &wrap(1, &wrap(1, &list))));
    assert_eq!(message(&members), Err(Malformed("a list that is too long")));
    let members = wrap(9, &wrap(2, &wrap(1, &wrap(1, &list[1..]))));
    let read = message(&members).unwrap();
    assert_eq!(read.get_snapshot().get_metadata().get_conf_state().voters.len(), MAX_MEMBERS);
    // A snapshot with data.
    assert_eq!(message(&wrap(9, &wrap(1, &[1]))), Err(Malformed("a field that is too long")));
    assert_eq!(check(&[], &MESSAGE, 0), Err(Malformed("a message that is nested too deep")));
}

#[test]
fn groups_unknown_fields_and_kinds_and_repeated_fields_are_refused() {
    let cases: [(&[u8], &str); 8] = [
        // A group, which the library's parser reads by recursion.
        (&[7 << 3 | 3; 100], "a field of another type"),
        (&[0x8B, 1], "a field that is not known"),
        (&[0], "a field that is not known"),
        (&[1 << 3, 19], "a kind that is not known"),
        (&[2 << 3, 1, 2 << 3, 1], "a field that occurs too often"),
        (&[2 << 3], "a number that is cut off or too large"),
        (
            &[2 << 3, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2],
            "a number that is cut off or too large",
        ),
        (&[7 << 3 | 2, 5, 0], "a field that is cut off"),
    ];
    for (bytes, reason) in cases {
        assert_eq!(message(bytes), Err(Malformed(reason)), "{bytes:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_a_message_that_is_read_back(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..60),
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        kind in 0..3,
    ) {
        match kind {
            0 => {}
            1 => bytes = encode(&append(2, 5)),
            _ => bytes = encode(&snapshot(3)),
        }
        let len = bytes.len();
        for (at, byte) in changes {
            if len > 0 {
                bytes[at % len] = byte;
            }
        }
        if let Ok(read) = message(&bytes) {
            prop_assert!(read.unknown_fields.fields.is_none());
            prop_assert_eq!(&message(&encode(&read)).unwrap(), &read);
        }
        let _ = conf_change(&bytes);
        let _ = decode(&bytes);
    }
}
