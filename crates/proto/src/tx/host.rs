//! The host's own transmit queue: packets of large messages leave only while it is short (ADR 57).
//!
//! Frames that the transport has taken wait in a queue of the kernel or of the device, the *backlog*,
//! until the link has sent them. With hundreds of packets of each of many large messages in it, small
//! calls wait behind all of them, round trips contain the host's own queue, and messages share the link
//! in the order in which they came. So the backlog is bounded, as TCP small queues do: packets of
//! messages of several packets are added only while it is below a limit. Other messages wait here, take
//! turns of a train each, and the message with the fewest packets left is first ([`ShortestFirst`]).
//! Packets of messages of one packet, and packets without data, never wait.
//!
//! The caller reports the backlog (`Endpoint::set_backlog`) when the endpoint asks for it: when it may
//! have grown to half of the limit; and, while messages wait, when it may have fallen to half. In between,
//! the bytes of packets that are added count. Without a report, or with one of an unknown backlog, there
//! is no limit and nothing waits. The bound belongs to the default congestion control: the others are
//! reproductions, whose authors hand to the NIC whatever window or rate allow.
//!
//! # The limit
//! It has to keep the link busy from one report to the next, which depends on the host. As byte
//! queue limits (BQL) do, it grows when the backlog ran empty while messages waited. It also grows when one
//! report shows that as many bytes as the limit have left: the device reports later than the limit lasts.
//! It shrinks by half of the bytes that were never sent before the next report.
//!
//! Bytes may stay in the queue that the link does not wait for: frames for a neighbour whose address is
//! not resolved, or a device that does not report what it has sent. Frames that never wait may pass them,
//! and their count rises and falls. When the count of a full queue has had no new minimum for
//! [`STALL_NS`], the minimum is taken for *stuck*, and the limit is for the bytes above it. Now and then
//! the queue is drained to see whether they leave: those of a link that was paused do.
//!
//! # Entries
//! An entry names a slot, or a peer whose pool has such slots, and no message: a slot has at most one
//! ([`crate::slot::ClientSlot::at_host`]), which stays when its message ends and then serves the next
//! one, or none. So the end of a message costs the same with any number of entries. Entries of ended
//! sessions are removed when there are many, and the number of the others is limited by those of slots and
//! of peers.
//!
//! # Invariants
//! 1. While messages wait, the transmit queue has [`TxItem::Host`] or a timer is set, so they get
//!    their turn.
//! 2. A turn ends with the entry whose turn it is, whether it has sent or not.

use std::collections::BTreeSet;

use crate::config::Config;
use crate::session::SessionId;
use crate::shortest_first::ShortestFirst;
use crate::tx::TxItem;

/// The smallest limit: this many packets, or trains if they are longer and the link sends them within
/// this time, ns, so that small packets do not wait for longer.
const LEAST_PACKETS: u64 = 6;
const LEAST_TRAINS: u64 = 2;
const LEAST_MOST_NS: u64 = 20_000;
/// The queue runs empty when the backlog is below this part of the limit. The rest may be frames of small
/// messages.
const EMPTY_PART: u64 = 8;
/// A message has a turn for each this number of limits that have left the queue, however long that is:
/// packets that never wait may fill it.
const SHARE: u64 = 16;
/// The largest limit, bytes: the queue of a 100 Gbit/s link for a third of a millisecond.
const MOST_BYTES: u64 = 4 << 20;
/// Reports after which a limit that is larger than necessary shrinks.
const REPORTS: u32 = 256;
/// Time between two reports while messages wait, ns: at most, since the link may be faster than it is
/// known to be, and at least.
const WAIT_NS: (u64, u64) = (500, 5_000);
/// After this number of reports in a row in which nothing has left, each further one doubles the time to
/// the next, up to `IDLE_WAIT_NS`. A device that reports what it has sent every 50 us is read in time.
const IDLE_REPORTS: u32 = 4;
const IDLE_WAIT_NS: u64 = 1_000_000;
/// After this time without a new lowest count of a full queue, these bytes are stuck, ns: longer than
/// most pauses of a link by flow control.
const STALL_NS: u64 = 2_000_000;
/// While there are stuck bytes, the queue is drained down to them after the first time, ns, until its count
/// has had no new minimum for the second, to see whether they leave. That costs 2 to 4 % of the time.
const PROBE_NS: (u64, u64) = (8_000_000, 100_000);
/// Entries of sessions that have ended are removed at a report if there are at least this many entries,
/// and twice as many as were left the last time.
const SWEPT_LEAST: usize = 256;

