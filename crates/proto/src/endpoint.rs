//! One thread's endpoint: packets in, packets out, the next deadline (`[eRPC section 3.1]`).
//!
//! The endpoint does no I/O and reads no clock. Functions that need the time take it as `now_ns`,
//! any monotonic count of nanoseconds below 2^60 (36 years), or call for it only if needed. One
//! iteration of an event loop is
//!
//! 1. [`Endpoint::receive`] for each received frame. It runs handlers and continuations
//!    ([`Driver`]), whose replies and calls are written directly to outgoing frames.
//! 2. [`Endpoint::poll_transmit`], whose frames go to the transport.
//! 3. [`Endpoint::on_deadline`] when [`Endpoint::next_deadline`] has passed, and step 2 again if
//!    [`Endpoint::wants_transmit`].
//! 4. [`Endpoint::needs_flush`] (then flush the transport), [`Endpoint::poll_completion`].
//!
//! The parts of an endpoint are data structures that do not refer to the endpoint: tables of
//! sessions and peers, the transmit batch, timers, quotas. A packet, a call or a timer of a session
//! looks the session up once and goes on as its flow ([`crate::flow`]).
//!
//! [`Driver`]: crate::Driver

use std::collections::VecDeque;
use std::sync::Arc;

use courser_buf::{AllocError, Arena, MsgBuf, PathId};

use crate::admission::Admission;
use crate::budget::{Budget, ReceiveLink};
use crate::cc::packet_wire_bytes;
use crate::config::{Config, ConfigError};
use crate::deferred::Deferred;
use crate::event::{Completion, Notice};
use crate::held::HeldCalls;
use crate::io::{Io, ReceiveQueue, requests_to_check};
use crate::loss::{Boards, PoolSize, TailLoss};
use crate::moves::Moves;
use crate::pace::Wheel;
use crate::peer::Peers;
use crate::session::{Evicted, IdleSession, Quotas, SessionId, Sessions};
use crate::slot::SHORT;
use crate::stats::EndpointStats;
use crate::timers::Timers;
use crate::tx::{Framing, TxBatch};
use crate::working_set::WorkingSet;

/// See the module's documentation. `C` is the caller's value for a completion, which the endpoint
/// stores and returns.
#[derive(Debug)]
pub struct Endpoint<C> {
    pub(crate) io: Io,
    pub(crate) peers: Peers,
    pub(crate) sessions: Sessions<C>,
    pub(crate) admission: Admission,
    pub(crate) working_set: WorkingSet,
    pub(crate) deferred: Deferred<C>,
    pub(crate) outbox: Outbox<C>,
}

/// Results that wait for the caller.
#[derive(Debug)]
pub(crate) struct Outbox<C> {
    /// Completions that no packet caused, or that wait for the transport.
    pub(crate) done: VecDeque<Completion<'static, C>>,
    /// Client sessions that failed.
    pub(crate) failed: VecDeque<SessionId>,
    /// Client sessions that dropped their slots.
    pub(crate) idle: VecDeque<IdleSession>,
    /// `failed` or `idle` has an entry, or [`crate::ingress::REFUSED_NEWS`] more frames were refused.
    pub(crate) has_news: bool,
    /// Paths that no peer uses any more.
    pub(crate) unused_paths: Vec<PathId>,
    /// Server sessions that were evicted.
    pub(crate) evicted: VecDeque<Evicted>,
    /// Events that the application waits for.
    pub(crate) notices: VecDeque<Notice>,
    /// Changes of peers' addresses.
    pub(crate) moves: Moves,
}

impl<C> Default for Outbox<C> {
    fn default() -> Self {
        Outbox {
            done: VecDeque::new(),
            failed: VecDeque::new(),
            idle: VecDeque::new(),
            has_news: false,
            unused_paths: Vec::new(),
            evicted: VecDeque::new(),
            notices: VecDeque::new(),
            moves: Moves::default(),
        }
    }
}

