//! Messages to a peer: its connection, and a bounded queue in front of it.

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
use crate::store::Image;
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
/// Pauses between attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(320));

/// A peer.
pub(super) struct Peer {
    id: u64,
    queue: RefCell<VecDeque<Message>>,
    bytes: Cell<usize>,
    signal: Signal,
    /// Another address is known.
    has_moved: Cell<bool>,
    has_ended: Cell<bool>,
    /// The last reason for which it and this node do not talk.
    refusal: RefCell<String>,
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
            refusal: RefCell::default(),
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

impl Node {
    /// Sends the messages of a peer until it is no member any more.
    async fn talk(self: Rc<Self>, peer: &Peer) {
        let mut pause = PAUSES.0;
        while !peer.has_ended.get() {
            peer.has_moved.set(false);
            match self.introduce(peer).await {
                Some(client) => {
                    pause = PAUSES.0;
                    self.send_all(peer, &client).await;
                }
                None => {
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

    /// Sends messages until that fails.
    async fn send_all(&self, peer: &Peer, client: &PeersClient<Session>) {
        loop {
            let batch = peer.batch();
            if peer.has_ended.get() || peer.has_moved.get() {
                return;
            }
            let sent = if batch.is_empty() {
                peer.signal.wait().await;
                continue;
            } else if batch.len() <= ONE_WAY {
                client.send(batch).deadline(PATIENCE).await.is_ok()
            } else {
                matches!(client.deliver(batch).deadline(PATIENCE).await, Ok(()))
            };
            if !sent {
                return;
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
                        Ok(()) => Some(client),
                        Err(refusal) => {
                            self.report_refusal(peer, "refuses", &refusal);
                            None
                        }
                    },
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
    fn report_refusal(&self, peer: &Peer, relation: &str, refusal: &PeerError) {
        let text = format!("{relation} node {}: {refusal}", peer.id);
        if *peer.refusal.borrow() != text {
            (self.options.report)(&text);
            *peer.refusal.borrow_mut() = text;
        }
    }

    /// Sends a snapshot in parts, on a connection of its own. Returns whether it was received.
    pub(super) async fn send_snapshot(&self, peer: &Peer, message: Message, image: Image) -> bool {
        let Some(client) = self.introduce(peer).await else { return false };
        let total = image.bytes.len() as u64;
        let mut offset = 0;
        loop {
            let end = (offset + CHUNK).min(image.bytes.len());
            let is_last = end == image.bytes.len();
            let head = if is_last { wire::encode(&message) } else { Vec::new() };
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
                Ok(next) if is_last => return next == total,
                Ok(next) if next == end as u64 => offset = end,
                _ => return false,
            }
        }
    }
}
