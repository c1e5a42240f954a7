//! A node without I/O: the Raft library, its log in memory, and the state machine. Messages, time and the
//! results of writes to disk are passed in; messages and frames for the disk are taken out. So the same
//! code runs over sockets and in the simulator.
//!
//! ```text
//! propose, read, receive, tick --> process --> take_messages      to the peers, at once
//!                                         \--> take_frame         to the disk, one at a time
//!                      persisted(frame) --> process: messages that waited for it, commits, results
//! ```
//!
//! Invariants:
//! 1. A message that promises something (a vote, entries that are stored) leaves after the frame that
//!    has it is durable. A leader's own entries count for its quorum after that too.
//! 2. A write is answered after its entry was committed and applied, a read after a quorum confirmed
//!    that this node leads, at or after the begin of the read, and the log was applied up to the
//!    commit index of that time.
//! 3. Writes and reads that a leader cannot finish end with [`Refused::NotLeader`] when it stops leading.
//!    Such a write may have been applied; its retry with the same ticket is applied once.

mod apply;
pub mod guard;
mod late;
mod members;
mod persist;
mod reads;
mod status;
#[cfg(test)]
mod tests;
mod writes;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures::channel::oneshot::Sender;
use raft::eraftpb::Message;
use raft::{RawNode, ReadOnlyOption, SnapshotStatus, StateRole};

use crate::command::{Applied, Command, Op, Ticket, Written};
use crate::log::Log;
use crate::planted::{Bug, Planted};
use crate::store::Store;
use guard::Suspect;
use late::Late;
pub use members::{MemberChange, MemberError};
use persist::Held;
pub use persist::{Frame, Making, Record};
use reads::Reads;
pub use status::{Counters, Status};
use writes::Writes;

/// Most writes that a leader has not answered.
pub const MAX_WRITES: usize = 16_384;
/// Bytes of entries that may be applied while a snapshot is written, in parts of
/// [`Settings::snapshot_bytes`].
const BACKLOG: usize = 2;
/// Most reads that a leader has not answered.
pub const MAX_READS: usize = 65_536;

/// How a leader makes sure that a read is not stale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadMode {
    /// By a round of messages with a quorum, one for all reads that wait.
    Quorum,
    /// Without messages while a lease holds: after a round, for the shortest election timeout less a tick
    /// and less a part of it. All members keep the promise that makes it safe, with leases of their own
    /// or without. Assumption: the clock rates of two members differ by at most `drift_ppm`, and no
    /// clock stands still.
    Lease {
        /// The largest difference, parts per million.
        drift_ppm: u32,
    },
}

/// Limits of data that waits for the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unsynced {
    /// Bytes of entries above which a node drops messages with more of them: the leader sends them again
    /// when the disk has caught up. Default 256 MiB.
    pub entry_bytes: usize,
    /// Steps of the Raft library above which the node stops leading, and drops all messages until the disk
    /// has taken everything: other nodes lead meanwhile, and repeat them. A step takes 100 bytes or so.
    /// Default 65,536.
    pub steps: u64,
    /// Bytes of messages above which the node does the same. Default 32 MiB.
    pub message_bytes: usize,
    /// Ticks for which data of a leader may wait without progress of the disk: after these it does the
    /// same. Clients get no answers meanwhile. Default 200, 5 s.
    pub ticks: usize,
}

/// Settings of a node. All members should have the same times; with leases they have to.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's number, from 1.
    pub id: u64,
    /// Interval of [`Core::tick`].
    pub tick: Duration,
    /// Ticks between heartbeats of a leader.
    pub heartbeat_ticks: usize,
    /// Ticks after a message of a leader in which a node ignores other candidates, and after which a
    /// leader without a quorum stops leading: the shortest election timeout of the cluster, the same
    /// on all members.
    pub silent_ticks: usize,
    /// Ticks without a leader after which a node becomes a candidate: drawn from this range each time,
    /// which does not begin before `silent_ticks`. A range of one value is deterministic; members need
    /// different ones then.
    pub election_ticks: std::ops::Range<usize>,
    /// How reads are made.
    pub reads: ReadMode,
    /// Several entries may share a message.
    pub batching: bool,
    /// Time without a write after which a client's session ends.
    pub session_ttl: Duration,
    /// Entries between snapshots.
    pub snapshot_entries: u64,
    /// Bytes of entries between snapshots: the next one is made at either limit.
    pub snapshot_bytes: usize,
    /// Entries before a snapshot that are kept for followers that are a little behind, up to half of
    /// `snapshot_bytes`.
    pub kept_entries: u64,
    /// A random number, that of a cluster whose first leader is this node.
    pub cluster: u64,
    /// Limits of data that waits for the disk.
    pub unsynced: Unsynced,
    /// False: the log is in memory only.
    pub durable: bool,
    /// A bug, for tests.
    pub bugs: Planted,
}

