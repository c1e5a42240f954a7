//! Sends one-way messages in batches, each on one session.

use courser::{Rpc, SessionId};

use super::load::{CallsError, Load};
use super::service;

/// The messages of a load.
pub(super) struct Sender {
    /// Used in turn, so that a batch has the credits of a session.
    sessions: Vec<SessionId>,
    next: usize,
    size: usize,
    batch: u32,
    /// Most messages that are not acknowledged.
    most: u64,
    /// Messages that were acknowledged up to the last count.
    counted: u64,
}

impl Sender {
    pub(super) fn new(load: &Load, sessions: &[SessionId], rpc: &Rpc) -> Self {
        Self {
            sessions: sessions.to_vec(),
            next: 0,
            size: load.size,
            batch: load.batch.max(1),
            most: load.chains().1 as u64,
            counted: rpc.stats().messages_acknowledged,
        }
    }

    /// Queues one batch, unless too many messages are not acknowledged. The endpoint's next pass sends
    /// it.
    pub(super) fn send(&mut self, rpc: &mut Rpc) -> Result<(), CallsError> {
        if rpc.outstanding_messages() + u64::from(self.batch) > self.most {
            return Ok(());
        }
        let session = self.sessions[self.next];
        self.next = (self.next + 1) % self.sessions.len();
        for _ in 0..self.batch {
            let message = rpc.alloc_recycled(self.size);
            let message = message.map_err(|e| CallsError::Rejected(e.to_string()))?;
            let sent = rpc.send(session, service::MESSAGE, message);
            sent.map_err(|rejected| CallsError::Rejected(rejected.reason.to_string()))?;
        }
        Ok(())
    }

    /// Messages that were acknowledged since the last count.
    pub(super) fn acknowledged(&mut self, rpc: &Rpc) -> u64 {
        let all = rpc.stats().messages_acknowledged;
        all - std::mem::replace(&mut self.counted, all)
    }
}
