//! The snapshot that is being received, one at a time: its parts are put together, and decoded as they come.
//!
//! Invariants:
//! 1. A transfer is replaced by one of a newer term, or by a later one of its own sender, and not by others
//!    while its parts come. A first part that is refused replaces nothing.
//! 2. [`PeerError::Busy`] changes nothing: the same part may be sent again, and is taken when the reason is
//!    gone.

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

    /// Begins a transfer with its first part.
    fn begin(&mut self, chunk: &Chunk, now_ns: u64) -> Result<(), PeerError> {
        self.expire(now_ns);
        let is_taken = self.0.as_ref().is_some_and(|present| {
            let is_older = (chunk.term, chunk.index) < (present.term, present.index);
            // Two nodes do not lead in one term.
            is_older || chunk.term == present.term && chunk.from != present.from
        });
        if is_taken {
            return Err(PeerError::Busy);
        }
        let Chunk { from, term, index, total, .. } = *chunk;
        let (bytes, decoder) = (Vec::new(), Decoder::default());
        self.0 = Some(Transfer { from, term, index, total, bytes, decoder, last_ns: now_ns });
        Ok(())
    }

    /// Adds a part to the transfer that it belongs to, and decodes it. Returns the place of the next part,
    /// and the store with its bytes if they are complete. `limit` is the largest snapshot, bytes. A node
    /// that is not ready takes neither the first nor the last part.
    pub(super) fn add(
        &mut self,
        chunk: &Chunk,
        data: &[u8],
        (limit, is_ready): (u64, bool),
        now_ns: u64,
    ) -> Result<Assembled, PeerError> {
        let Chunk { from, term, index, total, offset, .. } = *chunk;
        let next = offset.saturating_add(data.len() as u64);
        if data.len() > MAX_CHUNK || next > total {
            return Err(malformed("a part of a snapshot has too many bytes"));
        }
        if total > limit {
            return Err(PeerError::Large { total, limit });
        }
        if offset == 0 {
            if !is_ready {
                return Err(PeerError::Busy);
            }
            self.begin(chunk, now_ns)?;
        }
        let is_next = |present: &&mut Transfer| {
            (present.from, present.term, present.index, present.total, present.bytes.len() as u64)
                == (from, term, index, total, offset)
        };
        let transfer = self.0.as_mut().filter(is_next).ok_or(PeerError::Order)?;
        transfer.last_ns = now_ns;
        let is_last = next == total;
        if is_last && !is_ready {
            return Err(PeerError::Busy);
        }
        transfer.bytes.extend_from_slice(data);
        let decoded = transfer.decoder.advance(&transfer.bytes);
        let ended = self.0.take_if(|_| is_last || decoded.is_err());
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
            self.send_to(to, true, at, now_ns)
        }

        fn send_to(
            &self,
            to: &mut Incoming,
            is_ready: bool,
            at: usize,
            now_ns: u64,
        ) -> Result<u64, PeerError> {
            let (from, term, total) = (self.from, self.term, self.bytes.len() as u64);
            let offset = at as u64;
            let chunk = Chunk { from, term, index: 1, total, offset, head: Vec::new().into() };
            let data = &self.bytes[at..self.bytes.len().min(at + 1_000)];
            let (next, complete) = to.add(&chunk, data, (u64::MAX, is_ready), now_ns)?;
            assert_eq!(complete.is_some(), next == total);
            Ok(next)
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

    #[test]
    fn a_newer_term_displaces_an_older_one_and_no_older_one_displaces_it() {
        let (older, newer, mut incoming) =
            (Sender::new(2, 5), Sender::new(3, 6), Incoming::default());
        assert_eq!(older.send(&mut incoming, 0, 0), Ok(1_000));
        assert_eq!(newer.send(&mut incoming, 0, 0), Ok(1_000));
        assert_eq!(older.send(&mut incoming, 1_000, 0), Err(PeerError::Order));
        assert_eq!(older.send(&mut incoming, 0, 0), Err(PeerError::Busy));
        // An earlier leadership of the same sender.
        assert_eq!(Sender::new(3, 5).send(&mut incoming, 0, 0), Err(PeerError::Busy));
        assert_eq!(newer.send(&mut incoming, 1_000, 0), Ok(2_000));
        // The sender begins again.
        assert_eq!(newer.send(&mut incoming, 0, 0), Ok(1_000));
    }

    #[test]
    fn a_sender_of_the_same_term_is_busy_until_the_other_has_ended() {
        let (one, two, mut incoming) = (Sender::new(2, 5), Sender::new(3, 5), Incoming::default());
        for at in (0..one.bytes.len()).step_by(1_000) {
            assert!(one.send(&mut incoming, at, 0).is_ok());
            let last = at + 1_000 >= one.bytes.len();
            assert_eq!(two.send(&mut incoming, 0, 0).is_ok(), last);
        }
        assert_eq!(one.send(&mut incoming, 0, 5 * SECOND - 1), Err(PeerError::Busy));
        assert_eq!(one.send(&mut incoming, 0, 5 * SECOND), Ok(1_000));
    }

    #[test]
    fn a_node_that_is_not_ready_takes_no_first_and_no_last_part_and_keeps_the_others() {
        let (sender, mut incoming) = (Sender::new(2, 5), Incoming::default());
        let len = sender.bytes.len();
        let last = (len - 1) / 1_000 * 1_000;
        assert_eq!(sender.send_to(&mut incoming, false, 0, 0), Err(PeerError::Busy));
        assert!(sender.send(&mut incoming, 0, 0).is_ok());
        for at in (1_000..last).step_by(1_000) {
            assert!(sender.send_to(&mut incoming, false, at, 0).is_ok());
        }
        // The answers keep the transfer from being idle.
        for second in 0..20 {
            incoming.expire(second * SECOND);
            let answer = sender.send_to(&mut incoming, false, last, second * SECOND);
            assert_eq!((answer, incoming.bytes()), (Err(PeerError::Busy), last));
        }
        assert_eq!(sender.send(&mut incoming, last, 20 * SECOND), Ok(len as u64));
    }

    #[test]
    fn a_first_part_that_is_refused_displaces_nothing() {
        let (sender, mut incoming) = (Sender::new(2, 5), Incoming::default());
        assert!(sender.send(&mut incoming, 0, 0).is_ok());
        let bad = |total, len| {
            let chunk = Chunk { from: 3, term: 9, index: 1, total, offset: 0, head: vec![].into() };
            (chunk, vec![0; len])
        };
        for (chunk, data) in [bad(10, 11), bad(10_000, 1), bad(5_000_000, MAX_CHUNK + 1)] {
            assert!(incoming.add(&chunk, &data, (9_999, true), 0).is_err());
        }
        assert_eq!(sender.send(&mut incoming, 1_000, 0), Ok(2_000));
    }
}
