//! The calls of a workload, and how they fail.

use courser::CallError;
use serde::{Deserialize, Serialize};

use super::service;

/// Why calls failed.
#[derive(Debug, thiserror::Error)]
pub enum CallsError {
    /// A call ended with an error.
    #[error("a call failed: {0}")]
    Call(#[from] CallError),
    /// A call was rejected.
    #[error("a call was rejected: {0}")]
    Rejected(String),
    /// The response is not that of the service.
    #[error(
        "a call of {sent} bytes got a wrong response; start this version of `courser serve` there"
    )]
    Answer {
        /// Length of the request.
        sent: usize,
    },
    /// No response arrived.
    #[error("no response for {0} s; check that the server runs")]
    Stall(u64),
}

/// The calls of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// The request type; [`service::MESSAGE`] for one-way messages.
    pub req_type: u16,
    /// Bytes in a request.
    pub size: usize,
    /// Number of sessions in use: the first ones of the endpoint.
    pub sessions: usize,
    /// Most calls in flight; rounded down to a multiple of the batch.
    pub in_flight: u32,
    /// Calls of a chain that are sent together.
    pub batch: u32,
    /// Each call uses a uniformly random session; otherwise each tag keeps its session.
    pub random: bool,
    /// Record the latency of each call. Off for rates, because clock reads would lower them.
    pub timed: bool,
}

impl Load {
    /// Returns whether the load consists of one-way messages: a batch is sent in each pass in which all
    /// of it may be in flight. The batches take the sessions in turn.
    pub fn one_way(&self) -> bool {
        self.req_type == service::MESSAGE
    }

    /// Returns whether the calls are futures: each call in flight is a task with a session of its own.
    pub fn awaited(&self) -> bool {
        matches!(self.req_type, service::AWAITED | service::TYPED)
    }

    /// Number of chains, and of calls in flight: as many chains as fit, at least one.
    pub fn chains(&self) -> (usize, usize) {
        let batch = self.batch.max(1);
        let chains = (self.in_flight / batch).max(1);
        (chains as usize, (chains * batch) as usize)
    }
}
