//! A node at an endpoint: the tasks around [`Core`]. The same code runs over sockets and in the simulator,
//! because all of it is on the endpoint's thread, and files are behind a trait.
//!
//! ```text
//! serve      clients' calls ----\                    /--> peer (one task each): batches of messages
//! receive    peers' messages ----> Core, turn (task) ---> disk (task): one frame at a time
//! ticker     (task) ------------/                    \--> snapshot: own ones, and parts to peers
//! ```

mod copies;
mod disk;
mod incoming;
mod peer;
mod receive;
mod serve;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use courser::service::RegisterError;
use courser::{Local, Rpc};
use courser_disk::Storage;
use raft::eraftpb::Message;

use crate::address;
use crate::api::{KvServer, PeersServer};
use crate::core::{Core, Settings};
use crate::journal::{Journal, JournalError, Owner};
use crate::log::Log;
use crate::signal::{Progress, Signal};
use crate::store::{Identity, Store};
use incoming::Incoming;
use peer::Peer;

/// Settings of a node, besides an endpoint and a storage.
#[derive(Clone)]
pub struct Options {
    /// Name of the cluster, the same for all members.
    pub cluster: String,
    /// Address of this node, for others.
    pub uri: String,
    /// Addresses of members by number. Without [`Options::join`] these are the first members of the
    /// cluster, and the same on each of them, with this node; further members get addresses from the log.
    pub members: BTreeMap<u64, String>,
    /// The node waits until it is added to a cluster.
    pub join: bool,
    /// An empty directory founds a cluster; without it, the node expects its data there.
    pub new: bool,
    /// Times and limits.
    pub settings: Settings,
    /// Largest snapshot that is received, bytes. A larger one is refused, so that a peer's snapshot does
    /// not take all memory: it takes as much memory, and the state that it has.
    pub max_snapshot: u64,
    /// Receives one line for each event that an operator should know. Its subject is this node, which is
    /// named in front of it: `leads in term 3`.
    pub report: Rc<dyn Fn(&str)>,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("uri", &self.uri).finish_non_exhaustive()
    }
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The disk, or a file on it.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The options.
    #[error("{0}")]
    Options(String),
    /// The services.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// A node.
pub struct Node {
    core: RefCell<Core>,
    local: Local,
    options: Options,
    wake: Signal,
    /// A frame for the disk, or segments to remove.
    disk: Signal,
    /// A snapshot is durable: segments can be removed.
    is_dirty: Cell<bool>,
    /// It is time for a snapshot.
    snapshot: Signal,
    /// Index of the last entry that was applied.
    applied: Progress,
    /// Number of the watches of clients.
    watches: Cell<usize>,
    /// Held while a snapshot is written, as there is one file for it.
    saving: futures::lock::Mutex<()>,
    peers: RefCell<BTreeMap<u64, Rc<Peer>>>,
    /// This node, for tasks that calls begin.
    me: Weak<Node>,
    /// A random number of this process.
    process: u64,
    checks: Rc<copies::Checks>,
    /// The cluster, as far as it is known.
    identity: Cell<Identity>,
    /// Members that have introduced themselves with this cluster.
    introduced: RefCell<BTreeSet<u64>>,
    /// Addresses that members announced.
    announced: RefCell<BTreeMap<u64, String>>,
    /// The snapshot that is being received.
    incoming: RefCell<Incoming>,
    storage: Option<Arc<dyn Storage>>,
    /// The last role that was reported.
    role: RefCell<String>,
    ended: Progress,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("core", &self.core).finish_non_exhaustive()
    }
}

/// The state of the directory, which is founded if it is empty and the options state that.
fn recover(
    options: &Options,
    storage: &Arc<dyn Storage>,
    nonce: u64,
) -> Result<(Journal, crate::journal::State), StartError> {
    let (bugs, id) = (options.settings.bugs, options.settings.id);
    let name = options.cluster.clone();
    let owner = Owner { id, name, identity: Identity::default(), nonce };
    let recovered = match Journal::open(storage.clone(), &owner, bugs)? {
        Some(recovered) => recovered,
        None if !options.join && !options.new => return Err(JournalError::Empty.into()),
        None => {
            let store = (!options.join).then(|| Store::founded(&options.members));
            Journal::found(storage.clone(), &owner, store.as_ref())?;
            Journal::open(storage.clone(), &owner, bugs)?.ok_or(JournalError::Empty)?
        }
    };
    if options.new && !recovered.journal.identity().fits(Identity::of_founders(&options.members)) {
        return Err(StartError::Options(
            "the directory is of a cluster that was founded with other --peers; leave out --new, or \
             name another directory"
                .to_owned(),
        ));
    }
    if recovered.cut > 0 {
        let text = format!("cut off {} bytes of a frame that a crash interrupted", recovered.cut);
        (options.report)(&text);
    }
    Ok((recovered.journal, recovered.state))
}

