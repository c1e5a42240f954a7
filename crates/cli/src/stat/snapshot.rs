//! Messages of the request type [`STAT`]: statistics of one endpoint.
//!
//! A request is a [`Query`], a response a [`Snapshot`], both as JSON. A snapshot has at most [`PAGE`]
//! sessions; the next page begins at the number in the last one. A reader ignores unknown fields and
//! reads missing fields as zero; a change of meaning needs another [`FORMAT`]. Numbers have the names
//! that docs/statistics.md lists: a new one needs no change here, and one that only the other version
//! has is passed on.

use courser_kit::counters::number;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Request type of statistics, reserved on every endpoint of `courser serve`. It is high, so that it
/// rarely conflicts with types of applications, but low enough for a small table of handlers, which
/// has 16 bytes for each type below it.
pub(crate) const STAT: u16 = 1023;

/// Most sessions in one snapshot: about 120 KiB.
pub(crate) const PAGE: usize = 256;

/// Version of the format of a snapshot.
pub(crate) const FORMAT: u32 = 1;

/// Numbers by name.
pub(crate) type Numbers = Map<String, Value>;

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
    /// Rejections by the control plane, over all endpoints, without zeros.
    pub(crate) control: Numbers,
    /// Counters of the worker threads, over all endpoints, without zeros.
    pub(crate) workers: Numbers,
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
    /// Counters of the protocol and of the transport; `tx_frames` and `rx_frames` are the transport's.
    pub(crate) counters: Numbers,
    /// Discarded frames and packets by reason, without zeros.
    pub(crate) drops: Numbers,
    /// Outcomes of requests on the way to or from handlers, without zeros.
    pub(crate) handlers: Numbers,
    /// Sum of the credit limits of all sessions.
    pub(crate) credits_granted: u64,
    /// Calls of this endpoint that have not ended.
    pub(crate) outstanding_calls: u64,
    /// Message memory of the endpoint, and in `sessions_bytes` tables, slots and queues of sessions,
    /// which are not message memory.
    pub(crate) memory: Numbers,
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
    /// Numbers of the session; `null` where there is none.
    #[serde(flatten)]
    pub(crate) numbers: Numbers,
}

impl SessionRow {
    /// Requests so far, modulo 2^27.
    pub(crate) fn requests(&self) -> u32 {
        number(&self.numbers, "requests") as u32
    }
}