impl Settings {
    /// The defaults: ticks of 25 ms, heartbeats every 50 ms, elections after 250 to 500 ms.
    pub fn new(id: u64) -> Settings {
        Settings {
            id,
            tick: Duration::from_millis(25),
            heartbeat_ticks: 2,
            silent_ticks: 10,
            election_ticks: 10..20,
            reads: ReadMode::Quorum,
            batching: true,
            session_ttl: Duration::from_secs(600),
            snapshot_entries: 100_000,
            snapshot_bytes: 64 << 20,
            kept_entries: 10_000,
            cluster: 1,
            unsynced: Unsynced {
                entry_bytes: 256 << 20,
                steps: 65_536,
                message_bytes: 32 << 20,
                ticks: 200,
            },
            durable: true,
            bugs: Planted::default(),
        }
    }

    /// The shortest election timeout.
    pub fn election(&self) -> Duration {
        self.tick * u32::try_from(self.silent_ticks).unwrap_or(u32::MAX)
    }

    fn raft(&self, applied: u64) -> raft::Config {
        raft::Config {
            id: self.id,
            election_tick: self.silent_ticks,
            min_election_tick: self.election_ticks.start,
            max_election_tick: self.election_ticks.end,
            heartbeat_tick: self.heartbeat_ticks,
            applied,
            // Bytes of entries in a message, at least one entry: 0 is one entry.
            max_size_per_msg: if self.batching { 64 << 10 } else { 0 },
            max_inflight_msgs: 128,
            check_quorum: true,
            pre_vote: true,
            // Leases are made here, from rounds of quorum reads.
            read_only_option: ReadOnlyOption::Safe,
            batch_append: self.batching,
            max_uncommitted_size: 64 << 20,
            max_committed_size_per_ready: 4 << 20,
            ..raft::Config::default()
        }
    }
}

/// Why a write or a read has no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Another node leads, or none, or a retry has taken the place of this attempt. A write that was
    /// accepted before may be applied.
    NotLeader {
        /// The leader, if there is one.
        leader: Option<u64>,
    },
    /// Too many writes or reads are not answered.
    Busy,
    /// The node has stopped.
    Stopped,
}

/// Why a node does not take a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// It contradicts the state of the node.
    Suspect(&'static str),
    /// The disk has not taken another one, or everything that came before.
    Busy,
}

/// Receives the result of a write.
pub type Writer = Sender<Result<Applied, Refused>>;
/// Receives the word that the store may be read.
pub type Reader = Sender<Result<(), Refused>>;

/// A node. See the module.
pub struct Core {
    raw: RawNode<Log>,
    store: Store,
    settings: Settings,
    writes: Writes<Writer>,
    reads: Reads,
    out: Vec<Message>,
    /// The next frame, which grows until the present one is durable.
    frame: Frame,
    /// Bytes of entries of peers since the last step of the Raft library, which are in no frame yet.
    arrived: usize,
    /// Number of the frame that is being written.
    writing: Option<u64>,
    /// Messages that wait for frames, and their bytes.
    held: VecDeque<Held>,
    held_bytes: usize,
    /// Number of the last step that is durable.
    durable_step: u64,
    /// Progress of the disk.
    late: Late,
    /// A store that was received, until its snapshot is durable.
    incoming: Option<(Store, crate::store::Image)>,
    /// The last durable image, which lagging followers get.
    image: Option<crate::store::Image>,
    /// Bytes of the entries that were applied since the last snapshot.
    unsaved_bytes: usize,
    /// The store before the last entry, for [`Bug::ShortSnapshot`].
    before: Option<Store>,
    /// Term in which this node leads, and the cluster's and its own time when that began.
    leads: Option<(u64, u64, u64)>,
    now_ns: u64,
    /// Time at which this node last heard of a leader, or may have heard before its start.
    heard_ns: Option<u64>,
    /// Times of the last messages of members, ns.
    heard: BTreeMap<u64, u64>,
    counters: Counters,
    failed: Option<String>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("id", &self.settings.id).finish_non_exhaustive()
    }
}

