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
//! is no limit and nothing waits.
//!
//! The limit has to keep the link busy from one report to the next, which depends on the host. As byte
//! queue limits (BQL) do, it grows when the backlog ran empty while messages waited, and shrinks by half
//! of what has never been sent before the next report.
//!
//! An item that waits names a request, as those of the transmit queue do, and takes no room when that is
//! over. While items wait, the transmit queue has [`TxItem::Host`] or a timer is set, so they get their
//! turn.

use super::queue::TxItem;
use crate::config::Config;
use crate::shortest_first::ShortestFirst;

/// The smallest limit: this many packets, or trains if they are longer.
const LEAST_PACKETS: u64 = 6;
const LEAST_TRAINS: u64 = 2;
/// The largest limit, bytes: the queue of a 100 Gbit/s link for a third of a millisecond.
const MOST_BYTES: u64 = 4 << 20;
/// Reports after which a limit that is larger than necessary shrinks.
const REPORTS: u32 = 256;
/// Time between two reports while messages wait, ns: at most, since the link may be faster than it is
/// known to be, and at least.
const WAIT_NS: (u64, u64) = (500, 5_000);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct HostQueue {
    /// Bytes that the transport may hold; `u64::MAX`: no limit.
    limit: u64,
    least: u64,
    /// Bytes that it held at the last report, and of the packets added since.
    backlog: u64,
    /// The backlog is to be reported before the next batch.
    asks: bool,
    /// The item in hand has its turn.
    has_turn: bool,
    /// The transmit queue has [`TxItem::Host`].
    queued: bool,
    /// Packets of a turn.
    quantum: u32,
    waiting: ShortestFirst<TxItem>,
    /// Time of the timer for the next report, ns; `u64::MAX`: none.
    due_ns: u64,
    /// Messages waited at the last report.
    waited: bool,
    /// The smallest backlog of the last reports with messages that waited, and their number.
    slack: u64,
    reports: u32,
    line_rate_bps: u64,
}

impl HostQueue {
    /// Without a limit. `max_frame`: bytes of the largest frame.
    pub(super) fn new(cfg: &Config, max_frame: usize) -> Self {
        let quantum = cfg.train_frames.max(1);
        let packets = LEAST_PACKETS.max(LEAST_TRAINS * u64::from(quantum));
        HostQueue {
            limit: u64::MAX,
            least: (packets * max_frame as u64).min(MOST_BYTES),
            backlog: 0,
            asks: false,
            has_turn: false,
            queued: false,
            quantum,
            waiting: ShortestFirst::default(),
            due_ns: u64::MAX,
            waited: false,
            slack: u64::MAX,
            reports: 0,
            line_rate_bps: cfg.line_rate_bps.max(1),
        }
    }

    /// Packets of `bytes` each that the large message in hand may add now; `u32::MAX`: no limit.
    #[inline(always)]
    pub(super) fn turn(&mut self, bytes: usize) -> u32 {
        if self.limit == u64::MAX { u32::MAX } else { self.limited_turn(bytes) }
    }

    #[inline(never)]
    fn limited_turn(&mut self, bytes: usize) -> u32 {
        let has_turn = std::mem::take(&mut self.has_turn);
        let room = self.limit.saturating_sub(self.backlog);
        let is_alone = self.waiting.is_empty();
        match room / bytes.max(1) as u64 {
            _ if room == 0 || !has_turn && !is_alone => 0,
            packets if is_alone => {
                packets.min(u64::from(u32::MAX - 1)).max(self.quantum.into()) as u32
            }
            _ => self.quantum,
        }
    }

    /// Of a [`HostQueue::turn`] of `turn` packets of `bytes` each, `left` were not sent.
    #[inline(always)]
    pub(super) fn end_turn(&mut self, (turn, left): (u32, u32), bytes: usize) {
        if turn != u32::MAX {
            self.on_sent(u64::from(turn - left) * bytes as u64);
        }
    }

    #[inline(never)]
    fn on_sent(&mut self, bytes: u64) {
        self.backlog = self.backlog.saturating_add(bytes);
        self.asks |= !self.is_awaited() && self.backlog >= self.limit / 2;
    }

    /// Returns whether messages wait.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The message of an item with `left` packets waits for its turn.
    pub(crate) fn wait(&mut self, item: TxItem, left: u32) {
        self.waiting.push(item, left);
    }

    /// An item that has not begun no longer waits. Returns whether it did.
    #[cold]
    pub(crate) fn remove(&mut self, item: TxItem) -> bool {
        let before = self.waiting.counts().0;
        if before > 0 {
            self.waiting.remove_dead(|other, _| other != item);
        }
        self.waiting.counts().0 < before
    }

    /// [`TxItem::Host`] has left the transmit queue: the next item that has its turn.
    pub(crate) fn next(&mut self) -> Option<TxItem> {
        self.queued = false;
        if self.backlog >= self.limit {
            return None;
        }
        let (item, _) = self.waiting.pop()?;
        self.has_turn = true;
        Some(item)
    }

    /// Returns whether [`TxItem::Host`] is to be added to the transmit queue.
    pub(crate) fn begins(&mut self) -> bool {
        let has_room = self.backlog < self.limit;
        self.is_awaited() && has_room && !std::mem::replace(&mut self.queued, true)
    }

    /// Takes a report: the transport holds `backlog` bytes; `None`: that is not known.
    pub(crate) fn on_report(&mut self, backlog: Option<u64>) {
        self.asks = false;
        let Some(backlog) = backlog else {
            self.limit = u64::MAX;
            return;
        };
        if self.limit == u64::MAX {
            self.limit = self.least;
        }
        self.backlog = backlog;
        let awaited = self.is_awaited();
        if std::mem::replace(&mut self.waited, awaited) && awaited {
            self.adapt();
        }
    }

    /// Adapts the limit, after a report while messages waited.
    fn adapt(&mut self) {
        (self.slack, self.reports) = (self.slack.min(self.backlog), self.reports + 1);
        if self.backlog == 0 {
            self.limit = (2 * self.limit).min(MOST_BYTES);
        } else if self.reports < REPORTS {
            return;
        } else {
            self.limit = self.limit.saturating_sub(self.slack / 2).max(self.least);
        }
        (self.slack, self.reports) = (u64::MAX, 0);
    }

    /// Time until half of the limit has been sent, as far as known, ns.
    pub(crate) fn wait_ns(&self) -> u64 {
        let excess = self.backlog.saturating_sub(self.limit / 2);
        let ns = excess.saturating_mul(8_000_000_000) / self.line_rate_bps;
        ns.clamp(WAIT_NS.0, WAIT_NS.1)
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

    /// A timer has expired. Returns whether [`TxItem::Host`] is to be added to the transmit queue, with
    /// a report before the batch.
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
