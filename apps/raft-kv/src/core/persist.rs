//! The steps of the Raft library, and the frames for the disk.
//!
//! One frame is written at a time. Entries that come meanwhile are in the next one, so that a slow disk
//! has fewer and larger writes.

use raft::eraftpb::{Entry, HardState, Message};

use super::{BACKLOG, Core};
use crate::planted::Bug;
use crate::store::Image;
use crate::wire;

/// A part of a frame, in the order in which they are applied.
#[derive(Clone, PartialEq, Debug)]
pub enum Record {
    /// Term, vote and commit index.
    Hard(HardState),
    /// An entry, which replaces those of its index and behind.
    Entry(Entry),
    /// A snapshot with this index and term replaces all entries.
    Reset(u64, u64),
}

/// Data that must be durable before the messages that wait for it are sent.
#[derive(Clone, Default, Debug)]
pub struct Frame {
    /// Its parts.
    pub records: Vec<Record>,
    /// A snapshot, which must be durable before the records.
    pub image: Option<Image>,
    /// Bytes of its entries.
    bytes: usize,
    /// Number of the last step of the Raft library that is in it.
    number: u64,
}

impl Frame {
    /// A frame of records that wait for no message.
    pub fn of(records: Vec<Record>) -> Frame {
        Frame { records, ..Frame::default() }
    }

    /// Returns whether it has nothing.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.image.is_none()
    }

    /// Bytes of its entries.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its number, for [`Core::persisted`].
    pub fn number(&self) -> u64 {
        self.number
    }
}

/// The state of an image after a slice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Making {
    /// It is not time for a snapshot.
    Idle,
    /// More slices are needed.
    Begun,
    /// It is complete.
    Done(Image),
}

/// Messages that wait for a frame.
#[derive(Debug)]
pub(super) struct Held {
    number: u64,
    messages: Vec<Message>,
    bytes: usize,
}

/// Memory of a message.
fn size(message: &Message) -> usize {
    size_of::<Message>() + wire::size(message)
}

impl Core {
    /// Does what was requested: after calls of any other function.
    pub fn process(&mut self) {
        self.arrived = 0;
        if self.is_stalled() {
            return;
        }
        self.issue_reads();
        self.steps();
        if self.failed.is_none() {
            self.follow_leadership();
            self.steps();
            self.finish_reads();
        }
        self.stall();
    }

    /// Ends the node's part in the cluster while too much waits for the disk. A leader stops leading, also
    /// after a time, as another node has a disk that answers.
    fn stall(&mut self) {
        let ((steps, bytes), limit) = (self.held(), self.settings.unsynced);
        let is_late = self.waits_for_disk() && self.late.ticks() >= limit.ticks;
        let is_behind = steps >= limit.steps || bytes >= limit.message_bytes;
        if self.failed.is_some() || !(is_behind || is_late && self.is_leader()) {
            return;
        }
        self.late.stall(self.now_ns);
        if self.is_leader() {
            self.guarded(|core| core.raw.raft.become_follower(core.raw.raft.term, 0));
            self.steps();
            self.follow_leadership();
        }
    }

    /// Returns whether data waits for the disk: a frame is being written, or one is to be written. The
    /// latter alone counts too, as the disk may hang in another operation.
    pub(super) fn waits_for_disk(&self) -> bool {
        self.writing.is_some() || !self.frame.is_empty()
    }

    /// Steps of the Raft library that wait for the disk, and the bytes of their messages.
    pub fn held(&self) -> (u64, usize) {
        (self.frame.number - self.durable_step, self.held_bytes)
    }

    /// Returns whether the node takes no part in the cluster, as too much waits for the disk.
    pub fn is_stalled(&self) -> bool {
        self.late.is_stalled()
    }

    /// Why data waits for the disk, as a sentence. `None`: the disk takes data as usual.
    pub fn disk_state(&self) -> Option<String> {
        self.late.cause(self.now_ns)
    }

    fn steps(&mut self) {
        self.guarded(|core| {
            while core.raw.has_ready() {
                core.step();
            }
        });
    }

    fn step(&mut self) {
        let mut ready = self.raw.ready();
        for state in ready.take_read_states() {
            self.confirm_read(state.index, &state.request_ctx);
        }
        self.out.append(&mut ready.take_messages());
        let messages = ready.take_persisted_messages();
        let number = ready.number();
        self.frame.number = number;
        if !ready.snapshot().is_empty() {
            self.take_incoming(ready.snapshot().get_metadata().index);
        }
        let entries = ready.take_entries();
        if let Some(hard) = ready.hs() {
            self.raw.mut_store().set_hard(hard.clone());
            // A commit index alone is known again from the leader.
            if ready.must_sync() && self.settings.durable {
                self.frame.records.push(Record::Hard(hard.clone()));
            }
        }
        if !entries.is_empty() {
            if self.settings.durable {
                self.frame.bytes += entries.iter().map(|entry| entry.data.len()).sum::<usize>();
                self.frame.records.extend(entries.iter().cloned().map(Record::Entry));
            }
            assert!(self.raw.mut_store().append(entries), "entries follow the log");
        }
        let committed = ready.take_committed_entries();
        self.raw.advance_append_async(ready);
        self.apply(committed);
        if self.settings.durable && self.waits_for_disk() {
            let bytes = messages.iter().map(size).sum();
            self.held_bytes += bytes;
            self.held.push_back(Held { number, messages, bytes });
        } else {
            self.out.extend(messages);
            self.finish_frames(number);
        }
    }

