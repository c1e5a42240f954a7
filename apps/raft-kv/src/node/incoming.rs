//! The snapshot that is being received, one at a time: its parts are put together, and decoded as they come.

use crate::api::{Chunk, PeerError};
use crate::store::{Decoder, ImageError, Store};

/// Largest part of a snapshot, bytes.
const MAX_CHUNK: usize = 1 << 20;
/// Time without a part after which a transfer is dropped, ns. The sender waits 2 s for an answer.
const IDLE_NS: u64 = 5_000_000_000;

/// A transfer that is not complete.
struct Transfer {
    from: u64,
    term: u64,
    index: u64,
    total: u64,
    bytes: Vec<u8>,
    /// Has decoded the bytes, but for a part of an entry.
    decoder: Decoder,
    last_ns: u64,
}

/// The place of the next part, and a complete store with its bytes.
pub(super) type Assembled = (u64, Option<(Store, Vec<u8>)>);

/// The snapshot that is being received, if there is one.
#[derive(Default)]
pub(super) struct Incoming(Option<Transfer>);

pub(super) fn malformed(error: impl std::fmt::Display) -> PeerError {
    PeerError::Malformed(error.to_string())
}

fn refused(error: ImageError) -> PeerError {
    PeerError::Snapshot(format!("the snapshot is malformed ({})", error.0))
}

impl Incoming {
    /// Bytes that were received of it.
    pub(super) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |transfer| transfer.bytes.len())
    }

    /// Drops a transfer whose sender has abandoned it, with the state that was decoded.
    pub(super) fn expire(&mut self, now_ns: u64) {
        self.0.take_if(|transfer| now_ns.saturating_sub(transfer.last_ns) >= IDLE_NS);
    }

    /// Adds a part to the transfer that it belongs to, and decodes it. Returns the place of the next part,
    /// and the store with its bytes if they are complete. `limit` is the largest snapshot, bytes.
    pub(super) fn add(
        &mut self,
        chunk: &Chunk,
        data: &[u8],
        limit: u64,
        now_ns: u64,
    ) -> Result<Assembled, PeerError> {
        let slot = &mut self.0;
        if data.len() > MAX_CHUNK {
            return Err(malformed("a part of a snapshot has too many bytes"));
        }
        let total = chunk.total;
        if total > limit {
            return Err(PeerError::Large { total, limit });
        }
        if chunk.offset == 0 {
            let is_busy = slot.as_ref().is_some_and(|transfer| {
                transfer.term >= chunk.term
                    && transfer.from != chunk.from
                    && now_ns.saturating_sub(transfer.last_ns) < IDLE_NS
            });
            if is_busy {
                return Err(PeerError::Order);
            }
            let (from, term, index, total) = (chunk.from, chunk.term, chunk.index, chunk.total);
            let (bytes, decoder) = (Vec::new(), Decoder::default());
            *slot = Some(Transfer { from, term, index, total, bytes, decoder, last_ns: now_ns });
        }
        let transfer = slot.as_mut().ok_or(PeerError::Order)?;
        let is_next = (transfer.from, transfer.term, transfer.index, transfer.total)
            == (chunk.from, chunk.term, chunk.index, chunk.total)
            && transfer.bytes.len() as u64 == chunk.offset
            && chunk.offset + data.len() as u64 <= chunk.total;
        if !is_next {
            return Err(PeerError::Order);
        }
        transfer.bytes.extend_from_slice(data);
        transfer.last_ns = now_ns;
        let decoded = transfer.decoder.advance(&transfer.bytes);
        let next = transfer.bytes.len() as u64;
        let is_complete = next == transfer.total;
        let ended = slot.take_if(|_| is_complete || decoded.is_err());
        decoded.map_err(refused)?;
        let Some(Transfer { bytes, decoder, .. }) = ended else { return Ok((next, None)) };
        let store = decoder.end(&bytes).map_err(refused)?;
        Ok((next, Some((store, bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, Op, Ticket};
    use crate::planted::Planted;

    const SECOND: u64 = 1_000_000_000;

    /// The parts of the snapshot of a store with 100 keys.
    struct Sender {
        from: u64,
        term: u64,
        bytes: Vec<u8>,
    }

    impl Sender {
        fn new(from: u64, term: u64) -> Sender {
            let mut store = Store::founded(&[(1, "a".to_owned())].into());
            let mut apply = |command| store.apply((2, 1), Some(command), Planted::default());
            apply(Command::Open { now_ms: 0, ttl_ms: 1_000 });
            for n in 0..100_u8 {
                let op = Op::Put { key: vec![n].into(), value: vec![n; 100].into() };
                let ticket = Ticket { session: 2, seq: 1 + u64::from(n), first: 1 };
                apply(Command::Write { now_ms: 0, ticket, op });
            }
            Sender { from, term, bytes: store.image().bytes.to_vec() }
        }

        /// Sends the bytes from a place on, at most 1,000 of them.
        fn send(&self, to: &mut Incoming, at: usize, now_ns: u64) -> Result<u64, PeerError> {
            let (from, term, total) = (self.from, self.term, self.bytes.len() as u64);
            let offset = at as u64;
            let chunk = Chunk { from, term, index: 1, total, offset, head: Vec::new().into() };
            let data = &self.bytes[at..self.bytes.len().min(at + 1_000)];
            to.add(&chunk, data, u64::MAX, now_ns).map(|(next, _)| next)
        }
    }

    #[test]
    fn a_transfer_without_parts_is_dropped_after_the_idle_limit() {
        let (sender, mut incoming) = (Sender::new(2, 5), Incoming::default());
        assert_eq!(sender.send(&mut incoming, 0, 0), Ok(1_000));
        incoming.expire(4 * SECOND);
        assert_eq!(sender.send(&mut incoming, 1_000, 4 * SECOND), Ok(2_000));
        incoming.expire(9 * SECOND - 1);
        assert_eq!(incoming.bytes(), 2_000);
        incoming.expire(9 * SECOND);
        assert_eq!(incoming.bytes(), 0);
        assert_eq!(sender.send(&mut incoming, 2_000, 9 * SECOND), Err(PeerError::Order));
        assert_eq!(sender.send(&mut incoming, 0, 9 * SECOND), Ok(1_000));
    }
}
