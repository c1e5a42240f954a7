//! The parts of an endpoint that all sessions share, and what concerns a peer as a whole: room in its
//! credit pool, its window, departure times, and calls that wait for answers.

use courser_buf::Arena;

use crate::budget::{BUSY_WAIT_NS, HOST_WAIT_NS};
use crate::cc::PART;
use crate::config::Config;
use crate::error::CallError;
use crate::held::HeldCalls;
use crate::loss::{AckInfo, Boards, LossFeedback, TailLoss};
use crate::mutant::{self, Mutant};
use crate::pace::Wheel;
use crate::peer::{FrameSignal, Peer, Peers};
use crate::stats::EndpointStats;
use crate::timers::{TimerEntry, TimerKind, Timers};
use crate::tx::{TxBatch, TxItem, Waiter};
use crate::wire::{Packet, header_words};

/// Functions that act on a session take it and this.
#[derive(Debug)]
pub(crate) struct Io {
    pub(crate) cfg: Config,
    pub(crate) arena: Arena,
    /// The newest time passed to the endpoint.
    pub(crate) now_ns: u64,
    pub(crate) rx_queue: ReceiveQueue,
    pub(crate) tx: TxBatch,
    /// See [`requests_to_check`].
    pub(crate) requests_to_check: u32,
    pub(crate) timers: Timers,
    /// Peers whose packets wait for their departure times.
    pub(crate) wheel: Wheel,
    /// Calls to peers that are short of memory.
    pub(crate) held: HeldCalls,
    /// The current frame is a signal for the congestion controller of its path.
    pub(crate) signal: Option<FrameSignal>,
    pub(crate) tail_loss: TailLoss,
    pub(crate) boards: Boards,
    /// Longest response that is stored in its slot, bytes.
    pub(crate) short_max: usize,
    /// Buffer in which a frame with a tail is joined, at most of the size of a frame.
    pub(crate) scratch: Vec<u8>,
    pub(crate) stats: EndpointStats,
}

/// When the transport's receive queue was last empty.
#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    /// It was empty after the last frame that had waited.
    was_empty: bool,
    /// When the first frame that had waited was received after that.
    empty_ns: u64,
}

impl ReceiveQueue {
    /// The transport had no frame when it was asked.
    #[inline]
    pub(crate) fn on_empty(&mut self) {
        self.was_empty = true;
    }

    /// A frame that was received at `now_ns` has waited; returns how long it may. While the queue is never
    /// empty, this host is slower than its link.
    #[inline]
    fn allowed_wait_ns(&mut self, now_ns: u64) -> u32 {
        if std::mem::take(&mut self.was_empty) {
            self.empty_ns = now_ns;
        }
        match now_ns.saturating_sub(self.empty_ns) <= HOST_WAIT_NS.into() {
            true => HOST_WAIT_NS,
            false => BUSY_WAIT_NS,
        }
    }
}

impl Io {
    /// The wait of a frame in this host that is no delay to the congestion control, at most, ns.
    #[inline]
    pub(crate) fn allowed_wait_ns(&mut self) -> u32 {
        if self.cfg.is_two_window() { self.rx_queue.allowed_wait_ns(self.now_ns) } else { 0 }
    }

    // ---- room in the credit pool of a peer ----------------------------------------------------

    /// Room of the peer's sessions returns to the pool.
    #[inline(always)]
    pub(crate) fn release_room(&mut self, peer: &mut Peer, units: u32) {
        if peer.credits.release(units) {
            self.tx.push(TxItem::Turn { peer: peer.number() });
        }
    }

    /// Queues a turn if there is room: a waiting session has ended, or has less to send.
    pub(crate) fn retry_turn(&mut self, peer: &mut Peer) {
        if peer.credits.retry_turn() {
            self.tx.push(TxItem::Turn { peer: peer.number() });
        }
    }

    /// A packet to a peer has to wait for its departure time: the next turn of the sessions with the
    /// peer is then.
    #[cold]
    pub(crate) fn pace(&mut self, peer: &mut Peer, at_ns: u64) {
        peer.path.on_paced_wait(true);
        if peer.credits.begin_pacing() {
            self.wheel.add(peer.number(), at_ns, self.now_ns);
            self.stats.paced += 1;
        }
    }

    /// Departure times have come: queues the turns of these peers.
    #[cold]
    pub(crate) fn on_wheel(&mut self, peers: &mut Peers) {
        while let Some(number) = self.wheel.pop(self.now_ns) {
            let Some(peer) = peers.at_mut(number) else { continue };
            if peer.credits.end_pacing() {
                self.tx.push(TxItem::Turn { peer: number });
            }
            if !peer.credits.is_awaited() {
                peer.path.on_paced_wait(false);
            }
        }
    }

