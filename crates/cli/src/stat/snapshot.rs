//! Messages of the request type [`STAT`]: statistics of one endpoint.
//!
//! A request is a [`Query`], a response a [`Snapshot`], both as JSON. A snapshot has at most [`PAGE`]
//! sessions; the next page begins at the number in the last one. A reader ignores unknown fields and
//! reads missing fields as zero; a change of meaning needs another [`FORMAT`].

use courser::{
    DROP_NAMES, EndpointStats, HandlerStats, MemoryUse, Role, Rpc, SessionId, SessionState,
    Transport,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Request type of statistics, reserved on every endpoint of `courser serve`. It is high, so that it
/// rarely conflicts with types of applications, but low enough for a small table of handlers, which
/// has 16 bytes for each type below it.
pub(crate) const STAT: u16 = 1023;

/// Most sessions in one snapshot: about 100 KiB.
pub(crate) const PAGE: usize = 256;

/// Version of the format of a snapshot.
pub(crate) const FORMAT: u32 = 1;

/// A request for statistics.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Query {
    /// Must be [`FORMAT`].
    pub(crate) format: u32,
    /// Number of the first session.
    pub(crate) first_session: u32,
    /// Most sessions; the server may return fewer.
    pub(crate) sessions: usize,
}

/// Statistics of the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Process {
    /// Version and commit.
    pub(crate) version: String,
    /// Endpoints of the process.
    pub(crate) endpoints: u16,
    /// Rejections by the control plane, over all endpoints.
    pub(crate) control: BTreeMap<String, u64>,
    /// Counters of the worker threads, over all endpoints.
    pub(crate) workers: BTreeMap<String, u64>,
}

/// Statistics of one endpoint. Counters begin at the creation of the endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Snapshot {
    /// [`FORMAT`].
    pub(crate) format: u32,
    pub(crate) process: Process,
    /// Number of the endpoint, and its datapath port.
    pub(crate) endpoint: u16,
    pub(crate) port: u32,
    /// Time since the creation of the endpoint, ns.
    pub(crate) now_ns: u64,
    /// Congestion control in use; empty from a server without this field.
    pub(crate) control: String,
    pub(crate) counters: Counters,
    /// Discarded frames and packets by reason, without zeros.
    pub(crate) drops: BTreeMap<String, u64>,
    /// Outcomes of requests on the way to or from handlers, without zeros.
    pub(crate) handlers: BTreeMap<String, u64>,
    /// Sum of the credit limits of all sessions.
    pub(crate) credits_granted: u64,
    /// Calls of this endpoint that have not ended.
    pub(crate) outstanding_calls: u64,
    pub(crate) memory: Memory,
    /// Sessions in any state, both roles.
    pub(crate) session_count: usize,
    /// This page of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) sessions: Vec<SessionRow>,
    /// Number of the first session of the next page, if there is one.
    pub(crate) next_session: Option<u32>,
    /// The session of the request.
    pub(crate) asked_by: u32,
}

/// Counters of the protocol and of the transport.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Counters {
    pub(crate) calls: u64,
    pub(crate) responses: u64,
    pub(crate) errors: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
    pub(crate) requests: u64,
    pub(crate) replies: u64,
    pub(crate) requests_expired: u64,
    pub(crate) requests_cancelled: u64,
    pub(crate) rollbacks: u64,
    pub(crate) retransmitted: u64,
    pub(crate) lost: u64,
    pub(crate) probes: u64,
    pub(crate) spurious: u64,
    pub(crate) gaps: u64,
    pub(crate) melo_bits_peak: u32,
    pub(crate) melo_refused: u64,
    pub(crate) responses_resent: u64,
    pub(crate) in_progress_sent: u64,
    pub(crate) pool_waits: u64,
    pub(crate) paced: u64,
    pub(crate) completions_parked: u64,
    pub(crate) tx_copied: u64,
    pub(crate) max_in_flight: u32,
    pub(crate) tx_packets: u64,
    pub(crate) rx_packets: u64,
    pub(crate) tx_frames: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) tx_dropped: u64,
    pub(crate) tx_full: u64,
    pub(crate) rx_frames: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) rx_dropped: u64,
    pub(crate) rx_overflow: u64,
}

