//! A cluster of nodes without I/O, whose messages are passed by hand.

use std::collections::BTreeMap;

use futures::channel::oneshot;
use raft::eraftpb::MessageType;
use serde_bytes::ByteBuf;

use super::*;
use crate::command::Unwritten;

mod faults;
mod hostile;
mod moves;

type Written = oneshot::Receiver<Result<Applied, Refused>>;

/// Nodes with what they have on disk, and the messages between them.
struct Cluster {
    nodes: BTreeMap<u64, Core>,
    /// Messages that are dropped from and to these nodes.
    cut: Vec<u64>,
    now_ns: u64,
    /// Frames are durable at once.
    disks_work: bool,
    /// But not those of this node.
    stuck: Option<u64>,
    /// The node whose snapshots are not written.
    unsaved: Option<u64>,
}

fn settings(id: u64) -> Settings {
    let ticks = 10 + 3 * id as usize;
    Settings { election_ticks: ticks..ticks + 1, ..Settings::new(id) }
}

fn founded(settings: Settings, members: u64) -> Core {
    let members = (1..=members).map(|id| (id, format!("n{id}"))).collect();
    let store = Store::founded(&members);
    let log = Log::new(store.applied(), store.membership().clone());
    let image = store.image();
    Core::new(settings, log, store, Some(image), 0).unwrap()
}

/// Makes the snapshots that are due.
fn make_snapshots(node: &mut Core) {
    loop {
        match node.make_snapshot() {
            Making::Idle => return,
            Making::Begun => {}
            Making::Done(image) => node.snapshot_made(image),
        }
    }
}

impl Cluster {
    fn new(members: u64, change: impl Fn(&mut Settings)) -> Cluster {
        let node = |id| {
            let mut settings = settings(id);
            change(&mut settings);
            (id, founded(settings, members))
        };
        let nodes = (1..=members).map(node).collect();
        let mut cluster = Cluster {
            nodes,
            cut: Vec::new(),
            now_ns: 0,
            disks_work: true,
            stuck: None,
            unsaved: None,
        };
        cluster.ticks(40);
        cluster
    }

    /// Passes messages until there are none.
    fn settle(&mut self) {
        loop {
            let mut messages = Vec::new();
            for node in self.nodes.values_mut() {
                node.set_now(self.now_ns);
                node.process();
                if self.unsaved != Some(node.settings().id) {
                    make_snapshots(node);
                }
                while self.disks_work
                    && self.stuck != Some(node.settings().id)
                    && let Some(frame) = node.take_frame()
                {
                    node.persisted(frame.number());
                    node.process();
                }
                messages.extend(node.take_messages());
            }
            if messages.is_empty() {
                return;
            }
            for message in messages {
                self.deliver(message);
            }
        }
    }

    fn deliver(&mut self, message: Message) {
        let (from, to) = (message.from, message.to);
        let is_cut = self.cut.contains(&from) || self.cut.contains(&to);
        if message.has_snapshot() {
            let image = self.nodes[&from].image(message.get_snapshot().get_metadata().index);
            let done = !is_cut && self.nodes.contains_key(&to);
            if let Some(node) = self.nodes.get_mut(&to).filter(|_| done) {
                let bytes = crate::wire::encode(&message);
                let bytes_of = image.unwrap().bytes;
                let store = Store::from_image(&bytes_of).unwrap();
                let message = crate::wire::message(&bytes).unwrap();
                let _ = node.receive_snapshot(message, store, bytes_of);
            }
            self.nodes.get_mut(&from).unwrap().snapshot_sent(to, done);
        } else if let Some(node) = self.nodes.get_mut(&to).filter(|_| !is_cut) {
            let mut batch = Vec::new();
            assert!(crate::wire::push(&mut batch, &message));
            for message in crate::wire::decode(&batch).unwrap() {
                node.receive(message);
            }
        }
    }

    fn ticks(&mut self, count: u32) {
        for _ in 0..count {
            self.now_ns += 25_000_000;
            for node in self.nodes.values_mut() {
                node.set_now(self.now_ns);
                node.tick();
            }
            self.settle();
        }
    }

    fn leader(&self) -> u64 {
        let leaders = self.nodes.values().filter(|node| node.is_leader());
        let leader = leaders.max_by_key(|node| node.status().term).expect("a leader");
        leader.settings().id
    }