/// A number that others may know. The generator's state, and with it the nonce of the directory, cannot be
/// computed from it.
fn published(random: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(random);
    hasher.finish().max(1)
}

impl Node {
    /// Starts a node at an endpoint: reads the directory, registers the services, spawns the tasks.
    /// Without a storage the log is in memory, and the node may not be started again under its number.
    ///
    /// # Errors
    /// The fault, with what to do.
    pub fn start(
        rpc: &mut Rpc,
        mut options: Options,
        storage: Option<Arc<dyn Storage>>,
    ) -> Result<Rc<Node>, StartError> {
        check(&options)?;
        options.settings.durable = storage.is_some();
        let (journal, (store, image, log)) = match &storage {
            Some(storage) => {
                let (journal, state) = recover(&options, storage, rpc.context().random())?;
                (Some(journal), state)
            }
            None if options.join => (None, (Store::default(), None, Log::default())),
            None => {
                let store = Store::founded(&options.members);
                let log = Log::new(store.applied(), store.membership().clone());
                (None, (store.clone(), Some(store.image()), log))
            }
        };
        let now_ns = rpc.context().now_ns();
        let identity = journal.as_ref().map_or(store.identity(), Journal::identity);
        options.settings.cluster = published(rpc.context().random());
        let core = Core::new(options.settings.clone(), log, store, image, now_ns)
            .map_err(StartError::Options)?;
        let node = Rc::new_cyclic(|me| Node {
            core: RefCell::new(core),
            local: rpc.local(),
            options,
            wake: Signal::default(),
            disk: Signal::default(),
            is_dirty: Cell::new(false),
            snapshot: Signal::default(),
            applied: Progress::default(),
            watches: Cell::new(0),
            saving: futures::lock::Mutex::default(),
            peers: RefCell::default(),
            me: me.clone(),
            process: published(rpc.context().random()),
            checks: Rc::default(),
            identity: Cell::new(identity),
            introduced: RefCell::default(),
            announced: RefCell::default(),
            incoming: RefCell::default(),
            storage,
            role: RefCell::default(),
            ended: Progress::default(),
        });
        rpc.add_service(KvServer::shared(node.clone()))?;
        rpc.add_service(PeersServer::shared(node.clone()))?;
        node.spawn(journal);
        Ok(node)
    }

    fn spawn(self: &Rc<Self>, journal: Option<Journal>) {
        let (driver, ticker, saver) = (self.clone(), self.clone(), self.clone());
        drop(self.local.spawn(async move {
            loop {
                driver.turn();
                driver.wake.wait().await;
            }
        }));
        drop(self.local.spawn(async move {
            loop {
                ticker.local.sleep(ticker.options.settings.tick).await;
                ticker.with(Core::tick);
                ticker.incoming.borrow_mut().expire(ticker.local.now_ns());
            }
        }));
        drop(self.local.spawn(async move { saver.save_snapshots().await }));
        if let Some(journal) = journal {
            let writer = self.clone();
            drop(self.local.spawn(async move { writer.write_frames(journal).await }));
        }
    }

