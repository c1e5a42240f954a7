//! Messages to a peer: its connection, and a bounded queue in front of it; and snapshots, if the peer lacks
//! entries which the log no longer has.
//!
//! The Raft library sends a peer nothing until the end of its transfer is reported, and after a failure
//! asks for another one with the next answer to a heartbeat. So the report of a failure waits for the
//! pause: a snapshot that is refused, or that is lost again and again, does not fill the network.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use courser::Session;
use courser::service::RpcError;
use raft::eraftpb::Message;

use super::{Node, PATIENCE};
use crate::api::{Chunk, PeerError, PeersClient};
use crate::signal::Signal;
use crate::wire;

/// Bytes of messages that wait for a peer. Above it they are dropped, and the leader sends them again
/// when the peer has answered.
const QUEUE: usize = 16 << 20;
/// Bytes of a batch that is sent as a one-way message, in one packet of any transport.
const ONE_WAY: usize = 1_000;
/// Bytes after which a batch is full.
const BATCH: usize = 64 << 10;
/// Bytes of a part of a snapshot.
const CHUNK: usize = 256 << 10;
/// Pauses after transfers that fail: the first one, which doubles, and the last one, which a peer that
/// refuses the snapshot has at once.
const SNAPSHOT_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// Pause before a part is sent again to a peer that is busy, and the times that this is done: for a minute.
/// A peer keeps the other parts meanwhile.
const BUSY: (Duration, u32) = (Duration::from_millis(500), 120);
/// Pauses between attempts to connect, and after batches that the peer refuses.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(320));

/// A peer.
pub(super) struct Peer {
    pub(super) id: u64,
    queue: RefCell<VecDeque<Message>>,
    bytes: Cell<usize>,
    signal: Signal,
    /// Another address is known.
    has_moved: Cell<bool>,
    has_ended: Cell<bool>,
    /// The last reason for which it and this node do not talk.
    refusal: LastRefusal,
    /// Snapshots that are sent to it.
    pub(super) transfers: Transfers,
}