    fn node(&mut self, id: u64) -> &mut Core {
        self.nodes.get_mut(&id).unwrap()
    }

    fn open(&mut self) -> u64 {
        let (sender, mut result) = oneshot::channel();
        let leader = self.leader();
        self.node(leader).open(sender);
        self.settle();
        match result.try_recv().unwrap() {
            Some(Ok(Applied::Opened(session))) => session,
            other => panic!("{other:?}"),
        }
    }

    fn put_at(&mut self, node: u64, ticket: (u64, u64), key: &str, value: &str) -> Written {
        let (sender, result) = oneshot::channel();
        let ticket = Ticket { session: ticket.0, seq: ticket.1, first: ticket.1 };
        let op = Op::Put { key: ByteBuf::from(key), value: ByteBuf::from(value) };
        self.node(node).write(ticket, op, sender);
        result
    }

    /// Writes at the leader, and expects a result.
    fn put(&mut self, ticket: (u64, u64), key: &str, value: &str) {
        let leader = self.leader();
        let mut result = self.put_at(leader, ticket, key, value);
        self.settle();
        assert!(matches!(result.try_recv(), Ok(Some(Ok(Applied::Written(_))))));
    }

    fn read_at(&mut self, node: u64) -> oneshot::Receiver<Result<(), Refused>> {
        let (sender, result) = oneshot::channel();
        self.node(node).read(sender);
        result
    }

    /// Asserts that all nodes have the same state.
    fn agree(&mut self) {
        self.ticks(4);
        let images: Vec<_> = self.nodes.values().map(|node| node.store().image()).collect();
        assert!(images.windows(2).all(|pair| pair[0] == pair[1]), "states differ");
    }
}

#[test]
fn writes_are_applied_by_all_and_reads_are_answered_by_the_leader() {
    let mut cluster = Cluster::new(3, |_| {});
    let session = cluster.open();
    cluster.put((session, 1), "a", "1");
    let leader = cluster.leader();
    let mut read = cluster.read_at(leader);
    assert_eq!(read.try_recv(), Ok(None));
    cluster.settle();
    assert_eq!(read.try_recv(), Ok(Some(Ok(()))));
    let follower = if leader == 1 { 2 } else { 1 };
    let mut refused = cluster.read_at(follower);
    assert_eq!(refused.try_recv(), Ok(Some(Err(Refused::NotLeader { leader: Some(leader) }))));
    cluster.agree();
    assert_eq!(cluster.node(follower).store().get(b"a").unwrap(), b"1");
}

#[test]
fn reads_that_wait_share_a_round() {
    let mut cluster = Cluster::new(3, |_| {});
    let leader = cluster.leader();
    let mut reads: Vec<_> = (0..100).map(|_| cluster.read_at(leader)).collect();
    cluster.settle();
    assert!(reads.iter_mut().all(|read| read.try_recv() == Ok(Some(Ok(())))));
    assert_eq!(cluster.node(leader).counters().read_rounds, 1);
}

#[test]
fn a_retry_at_another_leader_is_applied_once() {
    let mut cluster = Cluster::new(3, |_| {});
    let session = cluster.open();
    cluster.put((session, 1), "a", "1");
    cluster.put((session, 2), "a", "2");
    let old = cluster.leader();
    cluster.cut = vec![old];
    cluster.ticks(60);
    let new = cluster.leader();
    assert_ne!(old, new);
    let mut retry = cluster.put_at(new, (session, 2), "a", "3");
    cluster.settle();
    assert!(matches!(retry.try_recv(), Ok(Some(Ok(Applied::Written(_))))));
    let mut stale = cluster.put_at(new, (session, 1), "a", "3");
    cluster.settle();
    assert_eq!(stale.try_recv(), Ok(Some(Ok(Applied::Refused(Unwritten::Stale)))));
    cluster.cut.clear();
    cluster.agree();
    assert_eq!(cluster.node(old).store().get(b"a").unwrap(), b"2");
}

#[test]
fn a_leader_without_a_quorum_answers_nothing_and_stops_leading() {
    let mut cluster = Cluster::new(3, |_| {});
    let session = cluster.open();
    let leader = cluster.leader();
    cluster.cut = (1..=3).filter(|id| *id != leader).collect();
    let mut write = cluster.put_at(leader, (session, 1), "a", "1");
    let mut read = cluster.read_at(leader);
    cluster.settle();
    assert_eq!((write.try_recv(), read.try_recv()), (Ok(None), Ok(None)));
    cluster.ticks(60);
    assert!(!cluster.node(leader).is_leader());
    assert!(matches!(write.try_recv(), Ok(Some(Err(Refused::NotLeader { .. })))));
    assert!(matches!(read.try_recv(), Ok(Some(Err(Refused::NotLeader { .. })))));
}