/// Message memory of the endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Memory {
    pub(crate) in_use_bytes: usize,
    pub(crate) peak_in_use_bytes: usize,
    pub(crate) mapped_bytes: usize,
    pub(crate) limit_bytes: usize,
    pub(crate) in_use_buffers: usize,
    /// Tables, slots and queues of sessions, which are not message memory.
    pub(crate) sessions_bytes: usize,
}

/// One session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SessionRow {
    /// Number of the session at the endpoint.
    pub(crate) session: u32,
    /// Role of the endpoint: `client` or `server`.
    pub(crate) role: String,
    /// `connecting`, `connected` or `gone`.
    pub(crate) state: String,
    /// The other endpoint's datapath address, once it is known.
    pub(crate) peer: Option<String>,
    /// Loss recovery: `go-back-n`, `melo` or `default`; empty from a server without this field.
    pub(crate) recovery: String,
    /// Modulo 2^27.
    pub(crate) requests: u32,
    pub(crate) credits: Option<u32>,
    pub(crate) credit_limit: u32,
    pub(crate) in_flight: u32,
    pub(crate) slots: u32,
    pub(crate) queued: usize,
    pub(crate) quarantined: u32,
    pub(crate) rollbacks: u64,
    pub(crate) retransmitted: u64,
    /// Over all sessions with the peer.
    pub(crate) tx_frames: u64,
    pub(crate) rx_frames: u32,
    pub(crate) rtt_ns: Option<u64>,
    pub(crate) srtt_ns: Option<u64>,
    pub(crate) rtt_min_ns: Option<u64>,
    pub(crate) rto_ns: Option<u64>,
    pub(crate) ecn_marked: u32,
    /// Window of congestion control for all sessions with the peer; `None`: it does not limit.
    pub(crate) window_packets: Option<u32>,
    /// Time between two full-sized packets to the peer, while they are paced.
    pub(crate) pacing_gap_ns: Option<u64>,
    /// Number of times that congestion control lowered the window or the rate to the peer.
    pub(crate) window_decreases: u64,
    pub(crate) data_per_packet: u16,
}

impl Snapshot {
    /// Reads the statistics of an endpoint between two passes of its event loop.
    pub(crate) fn take<T: Transport>(
        rpc: &mut Rpc<T>,
        process: Process,
        query: &Query,
        asked_by: SessionId,
    ) -> Self {
        let wanted = query.sessions.min(PAGE);
        let ids: Vec<_> = rpc.sessions_from(query.first_session).take(wanted + 1).collect();
        let (page, next) = ids.split_at(wanted.min(ids.len()));
        let stats = rpc.stats();
        let memory = rpc.memory();
        // Iterates over all sessions; a query for sessions does that anyway.
        let of_sessions = if wanted > 0 && query.first_session == 0 {
            rpc.session_memory()
        } else {
            MemoryUse::default()
        };
        Self {
            format: FORMAT,
            process,
            endpoint: rpc.index(),
            port: rpc.port(),
            control: rpc.control().name().to_owned(),
            counters: counters(rpc),
            drops: named(DROP_NAMES.into_iter().zip(stats.drops)),
            handlers: handlers(&rpc.handler_stats()),
            credits_granted: rpc.credits_granted(),
            outstanding_calls: rpc.outstanding_calls(),
            memory: Memory {
                in_use_bytes: memory.in_use_bytes,
                peak_in_use_bytes: memory.peak_in_use_bytes,
                mapped_bytes: memory.mapped_bytes,
                limit_bytes: memory.limit_bytes,
                in_use_buffers: memory.in_use_buffers,
                // The rest of the memory is in the arena.
                sessions_bytes: of_sessions.total_bytes()
                    - of_sessions.prealloc_bytes
                    - of_sessions.held_bytes,
            },
            session_count: rpc.sessions(),
            sessions: page.iter().filter_map(|&id| session(rpc, id)).collect(),
            next_session: next.first().map(|id| id.index()),
            asked_by: asked_by.index(),
            now_ns: rpc.context().now_ns(),
        }
    }
}