/// The last refusal that was reported.
#[derive(Default)]
pub(super) struct LastRefusal(RefCell<Option<(&'static str, PeerError)>>);

impl LastRefusal {
    /// A later refusal is reported again, whatever its cause.
    fn clear(&self) {
        self.0.take();
    }

    /// Returns whether the refusal has another cause than the last one, and keeps it.
    fn is_new(&self, relation: &'static str, refusal: &PeerError) -> bool {
        let mut last = self.0.borrow_mut();
        let is_same = last
            .as_ref()
            .is_some_and(|(reported, cause)| *reported == relation && cause.has_cause_of(refusal));
        if !is_same {
            *last = Some((relation, refusal.clone()));
        }
        !is_same
    }
}

impl Peer {
    /// A peer with its task, which connects at once.
    pub(super) fn start(node: &Rc<Node>, id: u64) -> Rc<Peer> {
        let peer = Rc::new(Peer {
            id,
            queue: RefCell::default(),
            bytes: Cell::new(0),
            signal: Signal::default(),
            has_moved: Cell::new(false),
            has_ended: Cell::new(false),
            refusal: LastRefusal::default(),
            transfers: Transfers::default(),
        });
        let (of_task, node) = (peer.clone(), node.clone());
        let local = node.local.clone();
        drop(local.spawn(async move { node.talk(&of_task).await }));
        peer
    }

    /// Queues a message. False: the queue is full.
    pub(super) fn push(&self, message: Message) -> bool {
        let size = wire::size(&message);
        if self.bytes.get() + size > QUEUE {
            return false;
        }
        self.bytes.set(self.bytes.get() + size);
        self.queue.borrow_mut().push_back(message);
        self.signal.set();
        true
    }

    /// Another address of the peer is known: the connection is made again.
    pub(super) fn moved(&self) {
        self.has_moved.set(true);
        self.signal.set();
    }

    /// Ends the task. Returns false.
    pub(super) fn end(&self) -> bool {
        self.has_ended.set(true);
        self.signal.set();
        self.transfers.retry.set();
        false
    }

    /// Bytes of the messages that wait.
    pub(super) fn queued(&self) -> usize {
        self.bytes.get()
    }

    fn clear(&self) {
        self.queue.borrow_mut().clear();
        self.bytes.set(0);
    }

    /// The next messages as bytes.
    fn batch(&self) -> Vec<u8> {
        let mut batch = Vec::new();
        let mut queue = self.queue.borrow_mut();
        let mut count = 0;
        while let Some(message) = queue.front()
            && batch.len() < BATCH
            && count < wire::MAX_BATCH
        {
            let size = wire::size(message);
            if !wire::push(&mut batch, message) {
                assert!(count > 0, "messages are cut into parts that fit a batch");
                break;
            }
            count += 1;
            self.bytes.set(self.bytes.get() - size);
            queue.pop_front();
        }
        batch
    }
}

/// Snapshots that are sent to a peer.
#[derive(Default)]
pub(super) struct Transfers {
    /// One is in progress, or its pause.
    is_busy: Cell<bool>,
    /// The last pause.
    pause: Cell<Duration>,
    /// Ends the pause: the peer has introduced itself, and may have another limit.
    pub(super) retry: Signal,
    /// The last refusal of a snapshot, by either node.
    pub(super) refusal: LastRefusal,
}

impl Node {
    /// Sends the messages of a peer until it is no member any more.
    async fn talk(self: Rc<Self>, peer: &Peer) {
        let mut pause = PAUSES.0;
        while !peer.has_ended.get() {
            peer.has_moved.set(false);
            match self.introduce(peer).await {
                Some(client) if self.send_all(peer, &client).await => pause = PAUSES.0,
                // It is not reached, or refuses.
                _ => {
                    self.local.sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
            }
            // Messages that are late are of no use: the leader sends others.
            if !peer.has_moved.get() {
                peer.clear();
                self.with(|core| core.unreachable(peer.id));
            }
        }
    }

    /// Sends messages until that fails. Returns false if the peer refuses them.
    async fn send_all(&self, peer: &Peer, client: &PeersClient<Session>) -> bool {
        loop {
            let batch = peer.batch();
            if peer.has_ended.get() || peer.has_moved.get() {
                return true;
            }
            let sent = if batch.is_empty() {
                peer.signal.wait().await;
                continue;
            } else if batch.len() <= ONE_WAY {
                client.send(batch).deadline(PATIENCE).await.is_ok()
            } else {
                match client.deliver(batch).deadline(PATIENCE).await {
                    Ok(()) => true,
                    Err(RpcError::Service(refusal)) => {
                        self.report_refusal(peer, "is refused by", &refusal);
                        return false;
                    }
                    Err(_) => false,
                }
            };
            if !sent {
                return true;
            }
        }
    }

    /// Connects with a peer at any of its addresses. An attempt takes an election timeout at most: the
    /// system repeats a packet that begins a connection after a second and more, and a peer whose network
    /// is back may be needed for the next vote.
    async fn introduce(&self, peer: &Peer) -> Option<PeersClient<Session>> {
        let patience = self.options.settings.election();
        for uri in self.addresses(peer.id) {
            let attempt = async {
                let session = self.local.connect(&uri).await.ok()?;
                let client = PeersClient::new(session).await.ok()?;
                match client.hello(self.own_hello()).await {
                    // Another node may have taken its address.
                    Ok(found) if found.id != peer.id => None,
                    Ok(found) => match self.check_hello(&found) {
                        Ok(()) => {
                            if self.addresses(peer.id).first() == Some(&uri) {
                                self.checks.accept(peer.id, found.process);
                            }
                            Some(client)
                        }
                        Err(refusal) => {
                            self.report_refusal(peer, "refuses", &refusal);
                            None
                        }
                    },
                    Err(RpcError::Service(PeerError::Checking)) => None,
                    Err(RpcError::Service(refusal)) => {
                        self.report_refusal(peer, "is refused by", &refusal);
                        None
                    }
                    Err(_) => None,
                }
            };
            if let Ok(Some(client)) = self.local.timeout(patience, attempt).await {
                return Some(client);
            }
        }
        None
    }

    /// Reports that this node and a peer do not talk, once for each reason.
    fn report_refusal(&self, peer: &Peer, relation: &'static str, refusal: &PeerError) {
        self.report_once(&peer.refusal, peer.id, relation, refusal);
    }

    /// Reports a refusal unless the last one had the same cause.
    pub(super) fn report_once(
        &self,
        last: &LastRefusal,
        peer: u64,
        relation: &'static str,
        refusal: &PeerError,
    ) {
        if last.is_new(relation, refusal) {
            (self.options.report)(&format!("{relation} node {peer}: {refusal}"));
        }
    }
}

/// Why a peer has no snapshot.
enum Failure {
    /// It cannot be reached or is busy for long, or this node does not lead any more.
    Lost,
    /// It does not take this snapshot.
    Refused(PeerError),
}

impl Node {
    /// Sends a snapshot in a task, unless a transfer to the peer is in progress: its report ends the wait of
    /// the Raft library too.
    pub(super) fn transfer(self: &Rc<Self>, peer: Rc<Peer>, message: Message) {
        if peer.transfers.is_busy.replace(true) {
            return;
        }
        let node = self.clone();
        drop(self.local.spawn(async move {
            let sent = node.send_snapshot(&peer, &message).await;
            let done = sent.is_ok();
            if let Some(pause) = node.pause_after(&peer, sent) {
                let _ = node.local.timeout(pause, peer.transfers.retry.wait()).await;
            }
            peer.transfers.is_busy.set(false);
            node.with(|core| core.snapshot_sent(peer.id, done));
        }));
    }

    /// The pause after a transfer that has failed. Reports a refusal once.
    fn pause_after(&self, peer: &Peer, sent: Result<(), Failure>) -> Option<Duration> {
        let Transfers { pause, refusal: last, .. } = &peer.transfers;
        match sent {
            Ok(()) => {
                pause.take();
                last.clear();
                return None;
            }
            Err(Failure::Refused(refusal)) => {
                self.report_once(last, peer.id, "has its snapshot refused by", &refusal);
                pause.set(SNAPSHOT_PAUSES.1);
            }
            Err(Failure::Lost) => {
                pause.set((2 * pause.get()).clamp(SNAPSHOT_PAUSES.0, SNAPSHOT_PAUSES.1));
            }
        }
        Some(pause.get())
    }

    /// Returns whether this node leads in the term of a snapshot, and the peer is a member.
    fn is_wanted(&self, peer: &Peer, message: &Message) -> bool {
        let core = self.core.borrow();
        core.failed().is_none()
            && core.is_leader()
            && core.term() == message.term
            && !peer.has_ended.get()
    }

    /// Sends a snapshot in parts, on a connection of its own.
    async fn send_snapshot(&self, peer: &Peer, message: &Message) -> Result<(), Failure> {
        let index = message.get_snapshot().get_metadata().index;
        // Else a newer snapshot has taken its place.
        let image = self.core.borrow().image(index).ok_or(Failure::Lost)?;
        let client = self.introduce(peer).await.ok_or(Failure::Lost)?;
        let total = image.bytes.len() as u64;
        let (mut offset, mut busy) = (0, 0);
        while self.is_wanted(peer, message) {
            let end = (offset + CHUNK).min(image.bytes.len());
            let is_last = end == image.bytes.len();
            let head = if is_last { wire::encode(message) } else { Vec::new() };
            let chunk = Chunk {
                from: message.from,
                term: message.term,
                index: image.at.0,
                total,
                offset: offset as u64,
                head: head.into(),
            };
            let data = image.bytes[offset..end].to_vec();
            match client.chunk(chunk, data).deadline(PATIENCE).await {
                Ok(next) if next != end as u64 => return Err(Failure::Lost),
                Ok(_) if is_last => return Ok(()),
                Ok(_) => (offset, busy) = (end, 0),
                Err(RpcError::Service(PeerError::Busy)) if busy < BUSY.1 => {
                    busy += 1;
                    self.local.sleep(BUSY.0).await;
                }
                Err(RpcError::Service(PeerError::Order | PeerError::Busy)) => {
                    return Err(Failure::Lost);
                }
                Err(RpcError::Service(refusal)) => return Err(Failure::Refused(refusal)),
                Err(_) => return Err(Failure::Lost),
            }
        }
        Err(Failure::Lost)
    }
}