    // ---- the host's transmit queue ------------------------------------------------------------

    /// A large message with `left` packets waits for its turn at the host's transmit queue.
    pub(crate) fn wait_for_host(&mut self, waiter: Waiter, left: u32) {
        self.stats.host_waits += 1;
        self.tx.host.wait(waiter, left);
        self.continue_host();
    }

    /// The message that waits first is next in the transmit queue, if the host's has room.
    pub(crate) fn begin_host_turn(&mut self) {
        if let Some(item) = self.tx.host.next() {
            self.tx.postpone(item);
        }
        self.continue_host();
    }

    /// Ensures that messages which wait get their turn: now if there is room, else by a timer.
    pub(crate) fn continue_host(&mut self) {
        if self.tx.host.begins() {
            self.tx.push(TxItem::Host);
        } else if self.tx.host.needs_timer() {
            let due_ns = self.now_ns.saturating_add(self.tx.host.wait_ns());
            let kind = TimerKind::Host;
            let entry = TimerEntry { due_ns, session: 0, generation: 0, kind };
            let due_ns = self.timers.arm_later(entry);
            self.tx.host.set_due(due_ns);
        }
    }

    /// The timer for the next report has expired.
    pub(crate) fn on_host_timer(&mut self, due_ns: u64) {
        if self.tx.host.on_timer(due_ns) {
            self.tx.push(TxItem::Host);
        }
    }

    // ---- congestion control -------------------------------------------------------------------

    /// Applies the window of a path's controller to the peer's credit pool.
    pub(crate) fn apply_window(&mut self, peer: &mut Peer) {
        let units = peer.credits.window_units(peer.path.window(), PART);
        if peer.credits.set_window(units) {
            self.tx.push(TxItem::Turn { peer: peer.number() });
        }
    }

    /// Passes a frame to the congestion controller of its path, with what it acknowledged.
    #[cold]
    pub(crate) fn on_signal(&mut self, peers: &mut Peers) {
        let Some(before) = self.signal.take() else { return };
        let Some(peer) = peers.at_mut(before.peer) else { return };
        let sent = peer.path.sent_units().wrapping_sub(before.sent);
        let units = (before.in_flight + sent).saturating_sub(peer.credits.in_flight_units());
        let per_packet = u64::from(peer.credits.units_per_packet()).max(1);
        peer.path.signal(u64::from(units) * PART / per_packet, self.now_ns);
        self.apply_window(peer);
    }

    /// Timing of the current frame of a peer, for the scoreboards.
    #[inline]
    pub(crate) fn ack_info(&self, peer: &Peer) -> AckInfo {
        let now_ns = self.now_ns;
        let blind = mutant::is_on(Mutant::LossFoundLate);
        let window_ns = if blind { u64::MAX / 2 } else { peer.path.window_ns(now_ns) };
        AckInfo { now_ns, round_trip_ns: peer.path.round_trip_ns(), window_ns }
    }

    /// Takes the feedback of a scoreboard.
    #[inline]
    pub(crate) fn on_feedback(&mut self, peer: &mut Peer, feedback: LossFeedback) {
        if feedback != LossFeedback::default() {
            self.apply_feedback(peer, feedback);
        }
    }

    fn apply_feedback(&mut self, peer: &mut Peer, feedback: LossFeedback) {
        self.stats.lost += u64::from(feedback.lost);
        self.stats.spurious += u64::from(feedback.spurious);
        peer.path.on_feedback(feedback, self.now_ns);
        if feedback.lost > 0 || feedback.spurious > 0 {
            self.apply_window(peer);
        }
    }

    /// All packets in flight of a call are lost.
    pub(crate) fn on_congestion_timeout(&mut self, peer: &mut Peer) {
        let all_lost = LossFeedback { lost: 1, ..LossFeedback::default() };
        peer.path.on_feedback(all_lost, self.now_ns);
        self.apply_window(peer);
    }

    /// A call of one packet was answered `age_ns` after its retransmission.
    pub(crate) fn on_retry_answered(&mut self, peer: &mut Peer, age_ns: u32, ack: AckInfo) {
        let early = u64::from(age_ns) < ack.round_trip_ns;
        self.stats.spurious += u64::from(early);
        if early {
            return peer.path.back_off(self.now_ns, &self.cfg);
        }
        peer.path.back_off_less();
        if !peer.path.stalls(age_ns.into(), self.cfg.rto_min_ns) {
            self.on_congestion_timeout(peer);
        }
    }