    /// Uses the core, with the time of now, and has its results processed.
    fn with<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.core.borrow_mut();
        core.set_now(self.local.now_ns());
        let result = f(&mut core);
        self.wake.set();
        result
    }

    /// Processes everything that was requested since the last turn.
    fn turn(self: &Rc<Self>) {
        let mut core = self.core.borrow_mut();
        core.set_now(self.local.now_ns());
        core.process();
        let messages = core.take_messages();
        let applied = core.store().applied().0;
        let identity = core.store().identity();
        if core.is_snapshot_due() {
            self.snapshot.set();
        }
        drop(core);
        self.follow_members();
        if self.storage.is_none() {
            self.belong(identity);
        }
        self.disk.set();
        for message in messages {
            self.post(message);
        }
        self.applied.advance(applied);
        self.report_role();
    }

    fn post(self: &Rc<Self>, message: Message) {
        let to = message.to;
        let peer = self.peers.borrow().get(&to).cloned();
        match peer {
            Some(peer) if message.has_snapshot() => self.transfer(peer, message),
            Some(peer) if crate::wire::split(message).into_iter().all(|part| peer.push(part)) => {}
            // Its queue is full, or it is no member.
            _ => self.with(|core| core.unreachable(to)),
        }
    }

    /// Reports changes of the role, and the end of the node.
    fn report_role(&self) {
        let core = self.core.borrow();
        let role = match core.failed() {
            Some(reason) => format!("has stopped: {reason}"),
            None if core.is_stalled() => {
                format!("takes no part: {}", core.disk_state().unwrap_or_default())
            }
            None if core.is_leader() => format!("leads in term {}", core.term()),
            None => core
                .leader()
                .map_or("follows no leader".to_owned(), |id| format!("follows node {id}")),
        };
        if core.failed().is_some() {
            self.ended.advance(1);
        }
        drop(core);
        if *self.role.borrow() != role {
            (self.options.report)(&role);
            *self.role.borrow_mut() = role;
        }
    }

    /// Ends when the node has stopped, with the reason.
    pub async fn stopped(&self) -> String {
        self.ended.above(0).await;
        self.core.borrow().failed().unwrap_or_default().to_owned()
    }

    /// Number of the watches of clients, and of the tasks that wait for entries.
    pub fn watches(&self) -> (usize, usize) {
        (self.watches.get(), self.applied.waiting())
    }

    /// The core, for inspection.
    pub fn core(&self) -> std::cell::Ref<'_, Core> {
        self.core.borrow()
    }

    /// Notes the cluster, once the directory names it: a node that has introduced itself with its cluster
    /// knows that after every start, unless its data was lost. So it introduces itself again.
    fn belong(&self, to: Identity) {
        if to.cluster != 0 && self.identity.replace(to) != to {
            self.peers.borrow().values().for_each(|peer| peer.moved());
        }
    }

    /// Bytes of the messages that wait for the peer that has the most of them.
    pub fn queued(&self) -> usize {
        self.peers.borrow().values().map(|peer| peer.queued()).max().unwrap_or(0)
    }

    /// Bytes of the snapshot that is being received.
    pub fn receiving(&self) -> usize {
        self.incoming.borrow().bytes()
    }

    /// The last known addresses of a member, the most likely first.
    fn addresses(&self, id: u64) -> Vec<String> {
        let core = self.core.borrow();
        let announced = self.announced.borrow().get(&id).cloned();
        let known = core.store().addresses().get(&id).cloned();
        let given = self.options.members.get(&id).cloned();
        let mut all: Vec<String> = Vec::new();
        for uri in [announced, known, given].into_iter().flatten() {
            if !uri.is_empty() && !all.contains(&uri) {
                all.push(uri);
            }
        }
        all
    }

    /// Begins and ends the tasks of peers.
    fn follow_members(self: &Rc<Self>) {
        let own = self.options.settings.id;
        let core = self.core.borrow();
        let members = core.store().membership();
        let mut ids: Vec<u64> = members.voters.iter().chain(&members.learners).copied().collect();
        if ids.is_empty() {
            // A node that joins is sent messages by members that it does not know yet.
            ids.extend(self.options.members.keys());
        }
        drop(core);
        ids.retain(|id| *id != own);
        let mut peers = self.peers.borrow_mut();
        if peers.len() == ids.len() && ids.iter().all(|id| peers.contains_key(id)) {
            return;
        }
        peers.retain(|id, peer| ids.contains(id) || peer.end());
        for id in ids {
            peers.entry(id).or_insert_with(|| Peer::start(self, id));
        }
    }
}

/// Longest time of an answer of a peer.
const PATIENCE: Duration = Duration::from_secs(2);

fn check(options: &Options) -> Result<(), StartError> {
    let settings = &options.settings;
    let refuse = |text: &str| Err(StartError::Options(text.to_owned()));
    if settings.id == 0 || settings.id > 1 << 62 {
        return refuse("the number of a node is from 1 on; correct --id");
    }
    if options.join && options.new {
        return refuse("a node joins a cluster or founds one; leave out --new or --join");
    }
    if options.join && options.members.is_empty() {
        return refuse("a node that joins needs the address of a member; add --peers");
    }
    if !options.join && !options.members.contains_key(&settings.id) {
        return refuse(
            "the members have to include this node; add its number and address to --peers",
        );
    }
    if options.members.len() > crate::wire::MAX_MEMBERS {
        return refuse("a cluster has at most 64 members; use fewer");
    }
    for uri in options.members.values().chain([&options.uri]) {
        address::check(uri).map_err(|error| StartError::Options(error.to_string()))?;
    }
    if settings.heartbeat_ticks == 0
        || settings.silent_ticks <= settings.heartbeat_ticks
        || settings.election_ticks.start < settings.silent_ticks
        || settings.election_ticks.is_empty()
        || settings.tick.is_zero()
    {
        return refuse("an election timeout has to be longer than a heartbeat; raise --election");
    }
    Ok(())
}
