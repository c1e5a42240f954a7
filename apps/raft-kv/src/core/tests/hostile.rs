//! Messages that no node sends.

use proptest::prelude::*;
use raft::eraftpb::{Entry, MessageType};

use super::*;

fn heartbeat(term: u64, commit: u64) -> Message {
    let mut message = Message::default();
    message.set_msg_type(MessageType::MsgHeartbeat);
    (message.from, message.to, message.term, message.commit) = (2, 1, term, commit);
    message
}

#[test]
fn a_commit_index_behind_the_log_is_refused_and_named() {
    let mut cluster = Cluster::new(3, |_| {});
    let term = cluster.node(1).status().term;
    cluster.node(1).receive(heartbeat(term + 1, 1_000));
    let status = cluster.node(1).status();
    assert_eq!((status.counters.messages_refused, status.role != "stopped"), (1, true));
    assert!(status.note.unwrap().contains("was its directory replaced?"));
}

#[test]
fn an_append_behind_the_log_with_term_0_is_refused() {
    let mut node = founded(settings(1), 3);
    let mut message = Message::default();
    message.set_msg_type(MessageType::MsgAppend);
    (message.from, message.to, message.term) = (2, 1, 1);
    (message.index, message.commit) = (2, 2);
    node.receive(message);
    assert_eq!((node.failed(), node.counters().messages_refused), (None, 1));
}

#[test]
fn a_snapshot_that_does_not_have_what_its_head_states_is_answered_with_the_reason() {
    let mut node = founded(settings(1), 3);
    let mut message = Message::default();
    message.set_msg_type(MessageType::MsgSnapshot);
    (message.from, message.to, message.term) = (2, 1, 5);
    let metadata = message.mut_snapshot().mut_metadata();
    (metadata.index, metadata.term) = (10, 5);
    let taken = node.receive_snapshot(message, node.store().clone(), vec![7; 100].into());
    let Err(NotTaken::Suspect(reason)) = taken else { panic!("{taken:?}") };
    assert_eq!((node.failed(), node.status().note), (None, Some(reason.to_owned())));
}

fn message() -> impl Strategy<Value = Message> {
    let number = || prop_oneof![4 => 0..12u64, 1 => any::<u64>()];
    let entry = (number(), number(), 0..3i32, proptest::collection::vec(any::<u8>(), 0..8));
    let head = (0..19i32, 0..4u64, 0..4u64, number(), number());
    let tail = (number(), number(), number(), any::<bool>(), number());
    let entries = proptest::collection::vec(entry, 0..4);
    (head, tail, entries, any::<bool>()).prop_map(|(head, tail, entries, follows)| {
        let mut message = Message::default();
        message.set_msg_type(protobuf::ProtobufEnum::from_i32(head.0).expect("a kind"));
        (message.from, message.to, message.term, message.log_term) =
            (head.1, head.2, head.3, head.4);
        (message.index, message.commit, message.reject_hint) = (tail.0, tail.1, tail.2);
        (message.reject, message.commit_term) = (tail.3, tail.4);
        let entry = |(at, (index, term, kind, data)): (usize, (u64, u64, i32, Vec<u8>))| {
            let index = if follows { tail.0.wrapping_add(1 + at as u64) } else { index };
            let term = if follows { head.4.max(1) } else { term };
            let mut entry = Entry { index, term, ..Entry::default() };
            entry.set_entry_type(protobuf::ProtobufEnum::from_i32(kind).expect("a kind"));
            entry.data = data.into();
            entry
        };
        message.set_entries(entries.into_iter().enumerate().map(entry).collect());
        message
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn no_message_stops_a_node(messages in proptest::collection::vec(message(), 1..20)) {
        for leads in [false, true] {
            let mut node = founded(settings(1), 3);
            if leads {
                let mut cluster = Cluster::new(3, |_| {});
                let leader = cluster.leader();
                node = cluster.nodes.remove(&leader).unwrap();
            }
            for message in messages.clone() {
                let mut batch = Vec::new();
                prop_assert!(crate::wire::push(&mut batch, &message));
                for mut message in crate::wire::decode(&batch).unwrap() {
                    message.to = node.settings().id;
                    node.receive(message);
                }
                node.process();
                while let Some(frame) = node.take_frame() {
                    node.persisted(frame.number());
                    node.process();
                }
                node.tick();
            }
            prop_assert_eq!(node.failed(), None);
        }
    }
}