#[test]
fn a_lease_answers_reads_without_messages_and_ends_before_an_election() {
    let mut cluster = Cluster::new(3, |s| s.reads = ReadMode::Lease { drift_ppm: 100_000 });
    let leader = cluster.leader();
    let mut first = cluster.read_at(leader);
    cluster.settle();
    assert_eq!(first.try_recv(), Ok(Some(Ok(()))));
    cluster.cut = (1..=3).filter(|id| *id != leader).collect();
    let mut second = cluster.read_at(leader);
    cluster.settle();
    assert_eq!(second.try_recv(), Ok(Some(Ok(()))));
    assert_eq!(cluster.node(leader).counters().reads_by_lease, 1);
    // The promise of the others ends after 9 or 10 ticks.
    cluster.ticks(9);
    let mut late = cluster.read_at(leader);
    cluster.settle();
    assert_ne!(late.try_recv(), Ok(Some(Ok(()))));
}

/// A vote that the log of a candidate deserves.
fn vote(from: u64, to: u64, term: u64) -> Message {
    let mut vote = Message::default();
    vote.set_msg_type(MessageType::MsgRequestVote);
    (vote.from, vote.to, vote.term, vote.index, vote.log_term) = (from, to, term, 1_000, term - 1);
    vote
}

/// Returns whether the node, after a message, grants a vote in a term.
fn grants(node: &mut Core, message: Message) -> bool {
    let term = message.term;
    node.receive(message);
    node.process();
    while let Some(frame) = node.take_frame() {
        node.persisted(frame.number());
        node.process();
    }
    let is_grant = |message: &Message| {
        message.get_msg_type() == MessageType::MsgRequestVoteResponse
            && (message.term, message.reject) == (term, false)
    };
    node.take_messages().iter().any(is_grant)
}

#[test]
fn a_node_does_not_vote_directly_after_its_start_whether_it_has_leases_or_not() {
    for reads in [ReadMode::Quorum, ReadMode::Lease { drift_ppm: 0 }] {
        let mut cluster = Cluster::new(3, |_| {});
        let own = Settings { reads, ..settings(1) };
        let now_ns = cluster.now_ns;
        let log = cluster.node(1).log().clone();
        let store = Store::founded(&BTreeMap::from([(1, String::new())]));
        let mut node = Core::new(own, log, store, None, now_ns).unwrap();
        assert!(!grants(&mut node, vote(2, 1, 1_000)));
        assert_eq!((node.status().term < 1_000, node.counters().votes_ignored), (true, 1));
        node.set_now(now_ns + node.settings().election().as_nanos() as u64 - 1);
        assert!(!grants(&mut node, vote(2, 1, 1_000)));
        node.set_now(now_ns + node.settings().election().as_nanos() as u64);
        assert!(grants(&mut node, vote(2, 1, 1_000)));
    }
}

#[test]
fn a_node_of_a_new_cluster_votes_at_once() {
    let mut node = founded(settings(1), 3);
    assert!(grants(&mut node, vote(2, 1, 2)));
}

#[test]
fn a_node_that_forgets_its_leader_by_a_late_answer_does_not_vote_before_the_end_of_its_promise() {
    let mut cluster = Cluster::new(3, |_| {});
    let leader = cluster.leader();
    let node = if leader == 1 { 2 } else { 1 };
    let other = 6 - leader - node;
    let term = cluster.node(node).term() + 1;
    let now_ns = cluster.now_ns;
    let node = cluster.node(node);
    // It was a candidate before it heard of the leader, and the other one leads the way to a term.
    let mut late = vote(other, node.settings().id, term);
    late.set_msg_type(MessageType::MsgRequestPreVoteResponse);
    (late.reject, late.index, late.log_term) = (true, 0, 0);
    assert!(!grants(node, late));
    assert_eq!((node.term(), node.leader()), (term, None));
    let candidate = vote(other, node.settings().id, term);
    assert!(!grants(node, candidate.clone()));
    node.set_now(now_ns + node.settings().election().as_nanos() as u64);
    assert!(grants(node, candidate));
}