    /// A probed call is still with its handler: not lost, only slow.
    pub(crate) fn on_in_progress(&self, peer: &mut Peer) {
        peer.path.back_off(self.now_ns, &self.cfg);
    }

    // ---- calls that wait for answers ----------------------------------------------------------

    /// Accepted calls that have not ended.
    #[inline]
    pub(crate) fn outstanding_calls(&self) -> u64 {
        self.stats.outstanding_calls()
    }

    /// Counts the reason for which a call ends early.
    pub(crate) fn count_ending(&mut self, error: &CallError) {
        match error {
            CallError::DeadlineExceeded(_) => self.stats.expired += 1,
            CallError::Cancelled(_) => self.stats.cancelled += 1,
            _ => {}
        }
    }

    /// Sets the tail-loss timer, unless it is set already: there are calls in flight.
    #[inline]
    pub(crate) fn await_answers(&mut self, peers: &Peers) {
        if self.tail_loss.is_idle() && self.outstanding_calls() > 0 {
            self.set_tail_loss_timer(peers);
        }
    }

    #[cold]
    fn set_tail_loss_timer(&mut self, peers: &Peers) {
        let round_trips = peers.iter().flatten().filter(|p| p.path.rtt().smoothed_ns() > 0);
        let wait_ns = round_trips.map(|p| p.path.rtt().pto_ns(&self.cfg)).min();
        self.tail_loss.guessed = wait_ns.is_none();
        let wait_ns = wait_ns.unwrap_or(self.cfg.rto_initial_ns);
        self.tail_loss.due_ns = self.now_ns.saturating_add(wait_ns.max(min_interval_ns(peers)));
    }

    /// There is a first round-trip sample: the timer was set by a guess that is far too long.
    #[cold]
    pub(crate) fn on_round_trip(&mut self, peers: &Peers) {
        self.tail_loss.guessed = false;
        self.tail_loss.due_ns = u64::MAX;
        self.await_answers(peers);
    }

    /// Records the use of MELO's bits, and swaps.
    #[inline]
    pub(crate) fn note_pool(&mut self, is_melo: bool) {
        if is_melo {
            let used = self.boards.pools.rx_use();
            self.stats.melo_bits_peak = used.bits_peak;
            self.stats.melo_refused = used.refused;
            self.stats.melo_swapped_out = used.swapped_out;
            self.stats.melo_swapped_in = used.swapped_in;
            self.stats.melo_swapped_bytes = used.swapped_bytes;
        }
    }

    // ---- transmission -------------------------------------------------------------------------

    /// Adds a packet without data to a frame of the peer. `false`: no room.
    pub(crate) fn tx_header(&mut self, kind: usize, peer: &mut Peer, packet: Packet<'_>) -> bool {
        let sent = self.tx.append(peer, &self.arena, header_words(packet.header()), &[]);
        if sent {
            self.stats.sent(kind);
        }
        sent
    }

    /// See [`batch_calls`].
    #[inline]
    pub(crate) fn batch_calls(&self) -> usize {
        batch_calls(self.outstanding_calls(), &self.cfg)
    }

    /// See [`TxBatch::open_append`].
    #[inline]
    pub(crate) fn open_append(&mut self) {
        self.tx.open_append(self.cfg.tx_items, self.requests_to_check, self.now_ns);
    }
}

/// Minimum interval of checks of all peers, ns: a check costs about 5 ns per peer, so checks take at
/// most a tenth of the time.
pub(crate) fn min_interval_ns(peers: &Peers) -> u64 {
    50 * peers.len() as u64
}

/// Maximum of requests in a batch with this many outstanding `calls`: half of them, so that client and
/// server overlap. Further requests belong to the next batch, which leaves after the next poll for
/// frames. Replies are not limited: if both sides call each other, both are busy anyway, and
/// large frames are cheapest. Requests in their session's turn for credits do not count either.
/// A reply that is queued after a delayed request is delayed with it.
#[inline]
pub(crate) fn batch_calls(calls: u64, cfg: &Config) -> usize {
    let (calls, most) = (calls as usize, cfg.tx_items);
    let divides = cfg.split_batches && calls > 0;
    if divides { (calls / 2).max(BATCH_CALLS_MIN).min(most) } else { most }
}

/// The smallest maximum of requests in a batch: with fewer it need not be computed.
pub(crate) fn requests_to_check(cfg: &Config) -> u32 {
    if cfg.split_batches { BATCH_CALLS_MIN.min(cfg.tx_items) as u32 } else { u32::MAX }
}

/// Batches are not limited to fewer calls than this: a frame costs as much as a few calls.
const BATCH_CALLS_MIN: usize = 4;
