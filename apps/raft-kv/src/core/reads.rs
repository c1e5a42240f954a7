//! Linearizable reads [Raft dissertation, section 6.4]. All reads that wait when a round begins share it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use raft::eraftpb::{Message, MessageType};

use super::{Core, MAX_READS, ReadMode, Reader, Refused};
use crate::planted::Bug;

/// Most rounds in progress. Further reads wait for the next one, and share it.
const MAX_ROUNDS: usize = 4;

/// A round of messages that confirms that this node leads.
struct Round {
    number: u64,
    began_ns: u64,
    readers: Vec<Reader>,
}

/// Reads that are not answered.
#[derive(Default)]
pub(super) struct Reads {
    waiting: Vec<Reader>,
    rounds: VecDeque<Round>,
    last_round: u64,
    /// Reads by the index that must be applied.
    confirmed: BTreeMap<u64, Vec<Reader>>,
    count: usize,
    /// End of the lease.
    lease_ns: u64,
}

impl Reads {
    pub(super) fn refuse_all(&mut self, refusal: &Refused) {
        let rounds = self.rounds.drain(..).flat_map(|round| round.readers);
        let confirmed = std::mem::take(&mut self.confirmed).into_values().flatten();
        for reader in self.waiting.drain(..).chain(rounds).chain(confirmed) {
            let _ = reader.send(Err(refusal.clone()));
        }
        self.count = 0;
    }

    pub(super) fn end_lease(&mut self) {
        self.lease_ns = 0;
    }
}

impl Core {
    /// Sends `reader` the word when the store may be read.
    pub fn read(&mut self, reader: Reader) {
        let refusal = self.why_not(self.reads.count >= MAX_READS);
        if let Some(refusal) = refusal {
            let _ = reader.send(Err(refusal));
            return;
        }
        self.counters.reads += 1;
        if self.settings.bugs.has(Bug::ReadWithoutQuorum) {
            let _ = reader.send(Ok(()));
            return;
        }
        self.reads.count += 1;
        self.reads.waiting.push(reader);
    }

    /// The commit index, if an entry of this leader's term is committed: before, it may be too low.
    fn commit_index(&self) -> Option<u64> {
        let log = &self.raw.raft.raft_log;
        (log.term(log.committed) == Ok(self.raw.raft.term)).then_some(log.committed)
    }

    /// Begins a round for the reads that wait.
    pub(super) fn issue_reads(&mut self) {
        if self.reads.waiting.is_empty() || !self.is_leader() {
            return;
        }
        let Some(index) = self.commit_index() else { return };
        if self.now_ns < self.reads.lease_ns {
            self.counters.reads_by_lease += self.reads.waiting.len() as u64;
            let readers = std::mem::take(&mut self.reads.waiting);
            self.reads.confirmed.entry(index).or_default().extend(readers);
            return;
        }
        if self.reads.rounds.len() >= MAX_ROUNDS {
            return;
        }
        self.reads.last_round += 1;
        let number = self.reads.last_round;
        let readers = std::mem::take(&mut self.reads.waiting);
        self.reads.rounds.push_back(Round { number, began_ns: self.now_ns, readers });
        self.counters.read_rounds += 1;
        self.guarded(|core| core.raw.read_index(number.to_le_bytes().to_vec()));
    }

    /// A round has ended: reads that began before it may read the store once this index is applied.
    pub(super) fn confirm_read(&mut self, index: u64, context: &[u8]) {
        let Ok(number) = <[u8; 8]>::try_from(context).map(u64::from_le_bytes) else { return };
        while let Some(round) = self.reads.rounds.front()
            && round.number <= number
        {
            let Some(round) = self.reads.rounds.pop_front() else { return };
            self.reads.confirmed.entry(index).or_default().extend(round.readers);
            if let Some(lease) = self.lease() {
                let end_ns = round.began_ns.saturating_add(lease.as_nanos() as u64);
                self.reads.lease_ns = self.reads.lease_ns.max(end_ns);
            }
        }
    }

    /// A follower that has heard of the leader votes for no other node for the shortest election timeout:
    /// it ignores candidates, and becomes one itself after as many ticks, of which the first may be a
    /// part. Its clock may be faster than the leader's.
    fn lease(&self) -> Option<Duration> {
        let ReadMode::Lease { drift_ppm } = self.settings.reads else { return None };
        let whole = self.settings.election().saturating_sub(self.settings.tick);
        Some(whole.mul_f64(1.0 - f64::from(drift_ppm.min(1_000_000)) / 1e6))
    }

    /// Notes the time of a message of the leader.
    pub(super) fn hear(&mut self, from: u64, kind: MessageType) {
        use MessageType::{MsgAppend, MsgHeartbeat, MsgSnapshot};
        let is_of_leader = matches!(kind, MsgAppend | MsgHeartbeat | MsgSnapshot);
        if is_of_leader && self.leader() == Some(from) {
            self.heard_ns = Some(self.now_ns);
        }
    }

    /// A candidate is ignored for an election timeout after a message of a leader, which may have a lease
    /// by the answer, and after the start of a node that may have heard one before. The Raft library
    /// ignores candidates too, but forgets the leader when the node starts again or is sent another term.
    pub(super) fn is_ignored(&self, message: &Message) -> bool {
        use MessageType::{MsgRequestPreVote, MsgRequestVote};
        let election_ns = self.settings.election().as_nanos() as u64;
        matches!(message.get_msg_type(), MsgRequestVote | MsgRequestPreVote)
            && self.heard_ns.is_some_and(|at| self.now_ns.saturating_sub(at) < election_ns)
    }

    /// Rounds that the Raft library has dropped, as its messages were lost, are tried again.
    pub(super) fn retry_reads(&mut self) {
        let patience = self.settings.tick * (2 * self.settings.heartbeat_ticks as u32);
        while let Some(round) = self.reads.rounds.front()
            && self.now_ns.saturating_sub(round.began_ns) > patience.as_nanos() as u64
        {
            let Some(round) = self.reads.rounds.pop_front() else { return };
            self.reads.waiting.extend(round.readers);
        }
        self.reads.waiting.retain(|reader| !reader.is_canceled());
        let rounds = self.reads.rounds.iter().map(|round| round.readers.len()).sum::<usize>();
        let confirmed = self.reads.confirmed.values().map(Vec::len).sum::<usize>();
        self.reads.count = self.reads.waiting.len() + rounds + confirmed;
    }

    /// Answers the reads whose index is applied.
    pub(super) fn finish_reads(&mut self) {
        let applied = self.store.applied().0;
        while let Some(entry) = self.reads.confirmed.first_entry()
            && *entry.key() <= applied
        {
            for reader in entry.remove() {
                self.reads.count = self.reads.count.saturating_sub(1);
                let _ = reader.send(Ok(()));
            }
        }
    }
}