impl Core {
    /// A node from its log and the store of its snapshot.
    ///
    /// # Errors
    /// The Raft library refuses the settings.
    pub fn new(
        settings: Settings,
        log: Log,
        store: Store,
        image: Option<crate::store::Image>,
        now_ns: u64,
    ) -> Result<Core, String> {
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        // A leader's term is durable before it is answered, and the first one is above that of a
        // cluster's foundation.
        let may_have_heard = log.hard().term > 1;
        let raw = RawNode::new(&settings.raft(store.applied().0), log, &logger)
            .map_err(|error| format!("the settings of Raft: {error}"))?;
        Ok(Core {
            raw,
            store,
            settings,
            writes: Writes::default(),
            reads: Reads::default(),
            out: Vec::new(),
            frame: Frame::default(),
            arrived: 0,
            writing: None,
            held: VecDeque::new(),
            held_bytes: 0,
            durable_step: 0,
            late: Late::default(),
            incoming: None,
            image,
            unsaved_bytes: 0,
            before: None,
            leads: None,
            now_ns,
            heard_ns: may_have_heard.then_some(now_ns),
            heard: BTreeMap::new(),
            counters: Counters::default(),
            failed: None,
        })
    }

    /// The state machine. A client's reads need [`Core::read`] first.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns whether this node leads, as far as it knows.
    pub fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// The leader that this node follows.
    pub fn leader(&self) -> Option<u64> {
        Some(self.raw.raft.leader_id).filter(|id| *id != 0)
    }

    /// Why the node has stopped.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Stops the node: it answers and sends nothing any more.
    pub fn fail(&mut self, reason: String) {
        if self.failed.is_none() {
            self.failed = Some(reason);
            self.out.clear();
            self.held.clear();
            self.held_bytes = 0;
            self.refuse_all(&Refused::Stopped);
        }
    }