/// Counters by name, without zeros.
pub(crate) fn named<'a>(
    counters: impl IntoIterator<Item = (&'a str, u64)>,
) -> BTreeMap<String, u64> {
    let happened = counters.into_iter().filter(|&(_, count)| count > 0);
    happened.map(|(name, count)| (name.to_owned(), count)).collect()
}

fn handlers(stats: &HandlerStats) -> BTreeMap<String, u64> {
    named([
        ("panics", stats.panics),
        ("workers_busy", stats.workers_busy),
        ("no_memory", stats.no_memory),
        ("gone", stats.gone),
    ])
}

fn counters<T: Transport>(rpc: &Rpc<T>) -> Counters {
    let transport = rpc.transport_stats();
    let p: &EndpointStats = rpc.stats();
    Counters {
        calls: p.calls,
        responses: p.responses,
        errors: p.errors,
        expired: p.expired,
        cancelled: p.cancelled,
        requests: p.requests,
        replies: p.replies,
        requests_expired: p.requests_expired,
        requests_cancelled: p.requests_cancelled,
        rollbacks: p.rollbacks,
        retransmitted: p.retransmitted,
        lost: p.lost,
        probes: p.probes,
        spurious: p.spurious,
        gaps: p.gaps,
        melo_bits_peak: p.melo_bits_peak,
        melo_refused: p.melo_refused,
        responses_resent: p.responses_resent,
        in_progress_sent: p.in_progress_sent,
        pool_waits: p.pool_waits,
        paced: p.paced,
        completions_parked: p.completions_parked,
        tx_copied: p.tx_copied,
        max_in_flight: p.max_in_flight,
        tx_packets: p.tx_packets,
        rx_packets: p.rx_packets,
        tx_frames: transport.tx_frames,
        tx_bytes: transport.tx_bytes,
        tx_dropped: transport.tx_dropped,
        tx_full: transport.tx_full,
        rx_frames: transport.rx_frames,
        rx_bytes: transport.rx_bytes,
        rx_dropped: transport.rx_dropped,
        rx_overflow: transport.rx_overflow,
    }
}

fn session<T: Transport>(rpc: &Rpc<T>, id: SessionId) -> Option<SessionRow> {
    let s = rpc.session_stats(id)?;
    Some(SessionRow {
        session: id.index(),
        role: match s.role {
            Role::Client => "client",
            Role::Server => "server",
        }
        .to_owned(),
        state: match rpc.session_state(id) {
            SessionState::Connecting => "connecting",
            SessionState::Connected => "connected",
            _ => "gone",
        }
        .to_owned(),
        peer: s.peer.map(|peer| peer.to_string()),
        recovery: s.recovery.name().to_owned(),
        requests: s.requests,
        // Only the client knows the available credits.
        credits: (s.role == Role::Client).then_some(s.credits),
        credit_limit: s.credit_limit,
        in_flight: s.in_flight,
        slots: s.slots,
        queued: s.queued,
        quarantined: s.quarantined,
        rollbacks: s.rollbacks,
        retransmitted: s.retransmitted,
        tx_frames: s.tx_frames,
        rx_frames: s.rx_frames,
        rtt_ns: s.rtt_ns,
        srtt_ns: s.srtt_ns,
        rtt_min_ns: s.rtt_min_ns,
        rto_ns: s.rto_ns,
        ecn_marked: s.ecn_marked,
        window_packets: s.window,
        pacing_gap_ns: s.pacing_gap_ns,
        window_decreases: s.decreases,
        data_per_packet: s.data_per_packet,
    })
}
