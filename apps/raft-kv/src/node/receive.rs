//! The service for peers.

use std::rc::Rc;

use super::Node;
use super::copies::Request;
use super::incoming::malformed;
use crate::address;
use crate::api::{Chunk, Hello, LocalPeers, PeerError, Who};
use crate::core::{Core, NotTaken, ReadMode};
use crate::wire;

impl Node {
    fn take(&self, batch: &[u8]) -> Result<(), PeerError> {
        let messages = wire::decode(batch).map_err(|error| {
            self.core.borrow_mut().malformed();
            malformed(error)
        })?;
        self.with(|core| messages.into_iter().for_each(|message| core.receive(message)));
        Ok(())
    }

    /// Takes a part of a snapshot. Returns the place of the next one.
    fn take_chunk(&self, chunk: &Chunk, data: &[u8]) -> Result<u64, PeerError> {
        let limit = (self.options.max_snapshot, self.core.borrow().takes_snapshot());
        let now_ns = self.local.now_ns();
        let (next, complete) = self.incoming.borrow_mut().add(chunk, data, limit, now_ns)?;
        if let Some((store, bytes)) = complete {
            let message = wire::message(&chunk.head).map_err(malformed)?;
            if !message.has_snapshot() {
                return Err(malformed("a snapshot without its head"));
            }
            let taken = self.with(|core| core.receive_snapshot(message, store, bytes.into()));
            taken.map_err(|refused| match refused {
                NotTaken::Suspect(reason) => PeerError::Snapshot(reason.to_owned()),
                NotTaken::Busy => PeerError::Busy,
            })?;
        }
        Ok(next)
    }
}

impl Node {
    /// The introduction of this node.
    pub(super) fn own_hello(&self) -> Hello {
        let settings = &self.options.settings;
        Hello {
            cluster: self.options.cluster.clone(),
            identity: self.identity.get(),
            id: settings.id,
            uri: self.options.uri.clone(),
            election_ns: settings.election().as_nanos() as u64,
            tick_ns: settings.tick.as_nanos() as u64,
            leases: matches!(settings.reads, ReadMode::Lease { .. }),
            process: self.process,
        }
    }

    /// Checks the introduction of a peer.
    pub(super) fn check_hello(&self, hello: &Hello) -> Result<(), PeerError> {
        let own = self.own_hello();
        if hello.cluster != own.cluster {
            return Err(PeerError::Cluster(own.cluster));
        }
        if !hello.identity.fits(own.identity) {
            return Err(PeerError::Identity);
        }
        let is_known = hello.identity.cluster != 0;
        if !is_known && self.introduced.borrow().contains(&hello.id) {
            return Err(PeerError::Lost(hello.id));
        }
        if is_known && self.core.borrow().store().addresses().contains_key(&hello.id) {
            self.introduced.borrow_mut().insert(hello.id);
        }
        // The follower's promise to vote for no other node has to last as long as the leader's lease.
        let is_same = (hello.election_ns, hello.tick_ns) == (own.election_ns, own.tick_ns);
        if !is_same && (hello.leases || own.leases) {
            let (own_ns, own_tick_ns) = (own.election_ns, own.tick_ns);
            return Err(PeerError::Election { own_ns, own_tick_ns });
        }
        Ok(())
    }
}

impl Node {
    fn own_who(&self) -> Who {
        let Hello { cluster, identity, id, process, .. } = self.own_hello();
        Who { cluster, identity, id, process }
    }

    /// Checks that a member runs as one process.
    fn check_single(&self, hello: &Hello) -> Result<(), PeerError> {
        let Hello { id, uri, process, .. } = hello.clone();
        if process == self.process {
            return Ok(());
        }
        let me = self.me.clone();
        let known = move || me.upgrade()?.addresses(id).into_iter().next();
        let request = Request { id, uri, process, own: self.own_who() };
        self.checks.examine(&self.local, request, known)
    }
}

impl LocalPeers for Node {
    async fn hello(&self, hello: Hello) -> Result<Hello, PeerError> {
        self.check_hello(&hello)?;
        self.check_single(&hello)?;
        let Hello { id, uri, process, .. } = hello;
        if let Some(peer) = self.peers.borrow().get(&id) {
            peer.transfers.retry.set();
        }
        let is_member = self.core.borrow().store().addresses().contains_key(&id)
            || self.options.members.contains_key(&id);
        if is_member && address::check(&uri).is_ok() {
            let known = self.addresses(id).first().cloned();
            if known.as_ref() != Some(&uri) {
                self.announced.borrow_mut().insert(id, uri.clone());
                let peer: Option<Rc<_>> = self.peers.borrow().get(&id).cloned();
                peer.inspect(|peer| peer.moved());
            }
            self.checks.accept(id, process);
            self.with(|core| core.announce(id, &uri));
        }
        Ok(self.own_hello())
    }

    async fn who(&self) -> Who {
        self.own_who()
    }

    async fn send(&self, batch: Vec<u8>) {
        // It is counted, and the sender has no answer.
        let _ = self.take(&batch);
    }

    async fn deliver(&self, batch: Vec<u8>) -> Result<(), PeerError> {
        self.take(&batch)
    }

    async fn chunk(&self, chunk: Chunk, data: Vec<u8>) -> Result<u64, PeerError> {
        let taken = self.take_chunk(&chunk, &data);
        if matches!(taken, Err(PeerError::Malformed(_))) {
            self.core.borrow_mut().malformed();
        }
        if let Err(refusal @ (PeerError::Large { .. } | PeerError::Snapshot(_))) = &taken {
            self.with(Core::snapshot_refused);
            if let Some(peer) = self.peers.borrow().get(&chunk.from) {
                let last = &peer.transfers.refusal;
                self.report_once(last, peer.id, "refuses the snapshot of", refusal);
            }
        }
        taken
    }
}
