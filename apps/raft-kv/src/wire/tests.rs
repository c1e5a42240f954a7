use proptest::prelude::*;
use raft::eraftpb::{Entry, EntryType, MessageType, Snapshot};

use super::form::MAX_CONTEXT;
use super::*;

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
    let mut many = Vec::new();
    assert!((0..MAX_BATCH).all(|_| push(&mut many, &Message::default())));
    assert_eq!(decode(&many).unwrap().len(), MAX_BATCH);
    assert!(push(&mut many, &Message::default()));
    assert_eq!(decode(&many), Err(Malformed("a batch of too many messages")));
    assert_eq!(decode(&vec![0; MAX_BATCH_BYTES + 1]).unwrap_err().0, "a batch of too many bytes");
}

#[test]
fn lists_and_contexts_above_their_limits_are_refused() {
    const PARTS: Malformed = Malformed("a message with unknown or too large parts");
    assert!(message(&encode(&snapshot(MAX_MEMBERS))).is_ok());
    assert_eq!(message(&encode(&snapshot(MAX_MEMBERS + 1))), Err(PARTS));
    let mut leaves = snapshot(3);
    let state = leaves.mut_snapshot().mut_metadata().mut_conf_state();
    state.learners_next = vec![1; MAX_MEMBERS + 1];
    assert_eq!(message(&encode(&leaves)), Err(PARTS));
    assert!(message(&encode(&append(MAX_ENTRIES, 1))).is_ok());
    assert!(message(&encode(&append(MAX_ENTRIES + 1, 1))).is_err());
    let mut read = append(0, 0);
    read.context = vec![1; MAX_CONTEXT].into();
    assert_eq!(message(&encode(&read)).as_ref(), Ok(&read));
    read.context = vec![1; MAX_CONTEXT + 1].into();
    assert_eq!(message(&encode(&read)), Err(PARTS));
}

#[test]
fn unknown_kinds_cut_messages_and_bytes_behind_them_are_refused() {
    let bytes = encode(&append(2, 5));
    assert!(message(&bytes).is_ok());
    for len in 0..bytes.len() {
        assert_eq!(message(&bytes[..len]), Err(Malformed("no Raft message")));
    }
    assert_eq!(message(&[&bytes[..], &[0]].concat()), Err(Malformed("no Raft message")));
    let mut kind = bytes.clone();
    kind[0] = 19;
    assert!(message(&kind).is_err());
    // The kind of the first entry, behind 12 fields of one byte, a term of 10 bytes and two lengths.
    let at = bytes.iter().rposition(|&byte| byte == 8).unwrap() - 2;
    let mut kind = bytes.clone();
    kind[at] = 3;
    assert!(message(&kind).is_err());
    kind[at] = 2;
    assert_eq!(message(&kind).unwrap().entries[0].entry_type, EntryType::EntryConfChangeV2);
}

#[test]
fn no_message_takes_more_than_its_bound() {
    let mut largest = append(3, 5);
    largest.set_snapshot(snapshot(MAX_MEMBERS).take_snapshot());
    let numbers = |list: &mut Vec<u64>| *list = vec![u64::MAX; MAX_MEMBERS];
    let metadata = largest.mut_snapshot().mut_metadata();
    (metadata.index, metadata.term) = (u64::MAX, u64::MAX);
    let state = metadata.mut_conf_state();
    numbers(&mut state.voters);
    numbers(&mut state.learners);
    numbers(&mut state.voters_outgoing);
    numbers(&mut state.learners_next);
    largest.set_msg_type(MessageType::MsgRequestPreVoteResponse);
    (largest.to, largest.from, largest.log_term) = (u64::MAX, u64::MAX, u64::MAX);
    (largest.index, largest.commit, largest.commit_term) = (u64::MAX, u64::MAX, u64::MAX);
    (largest.request_snapshot, largest.reject_hint, largest.priority) =
        (u64::MAX, u64::MAX, i64::MIN);
    (largest.reject, largest.context) = (true, vec![1; MAX_CONTEXT].into());
    for entry in largest.mut_entries().iter_mut() {
        (entry.term, entry.index) = (u64::MAX, u64::MAX);
        entry.data = vec![1; 1 << 14].into();
    }
    for entries in [3, 0] {
        largest.mut_entries().truncate(entries);
        let len = LENGTH + encode(&largest).len();
        assert!(len <= size(&largest), "{len} bytes, bound {}", size(&largest));
        assert_eq!(message(&encode(&largest)).as_ref(), Ok(&largest));
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
            prop_assert_eq!(&message(&encode(&read)).unwrap(), &read);
        }
        let _ = decode(&bytes);
    }
}