impl<C> Endpoint<C> {
    /// Creates an endpoint. `id` is random and identifies this incarnation to its peers; `framing`
    /// describes the frames of the transport: its largest frame in bytes, or a [`Framing`].
    /// # Errors
    /// A setting is out of its range.
    pub fn new(
        mut cfg: Config,
        arena: Arena,
        id: u64,
        framing: impl Into<Framing>,
    ) -> Result<Self, ConfigError> {
        cfg.validate()?;
        let (max_held_per_peer, copies) = (cfg.max_held_per_peer, !cfg.factors.zero_copy_rx);
        let memory = arena.config().limit_bytes;
        let framing = framing.into();
        let budget = budget_of(&cfg, &framing);
        let boards = Boards::new(melo_pool_of(&cfg, &framing));
        let mut tx = TxBatch::new(framing, &cfg);
        tx.reserve(&arena);
        if tx.is_gathering() {
            cfg.inline_max = cfg.inline_max.min(cfg.gather_from - 1); // larger ones are gathered
        }
        // With a latency budget a batch is what has gathered meanwhile.
        cfg.split_batches &= cfg.batch_budget_ns == 0;
        let working_set = WorkingSet::new(&cfg);
        // A short response is copied into its frame, also when it is sent again.
        let short_max = if cfg.factors.prealloc_responses { SHORT.min(cfg.inline_max) } else { 0 };
        let io = Io {
            requests_to_check: requests_to_check(&cfg),
            cfg,
            arena,
            now_ns: 0,
            rx_queue: ReceiveQueue::default(),
            tx,
            timers: Timers::new(),
            wheel: Wheel::default(),
            held: HeldCalls::default(),
            signal: None,
            tail_loss: TailLoss::new(),
            boards,
            short_max,
            scratch: Vec::new(),
            stats: EndpointStats::default(),
        };
        let quotas = Quotas::new(max_held_per_peer, copies).with_memory(memory);
        Ok(Endpoint {
            io,
            peers: Peers::new(id),
            sessions: Sessions::new(),
            admission: Admission::new(quotas, budget),
            working_set,
            deferred: Deferred::default(),
            outbox: Outbox::default(),
        })
    }

    /// Shares the receiving side of its link with the other endpoints that have this `link`. `epoch_ns`
    /// is the link's time at time 0 of this endpoint: the endpoints of a link may begin to count at
    /// different times.
    /// # Panics
    /// Messages are arriving already.
    pub fn share_link(&mut self, link: Arc<ReceiveLink>, epoch_ns: u64) {
        self.admission.budget.share_link(link, epoch_ns);
    }

    /// The newest time passed to the endpoint.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.io.now_ns
    }

    /// The transport had no frame when it was asked.
    #[inline]
    pub fn on_empty_queue(&mut self) {
        self.io.rx_queue.on_empty();
    }

    /// Sets the time, which must not be before an earlier one. Frames without a send time count as
    /// received at the newest time that was set.
    #[inline]
    pub fn advance(&mut self, now_ns: u64) {
        self.io.tx.advance(now_ns);
        self.io.now_ns = now_ns;
    }
}

/// The receiver's budget: part of the default control, where peers share a receive queue.
fn budget_of(cfg: &Config, framing: &Framing) -> Budget {
    let packet_bytes = packet_wire_bytes(framing.max_frame) as u32;
    let link = ReceiveLink::new(cfg.line_rate_bps);
    Budget::new(cfg.is_two_window(), link, (packet_bytes, cfg.rx_queue_frames / 2))
}

/// Largest frame for which the size of MELO's pools is derived: that of an MTU of 1,500. Larger ones
/// are of no use with a peer that has smaller ones, whose packets are more for the same bytes in flight.
const MELO_FRAME: usize = 1_472;

/// The size of MELO's pools, from the link unless it is set.
fn melo_pool_of(cfg: &Config, framing: &Framing) -> PoolSize {
    let (bits, block_bytes) = (cfg.melo_bits, cfg.melo_block_bytes);
    let size = PoolSize { bits, block_bytes, connections: cfg.melo_connections };
    size.derived(
        cfg.line_rate_bps,
        cfg.melo_rtt_ns,
        packet_wire_bytes(framing.max_frame.min(MELO_FRAME)),
    )
}

/// A buffer with a copy of the bytes.
pub(crate) fn copy_of(arena: &Arena, bytes: &[u8]) -> Result<MsgBuf, AllocError> {
    let mut m = arena.alloc(bytes.len())?;
    m.copy_from_slice(bytes);
    Ok(m)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M34: peers may have frames of 1,472 bytes, whatever this endpoint has.
    #[test]
    fn a_derived_pool_covers_peers_with_smaller_frames() {
        let bits = |max_frame: usize, melo_bits| {
            let cfg = Config { line_rate_bps: 100_000_000_000, melo_bits, ..Config::default() };
            melo_pool_of(&cfg, &Framing::from(max_frame)).bits
        };
        // 2.5 MB in frames of 1,538 bytes on the wire are 1,626.
        assert_eq!([1_472, 8_972, 65_507].map(|frame| bits(frame, 0)), [1_640; 3]);
        assert!(bits(1_072, 0) > 1_640, "no frame is larger than this endpoint's");
        assert_eq!(bits(8_972, 96), 96, "a set number");
    }
}