    /// Sets the time; it does not go backwards.
    pub fn set_now(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// An interval of [`Settings::tick`] has passed.
    pub fn tick(&mut self) {
        let waits = self.waits_for_disk();
        self.late.tick(waits, self.now_ns);
        // A candidate reads the entries that it has not applied. While a received snapshot is written, they
        // are in neither the log nor the store.
        let waits = self.incoming.is_some() || self.is_stalled();
        self.guarded(|core| {
            if !waits {
                core.raw.tick();
            }
            core.retry_reads();
        });
    }

    /// Proposes a write of a client. A retry of a write that is not applied yet waits for that: else a
    /// leader that is slow would be sent the same again and again, and be slower.
    pub fn write(&mut self, ticket: Ticket, op: Op, writer: Writer) {
        let writer = match self.writes.join(ticket, writer) {
            Ok(earlier) => {
                refuse(Some(earlier), Refused::NotLeader { leader: None });
                return;
            }
            Err(writer) => writer,
        };
        let now_ms = self.cluster_ms();
        self.propose(&Command::Write { now_ms, ticket, op }, Some(writer));
    }

    /// Opens a session.
    pub fn open(&mut self, writer: Writer) {
        let ttl_ms = self.settings.session_ttl.as_millis() as u64;
        let now_ms = self.cluster_ms();
        self.propose(&Command::Open { now_ms, ttl_ms }, Some(writer));
    }

    /// Ends a session.
    pub fn close(&mut self, session: u64, writer: Writer) {
        self.propose(&Command::Close { session }, Some(writer));
    }

    /// The cluster's time, ms: it passes with the clock of the leader, and with a new leader goes on from
    /// the last command.
    fn cluster_ms(&self) -> u64 {
        let since = |(_, began_ms, began_ns): (u64, u64, u64)| {
            began_ms + self.now_ns.saturating_sub(began_ns) / 1_000_000
        };
        self.leads.map_or(0, since).max(self.store.now_ms())
    }

    fn propose(&mut self, command: &Command, writer: Option<Writer>) {
        let is_full = self.writes.len() >= MAX_WRITES || self.is_backlogged();
        if let Some(refusal) = self.why_not(is_full) {
            refuse(writer, refusal);
            return;
        }
        let proposed = self.guarded(|core| core.raw.propose(Vec::new(), command.encode()).is_ok());
        if proposed != Some(true) {
            // Bytes of entries that are not committed are at their limit.
            self.counters.writes_refused += 1;
            refuse(writer, Refused::Busy);
            return;
        }
        self.counters.writes += 1;
        let (index, term) = (self.raw.raft.raft_log.last_index(), self.raw.raft.term);
        let Some(writer) = writer else { return };
        if self.settings.bugs.has(Bug::ReplyBeforeCommit)
            && matches!(command, Command::Write { .. })
        {
            let _ = writer.send(Ok(Applied::Written(Written { index, changed: true })));
            return;
        }
        let ticket = match command {
            Command::Write { ticket, .. } => Some(*ticket),
            _ => None,
        };
        self.writes.insert((index, term), ticket, writer);
    }

    fn why_not(&self, is_full: bool) -> Option<Refused> {
        if self.failed.is_some() {
            return Some(Refused::Stopped);
        }
        if !self.is_leader() {
            return Some(Refused::NotLeader { leader: self.leader() });
        }
        is_full.then_some(Refused::Busy)
    }

    /// Notes that a member has sent a message.
    fn note_peer(&mut self, id: u64) {
        if self.raw.raft.prs().get(id).is_some() {
            self.heard.insert(id, self.now_ns);
        }
    }

    /// Takes a message of a peer. One that contradicts the state of this node is dropped and counted.
    pub fn receive(&mut self, message: Message) {
        match self.examine(&message) {
            // The sender repeats it.
            Ok(()) if self.is_stalled() => self.counters.messages_dropped += 1,
            Ok(()) if self.is_ignored(&message) => self.counters.votes_ignored += 1,
            // The leader sends them again.
            Ok(()) if !message.entries.is_empty() && !self.takes_entries() => {
                self.counters.messages_dropped += 1;
            }
            Ok(()) => {
                let (from, kind) = (message.from, message.get_msg_type());
                self.note_peer(from);
                self.arrived += message.entries.iter().map(|entry| entry.data.len()).sum::<usize>();
                self.guarded(|core| {
                    // Errors are messages of nodes that are no members.
                    if core.raw.step(message).is_err() {
                        core.counters.messages_refused += 1;
                    }
                    core.hear(from, kind);
                });
            }
            Err(Suspect(reason)) => {
                self.counters.messages_refused += 1;
                self.counters.last_refusal = Some(reason);
            }
        }
    }

    /// Returns whether the disk has taken enough of what came before for another snapshot.
    pub fn takes_snapshot(&self) -> bool {
        self.incoming.is_none() && !self.is_stalled()
    }

    /// Takes a snapshot: its message, the store that was decoded from its image, and the bytes of that.
    ///
    /// # Errors
    /// The snapshot contradicts the state of this node, or the disk has not taken what came before.
    pub fn receive_snapshot(
        &mut self,
        message: Message,
        store: Store,
        bytes: std::sync::Arc<Vec<u8>>,
    ) -> Result<(), NotTaken> {
        if !self.takes_snapshot() {
            return Err(NotTaken::Busy);
        }
        match self.examine_snapshot(&message, store, bytes) {
            Ok(incoming) => {
                self.incoming = Some(incoming);
                self.receive(message);
                // The log has all of it, or another leader was newer.
                if self.raw.snap().is_none() {
                    self.incoming = None;
                }
                Ok(())
            }
            Err(Suspect(reason)) => {
                self.counters.last_refusal = Some(reason);
                Err(NotTaken::Suspect(reason))
            }
        }
    }

    /// Counts a snapshot of a peer that this node does not take.
    pub fn snapshot_refused(&mut self) {
        self.counters.snapshots_refused += 1;
    }

    /// A peer could not be sent a message.
    pub fn unreachable(&mut self, id: u64) {
        self.guarded(|core| core.raw.report_unreachable(id));
    }

    /// A snapshot was sent to a peer, or could not be.
    pub fn snapshot_sent(&mut self, id: u64, done: bool) {
        let status = if done { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.guarded(|core| core.raw.report_snapshot(id, status));
    }

    /// Messages for the peers.
    pub fn take_messages(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.out)
    }

    /// Runs a part that uses the Raft library. A panic in it stops the node: its state is not known
    /// then. [`guard`] drops the messages that would cause one.
    fn guarded<R>(&mut self, f: impl FnOnce(&mut Core) -> R) -> Option<R> {
        if self.failed.is_some() {
            return None;
        }
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(self))) {
            Ok(result) => Some(result),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text =
                    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
                self.fail(format!(
                    "the Raft library stopped ({text}); remove this node, and add it again with an empty \
                     directory"
                ));
                None
            }
        }
    }

    /// Ends writes and reads in progress.
    fn refuse_all(&mut self, refusal: &Refused) {
        self.writes.take_all().for_each(|writer| refuse(Some(writer), refusal.clone()));
        self.reads.refuse_all(refusal);
    }

    /// Notices a change of leadership. The first leader gives the cluster its number.
    fn follow_leadership(&mut self) {
        let term = self.raw.raft.term;
        let leads = self.is_leader();
        match self.leads {
            Some((since, ..)) if leads && since == term => {}
            None if !leads => {}
            _ => {
                self.reads.end_lease();
                if self.leads.is_some() {
                    let refusal = Refused::NotLeader { leader: self.leader().filter(|_| !leads) };
                    self.refuse_all(&refusal);
                }
                self.leads = leads.then_some((term, self.store.now_ms(), self.now_ns));
                self.counters.elections_won += u64::from(leads);
                if leads && self.store.identity().cluster == 0 {
                    let cluster = self.settings.cluster.max(1);
                    self.propose(&Command::Found { cluster }, None);
                }
            }
        }
    }
}

/// Answers with a refusal. A client that is gone does not matter.
fn refuse(writer: Option<Writer>, refusal: Refused) {
    if let Some(writer) = writer {
        let _ = writer.send(Err(refusal));
    }
}