/// An entry of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiter {
    /// The request of a client slot.
    Request { session: SessionId, slot: u8 },
    /// The response of a server slot.
    Response { session: SessionId, slot: u8 },
    /// Requests that have had their turn in the pool of a peer ([`crate::credits`]).
    Pool { peer: u32 },
}

impl Waiter {
    /// The item of its turn.
    fn item(self) -> TxItem {
        match self {
            Waiter::Request { session, slot } => TxItem::RequestTurn { session, slot },
            Waiter::Response { session, slot } => TxItem::ResponseTurn { session, slot },
            Waiter::Pool { peer } => TxItem::PoolTurn { peer },
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct HostQueue {
    /// Bytes that the transport may hold above those that are stuck; `u64::MAX`: no limit.
    limit: u64,
    /// Reports set the limit: the congestion control is the default.
    is_bounded: bool,
    least: u64,
    /// Bytes that it held at the last report, without the stuck ones, and of the packets added since.
    backlog: u64,
    /// The backlog is to be reported before the next batch.
    asks: bool,
    /// The entry that was taken from the queue last has its turn.
    has_turn: bool,
    /// The transmit queue has [`super::TxItem::Host`].
    queued: bool,
    /// Packets of a turn.
    quantum: u32,
    waiting: ShortestFirst<Waiter>,
    /// Number of entries at which those of ended sessions are removed.
    sweep_at: usize,
    /// Time of the timer for the next report, ns; `u64::MAX`: none.
    due_ns: u64,
    /// Messages waited at the last report.
    waited: bool,
    /// The smallest backlog of the last reports with messages that waited, and their number.
    slack: u64,
    reports: u32,
    line_rate_bps: u64,
    progress: Progress,
}

/// Progress of the host's queue: bytes that leave, and bytes that do not.
#[derive(Debug)]
struct Progress {
    /// Bytes of the last report.
    last: u64,
    /// Bytes that have left, at least, since a message had its turn.
    left: u64,
    /// Least bytes of a report since the queue is full; `u64::MAX`: it is not full.
    lowest: u64,
    /// Time of the first report of these, ns.
    since_ns: u64,
    /// Reports since bytes have left.
    idle: u32,
    /// Bytes that do not leave.
    stuck: u64,
    /// When the queue is drained next to see whether they do, ns.
    probe_ns: u64,
    /// The queue is drained.
    probes: bool,
}

impl Progress {
    /// Takes a report of `bytes` in a queue that is full with `limit` above the stuck ones. Returns
    /// whether it ends a stall, or the draining.
    fn on_report(&mut self, bytes: u64, limit: u64, now_ns: u64) -> bool {
        let before = std::mem::replace(&mut self.last, bytes);
        self.left = self.left.saturating_add(before.saturating_sub(bytes));
        self.stuck = self.stuck.min(bytes);
        self.probes = self.stuck > 0 && (self.probes || now_ns >= self.probe_ns);
        if !self.probes && bytes - self.stuck < limit {
            self.begin();
            return false;
        }
        self.idle = if bytes < before { 0 } else { self.idle + 1 };
        // Frames that never wait leave all the time, which raises and lowers the count of a queue that
        // does not drain. So only a new lowest count is progress.
        if bytes < self.lowest {
            (self.lowest, self.since_ns) = (bytes, now_ns);
            return false;
        }
        let stall_ns = if self.probes { PROBE_NS.1 } else { STALL_NS };
        if now_ns - self.since_ns < stall_ns {
            return false;
        }
        if !std::mem::take(&mut self.probes) {
            self.stuck = self.lowest;
        }
        self.probe_ns = now_ns.saturating_add(PROBE_NS.0);
        self.begin();
        true
    }

    /// The next report of a full queue is the first one.
    fn begin(&mut self) {
        (self.lowest, self.idle) = (u64::MAX, 0);
    }
}

impl HostQueue {
    /// Without a limit. `max_frame`: bytes of the largest frame.
    pub(super) fn new(cfg: &Config, max_frame: usize) -> Self {
        let (frame, line_rate_bps) = (max_frame.max(1) as u64, cfg.line_rate_bps.max(1));
        let train = u64::from(cfg.train_frames.max(1));
        let in_time = line_rate_bps.saturating_mul(LEAST_MOST_NS) / 8_000_000_000 / frame;
        let packets = LEAST_PACKETS.max(LEAST_TRAINS * train.min(in_time / LEAST_TRAINS));
        let quantum = train.min(packets / LEAST_TRAINS) as u32;
        HostQueue {
            limit: u64::MAX,
            is_bounded: cfg.is_two_window(),
            least: (packets * frame).min(MOST_BYTES),
            backlog: 0,
            asks: false,
            has_turn: false,
            queued: false,
            quantum,
            waiting: ShortestFirst::default(),
            sweep_at: SWEPT_LEAST,
            due_ns: u64::MAX,
            waited: false,
            slack: u64::MAX,
            reports: 0,
            line_rate_bps,
            progress: Progress {
                last: 0,
                left: 0,
                lowest: u64::MAX,
                since_ns: 0,
                idle: 0,
                stuck: 0,
                probe_ns: 0,
                probes: false,
            },
        }
    }

    // ---- turns --------------------------------------------------------------------------------

    /// Returns whether large messages take turns.
    #[inline(always)]
    pub(super) fn is_limited(&self) -> bool {
        self.limit != u64::MAX
    }

    /// Packets of `bytes` each that a large message may add now, while the queue
    /// [`HostQueue::is_limited`]: in its turn, or while no other waits.
    pub(super) fn turn(&mut self, bytes: usize) -> u32 {
        let has_turn = std::mem::take(&mut self.has_turn);
        let is_owed = self.is_owed();
        let room = self.limit.saturating_sub(self.backlog);
        let is_alone = !self.is_awaited();
        match room / bytes.max(1) as u64 {
            _ if has_turn && is_owed => self.quantum,
            _ if room == 0 || !has_turn && !is_alone => 0,
            packets if is_alone => {
                packets.min(u64::from(u32::MAX - 1)).max(self.quantum.into()) as u32
            }
            _ => self.quantum,
        }
    }

    /// A [`HostQueue::turn`] of `turn` packets of `bytes` each has ended, and `left` of them were not sent;
    /// `u32::MAX`: the queue was not limited.
    #[inline]
    pub(super) fn on_sent_in_turn(&mut self, (turn, left): (u32, u32), bytes: usize) {
        if turn != u32::MAX {
            self.on_sent(u64::from(turn - left) * bytes as u64);
        }
    }

    fn on_sent(&mut self, bytes: u64) {
        if bytes > 0 {
            self.progress.left = 0;
        }
        self.backlog = self.backlog.saturating_add(bytes);
        self.asks |= !self.is_awaited() && self.backlog >= self.limit / 2;
    }

    /// Returns whether messages wait.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A message with `left` packets waits for its turn.
    pub(crate) fn wait(&mut self, waiter: Waiter, left: u32) {
        self.waiting.push(waiter, left);
    }

    /// [`TxItem::Host`] has left the transmit queue. Takes the next entry, if there is room. It is the
    /// next item to be sent.
    pub(crate) fn next(&mut self) -> Option<TxItem> {
        self.queued = false;
        if !self.has_room() {
            return None;
        }
        self.waiting.pop().map(|(waiter, _)| waiter.item())
    }

    /// The entry that was taken from the queue last has its turn, until [`HostQueue::end_turn`].
    pub(super) fn begin_turn(&mut self) {
        self.has_turn = true;
    }

    /// The turn has ended, also if its entry had nothing to send.
    pub(super) fn end_turn(&mut self) {
        self.has_turn = false;
    }

    /// Returns whether [`TxItem::Host`] is to be added to the transmit queue.
    pub(crate) fn begins(&mut self) -> bool {
        self.is_awaited() && self.has_room() && !std::mem::replace(&mut self.queued, true)
    }

    /// Returns whether a message may have a turn.
    fn has_room(&self) -> bool {
        self.backlog < self.limit || self.is_owed()
    }

    /// Returns whether packets that never wait have used the queue for so long that a message has a turn
    /// in any case.
    fn is_owed(&self) -> bool {
        self.progress.left >= SHARE.saturating_mul(self.limit)
    }

    /// Returns whether entries of sessions that have ended are to be removed.
    pub(super) fn needs_sweep(&self) -> bool {
        self.waiting.counts().0 >= self.sweep_at
    }

    /// Removes the entries that are not `alive`, and all but one of each pool: the number of a peer that
    /// has ended may have been used again.
    pub(super) fn sweep(&mut self, alive: impl Fn(Waiter) -> bool) {
        let mut pools = BTreeSet::new();
        self.waiting.remove_dead(|waiter, _| match waiter {
            Waiter::Pool { peer } => alive(waiter) && pools.insert(peer),
            _ => alive(waiter),
        });
        self.sweep_at = (2 * self.waiting.counts().0).max(SWEPT_LEAST);
    }

    // ---- reports ------------------------------------------------------------------------------

    /// Takes a report at `now_ns`: the transport holds `backlog` bytes; `None`: that is not known.
    pub(crate) fn on_report(&mut self, backlog: Option<u64>, now_ns: u64) {
        self.asks = false;
        let Some(backlog) = backlog.filter(|_| self.is_bounded) else {
            self.limit = u64::MAX;
            return;
        };
        if self.limit == u64::MAX {
            self.limit = self.least;
        }
        let has_ended = self.progress.on_report(backlog, self.limit, now_ns);
        let excess = backlog - self.progress.stuck;
        let left = self.backlog.saturating_sub(excess);
        self.backlog = if self.progress.probes { excess.max(self.limit) } else { excess };
        let awaited = self.is_awaited();
        if std::mem::replace(&mut self.waited, awaited) && awaited && !has_ended {
            self.adapt(left);
        }
    }

    /// Adapts the limit, after a report while messages waited. `left`: bytes that have left since the
    /// previous report.
    fn adapt(&mut self, left: u64) {
        (self.slack, self.reports) = (self.slack.min(self.backlog), self.reports + 1);
        if self.backlog < self.limit / EMPTY_PART || left >= self.limit {
            self.limit = (2 * self.limit).min(MOST_BYTES);
        } else if self.reports < REPORTS {
            return;
        } else {
            self.limit = self.limit.saturating_sub(self.slack / 2).max(self.least);
        }
        (self.slack, self.reports) = (u64::MAX, 0);
    }

    /// Time until the next report: half of the limit has been sent, as far as known, ns.
    pub(crate) fn wait_ns(&self) -> u64 {
        let excess = self.backlog.saturating_sub(self.limit / 2);
        let ns = excess.saturating_mul(8_000_000_000) / self.line_rate_bps;
        let doublings = self.progress.idle.saturating_sub(IDLE_REPORTS).min(16);
        (ns.clamp(WAIT_NS.0, WAIT_NS.1) << doublings).min(IDLE_WAIT_NS)
    }

    /// Returns whether a timer for the next report is to be set.
    pub(crate) fn needs_timer(&self) -> bool {
        self.is_awaited() && !self.queued && self.due_ns == u64::MAX
    }

    /// The time for which the timer is set, ns.
    pub(crate) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// The timer is set.
    pub(crate) fn set_due(&mut self, due_ns: u64) {
        self.due_ns = due_ns;
    }

    /// A timer has expired. Returns whether [`TxItem::Host`] is to be added to the transmit queue,
    /// with a report before the batch.
    pub(crate) fn on_timer(&mut self, due_ns: u64) -> bool {
        if self.due_ns != due_ns {
            return false;
        }
        self.due_ns = u64::MAX;
        self.asks |= self.is_awaited();
        self.is_awaited() && !std::mem::replace(&mut self.queued, true)
    }

    /// Returns whether the backlog is to be reported before the next batch.
    #[inline]
    pub(crate) fn asks(&self) -> bool {
        self.asks
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.waiting.heap_bytes()
    }
}

#[cfg(test)]
mod tests;