    /// The next frame for the disk, when none is being written.
    pub fn take_frame(&mut self) -> Option<Frame> {
        if self.writing.is_some() || self.frame.is_empty() || self.failed.is_some() {
            return None;
        }
        let number = self.frame.number;
        let frame = std::mem::replace(&mut self.frame, Frame { number, ..Frame::default() });
        self.writing = Some(frame.number);
        self.late.writes(frame.image.as_ref().map(|image| image.bytes.len()));
        Some(frame)
    }

    /// The frame of this number is durable.
    pub fn persisted(&mut self, number: u64) {
        if self.writing == Some(number) {
            self.writing = None;
            self.late.progress();
            self.guarded(|core| core.finish_frames(number));
        }
    }

    /// Everything up to this number is durable, and steps behind it that have nothing for the disk.
    fn finish_frames(&mut self, number: u64) {
        let mut number = number;
        while let Some(held) = self.held.front()
            && (held.number <= number || self.frame.is_empty())
        {
            number = number.max(held.number);
            let Some(held) = self.held.pop_front() else { break };
            self.held_bytes -= held.bytes;
            self.out.extend(held.messages);
        }
        if !self.settings.durable {
            self.frame = Frame { number: self.frame.number, ..Frame::default() };
        }
        let installed = self.incoming.take_if(|(store, _)| {
            store.applied().0 == self.raw.store().snapshot_at().0 && self.frame.image.is_none()
        });
        self.raw.on_persist_ready(number);
        self.durable_step = number;
        if !self.waits_for_disk() {
            self.late.end_stall();
        }
        if let Some((store, image)) = installed {
            self.raw.advance_apply_to(store.applied().0);
            self.store = store;
            self.unsaved_bytes = 0;
            self.image = Some(image);
            self.counters.snapshots_installed += 1;
        }
    }

    /// A snapshot was accepted by the Raft library.
    fn take_incoming(&mut self, index: u64) {
        let (store, image) = self.incoming.as_ref().expect("a snapshot is stepped with its store");
        let (at, membership) = (store.applied(), store.membership().clone());
        assert_eq!(at.0, index, "the snapshot that was examined");
        // It makes the frames before it superfluous, but their promises are sent after it.
        self.frame.records.push(Record::Reset(at.0, at.1));
        self.frame.image = Some(image.clone());
        self.raw.mut_store().reset(at, membership);
    }

    /// Returns whether the log takes no more entries until a snapshot is durable. The disk is too slow for
    /// them, and they would fill the memory. Only entries that were applied count: a snapshot is made
    /// without others, and removes them.
    pub(super) fn is_backlogged(&self) -> bool {
        self.unsaved_bytes >= (1 + BACKLOG).saturating_mul(self.settings.snapshot_bytes)
    }

    /// Returns whether a message of a leader may have entries.
    pub(super) fn takes_entries(&self) -> bool {
        let records = self.frame.records.len() * size_of::<Record>();
        let bytes = self.frame.bytes() + records + self.arrived;
        !self.is_backlogged() && bytes < self.settings.unsynced.entry_bytes
    }

    /// Returns whether it is time for a snapshot: the log is long, or a member needs one.
    pub fn is_snapshot_due(&self) -> bool {
        let log = self.raw.store();
        let since = self.store.applied().0.saturating_sub(log.snapshot_at().0);
        let is_large = self.unsaved_bytes >= self.settings.snapshot_bytes;
        let is_long = since >= self.settings.snapshot_entries;
        let is_due = is_long || is_large || (log.wants_snapshot() && since > 0);
        is_due && self.failed.is_none() && self.incoming.is_none()
    }

    /// Makes a slice of an image of the store, when it is time for a snapshot: some milliseconds of work
    /// at most. The caller makes a complete image durable.
    pub fn make_snapshot(&mut self) -> Making {
        if self.failed.is_some() || !self.store.makes_image() && !self.is_snapshot_due() {
            return Making::Idle;
        }
        if let Some(before) =
            self.before.as_ref().filter(|_| self.settings.bugs.has(Bug::ShortSnapshot))
        {
            return Making::Done(before.image_at(self.store.applied()));
        }
        if !self.store.makes_image() {
            self.store.begin_image();
        }
        self.store.continue_image().map_or(Making::Begun, Making::Done)
    }

    /// The image is durable: the log before it, but for the entries that are kept, is not needed.
    pub fn snapshot_made(&mut self, image: Image) {
        let applied = self.store.applied().0;
        let limit = (self.settings.kept_entries, self.settings.snapshot_bytes / 2);
        let log = self.raw.mut_store();
        if image.at.0 <= log.snapshot_at().0 {
            return;
        }
        log.set_snapshot(image.at, image.membership.clone());
        self.unsaved_bytes = log.bytes_between(image.at.0, applied);
        log.truncate_but(image.at.0, limit);
        self.image = Some(image);
        self.counters.snapshots_made += 1;
    }

    /// The durable image with this index, for a follower.
    pub fn image(&self, index: u64) -> Option<Image> {
        self.image.clone().filter(|image| image.at.0 == index)
    }

    /// Returns whether the begin of the log is durable: no received snapshot waits for the disk.
    pub fn has_durable_begin(&self) -> bool {
        self.frame.image.is_none() && self.incoming.is_none()
    }

    /// The log, for the journal's new segments.
    pub fn log(&self) -> &crate::log::Log {
        self.raw.store()
    }
}
